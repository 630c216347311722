//! What the pods' processes witnessed. Each takes a lock of the kernel that is called after its name (the
//! pod's, not the uid), and holds it to its last instruction: who finds it taken runs beside another, and
//! says so. Locks go with the process, however it ends, so none is missed and none is invented.

use std::path::Path;

/// What they run. It waits for the other, if there is one: a lock that is found taken is told once.
pub(crate) const SCRIPT: &str = include_str!("witness.py");

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    pub(crate) what: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Seconds of this machine's monotonic clock.
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

/// Everybody who ran beside another of its name, and that other: who had the lock.
pub(crate) fn pairs(log: &[Line]) -> Vec<(Line, Line)> {
    let besides = log.iter().enumerate().filter(|(_, line)| line.what == "beside");
    let holder = |at: usize, name: &str| {
        let before = log[..at].iter().rev();
        before.into_iter().find(|line| line.what == "start" && line.name == name).cloned()
    };
    let pair = |(at, line): (usize, &Line)| {
        let holder = holder(at, &line.name);
        (line.clone(), holder.unwrap_or_else(|| panic!("nobody had the lock: {log:#?}")))
    };
    besides.map(pair).collect()
}
