//! kubectl as people use it: commands are typed into a shell, in which `kubectl` is the version
//! under test, with a kubeconfig, a home and a cache of its own.

use super::{Background, Cluster, tool};
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// No command here takes long; one that hangs should say so.
const COMMAND_MAX: &str = "60";

pub(crate) struct Kubectl {
    pub(crate) version: String,
    pub(crate) namespace: String,
    home: PathBuf,
}

impl Kubectl {
    /// A kubectl whose current namespace is this one; it is created if it is not there.
    pub(crate) fn new(cluster: &Cluster, version: &str, path: &Path, namespace: &str) -> Kubectl {
        let home = cluster.dir().join(format!("kubectl-{version}"));
        Kubectl::at_home(home, &cluster.kubeconfig(), (version, path), namespace)
    }

    /// The first kubectl there is, for whoever answers to this kubeconfig.
    pub(crate) fn of(kubeconfig: &Path, home: PathBuf) -> Kubectl {
        let (version, path) = kubectls().remove(0);
        Kubectl::at_home(home, kubeconfig, (&version, &path), "default")
    }

    fn at_home(
        home: PathBuf,
        kubeconfig: &Path,
        (version, path): (&str, &Path),
        namespace: &str,
    ) -> Kubectl {
        fs::create_dir_all(home.join("bin")).expect("a home for kubectl");
        let wrapper = home.join("bin/kubectl");
        let script = format!(
            "#!/bin/sh\nexec '{}' --cache-dir='{}' \"$@\"\n",
            path.display(),
            home.join("cache").display()
        );
        fs::write(&wrapper, script).expect("a wrapper for kubectl");
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).expect("it can be run");
        fs::copy(kubeconfig, home.join("kubeconfig")).expect("there is a kubeconfig");
        let kubectl = Kubectl { version: version.into(), namespace: namespace.into(), home };
        if namespace != "default" {
            kubectl.ok(&format!(
                "kubectl create namespace {namespace}
                 kubectl config set-context --current --namespace={namespace}"
            ));
        }
        kubectl
    }

    /// Runs a script and takes what comes.
    pub(crate) fn run(&self, script: &str) -> Said {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", COMMAND_MAX, "sh", "-ec", script]);
        let output = self.dress(&mut command).output().expect("a shell can be run");
        Said {
            script: format!("{script}   # kubectl {}", self.version),
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs a script that must succeed; answers what it printed.
    #[track_caller]
    pub(crate) fn ok(&self, script: &str) -> String {
        let said = self.run(script);
        assert_eq!(said.code, 0, "should succeed:\n{said}");
        said.stdout
    }

    /// Runs a script that must print this, give or take space around it.
    #[track_caller]
    pub(crate) fn prints(&self, script: &str, expected: &str) {
        let said = self.run(script);
        assert_eq!(said.code, 0, "should succeed:\n{said}");
        assert_eq!(said.stdout.trim(), expected.trim(), "not what it should print:\n{said}");
    }

    /// Runs a script that must print all of these words, in this order.
    #[track_caller]
    pub(crate) fn shows(&self, script: &str, words: &[&str]) {
        let said = self.run(script);
        assert_eq!(said.code, 0, "should succeed:\n{said}");
        said.has_in_order(words);
    }

    /// Runs a script that must fail and say this.
    #[track_caller]
    pub(crate) fn fails(&self, script: &str, words: &str) {
        let said = self.run(script);
        assert_ne!(said.code, 0, "should fail:\n{said}");
        assert!(said.stderr.contains(words), "should say {words:?}:\n{said}");
    }

    /// Starts a script and lets it run. It should `exec` what it runs, which is then what is ended.
    pub(crate) fn spawn(&self, script: &str) -> Background {
        Background::spawn(self.dress(Command::new("sh").args(["-ec", script])))
    }

    pub(crate) fn is_before(&self, minor: u32) -> bool {
        let ours = self.version.split('.').nth(1).and_then(|minor| minor.parse().ok());
        ours.is_some_and(|ours: u32| ours < minor)
    }

    fn dress<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut folders = vec![self.home.join("bin")];
        folders.extend(std::env::split_paths(&path));
        command
            .current_dir(&self.home)
            .env("PATH", std::env::join_paths(folders).expect("PATH can be extended"))
            .env("HOME", &self.home)
            .env("KUBECONFIG", self.home.join("kubeconfig"))
            .env("NS", &self.namespace)
            .stdin(std::process::Stdio::null())
    }
}

/// What a script said, and how it ended.
pub(crate) struct Said {
    pub(crate) script: String,
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    #[track_caller]
    pub(crate) fn has_in_order(&self, words: &[&str]) {
        let mut rest = self.stdout.as_str();
        for word in words {
            let Some(at) = rest.find(word) else { panic!("{word:?} is not there:\n{self}") };
            rest = &rest[at + word.len()..];
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Said { script, code, stdout, stderr } = self;
        write!(f, "$ {script}\n[exit {code}]\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

/// The kubectls to test with, by version: the first in the PATH, if there is one, and Debian's, which
/// may be the same. `LANDFALL_TEST_KUBECTLS` names others, separated by colons.
pub(crate) fn kubectls() -> Vec<(String, PathBuf)> {
    let named = std::env::var_os("LANDFALL_TEST_KUBECTLS");
    let candidates: Vec<PathBuf> = match &named {
        Some(paths) => std::env::split_paths(paths).collect(),
        None => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let own = std::env::split_paths(&path).map(|folder| folder.join("kubectl"));
            own.filter(|file| file.is_file())
                .take(1)
                .chain([tool("kubectl-1.20/usr/bin/kubectl")])
                .collect()
        }
    };
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    for path in candidates {
        let path = path.canonicalize().unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        let version = version(&path);
        if found.iter().all(|(known, _)| *known != version) {
            found.push((version, path));
        }
    }
    found
}

/// `1.32` of `{"clientVersion": {"major": "1", "minor": "32", …}}`.
fn version(path: &Path) -> String {
    let output = Command::new(path).args(["version", "--client", "-o", "json"]).output();
    let output = output.unwrap_or_else(|why| panic!("{} cannot be run: {why}", path.display()));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let part = |name: &str| said["clientVersion"][name].as_str();
    let (Some(major), Some(minor)) = (part("major"), part("minor")) else {
        panic!("{} does not say which version it is: {output:?}", path.display());
    };
    format!("{major}.{}", minor.trim_end_matches('+'))
}
