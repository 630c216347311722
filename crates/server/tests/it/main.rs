//! Tests of the server through requests of clients in the same process (`cluster`).

mod cluster;
mod shapes;

mod access;
mod addresses;
mod admission;
mod audit;
mod custom_resources;
mod deletion;
mod dual_stack;
mod eviction;
mod flood;
mod forms;
mod garbage;
mod ingresses;
mod joining;
mod lists;
mod loopholes;
mod many_definitions;
mod node_traffic;
mod objects;
mod patches;
mod proxied_pages;
mod proxy;
mod races;
mod services;
mod system_objects;
mod terminations;
mod usage;
mod watches;
mod workloads;
mod writes;
