//! Volumes on a real kernel, with objects from a real server. Needs root.

mod claims;
mod containers;
mod kept;
mod made;
mod shared;
mod world;
