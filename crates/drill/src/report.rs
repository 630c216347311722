//! The results of a drill for people and machines: text, JSON, JUnit and one HTML page.
//!
//! Pure. All formats show the same figures, which are computed here.

mod html;
mod json;
mod junit;
mod plot;
mod text;

#[cfg(test)]
mod tests;

pub use html::html;
pub use json::{forecast_json, json};
pub use junit::junit;
pub use text::{forecast_text, text};

use crate::attribution::Step;
use crate::confidence::{loss_upper_bound, requests_needed};
use crate::drill::Drilled;
use crate::experiment::Run;
use crate::outcome::Failure;
use crate::search::Tally;
use std::collections::BTreeMap;

/// `99.9 %`: up to three digits after the point, and 100 only if nothing was lost.
fn percent(share: f64) -> String {
    let text = format!("{:.3}", share * 100.0);
    let text = match text == "100.000" && share < 1.0 {
        true => "99.999".to_owned(),
        false => text,
    };
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} %")
}

/// `12,345`
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `4.1 s`
fn seconds(time: f64) -> String {
    format!("{time:.1} s")
}

/// What the losses prove.
fn proof(tally: Tally) -> String {
    let bound = loss_upper_bound(tally.failed, tally.total);
    format!("at most {} lost, at 95 % confidence", percent(bound))
}

/// What is missing to prove the target. None: it is proven, or was missed.
fn missing_proof(tally: Tally, target: f64) -> Option<String> {
    let proven = loss_upper_bound(tally.failed, tally.total) <= 1.0 - target + 1e-12;
    if proven || !tally.reaches(target) {
        return None;
    }
    Some(match requests_needed(1.0 - target) {
        Some(needed) => format!(
            "to prove {}, {} requests without a loss are needed: raise --restarts or --rate",
            percent(target),
            grouped(usize::try_from(needed).unwrap_or(usize::MAX))
        ),
        None => "no number of requests proves 100 %".to_owned(),
    })
}

/// How many requests were lost in which way.
fn losses(run: &Run) -> BTreeMap<(Failure, Step), usize> {
    let mut all = BTreeMap::new();
    for loss in run.counted_losses() {
        *all.entry((loss.failure, loss.step)).or_default() += 1;
    }
    all
}

/// The same, most frequent first.
fn sorted_losses(run: &Run) -> Vec<(Failure, Step, usize)> {
    let mut all: Vec<_> =
        losses(run).into_iter().map(|((failure, step), count)| (failure, step, count)).collect();
    all.sort_by_key(|(failure, step, count)| (std::cmp::Reverse(*count), *failure, *step));
    all
}

/// One sentence: was the target reached, and what reaches it.
fn verdict(drilled: &Drilled) -> String {
    let target = percent(drilled.options.target);
    let success = percent(drilled.as_configured().success());
    if drilled.reached() {
        return format!("target {target}: reached as configured ({success})");
    }
    match &drilled.recommended {
        Some(found) => format!(
            "target {target}: missed as configured ({success}); preStop {} s and grace period {} s reach it",
            found.setting.pre_stop_seconds, found.setting.grace_seconds
        ),
        None => format!("target {target}: missed as configured ({success})"),
    }
}

/// The command that applies the recommended values.
fn patch_command(drilled: &Drilled) -> Option<String> {
    let id = &drilled.target.workload.id;
    let patch = drilled.patch()?;
    Some(format!(
        "kubectl patch {}/{} -n {} --patch '{patch}'",
        id.kind.word().to_lowercase(),
        id.key.name(),
        id.key.namespace()
    ))
}
