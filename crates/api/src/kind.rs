//! The kinds that the API serves, as data. Everything that depends on the list of kinds
//! (routes, discovery, OpenAPI, tables, garbage collection) reads the [`Registry`].
//!
//! Built-in kinds are the rows of [`BUILT_IN`]; custom resource definitions add rows at run time.
//! A row has a kind's names and verbs. Its fields are in `schema`, its printed columns in `table`, its
//! defaults and validation in the crate `rules`.

use crate::crd::Custom;
use crate::schema::{Schema, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

/// One served kind: a resource in one version of one group.
#[derive(Debug, Clone)]
pub struct Kind {
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub singular: String,
    pub short: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub verbs: Verbs,
    pub subresources: Vec<String>,
    /// Where its objects are kept; two versions of one resource share it.
    pub storage: Storage,
    pub schema: Arc<Schema>,
    pub ty: TypeId,
    /// Set for custom resources.
    pub custom: Option<Arc<Custom>>,
}

/// The version and resource that objects of a kind are stored as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    pub group: String,
    pub version: String,
    pub plural: String,
    /// `pods` or `apps/deployments`: the name of the collection in the store.
    pub collection: Arc<str>,
}

impl Storage {
    pub fn new(group: &str, version: &str, plural: &str) -> Self {
        let collection =
            if group.is_empty() { plural.into() } else { format!("{group}/{plural}").into() };
        Storage { group: group.into(), version: version.into(), plural: plural.into(), collection }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verbs {
    All,
    AllButDeleteCollection,
    /// Reviews and bindings: answered, never stored.
    Create,
    /// Computed on request, never stored.
    GetAndList,
    /// Stored, but clients cannot write it through the resource itself.
    ReadOnly,
}

impl Verbs {
    /// In alphabetical order, as discovery lists them.
    pub fn list(self) -> &'static [&'static str] {
        match self {
            Verbs::All => {
                &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
            }
            Verbs::AllButDeleteCollection => {
                &["create", "delete", "get", "list", "patch", "update", "watch"]
            }
            Verbs::Create => &["create"],
            Verbs::GetAndList => &["get", "list"],
            Verbs::ReadOnly => &["get", "list", "watch"],
        }
    }
}

impl Kind {
    fn resource_key(&self) -> (&str, &str, &str) {
        (&self.group, &self.version, &self.plural)
    }

    /// `v1` or `apps/v1`
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `pods` or `deployments.apps`, as messages name a resource.
    pub fn resource_group(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// Objects of this kind are kept in the store (reviews and bindings are not).
    pub fn is_stored(&self) -> bool {
        !matches!(self.verbs, Verbs::Create | Verbs::GetAndList)
    }

    pub fn has_subresource(&self, name: &str) -> bool {
        self.subresources.iter().any(|sub| sub == name)
    }

    /// The verbs as discovery lists them. Custom kinds have another order, and while their definition is
    /// being deleted they can only be read and deleted.
    pub fn discovery_verbs(&self) -> &'static [&'static str] {
        match &self.custom {
            None => self.verbs.list(),
            Some(custom) if custom.terminating => {
                &["delete", "deletecollection", "get", "list", "watch"]
            }
            Some(_) => {
                &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]
            }
        }
    }

    pub fn list_kind(&self) -> String {
        match &self.custom {
            Some(custom) => custom.list_kind.clone(),
            None => format!("{}List", self.kind),
        }
    }
}

/// A subresource as discovery describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subresource {
    pub verbs: &'static [&'static str],
    /// The kind, and its group and version if they differ from the parent's.
    pub kind: Option<&'static str>,
    pub group_version: Option<(&'static str, &'static str)>,
}

/// The subresource of this name, or `None` if the resource has no such subresource.
pub fn subresource(resource: &str, name: &str) -> Option<Subresource> {
    const RW: &[&str] = &["get", "patch", "update"];
    const CONNECT: &[&str] = &["create", "get"];
    const PROXY: &[&str] = &["create", "delete", "get", "patch", "update"];
    let own = |verbs| Some(Subresource { verbs, kind: None, group_version: None });
    let other = |verbs, kind| Some(Subresource { verbs, kind: Some(kind), group_version: None });
    let foreign =
        |verbs, kind, gv| Some(Subresource { verbs, kind: Some(kind), group_version: Some(gv) });
    match name {
        "status" | "ephemeralcontainers" | "resize" | "approval" => own(RW),
        "scale" => foreign(RW, "Scale", ("autoscaling", "v1")),
        "eviction" => foreign(&["create"], "Eviction", ("policy", "v1")),
        "token" => foreign(&["create"], "TokenRequest", ("authentication.k8s.io", "v1")),
        "binding" => other(&["create"], "Binding"),
        "attach" => other(CONNECT, "PodAttachOptions"),
        "exec" => other(CONNECT, "PodExecOptions"),
        "portforward" => other(CONNECT, "PodPortForwardOptions"),
        "proxy" => match resource {
            "pods" => other(PROXY, "PodProxyOptions"),
            "services" => other(PROXY, "ServiceProxyOptions"),
            _ => other(PROXY, "NodeProxyOptions"),
        },
        "log" => own(&["get"]),
        "finalize" => own(&["update"]),
        "steps" => other(&["create"], "TerminationSteps"),
        _ => None,
    }
}

/// A built-in kind. `short`, `category` and `subresources` are separated by spaces.
struct Row {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static str,
    category: &'static str,
    scope: Scope,
    subresources: &'static str,
    verbs: Verbs,
}

#[derive(Clone, Copy, PartialEq)]
enum Scope {
    Namespaced,
    Cluster,
}

use Scope::{Cluster, Namespaced};
use Verbs::{All, AllButDeleteCollection, Create, GetAndList, ReadOnly};

/// In the order of discovery: groups as in A-44, resources by name.
#[rustfmt::skip]
const BUILT_IN: &[Row] = &[
    row("", "v1", "Binding", "bindings", "", "", Namespaced, "", Create),
    row("", "v1", "ComponentStatus", "componentstatuses", "cs", "", Cluster, "", GetAndList),
    row("", "v1", "ConfigMap", "configmaps", "cm", "", Namespaced, "", All),
    row("", "v1", "Endpoints", "endpoints", "ep", "", Namespaced, "", All),
    row("", "v1", "Event", "events", "ev", "", Namespaced, "", All),
    row("", "v1", "LimitRange", "limitranges", "limits", "", Namespaced, "", All),
    row("", "v1", "Namespace", "namespaces", "ns", "", Cluster, "finalize status", AllButDeleteCollection),
    row("", "v1", "Node", "nodes", "no", "", Cluster, "proxy status", All),
    row("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", "", Namespaced, "status", All),
    row("", "v1", "PersistentVolume", "persistentvolumes", "pv", "", Cluster, "status", All),
    row("", "v1", "Pod", "pods", "po", "all", Namespaced, "attach binding ephemeralcontainers eviction exec log portforward proxy resize status", All),
    row("", "v1", "PodTemplate", "podtemplates", "", "", Namespaced, "", All),
    row("", "v1", "ReplicationController", "replicationcontrollers", "rc", "all", Namespaced, "scale status", All),
    row("", "v1", "ResourceQuota", "resourcequotas", "quota", "", Namespaced, "status", All),
    row("", "v1", "Secret", "secrets", "", "", Namespaced, "", All),
    row("", "v1", "ServiceAccount", "serviceaccounts", "sa", "", Namespaced, "token", All),
    row("", "v1", "Service", "services", "svc", "all", Namespaced, "proxy status", All),
    row("apiregistration.k8s.io", "v1", "APIService", "apiservices", "", "api-extensions", Cluster, "status", All),
    row("apps", "v1", "ControllerRevision", "controllerrevisions", "", "", Namespaced, "", All),
    row("apps", "v1", "DaemonSet", "daemonsets", "ds", "all", Namespaced, "status", All),
    row("apps", "v1", "Deployment", "deployments", "deploy", "all", Namespaced, "scale status", All),
    row("apps", "v1", "ReplicaSet", "replicasets", "rs", "all", Namespaced, "scale status", All),
    row("apps", "v1", "StatefulSet", "statefulsets", "sts", "all", Namespaced, "scale status", All),
    row("events.k8s.io", "v1", "Event", "events", "ev", "", Namespaced, "", All),
    row("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", "", "", Cluster, "", Create),
    row("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", "", "", Cluster, "", Create),
    row("authorization.k8s.io", "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews", "", "", Namespaced, "", Create),
    row("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", "", "", Cluster, "", Create),
    row("authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", "", "", Cluster, "", Create),
    row("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", "", "", Cluster, "", Create),
    row("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "hpa", "all", Namespaced, "status", All),
    row("autoscaling", "v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "hpa", "all", Namespaced, "status", All),
    row("batch", "v1", "CronJob", "cronjobs", "cj", "all", Namespaced, "status", All),
    row("batch", "v1", "Job", "jobs", "", "all", Namespaced, "status", All),
    row("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests", "csr", "", Cluster, "approval status", All),
    row("networking.k8s.io", "v1", "IngressClass", "ingressclasses", "", "", Cluster, "", All),
    row("networking.k8s.io", "v1", "Ingress", "ingresses", "ing", "", Namespaced, "status", All),
    row("networking.k8s.io", "v1", "IPAddress", "ipaddresses", "ip", "", Cluster, "", All),
    row("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", "netpol", "", Namespaced, "", All),
    row("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs", "", "", Cluster, "status", All),
    row("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", "", Namespaced, "status", All),
    row("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", "", "", Cluster, "", All),
    row("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", "", "", Cluster, "", All),
    row("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", "", "", Namespaced, "", All),
    row("rbac.authorization.k8s.io", "v1", "Role", "roles", "", "", Namespaced, "", All),
    row("storage.k8s.io", "v1", "CSIDriver", "csidrivers", "", "", Cluster, "", All),
    row("storage.k8s.io", "v1", "CSINode", "csinodes", "", "", Cluster, "", All),
    row("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", "", "", Namespaced, "", All),
    row("storage.k8s.io", "v1", "StorageClass", "storageclasses", "sc", "", Cluster, "", All),
    row("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", "", "", Cluster, "status", All),
    row("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses", "vac", "", Cluster, "", All),
    row("admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicy", "mutatingadmissionpolicies", "", "api-extensions", Cluster, "", All),
    row("admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", "", "api-extensions", Cluster, "", All),
    row("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", "", "api-extensions", Cluster, "", All),
    row("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", "", "api-extensions", Cluster, "status", All),
    row("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", "", "api-extensions", Cluster, "", All),
    row("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", "", "api-extensions", Cluster, "", All),
    row("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", "crd crds", "api-extensions", Cluster, "status", All),
    row("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", "pc", "", Cluster, "", All),
    row("coordination.k8s.io", "v1", "Lease", "leases", "", "", Namespaced, "", All),
    row("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", "", "", Cluster, "", All),
    row("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", "", "", Namespaced, "", All),
    row("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", "", "", Cluster, "", All),
    row("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", "", "", Namespaced, "status", All),
    row("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates", "", "", Namespaced, "", All),
    row("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", "", "", Cluster, "", All),
    row("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas", "", "", Cluster, "status", All),
    row("flowcontrol.apiserver.k8s.io", "v1", "PriorityLevelConfiguration", "prioritylevelconfigurations", "", "", Cluster, "status", All),
    // Upstream serves these from an aggregated API server, after all other groups (C-138).
    row("metrics.k8s.io", "v1beta1", "NodeMetrics", "nodes", "", "", Cluster, "", GetAndList),
    row("metrics.k8s.io", "v1beta1", "PodMetrics", "pods", "", "", Namespaced, "", GetAndList),
    // landfall's own kinds, which are not part of Kubernetes, come last.
    row("landfall.dev", "v1", "DrainParticipant", "drainparticipants", "", "", Cluster, "", All),
    row("landfall.dev", "v1", "Termination", "terminations", "term", "", Namespaced, "steps", ReadOnly),
];

#[allow(clippy::too_many_arguments)] // It is a table row.
const fn row(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static str,
    category: &'static str,
    scope: Scope,
    subresources: &'static str,
    verbs: Verbs,
) -> Row {
    Row { group, version, kind, plural, short, category, scope, subresources, verbs }
}

impl Row {
    fn kind(&self, schema: &Arc<Schema>) -> Kind {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let storage = match (self.group, self.version) {
            ("events.k8s.io", _) => ("", "v1"),
            ("autoscaling", _) => ("autoscaling", "v2"),
            other => other,
        };
        let name = type_name(self.group, self.version, self.kind);
        let ty = schema.named(&name).unwrap_or_else(|| panic!("no schema for {name}"));
        Kind {
            group: self.group.into(),
            version: self.version.into(),
            kind: self.kind.into(),
            plural: self.plural.into(),
            singular: self.kind.to_lowercase(),
            short: words(self.short),
            categories: words(self.category),
            namespaced: self.scope == Namespaced,
            verbs: self.verbs,
            subresources: words(self.subresources),
            storage: Storage::new(storage.0, storage.1, self.plural),
            schema: schema.clone(),
            ty,
            custom: None,
        }
    }
}

/// The name of a built-in type in OpenAPI: `io.k8s.api.core.v1.Pod`.
pub fn type_name(group: &str, version: &str, kind: &str) -> String {
    match group {
        "" => format!("io.k8s.api.core.{version}.{kind}"),
        "apiextensions.k8s.io" => {
            format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{version}.{kind}")
        }
        "apiregistration.k8s.io" => {
            format!("io.k8s.kube-aggregator.pkg.apis.apiregistration.{version}.{kind}")
        }
        "landfall.dev" => format!("dev.landfall.{version}.{kind}"),
        "metrics.k8s.io" => format!("io.k8s.metrics.pkg.apis.metrics.{version}.{kind}"),
        // The part before the first dot: `rbac` of `rbac.authorization.k8s.io`.
        group => {
            let short = group.split('.').next().unwrap_or(group);
            format!("io.k8s.api.{short}.{version}.{kind}")
        }
    }
}

/// All kinds that are served right now. Cheap to clone; replaced as a whole when a CRD changes.
#[derive(Debug, Clone)]
pub struct Registry {
    kinds: Vec<Arc<Kind>>,
    /// Indexes into `kinds`, sorted by group, version and plural.
    by_resource: Vec<usize>,
}

impl Registry {
    pub fn built_in() -> Self {
        let schema = Schema::built_in();
        Self::of(BUILT_IN.iter().map(|row| Arc::new(row.kind(&schema))).collect())
    }

    fn of(kinds: Vec<Arc<Kind>>) -> Self {
        let mut by_resource: Vec<usize> = (0..kinds.len()).collect();
        by_resource.sort_by(|a, b| kinds[*a].resource_key().cmp(&kinds[*b].resource_key()));
        Registry { kinds, by_resource }
    }

    /// The built-in kinds followed by these custom ones.
    pub fn with_custom(&self, custom: impl IntoIterator<Item = Arc<Kind>>) -> Self {
        let built_in = self.kinds.iter().filter(|kind| kind.custom.is_none()).cloned();
        Self::of(built_in.chain(custom).collect())
    }

    pub fn kinds(&self) -> &[Arc<Kind>] {
        &self.kinds
    }

    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        let key = (group, version, plural);
        let at = |place: &usize| self.kinds[*place].resource_key();
        // The end of the entries with this key: if two definitions have it, the later one is served.
        let end = self.by_resource.partition_point(|place| at(place) <= key);
        let found = self.by_resource[..end].last().filter(|place| at(place) == key)?;
        Some(&self.kinds[*found])
    }

    /// The kinds of one group and version, in the registry's order. Does not scan the other kinds.
    pub fn of_version(&self, group: &str, version: &str) -> Vec<&Arc<Kind>> {
        let at = |place: &usize| {
            let (group, version, _) = self.kinds[*place].resource_key();
            (group, version)
        };
        let key = (group, version);
        let start = self.by_resource.partition_point(|place| at(place) < key);
        let end = self.by_resource.partition_point(|place| at(place) <= key);
        let mut places = self.by_resource[start..end].to_vec();
        places.sort_unstable();
        places.into_iter().map(|place| &self.kinds[place]).collect()
    }

    pub fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Kind>> {
        self.kinds.iter().find(|k| k.group == group && k.version == version && k.kind == kind)
    }

    /// Groups in order of discovery, each with its versions in order of preference.
    pub fn groups(&self) -> Vec<(&str, Vec<&str>)> {
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for kind in &self.kinds {
            let place = *places.entry(&kind.group).or_insert(groups.len());
            if place == groups.len() {
                groups.push((&kind.group, Vec::new()));
            }
            let versions = &mut groups[place].1;
            if !versions.contains(&kind.version.as_str()) {
                versions.push(&kind.version);
            }
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_203_all_built_in_kinds_are_served() {
        let beside = |row: &&Row| matches!(row.group, "landfall.dev" | "metrics.k8s.io");
        let beside = BUILT_IN.iter().filter(beside).count();
        assert_eq!(BUILT_IN.len() - beside, 68);
    }

    #[test]
    fn every_kind_is_found_by_its_resource_and_among_those_of_its_version() {
        let registry = Registry::built_in();
        for kind in registry.kinds() {
            let found = registry.resource(&kind.group, &kind.version, &kind.plural).unwrap();
            assert!(Arc::ptr_eq(found, kind), "{}", kind.plural);
            let listed: Vec<&str> = registry
                .of_version(&kind.group, &kind.version)
                .iter()
                .map(|kind| kind.plural.as_str())
                .collect();
            let all = registry
                .kinds()
                .iter()
                .filter(|other| (&other.group, &other.version) == (&kind.group, &kind.version));
            assert_eq!(listed, all.map(|kind| kind.plural.as_str()).collect::<Vec<_>>());
        }
        for (group, version, plural) in
            [("", "v1", "pod"), ("", "v2", "pods"), ("app", "v1", "deployments"), ("z", "v1", "z")]
        {
            assert!(registry.resource(group, version, plural).is_none());
        }
        assert!(registry.of_version("apps", "v2").is_empty());
    }

    #[test]
    fn no_two_kinds_share_a_name() {
        for (i, a) in BUILT_IN.iter().enumerate() {
            for b in &BUILT_IN[i + 1..] {
                let same = |x: &str, y: &str| (a.group, a.version, x) == (b.group, b.version, y);
                assert!(!same(a.kind, b.kind), "{} twice", a.kind);
                assert!(!same(a.plural, b.plural), "{} twice", a.plural);
            }
        }
    }

    #[test]
    fn a_200_every_subresource_of_the_table_is_described() {
        for row in BUILT_IN {
            for sub in row.subresources.split_whitespace() {
                assert!(subresource(row.plural, sub).is_some(), "{}/{sub}", row.plural);
            }
        }
    }
}
