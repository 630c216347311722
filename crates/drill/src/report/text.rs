//! The report for a terminal.

use super::{
    grouped, missing_proof, patch_command, percent, proof, seconds, sorted_losses, verdict,
};
use crate::attribution::Step;
use crate::confidence::loss_upper_bound;
use crate::drill::Drilled;
use crate::experiment::Run;
use crate::forecast::Forecast;
use crate::outcome::Failure;
use crate::schedule::streams;
use std::fmt::Write;

/// Replaced pods that a forecast lists at most.
const REPLACED_SHOWN: usize = 20;

pub fn text(drilled: &Drilled) -> String {
    let mut out = String::new();
    head(&mut out, drilled);
    table(&mut out, drilled);
    if let Some(run) = drilled.runs.first() {
        causes(&mut out, "lost as configured", run);
    }
    if let Some(run) = drilled.runs.last().filter(|_| drilled.runs.len() > 1) {
        let setting = run.setting;
        causes(&mut out, &format!("lost with preStop {} s", setting.pre_stop_seconds), run);
    }
    levels(&mut out, drilled);
    recommendation(&mut out, drilled);
    for advice in &drilled.advice {
        let _ = writeln!(out, "\n{}.\n  {}", advice.finding, advice.remedy);
    }
    for note in &drilled.notes {
        let _ = writeln!(out, "\nnote: {note}");
    }
    let _ = writeln!(out, "\n{}", verdict(drilled));
    out
}

fn head(out: &mut String, drilled: &Drilled) {
    let (target, options) = (&drilled.target, &drilled.options);
    let _ = writeln!(
        out,
        "{}, container {}, through the {} ({})",
        target.workload.id, target.container, target.via, target.address
    );
    let load = streams(&options.connections, options.rate);
    let load = load.iter().map(|one| format!("{:.0} {}", one.per_second, one.kind.word()));
    let _ = writeln!(
        out,
        "load: {} requests per second ({}); {} per value",
        options.rate,
        load.collect::<Vec<_>>().join(", "),
        restarts(options.restarts)
    );
    if let Some(delay) = &options.proxy_delay {
        let _ = writeln!(out, "packet rules of all nodes were delayed by {}", delay.text);
    }
}

fn restarts(number: u32) -> String {
    if number == 1 { "1 restart".to_owned() } else { format!("{number} restarts") }
}

fn table(out: &mut String, drilled: &Drilled) {
    let _ = writeln!(
        out,
        "\n{:>8} {:>7} {:>10} {:>7} {:>10} {:>16} {:>9} {:>9}",
        "preStop",
        "grace",
        "requests",
        "lost",
        "answered",
        "95 % confidence",
        "rollout",
        "all gone"
    );
    for (index, run) in drilled.runs.iter().enumerate() {
        let tally = run.tally();
        let at_least = 1.0 - loss_upper_bound(tally.failed, tally.total);
        let remark = match (index, &drilled.recommended) {
            (0, _) => "  as configured",
            (index, Some(found)) if found.run == index => "  recommended",
            _ => "",
        };
        let _ = writeln!(
            out,
            "{:>6} s {:>5} s {:>10} {:>7} {:>10} {:>16} {:>9} {:>9}{remark}",
            run.setting.pre_stop_seconds,
            run.setting.grace_seconds,
            grouped(tally.total),
            grouped(tally.failed),
            percent(tally.success()),
            format!("≥ {}", percent(at_least)),
            seconds(run.mean_rollout()),
            seconds(run.mean_settled()),
        );
    }
}

fn causes(out: &mut String, title: &str, run: &Run) {
    let losses = sorted_losses(run);
    if losses.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{title}:");
    for (failure, step, count) in losses {
        let _ = writeln!(out, "{:>8}  {}", grouped(count), described(failure, step));
    }
}

/// `connection refused, after the exit, …`
pub(super) fn described(failure: Failure, step: Step) -> String {
    match (failure, step) {
        (Failure::CutBySigkill, Step::AtKill) | (Failure::NoEndpoint, Step::NoEndpoint) => {
            failure.phrase().to_owned()
        }
        _ => format!("{}, {}", failure.phrase(), step.phrase()),
    }
}

fn levels(out: &mut String, drilled: &Drilled) {
    if drilled.runs.len() < 2 && drilled.recommended.is_none() {
        return;
    }
    let _ = writeln!(out, "\nsmallest values that reach:");
    for (level, setting) in &drilled.levels {
        let answer = match setting {
            Some(setting) => format!(
                "preStop {} s, grace period {} s",
                setting.pre_stop_seconds, setting.grace_seconds
            ),
            None => "not reached".to_owned(),
        };
        let _ = writeln!(out, "{:>10}  {answer}", percent(*level));
    }
}

fn recommendation(out: &mut String, drilled: &Drilled) {
    let Some(found) = &drilled.recommended else { return };
    let (setting, tally) = (found.setting, found.tally);
    let _ = writeln!(
        out,
        "\nrecommended for {}: preStop {} s, grace period {} s",
        percent(drilled.options.target),
        setting.pre_stop_seconds,
        setting.grace_seconds
    );
    let (failed, total) = (grouped(tally.failed), grouped(tally.total));
    let _ = writeln!(out, "  {failed} of {total} requests lost: {}", proof(tally));
    if let Some(missing) = missing_proof(tally, drilled.options.target) {
        let _ = writeln!(out, "  {missing}");
    }
    if let Some(run) = drilled.runs.get(found.run) {
        let forecast = drilled.forecasts.get(found.run).copied().flatten();
        let forecast = forecast.map(|time| format!(" (forecast {})", seconds(time)));
        let _ = writeln!(
            out,
            "  a rollout takes {}{}; the last replaced pod is gone after {}",
            seconds(run.mean_rollout()),
            forecast.unwrap_or_default(),
            seconds(run.mean_settled())
        );
    }
    match patch_command(drilled) {
        Some(command) => {
            let _ = writeln!(out, "  {command}");
        }
        None => {
            let _ = writeln!(out, "  The workload has these values already.");
        }
    }
}

pub fn forecast_text(workload: &str, forecast: &Forecast) -> String {
    let mut out = String::new();
    let range = |best: f64, worst: f64| match (worst - best).abs() < 0.05 {
        true => seconds(best),
        false => format!("{} to {}", seconds(best), seconds(worst)),
    };
    let peak = match forecast.peak_pods_best == forecast.peak_pods_worst {
        true => forecast.peak_pods_best.to_string(),
        false => format!("{} to {}", forecast.peak_pods_best, forecast.peak_pods_worst),
    };
    let _ = writeln!(out, "a rollout of {workload}:");
    let _ = writeln!(out, "  pods at the same time      {peak}");
    let duration = range(forecast.duration_best, forecast.duration_worst);
    let _ = writeln!(out, "  complete after             {duration}");
    let gone = range(forecast.gone_best, forecast.gone_worst);
    let _ = writeln!(out, "  all replaced pods gone     {gone}");
    let _ = writeln!(
        out,
        "\n{:>6} {:>10} {:>13} {:>18}",
        "pod", "deleted", "stop signal", "killed at latest"
    );
    for (number, pod) in forecast.replaced.iter().take(REPLACED_SHOWN).enumerate() {
        let (deleted, signal) = (seconds(pod.deleted), seconds(pod.stop_signal));
        let killed = seconds(pod.killed_at_latest);
        let _ = writeln!(out, "{:>6} {deleted:>10} {signal:>13} {killed:>18}", number + 1);
    }
    let more = forecast.replaced.len().saturating_sub(REPLACED_SHOWN);
    if more > 0 {
        let _ = writeln!(out, "       and {more} more; --output json lists all");
    }
    let _ = writeln!(out, "\nassumed:");
    for assumption in &forecast.assumptions {
        let _ = writeln!(out, "  - {assumption}");
    }
    out
}
