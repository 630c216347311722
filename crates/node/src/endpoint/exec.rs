//! `/exec`, `/attach` and `/run`: which container, with which streams, over which protocol.

use super::answer::{self, Answer, Refused};
use super::remote::Wanted;
use super::routes::Call;
use super::upgrade::{self, Manner};
use super::{spdy, websocket};
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use runtime::{ContainerState, Exec, SandboxState};
use std::sync::Arc;

/// What `/run` answers at most.
const RUN_OUTPUT_MAX: usize = 16 << 20;

pub(super) async fn exec(call: Call, namespace: &str, pod: &str, rest: &[&str]) -> Answer {
    match find(&call, namespace, pod, rest).await {
        Err(refused) => *refused,
        Ok(found) => {
            let asked = asked(&call);
            start(call, found, asked, false).await
        }
    }
}

pub(super) async fn attach(call: Call, namespace: &str, pod: &str, rest: &[&str]) -> Answer {
    let found = match find(&call, namespace, pod, rest).await {
        Err(refused) => return *refused,
        Ok(found) => found,
    };
    let mut asked = asked(&call);
    // A terminal or not, input or not: that was decided when the container was made (N-164, N-165).
    let (stdin, tty) = stdio(&found.pod, &found.container);
    asked.stdin &= stdin;
    asked.tty = tty;
    start(call, found, asked, true).await
}

/// The old way: runs a command and answers with what it said.
pub(super) async fn run(call: Call, namespace: &str, pod: &str, rest: &[&str]) -> Answer {
    let found = match find(&call, namespace, pod, rest).await {
        Err(refused) => return *refused,
        Ok(found) => found,
    };
    let command = call.query.get("cmd").unwrap_or_default();
    let exec = Exec {
        command: command.split(' ').map(str::to_owned).collect(),
        stdout: true,
        stderr: true,
        ..Exec::default()
    };
    let failed = |why: String| answer::text(StatusCode::INTERNAL_SERVER_ERROR, why);
    match call.state.endpoint.runtime.exec(&found.id, &exec).await {
        Err(error) => failed(error.to_string()),
        Ok(session) => match session.collect(RUN_OUTPUT_MAX).await {
            Err(why) => failed(why),
            Ok((_, output)) => answer::of(StatusCode::OK, "text/plain; charset=utf-8", output),
        },
    }
}

struct Found {
    pod: Arc<Pod>,
    container: String,
    id: String,
}

/// `[uid/]container` among the running containers of that pod (N-164).
async fn find(call: &Call, namespace: &str, name: &str, rest: &[&str]) -> Result<Found, Refused> {
    let (uid, container) = match rest {
        [container] => (None, *container),
        [uid, container] => (Some(*uid), *container),
        _ => return Err(Box::new(answer::text(StatusCode::NOT_FOUND, "404 page not found\n"))),
    };
    let pod = pod(call, namespace, name, uid)?;
    let failed = |why: String| Box::new(answer::text(StatusCode::INTERNAL_SERVER_ERROR, why));
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let sandboxes = call.state.endpoint.runtime.sandboxes_of(uid).await;
    let sandboxes = sandboxes.map_err(|error| failed(error.to_string()))?;
    let running = sandboxes.iter().flat_map(|sandbox| &sandbox.containers).find(|known| {
        known.name == container && matches!(known.state, ContainerState::Running { .. })
    });
    let running = running.ok_or_else(|| failed(format!("container not found ({container:?})")))?;
    Ok(Found { pod: pod.clone(), container: container.to_owned(), id: running.id.clone() })
}

pub(super) fn pod(
    call: &Call,
    namespace: &str,
    name: &str,
    uid: Option<&str>,
) -> Result<Arc<Pod>, Refused> {
    let pods = &call.state.endpoint.pods;
    let found = match uid {
        Some(uid) => pods.by_uid(uid).filter(|pod| {
            pod.metadata.name.as_deref() == Some(name)
                && pod.metadata.namespace.as_deref() == Some(namespace)
        }),
        None => pods.by_name(namespace, name),
    };
    found.ok_or_else(|| Box::new(answer::text(StatusCode::NOT_FOUND, "pod does not exist")))
}

/// The sandbox that a pod lives in now.
pub(super) async fn sandbox(call: &Call, pod: &Pod) -> Result<String, Refused> {
    let failed = |why: String| Box::new(answer::text(StatusCode::INTERNAL_SERVER_ERROR, why));
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let sandboxes = call.state.endpoint.runtime.sandboxes_of(uid).await;
    let sandboxes = sandboxes.map_err(|error| failed(error.to_string()))?;
    let ready = sandboxes.iter().find(|sandbox| sandbox.state == SandboxState::Ready);
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let ready = ready.ok_or_else(|| failed(format!("pod not found (\"{name}_{namespace}\")")))?;
    Ok(ready.id.clone())
}

fn asked(call: &Call) -> Exec {
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

async fn start(call: Call, found: Found, mut exec: Exec, attach: bool) -> Answer {
    // With a terminal everything comes out in one place.
    exec.stderr &= !exec.tty;
    if !(exec.stdin || exec.stdout || exec.stderr) {
        let why = "you must specify at least 1 of stdin, stdout, stderr";
        return answer::text(StatusCode::BAD_REQUEST, why);
    }
    let Some(upgrade) = call.upgrade else { return upgrade::required() };
    let runtime = call.state.endpoint.runtime.clone();
    let wanted = Wanted { runtime, container: found.id, exec, attach };
    match upgrade.manner {
        Manner::WebSocket => websocket::remote(upgrade, wanted),
        Manner::Spdy => spdy::remote(upgrade, wanted),
    }
}
