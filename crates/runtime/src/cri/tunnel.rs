//! A connection into a sandbox: made inside its network namespace, whose name the runtime tells.
//!
//! CRI's own port forwarding carries the same bytes through the runtime and a second protocol; a
//! socket that was opened inside is one, and can be half closed.

use super::calls::{Calls, Client, SHORT};
use crate::{Error, Result};
use k8s_cri::v1;
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

pub(super) async fn connect(calls: &Calls, sandbox: &str, port: u16) -> Result<TcpStream> {
    let request = v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox.into(), verbose: true };
    let call = async |mut to: Client| to.pod_sandbox_status(request).await;
    let answer = calls.runtime("sandbox", sandbox, SHORT, call).await?;
    let status = answer.status.unwrap_or_default();
    if status.state() != v1::PodSandboxState::SandboxReady {
        return Err(Error::Refused(format!("sandbox {sandbox:?} is not running")));
    }
    let info = answer.info.get("info").map_or("", String::as_str);
    let namespace = namespace(info)
        .ok_or_else(|| Error::Refused("the runtime does not tell the sandbox's network".into()))?;
    let (answer, answered) = oneshot::channel();
    let thread = std::thread::Builder::new().name("connect".into());
    let spawned = thread.spawn(move || {
        let _ = answer.send(dial(namespace, port));
    });
    spawned.map_err(|error| Error::Unavailable(format!("cannot start a thread: {error}")))?;
    let stream = answered.await.map_err(|_| Error::Unavailable("the thread ended".into()))??;
    TcpStream::from_std(stream).map_err(|error| refused(port, &error))
}

/// Where the sandbox's network namespace can be opened; None in it: it has the node's.
fn namespace(info: &str) -> Option<Option<PathBuf>> {
    let info: serde_json::Value = serde_json::from_str(info).ok()?;
    let namespaces = info.pointer("/runtimeSpec/linux/namespaces")?.as_array()?;
    let network = namespaces.iter().find(|one| one["type"] == "network");
    let Some(network) = network else { return Some(None) };
    match network["path"].as_str().filter(|path| !path.is_empty()) {
        Some(path) => Some(Some(PathBuf::from(path))),
        None => {
            let pid = info["pid"].as_u64()?;
            Some(Some(PathBuf::from(format!("/proc/{pid}/ns/net"))))
        }
    }
}

/// In a thread of its own: it may move.
fn dial(namespace: Option<PathBuf>, port: u16) -> Result<std::net::TcpStream> {
    if let Some(path) = namespace {
        let file = File::open(&path).map_err(Error::io("open", &path))?;
        let entered = setns(file, CloneFlags::CLONE_NEWNET);
        entered.map_err(|errno| Error::io("enter", &path)(errno.into()))?;
    }
    let first = std::net::TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let stream = first.or_else(|error| {
        let second = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
        std::net::TcpStream::connect(second).map_err(|_| error)
    });
    let stream = stream.map_err(|error| refused(port, &error))?;
    stream.set_nonblocking(true).map_err(|error| refused(port, &error))?;
    Ok(stream)
}

fn refused(port: u16, error: &std::io::Error) -> Error {
    Error::Refused(format!("failed to connect to localhost:{port} inside the pod: {error}"))
}
