//! `/containerLogs/…`: which instance of a container is meant (N-161), and its log as a stream.

use super::answer::{self, Answer};
use super::query::Query;
use super::routes::Call;
use super::{State, websocket};
use crate::logs::{self, Writer};
use bytes::Bytes;
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Pieces on their way to a reader that does not read.
const PIECES: usize = 8;

pub(super) async fn answer(call: Call, namespace: &str, name: &str, container: &str) -> Answer {
    let Some(pod) = call.state.endpoint.pods.by_name(namespace, name) else {
        return answer::text(StatusCode::NOT_FOUND, format!("pod {name:?} does not exist\n"));
    };
    if !has_container(&pod, container) {
        let why = format!("container {container:?} not found in pod {name:?}\n");
        return answer::text(StatusCode::NOT_FOUND, why);
    }
    let Some(query) = options(&call.query) else {
        return answer::text(
            StatusCode::UNPROCESSABLE_ENTITY,
            "{\"message\": \"Invalid request.\"}",
        );
    };
    let instance = match instance(&pod, name, container, call.query.flag("previous")) {
        Ok(instance) => instance,
        Err(why) => return answer::text(StatusCode::BAD_REQUEST, why),
    };
    let path = path(&call.state, &pod, container, &instance).await;
    if let Err(error) = tokio::fs::metadata(&path).await {
        let why = format!("failed to open log file {:?}: {error}", path.display().to_string());
        return answer::text(StatusCode::BAD_REQUEST, why);
    }
    let writer = Writer {
        runtime: call.state.endpoint.runtime.clone(),
        pod: pod.metadata.uid.clone().unwrap_or_default(),
        container_id: instance.id,
    };
    let (pieces, read) = mpsc::channel::<Bytes>(PIECES);
    let reading = async move {
        if let Err(error) = logs::read(&path, &query, &writer, &pieces).await {
            tracing::warn!(%error, path = %path.display(), "a log could not be read to its end");
        }
    };
    match call.upgrade {
        Some(upgrade) => websocket::stream(upgrade, reading, read),
        None => {
            tokio::spawn(reading);
            answer::stream("text/plain", read)
        }
    }
}

fn options(query: &Query) -> Option<logs::Query> {
    let seconds: Option<i64> = query.number("sinceSeconds").ok()?;
    let since = match (seconds, query.get("sinceTime").filter(|text| !text.is_empty())) {
        (Some(_), Some(_)) => return None,
        (Some(seconds), None) if seconds < 1 => return None,
        (Some(seconds), None) => {
            let ago = SignedDuration::from_secs(seconds);
            Some(clock::now().checked_sub(ago).unwrap_or(Timestamp::MIN))
        }
        (None, Some(time)) => Some(time.parse().ok()?),
        (None, None) => None,
    };
    let limit_bytes: Option<u64> = query.number("limitBytes").ok()?;
    if limit_bytes == Some(0) {
        return None;
    }
    Some(logs::Query {
        tail: query.number("tailLines").ok()?,
        since,
        timestamps: query.flag("timestamps"),
        limit_bytes,
        follow: query.flag("follow"),
    })
}

pub(super) fn has_container(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let regular = spec.containers.iter().map(|container| &container.name);
    let initial = spec.init_containers.iter().flatten().map(|container| &container.name);
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| &container.name);
    regular.chain(initial).chain(ephemeral).any(|known| known == name)
}

/// One run of a container.
struct Instance {
    /// Without the runtime's name.
    id: String,
    /// Which one, counted from 0.
    restarts: u32,
}

/// N-161
fn instance(pod: &Pod, name: &str, container: &str, previous: bool) -> Result<Instance, String> {
    let here = format!("container {container:?} in pod {name:?}");
    let status = status_of(pod, container).ok_or_else(|| format!("{here} is not available"))?;
    let count = u32::try_from(status.restart_count).unwrap_or(0);
    let current = |id: &str| Instance { id: bare(id).to_owned(), restarts: count };
    let state = status.state.clone().unwrap_or_default();
    let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let last_id = last.and_then(id_of);
    // A waiting container has not been counted as restarted yet.
    let before = if state.waiting.is_some() { count } else { count.saturating_sub(1) };
    let earlier = |id: &str| Instance { id: bare(id).to_owned(), restarts: before };
    if previous {
        return last_id.map(earlier).ok_or_else(|| format!("previous terminated {here} not found"));
    }
    if state.running.is_some() {
        return Ok(current(status.container_id.as_deref().unwrap_or_default()));
    }
    if let Some(terminated) = &state.terminated {
        return id_of(terminated)
            .map(current)
            .or_else(|| last_id.map(earlier))
            .ok_or_else(|| format!("{here} is terminated"));
    }
    if last.is_some() {
        return last_id.map(earlier).ok_or_else(|| format!("{here} is terminated"));
    }
    Err(match state.waiting.map(|waiting| waiting.reason.unwrap_or_default()).as_deref() {
        Some("ErrImagePull") => format!("{here} is waiting to start: image can't be pulled"),
        Some("ImagePullBackOff") => {
            format!("{here} is waiting to start: trying and failing to pull image")
        }
        Some(reason) => format!("{here} is waiting to start: {reason}"),
        None => format!("{here} is waiting to start - no logs yet"),
    })
}

fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flatten()
    .flatten()
    .find(|status| status.name == container)
}

fn id_of(terminated: &ContainerStateTerminated) -> Option<&str> {
    terminated.container_id.as_deref().filter(|id| !id.is_empty())
}

/// `landfall://abc` is `abc` to the runtime.
pub(super) fn bare(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_, id)| id)
}

/// Where the runtime says its log is; where it must have been if the runtime has forgotten it.
async fn path(state: &Arc<State>, pod: &Pod, container: &str, instance: &Instance) -> PathBuf {
    let meta = &pod.metadata;
    let uid = meta.uid.as_deref().unwrap_or_default();
    let directory = logs::pod_directory(
        &state.endpoint.log_root,
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default(),
        uid,
    );
    let sandboxes = state.endpoint.runtime.sandboxes_of(uid).await.unwrap_or_default();
    let known = sandboxes
        .iter()
        .flat_map(|sandbox| &sandbox.containers)
        .find(|container| container.id == instance.id)
        .map(|container| container.log_path.clone())
        .filter(|path| !path.as_os_str().is_empty());
    directory.join(known.unwrap_or_else(|| logs::container_log(container, instance.restarts)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: Value) -> Pod {
        typed::from_value(json!({
            "spec": { "containers": [{ "name": "c" }] },
            "status": { "containerStatuses": [status] },
        }))
        .unwrap()
    }

    fn chosen(status: Value, previous: bool) -> Result<(String, u32), String> {
        let mut status = status;
        for (field, value) in [
            ("name", json!("c")),
            ("image", json!("")),
            ("imageID", json!("")),
            ("ready", json!(false)),
        ] {
            status[field] = value;
        }
        instance(&pod(status), "p", "c", previous).map(|found| (found.id, found.restarts))
    }

    fn ended(id: &str) -> Value {
        json!({ "terminated": { "exitCode": 0, "containerID": id } })
    }

    #[test]
    fn n_161_the_instance_that_is_asked_for() {
        let running = json!({ "restartCount": 2, "containerID": "landfall://now",
            "state": { "running": {} }, "lastState": ended("landfall://then") });
        assert_eq!(chosen(running.clone(), false), Ok(("now".into(), 2)));
        assert_eq!(chosen(running, true), Ok(("then".into(), 1)));
        let over = json!({ "restartCount": 0, "state": ended("x://it") });
        assert_eq!(chosen(over, false), Ok(("it".into(), 0)));
        let waiting = json!({ "restartCount": 3, "lastState": ended("x://last"),
            "state": { "waiting": { "reason": "CrashLoopBackOff" } } });
        assert_eq!(chosen(waiting, false), Ok(("last".into(), 3)));
    }

    #[test]
    fn n_161_why_there_is_no_log() {
        let waiting = |reason: &str| json!({ "restartCount": 0, "state": { "waiting": { "reason": reason } } });
        let here = "container \"c\" in pod \"p\"";
        for (status, previous, said) in [
            (waiting("ErrImagePull"), false, "is waiting to start: image can't be pulled"),
            (
                waiting("ImagePullBackOff"),
                false,
                "is waiting to start: trying and failing to pull image",
            ),
            (waiting("ContainerCreating"), false, "is waiting to start: ContainerCreating"),
            (json!({ "restartCount": 0, "state": ended("") }), false, "is terminated"),
        ] {
            assert_eq!(chosen(status, previous), Err(format!("{here} {said}")));
        }
        assert_eq!(
            chosen(waiting("x"), true),
            Err(format!("previous terminated {here} not found"))
        );
        assert_eq!(
            instance(&Pod::default(), "p", "c", false).err().unwrap(),
            format!("{here} is not available")
        );
    }
}
