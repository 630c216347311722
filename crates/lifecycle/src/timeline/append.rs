//! How a record grows: each step once, in the order of time, within bounds.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Request, SERVER, Step, Subject, Termination, What};

/// Steps of one record at most.
pub const STEPS_MAX: usize = 256;
/// Room that only steps which decide the outcome may use.
const RESERVED: usize = 32;
/// What is kept of a hook's output, in bytes.
pub const OUTPUT_MAX: usize = 4096;
/// Any other text of a step.
const TEXT_MAX: usize = 512;
/// All hooks' output of one record together.
const OUTPUT_TOTAL_MAX: usize = 128 * 1024;

impl Termination {
    /// A record with nothing in it yet. `uid` is its own.
    pub fn new(namespace: &str, pod: Subject, uid: &str, now: Timestamp) -> Termination {
        let mut record = Termination { pod, ..Termination::default() };
        record.metadata.uid = Some(uid.to_owned());
        record.metadata.creation_timestamp = Some(Time(now));
        record.metadata.namespace = Some(namespace.to_owned());
        record.metadata.name = Some(super::name(&record.pod.name, &record.pod.uid));
        record
    }

    /// Adds what is new of `steps` and settles what follows from it. False: nothing was new.
    pub fn append(&mut self, steps: impl IntoIterator<Item = Step>) -> bool {
        let mut news = false;
        for step in steps {
            let known = |old: &Step| old.is_same(&step);
            if self.steps.iter().any(known) {
                continue;
            }
            news = true;
            if self.has_room_for(&step) {
                let step = self.bounded(step);
                let after = self.steps.partition_point(|old| old.order() <= step.order());
                self.steps.insert(after, step);
            } else {
                self.dropped += 1;
            }
        }
        if news {
            self.settle();
        }
        news
    }

    /// The number of the next step of an actor that keeps no count of its own.
    pub fn next_sequence(&self, actor: &str) -> i64 {
        let of_actor = self.steps.iter().filter(|step| step.actor == actor);
        of_actor.map(|step| step.sequence + 1).max().unwrap_or(0)
    }

    fn has_room_for(&self, step: &Step) -> bool {
        let reserved = if step.decides() { 0 } else { RESERVED };
        self.steps.len() < STEPS_MAX - reserved
    }

    fn bounded(&self, mut step: Step) -> Step {
        let said: usize = self.steps.iter().map(|step| step.output().len()).sum();
        for text in [&mut step.actor, &mut step.incarnation, &mut step.container, &mut step.message]
        {
            clip(text, TEXT_MAX);
        }
        match &mut step.what {
            What::HookEnded { output, .. } => {
                clip(output, OUTPUT_MAX.min(OUTPUT_TOTAL_MAX.saturating_sub(said)));
            }
            What::Requested(request) | What::Shortened(request) => {
                let Request { by, agent, through, .. } = request;
                for text in [by, agent, through] {
                    clip(text, TEXT_MAX);
                }
            }
            What::UnsafeByRequest { by: text }
            | What::Seen { reason: text, .. }
            | What::HookStarted { hook: text }
            | What::Exited { signal: text, .. }
            | What::EndpointFlipped { slice: text, .. }
            | What::RulesCommitted { slice: text, .. } => clip(text, TEXT_MAX),
            What::Signal { signal, target, reason } => {
                for text in [signal, target, reason] {
                    clip(text, TEXT_MAX);
                }
            }
            What::HookOverran
            | What::Lost
            | What::SandboxStopped
            | What::NetworkGone
            | What::VolumesGone
            | What::CgroupGone
            | What::StatusWritten
            | What::Removed
            | What::AgentRestarted => {}
        }
        step
    }
}

impl Step {
    fn is_same(&self, other: &Step) -> bool {
        self.sequence == other.sequence
            && self.actor == other.actor
            && self.incarnation == other.incarnation
    }

    /// By time. Of one instant, the server speaks first (nobody acts before it is asked) and the
    /// object goes last; the rest has some order, so that a simulation always gives the same record.
    fn order(&self) -> (jiff::Timestamp, u8, &str, &str, i64) {
        let turn = match &self.what {
            What::Removed => 2,
            _ if self.actor == SERVER => 0,
            _ => 1,
        };
        (self.at, turn, &self.actor, &self.incarnation, self.sequence)
    }

    /// Without it the record would say something else.
    fn decides(&self) -> bool {
        matches!(
            self.what,
            What::Requested(_)
                | What::UnsafeByRequest { .. }
                | What::Exited { .. }
                | What::Lost
                | What::SandboxStopped
                | What::StatusWritten
                | What::Removed
        )
    }

    fn output(&self) -> &str {
        match &self.what {
            What::HookEnded { output, .. } => output,
            _ => "",
        }
    }
}

/// Cuts a text to at most `max` bytes, at a character, and says so.
pub fn clip(text: &mut String, max: usize) {
    const CUT: &str = "…";
    if text.len() <= max {
        return;
    }
    let mut end = max.saturating_sub(CUT.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    if max >= CUT.len() {
        text.push_str(CUT);
    }
}
