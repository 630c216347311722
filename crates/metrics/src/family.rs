//! What a metric is: its name, what kind of number, what its labels are, and what it says.

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Only ever grows.
    Counter,
    /// How much there is now.
    Gauge,
    /// How often which duration; these are the upper bounds of its buckets, in seconds.
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
    /// One without labels is shown from the start, as zero.
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
