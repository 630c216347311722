//! What the agent counts about itself, as Prometheus text (N-182).
//!
//! Whoever has something to count names it here as upstream does; the endpoint shows it. What can
//! be seen by looking (pods, containers) is not counted but looked at (`scrape`).

use http::Method;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::time::Duration;

/// Upper bounds of buckets, in seconds. Bring-ups and pulls take longer than requests do.
const BUCKETS: [f64; 14] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0];
/// Of one name. Labels come from pods, of which there are few; a mistake must not fill the memory.
const SAMPLES_MAX: usize = 10_000;

pub type Labels<'a> = &'a [(&'static str, &'a str)];

#[derive(Default)]
pub struct Metrics {
    families: Mutex<BTreeMap<&'static str, Family>>,
}

struct Family {
    kind: &'static str,
    samples: BTreeMap<String, Sample>,
}

enum Sample {
    Value(f64),
    Histogram { counts: [u64; BUCKETS.len() + 1], sum: f64 },
}

impl Metrics {
    /// Counts something: `kubelet_started_pods_total`.
    pub fn add(&self, name: &'static str, labels: Labels<'_>, by: u64) {
        self.change(name, "counter", labels, |sample| match sample {
            Sample::Value(value) => *value += by as f64,
            Sample::Histogram { .. } => {}
        });
    }

    /// Says how much there is now: `kubelet_working_pods`.
    pub fn set(&self, name: &'static str, labels: Labels<'_>, to: f64) {
        self.change(name, "gauge", labels, |sample| *sample = Sample::Value(to));
    }

    /// Notes how long something took: `kubelet_pod_start_duration_seconds`.
    pub fn observe(&self, name: &'static str, labels: Labels<'_>, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BUCKETS.iter().position(|bound| seconds <= *bound).unwrap_or(BUCKETS.len());
        self.change(name, "histogram", labels, |sample| {
            if let Sample::Value(_) = sample {
                *sample = Sample::Histogram { counts: [0; BUCKETS.len() + 1], sum: 0.0 };
            }
            if let Sample::Histogram { counts, sum } = sample {
                counts[bucket] += 1;
                *sum += seconds;
            }
        });
    }

    /// Drops the samples with this label, such as those of a pod that is gone.
    pub fn forget(&self, label: &'static str, value: &str) {
        let gone = text_of(&[(label, value)]);
        let mut families = self.families.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for family in families.values_mut() {
            family.samples.retain(|labels, _| {
                !labels.split("\",").any(|one| {
                    one == gone || one.trim_end_matches('"') == gone.trim_end_matches('"')
                })
            });
        }
    }

    pub(super) fn request(&self, method: &Method, path: &str, took: Duration) {
        let path = match path.split('/').find(|segment| !segment.is_empty()).unwrap_or_default() {
            // Known paths only: callers could think of any number of others.
            known @ ("pods" | "runningpods" | "healthz" | "configz" | "metrics" | "stats"
            | "containerLogs" | "exec" | "attach" | "run" | "portForward" | "logs"
            | "checkpoint") => known,
            _ => "other",
        };
        let long = matches!(path, "containerLogs" | "exec" | "attach" | "portForward");
        let labels: Labels<'_> = &[
            ("long_running", if long { "true" } else { "false" }),
            ("method", if method == Method::GET { "GET" } else { "other" }),
            ("path", path),
            ("server_type", "readwrite"),
        ];
        self.add("kubelet_http_requests_total", labels, 1);
        self.observe("kubelet_http_requests_duration_seconds", labels, took);
    }

    fn change(
        &self,
        name: &'static str,
        kind: &'static str,
        labels: Labels<'_>,
        change: impl FnOnce(&mut Sample),
    ) {
        let mut families = self.families.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let family =
            families.entry(name).or_insert_with(|| Family { kind, samples: BTreeMap::new() });
        let key = text_of(labels);
        if family.samples.len() < SAMPLES_MAX || family.samples.contains_key(&key) {
            change(family.samples.entry(key).or_insert(Sample::Value(0.0)));
        }
    }

    /// Everything whose name is wanted.
    pub(super) fn write(&self, text: &mut String, wanted: impl Fn(&str) -> bool) {
        let families = self.families.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (name, family) in families.iter().filter(|(name, _)| wanted(name)) {
            let _ = writeln!(text, "# TYPE {name} {}", family.kind);
            for (labels, sample) in &family.samples {
                let _ = write_sample(text, name, labels, sample);
            }
        }
    }
}

fn write_sample(text: &mut String, name: &str, labels: &str, sample: &Sample) -> std::fmt::Result {
    let braced = |labels: &str| match labels {
        "" => String::new(),
        labels => format!("{{{labels}}}"),
    };
    match sample {
        Sample::Value(value) => writeln!(text, "{name}{} {value}", braced(labels)),
        Sample::Histogram { counts, sum } => {
            let comma = if labels.is_empty() { "" } else { "," };
            let mut total = 0;
            for (place, count) in counts.iter().enumerate() {
                total += count;
                let bound = BUCKETS.get(place).map_or("+Inf".to_owned(), f64::to_string);
                writeln!(text, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {total}")?;
            }
            writeln!(text, "{name}_sum{} {sum}", braced(labels))?;
            writeln!(text, "{name}_count{} {total}", braced(labels))
        }
    }
}

/// `a="x",b="y"`
pub(super) fn text_of(labels: Labels<'_>) -> String {
    let mut text = String::new();
    for (name, value) in labels {
        let comma = if text.is_empty() { "" } else { "," };
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(text, "{comma}{name}=\"{value}\"");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_182_what_is_counted_is_shown_by_name_and_labels() {
        let metrics = Metrics::default();
        metrics.add("kubelet_started_pods_total", &[], 2);
        metrics.set("kubelet_working_pods", &[("lifecycle", "sync")], 3.0);
        let took = Duration::from_millis(30);
        metrics.observe("kubelet_pod_start_duration_seconds", &[], took);
        metrics.add("prober_probe_total", &[("pod", "p"), ("result", "failed")], 1);
        metrics.add("prober_probe_total", &[("pod", "q\""), ("result", "failed")], 1);
        metrics.forget("pod", "p");
        let mut text = String::new();
        metrics.write(&mut text, |_| true);
        for line in [
            "# TYPE kubelet_started_pods_total counter",
            "kubelet_started_pods_total 2",
            "kubelet_working_pods{lifecycle=\"sync\"} 3",
            "kubelet_pod_start_duration_seconds_bucket{le=\"0.025\"} 0",
            "kubelet_pod_start_duration_seconds_bucket{le=\"0.05\"} 1",
            "kubelet_pod_start_duration_seconds_count 1",
            "prober_probe_total{pod=\"q\\\"\",result=\"failed\"} 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("pod=\"p\""), "{text}");
    }
}
