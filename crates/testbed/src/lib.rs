#![doc = include_str!("../README.md")]

#[cfg(feature = "server")]
pub mod observed;
#[cfg(feature = "server")]
pub mod server;

#[cfg(feature = "machine")]
pub mod machine;

pub mod kubectl;
pub mod process;
pub mod registry;
pub mod tools;

pub use kubectl::{Kubectl, installed_kubectls};
#[cfg(feature = "machine")]
pub use machine::Machine;
#[cfg(feature = "server")]
pub use observed::Observed;
pub use process::{Background, signal};
pub use registry::DockerRegistry;
#[cfg(feature = "server")]
pub use server::TestServer;
