//! Writes to pods through `/ephemeralcontainers` and `/resize`.

use super::pod;
use super::pod_update::{MIRROR, annotation_changes, restore};
use api::field::{At, Errors, Wrong};
use api::metadata::same;
use api::quantity::Quantity;
use api::value::ValueExt;
use serde_json::Value;

const CONTAINER_LISTS: &[&str] = &["containers", "initContainers"];

/// Only ephemeral containers can change through `/ephemeralcontainers`; the rest is taken from the old pod.
pub fn prepare_ephemeral_update(new: &mut Value, old: &Value) {
    let mut pod = with_version_of(new, old);
    let spec = pod.object("spec");
    match new.at(&["spec", "ephemeralContainers"]) {
        Some(ephemeral) => spec["ephemeralContainers"] = ephemeral.clone(),
        None => drop(spec.remove("ephemeralContainers")),
    }
    *new = pod;
}

/// The old pod with the resourceVersion that the client sent.
fn with_version_of(new: &Value, old: &Value) -> Value {
    let mut pod = old.clone();
    pod["metadata"]["resourceVersion"] = new["metadata"]["resourceVersion"].clone();
    pod
}

/// Validates an update through `/ephemeralcontainers`.
pub fn validate_ephemeral_update(new: &At, old: &At, errors: &mut Errors) {
    pod::validate(new, errors);
    annotation_changes(new, old, errors);
    let metadata = old.field("metadata");
    if metadata.field("annotations").key(MIRROR).is_set() {
        let detail = "static pods do not support ephemeral containers";
        *errors = Errors::default();
        errors.push(Wrong::Forbidden, String::new(), None, detail);
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

/// Only resources and resize policies of existing containers can change through `/resize`; the rest is taken
/// from the old pod.
pub fn prepare_resize(new: &mut Value, old: &Value) {
    let mut pod = with_version_of(new, old);
    for list in CONTAINER_LISTS {
        let requested = new.at(&["spec", list]).and_then(Value::as_array);
        for container in pod["spec"].list_mut(list) {
            let same = |other: &&Value| other["name"] == container["name"];
            let Some(requested) = requested.and_then(|list| list.iter().find(same)) else {
                continue;
            };
            for field in ["resources", "resizePolicy"] {
                match requested.get(field) {
                    Some(value) => container[field] = value.clone(),
                    None => drop(container.remove(field)),
                }
            }
        }
    }
    *new = pod;
}

/// Validates an update through `/resize`.
pub fn validate_resize(new: &At, old: &At, errors: &mut Errors) {
    pod::validate(new, errors);
    let forbidden = |detail: &str, errors: &mut Errors| {
        *errors = Errors::default();
        errors.push(Wrong::Forbidden, String::new(), None, detail);
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
    if !node_reports_resources(then) {
        return forbidden("Pod running on node without support for resize", errors);
    }
    let class = match then.text(&["status", "qosClass"]) {
        "" => api::pod::json::qos_class(then).as_str(),
        class => class,
    };
    if class != api::pod::json::qos_class(now).as_str() {
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.invalid_value(&spec, class, detail);
    }
    for list in ["initContainers", "containers"] {
        for (now, then) in spec.field(list).items().zip(before.field(list).items()) {
            nothing_removed(&now.field("resources"), &then.field("resources"), errors);
        }
    }
    only_cpu_and_memory(&spec, &before, errors);
}

/// A node that supports resizing reports the resources of each running container.
fn node_reports_resources(pod: &Value) -> bool {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let lists = lists.iter().filter_map(|list| pod.at(&["status", list])?.as_array());
    lists.flatten().all(|status| {
        status.at(&["state", "running"]).is_none() || status.get("resources").is_some()
    })
}

fn nothing_removed(new: &At, old: &At, errors: &mut Errors) {
    for (field, detail) in [
        ("requests", "resource requests cannot be removed"),
        ("limits", "resource limits cannot be removed"),
    ] {
        let (new, old) = (new.field(field), old.field(field));
        if old.entries().any(|(name, _)| !new.key(name).is_set()) {
            errors.forbidden(&new, detail);
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
        let places = new.field(list);
        let places = places.items();
        for ((container, then), place) in munged.list_mut(list).zip(old_list).zip(places) {
            let changed = !same(Some(container), Some(then));
            restore_compute(container, then);
            restore(container, then, "resizePolicy");
            let same = same(Some(container), Some(then));
            if *list == "containers" {
                if !same {
                    errors.forbidden(new, "only cpu and memory resources are mutable");
                }
                continue;
            }
            if !same {
                let detail =
                    "only cpu and memory resources for init or sidecar containers are mutable";
                errors.forbidden(&place, detail);
            }
            let sidecar = then.text(&["restartPolicy"]) == "Always";
            let mut policies = container.list_mut("resizePolicy");
            if changed
                && !sidecar
                && policies.any(|one| one.text(&["restartPolicy"]) == "RestartContainer")
            {
                let detail = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
                errors.forbidden(&place, detail);
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
    use super::super::trial::{NOTHING, created, messages, pod_with};
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
        (new, messages(&errors))
    }

    #[test]
    fn a_88_only_cpu_and_memory_can_be_resized() {
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
    fn n_117_a_pod_cannot_be_resized_if_its_node_reports_no_resources() {
        let check = |status: Value| {
            let mut old = stored();
            old["status"] = json!({"containerStatuses": [status]});
            let mut new = old.clone();
            new["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1500m".into();
            prepare_resize(&mut new, &old);
            let mut errors = Errors::default();
            validate_resize(&At::root(&new), &At::root(&old), &mut errors);
            messages(&errors)
        };
        let running = json!({"name": "c", "state": {"running": {}}});
        assert_eq!(check(running), [": Forbidden: Pod running on node without support for resize"]);
        assert_eq!(check(json!({"name": "c", "state": {"waiting": {}}})), NOTHING);
        assert_eq!(check(json!({"name": "c", "state": {"running": {}}, "resources": {}})), NOTHING);
    }

    /// Init containers that are not sidecars as well, unless they would have to restart.
    #[test]
    fn a_88_init_containers_are_resized() {
        let check = |more: Value, resource: &str| {
            let mut old = stored();
            let amounts = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}});
            let mut init = old["spec"]["containers"][0].clone();
            init["name"] = "init".into();
            init["resources"] = amounts;
            super::super::trial::merge(&mut init, more);
            old["spec"]["initContainers"] = json!([init]);
            let mut new = old.clone();
            new["spec"]["initContainers"][0]["resources"]["requests"][resource] = "2".into();
            prepare_resize(&mut new, &old);
            let mut errors = Errors::default();
            validate_resize(&At::root(&new), &At::root(&old), &mut errors);
            messages(&errors)
        };
        assert_eq!(check(json!({}), "cpu"), NOTHING);
        assert_eq!(check(json!({"restartPolicy": "Always"}), "cpu"), NOTHING);
        let restart = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
        let sidecar = json!({"restartPolicy": "Always", "resizePolicy": restart});
        assert_eq!(check(sidecar, "cpu"), NOTHING);
        let wrong = check(json!({ "resizePolicy": restart }), "cpu");
        let message = "spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
        assert!(wrong.iter().any(|wrong| wrong == message), "{wrong:?}");
        assert_eq!(
            check(json!({}), "ephemeral-storage"),
            [
                "spec.initContainers[0]: Forbidden: only cpu and memory resources for init or sidecar containers are mutable"
            ]
        );
    }

    #[test]
    fn a_88_resizing_cannot_change_the_qos_class() {
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
    fn a_88_ephemeral_containers_can_only_be_added() {
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
            messages(&errors)
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
