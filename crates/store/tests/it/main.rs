//! Tests of the store, on both of its backends (`bed`).

mod bed;

mod crash;
mod damage;
mod memory;
mod model;
mod restore;
mod sharing;
mod suite;
