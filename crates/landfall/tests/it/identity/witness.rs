//! Reads what the pods' processes reported. Each process takes a file lock that is named after its pod (not the uid) and
//! holds it until it exits. A process that finds the lock taken runs at the same time as another one and reports that.
//! The kernel releases locks with their process, so every overlap is found.

use std::path::Path;

/// The program of the pods. It reports a taken lock once and waits for it.
pub(crate) const SCRIPT: &str = include_str!("witness.py");

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    pub(crate) what: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Seconds on the monotonic clock.
    pub(crate) at: f64,
}

pub(crate) fn log(out: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(out.join("log")).unwrap_or_default();
    text.lines().map(line).collect()
}

fn line(text: &str) -> Line {
    let words: Vec<&str> = text.split(' ').collect();
    let [what, name, uid, at] = words[..] else { panic!("not a line: {text:?}") };
    Line { what: what.into(), name: name.into(), uid: uid.into(), at: at.parse().expect("a time") }
}

/// All processes that ran at the same time as another one of their name, with the one that held the lock.
pub(crate) fn pairs(log: &[Line]) -> Vec<(Line, Line)> {
    let besides = log.iter().enumerate().filter(|(_, line)| line.what == "beside");
    let holder = |at: usize, name: &str| {
        let before = log[..at].iter().rev();
        before.into_iter().find(|line| line.what == "start" && line.name == name).cloned()
    };
    let pair = |(at, line): (usize, &Line)| {
        let holder = holder(at, &line.name);
        (line.clone(), holder.unwrap_or_else(|| panic!("no process had the lock: {log:#?}")))
    };
    besides.map(pair).collect()
}
