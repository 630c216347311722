//! Containers and images, native and CRI. See README.md.
//!
//! It keeps processes and has never heard of the API: a pod here is a sandbox with an identity, and
//! what its containers may do is spelled out in a [`ContainerSpec`].

mod error;
mod runtime;
mod session;
mod spec;
mod state;

mod images;

mod native;
mod shim;

mod cri;

mod cgroup;
mod durable;
mod signals;

pub use cgroup::Precedence;
pub use cri::Cri;
pub use error::{Error, Result};
pub use images::{ImageConfig, ImageStore, Name, Registries};
pub use native::{Native, NativeConfig, Unpacked};
pub use runtime::{Change, Features, Images, PullProgress, Runtime, Version};
pub use session::{Output, Session, Size};
pub use shim::{MODE as SHIM_WORD, run_if_asked as run_shim_if_asked};
pub use spec::{
    Capabilities, ContainerSpec, Credentials, Device, Dns, Exec, Identity, ImageReference, Mount,
    Namespace, PodNetwork, PortMapping, Propagation, Resources, SandboxSpec, Seccomp, Security,
    User,
};
pub use state::{
    Container, ContainerState, ContainerUsage, Exit, Image, Mounted, Sandbox, SandboxState,
    newest_first, newest_sandbox_first,
};
