//! Debian's containerd through the `Runtime` trait.

mod fixture;
mod lifecycle;
mod sessions;
