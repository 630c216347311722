//! Converts answers of a CRI runtime. Pure.

use super::{ProcessUser, stored};
use crate::{
    Container, ContainerState, ContainerUsage, Exit, Features, Identity, Image, Mounted,
    PodNetwork, Resources, Sandbox, SandboxState,
};
use jiff::Timestamp;
use k8s_cri::v1;
use std::collections::HashMap;
use std::path::PathBuf;

pub(super) fn sandbox(status: &v1::PodSandboxStatus, containers: Vec<Container>) -> Sandbox {
    let metadata = status.metadata.clone().unwrap_or_default();
    let network = status.network.clone().unwrap_or_default();
    let more = network.additional_ips.iter().map(|ip| ip.ip.as_str());
    let addresses = std::iter::once(network.ip.as_str()).chain(more);
    let namespaces = status.linux.as_ref().and_then(|linux| linux.namespaces.as_ref());
    let host = namespaces
        .and_then(|namespaces| namespaces.options.as_ref())
        .is_some_and(|options| options.network() == v1::NamespaceMode::Node);
    Sandbox {
        id: status.id.clone(),
        pod: Identity { uid: metadata.uid, namespace: metadata.namespace, name: metadata.name },
        attempt: metadata.attempt,
        state: match status.state() {
            v1::PodSandboxState::SandboxReady => SandboxState::Ready,
            v1::PodSandboxState::SandboxNotready => SandboxState::NotReady,
        },
        message: String::new(),
        created_at: at(status.created_at),
        network: if host { PodNetwork::Host } else { PodNetwork::Runtime },
        addresses: addresses.filter_map(|ip| ip.parse().ok()).collect(),
        containers,
        labels: status.labels.clone().into_iter().collect(),
        annotations: stored::without(&status.annotations),
    }
}

pub(super) fn container(status: &v1::ContainerStatus, sandbox: &str) -> Container {
    let metadata = status.metadata.clone().unwrap_or_default();
    let stored = stored::container(&status.annotations);
    let image = status.image.clone().unwrap_or_default();
    let named = [&image.user_specified_image, &image.image].into_iter().find(|n| !n.is_empty());
    let reported = status.resources.as_ref().and_then(|resources| resources.linux.as_ref());
    let user = status.user.as_ref().and_then(|user| user.linux.as_ref());
    Container {
        id: status.id.clone(),
        sandbox: sandbox.into(),
        name: metadata.name,
        attempt: metadata.attempt,
        state: state(status),
        created_at: at(status.created_at),
        image_name: match &stored {
            Some(stored) => stored.image_name.clone(),
            None => named.cloned().unwrap_or_default(),
        },
        image: status.image_ref.clone(),
        resources: match (reported, stored) {
            // If the spec has no swap limit, runtimes set one themselves.
            (Some(reported), Some(stored)) if stored.resources.swap_limit.is_none() => {
                Resources { swap_limit: None, ..resources(reported) }
            }
            (Some(reported), _) => resources(reported),
            (None, Some(stored)) => stored.resources,
            (None, None) => Resources::default(),
        },
        user: user.map(|user| {
            let number = |value: i64| u32::try_from(value).unwrap_or_default();
            let groups = user.supplemental_groups.iter().map(|group| number(*group)).collect();
            (number(user.uid), number(user.gid), groups)
        }),
        mounts: status.mounts.iter().map(mounted).collect(),
        log_path: PathBuf::from(&status.log_path),
        labels: status.labels.clone().into_iter().collect(),
        annotations: stored::without(&status.annotations),
    }
}

fn state(status: &v1::ContainerStatus) -> ContainerState {
    match status.state() {
        v1::ContainerState::ContainerCreated => ContainerState::Created,
        v1::ContainerState::ContainerRunning => {
            ContainerState::Running { started_at: at(status.started_at) }
        }
        v1::ContainerState::ContainerExited => ContainerState::Exited(Exit {
            code: status.exit_code,
            signal: None,
            // The agent derives these two from the exit code.
            reason: match status.reason.as_str() {
                "Completed" | "Error" => String::new(),
                other => other.into(),
            },
            message: status.message.clone(),
            started_at: (status.started_at > 0).then(|| at(status.started_at)),
            finished_at: at(status.finished_at),
        }),
        v1::ContainerState::ContainerUnknown => ContainerState::Unknown,
    }
}

fn resources(reported: &v1::LinuxContainerResources) -> Resources {
    let some = |value: i64| (value != 0).then_some(value);
    let pids = reported.unified.get("pids.max").and_then(|limit| limit.parse().ok());
    Resources {
        cpu_shares: some(reported.cpu_shares).and_then(|shares| u64::try_from(shares).ok()),
        cpu_quota: some(reported.cpu_quota),
        memory_limit: some(reported.memory_limit_in_bytes),
        pids_limit: pids,
        swap_limit: some(reported.memory_swap_limit_in_bytes),
        hugepage_limits: reported
            .hugepage_limits
            .iter()
            .map(|limit| (limit.page_size.clone(), limit.limit))
            .collect(),
    }
}

fn mounted(mount: &v1::Mount) -> Mounted {
    Mounted {
        target: PathBuf::from(&mount.container_path),
        read_only: mount.readonly,
        recursive_read_only: mount.recursive_read_only,
    }
}

pub(super) fn image(image: &v1::Image) -> Image {
    Image {
        id: image.id.clone(),
        tags: image.repo_tags.clone(),
        digests: image.repo_digests.clone(),
        size: image.size,
        uid: image.uid.as_ref().and_then(|uid| u32::try_from(uid.value).ok()),
        username: image.username.clone(),
        pinned: image.pinned,
    }
}

pub(super) fn usage(stats: &v1::ContainerStats) -> ContainerUsage {
    let attributes = stats.attributes.clone().unwrap_or_default();
    let metadata = attributes.metadata.unwrap_or_default();
    let cpu = stats.cpu.unwrap_or_default();
    let memory = stats.memory.unwrap_or_default();
    let number = |value: Option<v1::UInt64Value>| value.map_or(0, |value| value.value);
    ContainerUsage {
        pod: label(&attributes.labels, super::request::POD_UID),
        container_id: attributes.id,
        container: metadata.name,
        at: at(cpu.timestamp.max(memory.timestamp)),
        cpu_nanoseconds: number(cpu.usage_core_nano_seconds),
        memory_bytes: number(memory.usage_bytes),
        working_set_bytes: number(memory.working_set_bytes),
        rss_bytes: number(memory.rss_bytes),
        page_faults: number(memory.page_faults),
        major_page_faults: number(memory.major_page_faults),
        disk_bytes: number(stats.writable_layer.clone().and_then(|layer| layer.used_bytes)),
        processes: 0,
        started_at: None,
    }
}

/// Errors have upstream's texts.
pub(super) fn readiness(status: &v1::RuntimeStatus) -> Result<(), String> {
    for (kind, what) in [("RuntimeReady", "runtime"), ("NetworkReady", "runtime network")] {
        let found = status.conditions.iter().find(|condition| condition.r#type == kind);
        match found {
            Some(condition) if condition.status => {}
            Some(v1::RuntimeCondition { reason, message, .. }) => {
                return Err(format!(
                    "container {what} not ready: {kind}=false reason:{reason} message:{message}"
                ));
            }
            None => return Err(format!("container {what} status is unknown")),
        }
    }
    Ok(())
}

/// The features that the runtime reports. Older runtimes report none.
pub(super) fn features(status: &v1::StatusResponse) -> Features {
    let default = status.runtime_handlers.iter().find(|handler| handler.name.is_empty());
    let mounts = default.and_then(|handler| handler.features);
    Features {
        recursive_read_only: mounts.is_some_and(|can| can.recursive_read_only_mounts),
        strict_groups: status.features.is_some_and(|can| can.supplemental_groups_policy),
        prompt_stop: false,
        user_namespaces: mounts.is_some_and(|can| can.user_namespaces),
    }
}

/// The user of process 1, from containerd's verbose information, which contains the OCI spec.
pub(super) fn user(info: &HashMap<String, String>) -> Option<ProcessUser> {
    let info: serde_json::Value = serde_json::from_str(info.get("info")?).ok()?;
    let user = info.pointer("/runtimeSpec/process/user")?;
    let number = |value: &serde_json::Value| u32::try_from(value.as_u64()?).ok();
    let groups = user["additionalGids"].as_array().into_iter().flatten();
    Some((number(&user["uid"])?, number(&user["gid"])?, groups.filter_map(number).collect()))
}

/// The stop signal of an image, from the same source. SIGTERM if the image has none.
pub(super) fn stop_signal(info: &HashMap<String, String>) -> Option<i32> {
    let info: serde_json::Value = serde_json::from_str(info.get("info")?).ok()?;
    let signal = info.pointer("/imageSpec/config")?.get("StopSignal");
    match signal.and_then(serde_json::Value::as_str).unwrap_or_default() {
        "" => Some(libc::SIGTERM),
        name => crate::signals::signal_number(name).ok(),
    }
}

fn label(labels: &HashMap<String, String>, name: &str) -> String {
    labels.get(name).cloned().unwrap_or_default()
}

/// CRI has times in nanoseconds.
fn at(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanoseconds.into()).unwrap_or_default()
}
