//! The native runtime against the real kernel. Needs root.

mod crash;
mod isolation;
mod life;
mod limits;
mod precedence;
mod streams;
mod world;
