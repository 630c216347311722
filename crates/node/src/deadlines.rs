//! Deadlines that outlive the agent: what an ending has done, for the agent that finds it unfinished.
//!
//!     Termination ──▶ <data>/endings/<uid>.json ──▶ the next agent's Termination
//!
//! Only with `GraceAfterRestart::Kept` (T-EDGE-3). Upstream writes nothing down and starts over with the
//! whole grace (T-NODE-11), and so does landfall unless it is told otherwise. Written so that a crash of
//! the agent leaves a whole file; after a loss of power there is nobody left to end.
//! Not here: what the machine makes of it (`lifecycle::termination::Progress`).

use jiff::{SignedDuration, Timestamp};
use lifecycle::termination::{Member, Moment, Progress, Termination};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How much grace a pod has that was ending when its node's agent was restarted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GraceAfterRestart {
    /// All of it again, and its hook again (T-NODE-11).
    #[default]
    Full,
    /// What was left of it; a hook that had ended is not run again, a signal not sent again.
    Kept,
}

/// A deadline that moved by less did not move.
const JITTER: SignedDuration = SignedDuration::from_millis(1);

/// One file per pod that is ending.
pub(crate) struct Deadlines {
    dir: PathBuf,
}

/// How far the ending of a pod has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unfinished {
    /// When all of it should have ended by.
    due: Timestamp,
    /// What was done, by container id. Who is not named is to be ended from the start.
    done: BTreeMap<String, Done>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Done {
    Hook,
    #[serde(rename_all = "camelCase")]
    Stop {
        kill_at: Timestamp,
    },
}

impl Deadlines {
    pub(crate) fn open(data_dir: &Path) -> std::io::Result<Deadlines> {
        let dir = data_dir.join("endings");
        std::fs::create_dir_all(&dir)?;
        Ok(Deadlines { dir })
    }

    pub(crate) fn read(&self, uid: &str) -> Option<Unfinished> {
        serde_json::from_slice(&std::fs::read(self.path(uid)).ok()?).ok()
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

    /// Pods that went while no agent looked left theirs behind.
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
    /// `now` is the same moment on both clocks. None: nobody was asked to end.
    pub(crate) fn of(machine: &Termination, now: (Moment, Timestamp)) -> Option<Unfinished> {
        let at = |moment: Moment| wall(now, moment);
        let done = machine.stages().filter_map(|(member, stage)| {
            let done = match stage.progress(now.0) {
                Progress::Fresh => return None,
                Progress::HookDone => Done::Hook,
                Progress::StopSent { kill_at } => Done::Stop { kill_at: at(kill_at) },
            };
            Some((member.id.clone(), done))
        });
        Some(Unfinished { due: at(machine.due()?), done: done.collect() })
    }

    /// Nothing has happened since: the times are the same but for what two clocks differ by.
    pub(crate) fn is_as(&self, other: Option<&Unfinished>) -> bool {
        let near = |a: Timestamp, b: Timestamp| a.duration_since(b).abs() < JITTER;
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

    /// Tells the members what was done; answers how much time is left. Moments count from now.
    pub(crate) fn resume(&self, members: &mut [Member], now: Timestamp) -> Duration {
        let left = |at: Timestamp| Duration::try_from(at.duration_since(now)).unwrap_or_default();
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

/// The time of day of a moment, before or after now.
fn wall((moment, time): (Moment, Timestamp), other: Moment) -> Timestamp {
    let signed = |by: Duration| SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    let (later, earlier) = (moment.until(other), other.until(moment));
    let shifted = time.checked_add(signed(later)).and_then(|t| t.checked_sub(signed(earlier)));
    shifted.unwrap_or(Timestamp::MAX)
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

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn moment(second: u64) -> Moment {
        Moment(Duration::from_secs(second))
    }

    /// T-EDGE-3: `plain` has its signal, `hooked` has run its hook and got its signal then, `hooking` is
    /// still at it; the agent is away for three seconds.
    #[test]
    fn an_ending_is_resumed_where_it_was() {
        let all = || vec![member("plain", false), member("hooked", true), member("hooking", true)];
        let mut machine = Termination::new(all());
        machine.step(moment(10), Input::Terminate { grace: Duration::from_secs(20) });
        machine.step(moment(14), Input::HookFinished { id: "hooked".into() });
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
    fn a_deadline_that_passed_while_nobody_looked_is_now() {
        let mut machine = Termination::new(vec![member("plain", false)]);
        machine.step(moment(0), Input::Terminate { grace: Duration::from_secs(5) });
        let unfinished = Unfinished::of(&machine, (moment(1), time(1))).unwrap();
        let mut resumed = vec![member("plain", false)];
        assert_eq!(unfinished.resume(&mut resumed, time(60)), Duration::ZERO);
        assert_eq!(resumed[0].progress, Progress::StopSent { kill_at: moment(0) });
    }

    #[test]
    fn what_was_not_asked_to_end_is_not_written_down() {
        let machine = Termination::new(vec![member("plain", false)]);
        assert_eq!(Unfinished::of(&machine, (moment(1), time(1))), None);
    }
}
