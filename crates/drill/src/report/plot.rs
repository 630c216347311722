//! The plots of the HTML page, as SVG: a run over time with its pods below, and loss against preStop.
//!
//! Colours are classes, so that the page's style sheet decides them for light and dark. Every mark has a title.

use super::junit::escape;
use super::{percent, seconds};
use crate::confidence::{loss_lower_bound, loss_upper_bound};
use crate::drill::Drilled;
use crate::experiment::Run;
use crate::outcome::Failure;
use crate::pod_timeline::{PodEvent, PodTimeline};
use std::collections::BTreeMap;
use std::fmt::Write;

const WIDTH: f64 = 960.0;
/// Space for the labels of the vertical axis.
const LEFT: f64 = 150.0;
const RIGHT: f64 = 16.0;
const BARS_HEIGHT: f64 = 170.0;
const ROW_HEIGHT: f64 = 20.0;
const TOP: f64 = 14.0;
/// Space for the labels of the horizontal axis.
const BOTTOM: f64 = 40.0;
/// Bars of a run, about.
const BARS: f64 = 110.0;
/// Pods that are drawn at most.
const PODS_MAX: usize = 60;

/// From values to positions.
struct Scale {
    max: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        let share = (value / self.max).clamp(0.0, 1.0);
        self.from + (self.to - self.from) * share
    }

    /// Round numbers for about `count` labels, from zero.
    fn ticks(&self, count: f64) -> Vec<f64> {
        let rough = self.max / count;
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0];
        let step = steps.iter().map(|step| step * power).find(|step| *step >= rough);
        let step = step.unwrap_or(power * 10.0);
        (0..).map(|n| f64::from(n) * step).take_while(|value| *value <= self.max * 1.0001).collect()
    }
}

/// A number without needless zeros.
fn label(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Requests and failures over time, and the pods on the same axis.
pub(super) fn run_plot(run: &Run, id: &str) -> String {
    let pods = &run.pods[..run.pods.len().min(PODS_MAX)];
    let rows = TOP + BARS_HEIGHT + 26.0;
    let bottom = rows + pods.len() as f64 * ROW_HEIGHT;
    let height = bottom + BOTTOM;
    let x = Scale { max: run.length.max(0.1), from: LEFT, to: WIDTH - RIGHT };
    let tally = run.tally();
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
         <title id=\"{id}-t\">Requests, failures and pods over time, preStop {} s</title>\
         <desc id=\"{id}-d\">{} of {} requests failed within {}; {} pods were created or replaced. The table \
         and the list of causes on this page have the same figures.</desc>",
        run.setting.pre_stop_seconds,
        tally.failed,
        tally.total,
        seconds(run.length),
        run.pods.len(),
    );
    time_axis(&mut out, &x, bottom);
    restart_lines(&mut out, run, &x, bottom);
    bars(&mut out, run, &x);
    for (row, pod) in pods.iter().enumerate() {
        pod_row(&mut out, pod, &x, rows + row as f64 * ROW_HEIGHT, run.length);
    }
    out.push_str("</svg>");
    out
}

fn time_axis(out: &mut String, x: &Scale, bottom: f64) {
    for tick in x.ticks(10.0) {
        let at = x.at(tick);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            label(tick)
        );
    }
    let _ = write!(
        out,
        "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">seconds since the load began</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        bottom + 34.0
    );
}

fn restart_lines(out: &mut String, run: &Run, x: &Scale, bottom: f64) {
    for (number, restart) in run.restarts.iter().enumerate() {
        let _ = write!(
            out,
            "<g><title>restart {}: complete after {}, last replaced pod gone after {}</title>\
             <line class=\"restart\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{text:.1}\" y=\"{y:.1}\">restart</text></g>",
            number + 1,
            seconds(restart.rollout),
            seconds(restart.settled),
            at = x.at(restart.at),
            text = x.at(restart.at) + 4.0,
            y = TOP - 3.0,
        );
    }
}

/// Stacked bars: answered requests below, failures above them by class.
fn bars(out: &mut String, run: &Run, x: &Scale) {
    let width = (run.length / BARS).max(0.05);
    let count = (run.length / width).ceil().max(1.0) as usize;
    let mut answered = vec![0usize; count];
    let mut failed: Vec<BTreeMap<Failure, usize>> = vec![BTreeMap::new(); count];
    for (index, sample) in run.samples.iter().enumerate() {
        let bin = ((sample.due / width) as usize).min(count - 1);
        match run.losses.get(&index) {
            Some(loss) => *failed[bin].entry(loss.failure).or_default() += 1,
            None => answered[bin] += 1,
        }
    }
    let highest = (0..count).map(|bin| answered[bin] + failed[bin].values().sum::<usize>()).max();
    let y = Scale { max: highest.unwrap_or(1).max(1) as f64, from: TOP + BARS_HEIGHT, to: TOP };
    for tick in y.ticks(4.0) {
        let at = y.at(tick);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            label(tick)
        );
    }
    let _ = write!(
        out,
        "<text class=\"axis\" x=\"14\" y=\"{:.1}\">requests per</text><text class=\"axis\" x=\"14\" y=\"{:.1}\">{} s</text>",
        TOP + 12.0,
        TOP + 27.0,
        label((width * 1000.0).round() / 1000.0)
    );
    for bin in 0..count {
        let from = bin as f64 * width;
        let (left, right) = (x.at(from), x.at(from + width));
        let wide = (right - left - 0.6).max(0.6);
        let mut below = 0;
        let parts = failed[bin].iter().map(|(failure, n)| (class(*failure), failure.phrase(), *n));
        for (class, phrase, n) in [("answered", "answered", answered[bin])].into_iter().chain(parts)
        {
            if n == 0 {
                continue;
            }
            let (top, base) = (y.at((below + n) as f64), y.at(below as f64));
            let _ = write!(
                out,
                "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{:.1}\">\
                 <title>{} to {}: {n} {phrase}</title></rect>",
                (base - top).max(0.8),
                seconds(from),
                seconds(from + width),
            );
            below += n;
        }
    }
}

/// The class of a failure in the style sheet.
pub(super) fn class(failure: Failure) -> &'static str {
    match failure {
        Failure::Refused => "f-refused",
        Failure::ResetOnReuse => "f-reset",
        Failure::Cut => "f-cut",
        Failure::CutBySigkill => "f-kill",
        Failure::Timeout => "f-timeout",
        Failure::NoEndpoint => "f-none",
        Failure::Unreachable | Failure::ServerError | Failure::Dns | Failure::Garbled => "f-other",
    }
}

/// The phases of a pod, drawn as one row.
fn pod_row(out: &mut String, pod: &PodTimeline, x: &Scale, y: f64, length: f64) {
    let name = escape(&pod.name);
    let _ = write!(
        out,
        "<text class=\"pod\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\"><title>{name} on {}</title>{}</text>",
        LEFT - 6.0,
        y + 13.0,
        escape(&pod.node),
        escape(&shortened(&pod.name)),
    );
    let begin = pod.created().unwrap_or(0.0);
    let ready = pod.ready().unwrap_or(if pod.created().is_some() { length } else { 0.0 });
    let deleted = pod.deleted().unwrap_or(length);
    let exited = pod.exited().unwrap_or(length);
    let stopped = pod.stop_signal().unwrap_or(exited);
    let gone = pod.removed().unwrap_or(exited);
    for (class, what, from, to) in [
        ("p-start", "starting", begin, ready.min(deleted)),
        ("p-serve", "ready", ready, deleted),
        ("p-hook", "deleted, preStop", deleted, stopped),
        ("p-stop", "stop signal sent", stopped, exited),
        ("p-gone", "exited", exited, gone),
    ] {
        if to - from <= 0.0 || to <= 0.0 || from >= length {
            continue;
        }
        let (left, right) = (x.at(from), x.at(to));
        let _ = write!(
            out,
            "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\">\
             <title>{name}: {what}, {} to {} ({})</title></rect>",
            y + 3.0,
            (right - left).max(1.0),
            ROW_HEIGHT - 6.0,
            seconds(from),
            seconds(to),
            seconds(to - from),
        );
    }
    for mark in &pod.marks {
        let (class, what) = match mark.event {
            PodEvent::Killed => ("m-kill", "SIGKILL".to_owned()),
            PodEvent::RulesChanged => ("m-rules", "packet rules changed".to_owned()),
            PodEvent::Exited { code } => ("m-exit", format!("exited with {code}")),
            _ => continue,
        };
        let _ = write!(
            out,
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"3\" height=\"{:.1}\">\
             <title>{name}: {what} at {:.2} s</title></rect>",
            x.at(mark.at) - 1.5,
            y + 1.0,
            ROW_HEIGHT - 2.0,
            mark.at,
        );
    }
}

/// The end of a pod's name, which differs between pods.
fn shortened(name: &str) -> String {
    const ROOM: usize = 20;
    let length = name.chars().count();
    match length > ROOM {
        true => format!("…{}", name.chars().skip(length - ROOM + 1).collect::<String>()),
        false => name.to_owned(),
    }
}

/// Loss against preStop, with the interval that each measurement is consistent with.
pub(super) fn loss_plot(drilled: &Drilled) -> String {
    const HEIGHT: f64 = 260.0;
    let bottom = HEIGHT - BOTTOM;
    let points: Vec<(f64, crate::search::Tally)> = drilled
        .runs
        .iter()
        .map(|run| (f64::from(run.setting.pre_stop_seconds), run.tally()))
        .collect();
    let longest = points.iter().map(|(seconds, _)| *seconds).fold(1.0, f64::max);
    let upper = |tally: crate::search::Tally| loss_upper_bound(tally.failed, tally.total);
    let allowed = 1.0 - drilled.options.target;
    let highest = points.iter().map(|(_, tally)| upper(*tally)).fold(allowed * 1.2, f64::max);
    let x = Scale { max: longest * 1.05, from: LEFT, to: WIDTH - RIGHT };
    let y = Scale { max: (highest * 105.0).max(0.01), from: bottom, to: TOP };
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"loss-t loss-d\">\
         <title id=\"loss-t\">Lost requests against the length of the preStop sleep</title>\
         <desc id=\"loss-d\">{} measurements; the table on this page has the same figures.</desc>",
        points.len()
    );
    for tick in y.ticks(5.0) {
        let at = y.at(tick);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} %</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            label(tick)
        );
    }
    for tick in x.ticks(10.0).into_iter().filter(|tick| tick.fract() == 0.0) {
        let _ = write!(
            out,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x.at(tick),
            bottom + 16.0,
            label(tick)
        );
    }
    let _ = write!(
        out,
        "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">preStop sleep in seconds</text>\
         <text class=\"axis\" x=\"14\" y=\"{:.1}\">lost requests</text>\
         <g><title>the target allows {} to be lost</title><line class=\"target\" x1=\"{LEFT}\" x2=\"{:.1}\" \
         y1=\"{line:.1}\" y2=\"{line:.1}\"/></g>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        bottom + 34.0,
        TOP + 12.0,
        percent(allowed),
        WIDTH - RIGHT,
        line = y.at(allowed * 100.0),
    );
    loss_points(&mut out, &points, &x, &y);
    out.push_str("</svg>");
    out
}

fn loss_points(out: &mut String, points: &[(f64, crate::search::Tally)], x: &Scale, y: &Scale) {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let loss = |tally: crate::search::Tally| (1.0 - tally.success()) * 100.0;
    let line = sorted
        .iter()
        .map(|(value, tally)| format!("{:.1},{:.1}", x.at(*value), y.at(loss(*tally))));
    let _ = write!(
        out,
        "<polyline class=\"curve\" points=\"{}\"/>",
        line.collect::<Vec<_>>().join(" ")
    );
    for (value, tally) in sorted {
        let at = x.at(value);
        let low = loss_lower_bound(tally.failed, tally.total) * 100.0;
        let high = loss_upper_bound(tally.failed, tally.total) * 100.0;
        let _ = write!(
            out,
            "<g><title>preStop {value} s: {} of {} requests lost; between {:.3} % and {:.3} % at 95 % \
             confidence</title><line class=\"interval\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
             <circle class=\"point\" cx=\"{at:.1}\" cy=\"{:.1}\" r=\"4.5\"/></g>",
            tally.failed,
            tally.total,
            low,
            high,
            y.at(low),
            y.at(high),
            y.at(loss(tally)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_labels() {
        let ticks = |max: f64, count| {
            Scale { max, from: 0.0, to: 1.0 }
                .ticks(count)
                .iter()
                .map(|t| label(*t))
                .collect::<Vec<_>>()
        };
        assert_eq!(ticks(10.0, 5.0), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(ticks(0.13, 4.0), ["0", "0.05", "0.1"]);
        assert_eq!(ticks(47.0, 4.0), ["0", "20", "40"]);
    }

    #[test]
    fn values_outside_are_drawn_at_the_edge() {
        let scale = Scale { max: 10.0, from: 100.0, to: 200.0 };
        assert_eq!((scale.at(5.0), scale.at(-1.0), scale.at(99.0)), (150.0, 100.0, 200.0));
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("web-1"), "web-1");
        assert_eq!(shortened("frontend-76d9f8b7c4-x2x4z"), "…nd-76d9f8b7c4-x2x4z");
    }
}
