//! Calls to the CRI socket, with timeouts and error conversion.

use crate::{Error, Result};
use k8s_cri::v1;
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use std::collections::HashMap;
use std::error::Error as _;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

/// For most calls. Upstream: `--runtime-request-timeout`.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);
/// For calls that start or stop sandboxes, which wait for the network.
pub(super) const SANDBOX_TIMEOUT: Duration = Duration::from_secs(240);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of an answer, as in upstream.
const ANSWER_MAX: usize = 16 * 1024 * 1024;

pub(super) type Client = RuntimeServiceClient<Channel>;
pub(super) type ImageClient = ImageServiceClient<Channel>;

#[derive(Clone)]
pub(super) struct Calls {
    channel: Channel,
}

impl Calls {
    pub(super) async fn connect(endpoint: &str) -> Result<Calls> {
        let cannot = |reason: &dyn std::fmt::Display| {
            Error::Unavailable(format!(
                "cannot connect to the container runtime at {endpoint}: {reason}"
            ))
        };
        let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
        if !path.starts_with('/') {
            return Err(cannot(
                &"only unix sockets are supported, such as unix:///run/containerd/containerd.sock",
            ));
        }
        let target = Endpoint::from_shared(format!("unix://{path}")).map_err(|e| cannot(&e))?;
        let connected = target.connect_timeout(CONNECT_TIMEOUT).connect().await;
        Ok(Calls { channel: connected.map_err(|error| cannot(&with_causes(&error)))? })
    }

    fn client(&self) -> Client {
        Client::new(self.channel.clone()).max_decoding_message_size(ANSWER_MAX)
    }

    pub(super) fn image_client(&self) -> ImageClient {
        ImageClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_MAX)
    }

    /// Makes a call. `what` and `id` are for the error if the object does not exist.
    pub(super) async fn runtime<T>(
        &self,
        what: &'static str,
        id: &str,
        timeout: Duration,
        call: impl AsyncFnOnce(Client) -> Result<Response<T>, Status>,
    ) -> Result<T> {
        match tokio::time::timeout(timeout, call(self.client())).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(error(&status, what, id)),
            Err(_) => Err(Error::Unavailable(format!(
                "the container runtime did not answer within {} seconds",
                timeout.as_secs()
            ))),
        }
    }

    /// The stream of container events.
    pub(super) async fn events(
        &self,
    ) -> Result<tonic::Streaming<v1::ContainerEventResponse>, Status> {
        let answer = self.client().get_container_events(v1::GetEventsRequest {}).await?;
        Ok(answer.into_inner())
    }

    pub(super) async fn version(&self) -> Result<v1::VersionResponse> {
        let request = v1::VersionRequest { version: "0.1.0".into() };
        let call = async |mut to: Client| to.version(request).await;
        self.runtime("runtime", "", TIMEOUT, call).await
    }

    pub(super) async fn status(&self) -> Result<v1::StatusResponse> {
        let request = v1::StatusRequest { verbose: false };
        let call = async |mut to: Client| to.status(request).await;
        self.runtime("runtime", "", TIMEOUT, call).await
    }

    /// Sandboxes and containers with these labels.
    pub(super) async fn list(
        &self,
        labels: HashMap<String, String>,
    ) -> Result<(Vec<v1::PodSandbox>, Vec<v1::Container>)> {
        let filter = v1::PodSandboxFilter { label_selector: labels.clone(), ..Default::default() };
        let request = v1::ListPodSandboxRequest { filter: Some(filter) };
        let call = async |mut to: Client| to.list_pod_sandbox(request).await;
        let sandboxes = self.runtime("runtime", "", TIMEOUT, call).await?.items;
        let filter = v1::ContainerFilter { label_selector: labels, ..Default::default() };
        let request = v1::ListContainersRequest { filter: Some(filter) };
        let call = async |mut to: Client| to.list_containers(request).await;
        let containers = self.runtime("runtime", "", TIMEOUT, call).await?.containers;
        Ok((sandboxes, containers))
    }
}

/// Converts a gRPC status.
pub(super) fn error(status: &Status, what: &'static str, id: &str) -> Error {
    match status.code() {
        Code::NotFound => Error::NotFound { what, id: id.into() },
        // Errors of the runtime itself have no source; connection errors have.
        _ if status.code() == Code::Unavailable || status.source().is_some() => Error::Unavailable(
            format!("the container runtime is unavailable: {}", with_causes(status)),
        ),
        _ => Error::Refused(status.message().to_string()),
    }
}

/// An error of tonic with its sources, which contain the reason.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
