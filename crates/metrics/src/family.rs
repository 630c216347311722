//! The description of a metric: name, kind, labels and help text.

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Only increases.
    Counter,
    /// A current value.
    Gauge,
    /// A distribution, mostly of durations in seconds; with the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    /// A metric without labels is shown as zero from the start.
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

pub const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { name, kind: Kind::Counter, labels, help }
}

pub const fn gauge(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { name, kind: Kind::Gauge, labels, help }
}

pub const fn histogram(
    name: &'static str,
    buckets: &'static [f64],
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { name, kind: Kind::Histogram(buckets), labels, help }
}
