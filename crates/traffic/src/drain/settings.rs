//! Whether a pod has acknowledged drain, and its settings: annotations of the pod, of its namespace, or the node's default.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use std::collections::BTreeMap;
use std::time::Duration;

/// `acknowledged`, or `upstream` to exempt a pod or a namespace.
pub(crate) const MODE: &str = "landfall.dev/drain";
/// The longest wait, such as `10s`. The grace period is always a limit.
pub(crate) const TIMEOUT: &str = "landfall.dev/drain-timeout";

/// Longer limits count as this: moments that are too far away cannot be computed.
const TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

/// When containers are stopped, if no annotation says it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Drain {
    /// At once, as Kubernetes does.
    #[default]
    Upstream,
    /// After nothing sends new connections to the pod.
    Acknowledged,
}

/// How a pod with acknowledged drain drains.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) timeout: Option<Duration>,
}

/// None: the pod does not have acknowledged drain. An annotation of the pod counts more than one of its namespace. A value
/// that cannot be read counts as missing.
pub(crate) fn settings(
    pod: &Pod,
    namespace: Option<&Namespace>,
    default: Drain,
) -> Option<Settings> {
    let of_pod = pod.metadata.annotations.as_ref();
    let of_namespace = namespace.and_then(|namespace| namespace.metadata.annotations.as_ref());
    let mode = read(of_pod, MODE, mode).or_else(|| read(of_namespace, MODE, mode));
    if mode.unwrap_or(default) == Drain::Upstream {
        return None;
    }
    let timeout = read(of_pod, TIMEOUT, duration).or_else(|| read(of_namespace, TIMEOUT, duration));
    Some(Settings { timeout })
}

fn read<T>(
    annotations: Option<&BTreeMap<String, String>>,
    name: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    let text = annotations?.get(name)?;
    let value = parse(text.trim());
    if value.is_none() {
        tracing::warn!(
            annotation = name,
            value = text,
            "the annotation is ignored: its value is not valid"
        );
    }
    value
}

fn mode(text: &str) -> Option<Drain> {
    match text {
        "acknowledged" => Some(Drain::Acknowledged),
        "upstream" => Some(Drain::Upstream),
        _ => None,
    }
}

/// `500ms`, `10s`, `1m30s`
fn duration(text: &str) -> Option<Duration> {
    let time: Duration = text.parse::<SignedDuration>().ok()?.try_into().ok()?;
    Some(time.min(TIMEOUT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Drain::{Acknowledged, Upstream};
    use serde_json::json;

    #[test]
    fn the_pod_decides_before_the_namespace_and_the_namespace_before_the_node() {
        let yes = json!({ MODE: "acknowledged" });
        let no = json!({ MODE: "upstream" });
        for (pod, namespace, default, expected) in [
            (json!({}), json!({}), Upstream, false),
            (json!({}), json!({}), Acknowledged, true),
            (yes.clone(), json!({}), Upstream, true),
            (json!({}), yes.clone(), Upstream, true),
            (no.clone(), yes.clone(), Acknowledged, false),
            (yes.clone(), no.clone(), Upstream, true),
            (json!({}), no.clone(), Acknowledged, false),
            (json!({ MODE: "yes please" }), yes, Upstream, true),
        ] {
            let pod: Pod =
                typed::from_value(json!({ "metadata": { "annotations": pod } })).unwrap();
            let namespace: Namespace =
                typed::from_value(json!({ "metadata": { "annotations": namespace } })).unwrap();
            let found = settings(&pod, Some(&namespace), default);
            assert_eq!(found.is_some(), expected, "{pod:?} {namespace:?} {default:?}");
        }
    }

    #[test]
    fn durations_are_written_as_in_kubernetes() {
        for (text, millis) in [
            ("500ms", Some(500)),
            ("10s", Some(10_000)),
            ("1m30s", Some(90_000)),
            ("9223372036854775807s", Some(86_400_000)),
            ("-1s", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(duration(text), millis.map(Duration::from_millis), "{text}");
        }
    }
}
