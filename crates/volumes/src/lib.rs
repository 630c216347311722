#![doc = include_str!("../README.md")]

mod volumes;

mod claims;
mod empty_dir;
mod hostpath;
mod payload;
mod tokens;

mod atomic;
mod fs_group;
mod nested;
mod removal;
mod usage;

#[cfg(test)]
mod tests;

pub use volumes::{VolumeError, VolumeUsage, Volumes, remove_all};
