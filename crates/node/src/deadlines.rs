//! Saves the progress of terminations, for the agent that finds them unfinished after a restart.
//!
//!     Termination ──▶ <data>/endings/<uid>.json ──▶ the next agent's Termination
//!
//! Only with `GraceAfterRestart::Kept` (T-EDGE-3). Upstream saves nothing and starts over with the whole
//! grace period (T-NODE-11), and so does landfall by default. Times are those of the monotonic clock, by
//! which the agent also waits; it restarts with the machine, so a file is valid for the boot in which it was
//! written. A crash of the agent leaves a whole file; after a power failure no container runs.
//! Not here: how the state machine continues (`lifecycle::termination::Progress`).

use lifecycle::termination::{Member, Moment, Progress, Termination};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The grace period of a pod that was terminating when the agent was restarted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GraceAfterRestart {
    /// The whole grace period again, and the hook again (T-NODE-11).
    #[default]
    Full,
    /// What was left of it. A finished hook does not run again, and no signal is sent twice.
    Kept,
}

/// Deadlines that differ by less count as equal.
const JITTER: Duration = Duration::from_millis(1);

/// One file per terminating pod.
pub(crate) struct Deadlines {
    dir: PathBuf,
}

/// A time of the machine's monotonic clock in nanoseconds: the same for all processes of one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Uptime(i64);

/// How far the termination of a pod has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unfinished {
    /// The boot that the times belong to.
    boot: String,
    /// The deadline of the whole pod.
    due: Uptime,
    /// What was done, by container ID. Other containers have to be terminated from the start.
    done: BTreeMap<String, Done>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Done {
    Hook,
    #[serde(rename_all = "camelCase")]
    Stop {
        kill_at: Uptime,
    },
}

impl Deadlines {
    pub(crate) fn open(data_dir: &Path) -> std::io::Result<Deadlines> {
        let dir = data_dir.join("endings");
        std::fs::create_dir_all(&dir)?;
        Ok(Deadlines { dir })
    }

    /// Files of an earlier boot are ignored: their processes are gone.
    pub(crate) fn read(&self, uid: &str) -> Option<Unfinished> {
        let kept = serde_json::from_slice(&std::fs::read(self.path(uid)).ok()?);
        kept.ok().filter(|kept: &Unfinished| kept.boot == clock::boot_id())
    }

    pub(crate) fn write(&self, uid: &str, unfinished: &Unfinished) -> std::io::Result<()> {
        let path = self.path(uid);
        let new = path.with_extension("new");
        std::fs::write(&new, serde_json::to_vec(unfinished)?)?;
        std::fs::rename(&new, &path)
    }

    pub(crate) fn forget(&self, uid: &str) {
        let _ = std::fs::remove_file(self.path(uid));
    }

    /// Removes files of pods that were deleted while no agent ran.
    pub(crate) fn retain(&self, uids: &BTreeSet<String>) {
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let known = entry.path().file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
            if !known.is_some_and(|uid| uids.contains(&uid)) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn path(&self, uid: &str) -> PathBuf {
        self.dir.join(format!("{uid}.json"))
    }
}

impl Unfinished {
    /// `now` is the same time on both clocks. None: the termination has not begun.
    pub(crate) fn of(machine: &Termination, now: (Moment, Uptime)) -> Option<Unfinished> {
        let at = |moment: Moment| now.1.at(now.0, moment);
        let done = machine.stages().filter_map(|(member, stage)| {
            let done = match stage.progress(now.0) {
                Progress::Fresh => return None,
                Progress::HookDone => Done::Hook,
                Progress::StopSent { kill_at } => Done::Stop { kill_at: at(kill_at) },
            };
            Some((member.id.clone(), done))
        });
        Some(Unfinished { boot: clock::boot_id(), due: at(machine.due()?), done: done.collect() })
    }

    /// Same progress; times may differ by the time between two readings of the clock.
    pub(crate) fn is_same(&self, other: Option<&Unfinished>) -> bool {
        let near = |a: Uptime, b: Uptime| a.until(b).max(b.until(a)) < JITTER;
        let same = |(a, b): (&Done, &Done)| match (a, b) {
            (Done::Stop { kill_at: a }, Done::Stop { kill_at: b }) => near(*a, *b),
            (a, b) => a == b,
        };
        other.is_some_and(|other| {
            near(self.due, other.due)
                && self.done.keys().eq(other.done.keys())
                && self.done.values().zip(other.done.values()).all(same)
        })
    }

    /// Gives the members their progress and returns the time left. Their moments count from now.
    pub(crate) fn resume(&self, members: &mut [Member], now: Uptime) -> Duration {
        let left = |at: Uptime| now.until(at);
        for member in members {
            member.progress = match self.done.get(&member.id) {
                None => Progress::Fresh,
                Some(Done::Hook) => Progress::HookDone,
                Some(Done::Stop { kill_at }) => {
                    Progress::StopSent { kill_at: Moment(left(*kill_at)) }
                }
            };
        }
        left(self.due)
    }
}

impl Uptime {
    pub(crate) fn now() -> Uptime {
        Uptime(clock::monotonic())
    }

    /// How long until `later`; nothing if that is past.
    fn until(self, later: Uptime) -> Duration {
        u64::try_from(later.0.saturating_sub(self.0)).map(Duration::from_nanos).unwrap_or_default()
    }

    /// The uptime at `other`, if `moment` is at this one.
    fn at(self, moment: Moment, other: Moment) -> Uptime {
        let nanos = |by: Duration| i64::try_from(by.as_nanos()).unwrap_or(i64::MAX);
        let (later, earlier) = (nanos(moment.until(other)), nanos(other.until(moment)));
        Uptime(self.0.saturating_add(later).saturating_sub(earlier))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lifecycle::containers::Kind;
    use lifecycle::termination::Input;

    fn member(id: &str, hook: bool) -> Member {
        Member {
            id: id.into(),
            name: id.into(),
            kind: Kind::Regular,
            hook,
            place: 0,
            progress: Progress::Fresh,
        }
    }

    fn time(second: i64) -> Uptime {
        Uptime((1_000_000 + second) * 1_000_000_000)
    }

    fn moment(second: u64) -> Moment {
        Moment(Duration::from_secs(second))
    }

    /// T-EDGE-3: `plain` has its signal, `hooked` has run its hook and got its signal then, `hooking` is
    /// still at it; the agent is away for three seconds.
    #[test]
    fn a_termination_is_resumed_with_its_progress() {
        let all = || vec![member("plain", false), member("hooked", true), member("hooking", true)];
        let mut machine = Termination::new(all());
        machine.step(moment(10), Input::Terminate { grace: Duration::from_secs(20) });
        machine.step(moment(14), Input::HookFinished { id: "hooked".into() });
        for id in ["plain", "hooked"] {
            machine.step(moment(14), Input::StopSent { id: id.into() });
        }
        let unfinished = Unfinished::of(&machine, (moment(15), time(15))).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let deadlines = Deadlines::open(dir.path()).unwrap();
        deadlines.write("uid", &unfinished).unwrap();
        assert_eq!(deadlines.read("uid").as_ref(), Some(&unfinished));
        let mut resumed = all();
        let left = unfinished.resume(&mut resumed, time(18));
        assert_eq!(left, Duration::from_secs(12), "until second 30");
        let progress: Vec<_> = resumed.iter().map(|member| member.progress).collect();
        let sent = Progress::StopSent { kill_at: moment(12) };
        assert_eq!(progress, [sent, sent, Progress::Fresh]);
        deadlines.retain(&["other".to_owned()].into());
        assert_eq!(deadlines.read("uid"), None);
    }

    #[test]
    fn a_deadline_that_passed_without_an_agent_is_now() {
        let mut machine = Termination::new(vec![member("plain", false)]);
        machine.step(moment(0), Input::Terminate { grace: Duration::from_secs(5) });
        machine.step(moment(0), Input::StopSent { id: "plain".into() });
        let unfinished = Unfinished::of(&machine, (moment(1), time(1))).unwrap();
        let mut resumed = vec![member("plain", false)];
        assert_eq!(unfinished.resume(&mut resumed, time(60)), Duration::ZERO);
        assert_eq!(resumed[0].progress, Progress::StopSent { kill_at: moment(0) });
    }

    #[test]
    fn a_termination_that_has_not_begun_is_not_recorded() {
        let machine = Termination::new(vec![member("plain", false)]);
        assert_eq!(Unfinished::of(&machine, (moment(1), time(1))), None);
    }

    /// T-EDGE-3: setting the clock while no agent runs moves no deadline.
    #[tokio::test(start_paused = true)]
    async fn a_clock_that_jumps_while_the_agent_is_away_moves_no_deadline() {
        clock::simulate(jiff::Timestamp::from_second(1_000_000).unwrap(), 0);
        for jump in [-3600, 3600] {
            let mut machine = Termination::new(vec![member("plain", false)]);
            machine.step(moment(0), Input::Terminate { grace: Duration::from_secs(20) });
            machine.step(moment(0), Input::StopSent { id: "plain".into() });
            let unfinished = Unfinished::of(&machine, (moment(0), Uptime::now())).unwrap();
            clock::jump(jiff::SignedDuration::from_secs(jump));
            tokio::time::sleep(Duration::from_secs(7)).await;
            let mut resumed = vec![member("plain", false)];
            let left = unfinished.resume(&mut resumed, Uptime::now());
            assert_eq!(left, Duration::from_secs(13), "after a jump by {jump} s");
            assert_eq!(resumed[0].progress, Progress::StopSent { kill_at: moment(13) });
        }
        clock::stop_simulating();
    }

    /// Nothing that ran before a reboot runs after it, and its times are no longer valid.
    #[test]
    fn records_from_before_a_reboot_are_ignored() {
        let mut machine = Termination::new(vec![member("plain", false)]);
        machine.step(moment(0), Input::Terminate { grace: Duration::from_secs(5) });
        let now = (moment(0), Uptime::now());
        let unfinished = Unfinished::of(&machine, now).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let deadlines = Deadlines::open(dir.path()).unwrap();
        deadlines
            .write("uid", &Unfinished { boot: "another".into(), ..unfinished.clone() })
            .unwrap();
        assert_eq!(deadlines.read("uid"), None);
        deadlines.write("uid", &unfinished).unwrap();
        assert_eq!(deadlines.read("uid"), Some(unfinished));
    }
}
