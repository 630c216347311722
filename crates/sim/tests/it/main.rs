//! Tests of the simulation: seeds keep all rules, and the checker finds planted faults.

mod identity;
mod planted_faults;
mod seeds;
mod settle;
mod traffic;
