//! Controllers of objects other than workloads, with a real server and a paused clock.

mod cluster;
mod faulty_connection;

mod accounts;
mod addresses;
mod budgets;
mod garbage;
mod load_balancers;
mod namespaces;
mod pods;
mod quotas;
mod services;
mod storage;
