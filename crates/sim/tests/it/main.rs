//! Tests of the simulation: rules are kept, and faults are found.

mod identity;
mod planted;
mod seeds;
mod settle;
