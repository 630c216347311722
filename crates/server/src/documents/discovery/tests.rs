//! Discovery documents, compared with excerpts of those of a v1.36 server.

use super::*;
use api::crd::Custom;
use std::sync::Arc;

fn registry() -> Registry {
    Registry::built_in()
}

/// A custom kind, made from a built-in one that is close enough.
fn custom(registry: &Registry, group: &str, version: &str, plural: &str) -> Arc<Kind> {
    let mut kind = Kind::clone(registry.resource("apps", "v1", "deployments").unwrap());
    kind.group = group.into();
    kind.version = version.into();
    kind.kind = "CronTab".into();
    kind.plural = plural.into();
    kind.singular = "crontab".into();
    kind.short = vec!["ct".into()];
    kind.categories = vec![];
    kind.storage.group = group.into();
    kind.storage.version = "v1".into();
    kind.storage.plural = plural.into();
    let mut custom = Custom::new(json!({}));
    custom.definition = format!("{plural}.{group}");
    custom.list_kind = "CronTabList".into();
    custom.has_status = true;
    kind.custom = Some(Arc::new(custom));
    Arc::new(kind)
}

fn entry(list: &Value, name: &str) -> Value {
    let all = list["resources"].as_array().unwrap();
    all.iter().find(|entry| entry["name"] == name).unwrap_or(&Value::Null).clone()
}

#[test]
fn a_35_the_version_is_that_of_the_api() {
    let version = version();
    assert_eq!(version["major"], "1");
    assert_eq!(version["minor"], "36");
    assert!(version.as_object().unwrap().values().all(Value::is_string));
    let git = git_version();
    let rest = git.strip_prefix("v1.36.").unwrap();
    assert!(!rest.is_empty());
    assert!(rest.chars().all(|c| c.is_ascii_alphanumeric() || "-.+_".contains(c)), "{git}");
}

#[test]
fn a_36_the_root_lists_the_paths() {
    let root = root(&registry(), ["/version", "/healthz"]);
    let paths = root["paths"].as_array().unwrap();
    assert_eq!(paths.len(), 3 + 22 + 23 + 2);
    for path in ["/api/v1", "/apis/apps", "/apis/autoscaling/v2", "/healthz"] {
        assert!(paths.contains(&json!(path)), "{path}");
    }
}

#[test]
fn a_37_the_legacy_root_documents_are_those_of_upstream() {
    assert_eq!(api_versions("10.0.0.1:6443")["versions"], json!(["v1"]));
    assert_eq!(
        group(&registry(), "apps").unwrap(),
        json!({
            "kind": "APIGroup", "apiVersion": "v1", "name": "apps",
            "versions": [{"groupVersion": "apps/v1", "version": "v1"}],
            "preferredVersion": {"groupVersion": "apps/v1", "version": "v1"},
        })
    );
    assert!(group(&registry(), "nosuch.example.com").is_none());
    assert!(group(&registry(), "").is_none());
    assert!(resource_list(&registry(), "nosuch.example.com", "v1").is_none());
    assert!(resource_list(&registry(), "apps", "v2").is_none());
}

#[test]
fn a_44_groups_come_in_order_of_priority() {
    let list = group_list(&registry());
    let names: Vec<&str> =
        list["groups"].as_array().unwrap().iter().map(|g| g["name"].as_str().unwrap()).collect();
    assert_eq!(
        names.join(" "),
        "apiregistration.k8s.io apps events.k8s.io authentication.k8s.io authorization.k8s.io \
         autoscaling batch certificates.k8s.io networking.k8s.io policy rbac.authorization.k8s.io \
         storage.k8s.io admissionregistration.k8s.io apiextensions.k8s.io scheduling.k8s.io \
         coordination.k8s.io node.k8s.io discovery.k8s.io resource.k8s.io \
         flowcontrol.apiserver.k8s.io metrics.k8s.io landfall.dev"
    );
    assert_eq!(list["groups"][5]["preferredVersion"]["version"], "v2");
}

#[test]
fn a_38_resources_are_described_as_upstream_does() {
    let core = resource_list(&registry(), "", "v1").unwrap();
    assert_eq!(core["groupVersion"], "v1");
    assert_eq!(
        entry(&core, "pods"),
        json!({
            "name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod",
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            "shortNames": ["po"], "categories": ["all"], "storageVersionHash": "xPOwRZ+Yhw8=",
        })
    );
    assert_eq!(
        entry(&core, "pods/eviction"),
        json!({
            "name": "pods/eviction", "singularName": "", "namespaced": true, "kind": "Eviction",
            "group": "policy", "version": "v1", "verbs": ["create"],
        })
    );
    assert_eq!(
        entry(&core, "serviceaccounts/token"),
        json!({
            "name": "serviceaccounts/token", "singularName": "", "namespaced": true,
            "kind": "TokenRequest", "group": "authentication.k8s.io", "version": "v1",
            "verbs": ["create"],
        })
    );
    assert_eq!(
        entry(&core, "namespaces/finalize"),
        json!({
            "name": "namespaces/finalize", "singularName": "", "namespaced": false,
            "kind": "Namespace", "verbs": ["update"],
        })
    );
    let namespaces = entry(&core, "namespaces");
    assert_eq!(
        namespaces["verbs"],
        json!(["create", "delete", "get", "list", "patch", "update", "watch"])
    );
    let apps = resource_list(&registry(), "apps", "v1").unwrap();
    assert_eq!(entry(&apps, "deployments/scale")["group"], "autoscaling");
    assert_eq!(entry(&apps, "deployments/status")["group"], Value::Null);
}

#[test]
fn a_39_the_storage_hash_is_that_of_the_stored_version() {
    let hash = |group, version, name| {
        entry(&resource_list(&registry(), group, version).unwrap(), name)["storageVersionHash"]
            .as_str()
            .map(str::to_owned)
    };
    let is = |text: &str| Some(text.to_owned());
    assert_eq!(hash("", "v1", "namespaces"), is("Q3oi5N2YM8M="));
    assert_eq!(hash("", "v1", "services"), is("0/CO1lhkEBI="));
    assert_eq!(hash("apps", "v1", "deployments"), is("8aSe+NMegvE="));
    // Shared storage: both names of an event, both versions of an autoscaler.
    assert_eq!(hash("events.k8s.io", "v1", "events"), is("r2yiGXH7wu8="));
    assert_eq!(hash("", "v1", "events"), is("r2yiGXH7wu8="));
    assert_eq!(
        hash("autoscaling", "v1", "horizontalpodautoscalers"),
        hash("autoscaling", "v2", "horizontalpodautoscalers")
    );
    assert_eq!(hash("", "v1", "pods/status"), None);
    assert_eq!(hash("", "v1", "bindings"), None);
    assert_eq!(hash("", "v1", "componentstatuses"), None);
}

#[test]
fn each_resource_is_followed_by_its_subresources() {
    let core = resource_list(&registry(), "", "v1").unwrap();
    let mut parent = String::new();
    for entry in core["resources"].as_array().unwrap() {
        let name = entry["name"].as_str().unwrap();
        match name.split_once('/') {
            Some((of, _)) => assert_eq!(of, parent),
            None => parent = name.to_owned(),
        }
    }
}

#[test]
fn a_41_the_aggregated_form_has_the_same_resources() {
    let registry = registry();
    let core = aggregated(&registry, true);
    assert_eq!(core["items"].as_array().unwrap().len(), 1);
    assert_eq!(core["items"][0]["metadata"]["name"], "");
    let all = aggregated(&registry, false);
    assert_eq!(all["apiVersion"], "apidiscovery.k8s.io/v2");
    assert_eq!(all["items"].as_array().unwrap().len(), 22);
    assert_eq!(
        all["items"][1]["versions"][0]["resources"][2],
        json!({
            "resource": "deployments", "singularResource": "deployment", "scope": "Namespaced",
            "responseKind": {"group": "", "version": "", "kind": "Deployment"},
            "shortNames": ["deploy"], "categories": ["all"],
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            "subresources": [
                {"subresource": "scale", "verbs": ["get", "patch", "update"],
                 "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"}},
                {"subresource": "status", "verbs": ["get", "patch", "update"],
                 "responseKind": {"group": "", "version": "", "kind": "Deployment"}},
            ],
        })
    );
}

#[test]
fn a_203_every_kind_is_in_both_forms() {
    let registry = registry();
    let count = |list: Value| {
        let mut count = 0;
        for item in list["items"].as_array().unwrap() {
            for version in item["versions"].as_array().unwrap() {
                count += version["resources"].as_array().unwrap().len();
            }
        }
        count
    };
    let aggregated = count(aggregated(&registry, true)) + count(aggregated(&registry, false));
    assert_eq!(aggregated, registry.kinds().len());
}

#[test]
fn a_45_custom_kinds_come_after_all_others() {
    let registry = registry();
    let with = registry.with_custom([
        custom(&registry, "stable.example.com", "v1alpha1", "crontabs"),
        custom(&registry, "stable.example.com", "v1", "crontabs"),
        custom(&registry, "stable.example.com", "v1", "appletabs"),
        custom(&registry, "a.example.com", "v1", "crontabs"),
    ]);
    let list = group_list(&with);
    let groups = list["groups"].as_array().unwrap();
    assert_eq!(groups[22]["name"], "a.example.com");
    assert_eq!(groups[23]["name"], "stable.example.com");
    assert_eq!(groups[23]["preferredVersion"]["version"], "v1");

    let legacy = resource_list(&with, "stable.example.com", "v1").unwrap();
    let names: Vec<&Value> =
        legacy["resources"].as_array().unwrap().iter().map(|r| &r["name"]).collect();
    assert_eq!(names[0], "appletabs");
    assert_eq!(names[3], "crontabs");
    let old = resource_list(&with, "stable.example.com", "v1alpha1").unwrap();
    assert_eq!(
        entry(&old, "crontabs")["storageVersionHash"],
        entry(&legacy, "crontabs")["storageVersionHash"]
    );

    let aggregated = aggregated(&with, false);
    let resource = &aggregated["items"][23]["versions"][0]["resources"][1];
    assert_eq!(
        resource["responseKind"],
        json!({"group": "stable.example.com", "version": "v1", "kind": "CronTab"})
    );
}

#[test]
fn a_44_versions_sort_by_maturity() {
    let mut versions = vec!["foo1", "v1alpha1", "v1", "v10", "v2beta3", "v3beta1", "bar", "v2"];
    versions.sort_by(|a, b| by_maturity(a, b));
    assert_eq!(versions, ["v10", "v2", "v1", "v3beta1", "v2beta3", "v1alpha1", "bar", "foo1"]);
}
