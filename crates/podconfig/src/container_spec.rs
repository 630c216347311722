//! Builds the `ContainerSpec` that the runtime is asked to run for one container of a pod.
//!
//! Not here: when to start what (`node`), and how volumes come to be on disk (`volumes`).

use crate::identity::uid;
use crate::{ContainerAnnotations, MountedVolumes, NodeFacts, Objects, PodContainer};
use crate::{annotations, env, expansion, files, hostname, mounts, resources, security};
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Why a container cannot be created as its pod specifies: waiting reason
/// CreateContainerConfigError (N-45).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    pub message: String,
}

impl ConfigError {
    pub(crate) fn new(message: impl Into<String>) -> ConfigError {
        ConfigError { message: message.into() }
    }
}

/// The arguments of [`container`].
pub struct Inputs<'a> {
    pub pod: &'a Pod,
    pub container: &'a PodContainer<'a>,
    /// Which instance of this container: its restart count.
    pub attempt: u32,
    pub image: &'a runtime::Image,
    /// The node's primary address family first. A host network pod has the node's addresses.
    pub pod_ips: &'a [IpAddr],
    pub facts: &'a NodeFacts,
    pub objects: &'a Objects,
    pub volumes: &'a MountedVolumes,
    /// For an ephemeral container: the id of its target container, if that exists.
    pub target: Option<&'a str>,
}

/// Builds the spec of one container. Also creates its files (hosts, termination message) and its
/// subPath mounts.
pub async fn container(inputs: Inputs<'_>) -> Result<runtime::ContainerSpec, ConfigError> {
    let Inputs { pod, container, attempt, image, pod_ips, facts, volumes, .. } = inputs;
    let sources = env::Sources::read(pod, container, inputs.objects).await?;
    let context = env::Context { pod, facts, pod_ips, volumes };
    let env = env::variables(container, &sources, &context)?;
    let groups: Vec<u32> = volumes.volumes.values().filter_map(|volume| volume.group).collect();
    let security = security::security(pod, container, image, facts, &groups)?;
    let devices = mounts::devices(container, volumes)?;

    // Everything above only checks; from here on, files and mounts are created.
    write_files(pod, facts, pod_ips)?;
    let kept = annotations_of(pod, container, attempt, facts)?;
    let message_file = kept.message_file.as_deref();
    let mounts = mounts::mounts(pod, container, volumes, &env, facts, message_file);
    let mounts = mounts.inspect_err(|_| kept.remove_files())?;
    let expanded = |words: &Option<Vec<String>>| expanded(words, &env);
    Ok(runtime::ContainerSpec {
        name: container.name.clone(),
        attempt,
        image: image.id.clone(),
        image_name: container.image_name().to_owned(),
        command: expanded(&container.command),
        args: expanded(&container.args),
        working_dir: container.working_dir.clone().filter(|folder| !folder.is_empty()),
        mounts,
        devices,
        security,
        resources: resources::of_container(pod, container, facts),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        log_path: Path::new(&container.name).join(format!("{attempt}.log")),
        pid_of: inputs.target.map(str::to_owned),
        stop_signal: container.lifecycle.as_ref().and_then(|it| it.stop_signal.clone()),
        labels: annotations::labels(pod, Some(&container.name)),
        annotations: kept.to_map(),
        env: with_hostname(env, pod, facts)?,
    })
}

/// The limits that the spec asks for now. A resize applies them to a running container (N-120).
pub fn container_resources(
    pod: &Pod,
    container: &PodContainer<'_>,
    facts: &NodeFacts,
) -> runtime::Resources {
    resources::of_container(pod, container, facts)
}

/// The limits of the whole pod. A resize applies them to a running pod (N-120).
pub fn pod_resources(pod: &Pod, facts: &NodeFacts) -> runtime::Resources {
    resources::of_pod(pod, facts)
}

/// The path of the pod's cgroup (N-105).
pub fn pod_cgroup(pod: &Pod, facts: &NodeFacts) -> String {
    resources::cgroup(pod, facts)
}

/// Differs from [`ContainerAnnotations::hash`] if the spec now asks for another container (N-21).
pub fn container_hash(container: &PodContainer<'_>) -> String {
    annotations::hash(container)
}

fn write_files(pod: &Pod, facts: &NodeFacts, pod_ips: &[IpAddr]) -> Result<(), ConfigError> {
    files::write_hosts(pod, facts, pod_ips).map_err(ConfigError::new)?;
    let fixed = [files::resolv_conf_file(facts, uid(pod)), files::hostname_file(facts, uid(pod))];
    // These were written with the sandbox and do not change; write them again if they are missing.
    if fixed.iter().any(|file: &PathBuf| !file.exists()) {
        files::write_sandbox_files(pod, facts).map_err(ConfigError::new)?;
    }
    Ok(())
}

fn annotations_of(
    pod: &Pod,
    container: &PodContainer<'_>,
    attempt: u32,
    facts: &NodeFacts,
) -> Result<ContainerAnnotations, ConfigError> {
    let message_path = container.termination_message_path.clone().unwrap_or_default();
    let message_file = match message_path.is_empty() {
        true => None,
        false => {
            let file = files::make_message_file(facts, uid(pod), &container.name);
            let failed = |error| format!("failed to create termination-log file: {error}");
            Some(file.map_err(|error| ConfigError::new(failed(error)))?)
        }
    };
    Ok(ContainerAnnotations {
        hash: container_hash(container),
        kind: container.kind,
        restart_count: attempt,
        message_path,
        message_policy: container
            .termination_message_policy
            .clone()
            .unwrap_or_else(|| "File".into()),
        message_file,
        grace_seconds: pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds),
    })
}

fn expanded(words: &Option<Vec<String>>, env: &BTreeMap<String, String>) -> Option<Vec<String>> {
    let words = words.as_ref().filter(|words| !words.is_empty())?;
    Some(words.iter().map(|word| expansion::expand(word, |name| env.get(name).cloned())).collect())
}

/// Adds HOSTNAME if the spec does not set it, as container runtimes do.
fn with_hostname(
    mut env: BTreeMap<String, String>,
    pod: &Pod,
    facts: &NodeFacts,
) -> Result<Vec<(String, String)>, ConfigError> {
    let name = hostname::kernel_name(pod, &facts.cluster_domain).map_err(ConfigError::new)?;
    env.entry("HOSTNAME".into()).or_insert_with(|| name.unwrap_or_else(|| facts.name.clone()));
    Ok(env.into_iter().collect())
}
