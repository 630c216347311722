//! Unmodified clients against the real binary: every installed kubectl, the official Python client and kube-rs make
//! typical requests and get the responses that Kubernetes gives.
//!
//! There is no node: pods stay Pending, and a pod that must terminate gracefully is bound to a node that exists only as
//! an object. Tests name the rules that they prove (`W-50`, `T-CLI-1`).

mod custom_resources;
mod deletion;
mod discovery;
mod drain;
mod kube_rs;
mod printing;
mod process;
mod python;
mod refusals;
mod stuck;
mod writing;
