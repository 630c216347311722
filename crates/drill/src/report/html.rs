//! The report as one HTML page without scripts and without anything to load.

use super::junit::escape;
use super::plot::{class, loss_plot, run_plot};
use super::text::described;
use super::{
    grouped, missing_proof, patch_command, percent, proof, seconds, sorted_losses, verdict,
};
use crate::confidence::loss_upper_bound;
use crate::drill::Drilled;
use crate::experiment::Run;
use crate::outcome::Failure;
use std::collections::BTreeSet;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

pub fn html(drilled: &Drilled) -> String {
    let id = &drilled.target.workload.id;
    let title = escape(&format!("Drill of {id}"));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    head(&mut out, drilled);
    recommendation(&mut out, drilled);
    advice(&mut out, drilled);
    if drilled.runs.len() > 1 {
        out.push_str("<h2>Loss against preStop</h2>\n<figure>");
        out.push_str(&loss_plot(drilled));
        out.push_str(
            "<div class=\"legend\"><span style=\"--c:var(--accent)\">measured, with 95 % interval</span>\
             <span style=\"--c:var(--bad)\">what the target allows</span></div></figure>\n",
        );
    }
    table(&mut out, drilled);
    for (index, run) in shown_runs(drilled) {
        run_section(&mut out, drilled, index, run);
    }
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

/// The workload as it is, and the run with the recommended values.
fn shown_runs(drilled: &Drilled) -> Vec<(usize, &Run)> {
    let last = drilled.recommended.as_ref().map_or(drilled.runs.len().saturating_sub(1), |r| r.run);
    let shown = BTreeSet::from([0, last]);
    shown.into_iter().filter_map(|index| Some((index, drilled.runs.get(index)?))).collect()
}

fn head(out: &mut String, drilled: &Drilled) {
    let (target, options) = (&drilled.target, &drilled.options);
    let began = drilled.runs.first().map(|run| clock::rfc3339(run.began)).unwrap_or_default();
    let kinds: Vec<&str> = options.connections.iter().map(|kind| kind.word()).collect();
    let delay = options.proxy_delay.as_ref().map(|delay| {
        format!(" Packet rules of all nodes were delayed by {}.", escape(&delay.text))
    });
    let _ = writeln!(
        out,
        "<p class=\"soft\">{began}. {} requests per second ({}) through the {} ({}), container {}.{}</p>",
        options.rate,
        kinds.join(", "),
        escape(&target.via),
        escape(&target.address.to_string()),
        escape(&target.container),
        delay.unwrap_or_default(),
    );
    let missed = if drilled.reached() { "" } else { " missed" };
    let _ = writeln!(out, "<p class=\"verdict{missed}\">{}</p>", escape(&verdict(drilled)));
}

fn recommendation(out: &mut String, drilled: &Drilled) {
    let searched = drilled.runs.len() > 1 || drilled.recommended.is_some();
    if searched {
        out.push_str(
            "<h2>Smallest values</h2>\n<table class=\"values\"><thead><tr><th>answered</th><th>preStop</th>\
                      <th>grace period</th></tr></thead><tbody>\n",
        );
        for (level, setting) in &drilled.levels {
            let (hook, grace) = match setting {
                Some(setting) => (
                    format!("{} s", setting.pre_stop_seconds),
                    format!("{} s", setting.grace_seconds),
                ),
                None => ("not reached".to_owned(), String::new()),
            };
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td>{hook}</td><td>{grace}</td></tr>",
                percent(*level)
            );
        }
        out.push_str("</tbody></table>\n");
    }
    let Some(found) = &drilled.recommended else { return };
    let (tally, target) = (found.tally, drilled.options.target);
    let _ = writeln!(
        out,
        "<h2>Recommended for {}</h2>\n<p>preStop {} s, grace period {} s: {} of {} requests lost; {}.</p>",
        percent(target),
        found.setting.pre_stop_seconds,
        found.setting.grace_seconds,
        grouped(tally.failed),
        grouped(tally.total),
        proof(tally),
    );
    if let Some(missing) = missing_proof(tally, target) {
        let _ = writeln!(out, "<p class=\"soft\">{}.</p>", escape(&missing));
    }
    if let Some(command) = patch_command(drilled) {
        let _ = writeln!(out, "<pre>{}</pre>", escape(&command));
    }
}

fn advice(out: &mut String, drilled: &Drilled) {
    if drilled.advice.is_empty() && drilled.notes.is_empty() {
        return;
    }
    out.push_str("<h2>What else to know</h2>\n");
    for advice in &drilled.advice {
        let _ = writeln!(
            out,
            "<p>{}.<br><strong>{}</strong></p>",
            escape(&advice.finding),
            escape(&advice.remedy)
        );
    }
    for note in &drilled.notes {
        let _ = writeln!(out, "<p class=\"soft\">Note: {}.</p>", escape(note));
    }
}

fn table(out: &mut String, drilled: &Drilled) {
    out.push_str(
        "<h2>All measurements</h2>\n<table class=\"runs\"><thead><tr><th>preStop</th><th>grace</th><th>requests</th><th>lost</th>\
         <th>answered</th><th>at 95 % confidence</th><th>rollout</th><th>forecast</th><th>all gone</th>\
         <th></th></tr></thead><tbody>\n",
    );
    for (index, run) in drilled.runs.iter().enumerate() {
        let tally = run.tally();
        let bound = 1.0 - loss_upper_bound(tally.failed, tally.total);
        let forecast = drilled.forecasts.get(index).copied().flatten().map(seconds);
        let remark = match (index, &drilled.recommended) {
            (0, _) => "as configured",
            (index, Some(found)) if found.run == index => "recommended",
            _ => "",
        };
        let _ = writeln!(
            out,
            "<tr><td>{} s</td><td>{} s</td><td>{}</td><td>{}</td><td>{}</td><td>≥ {}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{remark}</td></tr>",
            run.setting.pre_stop_seconds,
            run.setting.grace_seconds,
            grouped(tally.total),
            grouped(tally.failed),
            percent(tally.success()),
            percent(bound),
            seconds(run.mean_rollout()),
            forecast.unwrap_or_default(),
            seconds(run.mean_settled()),
        );
    }
    out.push_str("</tbody></table>\n");
}

fn run_section(out: &mut String, drilled: &Drilled, index: usize, run: &Run) {
    let what = match (index, &drilled.recommended) {
        (0, _) => "As configured",
        (index, Some(found)) if found.run == index => "With the recommended values",
        _ => "Last run",
    };
    let _ = writeln!(
        out,
        "<h2>{what}: preStop {} s, grace period {} s</h2>\n<figure>{}",
        run.setting.pre_stop_seconds,
        run.setting.grace_seconds,
        run_plot(run, &format!("run{index}"))
    );
    out.push_str("<div class=\"legend\"><span style=\"--c:var(--good)\">answered</span>");
    let seen: BTreeSet<Failure> = run.losses.values().map(|loss| loss.failure).collect();
    for failure in seen {
        let variable = class(failure).trim_start_matches("f-");
        let _ = write!(
            out,
            "<span style=\"--c:var(--{variable})\">{}</span>",
            escape(failure.phrase())
        );
    }
    out.push_str(
        "<span style=\"--c:var(--start)\">pod starts</span><span style=\"--c:var(--serve)\">ready</span>\
         <span style=\"--c:var(--hook)\">deleted, preStop</span><span style=\"--c:var(--stop)\">stop signal sent</span>\
         <span style=\"--c:var(--gone)\">exited</span>",
    );
    if run.killed_pods() > 0 {
        out.push_str("<span style=\"--c:var(--kill)\">SIGKILL</span>");
    }
    out.push_str("</div></figure>\n");
    let losses = sorted_losses(run);
    if losses.is_empty() {
        out.push_str("<p>No request was lost.</p>\n");
        return;
    }
    out.push_str("<table class=\"causes\"><thead><tr><th>lost</th><th>how, and at which step of a pod</th></tr></thead><tbody>\n");
    for (failure, step, count) in losses {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{}</td></tr>",
            grouped(count),
            escape(&described(failure, step))
        );
    }
    out.push_str("</tbody></table>\n");
}
