//! Validates the status of a Job and its changes, whichever controller manages the Job (C-120).
//!
//! A rule applies only if one of its fields changed, so that other fields of an invalid status can still
//! be updated.

use super::check;
use api::field::{At, Errors, Wrong};
use jiff::Timestamp;
use std::collections::BTreeSet;

pub(in crate::batch) fn validate(new: &At, old: &At, errors: &mut Errors) {
    let (status, before) = (new.field("status"), old.field("status"));
    let counts = ["active", "succeeded", "failed", "ready", "terminating"];
    check::fields_not_negative(&status, &counts, errors);
    validate_uids(&status, errors);
    let change = Change { spec: new.field("spec"), status, before };
    change.validate_ends(errors);
    change.validate_finished(errors);
    change.validate_indexes(errors);
    change.validate_rest(errors);
    change.validate_progress(errors);
}

fn validate_uids(status: &At, errors: &mut Errors) {
    let uncounted = status.field("uncountedTerminatedPods");
    let mut seen = BTreeSet::new();
    for name in ["succeeded", "failed"] {
        for uid in uncounted.field(name).items() {
            if uid.text().is_empty() {
                errors.invalid(&uid, "must not be empty");
            } else if !seen.insert(uid.text()) {
                errors.duplicate(&uid);
            }
        }
    }
}

struct Change<'s, 'v> {
    spec: At<'s, 'v>,
    status: At<'s, 'v>,
    before: At<'s, 'v>,
}

pub(super) fn holds(status: &At, type_: &str) -> bool {
    let conditions = status.field("conditions");
    conditions
        .items()
        .any(|one| one.field("type").text() == type_ && one.field("status").text() == "True")
}

fn is_finished(status: &At) -> bool {
    holds(status, "Complete") || holds(status, "Failed")
}

fn number(status: &At, name: &str) -> i64 {
    status.field(name).int().unwrap_or(0)
}

fn time(status: &At, name: &str) -> Option<Timestamp> {
    status.field(name).text().parse().ok()
}

/// An error about the conditions, without their value.
fn wrong(status: &At, detail: &str, errors: &mut Errors) {
    errors.push(Wrong::Invalid, status.field("conditions").path(), None, detail);
}

impl Change<'_, '_> {
    fn is(&self, type_: &str) -> bool {
        holds(&self.status, type_)
    }

    fn turns(&self, types: &[&str]) -> bool {
        types.iter().any(|type_| self.is(type_) != holds(&self.before, type_))
    }

    fn changes(&self, names: &[&str]) -> bool {
        // An empty list of indexes is not the same as none.
        let value = |at: &At, name: &str| at.field(name).value().filter(|v| !v.is_null()).cloned();
        names.iter().any(|name| value(&self.status, name) != value(&self.before, name))
    }

    fn finishes(&self) -> bool {
        is_finished(&self.status) != is_finished(&self.before)
    }

    /// Conditions that exclude or need each other, and the time of completion.
    fn validate_ends(&self, errors: &mut Errors) {
        let (status, complete) = (&self.status, self.is("Complete"));
        if self.turns(&["Complete", "Failed"]) && complete && self.is("Failed") {
            wrong(status, "cannot set Complete=True and Failed=true conditions", errors);
        }
        if self.turns(&["Complete", "FailureTarget"]) && complete && self.is("FailureTarget") {
            wrong(status, "cannot set Complete=True and FailureTarget=true conditions", errors);
        }
        let completed = status.field("completionTime");
        if self.turns(&["Complete"]) || self.changes(&["completionTime"]) {
            if completed.is_set() && !complete {
                let why = "cannot set completionTime when there is no Complete=True condition";
                errors.invalid(&completed, why);
            }
            if !completed.is_set() && complete {
                errors.required(&completed, "completionTime is required for Complete jobs");
            }
        }
        let early = time(status, "completionTime") < time(status, "startTime");
        if self.changes(&["startTime", "completionTime"]) && completed.is_set() && early {
            errors.invalid(&completed, "completionTime cannot be set before startTime");
        }
        let without = |what: &str, other: &str| {
            format!("cannot set {what}=True condition without the {other}=true condition")
        };
        if self.turns(&["Failed", "FailureTarget"])
            && self.is("Failed")
            && !self.is("FailureTarget")
        {
            wrong(status, &without("Failed", "FailureTarget"), errors);
        }
        if self.turns(&["Complete", "SuccessCriteriaMet"])
            && complete
            && !self.is("SuccessCriteriaMet")
        {
            wrong(status, &without("Complete", "SuccessCriteriaMet"), errors);
        }
    }

    /// A finished job has no active pods, and has a start time.
    fn validate_finished(&self, errors: &mut Errors) {
        let status = &self.status;
        if !is_finished(status) {
            return;
        }
        if (self.finishes() || self.changes(&["active"])) && number(status, "active") > 0 {
            errors.invalid(&status.field("active"), "active>0 is invalid for finished job");
        }
        let started = status.field("startTime");
        if (self.finishes() || self.changes(&["startTime"])) && !started.is_set() {
            errors.required(&started, "startTime is required for finished job");
        }
        let uncounted = status.field("uncountedTerminatedPods");
        let left = uncounted.field("succeeded").len() + uncounted.field("failed").len();
        if (self.finishes() || self.changes(&["uncountedTerminatedPods"])) && left > 0 {
            let why = "uncountedTerminatedPods needs to be empty for finished job";
            errors.invalid(&uncounted, why);
        }
    }

    fn validate_indexes(&self, errors: &mut Errors) {
        let (spec, status) = (&self.spec, &self.status);
        let (done, lost) = (status.field("completedIndexes"), status.field("failedIndexes"));
        let completions = spec.field("completions").int();
        let per_index = spec.field("backoffLimitPerIndex").is_set();
        let (done_changes, lost_changes) =
            (self.changes(&["completedIndexes"]), self.changes(&["failedIndexes"]));
        if let Some(completions) = completions.filter(|_| done_changes)
            && let Err(why) = ranges(done.text(), completions)
        {
            errors.invalid(&done, &format!("error parsing completedIndexes: {why}"));
        }
        if let Some(completions) = completions.filter(|_| lost_changes && per_index)
            && let Err(why) = ranges(lost.text(), completions)
        {
            errors.invalid(&lost, &format!("error parsing failedIndexes: {why}"));
        }
        let indexed = spec.field("completionMode").text() == "Indexed";
        if done_changes && !done.text().is_empty() && !indexed {
            let why = "cannot set non-empty completedIndexes when non-indexed completion mode";
            errors.invalid(&done, why);
        }
        if lost_changes && !per_index && lost.is_set() {
            let why = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
            errors.invalid(&lost, why);
        }
        if let Some(completions) = completions.filter(|_| done_changes || lost_changes)
            && let Some(both) = overlap(done.text(), lost.text(), completions)
        {
            let why = format!("failedIndexes and completedIndexes overlap at index: {both}");
            errors.invalid(&lost, &why);
        }
    }

    fn validate_rest(&self, errors: &mut Errors) {
        let status = &self.status;
        let terminating = (self.finishes() || self.changes(&["terminating"]))
            && number(status, "terminating") > 0;
        if terminating && is_finished(status) {
            errors
                .invalid(&status.field("terminating"), "terminating>0 is invalid for finished job");
        }
        let ready = status.field("ready");
        if self.changes(&["ready", "active"]) && ready.int() > Some(number(status, "active")) {
            errors.invalid(&ready, "cannot set more ready pods than active");
        }
        if !self.is("SuccessCriteriaMet") {
            if self.spec.field("successPolicy").is_set() && self.is("Complete") {
                let why = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
                wrong(status, why, errors);
            }
            return;
        }
        for other in ["Failed", "FailureTarget"] {
            if self.is(other) {
                let why = format!("cannot set SuccessCriteriaMet=True and {other}=true conditions");
                wrong(status, &why, errors);
            }
        }
    }

    /// Conditions, times and counters that cannot be reverted.
    fn validate_progress(&self, errors: &mut Errors) {
        let (status, before) = (&self.status, &self.before);
        for type_ in ["Failed", "Complete", "FailureTarget"] {
            if holds(before, type_) && !self.is(type_) {
                let why = format!("cannot disable the terminal {type_}=True condition");
                wrong(status, &why, errors);
            }
        }
        let spec = &self.spec;
        let elastic = spec.field("completionMode").text() == "Indexed"
            && check::same(&spec.field("completions"), &spec.field("parallelism"));
        for (counter, may_fall) in [("failed", false), ("succeeded", elastic)] {
            if number(status, counter) < number(before, counter) && !may_fall {
                let why = format!("cannot decrease the {counter} counter");
                errors.invalid_value(&status.field(counter), number(status, counter), &why);
            }
        }
        let (was, completed) = (before.field("completionTime"), status.field("completionTime"));
        if was.is_set() && completed.is_set() && !check::same(&was, &completed) {
            errors.invalid(&completed, "completionTime cannot be mutated");
        }
        let resumes = holds(before, "Suspended") && !self.is("Suspended");
        let fixed = before.field("startTime").is_set() && !spec.field("suspend").is_true();
        if fixed && !resumes && self.changes(&["startTime"]) {
            let why = "field is immutable for unsuspended job once set";
            errors.invalid(&status.field("startTime"), why);
        }
        if holds(before, "SuccessCriteriaMet") && !self.is("SuccessCriteriaMet") {
            wrong(status, "cannot disable the SuccessCriteriaMet=True condition", errors);
        }
        let late = self.is("SuccessCriteriaMet") && !holds(before, "SuccessCriteriaMet");
        if holds(before, "Complete") && late {
            let why =
                "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
            wrong(status, why, errors);
        }
    }
}

/// The ranges of `1-3,5,6,9`, which must be ascending and below `completions`; or an error message.
fn ranges(text: &str, completions: i64) -> Result<Vec<(i64, i64)>, String> {
    let mut all: Vec<(i64, i64)> = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = range(part, completions)?;
        if let Some((_, before)) = all.last().filter(|(_, before)| *before >= first) {
            return Err(falls(*before, first));
        }
        all.push((first, last));
    }
    Ok(all)
}

fn range(part: &str, completions: i64) -> Result<(i64, i64), String> {
    let ends: Vec<&str> = part.split('-').collect();
    if ends.len() > 2 {
        return Err(format!(
            "the fragment {part:?} violates the requirement that an index interval can have at most two parts separated by '-'"
        ));
    }
    let index = |text: &str| match text.parse::<i64>() {
        Err(_) => Err(format!("cannot convert string to integer for index: {text:?}")),
        Ok(index) if index >= completions => Err(format!("too large index: {text:?}")),
        Ok(index) => Ok(index),
    };
    let first = index(ends[0])?;
    let last = ends.get(1).map(|text| index(text)).transpose()?;
    match last {
        Some(last) if first >= last => Err(falls(first, last)),
        last => Ok((first, last.unwrap_or(first))),
    }
}

fn falls(before: i64, now: i64) -> String {
    format!("non-increasing order, previous: {before}, current: {now}")
}

/// The first index that both have. Malformed texts are reported elsewhere.
fn overlap(a: &str, b: &str, completions: i64) -> Option<i64> {
    let read = |text: &str| -> Vec<(i64, i64)> {
        text.split(',').filter_map(|part| range(part, completions).ok()).collect()
    };
    let (a, b) = (read(a), read(b));
    let (mut left, mut right) = (0, 0);
    while let (Some(x), Some(y)) = (a.get(left), b.get(right)) {
        if x.0 <= y.1 && y.0 <= x.1 {
            return Some(x.0.max(y.0));
        }
        if x.0 <= y.0 { left += 1 } else { right += 1 }
    }
    None
}

#[cfg(test)]
mod tests;
