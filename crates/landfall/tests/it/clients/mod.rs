//! Unmodified clients against the real binary: every kubectl on the machine, the official Python
//! client and kube-rs do what people do with a cluster, and get the answers that Kubernetes gives.
//!
//! There is no node here: pods stay Pending, and a pod that must end gracefully is bound to a
//! node that exists only as an object. Tests that prove a row of the walkthrough or a rule of the
//! specification name it (`W-50`, `T-CLI-1`).

mod custom_resources;
mod deletion;
mod drain;
mod kube_rs;
mod looking;
mod printing;
mod process;
mod python;
mod refusals;
mod stuck;
mod writing;
