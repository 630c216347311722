//! Containers and images, native and CRI. See README.md.
//!
//! It keeps processes and has never heard of the API: a pod here is a sandbox with an identity, and
//! what its containers may do is spelled out in a [`ContainerSpec`].

mod error;
mod images;

mod cgroup;
mod durable;
mod native;
mod shim;
mod runtime;
mod session;
mod spec;
mod state;

pub use error::{Error, Result};
pub use native::{Native, NativeConfig, Unpacked};
pub use shim::run_if_asked as run_shim_if_asked;
pub use images::{ImageConfig, ImageStore, Name, Registries};
pub use runtime::{Change, Images, PullProgress, Runtime, Version};
pub use session::{Output, Session, Size};
pub use spec::{
    Capabilities, ContainerSpec, Credentials, Device, Dns, Exec, Identity, ImageReference, Mount,
    Namespace, PodNetwork, PortMapping, Propagation, Resources, SandboxSpec, Seccomp, Security,
    User,
};
pub use state::{
    Container, ContainerState, ContainerUsage, Exit, Image, Mounted, Sandbox, SandboxState,
};
