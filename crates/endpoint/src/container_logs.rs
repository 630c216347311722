//! `/containerLogs/…`: selects the instance of a container (N-161) and streams its log.

use crate::endpoint::State;
use crate::logs::{self, Writer};
use crate::query::Query;
use crate::response::{self, Response};
use crate::routes::Call;
use crate::websocket;
use bytes::Bytes;
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Chunks queued for a client that does not read.
const CHUNKS: usize = 8;

pub(crate) async fn serve(call: Call, namespace: &str, name: &str, container: &str) -> Response {
    let Some(pod) = call.state.endpoint.pods.by_name(namespace, name) else {
        return response::text(StatusCode::NOT_FOUND, format!("pod {name:?} does not exist\n"));
    };
    if !has_container(&pod, container) {
        let why = format!("container {container:?} not found in pod {name:?}\n");
        return response::text(StatusCode::NOT_FOUND, why);
    }
    let Some(query) = options(&call.query) else {
        return response::text(
            StatusCode::UNPROCESSABLE_ENTITY,
            "{\"message\": \"Invalid request.\"}",
        );
    };
    let instance = match instance(&pod, name, container, call.query.flag("previous")) {
        Ok(instance) => instance,
        Err(why) => return response::text(StatusCode::BAD_REQUEST, why),
    };
    let path = path(&call.state, &pod, container, &instance).await;
    if let Err(error) = logs::open_current(&path).await {
        let why = format!("failed to open log file {:?}: {error}", path.display().to_string());
        return response::text(StatusCode::BAD_REQUEST, why);
    }
    let writer = Writer {
        runtime: call.state.endpoint.runtime.clone(),
        pod: pod.metadata.uid.clone().unwrap_or_default(),
        container_id: instance.id,
    };
    let (chunks, read) = mpsc::channel::<Bytes>(CHUNKS);
    let reading = async move {
        if let Err(error) = logs::read(&path, &query, &writer, &chunks).await {
            tracing::warn!(%error, path = %path.display(), "reading a log failed");
        }
    };
    match call.upgrade {
        Some(upgrade) => websocket::stream(upgrade, reading, read),
        None => {
            tokio::spawn(reading);
            response::stream("text/plain", read)
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

pub(crate) fn has_container(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let regular = spec.containers.iter().map(|container| &container.name);
    let initial = spec.init_containers.iter().flatten().map(|container| &container.name);
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| &container.name);
    regular.chain(initial).chain(ephemeral).any(|known| known == name)
}

/// One run of a container.
struct Instance {
    /// The id without the runtime's name.
    id: String,
    /// Restarts before this instance.
    restarts: u32,
}

/// Selects the current or the previous instance; the error is the message for the client (N-161).
fn instance(pod: &Pod, name: &str, container: &str, previous: bool) -> Result<Instance, String> {
    let here = format!("container {container:?} in pod {name:?}");
    let status = status_of(pod, container).ok_or_else(|| format!("{here} is not available"))?;
    let count = u32::try_from(status.restart_count).unwrap_or(0);
    let current = |id: &str| Instance { id: bare(id).to_owned(), restarts: count };
    let state = status.state.clone().unwrap_or_default();
    let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let last_id = last.and_then(id_of);
    // The restart count of a waiting container does not include the next start yet.
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

/// The id without `landfall://`, as the runtime uses it.
pub(crate) fn bare(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_, id)| id)
}

/// The path of the instance's log: from the runtime, or constructed if the runtime no longer knows
/// the container.
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

    fn select(mut status: Value, previous: bool) -> Result<(String, u32), String> {
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

    fn terminated(id: &str) -> Value {
        json!({ "terminated": { "exitCode": 0, "containerID": id } })
    }

    #[test]
    fn n_161_the_current_or_the_previous_instance_is_selected() {
        let running = json!({ "restartCount": 2, "containerID": "landfall://now",
            "state": { "running": {} }, "lastState": terminated("landfall://then") });
        assert_eq!(select(running.clone(), false), Ok(("now".into(), 2)));
        assert_eq!(select(running, true), Ok(("then".into(), 1)));
        let exited = json!({ "restartCount": 0, "state": terminated("x://it") });
        assert_eq!(select(exited, false), Ok(("it".into(), 0)));
        let waiting = json!({ "restartCount": 3, "lastState": terminated("x://last"),
            "state": { "waiting": { "reason": "CrashLoopBackOff" } } });
        assert_eq!(select(waiting, false), Ok(("last".into(), 3)));
    }

    #[test]
    fn n_161_the_error_tells_why_there_is_no_log() {
        let waiting = |reason: &str| json!({ "restartCount": 0, "state": { "waiting": { "reason": reason } } });
        let here = "container \"c\" in pod \"p\"";
        for (status, previous, reason) in [
            (waiting("ErrImagePull"), false, "is waiting to start: image can't be pulled"),
            (
                waiting("ImagePullBackOff"),
                false,
                "is waiting to start: trying and failing to pull image",
            ),
            (waiting("ContainerCreating"), false, "is waiting to start: ContainerCreating"),
            (json!({ "restartCount": 0, "state": terminated("") }), false, "is terminated"),
        ] {
            assert_eq!(select(status, previous), Err(format!("{here} {reason}")));
        }
        assert_eq!(
            select(waiting("x"), true),
            Err(format!("previous terminated {here} not found"))
        );
        assert_eq!(
            instance(&Pod::default(), "p", "c", false).err().unwrap(),
            format!("{here} is not available")
        );
    }
}
