//! kubectl as people use it, in every version there is here.

use super::cluster::{Cluster, PATIENCE};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

pub(crate) struct Shell {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
}

/// How a script ended and what it said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The first kubectl in the PATH, if there is one, and Debian's, which may be the same; or those that
/// `LANDFALL_TEST_KUBECTLS` names.
fn kubectls() -> Vec<PathBuf> {
    let named = std::env::var_os("LANDFALL_TEST_KUBECTLS");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let candidates: Vec<PathBuf> = match &named {
        Some(paths) => std::env::split_paths(paths).collect(),
        None => {
            let debians = root.join("target/tools/kubectl-1.20/usr/bin/kubectl");
            let place = debians.display();
            assert!(debians.is_file(), "{place} is not there: run `scripts/install all`");
            let path = std::env::var_os("PATH").unwrap_or_default();
            let own = std::env::split_paths(&path).map(|folder| folder.join("kubectl"));
            own.filter(|file| file.is_file()).take(1).chain([debians]).collect()
        }
    };
    let mut found: Vec<PathBuf> = Vec::new();
    for path in candidates {
        let path = path.canonicalize().unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        if !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

/// One after the other.
pub(crate) fn shells(cluster: &Cluster) -> Vec<Shell> {
    let shell = |(place, kubectl): (usize, PathBuf)| {
        let home = cluster.dir.path().join(format!("home-{place}"));
        std::fs::create_dir_all(&home).unwrap();
        Shell { kubectl, kubeconfig: cluster.running.kubeconfig.clone(), home }
    };
    kubectls().into_iter().enumerate().map(shell).collect()
}

impl Shell {
    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        let script = format!("kubectl() {{ '{}' \"$@\"; }}\n{script}", self.kubectl.display());
        command
            .args(["-c", &script])
            .env("KUBECONFIG", &self.kubeconfig)
            .env("KUBECTL", &self.kubectl)
            .env("HOME", &self.home)
            .current_dir(&self.home)
            .kill_on_drop(true);
        command
    }

    pub(crate) async fn run(&self, script: &str) -> Said {
        let output = self.command(script).stdin(Stdio::null()).output();
        let output = tokio::time::timeout(PATIENCE, output).await;
        let output = output.unwrap_or_else(|_| panic!("{script} hangs ({self:?})")).unwrap();
        Said {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// It must succeed; answers what it printed.
    pub(crate) async fn ok(&self, script: &str) -> String {
        let said = self.run(script).await;
        assert_eq!(said.code, Some(0), "{script}: {said:?} ({self:?})");
        said.stdout
    }

    /// It must fail and say this.
    pub(crate) async fn fails(&self, script: &str, words: &str) {
        let said = self.run(script).await;
        assert_ne!(said.code, Some(0), "{script}: {said:?} ({self:?})");
        assert!(said.stderr.contains(words), "{script} should say {words:?}: {said:?} ({self:?})");
    }

    /// Starts a script that goes on, and reads its lines.
    pub(crate) fn spawn(&self, script: &str) -> Background {
        let script = format!("exec '{}' {script}", self.kubectl.display());
        let mut child = self.command(&script).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Background { child, lines }
    }
}

impl std::fmt::Debug for Shell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.kubectl.display())
    }
}

pub(crate) struct Background {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Background {
    /// The next line; None at the end.
    pub(crate) async fn line(&mut self) -> Option<String> {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await;
        line.expect("a line in time").unwrap()
    }

    pub(crate) async fn code(mut self) -> Option<i32> {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        ended.expect("an end in time").unwrap().code()
    }
}
