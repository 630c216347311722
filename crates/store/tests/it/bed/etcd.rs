//! A real etcd on loopback, for one test.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub(crate) struct Etcd {
    child: Child,
    data: PathBuf,
    client: u16,
    peer: u16,
}

impl Etcd {
    pub(crate) fn start(dir: &Path) -> Self {
        let (client, peer) = (free_port(), free_port());
        let data = dir.join("etcd");
        let child = spawn(&data, client, peer);
        Etcd { child, data, client, peer }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client)
    }

    /// Kills it, as a crash would.
    pub(crate) fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn start_again(&mut self) {
        self.child = spawn(&self.data, self.client, self.peer);
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.stop();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Returns when it is ready.
fn spawn(data: &Path, client: u16, peer: u16) -> Child {
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    let mut child = Command::new("etcd")
        .arg("--data-dir")
        .arg(data)
        .args(["--name", "test", "--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client, "--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("test={peer}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("etcd is there: `scripts/install all` installs it");
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut said = Vec::new();
    loop {
        let Some(Ok(line)) = lines.next() else { panic!("etcd does not serve: {said:#?}") };
        if line.contains("ready to serve client requests") {
            break;
        }
        said.push(line);
    }
    // It must not block on a full pipe.
    std::thread::spawn(move || lines.for_each(drop));
    child
}
