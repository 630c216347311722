//! Stores the values of metrics.
//!
//! A metric that is not in the catalogue is shown too, but without a help text.

use crate::page::{Labels, Page, text_of};
use crate::{Family, Kind};
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Duration;

/// Maximum number of samples per name, so that a mistake with labels cannot fill the memory.
const SAMPLES_MAX: usize = 10_000;

/// Default buckets, for durations in seconds.
const BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

pub struct Registry {
    families: Mutex<BTreeMap<&'static str, Metric>>,
}

struct Metric {
    kind: Kind,
    help: &'static str,
    samples: HashMap<String, Sample>,
}

enum Sample {
    Value(f64),
    Histogram { counts: Vec<u64>, sum: f64 },
}

impl Sample {
    fn zero(kind: Kind) -> Sample {
        match kind {
            Kind::Counter | Kind::Gauge => Sample::Value(0.0),
            Kind::Histogram(bounds) => {
                Sample::Histogram { counts: vec![0; bounds.len() + 1], sum: 0.0 }
            }
        }
    }
}

impl Registry {
    pub fn new(catalogue: &[Family]) -> Registry {
        let known = catalogue.iter().map(|family| {
            let mut samples = HashMap::new();
            if family.labels.is_empty() {
                samples.insert(String::new(), Sample::zero(family.kind));
            }
            (family.name, Metric { kind: family.kind, help: family.help, samples })
        });
        Registry { families: Mutex::new(known.collect()) }
    }

    /// Increases a counter, such as `kubelet_started_pods_total`.
    pub fn add(&self, name: &'static str, labels: Labels<'_>, by: u64) {
        self.change(name, Kind::Counter, labels, |_, sample| {
            if let Sample::Value(value) = sample {
                *value += by as f64;
            }
        });
    }

    /// Sets a gauge, such as `kubelet_working_pods`.
    pub fn set(&self, name: &'static str, labels: Labels<'_>, to: f64) {
        self.change(name, Kind::Gauge, labels, |_, sample| {
            if let Sample::Value(value) = sample {
                *value = to;
            }
        });
    }

    /// Adds a duration to a histogram, such as `kubelet_pod_start_duration_seconds`.
    pub fn observe(&self, name: &'static str, labels: Labels<'_>, took: Duration) {
        self.observe_number(name, labels, took.as_secs_f64());
    }

    /// Adds a number that is not a duration to a histogram.
    pub fn observe_number(&self, name: &'static str, labels: Labels<'_>, number: f64) {
        self.change(name, Kind::Histogram(BUCKETS), labels, |kind, sample| {
            let (Kind::Histogram(bounds), Sample::Histogram { counts, sum }) = (kind, sample)
            else {
                return;
            };
            let bucket = bounds.iter().position(|bound| number <= *bound).unwrap_or(bounds.len());
            counts[bucket] += 1;
            *sum += number;
        });
    }

    /// Drops all samples of a name, before its current values are set.
    pub fn clear(&self, name: &str) {
        if let Some(family) = self.families().get_mut(name) {
            family.samples.clear();
        }
    }

    /// Drops the samples with this label, such as those of a deleted pod.
    pub fn forget(&self, label: &'static str, value: &str) {
        let gone = text_of(&[(label, value)]);
        let (first, later) = (format!("{gone},"), format!(",{gone}"));
        for family in self.families().values_mut() {
            family.samples.retain(|labels, _| {
                let last = labels.strip_suffix(gone.as_str());
                let is_last = last.is_some_and(|before| before.is_empty() || before.ends_with(','));
                !is_last && !labels.starts_with(&first) && !labels.contains(&format!("{later},"))
            });
        }
    }

    /// Writes all metrics that have samples and whose name `is_selected`.
    pub fn write(&self, page: &mut Page, is_selected: impl Fn(&str) -> bool) {
        let families = self.families();
        for (name, family) in families.iter().filter(|(name, _)| is_selected(name)) {
            if family.samples.is_empty() {
                continue;
            }
            page.family(name, family.kind, family.help);
            let mut samples: Vec<(&String, &Sample)> = family.samples.iter().collect();
            samples.sort_by_key(|(labels, _)| *labels);
            for (labels, sample) in samples {
                match (sample, family.kind) {
                    (Sample::Histogram { counts, sum }, Kind::Histogram(bounds)) => {
                        page.buckets(name, labels, bounds, counts, *sum);
                    }
                    (Sample::Value(value), _) => page.value(name, labels, *value),
                    (Sample::Histogram { .. }, _) => {}
                }
            }
        }
    }

    fn families(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, Metric>> {
        self.families.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn change(
        &self,
        name: &'static str,
        kind: Kind,
        labels: Labels<'_>,
        change: impl FnOnce(Kind, &mut Sample),
    ) {
        let mut families = self.families();
        let family = families.entry(name).or_insert_with(|| Metric {
            kind,
            help: "",
            samples: HashMap::new(),
        });
        let key = text_of(labels);
        if family.samples.len() < SAMPLES_MAX || family.samples.contains_key(&key) {
            let kind = family.kind;
            change(kind, family.samples.entry(key).or_insert_with(|| Sample::zero(kind)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{counter, gauge, histogram, parse};

    const CATALOGUE: &[Family] = &[
        counter("kubelet_started_pods_total", &[], "Pods started."),
        gauge("kubelet_working_pods", &["lifecycle"], "Pods by\nlifecycle \\ state."),
        histogram("kubelet_pod_start_duration_seconds", &[0.025, 0.05], &[], "Of starts."),
        counter("prober_probe_total", &["pod", "result"], "Probes."),
    ];

    /// N-182: the Prometheus text format, line by line.
    #[test]
    fn n_182_metrics_are_written_in_the_prometheus_format() {
        let metrics = Registry::new(CATALOGUE);
        metrics.add("kubelet_started_pods_total", &[], 2);
        metrics.set("kubelet_working_pods", &[("lifecycle", "sync")], 3.0);
        metrics.observe("kubelet_pod_start_duration_seconds", &[], Duration::from_millis(30));
        metrics.observe("kubelet_pod_start_duration_seconds", &[], Duration::from_secs(30));
        metrics.add("prober_probe_total", &[("pod", "q\""), ("result", "failed")], 1);
        metrics.set("not_described", &[], 0.5);
        let mut page = Page::default();
        metrics.write(&mut page, |_| true);
        let text = page.into_text();
        for line in [
            "# HELP kubelet_started_pods_total Pods started.",
            "# TYPE kubelet_started_pods_total counter",
            "kubelet_started_pods_total 2",
            "# HELP kubelet_working_pods Pods by\\nlifecycle \\\\ state.",
            "kubelet_working_pods{lifecycle=\"sync\"} 3",
            "kubelet_pod_start_duration_seconds_bucket{le=\"0.025\"} 0",
            "kubelet_pod_start_duration_seconds_bucket{le=\"0.05\"} 1",
            "kubelet_pod_start_duration_seconds_bucket{le=\"+Inf\"} 2",
            "kubelet_pod_start_duration_seconds_sum 30.03",
            "kubelet_pod_start_duration_seconds_count 2",
            "prober_probe_total{pod=\"q\\\"\",result=\"failed\"} 1",
            "not_described 0.5",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
        parse(&text).unwrap();
    }

    #[test]
    fn samples_are_dropped_by_label() {
        let metrics = Registry::new(CATALOGUE);
        let probe = |pod: &str, result: &str| {
            metrics.add("prober_probe_total", &[("pod", pod), ("result", result)], 1);
        };
        probe("p", "failed");
        probe("pp", "failed");
        probe("q", "p");
        metrics.forget("pod", "p");
        let text = || {
            let mut page = Page::default();
            metrics.write(&mut page, |name| name.starts_with("prober_"));
            page.into_text()
        };
        let left = parse(&text()).unwrap();
        assert_eq!(left.len(), 2, "{left:?}");
        metrics.forget("result", "p");
        assert_eq!(parse(&text()).unwrap().len(), 1);
    }

    #[test]
    fn labels_cannot_fill_the_memory() {
        let metrics = Registry::new(CATALOGUE);
        for number in 0..SAMPLES_MAX + 10 {
            metrics.add("prober_probe_total", &[("pod", &number.to_string())], 1);
        }
        metrics.add("prober_probe_total", &[("pod", "0")], 1);
        let families = metrics.families();
        let samples = &families["prober_probe_total"].samples;
        assert_eq!(samples.len(), SAMPLES_MAX);
        assert!(matches!(samples["pod=\"0\""], Sample::Value(2.0)));
    }
}
