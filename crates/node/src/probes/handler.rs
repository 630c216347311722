//! Runs one attempt of a handler.

use super::{exec, grpc, http, http_request};
use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, Pod, Probe, SleepAction,
    TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use runtime::Runtime;
use std::sync::Arc;
use std::time::Duration;

/// The container that a handler is about. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) pod: Arc<Pod>,
    /// Name of a container of the pod.
    pub(crate) container: String,
    /// The runtime's id of the running instance.
    pub(crate) container_id: String,
    /// The first address of the pod; empty if it has none yet.
    pub(crate) pod_ip: String,
    pub(crate) runtime: Arc<dyn Runtime>,
}

impl Target {
    pub(crate) fn spec(&self) -> Option<&Container> {
        let spec = self.pod.spec.as_ref()?;
        let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        all.find(|container| container.name == self.container)
    }
}

/// The action of a probe or a hook.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Handler<'a> {
    Http(&'a HTTPGetAction),
    Tcp(&'a TCPSocketAction),
    Grpc(&'a GRPCAction),
    Exec(&'a ExecAction),
    Sleep(&'a SleepAction),
    /// None, or one that is not supported.
    Missing,
}

impl<'a> Handler<'a> {
    pub(crate) fn of_probe(probe: &'a Probe) -> Handler<'a> {
        let exec = probe.exec.as_ref().map(Handler::Exec);
        exec.or(probe.http_get.as_ref().map(Handler::Http))
            .or(probe.tcp_socket.as_ref().map(Handler::Tcp))
            .or(probe.grpc.as_ref().map(Handler::Grpc))
            .unwrap_or(Handler::Missing)
    }

    pub(crate) fn of_hook(hook: &'a LifecycleHandler) -> Handler<'a> {
        let exec = hook.exec.as_ref().map(Handler::Exec);
        exec.or(hook.http_get.as_ref().map(Handler::Http))
            .or(hook.sleep.as_ref().map(Handler::Sleep))
            .or(hook.tcp_socket.as_ref().map(Handler::Tcp))
            .unwrap_or(Handler::Missing)
    }
}

/// The result of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    /// Counts as success, with an event (N-99).
    Warning(String),
    Failure(String),
    /// The attempt could not be made, which says nothing about the container (N-94).
    Error(String),
}

/// Makes one attempt. `timeout` includes connecting (N-103).
pub(crate) async fn run(handler: Handler<'_>, target: &Target, timeout: Duration) -> Outcome {
    match handler {
        Handler::Http(action) => match http_request::of_action(action, target, "kube-probe") {
            Ok(request) => http::probe(request, timeout).await,
            Err(why) => Outcome::Error(why),
        },
        Handler::Tcp(action) => match port(&action.port, target) {
            Ok(port) => super::tcp::probe(host(&action.host, target), port, timeout).await,
            Err(why) => Outcome::Error(why),
        },
        Handler::Grpc(action) => grpc::probe(action, target, timeout).await,
        Handler::Exec(action) => exec::probe(action, target, timeout).await,
        Handler::Sleep(action) => {
            let seconds = u64::try_from(action.seconds).unwrap_or_default();
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Outcome::Success
        }
        Handler::Missing => {
            let pod = target.pod.metadata.name.as_deref().unwrap_or_default();
            let namespace = target.pod.metadata.namespace.as_deref().unwrap_or_default();
            let container = &target.container;
            Outcome::Error(format!("missing probe handler for {pod}_{namespace}:{container}"))
        }
    }
}

pub(super) fn host<'a>(configured: &'a Option<String>, target: &'a Target) -> &'a str {
    configured.as_deref().filter(|host| !host.is_empty()).unwrap_or(&target.pod_ip)
}

/// Resolves a number, the name of a port of this container, or a number in a string (N-97).
pub(super) fn port(port: &IntOrString, target: &Target) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match named_port(name, target) {
            Some(number) => number,
            None => name
                .parse()
                .map_err(|_| format!("strconv.Atoi: parsing {name:?}: invalid syntax"))?,
        },
    };
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("invalid port number: {number}")),
    }
}

fn named_port(name: &str, target: &Target) -> Option<i32> {
    let ports = target.spec()?.ports.as_deref()?;
    ports.iter().find(|port| port.name.as_deref() == Some(name)).map(|port| port.container_port)
}

/// Formats whole seconds as Go does: `1s`, `1m30s`.
pub(super) fn go_seconds(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}
