//! Debian's containerd, driven through the `Runtime` trait.

mod fixture;
mod life;
mod sessions;
