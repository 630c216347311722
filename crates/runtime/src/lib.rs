#![doc = include_str!("../README.md")]

mod error;
mod log_limits;
mod runtime;
mod session;
mod spec;
mod state;

mod images;

mod native;
mod shim;

mod cri;

mod cgroup;
mod descriptors;
mod durable;
mod signals;

pub use cgroup::CpuPriority;
pub use cri::Cri;
pub use descriptors::raise_descriptor_limit;
pub use error::{Error, Result};
pub use images::{ImageConfig, ImageName, ImageStore, Registries};
pub use log_limits::LogLimits;
pub use native::{Native, NativeConfig, UnpackedImages};
pub use runtime::{Change, Features, Images, PullProgress, Runtime, Version};
pub use session::{Output, Session, Size};
pub use shim::{SUBCOMMAND as SHIM_SUBCOMMAND, run_if_asked as run_shim_if_asked};
pub use spec::{
    Capabilities, ContainerSpec, Credentials, Device, Dns, Exec, Identity, ImageReference, Mount,
    Namespace, PodNetwork, PortMapping, Propagation, Resources, SandboxSpec, Seccomp, Security,
    User, UserRange,
};
pub use state::{
    Container, ContainerState, ContainerUsage, Exit, Image, Mounted, Sandbox, SandboxState,
    newest_first, newest_sandbox_first,
};
