//! The delay with which changes reach the packet rules, to imitate slow proxies: the node's option, or an annotation of its
//! Node object, which can be changed at any time.

use client::{ObjectKey, Queue};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// `400ms`, or `100ms-2s`: a delay is drawn for each change. `0s`: none, whatever the node's option says.
const ANNOTATION: &str = "landfall.dev/proxy-delay";
/// Longer delays count as this: a mistyped one should not stop all traffic.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// Clones share the current value.
#[derive(Clone)]
pub(super) struct Delay {
    option: Option<RangeInclusive<Duration>>,
    current: Arc<Mutex<Option<RangeInclusive<Duration>>>>,
    /// The last text that could not be read, so that it is reported once.
    invalid: Arc<Mutex<String>>,
}

impl Delay {
    pub(super) fn new(option: Option<RangeInclusive<Duration>>) -> Delay {
        Delay { current: Arc::new(Mutex::new(option.clone())), option, invalid: Arc::default() }
    }

    pub(super) fn observe(&self, node: &Node) {
        let annotations = node.metadata.annotations.as_ref();
        let annotation = annotations.and_then(|annotations| annotations.get(ANNOTATION));
        let wanted = match annotation.map(|text| (text, parse(text))) {
            None => self.option.clone(),
            Some((_, Some(range))) => Some(range).filter(|range| *range.end() > Duration::ZERO),
            Some((text, None)) => {
                self.report_invalid(text);
                self.option.clone()
            }
        };
        let mut current = self.current();
        if *current != wanted {
            tracing::info!(delay = ?wanted, "the delay of the Service proxy changed");
            *current = wanted;
        }
    }

    fn report_invalid(&self, text: &str) {
        let mut invalid = self.invalid.lock().unwrap_or_else(PoisonError::into_inner);
        if *invalid != text {
            text.clone_into(&mut invalid);
            tracing::warn!(
                annotation = ANNOTATION,
                value = text,
                "the annotation is ignored: write a time such as 400ms, or a range such as 100ms-2s"
            );
        }
    }

    /// The keys to queue now; with a delay, they are queued later.
    pub(super) fn hold(&self, keys: Vec<ObjectKey>, queue: &Queue<ObjectKey>) -> Vec<ObjectKey> {
        let Some(range) = self.current().clone() else { return keys };
        let spread = range.end().saturating_sub(*range.start());
        for key in keys {
            queue.add_after(key, *range.start() + spread.mul_f64(clock::random_fraction()));
        }
        Vec::new()
    }

    fn current(&self) -> MutexGuard<'_, Option<RangeInclusive<Duration>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(text: &str) -> Option<RangeInclusive<Duration>> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let time = |text: &str| -> Option<Duration> {
        let time: Duration = text.trim().parse::<SignedDuration>().ok()?.try_into().ok()?;
        Some(time.min(DELAY_MAX))
    };
    let range = time(from)?..=time(to)?;
    (range.start() <= range.end()).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(annotation: Option<&str>) -> Node {
        let annotations = annotation.map(|text| json!({ ANNOTATION: text })).unwrap_or(json!({}));
        typed::from_value(json!({ "metadata": { "name": "n1", "annotations": annotations } }))
            .unwrap()
    }

    #[test]
    fn the_annotation_of_the_node_overrides_the_option() {
        let millis = |from, to| Some(Duration::from_millis(from)..=Duration::from_millis(to));
        let delay = Delay::new(millis(300, 300));
        for (annotation, expected) in [
            (None, millis(300, 300)),
            (Some("400ms"), millis(400, 400)),
            (Some("100ms-2s"), millis(100, 2000)),
            (Some("0s"), None),
            (Some("2s-1s"), millis(300, 300)),
            (Some("slow"), millis(300, 300)),
            (Some("10m"), millis(60_000, 60_000)),
            (None, millis(300, 300)),
        ] {
            delay.observe(&node(annotation));
            assert_eq!(*delay.current(), expected, "{annotation:?}");
        }
    }
}
