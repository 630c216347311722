//! Warning headers for requests that are accepted but probably not intended.

use crate::request::call::Call;
use api::Kind;
use api::value::ValueExt;
use serde_json::Value;

/// For any request on a deprecated kind.
pub(crate) fn deprecated(call: &Call) {
    if call.kind.group.is_empty() && call.kind.plural == "endpoints" {
        call.warn("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice");
    }
}

/// For a new object.
pub(crate) fn create(call: &Call, object: &Value) {
    let path = template(&call.kind.kind);
    if let Some(template) = object.pointer(path).filter(|_| !path.is_empty()) {
        of_template(call, path, template);
    }
    if call.kind.kind == "Pod" {
        of_hooks(object, "spec").for_each(|warning| call.warn(warning));
    }
    of_service(call, object);
    not_enforced(&call.kind, object).into_iter().for_each(|warning| call.warn(warning));
}

/// NET-23: fields of a Service that are deprecated or ignored.
fn of_service(call: &Call, object: &Value) {
    if call.kind.group.is_empty() && call.kind.kind == "Service" {
        rules::service_warnings(object).into_iter().for_each(|warning| call.warn(warning));
    }
}

/// For an update of a Service, or one that changed the pod template or content that landfall does not enforce.
pub(crate) fn update(call: &Call, new: &Value, old: &Value) {
    of_service(call, new);
    let path = template(&call.kind.kind);
    let changed = match call.kind.group.as_str() {
        ADMISSION | EXTENSIONS => ["spec", "webhooks"].iter().any(|part| new[part] != old[part]),
        _ => new.pointer(path) != old.pointer(path),
    };
    if changed {
        create(call, new);
    }
}

const ADMISSION: &str = "admissionregistration.k8s.io";
const EXTENSIONS: &str = "apiextensions.k8s.io";

/// How many fields one warning lists.
const FIELDS_SHOWN: usize = 3;

/// What an object requests and the server does not do.
fn not_enforced(kind: &Kind, object: &Value) -> Vec<String> {
    let stored = "this object is stored but not enforced";
    match (kind.group.as_str(), kind.kind.as_str()) {
        (ADMISSION, "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration") => {
            let any = object["webhooks"].as_array().is_some_and(|hooks| !hooks.is_empty());
            any.then(|| format!("landfall does not call admission webhooks: {stored}"))
                .into_iter()
                .collect()
        }
        (ADMISSION, _) => vec![format!("landfall does not evaluate admission policies: {stored}")],
        (EXTENSIONS, _) => of_definition(object),
        _ => Vec::new(),
    }
}

fn of_definition(definition: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    if definition.text(&["spec", "conversion", "strategy"]) == "Webhook" {
        let versions = "objects are served in other versions with only apiVersion changed";
        warnings.push(format!(
            "spec.conversion.strategy: landfall does not call conversion webhooks: {versions}"
        ));
    }
    for version in definition["spec"]["versions"].as_array().into_iter().flatten() {
        let schema = version["schema"]["openAPIV3Schema"].clone();
        let unsupported = api::crd::Custom::new(schema).unsupported();
        if unsupported.is_empty() {
            continue;
        }
        let shown = unsupported.iter().take(FIELDS_SHOWN).cloned().collect::<Vec<_>>().join("; ");
        let more = match unsupported.len().saturating_sub(FIELDS_SHOWN) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let name = version.text(&["name"]);
        warnings.push(format!("landfall does not check all of version {name}: {shown}{more}"));
    }
    warnings
}

/// The path of a kind's pod template.
fn template(kind: &str) -> &'static str {
    match kind {
        "Deployment"
        | "ReplicaSet"
        | "StatefulSet"
        | "DaemonSet"
        | "Job"
        | "ReplicationController" => "/spec/template",
        "CronJob" => "/spec/jobTemplate/spec/template",
        "PodTemplate" => "/template",
        _ => "",
    }
}

fn of_template(call: &Call, path: &str, template: &Value) {
    // T-API-7: pods created from the template get 1.
    if template["spec"]["terminationGracePeriodSeconds"].as_i64().is_some_and(|grace| grace < 0) {
        let field = path.trim_start_matches('/').replace('/', ".");
        call.warn(format!(
            "{field}.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    let field = path.trim_start_matches('/').replace('/', ".");
    of_hooks(template, &format!("{field}.spec")).for_each(|warning| call.warn(warning));
}

/// T-EDGE-10: hooks over TCP are valid, but no node runs them (T-NODE-32).
fn of_hooks<'a>(holder: &'a Value, field: &'a str) -> impl Iterator<Item = String> + 'a {
    let lists = ["initContainers", "containers"].into_iter();
    let containers = lists.flat_map(move |list| {
        let containers = holder["spec"][list].as_array().into_iter().flatten();
        containers.enumerate().map(move |(index, one)| (format!("{field}.{list}[{index}]"), one))
    });
    containers.flat_map(|(path, container)| {
        let hooks = ["postStart", "preStop"].into_iter();
        let over_tcp = hooks.filter(|hook| container["lifecycle"][hook]["tcpSocket"].is_object());
        let warn = move |hook| {
            format!(
                "{path}.lifecycle.{hook}.tcpSocket: not supported for hooks; it will always fail"
            )
        };
        over_tcp.map(warn).collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_that_are_not_enforced_get_a_warning() {
        let registry = api::Registry::built_in();
        let warnings = |group: &str, kind: &str, object: Value| {
            not_enforced(registry.by_kind(group, "v1", kind).unwrap(), &object)
        };
        let hooks =
            "landfall does not call admission webhooks: this object is stored but not enforced";
        let policies =
            "landfall does not evaluate admission policies: this object is stored but not enforced";
        let one = json!({"webhooks": [{"name": "a"}]});
        for kind in ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"] {
            assert_eq!(warnings(ADMISSION, kind, one.clone()), [hooks]);
            assert!(warnings(ADMISSION, kind, json!({"webhooks": []})).is_empty());
        }
        for kind in [
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
        ] {
            assert_eq!(warnings(ADMISSION, kind, json!({"spec": {}})), [policies]);
        }
        let ruled = json!({"type": "string", "x-kubernetes-validations": [{"rule": "true"}]});
        let definition = |properties: Value| {
            json!({"spec": {"conversion": {"strategy": "Webhook"}, "versions": [
                {"name": "v1", "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}},
                {"name": "v2", "schema": {"openAPIV3Schema": {"type": "object"}}}]}})
        };
        let conversion = "spec.conversion.strategy: landfall does not call conversion webhooks: objects are served in other versions with only apiVersion changed";
        let kind = "CustomResourceDefinition";
        assert_eq!(warnings(EXTENSIONS, kind, definition(json!({}))), [conversion]);
        let many = json!({"a": ruled, "b": ruled, "c": ruled, "d": ruled, "e": ruled});
        let not_evaluated =
            |name: &str| format!("{name}: x-kubernetes-validations are not evaluated");
        let all = format!(
            "landfall does not check all of version v1: {}; {}; {}; and 2 more",
            not_evaluated("a"),
            not_evaluated("b"),
            not_evaluated("c")
        );
        assert_eq!(warnings(EXTENSIONS, kind, definition(many)), [conversion, &all]);
        assert!(warnings("", "Pod", json!({"spec": {}})).is_empty());
    }

    #[test]
    fn t_edge_10_hooks_that_cannot_work_get_a_warning() {
        let tcp = json!({"tcpSocket": {"port": 80}});
        let works = json!({"preStop": {"sleep": {"seconds": 1}}});
        let pod = json!({"spec": {
            "initContainers": [{"lifecycle": {"postStart": tcp}}],
            "containers": [{"lifecycle": works}, {"lifecycle": {"preStop": tcp}}, {}]}});
        let warnings: Vec<String> = of_hooks(&pod, "spec").collect();
        let wanted = ["initContainers[0].lifecycle.postStart", "containers[1].lifecycle.preStop"]
            .map(|at| format!("spec.{at}.tcpSocket: not supported for hooks; it will always fail"));
        assert_eq!(warnings, wanted);
    }
}
