//! Reads the reports of `witness.py`: what its processes reported and when, and when the last of them exited.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// No wait takes this long, even on a slow machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A directory of the node that all pods of a test see as `/out`.
#[derive(Clone)]
pub(crate) struct Place {
    dir: PathBuf,
    reports: Arc<(Mutex<Vec<Line>>, Condvar)>,
}

/// Reported when the last process that had the pipe open has exited.
pub(crate) const GONE: &str = "gone";

#[derive(Debug, Clone)]
struct Line {
    who: String,
    what: String,
    /// Seconds since 1970: the time that the process reported, or else when the line was read.
    at: f64,
}

impl Place {
    pub(crate) fn new(dir: PathBuf) -> Place {
        std::fs::create_dir_all(&dir).expect("a directory for the reports of processes");
        std::fs::write(dir.join("witness.py"), include_str!("witness.py")).expect("it is written");
        Place { dir, reports: Arc::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// A container that runs the witness with these arguments, and a pipe for it. Fields of `more`
    /// are added to it.
    pub(crate) fn witness(&self, name: &str, arguments: &str, more: Value) -> Value {
        self.listen(name);
        let mut command = vec!["python3", "/out/witness.py", name];
        command.extend(arguments.split_whitespace());
        let container = json!({"name": name, "image": "python:1", "command": command});
        with(with(container, json!({"volumeMounts": [{"name": "out", "mountPath": "/out"}]})), more)
    }

    /// A container that runs a shell script; `$P` is its pipe.
    pub(crate) fn shell(&self, name: &str, image: &str, script: &str) -> Value {
        self.listen(name);
        json!({"name": name, "image": image, "command": ["sh", "-c", script],
               "env": [{"name": "P", "value": format!("/out/{name}")}],
               "volumeMounts": [{"name": "out", "mountPath": "/out"}]})
    }

    pub(crate) fn pod(&self, name: &str, grace: u64, containers: Vec<Value>, more: Value) -> Value {
        let spec = json!({
            "terminationGracePeriodSeconds": grace, "automountServiceAccountToken": false,
            "volumes": [{"name": "out", "hostPath": {"path": self.dir}}], "containers": containers});
        let meta = json!({"name": name});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": with(spec, more)})
    }

    /// Reads a pipe for ever and adds `GONE` each time its last writer has exited.
    pub(crate) fn listen(&self, name: &str) {
        let path = self.dir.join(name);
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.is_ok_and(|status| status.success()), "no pipe {}", path.display());
        let (who, reports) = (name.to_owned(), self.reports.clone());
        std::thread::spawn(move || {
            while let Ok(pipe) = std::fs::File::open(&path) {
                let add = |line: &str| {
                    let mut words = line.split_whitespace();
                    let what = words.next().unwrap_or_default().to_owned();
                    let nanos = words.next().and_then(|at| at.parse::<f64>().ok());
                    let at = nanos.map_or_else(now, |nanos| nanos / 1e9);
                    let (lines, changed) = &*reports;
                    lines.lock().unwrap().push(Line { who: who.clone(), what, at });
                    changed.notify_all();
                };
                BufReader::new(pipe).lines().map_while(Result::ok).for_each(|line| add(&line));
                add(GONE);
            }
        });
    }

    /// When this was reported for the first time; waits for it.
    #[track_caller]
    pub(crate) fn at(&self, who: &str, what: &str) -> f64 {
        self.nth(who, what, 0)
    }

    /// When this was reported for the n-th time, counted from 0; waits for it.
    #[track_caller]
    pub(crate) fn nth(&self, who: &str, what: &str, n: usize) -> f64 {
        let (lines, changed) = &*self.reports;
        let find = |lines: &Vec<Line>| {
            let mut all = lines.iter().filter(|line| line.who == who && line.what == what);
            all.nth(n).map(|line| line.at)
        };
        let lines = lines.lock().unwrap();
        let waited = changed.wait_timeout_while(lines, LONG, |lines| find(lines).is_none());
        let (lines, _) = waited.unwrap();
        find(&lines).unwrap_or_else(|| panic!("{who} never reported {what} ({n}): {lines:#?}"))
    }

    /// All reports of a container so far, in order.
    pub(crate) fn words(&self, who: &str) -> Vec<String> {
        let lines = self.reports.0.lock().unwrap();
        lines.iter().filter(|line| line.who == who).map(|line| line.what.clone()).collect()
    }

    /// Seconds between two reports.
    #[track_caller]
    pub(crate) fn between(&self, from: (&str, &str), to: (&str, &str)) -> f64 {
        self.at(to.0, to.1) - self.at(from.0, from.1)
    }
}

/// The current time, on the clock that the processes use.
pub(crate) fn now() -> f64 {
    clock::now().as_nanosecond() as f64 / 1e9
}

/// How many seconds a measured time may differ from the expected one. On a busy machine processes notice events late;
/// `scripts/bench-pods` measures the real precision.
pub(crate) const OFF: f64 = 0.75;

#[track_caller]
pub(crate) fn is_about(what: &str, seconds: f64, wanted: f64) {
    assert!((seconds - wanted).abs() <= OFF, "{what}: {seconds:.3} s instead of {wanted} s");
}

/// Adds the fields of one object to another.
pub(crate) fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut object, more) {
        for (key, value) in more {
            match (fields.get_mut(&key), value) {
                (Some(Value::Array(there)), Value::Array(more)) => there.extend(more),
                (_, value) => drop(fields.insert(key, value)),
            }
        }
    }
    object
}

/// A preStop hook.
pub(crate) fn hook(handler: Value) -> Value {
    json!({"lifecycle": {"preStop": handler}})
}

/// A preStop hook that runs a script in the container.
pub(crate) fn script(script: &str) -> Value {
    hook(json!({"exec": {"command": ["sh", "-c", script]}}))
}
