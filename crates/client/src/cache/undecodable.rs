//! Skips objects that the server stores and this program cannot decode.
//!
//! One such object must not stop a cache of its kind. The cache keeps the last version that it could decode, because
//! components act on a missing object: a node would terminate the pod.

use crate::ObjectKey;
use metrics::{Family, Registry, counter};
use serde::Deserialize;
use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

/// Objects per cache that a warning is logged for. Later ones are only counted.
const WARNED_MAX: usize = 1000;

const SKIPPED: &str = "landfall_client_undecodable_objects_total";

const CATALOGUE: &[Family] = &[counter(
    SKIPPED,
    &["resource"],
    "Objects in a list or watch that could not be decoded and were skipped, by resource.",
)];

static METRICS: LazyLock<Arc<Registry>> = LazyLock::new(|| Arc::new(Registry::new(CATALOGUE)));

/// Metrics of all clients of this process.
pub fn metrics() -> Arc<Registry> {
    METRICS.clone()
}

#[derive(Deserialize)]
struct ObjectWithIdentity {
    metadata: Identity,
}

/// The metadata that identifies an object.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Identity {
    name: String,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    pub(super) uid: Option<String>,
    #[serde(default)]
    pub(super) resource_version: Option<String>,
}

impl Identity {
    pub(super) fn read(text: &str) -> serde_json::Result<Identity> {
        Ok(serde_json::from_str::<ObjectWithIdentity>(text)?.metadata)
    }

    pub(super) fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace.as_deref().unwrap_or_default(), &self.name)
    }
}

/// Counts every skipped version and logs one warning per object.
#[derive(Default)]
pub(super) struct SkipLog {
    warned: HashSet<ObjectKey>,
}

impl SkipLog {
    pub(super) fn skipped(&mut self, resource: &str, which: &Identity, error: &serde_json::Error) {
        METRICS.add(SKIPPED, &[("resource", resource)], 1);
        let key = which.key();
        if self.warned.len() < WARNED_MAX && self.warned.insert(key.clone()) {
            tracing::warn!(
                resource, object = %key, %error,
                "cannot decode this object; skipping it until it changes"
            );
        }
    }

    /// A later object of this name gets its own warning.
    pub(super) fn forget(&mut self, key: &ObjectKey) {
        self.warned.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::Error as _;

    #[test]
    fn one_warning_per_object_and_a_bounded_number_in_total() {
        let mut skip_log = SkipLog::default();
        let error = serde_json::Error::custom("no");
        let which = |n: usize| {
            Identity::read(&format!(r#"{{"metadata":{{"name":"o{n}"}},"spec":"odd"}}"#)).unwrap()
        };
        for n in (0..2 * WARNED_MAX).chain(0..10) {
            skip_log.skipped("oddities", &which(n), &error);
        }
        assert_eq!(skip_log.warned.len(), WARNED_MAX);
        skip_log.forget(&which(3).key());
        assert_eq!(skip_log.warned.len(), WARNED_MAX - 1);
        let mut page = ::metrics::Page::default();
        metrics().write(&mut page, |_| true);
        let text = page.into_text();
        assert!(text.contains(&format!("{SKIPPED}{{resource=\"oddities\"}} 2010")), "{text}");
    }
}
