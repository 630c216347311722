//! Reads the workload of a forecast from a manifest in YAML or JSON.

use crate::error::{Error, Result};
use crate::workload::Workload;
use serde_json::Value;

/// Documents of one file that are looked at.
const DOCUMENTS_MAX: usize = 1000;

impl Workload {
    /// The first Deployment or StatefulSet of the documents.
    pub fn from_manifest(text: &str) -> Result<Workload> {
        for document in documents(text).into_iter().take(DOCUMENTS_MAX) {
            let bad = |why: String| Error::Manifest(why);
            let read =
                api::yaml::to_json(document.as_bytes()).map_err(|error| bad(error.to_string()))?;
            let mut value = read.value;
            let kind = value["kind"].as_str().unwrap_or_default().to_owned();
            if value["metadata"]["namespace"].is_null() && value["metadata"].is_object() {
                value["metadata"]["namespace"] = "default".into();
            }
            match kind.as_str() {
                "Deployment" => return decode(value).map(Workload::of_deployment),
                "StatefulSet" => return decode(value).map(Workload::of_stateful_set),
                _ => {}
            }
        }
        Err(Error::Manifest("it contains no Deployment and no StatefulSet".to_owned()))
    }
}

fn decode<T: typed::Typed>(value: Value) -> Result<T> {
    typed::from_value(value).map_err(|error| Error::Manifest(error.to_string()))
}

/// The documents of a file: parts between lines that begin with three dashes.
fn documents(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for line in text.lines() {
        match line.strip_prefix("---") {
            Some(rest) if rest.is_empty() || rest.starts_with([' ', '\t']) => {
                all.push(String::new())
            }
            _ => {
                if let Some(last) = all.last_mut() {
                    last.push_str(line);
                    last.push('\n');
                }
            }
        }
    }
    all.retain(|document| !document.trim().is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {name: web}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 5
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: 'x:1'}]}
";

    #[test]
    fn the_workload_is_found_among_other_documents() {
        let workload = Workload::from_manifest(WEB).unwrap();
        assert_eq!(workload.id.to_string(), "Deployment default/web");
        assert_eq!(workload.replicas, 5);
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        for (text, words) in [
            ("kind: Service", "no Deployment"),
            ("", "no Deployment"),
            ("a: [", "cannot be used"),
            ("kind: Deployment\nmetadata: {name: web}\nspec: 5", "cannot be used"),
        ] {
            let message = Workload::from_manifest(text).unwrap_err().to_string();
            assert!(message.contains(words), "{text}: {message}");
        }
    }
}
