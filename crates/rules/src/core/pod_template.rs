//! Defaults and checks of pod templates, which pods share.
//!
//! Workloads call [`default_template`] and [`validate_template`] for their `spec.template`. Defaults that
//! only pods get (requests from limits, service links) are in `pod`.

use super::{image, persistent_volume, pod_spec, volumes};
use api::field::{At, Errors};
use api::metadata;
use api::quantity;
use api::value::ValueExt;
use serde_json::{Value, json};

/// Defaults of a PodTemplateSpec.
pub(crate) fn default_template(template: &mut Value) {
    default_spec(template.object("spec"));
}

/// Validates the labels, annotations and spec of a PodTemplateSpec.
pub(crate) fn validate_template(at: &At, errors: &mut Errors) {
    let metadata = at.field("metadata");
    let annotations = metadata.field("annotations");
    // Upstream's paths omit `metadata` here.
    let shown = at.field("annotations");
    metadata::labels_as(&metadata.field("labels"), &at.field("labels"), errors);
    metadata::annotations_as(&annotations, &shown, errors);
    let spec = at.field("spec");
    pod_spec::annotations(&annotations, &shown, &spec, errors);
    pod_spec::validate(&spec, None, errors);
    let ephemeral = spec.field("ephemeralContainers");
    if !ephemeral.is_empty() {
        errors.forbidden(&ephemeral, "ephemeral containers not allowed in pod template");
    }
}

/// Defaults of a PersistentVolumeClaim or its template.
pub(crate) fn default_claim(claim: &mut Value) {
    persistent_volume::default_claim(claim);
}

/// Validates the spec of a PersistentVolumeClaim or its template.
pub(crate) fn validate_claim(at: &At, errors: &mut Errors) {
    persistent_volume::validate_claim_spec(&at.field("spec"), errors);
}

/// Defaults of a pod's spec, in templates and in pods.
pub(crate) fn default_spec(spec: &mut Value) {
    spec.set_default("restartPolicy", "Always");
    spec.set_default("dnsPolicy", "ClusterFirst");
    spec.set_default("terminationGracePeriodSeconds", 30);
    spec.set_default("schedulerName", "default-scheduler");
    spec.set_default("securityContext", json!({}));
    mirror_service_account(spec);
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        spec.list_mut(list).for_each(default_container);
    }
    spec.list_mut("volumes").for_each(volumes::default_volume);
    quantity::canonicalize_list(spec.get_mut("overhead"));
    default_resources(spec.get_mut("resources"));
}

/// `serviceAccount` is the old name of `serviceAccountName`, which takes precedence.
fn mirror_service_account(spec: &mut Value) {
    let name = match spec.text(&["serviceAccountName"]) {
        "" => spec.text(&["serviceAccount"]).to_owned(),
        name => name.to_owned(),
    };
    if !name.is_empty() {
        spec.map().insert("serviceAccountName".into(), name.clone().into());
        spec.map().insert("serviceAccount".into(), name.into());
    }
}

fn default_container(container: &mut Value) {
    let policy = pull_policy(container.text(&["image"]));
    container.set_default("imagePullPolicy", policy);
    container.set_default("terminationMessagePath", "/dev/termination-log");
    container.set_default("terminationMessagePolicy", "File");
    container.set_default("resources", json!({}));
    default_resources(container.get_mut("resources"));
    for port in container.list_mut("ports") {
        port.set_default("protocol", "TCP");
    }
    for variable in container.list_mut("env") {
        if let Some(from) = variable.get_mut("valueFrom") {
            default_reference(from);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe).filter(|probe| probe.is_object()) {
            default_probe(probe);
        }
    }
    for hook in ["postStart", "preStop"] {
        let handler = container.get_mut("lifecycle").and_then(|lifecycle| lifecycle.get_mut(hook));
        if let Some(handler) = handler {
            default_http_get(handler);
        }
    }
}

fn default_resources(resources: Option<&mut Value>) {
    if let Some(resources) = resources {
        quantity::canonicalize_list(resources.get_mut("requests"));
        quantity::canonicalize_list(resources.get_mut("limits"));
    }
}

/// Defaults of a downward API reference, in variables and files.
pub(super) fn default_reference(from: &mut Value) {
    if let Some(field) = from.get_mut("fieldRef").filter(|field| field.is_object()) {
        field.set_default("apiVersion", "v1");
    }
    if let Some(resource) = from.get_mut("resourceFieldRef").filter(|field| field.is_object()) {
        resource.set_default("divisor", "0");
        quantity::canonicalize(resource.get_mut("divisor"));
    }
    if let Some(key) = from.get_mut("fileKeyRef").filter(|field| field.is_object()) {
        key.set_default("optional", false);
    }
}

fn default_probe(probe: &mut Value) {
    // Zero means "not set" here.
    for (field, value) in [
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ] {
        if probe.at(&[field]).and_then(Value::as_i64).unwrap_or_default() == 0 {
            probe.map().insert(field.into(), value.into());
        }
    }
    default_http_get(probe);
    if let Some(grpc) = probe.get_mut("grpc").filter(|grpc| grpc.is_object()) {
        grpc.set_default("service", "");
    }
}

fn default_http_get(handler: &mut Value) {
    if let Some(get) = handler.get_mut("httpGet").filter(|get| get.is_object()) {
        for (field, value) in [("path", "/"), ("scheme", "HTTP")] {
            if get.text(&[field]).is_empty() {
                get.map().insert(field.into(), value.into());
            }
        }
    }
}

/// Images with the tag `latest` are always pulled.
pub(super) fn pull_policy(image: &str) -> &'static str {
    if image::tag(image) == Some("latest") { "Always" } else { "IfNotPresent" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_147_images_with_the_tag_latest_are_always_pulled() {
        let both = format!("nginx:latest@sha256:{}", "0a".repeat(32));
        for (image, policy) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("localhost:5000/nginx", "Always"),
            ("nginx:1.27", "IfNotPresent"),
            ("nginx@sha256:00", "IfNotPresent"),
            (&both, "Always"),
            ("not an image", "IfNotPresent"),
            ("localhost:5000/nginx:1", "IfNotPresent"),
            ("", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }

    #[test]
    fn a_147_templates_get_their_defaults() {
        let mut template = json!({"spec": {
            "serviceAccount": "robot",
            "containers": [{
                "name": "app",
                "image": "app:1",
                "ports": [{"containerPort": 80}],
                "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "resources": {"limits": {"cpu": "0.5"}},
                "readinessProbe": {"httpGet": {"port": 80}},
                "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
            }],
            "volumes": [{"name": "tmp"}],
        }});
        default_template(&mut template);
        let expected = json!({"spec": {
            "serviceAccount": "robot",
            "serviceAccountName": "robot",
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "terminationGracePeriodSeconds": 30,
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "containers": [{
                "name": "app",
                "image": "app:1",
                "imagePullPolicy": "IfNotPresent",
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "env": [{"name": "N", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
                "resources": {"limits": {"cpu": "500m"}},
                "readinessProbe": {
                    "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
                    "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
                },
                "lifecycle": {"preStop": {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}}},
            }],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        }});
        assert_eq!(template, expected);
        let once = template.clone();
        default_template(&mut template);
        assert_eq!(template, once, "defaulting again changes nothing");
    }
}
