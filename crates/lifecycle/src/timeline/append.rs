//! Adds steps to a record: each once, in order of time, within bounds.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Request, SERVER, Step, StepKind, Subject, TerminationRecord};

/// Steps of one record at most.
pub const STEPS_MAX: usize = 256;
/// Space reserved for steps that decide the outcome.
const RESERVED: usize = 32;
/// Largest stored output of one hook, in bytes.
pub const OUTPUT_MAX: usize = 4096;
/// Largest size of any other text of a step.
const TEXT_MAX: usize = 512;
/// Names in one step.
const MISSING_MAX: usize = 32;
/// Largest total output of all hooks in one record.
const OUTPUT_TOTAL_MAX: usize = 128 * 1024;

impl TerminationRecord {
    /// An empty record. `uid` is the record's own.
    pub fn new(namespace: &str, pod: Subject, uid: &str, now: Timestamp) -> TerminationRecord {
        let mut record = TerminationRecord { pod, ..TerminationRecord::default() };
        record.metadata.uid = Some(uid.to_owned());
        record.metadata.creation_timestamp = Some(Time(now));
        record.metadata.namespace = Some(namespace.to_owned());
        record.metadata.name = Some(super::name(&record.pod.name, &record.pod.uid));
        record
    }

    /// Adds new steps and derives the rest of the record. False: nothing was new.
    pub fn append(&mut self, steps: impl IntoIterator<Item = Step>) -> bool {
        let mut changed = false;
        for step in steps {
            let known = |old: &Step| old.is_same(&step);
            if self.steps.iter().any(known) {
                continue;
            }
            changed = true;
            if self.has_room_for(&step) {
                let step = self.bounded(step);
                let after = self.steps.partition_point(|old| old.order() <= step.order());
                self.steps.insert(after, step);
            } else {
                self.dropped += 1;
            }
        }
        if changed {
            self.settle();
        }
        changed
    }

    /// The next sequence number of an actor that does not count by itself.
    pub fn next_sequence(&self, actor: &str) -> i64 {
        let of_actor = self.steps.iter().filter(|step| step.actor == actor);
        of_actor.map(|step| step.sequence + 1).max().unwrap_or(0)
    }

    fn has_room_for(&self, step: &Step) -> bool {
        let reserved = if step.decides() { 0 } else { RESERVED };
        self.steps.len() < STEPS_MAX - reserved
    }

    fn bounded(&self, mut step: Step) -> Step {
        let used: usize = self.steps.iter().map(|step| step.output().len()).sum();
        for text in [&mut step.actor, &mut step.incarnation, &mut step.container, &mut step.message]
        {
            clip(text, TEXT_MAX);
        }
        match &mut step.what {
            StepKind::HookEnded { output, .. } => {
                clip(output, OUTPUT_MAX.min(OUTPUT_TOTAL_MAX.saturating_sub(used)));
            }
            StepKind::Requested(request) | StepKind::Shortened(request) => {
                let Request { by, agent, through, .. } = request;
                for text in [by, agent, through] {
                    clip(text, TEXT_MAX);
                }
            }
            StepKind::DrainTimedOut { missing } => {
                missing.truncate(MISSING_MAX);
                missing.iter_mut().for_each(|text| clip(text, TEXT_MAX));
            }
            StepKind::UnsafeByRequest { by: text }
            | StepKind::Acknowledged { by: text }
            | StepKind::Seen { reason: text, .. }
            | StepKind::HookStarted { hook: text }
            | StepKind::Exited { signal: text, .. }
            | StepKind::EndpointFlipped { slice: text, .. }
            | StepKind::RulesCommitted { slice: text, .. } => clip(text, TEXT_MAX),
            StepKind::Signal { signal, target, reason } => {
                for text in [signal, target, reason] {
                    clip(text, TEXT_MAX);
                }
            }
            StepKind::HookOverran
            | StepKind::Held
            | StepKind::Drained
            | StepKind::Lost
            | StepKind::SandboxStopped
            | StepKind::NetworkGone
            | StepKind::VolumesGone
            | StepKind::CgroupGone
            | StepKind::StatusWritten
            | StepKind::Removed
            | StepKind::AgentRestarted => {}
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

    /// Sorts by time. At the same instant the server's request comes first and the removal of the object last; the rest
    /// has a fixed order, so that a simulation always gives the same record.
    fn order(&self) -> (jiff::Timestamp, u8, &str, &str, i64) {
        let turn = match &self.what {
            StepKind::Removed => 2,
            _ if self.actor == SERVER => 0,
            _ => 1,
        };
        (self.at, turn, &self.actor, &self.incarnation, self.sequence)
    }

    /// Whether the outcome depends on this step.
    fn decides(&self) -> bool {
        matches!(
            self.what,
            StepKind::Requested(_)
                | StepKind::UnsafeByRequest { .. }
                | StepKind::Exited { .. }
                | StepKind::Lost
                | StepKind::SandboxStopped
                | StepKind::StatusWritten
                | StepKind::Removed
        )
    }

    fn output(&self) -> &str {
        match &self.what {
            StepKind::HookEnded { output, .. } => output,
            _ => "",
        }
    }
}

/// Shortens a text to at most `max` bytes, at a character boundary, with an ellipsis.
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
