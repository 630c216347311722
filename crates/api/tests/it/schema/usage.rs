//! The schema of `metrics.k8s.io`: resource usage of nodes and pods. The generated types lack it, because
//! upstream serves it from a separate API server.

use serde_json::{Map, Value, json};

const PREFIX: &str = "io.k8s.metrics.pkg.apis.metrics.v1beta1";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const QUANTITY: &str = "#/definitions/io.k8s.apimachinery.pkg.api.resource.Quantity";

const DURATION: &str = "Duration is a span of time as text, such as 15.5s or 1m30s.";

/// The types by name.
pub(crate) fn types() -> Vec<(String, Value)> {
    vec![
        (format!("{PREFIX}.NodeMetrics"), node()),
        (format!("{PREFIX}.PodMetrics"), pod()),
        (format!("{PREFIX}.ContainerMetrics"), container()),
        // No other kind has one, so that the generated types do not bring it.
        (format!("{META}.Duration"), json!({"type": "string", "description": DURATION})),
    ]
}

/// The types that have a list kind.
pub(crate) fn listed() -> [String; 2] {
    [format!("{PREFIX}.NodeMetrics"), format!("{PREFIX}.PodMetrics")]
}

fn node() -> Value {
    let mut fields = measured("Always NodeMetrics.");
    fields.push(("usage", amounts(), "What it uses of each resource; memory is its working set."));
    object(
        "NodeMetrics is what a node used in a short while.",
        &["timestamp", "window", "usage"],
        &fields,
    )
}

fn pod() -> Value {
    let mut fields = measured("Always PodMetrics.");
    let container = json!({"$ref": format!("#/definitions/{PREFIX}.ContainerMetrics")});
    let containers = json!({"type": "array", "items": container});
    fields.push(("containers", containers, "What each container used in the same while."));
    object(
        "PodMetrics is what the containers of a pod used in a short while.",
        &["timestamp", "window", "containers"],
        &fields,
    )
}

fn container() -> Value {
    object(
        "ContainerMetrics is what one container of a pod uses.",
        &["name", "usage"],
        &[
            ("name", json!({"type": "string"}), "The container's name in its pod."),
            ("usage", amounts(), "What it uses of each resource; memory is its working set."),
        ],
    )
}

type Field = (&'static str, Value, &'static str);

fn measured(always: &'static str) -> Vec<Field> {
    let meta = |name: &str| json!({"$ref": format!("#/definitions/{META}.{name}")});
    vec![
        ("apiVersion", json!({"type": "string"}), "The version of the API this object is in."),
        ("kind", json!({"type": "string"}), always),
        ("metadata", meta("ObjectMeta"), "Name and labels of what was measured."),
        ("timestamp", meta("Time"), "When the measured while ended."),
        ("window", meta("Duration"), "How long it was."),
    ]
}

fn amounts() -> Value {
    json!({"type": "object", "additionalProperties": {"$ref": QUANTITY}})
}

fn object(description: &str, required: &[&str], fields: &[Field]) -> Value {
    let mut properties = Map::new();
    for (name, schema, description) in fields {
        let mut schema = schema.clone();
        schema["description"] = (*description).into();
        properties.insert((*name).to_owned(), schema);
    }
    json!({"description": description, "type": "object", "properties": properties, "required": required})
}
