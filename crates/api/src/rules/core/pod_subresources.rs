//! Writes to pods through `/ephemeralcontainers` and `/resize`.

use super::pod_update::{MIRROR, annotation_changes, restore};
use super::{pod, qos};
use crate::field::{At, Errors, Wrong};
use crate::metadata::same;
use crate::quantity::Quantity;
use crate::value::ValueExt;
use serde_json::Value;

const CONTAINER_LISTS: &[&str] = &["containers", "initContainers"];

/// What an update through `/ephemeralcontainers` can change: everything else comes from the old pod.
pub fn prepare_ephemeral_update(new: &mut Value, old: &Value) {
    let mut pod = kept(new, old);
    let ephemeral = new.at(&["spec", "ephemeralContainers"]).cloned();
    let spec = pod.object("spec");
    spec.remove("ephemeralContainers");
    if let Some(ephemeral) = ephemeral {
        spec.map().insert("ephemeralContainers".into(), ephemeral);
    }
    *new = pod;
}

/// The old pod with the new one's identity and version.
fn kept(new: &Value, old: &Value) -> Value {
    let mut pod = old.clone();
    let empty = Value::Null;
    let metadata = new.get("metadata").unwrap_or(&empty);
    for field in ["name", "namespace", "uid", "resourceVersion", "managedFields"] {
        restore(pod.object("metadata"), metadata, field);
    }
    pod
}

/// Checks an update through `/ephemeralcontainers`.
pub fn validate_ephemeral_update(new: &At, old: &At, errors: &mut Errors) {
    pod::validate(new, errors);
    annotation_changes(new, old, errors);
    let metadata = old.field("metadata");
    if metadata.field("annotations").key(MIRROR).is_set() {
        let said = "static pods do not support ephemeral containers";
        *errors = Errors::default();
        errors.push(Wrong::Forbidden, String::new(), None, said);
        return;
    }
    let (spec, before) = (new.field("spec"), old.field("spec"));
    let list = spec.field("ephemeralContainers");
    for before in before.field("ephemeralContainers").items() {
        let name = before.field("name").text();
        let now = list.items().find(|now| now.field("name").text() == name);
        match now {
            None => errors.forbidden(
                &list,
                &format!("existing ephemeral containers {name:?} may not be removed\n"),
            ),
            Some(now) if !same(now.value(), before.value()) => errors.forbidden(
                &list,
                &format!("existing ephemeral containers {name:?} may not be changed\n"),
            ),
            Some(_) => {}
        }
    }
}

/// What an update through `/resize` can change: resources and resize policies of containers by name.
pub fn prepare_resize(new: &mut Value, old: &Value) {
    let mut pod = kept(new, old);
    let empty = Value::Null;
    for list in CONTAINER_LISTS {
        let asked = new.at(&["spec", list]).and_then(Value::as_array).cloned().unwrap_or_default();
        for container in pod.object("spec").list_mut(list) {
            let name = container.text(&["name"]).to_owned();
            if let Some(asked) = asked.iter().find(|asked| asked.text(&["name"]) == name) {
                restore(container, asked, "resources");
                restore(container, asked, "resizePolicy");
            }
        }
    }
    restore(pod.object("spec"), new.get("spec").unwrap_or(&empty), "resources");
    *new = pod;
}

/// Checks an update through `/resize`.
pub fn validate_resize(new: &At, old: &At, errors: &mut Errors) {
    pod::validate(new, errors);
    let forbidden = |said: &str, errors: &mut Errors| {
        *errors = Errors::default();
        errors.push(Wrong::Forbidden, String::new(), None, said);
    };
    let metadata = old.field("metadata");
    let (spec, before) = (new.field("spec"), old.field("spec"));
    if metadata.field("annotations").key(MIRROR).is_set() {
        return forbidden("static pods cannot be resized", errors);
    }
    if before.field("os").field("name").text() == "windows" {
        return forbidden("windows pods cannot be resized", errors);
    }
    let empty = Value::Null;
    let (now, then) = (new.value().unwrap_or(&empty), old.value().unwrap_or(&empty));
    if !node_tells_resources(then) {
        return forbidden("Pod running on node without support for resize", errors);
    }
    let class = match then.text(&["status", "qosClass"]) {
        "" => qos::qos_class(then),
        class => class,
    };
    if class != qos::qos_class(now) {
        let said = "Pod QOS Class may not change as a result of resizing";
        errors.invalid_value(&spec, class, said);
    }
    for list in ["initContainers", "containers"] {
        for (now, then) in spec.field(list).items().zip(before.field(list).items()) {
            if list == "containers" || then.field("restartPolicy").text() == "Always" {
                nothing_removed(&now.field("resources"), &then.field("resources"), errors);
            }
        }
    }
    only_cpu_and_memory(&spec, &before, errors);
}

/// A node that can resize says of each running container what it has.
fn node_tells_resources(pod: &Value) -> bool {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let lists = lists.iter().filter_map(|list| pod.at(&["status", list])?.as_array());
    lists.flatten().all(|status| {
        status.at(&["state", "running"]).is_none() || status.get("resources").is_some()
    })
}

fn nothing_removed(new: &At, old: &At, errors: &mut Errors) {
    for (field, said) in [
        ("requests", "resource requests cannot be removed"),
        ("limits", "resource limits cannot be removed"),
    ] {
        let (new, old) = (new.field(field), old.field(field));
        if old.entries().any(|(name, _)| !new.key(name).is_set()) {
            errors.forbidden(&new, said);
        }
    }
}

fn only_cpu_and_memory(new: &At, old: &At, errors: &mut Errors) {
    let (Some(now), Some(then)) = (new.value(), old.value()) else {
        return;
    };
    let before = errors.iter().len();
    let mut munged = now.clone();
    restore_compute(&mut munged, then);
    for list in CONTAINER_LISTS {
        let old_list = then.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for (container, then) in munged.list_mut(list).zip(old_list) {
            let sidecar = then.text(&["restartPolicy"]) == "Always";
            if *list == "containers" || sidecar {
                restore_compute(container, then);
                restore(container, then, "resizePolicy");
            }
            if !same(Some(container), Some(then)) {
                errors.forbidden(
                    new,
                    match (*list, sidecar) {
                        ("containers", _) => "only cpu and memory resources are mutable",
                        (_, true) => {
                            "only cpu and memory resources for sidecar containers are mutable"
                        }
                        _ => "resources for non-sidecar init containers are immutable",
                    },
                );
            }
        }
    }
    if errors.iter().len() == before && !same(Some(&munged), Some(then)) {
        errors.forbidden(new, "only cpu and memory resources are mutable");
    }
}

fn restore_compute(new: &mut Value, old: &Value) {
    for list in ["requests", "limits"] {
        for resource in ["cpu", "memory"] {
            let before = old.at(&["resources", list, resource]).cloned();
            let now = new.at(&["resources", list, resource]);
            if now.and_then(Quantity::from_value) == before.as_ref().and_then(Quantity::from_value)
            {
                continue;
            }
            let amounts = new.object("resources").object(list);
            match before {
                Some(before) => amounts.map().insert(resource.into(), before),
                None => amounts.remove(resource),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{NOTHING, created, pod_with, said};
    use super::*;
    use serde_json::json;

    fn stored() -> Value {
        let mut pod = created(
            "Pod",
            pod_with(json!({"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}})),
        );
        pod["spec"]["serviceAccountName"] = "default".into();
        pod["metadata"] = json!({"name": "p", "resourceVersion": "1"});
        pod
    }

    fn resize(change: fn(&mut Value)) -> (Value, Vec<String>) {
        let old = stored();
        let mut new = old.clone();
        change(&mut new);
        prepare_resize(&mut new, &old);
        let mut errors = Errors::default();
        validate_resize(&At::root(&new), &At::root(&old), &mut errors);
        (new, said(&errors))
    }

    #[test]
    fn a_88_resizing_changes_cpu_and_memory_and_nothing_else() {
        let (new, wrong) = resize(|pod| {
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1500m".into();
            pod["spec"]["containers"][0]["image"] = "other".into();
        });
        assert_eq!(wrong, NOTHING);
        assert_eq!(new["spec"]["containers"][0]["image"], "nginx:1.27");
        assert_eq!(new["spec"]["containers"][0]["resources"]["requests"]["cpu"], "1500m");
        let (_, wrong) = resize(|pod| {
            pod["spec"]["containers"][0]["resources"]["limits"] = json!({});
        });
        assert_eq!(
            wrong,
            ["spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed"]
        );
        let (_, wrong) = resize(|pod| {
            pod["spec"]["containers"][0]["resources"]["requests"]["ephemeral-storage"] =
                "1Gi".into();
        });
        assert_eq!(wrong, ["spec: Forbidden: only cpu and memory resources are mutable"]);
    }

    #[test]
    fn n_117_a_pod_on_a_node_that_tells_no_resources_cannot_be_resized() {
        let check = |status: Value| {
            let mut old = stored();
            old["status"] = json!({"containerStatuses": [status]});
            let mut new = old.clone();
            new["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1500m".into();
            prepare_resize(&mut new, &old);
            let mut errors = Errors::default();
            validate_resize(&At::root(&new), &At::root(&old), &mut errors);
            said(&errors)
        };
        let running = json!({"name": "c", "state": {"running": {}}});
        assert_eq!(check(running), [": Forbidden: Pod running on node without support for resize"]);
        assert_eq!(check(json!({"name": "c", "state": {"waiting": {}}})), NOTHING);
        assert_eq!(check(json!({"name": "c", "state": {"running": {}}, "resources": {}})), NOTHING);
    }

    #[test]
    fn a_88_resizing_keeps_the_quality_of_service() {
        let (_, wrong) = resize(|pod| {
            let both = json!({"cpu": "2", "memory": "1Gi"});
            pod["spec"]["containers"][0]["resources"] = json!({"requests": both, "limits": both});
        });
        assert_eq!(
            wrong,
            [
                "spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing"
            ]
        );
    }

    #[test]
    fn a_88_ephemeral_containers_are_only_added() {
        let mut old = stored();
        let debug = json!({"name": "debug", "image": "busybox", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"});
        old["spec"]["ephemeralContainers"] = json!([debug]);
        let check = |list: Value| {
            let mut new = old.clone();
            new["spec"]["ephemeralContainers"] = list;
            new["spec"]["nodeName"] = "elsewhere".into();
            prepare_ephemeral_update(&mut new, &old);
            assert_eq!(new["spec"].get("nodeName"), None);
            let mut errors = Errors::default();
            validate_ephemeral_update(&At::root(&new), &At::root(&old), &mut errors);
            said(&errors)
        };
        let mut more = debug.clone();
        more["name"] = "more".into();
        assert_eq!(check(json!([debug, more])), NOTHING);
        assert_eq!(
            check(json!([more])),
            [
                "spec.ephemeralContainers: Forbidden: existing ephemeral containers \"debug\" may not be removed\n"
            ]
        );
        more["ports"] = json!([{"containerPort": 80, "protocol": "TCP"}]);
        assert_eq!(
            check(json!([debug, more])),
            [
                "spec.ephemeralContainers[1].ports: Forbidden: cannot be set for an Ephemeral Container"
            ]
        );
    }
}
