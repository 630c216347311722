//! What the values of each kind mean: defaults, validation, and what a write may change.
//!
//! Every rule is a pure function over the decoded JSON. Defaults and preparation change the object;
//! validation walks it with [`At`] and reports with [`Errors`] in upstream's words.

use crate::field::{At, Errors};
use serde_json::Value;

mod admissionregistration;
mod apiextensions;
mod apiregistration;
mod apps;
pub(crate) mod autoscaling;
mod batch;
mod certificates;
mod check;
mod coordination;
pub mod core;
mod discovery;
mod events;
mod flowcontrol;
mod label_selector;
mod landfall;
mod networking;
mod node;
mod policy;
mod rbac;
mod resource;
mod scheduling;
mod storage;
mod unset_times;

pub use batch::{Schedule, zone};
pub use core::pod_subresources::{validate_ephemeral_update, validate_resize};
pub use core::qos::qos_class;
pub use core::service_ip::{default_ip_families, validate_single_stack};
pub use scheduling::is_system_class;
pub use unset_times::show_unset_times;

/// The rules of one kind. `Rules::NONE` is a kind with nothing special about it.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Fills in what the client left out. Runs when a request is decoded and after every patch.
    pub default: fn(&mut Value),
    /// Last touches on a new object, after defaults, with its uid set: status, generated selectors.
    pub prepare_create: fn(&mut Value),
    /// What an update of the main resource may not touch is put back from the old object, silently.
    /// Status and generation are the server's business and need no rule.
    pub prepare_update: fn(&mut Value, &Value),
    /// Everything but metadata, which is checked for all kinds alike (`metadata`).
    pub validate: fn(&At, &mut Errors),
    /// Checks that need the old object too: immutable fields. `validate` runs as well.
    pub validate_update: fn(new: &At, old: &At, &mut Errors),
    /// Checks of an update through `/status`.
    pub validate_status_update: fn(new: &At, old: &At, &mut Errors),
    /// Field selectors besides metadata.name and metadata.namespace.
    pub fields: &'static [SelectableField],
    pub name: NameRule,
    pub generation: Generation,
    /// PUT without resourceVersion is allowed.
    pub unconditional_update: bool,
    /// PUT of a missing name creates.
    pub create_on_update: bool,
    /// DELETE answers with the object even when it is gone.
    pub returns_deleted: bool,
    /// Without a propagation policy, dependents are orphaned.
    pub orphans_by_default: bool,
}

/// A field that selectors can name, and how to read it from an object.
pub type SelectableField = (&'static str, fn(&Value) -> String);

/// Which names a kind's objects may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// DNS-1123 subdomain, at most 253 characters.
    Subdomain,
    /// DNS-1123 label, at most 63 characters.
    Label,
    /// Anything that fits into one path segment.
    PathSegment,
    /// The rule is in `validate`, which looks at metadata.name itself (CRD, APIService, IPAddress, CronJob).
    Own,
}

/// What makes metadata.generation grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// The kind has none.
    Never,
    /// Set to 1 and left alone.
    Fixed,
    Spec,
    SpecOrAnnotations,
    /// Anything outside metadata and status.
    Content,
    /// Content or labels (EndpointSlice).
    ContentOrLabels,
}

impl Rules {
    pub const NONE: Rules = Rules {
        default: |_| {},
        prepare_create: |_| {},
        prepare_update: |_, _| {},
        validate: |_, _| {},
        validate_update: |_, _, _| {},
        validate_status_update: |_, _, _| {},
        fields: &[],
        name: NameRule::Subdomain,
        generation: Generation::Never,
        unconditional_update: true,
        create_on_update: false,
        returns_deleted: false,
        orphans_by_default: false,
    };
}

pub(crate) fn of(group: &str, kind: &str) -> Rules {
    match group {
        "" => core::rules(kind),
        "admissionregistration.k8s.io" => admissionregistration::rules(kind),
        "apiextensions.k8s.io" => apiextensions::rules(kind),
        "apiregistration.k8s.io" => apiregistration::rules(kind),
        "apps" => apps::rules(kind),
        "autoscaling" => autoscaling::rules(kind),
        "batch" => batch::rules(kind),
        "certificates.k8s.io" => certificates::rules(kind),
        "coordination.k8s.io" => coordination::rules(kind),
        "discovery.k8s.io" => discovery::rules(kind),
        "events.k8s.io" => events::rules(kind),
        "flowcontrol.apiserver.k8s.io" => flowcontrol::rules(kind),
        "landfall.dev" => landfall::rules(kind),
        "networking.k8s.io" => networking::rules(kind),
        "node.k8s.io" => node::rules(kind),
        "policy" => policy::rules(kind),
        "rbac.authorization.k8s.io" => rbac::rules(kind),
        "resource.k8s.io" => resource::rules(kind),
        "scheduling.k8s.io" => scheduling::rules(kind),
        "storage.k8s.io" => storage::rules(kind),
        _ => Rules::NONE,
    }
}
