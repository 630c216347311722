//! Discovery: the served groups, versions and resources.
//!
//! There are two forms: the legacy documents, one per path, and the aggregated document with all groups. Both are generated
//! from the [`Registry`].
//!
//! Not here: choosing the form, ETags and caching (`documents`).

use api::kind::{self, Kind, Registry, Subresource};
use base64::{Engine, prelude::BASE64_STANDARD};
use ring::digest::{SHA256, digest};
use serde_json::{Map, Value, json};
use std::cmp::Ordering;
use std::collections::HashSet;

/// The Kubernetes release whose API this is.
const MAJOR: &str = "1";
const MINOR: &str = "36";
const PATCH: &str = "4";
/// The oldest minor version of supported clients and components.
const MIN_COMPATIBLE_MINOR: &str = "35";

/// `GET /version`. The fields about Go describe Rust instead.
pub fn version() -> Value {
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "emulationMajor": MAJOR,
        "emulationMinor": MINOR,
        "minCompatibilityMajor": MAJOR,
        "minCompatibilityMinor": MIN_COMPATIBLE_MINOR,
        "gitVersion": git_version(),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("linux/{}", go_architecture(std::env::consts::ARCH)),
    })
}

/// `v1.36.4+landfall.0.1.0`: semantic versioning compares it as v1.36.4.
pub fn git_version() -> String {
    format!("v{MAJOR}.{MINOR}.{PATCH}+landfall.{}", env!("CARGO_PKG_VERSION"))
}

/// The platform with Go's names of processors, which clients compare.
fn go_architecture(arch: &str) -> &str {
    match arch {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// `GET /`: the served paths. `others` are those that do not belong to kinds.
pub fn root<'a>(registry: &Registry, others: impl IntoIterator<Item = &'a str>) -> Value {
    let mut paths: Vec<String> = ["/api", "/api/v1", "/apis"].map(str::to_owned).into();
    for (group, versions) in named_groups(registry) {
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
    }
    paths.extend(others.into_iter().map(str::to_owned));
    paths.sort();
    paths.dedup();
    json!({"paths": paths})
}

/// `GET /api`. `address` is `host:port` where clients reach this server.
pub fn api_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// `GET /apis`: every group but the core one.
pub fn group_list(registry: &Registry) -> Value {
    let groups: Vec<Value> = named_groups(registry)
        .iter()
        .map(|(name, versions)| Value::Object(group_body(name, versions)))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `GET /apis/{group}`.
pub fn group(registry: &Registry, group: &str) -> Option<Value> {
    let groups = named_groups(registry);
    let (name, versions) = groups.iter().find(|(name, _)| *name == group)?;
    let mut body = group_body(name, versions);
    body.insert("kind".into(), "APIGroup".into());
    body.insert("apiVersion".into(), "v1".into());
    Some(Value::Object(body))
}

fn group_body(name: &str, versions: &[&str]) -> Map<String, Value> {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
        .collect();
    let mut body = Map::new();
    body.insert("name".into(), name.into());
    body.insert("preferredVersion".into(), versions.first().cloned().unwrap_or_default());
    body.insert("versions".into(), versions.into());
    body
}

/// `GET /api/v1` and `GET /apis/{group}/{version}`: each resource, then its
/// subresources.
pub fn resource_list(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let kinds = resources(registry, group, version);
    let group_version = kinds.first()?.api_version();
    let mut list = Vec::new();
    for kind in kinds {
        list.push(resource(registry, kind));
        list.extend(subresources(kind).map(|(name, sub)| legacy_subresource(kind, name, &sub)));
    }
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": list,
    }))
}

fn resource(registry: &Registry, kind: &Kind) -> Value {
    let mut entry = json!({
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": kind.discovery_verbs(),
    });
    add_names(&mut entry, kind);
    if kind.is_stored() {
        entry["storageVersionHash"] = storage_version_hash(registry, kind).into();
    }
    entry
}

fn legacy_subresource(kind: &Kind, name: &str, sub: &Subresource) -> Value {
    let mut entry = json!({
        "name": format!("{}/{name}", kind.plural),
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": sub.kind.unwrap_or(&kind.kind),
        "verbs": sub.verbs,
    });
    if let Some((group, version)) = sub.group_version {
        entry["group"] = group.into();
        entry["version"] = version.into();
    }
    entry
}

/// `GET /api` and `GET /apis` in the aggregated form: the core group, or all the others.
pub fn aggregated(registry: &Registry, core: bool) -> Value {
    let groups = if core { vec![("", vec!["v1"])] } else { named_groups(registry) };
    let items: Vec<Value> = groups
        .iter()
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| aggregated_version(registry, group, version))
                .collect();
            json!({"metadata": {"name": group}, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

fn aggregated_version(registry: &Registry, group: &str, version: &str) -> Value {
    let resources: Vec<Value> =
        resources(registry, group, version).into_iter().map(aggregated_resource).collect();
    json!({"version": version, "freshness": "Current", "resources": resources})
}

fn aggregated_resource(kind: &Kind) -> Value {
    // An empty group and version mean "as the parent"; upstream spells them out for custom kinds.
    let (group, version) = match &kind.custom {
        Some(_) => (kind.group.as_str(), kind.version.as_str()),
        None => ("", ""),
    };
    let mut entry = json!({
        "resource": kind.plural,
        "responseKind": {"group": group, "version": version, "kind": kind.kind},
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": kind.discovery_verbs(),
    });
    add_names(&mut entry, kind);
    let subresources: Vec<Value> = subresources(kind)
        .map(|(name, sub)| {
            let (group, version) = sub.group_version.unwrap_or((group, version));
            let kind = sub.kind.unwrap_or(&kind.kind);
            json!({
                "subresource": name,
                "responseKind": {"group": group, "version": version, "kind": kind},
                "verbs": sub.verbs,
            })
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}

fn add_names(entry: &mut Value, kind: &Kind) {
    if !kind.short.is_empty() {
        entry["shortNames"] = json!(kind.short);
    }
    if !kind.categories.is_empty() {
        entry["categories"] = json!(kind.categories);
    }
}

fn subresources(kind: &Kind) -> impl Iterator<Item = (&str, Subresource)> {
    kind.subresources
        .iter()
        .filter_map(|name| Some((name.as_str(), kind::subresource(&kind.plural, name)?)))
}

/// A hash from which clients see whether two resources are stored as the same.
fn storage_version_hash(registry: &Registry, kind: &Kind) -> String {
    let storage = &kind.storage;
    let stored_as = registry
        .resource(&storage.group, &storage.version, &storage.plural)
        .map_or(kind.kind.as_str(), |stored| stored.kind.as_str());
    let name = format!("{}/{}/{stored_as}", storage.group, storage.version);
    BASE64_STANDARD.encode(&digest(&SHA256, name.as_bytes()).as_ref()[..8])
}

/// The kinds of one group and version: built-in ones in the registry's order, custom ones by name.
pub(crate) fn resources<'a>(registry: &'a Registry, group: &str, version: &str) -> Vec<&'a Kind> {
    let mut kinds: Vec<&Kind> =
        registry.of_version(group, version).into_iter().map(AsRef::as_ref).collect();
    kinds.sort_by_key(|kind| kind.custom.as_ref().map(|_| kind.plural.as_str()));
    kinds
}

/// All groups but the core one, in the order of A-44, versions in order of preference.
pub(crate) fn named_groups(registry: &Registry) -> Vec<(&str, Vec<&str>)> {
    let built_in = registry.kinds().iter().filter(|kind| kind.custom.is_none());
    let built_in: HashSet<&str> = built_in.map(|kind| kind.group.as_str()).collect();
    let (mut custom, mut groups): (Vec<_>, Vec<_>) =
        registry.groups().into_iter().partition(|(group, _)| !built_in.contains(group));
    groups.retain(|(group, _)| !group.is_empty());
    custom.sort();
    for (_, versions) in &mut custom {
        versions.sort_by(|a, b| by_maturity(a, b));
    }
    groups.extend(custom);
    groups
}

/// `v2` before `v1` before `v2beta1` before `v1alpha3`; anything else behind, by name.
fn by_maturity(a: &str, b: &str) -> Ordering {
    match (maturity(a), maturity(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// (2 for general availability, 1 for beta, 0 for alpha; major; minor)
fn maturity(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let number = |text: &str| match text.as_bytes() {
        [b'1'..=b'9', ..] if text.bytes().all(|b| b.is_ascii_digit()) => text.parse::<u64>().ok(),
        _ => None,
    };
    for (word, level) in [("alpha", 0), ("beta", 1)] {
        if let Some((major, minor)) = rest.split_once(word) {
            return Some((level, number(major)?, number(minor)?));
        }
    }
    Some((2, number(rest)?, 0))
}

#[cfg(test)]
mod tests;
