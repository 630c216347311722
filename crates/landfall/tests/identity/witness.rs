//! What the pods' processes witnessed. Each takes a lock of the kernel that is called after its name (the
//! pod's, not the uid), and holds it to its last instruction: who finds it taken runs beside another, and
//! says so. Locks go with the process, however it ends, so none is missed and none is invented.

use std::path::Path;

/// Waits for the other, if there is one: a lock that is found taken is told once.
pub(crate) const SCRIPT: &str = r#"
say() { read up rest < /proc/uptime; echo "$1 $NAME $ID $up" >> /out/log; }
exec 9>> /out/$NAME.lock
flock -n 9 || { say beside; flock 9; }
say start
trap "say end; exit 0" TERM
while :; do sleep 0.1; done
"#;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    pub(crate) what: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Seconds since this machine was booted.
    pub(crate) at: f64,
}

pub(crate) fn log(out: &Path) -> Vec<Line> {
    let text = std::fs::read_to_string(out.join("log")).unwrap_or_default();
    text.lines().map(line).collect()
}

fn line(text: &str) -> Line {
    let words: Vec<&str> = text.split(' ').collect();
    let [what, name, uid, at] = words[..] else { panic!("not a line: {text:?}") };
    Line {
        what: what.into(),
        name: name.into(),
        uid: uid.into(),
        at: at.parse().expect("a time since the boot"),
    }
}

/// Everybody who ran beside another of its name, and that other: who had the lock.
pub(crate) fn pairs(log: &[Line]) -> Vec<(Line, Line)> {
    let besides = log.iter().enumerate().filter(|(_, line)| line.what == "beside");
    let holder = |at: usize, name: &str| {
        let before = log[..at].iter().rev();
        before.into_iter().find(|line| line.what == "start" && line.name == name).cloned()
    };
    besides
        .map(|(at, line)| (line.clone(), holder(at, &line.name).expect("somebody had the lock")))
        .collect()
}
