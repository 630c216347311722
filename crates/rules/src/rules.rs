//! The struct [`Rules`], which every kind fills in, and where to find the rules of a kind.

use api::names::NameRule;
use api::{At, Errors, Kind};
use serde_json::Value;

/// The rules of one kind. [`Rules::NONE`] has no defaults and no validation.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Sets defaults. Runs after a request is decoded and after every patch.
    pub default: fn(&mut Value),
    /// Completes a new object after defaults, with its uid set: status, generated selectors.
    pub prepare_create: fn(&mut Value),
    /// Restores fields from the old object that an update of the main resource may not change, without an
    /// error. The server handles status and generation.
    pub prepare_update: fn(&mut Value, &Value),
    /// Validates everything except metadata, which is validated alike for all kinds (`api::metadata`).
    pub validate: fn(&At, &mut Errors),
    /// Checks that need the old object, such as immutable fields. `validate` runs as well.
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
    /// DELETE returns the object instead of a Status.
    pub returns_deleted: bool,
    /// Without a propagation policy, dependents are orphaned.
    pub orphans_by_default: bool,
}

/// A field that selectors can name, and how to read it from an object.
pub type SelectableField = (&'static str, fn(&Value) -> String);

/// Which changes increment metadata.generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// The kind has none.
    Never,
    /// Always 1.
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

    /// Custom resources: `api::crd` sets their defaults and validates them.
    const CUSTOM: Rules =
        Rules { generation: Generation::Content, unconditional_update: false, ..Rules::NONE };
}

/// The rules of a kind, built-in or custom.
pub fn of(kind: &Kind) -> Rules {
    if kind.custom.is_some() {
        return Rules::CUSTOM;
    }
    let (group, kind) = (kind.group.as_str(), kind.kind.as_str());
    match group {
        "" => crate::core::rules(kind),
        "admissionregistration.k8s.io" => crate::admissionregistration::rules(kind),
        "apiextensions.k8s.io" => crate::apiextensions::rules(kind),
        "apiregistration.k8s.io" => crate::apiregistration::rules(kind),
        "apps" => crate::apps::rules(kind),
        "autoscaling" => crate::autoscaling::rules(kind),
        "batch" => crate::batch::rules(kind),
        "certificates.k8s.io" => crate::certificates::rules(kind),
        "coordination.k8s.io" => crate::coordination::rules(kind),
        "discovery.k8s.io" => crate::discovery::rules(kind),
        "events.k8s.io" => crate::events::rules(kind),
        "flowcontrol.apiserver.k8s.io" => crate::flowcontrol::rules(kind),
        "landfall.dev" => crate::landfall::rules(kind),
        "networking.k8s.io" => crate::networking::rules(kind),
        "node.k8s.io" => crate::node::rules(kind),
        "policy" => crate::policy::rules(kind),
        "rbac.authorization.k8s.io" => crate::rbac::rules(kind),
        "resource.k8s.io" => crate::resource::rules(kind),
        "scheduling.k8s.io" => crate::scheduling::rules(kind),
        "storage.k8s.io" => crate::storage::rules(kind),
        _ => Rules::NONE,
    }
}
