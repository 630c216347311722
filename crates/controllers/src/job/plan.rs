//! Decides one reconcile of a Job and its pods (C-101…C-119). Pure.
//!
//! Counting is in `counting.rs`; the failure and success policies are in `policy.rs`.

use super::backoff::{self, Record};
use super::counting::{self, Uncounted};
use super::indexes::Indexes;
use super::pods::{self, IndexFailures};
use super::policy::{self, Verdict};
use crate::workload::{
    BURST, count, is_active, is_being_deleted, is_ready, is_terminating, sort_for_job_deletion, uid,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub(super) struct Plan {
    /// Pods to delete without counting them: their finalizer is removed first (T-CTRL-27).
    pub(super) remove: Vec<Arc<Pod>>,
    /// Pods to delete and count.
    pub(super) delete: Vec<Arc<Pod>>,
    pub(super) create: Vec<Pod>,
    /// Must be written before any finalizer is removed. `active` does not include the pods to create.
    pub(super) status: JobStatus,
    /// Their finalizer is removed after the status is written.
    pub(super) release: Vec<Arc<Pod>>,
    pub(super) finish: Option<Finish>,
    /// There are more pods to count than fit into one status.
    pub(super) more: bool,
    /// Reason and message.
    pub(super) event: Option<(&'static str, &'static str)>,
    pub(super) next: Option<Duration>,
    pub(super) record: Record,
}

/// The result of a Job, and why.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Finish {
    pub(super) succeeded: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Finish {
    fn failure(reason: &str, message: impl Into<String>) -> Finish {
        Finish { succeeded: false, reason: reason.to_owned(), message: message.into() }
    }

    fn success(reason: &str, message: impl Into<String>) -> Finish {
        Finish { succeeded: true, reason: reason.to_owned(), message: message.into() }
    }

    /// The condition before, and the one after all pods are counted (C-114).
    pub(super) fn types(&self) -> (&'static str, &'static str) {
        match self.succeeded {
            true => ("SuccessCriteriaMet", "Complete"),
            false => ("FailureTarget", "Failed"),
        }
    }

    pub(super) fn condition(&self, type_: &str, now: Timestamp) -> JobCondition {
        condition(type_, "True", &self.reason, &self.message, now)
    }
}

fn condition(
    type_: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> JobCondition {
    JobCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

pub(super) fn holds<'a>(job: &'a Job, type_: &str) -> Option<&'a JobCondition> {
    let mut all = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    all.find(|condition| condition.type_ == type_ && condition.status == "True")
}

/// The condition `Complete` or `Failed`, if the Job has finished.
pub(crate) fn finished_condition(job: &Job) -> Option<&JobCondition> {
    let mut all = job.status.as_ref()?.conditions.iter().flatten();
    all.find(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
    })
}

pub(super) fn is_finished(job: &Job) -> bool {
    finished_condition(job).is_some()
}

fn is_suspended(job: &Job) -> bool {
    job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true)
}

/// The state of a Job and its pods.
pub(super) struct JobState<'a> {
    pub(super) job: &'a Job,
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) active: Vec<&'a Arc<Pod>>,
    terminating: i32,
    pub(super) uncounted: Uncounted,
    pub(super) succeeded: i32,
    failed: i32,
    pub(super) done: Indexes,
    pub(super) failed_indexes: Indexes,
    /// Failed pods that stay until their index has a new pod: they carry its failure count (C-117).
    pub(super) kept: BTreeMap<i32, &'a Arc<Pod>>,
    record: Record,
    /// No pod can be created any more.
    namespace_terminating: bool,
    pub(super) now: Timestamp,
}

pub(super) fn decide(
    job: &Job,
    pods: &[Arc<Pod>],
    record: &Record,
    namespace_terminating: bool,
    now: Timestamp,
) -> Plan {
    let mut state = JobState::new(job, pods, record, now);
    state.namespace_terminating = namespace_terminating;
    let mut status = job.status.clone().unwrap_or_default();
    if status.start_time.is_none() && !is_suspended(job) {
        status.start_time = Some(Time(now));
    }
    let mut plan = Plan {
        remove: Vec::new(),
        delete: Vec::new(),
        create: Vec::new(),
        status,
        release: Vec::new(),
        finish: state.finish(),
        more: false,
        event: None,
        next: state.deadline_in(),
        record: state.record.clone(),
    };
    if plan.finish.is_some() {
        plan.next = None;
        plan.delete = state.active.iter().map(|pod| Arc::clone(pod)).collect();
    } else if !is_being_deleted(job) {
        state.manage(&mut plan);
        if state.is_complete(&plan) {
            let message = "Reached expected number of succeeded pods";
            plan.finish = Some(Finish::success("CompletionsReached", message));
        } else {
            suspend_or_resume(job, &mut plan, now);
        }
    }
    state.report(&mut plan);
    counting::count(&state, &mut plan);
    plan
}

impl<'a> JobState<'a> {
    fn new(job: &'a Job, pods: &'a [Arc<Pod>], record: &Record, now: Timestamp) -> JobState<'a> {
        let uncounted = Uncounted::of(job);
        let completions = completions(job).unwrap_or(i32::MAX);
        let valid = |pod: &&Arc<Pod>| {
            let index_is_good = pods::index(pod).is_some_and(|index| index < completions);
            pods::has_finalizer(pod)
                && !uncounted.has(uid(pod.as_ref()))
                && (!pods::is_indexed(job) || index_is_good)
        };
        let new = || pods.iter().filter(valid);
        let succeeded: Vec<&Pod> =
            new().map(AsRef::as_ref).filter(|pod| pods::succeeded(pod)).collect();
        let failed: Vec<&Pod> =
            new().map(AsRef::as_ref).filter(|pod| pods::failed(job, pod)).collect();
        let counted = failed.iter().filter(|pod| policy::verdict(job, pod).counts()).count();
        let status = job.status.clone().unwrap_or_default();
        let mut state = JobState {
            job,
            pods,
            active: pods.iter().filter(|pod| is_active(pod)).collect(),
            terminating: count(pods.iter().filter(|pod| is_terminating(pod)).count()),
            succeeded: status.succeeded.unwrap_or(0)
                + count(succeeded.len() + uncounted.succeeded.len()),
            failed: status.failed.unwrap_or(0) + count(counted + uncounted.failed.len()),
            uncounted,
            done: Indexes::default(),
            failed_indexes: Indexes::default(),
            kept: BTreeMap::new(),
            record: record.after(&succeeded, &failed),
            namespace_terminating: false,
            now,
        };
        if pods::is_indexed(job) {
            state.read_indexes(&status, completions, &succeeded);
        }
        state
    }

    fn read_indexes(&mut self, status: &JobStatus, completions: i32, succeeded: &[&Pod]) {
        let parse = |text: &Option<String>| {
            Indexes::parse(text.as_deref().unwrap_or_default(), completions)
        };
        self.done = parse(&status.completed_indexes);
        succeeded
            .iter()
            .filter_map(|pod| pods::index(pod))
            .for_each(|index| self.done.insert(index));
        self.succeeded = self.done.total();
        let Some(limit) = pods::limits_per_index(self.job) else { return };
        self.failed_indexes = parse(&status.failed_indexes);
        let failed: Vec<(i32, &Arc<Pod>)> = self
            .pods
            .iter()
            .filter(|pod| pods::has_finalizer(pod) && pods::failed(self.job, pod))
            .filter_map(|pod| Some((pods::index(pod).filter(|index| *index < completions)?, pod)))
            .collect();
        for (index, pod) in &failed {
            let failed_indexes = match policy::verdict(self.job, pod) {
                Verdict::FailIndex => true,
                Verdict::Ignore => false,
                _ => pods::index_failures(pod).failures >= limit,
            };
            if failed_indexes && !self.done.has(*index) {
                self.failed_indexes.insert(*index);
            }
        }
        let active: BTreeSet<i32> = self.active.iter().filter_map(|pod| pods::index(pod)).collect();
        for (index, pod) in failed {
            if active.contains(&index) || self.done.has(index) || self.failed_indexes.has(index) {
                continue;
            }
            let all =
                |pod: &Pod| pods::index_failures(pod).failures + pods::index_failures(pod).ignored;
            let before = self.kept.get(&index).map(|before| all(before));
            if before.is_none_or(|before| before <= all(pod)) {
                self.kept.insert(index, pod);
            }
        }
    }

    /// Whether no pod of this Job will be made any more.
    pub(super) fn creates_no_pods(&self) -> bool {
        is_being_deleted(self.job) || self.namespace_terminating
    }

    /// Why the Job must finish; reasons are checked in this order (C-113). Without completion.
    fn finish(&self) -> Option<Finish> {
        let (job, spec) = (self.job, self.job.spec.as_ref()?);
        for (type_, succeeded) in [("SuccessCriteriaMet", true), ("FailureTarget", false)] {
            if let Some(found) = holds(job, type_) {
                let text = |field: &Option<String>| field.clone().unwrap_or_default();
                let (reason, message) = (text(&found.reason), text(&found.message));
                return Some(Finish { succeeded, reason, message });
            }
        }
        let failed = self.pods.iter().filter(|pod| pods::failed(job, pod));
        for verdict in failed.map(|pod| policy::verdict(job, pod)) {
            if let Verdict::FailJob(message) = verdict {
                return Some(Finish::failure("PodFailurePolicy", message));
            }
        }
        let limit = spec.backoff_limit.unwrap_or(6);
        if self.failed > limit || self.has_restarted_too_often(limit) {
            let message = "Job has reached the specified backoff limit";
            return Some(Finish::failure("BackoffLimitExceeded", message));
        }
        if self.deadline_in() == Some(Duration::ZERO) {
            let message = "Job was active longer than specified deadline";
            return Some(Finish::failure("DeadlineExceeded", message));
        }
        if pods::limits_per_index(job).is_some() {
            let (failed_indexes, done) = (self.failed_indexes.total(), self.done.total());
            if spec.max_failed_indexes.is_some_and(|max| failed_indexes > max) {
                let message = "Job has exceeded the specified maximal number of failed indexes";
                return Some(Finish::failure("MaxFailedIndexesExceeded", message));
            }
            if failed_indexes > 0
                && failed_indexes.saturating_add(done) >= spec.completions.unwrap_or(0)
            {
                return Some(Finish::failure("FailedIndexes", "Job has failed indexes"));
            }
        }
        policy::success(job, &self.done).map(|message| Finish::success("SuccessPolicy", message))
    }

    fn has_restarted_too_often(&self, limit: i32) -> bool {
        let template = self.job.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        let policy = template.and_then(|spec| spec.restart_policy.as_deref());
        if policy != Some("OnFailure") {
            return false;
        }
        let restarts: i32 =
            self.pods.iter().map(|pod| pods::restarts(pod)).fold(0, i32::saturating_add);
        if limit == 0 { restarts > 0 } else { restarts >= limit }
    }

    /// The time until the active deadline; zero if it has passed.
    fn deadline_in(&self) -> Option<Duration> {
        let seconds = self.job.spec.as_ref()?.active_deadline_seconds?;
        let start = self.job.status.as_ref()?.start_time.as_ref()?.0;
        if is_suspended(self.job) {
            return None;
        }
        let due = start.checked_add(SignedDuration::from_secs(seconds)).ok()?;
        Some(Duration::try_from(due.duration_since(self.now)).unwrap_or_default())
    }

    /// Removes surplus pods, or else creates missing ones.
    fn manage(&self, plan: &mut Plan) {
        let active = count(self.active.len());
        let parallelism = self.job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(1);
        let wanted = match completions(self.job) {
            _ if is_suspended(self.job) => 0,
            None if self.succeeded > 0 => active,
            None => parallelism,
            Some(completions) => (completions - self.succeeded).clamp(0, parallelism),
        };
        plan.remove = self.surplus(usize::try_from(active - wanted).unwrap_or(0));
        if !plan.remove.is_empty() || is_suspended(self.job) {
            return;
        }
        let terminating = if pods::replaces_only_failed(self.job) { self.terminating } else { 0 };
        let missing = usize::try_from(wanted - terminating - active).unwrap_or(0).min(BURST);
        if missing == 0 {
            return;
        }
        if pods::limits_per_index(self.job).is_none()
            && let Some(wait) = backoff::remaining(&self.record, self.now)
        {
            plan.next = plan.next.into_iter().chain([wait]).min();
            return;
        }
        match pods::is_indexed(self.job) {
            false => plan.create = vec![pods::make(self.job, None, None); missing],
            true => self.create_indexes(plan, missing),
        }
    }

    /// Creates pods for the lowest free indexes. An index in backoff also counts as one of them, so that no higher
    /// index takes its place (C-103, C-117).
    fn create_indexes(&self, plan: &mut Plan, missing: usize) {
        let there: BTreeSet<i32> = self
            .pods
            .iter()
            .filter(|pod| {
                is_active(pod) || pods::replaces_only_failed(self.job) && is_terminating(pod)
            })
            .filter_map(|pod| pods::index(pod))
            .collect();
        let per_index = pods::limits_per_index(self.job).is_some();
        let completions = completions(self.job).unwrap_or(0);
        let (mut next, mut taken) = (0, 0);
        while next < completions && taken < missing {
            let index = next;
            // Skip finished ranges at once: they may contain millions of indexes.
            let over = self.done.last_of_run(index).or(self.failed_indexes.last_of_run(index));
            next = over.unwrap_or(index).saturating_add(1);
            if over.is_some() || there.contains(&index) {
                continue;
            }
            taken += 1;
            let before = self.kept.get(&index);
            if let Some(wait) = before.and_then(|pod| backoff::remaining_of(pod, self.now)) {
                plan.next = plan.next.into_iter().chain([wait]).min();
                continue;
            }
            let index_failures = before.map_or(IndexFailures::default(), |pod| {
                let index_failures = pods::index_failures(pod);
                match policy::verdict(self.job, pod).counts() {
                    true => {
                        IndexFailures { failures: index_failures.failures + 1, ..index_failures }
                    }
                    false => {
                        IndexFailures { ignored: index_failures.ignored + 1, ..index_failures }
                    }
                }
            });
            plan.create.push(pods::make(
                self.job,
                Some(index),
                per_index.then_some(index_failures),
            ));
        }
    }

    /// At least this many pods; for indexed Jobs also duplicates and pods with invalid indexes (C-103, C-105).
    fn surplus(&self, at_least: usize) -> Vec<Arc<Pod>> {
        let mut left: Vec<Arc<Pod>> = self.active.iter().map(|pod| Arc::clone(pod)).collect();
        sort_for_job_deletion(&mut left);
        let mut surplus = Vec::new();
        if pods::is_indexed(self.job) {
            let completions = completions(self.job).unwrap_or(0);
            let mut used = BTreeSet::new();
            // Of duplicates the pod that would be deleted last stays.
            left.reverse();
            left.retain(|pod| {
                let index = pods::index(pod).filter(|index| *index < completions);
                let stays = index.is_some_and(|index| used.insert(index));
                if !stays {
                    surplus.push(pod.clone());
                }
                stays
            });
            left.reverse();
        }
        let more = at_least.saturating_sub(surplus.len());
        surplus.extend(left.into_iter().take(more));
        surplus.truncate(BURST);
        surplus
    }

    fn is_complete(&self, plan: &Plan) -> bool {
        let none_active = self.active.len() == plan.remove.len() && plan.create.is_empty();
        let enough = match completions(self.job) {
            None => self.succeeded > 0,
            Some(completions) => self.succeeded >= completions,
        };
        enough && none_active
    }

    /// Updates the counts of the status (C-110).
    fn report(&self, plan: &mut Plan) {
        let gone: BTreeSet<&str> =
            plan.delete.iter().chain(&plan.remove).map(|pod| uid(pod.as_ref())).collect();
        let stay = || self.active.iter().filter(|pod| !gone.contains(uid(pod.as_ref())));
        let ready = count(stay().filter(|pod| is_ready(pod)).count());
        plan.status.active = crate::workload::some_count(count(stay().count()));
        plan.status.ready = Some(ready);
        plan.status.terminating = Some(self.terminating + count(gone.len()));
    }
}

fn completions(job: &Job) -> Option<i32> {
    job.spec.as_ref().and_then(|spec| spec.completions)
}

/// Updates condition, start time and event when the Job is suspended or resumed (C-119).
fn suspend_or_resume(job: &Job, plan: &mut Plan, now: Timestamp) {
    let before = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let before = before.into_iter().find(|condition| condition.type_ == "Suspended");
    let was = before.is_some_and(|condition| condition.status == "True");
    let (status, reason, message, event) = match (was, is_suspended(job)) {
        (false, true) => ("True", "JobSuspended", "Job suspended", "Suspended"),
        (true, false) => ("False", "JobResumed", "Job resumed", "Resumed"),
        _ => return,
    };
    plan.status.start_time = (status == "False").then_some(Time(now));
    plan.event = Some((event, message));
    let conditions = plan.status.conditions.get_or_insert_default();
    let wanted = condition("Suspended", status, reason, message, now);
    match conditions.iter_mut().find(|condition| condition.type_ == "Suspended") {
        Some(there) => *there = wanted,
        None => conditions.push(wanted),
    }
}

#[cfg(test)]
mod tests;
