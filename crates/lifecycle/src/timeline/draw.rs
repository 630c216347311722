//! A record as text for a terminal: a heading, a bar for every container, one line per step.
//!
//! Control characters in the output of containers and clients never reach the terminal.

use super::{Outcome, Request, Step, StepKind, TerminationRecord};
use jiff::{SignedDuration, Timestamp};

/// Lines of a hook's output that are shown; the record has all of it.
const OUTPUT_LINES: usize = 12;
/// Smallest width; narrower terminals wrap.
const WIDTH_MIN: usize = 60;
/// Names of containers and actors are shortened to this.
const NAME_WIDTH: usize = 24;

/// Draws a record, at most `width` columns wide. `now` is the end of the bars of an unfinished termination.
pub fn draw(record: &TerminationRecord, width: usize, now: Timestamp) -> String {
    let width = width.max(WIDTH_MIN);
    let mut lines = heading(record, now);
    lines.extend(bars(record, width, now));
    lines.push(String::new());
    lines.extend(steps(record, width));
    let mut text = String::new();
    for line in lines {
        text.push_str(cut(&line, width).trim_end());
        text.push('\n');
    }
    text
}

fn heading(record: &TerminationRecord, now: Timestamp) -> Vec<String> {
    let pod = &record.pod;
    let namespace = record.metadata.namespace.as_deref().unwrap_or_default();
    let mut first = format!("pod {namespace}/{}", pod.name);
    if !pod.node.is_empty() {
        first += &format!(" on node {}", pod.node);
    }
    if !pod.owner.is_empty() {
        first += &format!(", of {}", pod.owner);
    }
    let mut lines = vec![first];
    lines.extend(
        record.request.as_ref().map(|request| format!("requested by {}", requester(request))),
    );
    lines.extend(verdict(record, now));
    lines
}

/// The user, the client, the way, and the grace period.
fn requester(request: &Request) -> String {
    let mut text = request.by.clone();
    if !request.agent.is_empty() {
        let agent = request.agent.split([' ', '(']).next().unwrap_or_default();
        text += &format!(" ({agent})");
    }
    if !request.through.is_empty() {
        text += &format!(" through {}", request.through);
    }
    match (request.grace_asked_seconds, request.grace_seconds) {
        (Some(requested), Some(grace)) if requested != grace => {
            text += &format!(", grace period {grace} s ({requested} s requested)");
        }
        (_, Some(grace)) => text += &format!(", grace period {grace} s"),
        (_, None) => {}
    }
    text
}

/// The outcome, and the reasons on lines of their own.
fn verdict(record: &TerminationRecord, now: Timestamp) -> Vec<String> {
    let started = record.started.unwrap_or(now);
    let took = span(record.ended.unwrap_or(now).duration_since(started));
    let first = match (record.outcome, record.ended) {
        (Outcome::Ending, _) => {
            match record.request.as_ref().and_then(|requested| requested.deadline) {
                Some(deadline) if deadline > now => {
                    format!("Ending for {took}, {} left", span(deadline.duration_since(now)))
                }
                _ => format!("Ending for {took}"),
            }
        }
        (Outcome::Forced, None) => format!("Forced {took} ago, not confirmed by its node"),
        (outcome, _) => format!("{} after {took}", outcome.word()),
    };
    let why = record.summary.split("; ").filter(|part| !part.is_empty());
    std::iter::once(first).chain(why.map(|part| format!("  {part}"))).collect()
}

/// One bar per container, from the request to its exit.
fn bars(record: &TerminationRecord, width: usize, now: Timestamp) -> Vec<String> {
    let containers = containers(record);
    let Some(scale) = Scale::of(record, now) else { return Vec::new() };
    if containers.is_empty() {
        return Vec::new();
    }
    let longest = containers.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let label = longest.min(NAME_WIDTH);
    let room = width - label - 2;
    let mut lines = vec![String::new()];
    for name in &containers {
        lines.push(format!("{}  {}", fit(name, label), scale.bar(record, name, room)));
    }
    let end = span(scale.length);
    let gap = room.saturating_sub(1 + end.chars().count());
    lines.push(format!("{}  0{}{end}", " ".repeat(label), " ".repeat(gap)));
    lines.push(format!(
        "{}  ▒ preStop hook  █ stop signal sent  ✗ killed  ● exited",
        " ".repeat(label)
    ));
    lines
}

/// Containers in the order of their first steps.
fn containers(record: &TerminationRecord) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for step in record.steps.iter().filter(|step| !step.container.is_empty()) {
        if !names.contains(&step.container) {
            names.push(step.container.clone());
        }
    }
    names
}

struct Scale {
    from: Timestamp,
    length: SignedDuration,
    now: Timestamp,
}

impl Scale {
    fn of(record: &TerminationRecord, now: Timestamp) -> Option<Scale> {
        let from = record.started?;
        let last = record.steps.iter().map(|step| step.at).max()?;
        let end = if record.ended.is_none() { last.max(now) } else { last };
        let length = end.duration_since(from);
        (length > SignedDuration::ZERO).then_some(Scale { from, length, now })
    }

    /// The column of a moment, 0 to `room` - 1.
    fn column(&self, at: Timestamp, room: usize) -> usize {
        let passed = at.duration_since(self.from).as_nanos().max(0);
        let whole = self.length.as_nanos().max(1);
        let column = passed.saturating_mul(room as i128 - 1) / whole;
        usize::try_from(column).unwrap_or(0).min(room - 1)
    }

    fn bar(&self, record: &TerminationRecord, container: &str, room: usize) -> String {
        let mut cells = vec![' '; room];
        let (mut from, mut fill) = (0, '·');
        for step in record.steps.iter().filter(|step| step.container == container) {
            let column = self.column(step.at, room);
            let (mark, next) = match &step.what {
                StepKind::HookStarted { .. } => (None, '▒'),
                StepKind::HookEnded { .. } if fill == '▒' => (None, '·'),
                StepKind::Signal { .. } => (None, '█'),
                StepKind::Exited { signal, .. } if signal == "SIGKILL" => (Some('✗'), ' '),
                StepKind::Exited { .. } | StepKind::Lost => (Some('●'), ' '),
                _ => continue,
            };
            cells[from..column.max(from)].fill(fill);
            (from, fill) = (column, next);
            if let Some(mark) = mark {
                cells[column] = mark;
                from = column + 1;
            } else if next != '·' {
                // Even an instant is visible.
                cells[column] = next;
            }
        }
        if fill != ' ' && record.ended.is_none() {
            let column = self.column(self.now, room);
            let end = (column + 1).max(from);
            cells[from..end].fill(fill);
        }
        cells.into_iter().collect()
    }
}

fn steps(record: &TerminationRecord, width: usize) -> Vec<String> {
    let mut lines: Vec<String> =
        record.steps.iter().flat_map(|step| step_lines(record, step, width)).collect();
    if record.dropped > 0 {
        lines.push(format!("{:>11}  {} more steps were not kept", "", record.dropped));
    }
    lines
}

/// One step as [`draw`] draws it, for `--follow`.
pub fn draw_step(record: &TerminationRecord, step: &Step, width: usize) -> String {
    let width = width.max(WIDTH_MIN);
    let lines = step_lines(record, step, width).into_iter();
    lines.map(|line| cut(&line, width).trim_end().to_owned() + "\n").collect()
}

fn step_lines(record: &TerminationRecord, step: &Step, width: usize) -> Vec<String> {
    let actors = record.steps.iter().map(|step| step.actor.chars().count()).max().unwrap_or(0);
    let since = record.started.unwrap_or_default();
    let time = format!("{:+.3}", step.at.duration_since(since).as_secs_f64());
    let head = format!("{time:>9} s  {}  ", fit(&step.actor, actors.min(NAME_WIDTH)));
    let mut text = description(step);
    if !step.message.is_empty() {
        text += &format!(": {}", plain(&step.message));
    }
    let mut lines = wrapped(&head, &text, width);
    let blank = " ".repeat(head.chars().count());
    lines.extend(output(step).map(|line| format!("{blank}│ {line}")));
    lines
}

/// A step in words.
fn description(step: &Step) -> String {
    let of =
        if step.container.is_empty() { String::new() } else { format!("{}: ", step.container) };
    let text = match &step.what {
        StepKind::Requested(request) => format!("termination requested by {}", requester(request)),
        StepKind::Shortened(request) => format!("grace period shortened by {}", requester(request)),
        StepKind::UnsafeByRequest { by } => {
            format!("UNSAFE BY REQUEST of {by}: the node has not confirmed that the pod is gone")
        }
        StepKind::Seen { grace_seconds, reason } => match grace_seconds {
            Some(grace) => format!("termination starts ({reason}), grace period {grace} s"),
            None => format!("termination starts ({reason})"),
        },
        StepKind::Held => "hook and stop signal wait until no new connections arrive".to_owned(),
        StepKind::Acknowledged { by } => format!("{by} sends no new connections"),
        StepKind::Drained => "no new connections arrive".to_owned(),
        StepKind::DrainTimedOut { missing } if missing.is_empty() => {
            "STOPS WAITING for the end of new connections".to_owned()
        }
        StepKind::DrainTimedOut { missing } => {
            format!("STOPS WAITING, still missing: {}", missing.join(", "))
        }
        StepKind::HookStarted { hook } => format!("preStop hook starts ({hook})"),
        StepKind::HookEnded { succeeded, exit_code, http_status, .. } => {
            let how = if *succeeded { "done" } else { "FAILED" };
            let code = exit_code.map(|code| format!(", exit code {code}"));
            let status = http_status.map(|status| format!(", HTTP {status}"));
            let detail = code.or(status).unwrap_or_default();
            format!("preStop hook {how}{detail}")
        }
        StepKind::HookOverran => "preStop hook OVERRAN the grace period".to_owned(),
        StepKind::Signal { signal, target, reason } if reason.is_empty() => {
            format!("{signal} to {target}")
        }
        StepKind::Signal { signal, target, reason } => format!("{signal} to {target}, {reason}"),
        StepKind::Exited { exit_code, signal, oom } => {
            let oom = if *oom { ", out of memory" } else { "" };
            match signal.as_str() {
                "" => format!("exited with {exit_code}{oom}"),
                signal => format!("terminated by {signal}, exit code {exit_code}{oom}"),
            }
        }
        StepKind::Lost => "gone; its exit was not observed".to_owned(),
        StepKind::SandboxStopped => "no process is left".to_owned(),
        StepKind::NetworkGone => "network gone".to_owned(),
        StepKind::VolumesGone => "volumes gone".to_owned(),
        StepKind::CgroupGone => "cgroup gone".to_owned(),
        StepKind::StatusWritten => "last status written".to_owned(),
        StepKind::Removed => "object removed".to_owned(),
        StepKind::EndpointFlipped { slice, .. } => {
            format!("endpoint set to terminating in {slice}")
        }
        StepKind::RulesCommitted { slice, .. } if slice.is_empty() => {
            "no packets are sent to the pod".to_owned()
        }
        StepKind::RulesCommitted { slice, .. } => {
            format!("no packets are sent to the pod because of {slice}")
        }
        StepKind::AgentRestarted => "AGENT RESTARTED, continues here".to_owned(),
    };
    plain(&format!("{of}{text}"))
}

fn output(step: &Step) -> impl Iterator<Item = String> {
    let text = match &step.what {
        StepKind::HookEnded { output, .. } => output.as_str(),
        _ => "",
    };
    let lines = text.lines().count();
    let rest = (lines > OUTPUT_LINES).then(|| format!("… {} more lines", lines - OUTPUT_LINES));
    let shown: Vec<String> = text.lines().take(OUTPUT_LINES).map(plain).chain(rest).collect();
    shown.into_iter()
}

/// Breaks a text between words and indents all lines alike.
fn wrapped(head: &str, text: &str, width: usize) -> Vec<String> {
    let indent = head.chars().count();
    let room = width.saturating_sub(indent).max(20);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let used = lines.last().map_or(0, |line| line.chars().count());
        if used > 0 && used + 1 + word.chars().count() > room {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    let blank = " ".repeat(indent);
    let first = |place: usize| if place == 0 { head } else { &blank };
    lines.iter().enumerate().map(|(place, line)| format!("{}{line}", first(place))).collect()
}

/// Replaces control characters.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn cut(line: &str, width: usize) -> String {
    let line = plain(line);
    if line.chars().count() <= width {
        return line;
    }
    line.chars().take(width - 1).chain(['…']).collect()
}

/// Exactly `width` characters.
fn fit(text: &str, width: usize) -> String {
    let text: String = if text.chars().count() > width { cut(text, width) } else { plain(text) };
    format!("{text:width$}")
}

/// `850 µs`, `12 ms`, `1.25 s`, `31.5 s`, `2m05s`, `1h00m`.
pub fn span(duration: SignedDuration) -> String {
    let micros = duration.as_micros().max(0);
    let seconds = micros as f64 / 1e6;
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..1_000_000 => format!("{} ms", micros / 1000),
        1_000_000..10_000_000 => format!("{seconds:.2} s"),
        10_000_000..100_000_000 => format!("{seconds:.1} s"),
        _ => {
            let (minutes, seconds) = (micros / 60_000_000, micros / 1_000_000 % 60);
            match minutes {
                0..60 => format!("{minutes}m{seconds:02}s"),
                _ => format!("{}h{:02}m", minutes / 60, minutes % 60),
            }
        }
    }
}
