//! Eviction thresholds, and how long a condition stays true (N-115, T-NODE-79, T-NODE-81). Pure.

use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// In order of urgency: first memory, where the kernel would start to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Signal {
    MemoryAvailable,
    NodefsAvailable,
    NodefsInodesFree,
    ImagefsAvailable,
    ImagefsInodesFree,
    PidAvailable,
}

const SIGNALS: [Signal; 6] = [
    Signal::MemoryAvailable,
    Signal::NodefsAvailable,
    Signal::NodefsInodesFree,
    Signal::ImagefsAvailable,
    Signal::ImagefsInodesFree,
    Signal::PidAvailable,
];

impl Signal {
    /// The name in thresholds and metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Signal::MemoryAvailable => "memory.available",
            Signal::NodefsAvailable => "nodefs.available",
            Signal::NodefsInodesFree => "nodefs.inodesFree",
            Signal::ImagefsAvailable => "imagefs.available",
            Signal::ImagefsInodesFree => "imagefs.inodesFree",
            Signal::PidAvailable => "pid.available",
        }
    }

    /// The resource in messages.
    pub(super) fn resource(self) -> &'static str {
        match self {
            Signal::MemoryAvailable => "memory",
            Signal::NodefsAvailable | Signal::ImagefsAvailable => "ephemeral-storage",
            Signal::NodefsInodesFree | Signal::ImagefsInodesFree => "inodes",
            Signal::PidAvailable => "pids",
        }
    }

    pub(super) fn is_disk(self) -> bool {
        !matches!(self, Signal::MemoryAvailable | Signal::PidAvailable)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Amount {
    Bytes(u64),
    /// Percentage of the capacity.
    Percent(u8),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Threshold {
    pub(super) signal: Signal,
    pub(super) below: Amount,
    /// For a soft threshold: how long it must be met.
    pub(super) soft: Option<Duration>,
}

/// Upstream's hard thresholds (N-115).
pub(super) fn default_thresholds() -> Vec<Threshold> {
    let hard = |signal, below| Threshold { signal, below, soft: None };
    vec![
        hard(Signal::MemoryAvailable, Amount::Bytes(100 << 20)),
        hard(Signal::NodefsAvailable, Amount::Percent(10)),
        hard(Signal::NodefsInodesFree, Amount::Percent(5)),
        hard(Signal::ImagefsAvailable, Amount::Percent(15)),
        hard(Signal::ImagefsInodesFree, Amount::Percent(5)),
    ]
}

/// Parses `memory.available<100Mi,nodefs.available<10%`. An empty text means no thresholds.
pub(super) fn parse(text: &str) -> Result<Vec<Threshold>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(parse_one).collect()
}

fn parse_one(text: &str) -> Result<Threshold, String> {
    let malformed = || {
        format!(
            "{text:?} is not a threshold such as memory.available<100Mi or nodefs.available<10%"
        )
    };
    let (name, amount) = text.split_once('<').ok_or_else(malformed)?;
    let signal = SIGNALS.into_iter().find(|signal| signal.name() == name.trim());
    let signal = signal.ok_or_else(malformed)?;
    let below = match amount.trim().strip_suffix('%') {
        Some(percent) => Amount::Percent(percent.parse().map_err(|_| malformed())?),
        None => {
            let amount = api::quantity::Quantity::parse(amount.trim()).map_err(|_| malformed())?;
            Amount::Bytes(u64::try_from(amount.value()).map_err(|_| malformed())?)
        }
    };
    Ok(Threshold { signal, below, soft: None })
}

/// How much of a resource is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) available: u64,
    pub(super) capacity: u64,
}

pub(super) type Readings = BTreeMap<Signal, Reading>;

/// A threshold that is met, with the numbers for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MetThreshold {
    pub(super) signal: Signal,
    pub(super) threshold: u64,
    pub(super) available: u64,
}

/// A condition stays true this long after its threshold was last met, so that it does not flap.
const CONDITION_HOLD: Duration = Duration::from_secs(300);

/// Tracks which thresholds are met since when, and the resulting conditions.
pub(super) struct Pressure {
    thresholds: Vec<Threshold>,
    /// Since when a threshold is met, by its index in the list.
    since: BTreeMap<usize, Instant>,
    last_met: BTreeMap<Signal, Instant>,
    now: Option<Instant>,
}

impl Pressure {
    pub(super) fn new(thresholds: Vec<Threshold>) -> Pressure {
        Pressure { thresholds, since: BTreeMap::new(), last_met: BTreeMap::new(), now: None }
    }

    /// Processes new readings; returns the thresholds that require an eviction now, most urgent
    /// first. A threshold without a reading is not met.
    pub(super) fn step(&mut self, now: Instant, readings: &Readings) -> Vec<MetThreshold> {
        self.now = Some(now);
        let mut due = Vec::new();
        for (index, threshold) in self.thresholds.iter().enumerate() {
            let Some(met) = is_met(threshold, readings) else {
                self.since.remove(&index);
                continue;
            };
            // The condition becomes true at once, for soft thresholds too.
            self.last_met.insert(threshold.signal, now);
            let since = *self.since.entry(index).or_insert(now);
            if threshold.soft.is_none_or(|grace| now.duration_since(since) >= grace) {
                due.push(met);
            }
        }
        due.sort_by_key(|met| met.signal);
        due
    }

    /// Whether there is memory, disk and PID pressure.
    pub(super) fn conditions(&self) -> (bool, bool, bool) {
        let recent = |(_, met_at): &(&Signal, &Instant)| {
            self.now.is_some_and(|now| now.duration_since(**met_at) < CONDITION_HOLD)
        };
        let pressure = |of: fn(Signal) -> bool| {
            self.last_met.iter().filter(recent).any(|(signal, _)| of(*signal))
        };
        (
            pressure(|signal| signal == Signal::MemoryAvailable),
            pressure(Signal::is_disk),
            pressure(|signal| signal == Signal::PidAvailable),
        )
    }
}

fn is_met(threshold: &Threshold, readings: &Readings) -> Option<MetThreshold> {
    let Reading { available, capacity } = *readings.get(&threshold.signal)?;
    let below = match threshold.below {
        Amount::Bytes(bytes) => bytes,
        Amount::Percent(percent) => {
            u64::try_from(u128::from(capacity) * u128::from(percent) / 100).unwrap_or(u64::MAX)
        }
    };
    let signal = threshold.signal;
    (available < below).then_some(MetThreshold { signal, threshold: below, available })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(memory: u64, disk: u64) -> Readings {
        let reading = |available| Reading { available, capacity: 1000 << 20 };
        BTreeMap::from([
            (Signal::MemoryAvailable, reading(memory << 20)),
            (Signal::NodefsAvailable, reading(disk << 20)),
        ])
    }

    fn signals(met: &[MetThreshold]) -> Vec<Signal> {
        met.iter().map(|met| met.signal).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn n_115_hard_thresholds_are_met_below_100mi_and_below_a_tenth() {
        let mut pressure = Pressure::new(default_thresholds());
        let now = Instant::now();
        let rows = [
            (100, 100, vec![]),
            (99, 100, vec![Signal::MemoryAvailable]),
            (100, 99, vec![Signal::NodefsAvailable]),
            (0, 0, vec![Signal::MemoryAvailable, Signal::NodefsAvailable]),
        ];
        for (memory, disk, expected) in rows {
            assert_eq!(signals(&pressure.step(now, &readings(memory, disk))), expected);
        }
        assert_eq!(signals(&pressure.step(now, &Readings::new())), []);
    }

    #[tokio::test(start_paused = true)]
    async fn t_node_81_a_condition_stays_five_minutes_after_it_was_last_met() {
        let mut pressure = Pressure::new(default_thresholds());
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        pressure.step(at(0), &readings(50, 500));
        assert_eq!(pressure.conditions(), (true, false, false));
        pressure.step(at(10), &readings(500, 50));
        assert_eq!(pressure.conditions(), (true, true, false));
        pressure.step(at(299), &readings(500, 500));
        assert_eq!(pressure.conditions(), (true, true, false));
        pressure.step(at(300), &readings(500, 500));
        assert_eq!(pressure.conditions(), (false, true, false));
        pressure.step(at(310), &readings(500, 500));
        assert_eq!(pressure.conditions(), (false, false, false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_soft_threshold_must_be_met_without_interruption() {
        let soft = Threshold {
            signal: Signal::MemoryAvailable,
            below: Amount::Bytes(200 << 20),
            soft: Some(Duration::from_secs(30)),
        };
        let mut pressure = Pressure::new(vec![soft]);
        let start = Instant::now();
        let mut met = |second: u64, memory: u64| {
            !pressure.step(start + Duration::from_secs(second), &readings(memory, 500)).is_empty()
        };
        assert!(!met(0, 150));
        assert!(!met(20, 150));
        assert!(!met(25, 250));
        assert!(!met(30, 150));
        assert!(!met(50, 150));
        assert!(met(60, 150));
    }
}
