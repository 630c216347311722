//! Descriptions of types and fields, for OpenAPI and `kubectl explain`.
//!
//! `make schema` writes them compressed; they are unpacked on first use.

use flate2::read::GzDecoder;
use std::collections::HashMap;
use std::io::Read as _;
use std::sync::LazyLock;

const DESCRIPTIONS: &[u8] = include_bytes!("descriptions.gz");

/// By `type` or `type field`.
static DESCRIBED: LazyLock<HashMap<String, String>> = LazyLock::new(|| {
    let mut text = String::new();
    GzDecoder::new(DESCRIPTIONS).read_to_string(&mut text).expect("packed by `make schema`");
    text.lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(key, json)| {
            (key.to_owned(), serde_json::from_str(json).expect("packed by `make schema`"))
        })
        .collect()
});

/// The description of a type, by its full name.
pub fn of_type(name: &str) -> Option<String> {
    DESCRIBED.get(name).cloned()
}

/// The description of a field.
pub fn of_field(type_name: &str, field: &str) -> Option<String> {
    DESCRIBED.get(&format!("{type_name} {field}")).cloned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn pods_and_their_fields_are_described() {
        assert!(super::of_type("io.k8s.api.core.v1.Pod").unwrap().contains("containers"));
        let replicas = super::of_field("io.k8s.api.apps.v1.DeploymentSpec", "replicas").unwrap();
        assert!(replicas.contains("pods"));
        assert_eq!(super::of_field("io.k8s.api.core.v1.Pod", "bogus"), None);
    }
}
