//! What controllers clear away and keep in step, on a whole server and a paused clock.

mod cluster;
mod way;

mod accounts;
mod addresses;
mod budgets;
mod garbage;
mod namespaces;
mod pods;
mod quotas;
mod services;
mod storage;
