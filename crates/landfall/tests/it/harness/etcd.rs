//! A store that several servers can share.

use super::{Background, Cluster, START_MAX};
use std::path::Path;
use std::process::Command;

/// Debian's etcd, on two free ports, for one test.
pub(crate) struct Etcd {
    _process: Background,
    _dir: tempfile::TempDir,
    pub(crate) address: String,
}

impl Etcd {
    pub(crate) fn start() -> Etcd {
        let there = Command::new("etcd").arg("--version").output();
        assert!(there.is_ok(), "etcd is not installed: run `scripts/install all`");
        let dir = tempfile::tempdir().expect("a directory");
        let free = || {
            let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
            socket.local_addr().expect("it has an address").to_string()
        };
        let (address, peers) = (free(), free());
        let (client_url, peer_url) = (format!("http://{address}"), format!("http://{peers}"));
        let mut command = Command::new("sh");
        // etcd logs to stderr; the line that says that it is ready must be read from stdout.
        command.args(["-c", "exec etcd \"$@\" 2>&1", "etcd", "--data-dir"]).arg(dir.path());
        command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
        command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
        command.args(["--initial-cluster", &format!("default={peer_url}")]);
        command.env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH.replace("aarch64", "arm64"));
        let process = Background::spawn(&mut command);
        process.line("client requests", START_MAX);
        Etcd { _process: process, _dir: dir, address }
    }
}

/// Prepares a directory for another server of the same cluster: copies the keys of the authority.
pub(crate) fn beside(cluster: &Cluster, dir: &Path) {
    let to = dir.join("data");
    std::fs::create_dir_all(&to).expect("a directory for the server");
    let mut command = Command::new("cp");
    let copied = command.arg("-a").arg(cluster.data_dir().join("pki")).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "the keys are copied");
}
