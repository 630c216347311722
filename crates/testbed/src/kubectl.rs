//! kubectl as people use it: shell scripts in which `kubectl` is the version under test, with its own
//! kubeconfig, home directory and cache.

use crate::process::Background;
use crate::tools::tool;
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// No script takes that many seconds, unless it hangs.
const SCRIPT_MAX_SECONDS: &str = "60";

#[derive(Debug)]
pub struct Kubectl {
    pub version: String,
    pub namespace: String,
    home: PathBuf,
}

impl Kubectl {
    /// A kubectl whose current namespace is this one, which is created unless it is `default`. `home` is created.
    pub fn new(
        home: PathBuf,
        kubeconfig: &Path,
        installed: &InstalledKubectl,
        namespace: &str,
    ) -> Kubectl {
        let InstalledKubectl { version, path } = installed;
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
        let kubectl = Kubectl { version: version.clone(), namespace: namespace.into(), home };
        if namespace != "default" {
            kubectl.ok(&format!(
                "kubectl create namespace {namespace}
                 kubectl config set-context --current --namespace={namespace}"
            ));
        }
        kubectl
    }

    /// The first kubectl that is installed, in the namespace `default`.
    pub fn first(home: PathBuf, kubeconfig: &Path) -> Kubectl {
        Kubectl::new(home, kubeconfig, &installed_kubectls()[0], "default")
    }

    /// Runs a script, which may fail.
    pub fn run(&self, script: &str) -> ScriptOutput {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", SCRIPT_MAX_SECONDS, "sh", "-ec", script]);
        let output =
            self.set_environment(&mut command).output().expect("`timeout` and `sh` can be run");
        ScriptOutput {
            script: format!("{script}   # kubectl {}", self.version),
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs a script that must succeed; returns what it printed.
    #[track_caller]
    pub fn ok(&self, script: &str) -> String {
        let output = self.run(script);
        assert_eq!(output.code, 0, "should succeed:\n{output}");
        output.stdout
    }

    /// Runs a script that must print this; white space at both ends does not count.
    #[track_caller]
    pub fn prints(&self, script: &str, expected: &str) {
        let output = self.run(script);
        assert_eq!(output.code, 0, "should succeed:\n{output}");
        assert_eq!(output.stdout.trim(), expected.trim(), "stdout differs:\n{output}");
    }

    /// Runs a script that must print all of these words, in this order.
    #[track_caller]
    pub fn shows(&self, script: &str, words: &[&str]) {
        let output = self.run(script);
        assert_eq!(output.code, 0, "should succeed:\n{output}");
        output.has_in_order(words);
    }

    /// Runs a script that must fail with an error message that contains this.
    #[track_caller]
    pub fn fails(&self, script: &str, words: &str) {
        let output = self.run(script);
        assert_ne!(output.code, 0, "should fail:\n{output}");
        assert!(output.stderr.contains(words), "stderr should contain {words:?}:\n{output}");
    }

    /// Starts a script in the background. It should `exec` its last command, so that a kill reaches that command.
    pub fn spawn(&self, script: &str) -> Background {
        Background::spawn(self.set_environment(Command::new("sh").args(["-ec", script])))
    }

    pub fn is_before(&self, minor: u32) -> bool {
        let ours = self.version.split('.').nth(1).and_then(|minor| minor.parse().ok());
        ours.is_some_and(|ours: u32| ours < minor)
    }

    fn set_environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
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

/// What a script printed, and its exit code.
pub struct ScriptOutput {
    pub script: String,
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl ScriptOutput {
    #[track_caller]
    pub fn has_in_order(&self, words: &[&str]) {
        let mut rest = self.stdout.as_str();
        for word in words {
            let Some(at) = rest.find(word) else {
                panic!("stdout does not contain {word:?}:\n{self}")
            };
            rest = &rest[at + word.len()..];
        }
    }
}

impl fmt::Display for ScriptOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScriptOutput { script, code, stdout, stderr } = self;
        write!(f, "$ {script}\n[exit {code}]\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

/// A kubectl on this machine.
#[derive(Debug, Clone)]
pub struct InstalledKubectl {
    /// Major and minor version, such as `1.32`.
    pub version: String,
    pub path: PathBuf,
}

/// The versions of kubectl to test with: the first in the PATH, if there is one, and Debian's, which may be the
/// same. `LANDFALL_TEST_KUBECTLS` names others, separated by colons.
pub fn installed_kubectls() -> Vec<InstalledKubectl> {
    let named = std::env::var_os("LANDFALL_TEST_KUBECTLS");
    let candidates: Vec<PathBuf> = match &named {
        Some(paths) => std::env::split_paths(paths).collect(),
        None => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let in_path = std::env::split_paths(&path).map(|folder| folder.join("kubectl"));
            in_path
                .filter(|file| file.is_file())
                .take(1)
                .chain([tool("kubectl-1.20/usr/bin/kubectl")])
                .collect()
        }
    };
    let mut found: Vec<InstalledKubectl> = Vec::new();
    for path in candidates {
        let path = path.canonicalize().unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        let version = version(&path);
        if found.iter().all(|known| known.version != version) {
            found.push(InstalledKubectl { version, path });
        }
    }
    found
}

/// `1.32` of `{"clientVersion": {"major": "1", "minor": "32", …}}`.
fn version(path: &Path) -> String {
    let output = Command::new(path).args(["version", "--client", "-o", "json"]).output();
    let output = output.unwrap_or_else(|why| panic!("{} cannot be run: {why}", path.display()));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let part = |name: &str| json["clientVersion"][name].as_str();
    let (Some(major), Some(minor)) = (part("major"), part("minor")) else {
        panic!("{} does not print its version: {output:?}", path.display());
    };
    format!("{major}.{}", minor.trim_end_matches('+'))
}
