//! The server as a process: started in a new directory, measured through /proc, killed by its ID.

use crate::link::{Link, Target};
use crate::load::Ask;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Timeout of the start.
const START_MAX: Duration = Duration::from_secs(60);

/// Interval between two requests to /readyz; small compared with the start.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The kernel shows times in hundredths of a second (`USER_HZ`), on every Linux we know.
const TICK: Duration = Duration::from_millis(10);

/// A server that this program started. Dropping it kills the process and removes its data.
pub(crate) struct Started {
    child: Child,
    begin: Instant,
    pub(crate) url: String,
    data: tempfile::TempDir,
}

impl Started {
    /// Starts a server and waits for its line with `ready`.
    pub(crate) async fn start(binary: &Path) -> Result<Self> {
        let data = tempfile::Builder::new().prefix("landfall-bench-").tempdir()?;
        let begin = Instant::now();
        let mut child = Command::new(binary)
            .args(["server", "--no-controllers", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let printed = child.stdout.take().context("the server has no output")?;
        let mut started = Started { child, begin, url: String::new(), data };
        let url = tokio::time::timeout(START_MAX, address(printed)).await;
        started.url = url.context("the server does not say where it answers")??;
        Ok(started)
    }

    /// Time from the start of the process until /readyz answered ok.
    pub(crate) async fn until_ready(&self, target: &Arc<Target>) -> Result<Duration> {
        let ask = Ask::get("/readyz".to_owned());
        while self.begin.elapsed() < START_MAX {
            if let Ok(mut link) = Link::open(target).await
                && link.call(&ask).await.is_ok()
            {
                return Ok(self.begin.elapsed());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        bail!("the server was not ready within {} s", START_MAX.as_secs())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.data.path().join("pki/ca.crt")
    }

    pub(crate) fn token(&self) -> Result<String> {
        let token = std::fs::read_to_string(self.data.path().join("admin.token"))?;
        Ok(token.trim().to_owned())
    }

    /// The kind of file system that the data is on: on tmpfs, durability costs nothing.
    pub(crate) fn file_system(&self) -> Option<String> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let data = self.data.path().canonicalize().ok()?;
        let mounts = mounts.lines().filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            Some((words.next()?, words.next()?))
        });
        let around = mounts.filter(|(place, _)| data.starts_with(place));
        around.max_by_key(|(place, _)| place.len()).map(|(_, kind)| kind.to_owned())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // Its data is removed too, so an orderly stop is not needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The URL in the line `ready: https://… is answering`. The thread reads on after it, so that the
/// server can always write.
async fn address(printed: ChildStdout) -> Result<String> {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let mut tell = Some(tell);
        for line in BufReader::new(printed).lines().map_while(Result::ok) {
            let url = line.split(' ').find(|word| word.starts_with("https://"));
            if let (true, Some(url)) = (line.starts_with("ready"), url)
                && let Some(tell) = tell.take()
            {
                let _ = tell.send(url.to_owned());
            }
        }
    });
    told.await.context("the server ended before it was ready")
}

/// Memory in bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Memory {
    pub(crate) resident: u64,
    pub(crate) peak: u64,
}

/// The processes that make up a server; none if it is elsewhere.
#[derive(Clone)]
pub(crate) struct Processes(pub(crate) Vec<u32>);

impl Processes {
    /// The CPU time that all of them have used since they began, in user mode and in the kernel.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        self.sum(cpu, |a, b| a + b)
    }

    pub(crate) fn memory(&self) -> Option<Memory> {
        self.sum(memory, |a, b| Memory { resident: a.resident + b.resident, peak: a.peak + b.peak })
    }

    fn sum<T>(&self, of: impl Fn(u32) -> Option<T>, add: impl Fn(T, T) -> T) -> Option<T> {
        let all: Option<Vec<T>> = self.0.iter().map(|pid| of(*pid)).collect();
        all?.into_iter().reduce(add)
    }
}

fn cpu(pid: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may itself hold spaces and parentheses. The state follows as field 3.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(14 - 3);
    let (user, system): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(TICK * (user + system))
}

fn memory(pid: u32) -> Option<Memory> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bytes = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        Some(kibibytes * 1024)
    };
    Some(Memory { resident: bytes("VmRSS:")?, peak: bytes("VmHWM:")? })
}
