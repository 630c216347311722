//! Processes that run beside a test: their output line by line, their exit, and a kill when the test ends.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A process that is killed when this is dropped. It stays in the test's process group, so that whoever
/// kills the test kills it too.
pub struct Background {
    id: u32,
    lines: Receiver<String>,
    exit: Receiver<ExitStatus>,
    exited: bool,
    stderr: Arc<Mutex<String>>,
    /// Nothing is ever sent; the channel closes when all of `stderr` has been read.
    stderr_read: Receiver<()>,
}

/// How long to wait for the rest of stderr after an exit. A child may have inherited it and still have it open.
const STDERR_MAX: Duration = Duration::from_secs(1);

impl Background {
    pub fn spawn(command: &mut Command) -> Background {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let lines = lines(child.stdout.take().expect("it is piped"));
        let (stderr, stderr_read) = gather(child.stderr.take().expect("it is piped"));
        let id = child.id();
        Background { id, lines, exit: exit(child), exited: false, stderr, stderr_read }
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    /// What it wrote to stderr so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().expect("the reader does not panic").clone()
    }

    /// Waits for a line of output that contains these words and skips others.
    #[track_caller]
    pub fn line(&self, words: &str, bound: Duration) -> String {
        let mut before = Vec::new();
        loop {
            match self.lines.recv_timeout(bound) {
                Ok(line) if line.contains(words) => return line,
                Ok(line) => before.push(line),
                Err(why) => {
                    panic!(
                        "no line with {words:?} ({}); before: {before:#?}; stderr: {}",
                        match why {
                            RecvTimeoutError::Timeout => "the process still runs",
                            RecvTimeoutError::Disconnected => "the process has exited",
                        },
                        self.stderr()
                    );
                }
            }
        }
    }

    /// The next line of output, or why there is none.
    pub fn next(&self, bound: Duration) -> Result<String, RecvTimeoutError> {
        self.lines.recv_timeout(bound)
    }

    /// Waits for its exit, at most `bound`: its code, or `Some(None)` if a signal killed it.
    pub fn exit_within(&mut self, bound: Duration) -> Option<Option<i32>> {
        let status = self.exit.recv_timeout(bound).ok()?;
        self.exited = true;
        Some(status.code())
    }

    /// Waits for its exit. None: a signal killed it.
    #[track_caller]
    pub fn exit(&mut self, bound: Duration) -> Option<i32> {
        let status = self.exit.recv_timeout(bound);
        let status = status.unwrap_or_else(|_| panic!("still running: {}", self.stderr()));
        self.exited = true;
        let _ = self.stderr_read.recv_timeout(STDERR_MAX);
        status.code()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // After it was reaped, another process may have its id.
        if !self.exited && self.exit.try_recv().is_err() {
            signal(self.id, "KILL");
        }
        if thread::panicking() {
            eprintln!("--- stderr of process {}:\n{}", self.id, self.stderr());
        }
    }
}

/// Sends a signal by its name, such as `TERM`.
pub fn signal(id: u32, name: &str) {
    // The shell has `kill` built in; the command of that name may not be installed.
    let script = format!("kill -{name} {id}");
    let status = Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status();
    assert!(status.is_ok(), "sh could not be run");
}

fn lines(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn gather(mut output: impl Read + Send + 'static) -> (Arc<Mutex<String>>, Receiver<()>) {
    let text = Arc::new(Mutex::new(String::new()));
    let gathered = text.clone();
    let (reading, read) = channel();
    thread::spawn(move || {
        let _reading = reading;
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = output.read(&mut buffer) {
            let piece = String::from_utf8_lossy(&buffer[..count]).into_owned();
            gathered.lock().expect("no thread panics while it holds the lock").push_str(&piece);
        }
    });
    (text, read)
}

fn exit(mut child: Child) -> Receiver<ExitStatus> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        if let Ok(status) = child.wait() {
            let _ = sender.send(status);
        }
    });
    receiver
}
