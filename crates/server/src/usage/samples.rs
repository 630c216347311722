//! The last two samples of one node; CPU usage is the rate between them (C-138).
//!
//! Pure: a page of samples in, usage out. Upstream: metrics-server's storage.

use super::scrape::EVERY;
use jiff::{SignedDuration, Timestamp};
use metrics::ParsedSample;
use std::collections::{BTreeMap, HashMap};

/// A new container was at zero when it started, so one sample is enough, but not over less time than this.
const FRESH_MIN: SignedDuration = SignedDuration::from_secs(10);
/// An older container should have an earlier sample.
const FRESH_MAX: SignedDuration = SignedDuration::from_secs(2 * EVERY.as_secs() as i64);

/// The usage in the time up to `at`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Used {
    pub(super) at: Timestamp,
    pub(super) window: SignedDuration,
    pub(super) cpu_nanocores: u64,
    /// The working set.
    pub(super) memory_bytes: u64,
}

/// A counter and a gauge at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    at: Timestamp,
    cpu_seconds: f64,
    memory_bytes: u64,
    started: Option<Timestamp>,
}

/// The newest point, and an earlier one for the rate.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Track {
    last: Point,
    before: Option<Point>,
}

impl Track {
    fn of(new: Point, known: Option<&Track>) -> Track {
        let same_run = |known: &&Track| {
            let began = new.started.is_none_or(|started| started < known.last.at);
            began && known.last.cpu_seconds <= new.cpu_seconds
        };
        match known.filter(same_run) {
            // The node has not measured again.
            Some(known) if new.at <= known.last.at => *known,
            Some(known) => Track { last: new, before: Some(known.last) },
            None => Track { last: new, before: new.start() },
        }
    }

    fn used(&self) -> Option<Used> {
        let (last, before) = (self.last, self.before?);
        let window = last.at.duration_since(before.at);
        let cores = (last.cpu_seconds - before.cpu_seconds) / window.as_secs_f64();
        (window.is_positive() && cores.is_finite()).then(|| Used {
            at: last.at,
            window,
            cpu_nanocores: (cores.max(0.0) * 1e9).round() as u64,
            memory_bytes: last.memory_bytes,
        })
    }
}

impl Point {
    /// The point at which the container started, if it is new.
    fn start(&self) -> Option<Point> {
        let started = self.started?;
        let age = self.at.duration_since(started);
        let fresh = FRESH_MIN <= age && age < FRESH_MAX;
        fresh.then_some(Point { at: started, cpu_seconds: 0.0, ..*self })
    }
}

/// Containers by name.
type Containers = BTreeMap<String, Track>;

#[derive(Debug, Default)]
pub(super) struct NodeSamples {
    node: Option<Track>,
    /// By `namespace/name`.
    pods: HashMap<String, Containers>,
}

impl NodeSamples {
    /// The samples after a new page. Containers that the page does not contain are dropped.
    pub(super) fn after(&self, page: &[ParsedSample]) -> NodeSamples {
        let mut node = Half::default();
        let mut halves: HashMap<String, BTreeMap<String, Half>> = HashMap::new();
        for sample in page {
            match sample.name.as_str() {
                "node_cpu_usage_seconds_total" => node.cpu(sample),
                "node_memory_working_set_bytes" => node.memory = Some(sample.value),
                name if name.starts_with("container_") => {
                    let label = |name: &str| sample.labels.get(name).map_or("", String::as_str);
                    let pod = format!("{}/{}", label("namespace"), label("pod"));
                    let containers = halves.entry(pod).or_default();
                    let half = containers.entry(label("container").to_owned()).or_default();
                    match name {
                        "container_cpu_usage_seconds_total" => half.cpu(sample),
                        "container_memory_working_set_bytes" => half.memory = Some(sample.value),
                        "container_start_time_seconds" => half.started = seconds(sample.value),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        let pods = halves.into_iter().map(|(pod, halves)| {
            let known = self.pods.get(&pod);
            let tracks = halves.into_iter().filter_map(|(container, half)| {
                let before = known.and_then(|known| known.get(&container));
                Some((container, Track::of(half.whole()?, before)))
            });
            let tracks: Containers = tracks.collect();
            (pod, tracks)
        });
        let pods = pods.filter(|(_, tracks)| !tracks.is_empty()).collect();
        NodeSamples { node: node.whole().map(|new| Track::of(new, self.node.as_ref())), pods }
    }

    pub(super) fn node(&self) -> Option<Used> {
        self.node?.used()
    }

    /// The usage of all containers, or none while one of them has no usage yet: the sum would be too low.
    pub(super) fn pod(&self, name: &str) -> Option<Vec<(&str, Used)>> {
        let containers = self.pods.get(name)?.iter();
        containers.map(|(name, track)| Some((name.as_str(), track.used()?))).collect()
    }
}

/// A point that is not completely read yet.
#[derive(Default)]
struct Half {
    at: Option<Timestamp>,
    cpu: Option<f64>,
    memory: Option<f64>,
    started: Option<Timestamp>,
}

impl Half {
    fn cpu(&mut self, sample: &ParsedSample) {
        self.cpu = Some(sample.value);
        self.at = sample.at.and_then(|at| Timestamp::from_millisecond(at).ok());
    }

    /// None for a container that uses nothing: it has terminated. Upstream omits it too.
    fn whole(&self) -> Option<Point> {
        let (at, cpu_seconds, memory) = (self.at?, self.cpu?, self.memory?);
        (cpu_seconds.is_finite() && memory > 0.0).then_some(Point {
            at,
            cpu_seconds,
            memory_bytes: memory as u64,
            started: self.started,
        })
    }
}

fn seconds(value: f64) -> Option<Timestamp> {
    Timestamp::from_millisecond((value * 1000.0) as i64).ok().filter(|_| value > 0.0)
}

#[cfg(test)]
mod tests;
