//! Whether this machine kept up with the load. A run on a saturated machine says nothing about the workload.

use crate::load::Recorded;

/// A request that was sent this many seconds after its time was late.
const LATE: f64 = 0.05;
/// Share of late requests from which a run is discarded.
const LATE_SHARE_MAX: f64 = 0.05;
/// Share of CPU time, without that of low-priority processes, from which a run is discarded.
const BUSY_MAX: f64 = 0.97;

/// Time of all CPUs since boot, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CpuTime {
    busy: u64,
    total: u64,
}

impl CpuTime {
    /// None: this system does not say.
    pub(crate) fn now() -> Option<CpuTime> {
        CpuTime::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
    fn parse(stat: &str) -> Option<CpuTime> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> =
            line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let &[user, nice, system, idle, iowait, irq, softirq, steal] = ticks.as_slice() else {
            return None;
        };
        // Processes with a low priority give way, so their time is free for us.
        let free = nice + idle + iowait;
        let busy = user + system + irq + softirq + steal;
        Some(CpuTime { busy, total: busy + free })
    }

    /// The share of busy time since `earlier`.
    fn busy_since(self, earlier: CpuTime) -> f64 {
        let total = self.total.saturating_sub(earlier.total);
        match total {
            0 => 0.0,
            total => self.busy.saturating_sub(earlier.busy) as f64 / total as f64,
        }
    }
}

/// Why the run must be discarded. None: it counts.
pub(crate) fn verdict(
    recorded: &Recorded,
    before: Option<CpuTime>,
    after: Option<CpuTime>,
) -> Option<String> {
    if recorded.skipped > 0 {
        return Some(format!(
            "{} requests were not sent, because too many were open",
            recorded.skipped
        ));
    }
    let late = recorded.samples.iter().filter(|sample| sample.lag > LATE).count();
    let share = late as f64 / recorded.samples.len().max(1) as f64;
    if share > LATE_SHARE_MAX {
        return Some(format!(
            "{:.1} % of the requests were sent more than {} ms late",
            share * 100.0,
            LATE * 1000.0
        ));
    }
    let busy = before.zip(after).map_or(0.0, |(before, after)| after.busy_since(before));
    (busy > BUSY_MAX).then(|| format!("its CPUs were {:.0} % busy", busy * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Sample;
    use crate::outcome::ConnectionKind;

    fn recorded(lags: &[f64], skipped: usize) -> Recorded {
        let sample = |lag: &f64| Sample {
            kind: ConnectionKind::New,
            due: 0.0,
            lag: *lag,
            latency: 0.1,
            reused: false,
            result: Ok(200),
        };
        Recorded { samples: lags.iter().map(sample).collect(), skipped }
    }

    fn cpu(busy: u64, free: u64) -> Option<CpuTime> {
        Some(CpuTime { busy, total: busy + free })
    }

    #[test]
    fn low_priority_work_counts_as_free() {
        let stat = "cpu  10 1000 20 300 5 1 2 3 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(CpuTime::parse(stat), cpu(36, 1305));
        assert_eq!(CpuTime::parse("cpu  1 2 x"), None);
        assert_eq!(CpuTime::parse(""), None);
    }

    #[test]
    fn late_requests_or_a_busy_machine_discard_a_run() {
        let on_time = vec![0.001; 200];
        let mut late = on_time.clone();
        late.extend([0.2; 15]);
        for (name, recorded, before, after, words) in [
            ("good", recorded(&on_time, 0), cpu(0, 0), cpu(50, 50), None),
            ("unknown CPU", recorded(&on_time, 0), None, None, None),
            ("late", recorded(&late, 0), cpu(0, 0), cpu(50, 50), Some("late")),
            ("busy", recorded(&on_time, 0), cpu(100, 100), cpu(1090, 101), Some("busy")),
            ("skipped", recorded(&on_time, 1), None, None, Some("not sent")),
        ] {
            let got = verdict(&recorded, before, after);
            assert_eq!(got.is_some(), words.is_some(), "{name}: {got:?}");
            assert!(got.unwrap_or_default().contains(words.unwrap_or_default()), "{name}");
        }
    }
}
