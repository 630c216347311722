//! The native runtime against the real kernel. Needs root.

mod fixture;

mod cpu_priority;
mod crash;
mod escape;
mod isolation;
mod lifecycle;
mod limits;
mod streams;
mod users;
