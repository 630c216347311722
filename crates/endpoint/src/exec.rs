//! `/exec`, `/attach` and `/run`: finds the container and starts the session over the client's protocol.

use crate::remote_command::RemoteCommand;
use crate::response::{self, Rejection, Response};
use crate::routes::Call;
use crate::upgrade::{self, Transport};
use crate::{spdy_streams, websocket};
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use runtime::{ContainerState, Exec, SandboxState};
use std::sync::Arc;

/// Limit of the output of `/run`.
const RUN_OUTPUT_MAX: usize = 16 << 20;

pub(crate) async fn exec(call: Call, namespace: &str, pod: &str, rest: &[&str]) -> Response {
    match find(&call, namespace, pod, rest).await {
        Err(refused) => *refused,
        Ok(target) => {
            let exec = exec_of(&call);
            start(call, target, exec, false).await
        }
    }
}

pub(crate) async fn attach(call: Call, namespace: &str, pod: &str, rest: &[&str]) -> Response {
    let target = match find(&call, namespace, pod, rest).await {
        Err(refused) => return *refused,
        Ok(target) => target,
    };
    let mut exec = exec_of(&call);
    // Terminal and stdin are properties of the container, fixed when it was created (N-164, N-165).
    let (stdin, tty) = stdio(&target.pod, &target.container);
    exec.stdin &= stdin;
    exec.tty = tty;
    start(call, target, exec, true).await
}

/// Runs a command without a stream and responds with its output.
pub(crate) async fn run(call: Call, namespace: &str, pod: &str, rest: &[&str]) -> Response {
    let target = match find(&call, namespace, pod, rest).await {
        Err(refused) => return *refused,
        Ok(target) => target,
    };
    let command = call.query.get("cmd").unwrap_or_default();
    let exec = Exec {
        command: command.split(' ').map(str::to_owned).collect(),
        stdout: true,
        stderr: true,
        ..Exec::default()
    };
    let failed = |why: String| response::text(StatusCode::INTERNAL_SERVER_ERROR, why);
    match call.state.endpoint.runtime.exec(&target.id, &exec).await {
        Err(error) => failed(error.to_string()),
        Ok(session) => match session.collect(RUN_OUTPUT_MAX).await {
            Err(why) => failed(why),
            Ok((_, output)) => response::full(StatusCode::OK, "text/plain; charset=utf-8", output),
        },
    }
}

/// A running container.
struct Target {
    pod: Arc<Pod>,
    container: String,
    id: String,
}

/// Finds the running container that `rest`, `[uid/]container`, names (N-164).
async fn find(
    call: &Call,
    namespace: &str,
    name: &str,
    rest: &[&str],
) -> Result<Target, Rejection> {
    let (uid, container) = match rest {
        [container] => (None, *container),
        [uid, container] => (Some(*uid), *container),
        _ => return Err(Box::new(response::text(StatusCode::NOT_FOUND, "404 page not found\n"))),
    };
    let pod = pod(call, namespace, name, uid)?;
    let failed = |why: String| Box::new(response::text(StatusCode::INTERNAL_SERVER_ERROR, why));
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let sandboxes = call.state.endpoint.runtime.sandboxes_of(uid).await;
    let sandboxes = sandboxes.map_err(|error| failed(error.to_string()))?;
    let running = sandboxes.iter().flat_map(|sandbox| &sandbox.containers).find(|known| {
        known.name == container && matches!(known.state, ContainerState::Running { .. })
    });
    let running = running.ok_or_else(|| failed(format!("container not found ({container:?})")))?;
    Ok(Target { pod: pod.clone(), container: container.to_owned(), id: running.id.clone() })
}

pub(crate) fn pod(
    call: &Call,
    namespace: &str,
    name: &str,
    uid: Option<&str>,
) -> Result<Arc<Pod>, Rejection> {
    let pods = &call.state.endpoint.pods;
    let found = match uid {
        Some(uid) => pods.by_uid(uid).filter(|pod| {
            pod.metadata.name.as_deref() == Some(name)
                && pod.metadata.namespace.as_deref() == Some(namespace)
        }),
        None => pods.by_name(namespace, name),
    };
    found.ok_or_else(|| Box::new(response::text(StatusCode::NOT_FOUND, "pod does not exist")))
}

/// The id of the pod's ready sandbox.
pub(crate) async fn sandbox(call: &Call, pod: &Pod) -> Result<String, Rejection> {
    let failed = |why: String| Box::new(response::text(StatusCode::INTERNAL_SERVER_ERROR, why));
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let sandboxes = call.state.endpoint.runtime.sandboxes_of(uid).await;
    let sandboxes = sandboxes.map_err(|error| failed(error.to_string()))?;
    let ready = sandboxes.iter().find(|sandbox| sandbox.state == SandboxState::Ready);
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let ready = ready.ok_or_else(|| failed(format!("pod not found (\"{name}_{namespace}\")")))?;
    Ok(ready.id.clone())
}

/// What the query parameters ask for.
fn exec_of(call: &Call) -> Exec {
    Exec {
        command: call.query.all("command").map(str::to_owned).collect(),
        stdin: call.query.flag("input"),
        stdout: call.query.flag("output"),
        stderr: call.query.flag("error"),
        tty: call.query.flag("tty"),
        timeout: None,
    }
}

/// stdin and tty of a container, from the pod's spec.
fn stdio(pod: &Pod, name: &str) -> (bool, bool) {
    let Some(spec) = &pod.spec else { return (false, false) };
    let ordinary = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let ordinary = ordinary.map(|container| (&container.name, container.stdin, container.tty));
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let ephemeral = ephemeral.map(|container| (&container.name, container.stdin, container.tty));
    let found = ordinary.chain(ephemeral).find(|(known, ..)| *known == name);
    found.map_or((false, false), |(_, stdin, tty)| (stdin == Some(true), tty == Some(true)))
}

async fn start(call: Call, target: Target, mut exec: Exec, attach: bool) -> Response {
    // A terminal has only one output stream.
    exec.stderr &= !exec.tty;
    if !(exec.stdin || exec.stdout || exec.stderr) {
        let why = "you must specify at least 1 of stdin, stdout, stderr";
        return response::text(StatusCode::BAD_REQUEST, why);
    }
    let Some(upgrade) = call.upgrade else { return upgrade::required() };
    let runtime = call.state.endpoint.runtime.clone();
    let command = RemoteCommand { runtime, container: target.id, exec, attach };
    match upgrade.transport {
        Transport::WebSocket => websocket::remote(upgrade, command),
        Transport::Spdy => spdy_streams::remote(upgrade, command),
    }
}
