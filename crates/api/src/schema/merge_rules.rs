//! How lists, maps and structs of the built-in types merge: the content of the
//! `x-kubernetes-…` extensions of the published schema, as tables.
//!
//! A list that is not named here is atomic: patches replace it and server-side apply owns it as
//! one leaf. A map or struct that is not named is granular.

use super::{ListMerge, MapKey, PatchRule, Schema, Shape, TypeId};

/// How strategic merge patches treat a field.
enum Patch {
    Replace,
    /// A list of scalars, merged as a set.
    Merge,
    /// A list of objects, merged by this key.
    By(&'static str),
    /// The same, and `$retainKeys` in an element says which of its keys stay.
    ByRetain(&'static str),
    /// A struct in which `$retainKeys` says which keys stay.
    Retain,
    /// A struct that is replaced as a whole.
    ReplaceStruct,
}

/// How server-side apply treats a field.
enum Apply {
    /// As its type says; for lists, atomic.
    Plain,
    Set,
    Keys(&'static [&'static str]),
    AtomicMap,
    /// A reference whose type is atomic everywhere else.
    GranularStruct,
}

use Apply::{AtomicMap, GranularStruct, Keys, Plain, Set};
use Patch::{By, ByRetain, Merge, Replace, ReplaceStruct, Retain};

/// Type names lack the common prefix; see [`full_name`].
#[rustfmt::skip]
const FIELDS: &[(&str, &str, Patch, Apply)] = &[
    ("meta.v1.ObjectMeta", "ownerReferences", By("uid"), Keys(&["uid"])),
    ("meta.v1.ObjectMeta", "finalizers", Merge, Set),

    ("core.v1.PodSpec", "containers", By("name"), Keys(&["name"])),
    ("core.v1.PodSpec", "initContainers", By("name"), Keys(&["name"])),
    ("core.v1.PodSpec", "ephemeralContainers", By("name"), Keys(&["name"])),
    ("core.v1.PodSpec", "volumes", ByRetain("name"), Keys(&["name"])),
    ("core.v1.PodSpec", "imagePullSecrets", By("name"), Keys(&["name"])),
    ("core.v1.PodSpec", "hostAliases", By("ip"), Keys(&["ip"])),
    ("core.v1.PodSpec", "topologySpreadConstraints", By("topologyKey"), Keys(&["topologyKey", "whenUnsatisfiable"])),
    ("core.v1.PodSpec", "resourceClaims", ByRetain("name"), Keys(&["name"])),
    ("core.v1.PodSpec", "schedulingGates", By("name"), Keys(&["name"])),
    ("core.v1.PodSpec", "nodeSelector", Replace, AtomicMap),
    ("core.v1.Container", "ports", By("containerPort"), Keys(&["containerPort", "protocol"])),
    ("core.v1.Container", "env", By("name"), Keys(&["name"])),
    ("core.v1.Container", "volumeMounts", By("mountPath"), Keys(&["mountPath"])),
    ("core.v1.Container", "volumeDevices", By("devicePath"), Keys(&["devicePath"])),
    ("core.v1.EphemeralContainer", "ports", By("containerPort"), Keys(&["containerPort", "protocol"])),
    ("core.v1.EphemeralContainer", "env", By("name"), Keys(&["name"])),
    ("core.v1.EphemeralContainer", "volumeMounts", By("mountPath"), Keys(&["mountPath"])),
    ("core.v1.EphemeralContainer", "volumeDevices", By("devicePath"), Keys(&["devicePath"])),
    ("core.v1.ResourceRequirements", "claims", Replace, Keys(&["name"])),
    ("core.v1.ContainerRestartRuleOnExitCodes", "values", Replace, Set),
    ("core.v1.PodStatus", "conditions", By("type"), Keys(&["type"])),
    ("core.v1.PodStatus", "podIPs", By("ip"), Keys(&["ip"])),
    ("core.v1.PodStatus", "hostIPs", By("ip"), Plain),
    ("core.v1.PodStatus", "resourceClaimStatuses", ByRetain("name"), Keys(&["name"])),
    ("core.v1.ContainerStatus", "allocatedResourcesStatus", By("name"), Keys(&["name"])),
    ("core.v1.ContainerStatus", "volumeMounts", By("mountPath"), Keys(&["mountPath"])),
    ("core.v1.ResourceStatus", "resources", Replace, Keys(&["resourceID"])),
    ("core.v1.NodeAllocatableResourceClaimStatus", "containers", Replace, Set),

    ("core.v1.ServiceSpec", "ports", By("port"), Keys(&["port", "protocol"])),
    ("core.v1.ServiceSpec", "selector", Replace, AtomicMap),
    ("core.v1.ServiceStatus", "conditions", By("type"), Keys(&["type"])),
    ("core.v1.ServiceAccount", "secrets", By("name"), Keys(&["name"])),
    ("core.v1.NodeSpec", "podCIDRs", Merge, Set),
    ("core.v1.NodeStatus", "addresses", By("type"), Keys(&["type"])),
    ("core.v1.NodeStatus", "conditions", By("type"), Keys(&["type"])),
    ("core.v1.NamespaceStatus", "conditions", By("type"), Keys(&["type"])),
    ("core.v1.ComponentStatus", "conditions", By("type"), Keys(&["type"])),
    ("core.v1.PersistentVolumeSpec", "claimRef", Replace, GranularStruct),
    ("core.v1.PersistentVolumeClaimStatus", "conditions", By("type"), Keys(&["type"])),
    ("core.v1.ReplicationControllerSpec", "selector", Replace, AtomicMap),
    ("core.v1.ReplicationControllerStatus", "conditions", By("type"), Keys(&["type"])),

    ("apps.v1.DeploymentSpec", "strategy", Retain, Plain),
    ("apps.v1.DeploymentStatus", "conditions", By("type"), Keys(&["type"])),
    ("apps.v1.ReplicaSetStatus", "conditions", By("type"), Keys(&["type"])),
    ("apps.v1.StatefulSetStatus", "conditions", By("type"), Keys(&["type"])),
    ("apps.v1.DaemonSetStatus", "conditions", By("type"), Keys(&["type"])),
    ("batch.v1.JobStatus", "conditions", By("type"), Plain),
    ("batch.v1.PodFailurePolicyOnExitCodesRequirement", "values", Replace, Set),
    ("batch.v1.UncountedTerminatedPods", "failed", Replace, Set),
    ("batch.v1.UncountedTerminatedPods", "succeeded", Replace, Set),
    ("autoscaling.v2.HorizontalPodAutoscalerStatus", "conditions", By("type"), Keys(&["type"])),
    ("policy.v1.PodDisruptionBudgetSpec", "selector", ReplaceStruct, Plain),
    ("policy.v1.PodDisruptionBudgetStatus", "conditions", By("type"), Keys(&["type"])),

    ("admissionregistration.v1.MutatingWebhookConfiguration", "webhooks", By("name"), Keys(&["name"])),
    ("admissionregistration.v1.MutatingWebhook", "matchConditions", By("name"), Keys(&["name"])),
    ("admissionregistration.v1.ValidatingWebhookConfiguration", "webhooks", By("name"), Keys(&["name"])),
    ("admissionregistration.v1.ValidatingWebhook", "matchConditions", By("name"), Keys(&["name"])),
    ("admissionregistration.v1.MutatingAdmissionPolicySpec", "matchConditions", By("name"), Keys(&["name"])),
    ("admissionregistration.v1.ValidatingAdmissionPolicySpec", "matchConditions", By("name"), Keys(&["name"])),
    ("admissionregistration.v1.ValidatingAdmissionPolicySpec", "variables", By("name"), Keys(&["name"])),
    ("admissionregistration.v1.ValidatingAdmissionPolicyStatus", "conditions", Replace, Keys(&["type"])),
    ("admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec", "validationActions", Replace, Set),
    ("apiextensions.v1.CustomResourceDefinitionStatus", "conditions", Replace, Keys(&["type"])),
    ("apiextensions.v1.JSONSchemaProps", "x-kubernetes-validations", By("rule"), Keys(&["rule"])),
    ("apiregistration.v1.APIServiceStatus", "conditions", By("type"), Keys(&["type"])),
    ("certificates.v1.CertificateSigningRequestStatus", "conditions", Replace, Keys(&["type"])),

    ("discovery.v1.Endpoint", "addresses", Replace, Set),
    ("networking.v1.ServiceCIDRStatus", "conditions", By("type"), Keys(&["type"])),
    ("node.v1.Scheduling", "nodeSelector", Replace, AtomicMap),
    ("storage.v1.CSINodeSpec", "drivers", By("name"), Keys(&["name"])),
    ("storage.v1.CSIDriverSpec", "volumeLifecycleModes", Replace, Set),
    ("resource.v1.ResourceClaimStatus", "reservedFor", By("uid"), Keys(&["uid"])),
    ("resource.v1.ResourceClaimStatus", "devices", Replace, Keys(&["driver", "device", "pool", "shareID"])),
    ("resource.v1.AllocatedDeviceStatus", "conditions", Replace, Keys(&["type"])),
    ("flowcontrol.v1.FlowSchemaStatus", "conditions", By("type"), Keys(&["type"])),
    ("flowcontrol.v1.PriorityLevelConfigurationStatus", "conditions", By("type"), Keys(&["type"])),
    ("flowcontrol.v1.NonResourcePolicyRule", "nonResourceURLs", Replace, Set),
    ("flowcontrol.v1.NonResourcePolicyRule", "verbs", Replace, Set),
    ("flowcontrol.v1.ResourcePolicyRule", "apiGroups", Replace, Set),
    ("flowcontrol.v1.ResourcePolicyRule", "namespaces", Replace, Set),
    ("flowcontrol.v1.ResourcePolicyRule", "resources", Replace, Set),
    ("flowcontrol.v1.ResourcePolicyRule", "verbs", Replace, Set),
];

/// Structs that server-side apply owns as one leaf wherever they are used.
const ATOMIC: &[&str] = &[
    "meta.v1.LabelSelector",
    "meta.v1.OwnerReference",
    "core.v1.ConfigMapKeySelector",
    "core.v1.EndpointAddress",
    "core.v1.EndpointPort",
    "core.v1.FileKeySelector",
    "core.v1.LocalObjectReference",
    "core.v1.NodeSelector",
    "core.v1.NodeSelectorTerm",
    "core.v1.ObjectFieldSelector",
    "core.v1.ObjectReference",
    "core.v1.ResourceFieldSelector",
    "core.v1.ScopeSelector",
    "core.v1.ScopedResourceSelectorRequirement",
    "core.v1.SecretKeySelector",
    "core.v1.SecretReference",
    "core.v1.TopologySelectorTerm",
    "core.v1.TypedLocalObjectReference",
    "admissionregistration.v1.MatchResources",
    "admissionregistration.v1.NamedRuleWithOperations",
    "admissionregistration.v1.ParamKind",
    "admissionregistration.v1.ParamRef",
    "admissionregistration.v1.Variable",
    "autoscaling.v1.CrossVersionObjectReference",
    "discovery.v1.EndpointPort",
    "networking.v1.ServiceBackendPort",
    "rbac.v1.RoleRef",
    "rbac.v1.Subject",
];

/// The value of an absent key in list elements.
const KEY_DEFAULTS: &[(&str, &str, &str)] =
    &[("core.v1.ContainerPort", "protocol", "TCP"), ("core.v1.ServicePort", "protocol", "TCP")];

pub(super) fn add(schema: &mut Schema) {
    for name in ATOMIC {
        let id = named(schema, name);
        if let Shape::Object(object) = &mut schema.types[id.0 as usize].shape {
            object.atomic = true;
        }
    }
    for (name, field, patch, apply) in FIELDS {
        let owner = named(schema, name);
        let ty = schema.field(owner, field).unwrap_or_else(|| panic!("no {name}.{field}")).ty;
        let ty = set_apply(schema, ty, apply);
        if let Shape::Object(object) = &mut schema.types[owner.0 as usize].shape
            && let Some(field) = object.fields.get_mut(*field)
        {
            field.ty = ty;
            field.patch = patch_rule(patch);
        }
    }
}

fn patch_rule(patch: &Patch) -> PatchRule {
    let by = |key: &str, retain_keys| PatchRule {
        merge: true,
        merge_key: Some(key.into()),
        retain_keys,
        replace: false,
    };
    match patch {
        Replace => PatchRule::default(),
        Merge => PatchRule { merge: true, ..PatchRule::default() },
        By(key) => by(key, false),
        ByRetain(key) => by(key, true),
        Retain => PatchRule { retain_keys: true, ..PatchRule::default() },
        ReplaceStruct => PatchRule { replace: true, ..PatchRule::default() },
    }
}

/// Changes the type of a field according to `apply`; returns a new type if the old one is shared.
fn set_apply(schema: &mut Schema, ty: TypeId, apply: &Apply) -> TypeId {
    let list = match apply {
        Plain => return ty,
        GranularStruct => {
            let mut copy = schema.get(ty).clone();
            if let Shape::Object(object) = &mut copy.shape {
                object.atomic = false;
            }
            // Not `add`: the name still refers to the atomic type.
            let id = TypeId(schema.types.len() as u32);
            schema.types.push(copy);
            return id;
        }
        AtomicMap => ListMerge::Atomic,
        Set => ListMerge::Set,
        Keys(keys) => ListMerge::Map(keys.iter().map(|key| map_key(schema, ty, key)).collect()),
    };
    match &mut schema.types[ty.0 as usize].shape {
        Shape::List { merge, .. } => *merge = list,
        Shape::Map { atomic, .. } => *atomic = true,
        other => panic!("{other:?} cannot merge as a list"),
    }
    ty
}

fn map_key(schema: &Schema, list: TypeId, key: &str) -> MapKey {
    let item = match schema.shape(list) {
        Shape::List { items, .. } => schema.get(*items).name.as_deref(),
        _ => None,
    };
    let default = KEY_DEFAULTS
        .iter()
        .find(|(ty, field, _)| item == Some(full_name(ty).as_str()) && *field == key)
        .map(|(_, _, value)| (*value).into());
    MapKey { field: key.into(), default }
}

pub(super) fn named(schema: &Schema, short: &str) -> TypeId {
    schema.named(&full_name(short)).unwrap_or_else(|| panic!("no type {short}"))
}

fn full_name(short: &str) -> String {
    match short.split_once('.') {
        Some(("meta", rest)) => format!("io.k8s.apimachinery.pkg.apis.meta.{rest}"),
        Some(("apiextensions", rest)) => {
            format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{rest}")
        }
        Some(("apiregistration", rest)) => {
            format!("io.k8s.kube-aggregator.pkg.apis.apiregistration.{rest}")
        }
        _ => format!("io.k8s.api.{short}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field<'s>(schema: &'s Schema, owner: &str, field: &str) -> &'s super::super::Field {
        schema.field(named(schema, owner), field).unwrap()
    }

    #[test]
    fn a_126_lists_merge_as_the_table_says() {
        let schema = Schema::built_in();
        let ports = field(&schema, "core.v1.Container", "ports");
        assert_eq!(ports.patch.merge_key.as_deref(), Some("containerPort"));
        let key = |field: &str, default: Option<&str>| MapKey {
            field: field.into(),
            default: default.map(Into::into),
        };
        let Shape::List { merge, .. } = schema.shape(ports.ty) else { panic!("not a list") };
        let keys = vec![key("containerPort", None), key("protocol", Some("TCP"))];
        assert_eq!(*merge, ListMerge::Map(keys));

        let volumes = field(&schema, "core.v1.PodSpec", "volumes");
        assert!(volumes.patch.merge && volumes.patch.retain_keys);
        let tolerations = field(&schema, "core.v1.PodSpec", "tolerations");
        assert_eq!(tolerations.patch, PatchRule::default());
        let Shape::List { merge, .. } = schema.shape(tolerations.ty) else { panic!("not a list") };
        assert_eq!(*merge, ListMerge::Atomic);
        let finalizers = field(&schema, "meta.v1.ObjectMeta", "finalizers");
        assert!(finalizers.patch.merge && finalizers.patch.merge_key.is_none());
        let Shape::List { merge, .. } = schema.shape(finalizers.ty) else { panic!("not a list") };
        assert_eq!(*merge, ListMerge::Set);
        assert!(field(&schema, "apps.v1.DeploymentSpec", "strategy").patch.retain_keys);
        assert!(field(&schema, "policy.v1.PodDisruptionBudgetSpec", "selector").patch.replace);
    }

    #[test]
    fn a_127_references_and_selectors_are_atomic_and_labels_are_not() {
        let schema = Schema::built_in();
        let atomic = |id| match schema.shape(id) {
            Shape::Object(object) => object.atomic,
            Shape::Map { atomic, .. } => *atomic,
            _ => false,
        };
        assert!(atomic(named(&schema, "meta.v1.LabelSelector")));
        assert!(atomic(field(&schema, "core.v1.ServiceSpec", "selector").ty));
        assert!(atomic(field(&schema, "core.v1.Event", "involvedObject").ty));
        assert!(!atomic(field(&schema, "core.v1.PersistentVolumeSpec", "claimRef").ty));
        assert!(!atomic(field(&schema, "meta.v1.ObjectMeta", "labels").ty));
        assert!(!atomic(field(&schema, "core.v1.ConfigMap", "data").ty));
    }
}
