//! From a pod's words to a container in the kernel's terms: environment, mounts, identity, limits.
//!
//!     Pod ─┬─▶ sandbox() ──▶ runtime::SandboxSpec
//!          └─▶ container() ─▶ runtime::ContainerSpec      (reads ConfigMaps, Secrets by `objects`)
//!
//! Not here: when to start what (`worker`), and how volumes come to be on disk (`volumes`).

mod containers;
mod facts;
mod identity;
mod notes;
mod objects;

mod sandbox;

mod dns;
mod files;
mod hostname;
mod hosts;

mod downward;
mod env;
mod env_file;
mod expansion;
mod service_env;

mod mounts;
mod resources;
mod security;

pub(crate) use containers::{PodContainer, containers};
pub(crate) use dns::MISSING_CLUSTER_DNS;
pub(crate) use downward::{amount, field, resource};
pub(crate) use facts::NodeFacts;
pub(crate) use files::{make_directory, make_pod_directories};
pub(crate) use identity::{name, namespace, uid};
pub(crate) use notes::Notes;
pub(crate) use objects::Objects;

use crate::volumes::Mounted;
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Why a container cannot be made as its pod says: waiting reason CreateContainerConfigError (N-45).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ConfigError {
    pub(crate) message: String,
}

impl ConfigError {
    fn new(message: impl Into<String>) -> ConfigError {
        ConfigError { message: message.into() }
    }
}

/// A Warning for the pod that goes with something that works nevertheless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Warning {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// All that [`container`] looks at.
pub(crate) struct Inputs<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a PodContainer<'a>,
    /// Which instance of this container: its restart count.
    pub(crate) attempt: u32,
    pub(crate) image: &'a runtime::Image,
    /// The node's primary family first; for a pod in the node's network the node's addresses.
    pub(crate) pod_ips: &'a [IpAddr],
    pub(crate) facts: &'a NodeFacts,
    pub(crate) objects: &'a Objects,
    pub(crate) volumes: &'a Mounted,
    /// The id of the container that an ephemeral one wants to look into, if it was found.
    pub(crate) target: Option<&'a str>,
}

/// What the pod's sandbox should be. Writes the files that all its containers share.
/// `handler` is left empty: [`Objects::handler`] looks it up.
pub(crate) fn sandbox(
    pod: &Pod,
    facts: &NodeFacts,
    attempt: u32,
    network: runtime::PodNetwork,
) -> Result<runtime::SandboxSpec, String> {
    let spec = sandbox::spec(pod, facts, attempt, network)?;
    files::write_sandbox_files(pod, facts)?;
    Ok(spec)
}

/// DNSConfigForming, and MissingClusterDNS of the node (N-60), to be told when a sandbox is made.
pub(crate) fn dns_warnings(pod: &Pod, facts: &NodeFacts) -> Vec<Warning> {
    dns::dns(pod, facts, &files::nodes_resolv_conf(facts)).1
}

/// What a container should be. Makes its files (hosts, termination message) and its subPath mounts.
pub(crate) async fn container(inputs: Inputs<'_>) -> Result<runtime::ContainerSpec, ConfigError> {
    let Inputs { pod, container, attempt, image, pod_ips, facts, volumes, .. } = inputs;
    let sources = env::Sources::read(pod, container, inputs.objects).await?;
    let around = env::Surroundings { pod, facts, pod_ips, volumes };
    let env = env::variables(container, &sources, &around)?;
    let groups: Vec<u32> = volumes.volumes.values().filter_map(|volume| volume.group).collect();
    let security = security::security(pod, container, image, facts, &groups)?;
    let devices = mounts::devices(container, volumes)?;

    // From here on things are made; what was refused above has left nothing behind.
    write_files(pod, facts, pod_ips)?;
    let notes = notes(pod, container, attempt, facts)?;
    let message_file = notes.message_file.as_deref();
    let mounts = mounts::mounts(pod, container, volumes, &env, facts, message_file);
    let mounts = mounts.inspect_err(|_| notes.remove_files())?;
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
        labels: notes::labels(pod, Some(&container.name)),
        annotations: notes.annotations(),
        env: with_hostname(env, pod, facts)?,
    })
}

/// As it is now, also for a container that runs already (N-120).
pub(crate) fn container_resources(
    pod: &Pod,
    container: &PodContainer<'_>,
    facts: &NodeFacts,
) -> runtime::Resources {
    resources::of_container(pod, container, facts)
}

/// As it is now, also for a pod that runs already (N-120).
pub(crate) fn pod_resources(pod: &Pod, facts: &NodeFacts) -> runtime::Resources {
    resources::of_pod(pod, facts)
}

/// Where in the tree of cgroups the pod is (N-105).
pub(crate) fn pod_cgroup(pod: &Pod, facts: &NodeFacts) -> String {
    resources::cgroup(pod, facts)
}

/// What changes when a container must be made anew, to compare with [`Notes::hash`] (N-21).
pub(crate) fn container_hash(container: &PodContainer<'_>) -> String {
    notes::hash(container)
}

fn write_files(pod: &Pod, facts: &NodeFacts, pod_ips: &[IpAddr]) -> Result<(), ConfigError> {
    files::write_hosts(pod, facts, pod_ips).map_err(ConfigError::new)?;
    let fixed = [files::resolv_conf_file(facts, uid(pod)), files::hostname_file(facts, uid(pod))];
    // Made with the sandbox, and fixed for its life; unless somebody removed them.
    if fixed.iter().any(|file: &PathBuf| !file.exists()) {
        files::write_sandbox_files(pod, facts).map_err(ConfigError::new)?;
    }
    Ok(())
}

fn notes(
    pod: &Pod,
    container: &PodContainer<'_>,
    attempt: u32,
    facts: &NodeFacts,
) -> Result<Notes, ConfigError> {
    let message_path = container.termination_message_path.clone().unwrap_or_default();
    let message_file = match message_path.is_empty() {
        true => None,
        false => {
            let made = files::make_message_file(facts, uid(pod), &container.name);
            let failed = |error| format!("failed to create termination-log file: {error}");
            Some(made.map_err(|error| ConfigError::new(failed(error)))?)
        }
    };
    Ok(Notes {
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

/// HOSTNAME is always there, as container runtimes have it.
fn with_hostname(
    mut env: BTreeMap<String, String>,
    pod: &Pod,
    facts: &NodeFacts,
) -> Result<Vec<(String, String)>, ConfigError> {
    let name = hostname::kernel_name(pod, &facts.cluster_domain).map_err(ConfigError::new)?;
    env.entry("HOSTNAME".into()).or_insert_with(|| name.unwrap_or_else(|| facts.name.clone()));
    Ok(env.into_iter().collect())
}
