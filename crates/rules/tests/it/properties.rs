//! Properties that hold for the rules of every kind.
//!
//! Messages and defaults of single kinds are tested beside their rules.

use api::{At, Errors, Registry};
use proptest::prelude::*;
use rules::{Rules, convert};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

static KINDS: LazyLock<Registry> = LazyLock::new(Registry::built_in);

/// Names of fields that rules read, so that random objects reach deep into the rules.
const FIELDS: &[&str] = &[
    "spec",
    "status",
    "metadata",
    "name",
    "labels",
    "annotations",
    "template",
    "selector",
    "matchLabels",
    "matchExpressions",
    "key",
    "operator",
    "values",
    "rules",
    "ports",
    "port",
    "replicas",
    "strategy",
    "type",
    "rollingUpdate",
    "maxSurge",
    "maxUnavailable",
    "versions",
    "schema",
    "openAPIV3Schema",
    "properties",
    "items",
    "anyOf",
    "names",
    "webhooks",
    "clientConfig",
    "url",
    "service",
    "path",
    "schedule",
    "jobTemplate",
    "metrics",
    "resource",
    "target",
    "behavior",
    "endpoints",
    "addresses",
    "addressType",
    "ingress",
    "from",
    "ipBlock",
    "cidr",
    "except",
    "containers",
    "volumes",
    "request",
    "signerName",
    "devices",
    "requests",
];

const TEXTS: &[&str] = &[
    "",
    "a",
    "é",
    "/",
    "//",
    "*",
    "10.0.0.0/8",
    "::1",
    "25%",
    "%",
    "a.b.c",
    "https://é@x/?#",
    "In",
    "RollingUpdate",
    "Indexed",
    "IPv4",
    "map",
    "* * * * *",
    "1/0 * * * *",
    "@every 1h",
];

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-2i64..3).prop_map(Value::from),
        prop::sample::select(TEXTS).prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 4, |inner| {
        let field = prop::sample::select(FIELDS).prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
            prop::collection::btree_map(field, inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    (anything(), anything()).prop_map(|(spec, more)| {
        let mut object = json!({"metadata": {"name": "x", "uid": "u"}, "spec": spec});
        if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
            object.extend(more);
        }
        object
    })
}

proptest! {
    /// Decoding checks types first, but rules must not panic without that.
    #[test]
    fn no_rule_panics_on_random_objects(new in object(), old in object()) {
        for kind in KINDS.kinds() {
            let rules = rules::of(kind);
            let (mut new, mut old) = (new.clone(), old.clone());
            (rules.default)(&mut new);
            (rules.default)(&mut old);
            (rules.prepare_create)(&mut old);
            (rules.prepare_update)(&mut new, &old);
            let mut errors = Errors::default();
            let (new_at, old_at) = (At::root(&new), At::root(&old));
            (rules.validate)(&new_at, &mut errors);
            (rules.validate_update)(&new_at, &old_at, &mut errors);
            (rules.validate_status_update)(&new_at, &old_at, &mut errors);
            for (_, read) in rules.fields {
                read(&new);
            }
            convert::from_storage(kind, &convert::to_storage(kind, &new));
        }
    }

    /// Defaults are set on every decode, so they must not change a stored object.
    #[test]
    fn a_147_setting_defaults_twice_has_the_same_result(object in object()) {
        for kind in KINDS.kinds() {
            let mut once = object.clone();
            (rules::of(kind).default)(&mut once);
            let mut twice = once.clone();
            (rules::of(kind).default)(&mut twice);
            prop_assert_eq!(once, twice, "{}", kind.kind);
        }
    }
}

#[test]
fn a_148_a_201_only_two_kinds_are_stored_in_another_form() {
    let views: Vec<_> = KINDS
        .kinds()
        .iter()
        .filter(|kind| !convert::is_identity(kind))
        .map(|kind| format!("{}/{}", kind.api_version(), kind.kind))
        .collect();
    assert_eq!(views, ["events.k8s.io/v1/Event", "autoscaling/v1/HorizontalPodAutoscaler"]);
    for kind in KINDS.kinds() {
        let own = kind.storage.group == kind.group && kind.storage.version == kind.version;
        assert_eq!(convert::is_identity(kind), own, "{}", kind.kind);
    }
}

/// replacing a custom resource requires a resourceVersion.
#[test]
fn a_66_custom_resources_have_no_unconditional_update() {
    let definition = json!({"spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": {"plural": "crons", "kind": "Cron"},
        "versions": [{"name": "v1", "served": true, "storage": true}],
    }});
    let kinds = api::crd::kinds(&definition);
    assert_eq!(kinds.len(), 1);
    assert!(!rules::of(&kinds[0]).unconditional_update);
}

/// The kinds that list.
#[test]
fn a_66_a_67_a_79_a_82_flags_equal_the_lists_of_the_rules() {
    let mine = |group: &str| !group.is_empty();
    let of = |chosen: fn(&Rules) -> bool| {
        let mut names: Vec<_> = KINDS
            .kinds()
            .iter()
            .filter(|kind| kind.is_stored() && mine(&kind.group) && chosen(&rules::of(kind)))
            .map(|kind| kind.plural.as_str())
            .collect();
        names.sort_unstable();
        names
    };
    assert_eq!(
        of(|rules| !rules.unconditional_update),
        [
            "apiservices",
            "csidrivers",
            "csinodes",
            "csistoragecapacities",
            "customresourcedefinitions",
            "leases",
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
            "mutatingwebhookconfigurations",
            "poddisruptionbudgets",
            "runtimeclasses",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
            "validatingwebhookconfigurations",
            "volumeattachments",
        ]
    );
    assert_eq!(
        of(|rules| rules.create_on_update),
        [
            "clusterrolebindings",
            "clusterroles",
            "events",
            "leases",
            "rolebindings",
            "roles",
            "runtimeclasses",
        ]
    );
    assert_eq!(of(|rules| rules.orphans_by_default), ["jobs"]);
    assert_eq!(
        of(|rules| rules.returns_deleted),
        [
            "csidrivers",
            "csinodes",
            "deviceclasses",
            "resourceclaims",
            "resourceclaimtemplates",
            "resourceslices",
            "storageclasses",
            "volumeattachments",
            "volumeattributesclasses",
        ]
    );
}
