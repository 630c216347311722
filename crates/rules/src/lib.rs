#![doc = include_str!("../README.md")]

mod rules;

mod address_form;
mod check;
mod label_selector;
mod unset_times;

mod admissionregistration;
mod apiextensions;
mod apiregistration;
mod apps;
mod autoscaling;
mod batch;
mod certificates;
mod coordination;
mod core;
mod discovery;
mod events;
mod flowcontrol;
mod landfall;
mod networking;
mod node;
mod policy;
mod rbac;
mod resource;
mod scheduling;
mod storage;

pub mod convert;

pub use self::core::pod_subresources::{
    prepare_ephemeral_update, prepare_resize, validate_ephemeral_update, validate_resize,
};
pub use self::core::service::needs_health_check_port;
pub use self::core::service_ip::settle_ip_families;
pub use self::core::service_warnings::service_warnings;
pub use certificates::validate_approval_update;
pub use rules::{Generation, Rules, SelectableField, of};
pub use scheduling::is_system_class;
pub use unset_times::show_unset_times;
