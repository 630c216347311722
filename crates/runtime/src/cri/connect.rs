//! A TCP connection to a port in a sandbox, opened inside its network namespace.
//!
//! CRI's own port forwarding would copy the data through the runtime with another protocol. A socket that is opened
//! inside the namespace is simpler and supports half-close.

use super::calls::{Calls, Client, TIMEOUT};
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
    let answer = calls.runtime("sandbox", sandbox, TIMEOUT, call).await?;
    let status = answer.status.unwrap_or_default();
    if status.state() != v1::PodSandboxState::SandboxReady {
        return Err(Error::Refused(format!("sandbox {sandbox:?} is not running")));
    }
    let info = answer.info.get("info").map_or("", String::as_str);
    let namespace = namespace(info).ok_or_else(|| {
        Error::Refused(
            "the container runtime does not report the sandbox's network namespace".into(),
        )
    })?;
    let (sender, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("connect".into());
    let spawned = thread.spawn(move || {
        let _ = sender.send(dial(namespace, port));
    });
    spawned.map_err(|error| Error::Unavailable(format!("cannot start a thread: {error}")))?;
    let panicked = |_| Error::Unavailable("the thread that connects to the pod panicked".into());
    let stream = receiver.await.map_err(panicked)??;
    TcpStream::from_std(stream).map_err(|error| refused(port, &error))
}

/// Path of the sandbox's network namespace. The inner `None` means the node's network.
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

/// Must run in its own thread, because it changes the network namespace of the thread.
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
