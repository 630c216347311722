//! From a CustomResourceDefinition to the kinds it serves.

use super::Custom;
use super::types;
use crate::kind::{Kind, Storage, Verbs};
use crate::value::ValueExt as _;
use serde_json::Value;
use std::sync::Arc;

/// One kind per served version, all stored as the storage version. A definition without
/// a group, a name or a storage version has no kinds.
///
/// Uses the accepted names if there are any: a definition that loses a name conflict keeps its old
/// names.
pub fn kinds(crd: &Value) -> Vec<Arc<Kind>> {
    let accepted = ["status", "acceptedNames"];
    let names = match crd.at(&accepted) {
        Some(names) if !names.text(&["plural"]).is_empty() && !names.text(&["kind"]).is_empty() => {
            names
        }
        _ => &crd["spec"]["names"],
    };
    let versions = crd["spec"]["versions"].as_array().map_or(&[][..], Vec::as_slice);
    let stored = versions.iter().find(|version| version["storage"] == true);
    let Some(stored) = stored.map(|version| version.text(&["name"])) else { return Vec::new() };
    let (group, plural) = (crd.text(&["spec", "group"]), names.text(&["plural"]));
    if [group, plural, names.text(&["kind"]), stored].contains(&"") {
        return Vec::new();
    }
    let storage = Storage::new(group, stored, plural);
    let served = versions.iter().filter(|version| version["served"] == true);
    served
        .filter(|version| !version.text(&["name"]).is_empty())
        .map(|version| Arc::new(kind(crd, names, version, storage.clone())))
        .collect()
}

fn kind(crd: &Value, names: &Value, version: &Value, storage: Storage) -> Kind {
    let custom = custom(crd, names, version);
    let (schema, ty) = types::of(&custom.node);
    let kind = names.text(&["kind"]);
    let singular = match names.text(&["singular"]) {
        "" => kind.to_lowercase(),
        singular => singular.into(),
    };
    let mut subresources = Vec::new();
    if custom.scale.is_some() {
        subresources.push("scale".into());
    }
    if custom.has_status {
        subresources.push("status".into());
    }
    Kind {
        group: storage.group.clone(),
        version: version.text(&["name"]).into(),
        kind: kind.into(),
        plural: storage.plural.clone(),
        singular,
        short: strings(&names["shortNames"]),
        categories: strings(&names["categories"]),
        namespaced: crd.text(&["spec", "scope"]) == "Namespaced",
        verbs: Verbs::All,
        subresources,
        storage,
        schema,
        ty,
        custom: Some(Arc::new(custom)),
    }
}

fn custom(crd: &Value, names: &Value, version: &Value) -> Custom {
    let kind = names.text(&["kind"]);
    let list_kind = match names.text(&["listKind"]) {
        "" => format!("{kind}List"),
        list_kind => list_kind.into(),
    };
    let deprecated = version["deprecated"] == true;
    let deprecation = match version["deprecationWarning"].as_str() {
        _ if !deprecated => None,
        Some(warning) => Some(warning.into()),
        None => {
            let group = crd.text(&["spec", "group"]);
            Some(format!("{group}/{} {kind} is deprecated", version.text(&["name"])))
        }
    };
    let list = |field: &str| version[field].as_array().cloned().unwrap_or_default();
    let selectable = list("selectableFields");
    Custom {
        definition: crd.text(&["metadata", "name"]).into(),
        uid: crd.text(&["metadata", "uid"]).into(),
        since: crd.text(&["metadata", "resourceVersion"]).parse().unwrap_or_default(),
        list_kind,
        has_status: version.at(&["subresources", "status"]).is_some(),
        scale: version.at(&["subresources", "scale"]).cloned(),
        columns: list("additionalPrinterColumns"),
        selectable: selectable
            .iter()
            .map(|field| field.text(&["jsonPath"]).trim_start_matches('.').to_owned())
            .collect(),
        deprecation,
        terminating: crd.at(&["metadata", "deletionTimestamp"]).is_some(),
        webhook: crd.at(&["spec", "conversion", "webhook"]).cloned(),
        ..Custom::new(version["schema"]["openAPIV3Schema"].clone())
    }
}

fn strings(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}
