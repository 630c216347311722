//! The native runtime against the real kernel. Needs root; without it every test passes unseen.

#[path = "native/crash.rs"]
mod crash;
#[path = "native/isolation.rs"]
mod isolation;
#[path = "native/life.rs"]
mod life;
#[path = "native/limits.rs"]
mod limits;
#[path = "native/precedence.rs"]
mod precedence;
#[path = "native/streams.rs"]
mod streams;
#[path = "native/world.rs"]
mod world;
