//! Tests of the server through its door (`door`), as clients meet it.

mod door;
mod shapes;

mod access;
mod admission;
mod customs;
mod deletion;
mod eviction;
mod forms;
mod garbage;
mod joining;
mod lists;
mod loopholes;
mod objects;
mod patches;
mod races;
mod terminations;
mod upkeep;
mod usage;
mod watches;
mod workloads;
mod writes;
