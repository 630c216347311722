//! The node of `landfall up`, which may have to wait for disk space.
//!
//! On a full disk the node cannot start: its files and the Node object cannot be written. The API server works
//! meanwhile, so that a user can read and delete objects, and the node starts when there is space again.
//! Not here: what a node consists of (`agent`).

use crate::agent::{self, ServingIdentity};
use crate::command::UpOptions;
use crate::shutdown::{Signals, StopCause, remove_pods, stop_node};
use client::Client;
use runtime::CpuPriority;
use server::Running;
use server::authn::User;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Pause between attempts to start a node on a full disk.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// After this many checks in a row that find the store failing, nothing waits for the node any more.
const FAILED_CHECKS: usize = 10;
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

type NodeStart<'a> = Pin<Box<dyn Future<Output = anyhow::Result<node::Running>> + 'a>>;

pub(crate) enum LocalNode<'a> {
    /// `--no-node`.
    Absent,
    /// It waits for disk space.
    Starting(NodeStart<'a>),
    Running(Box<node::Running>),
}

impl<'a> LocalNode<'a> {
    /// Returns when the node is ready, or when it has to wait for disk space.
    pub(crate) async fn start(
        server: &Running,
        options: &'a UpOptions,
        cpu_priority: &'a CpuPriority,
    ) -> anyhow::Result<LocalNode<'a>> {
        let disk_full = Arc::new(Notify::new());
        let mut starting = start(server, options, cpu_priority, disk_full.clone())?;
        let node = tokio::select! {
            node = &mut starting => node?,
            () = disk_full.notified() => return Ok(LocalNode::Starting(starting)),
            why = store_failed(server) => {
                eprintln!("landfall: the node is not ready, and the API server does not wait for it: {why}");
                return Ok(LocalNode::Starting(starting));
            }
        };
        let serving = async {
            serve_pods(server, &node).await?;
            node.ready().await;
            anyhow::Ok(())
        };
        tokio::select! {
            served = serving => served?,
            _ = store_failed(server) => {}
        }
        Ok(LocalNode::Running(Box::new(node)))
    }

    /// Completes a start that waits for disk space. Returns only if the start fails for another reason.
    pub(crate) async fn start_failed(&mut self, server: &Running) -> anyhow::Error {
        if let LocalNode::Starting(starting) = self {
            match starting.await {
                Ok(node) => {
                    eprintln!("landfall: the node has started");
                    *self = LocalNode::Running(Box::new(node));
                }
                Err(error) => return error,
            }
        }
        if let LocalNode::Running(node) = self
            && let Err(error) = serve_pods(server, node).await
        {
            return error;
        }
        std::future::pending().await
    }

    /// Stops the agent, and terminates its pods if the cause says so. Returns how many pods keep running.
    pub(crate) async fn stop(
        self,
        cause: &mut StopCause,
        signals: &mut Signals,
        data_dir: &Path,
    ) -> usize {
        match self {
            LocalNode::Absent => 0,
            LocalNode::Running(node) => stop_node(*node, cause, signals).await,
            LocalNode::Starting(starting) => {
                drop(starting);
                remove_pods(cause, data_dir).await;
                0
            }
        }
    }
}

/// Prepares the node's credentials, and then starts it, again and again while the disk is full.
fn start<'a>(
    server: &Running,
    options: &'a UpOptions,
    cpu_priority: &'a CpuPriority,
    disk_full: Arc<Notify>,
) -> anyhow::Result<NodeStart<'a>> {
    let name = agent::name(&options.node)?;
    let node_ips = agent::addresses(&options.node, &options.common.pod_cidr)?;
    let user = User::authenticated(format!("system:node:{name}"), &["system:nodes"]);
    let client = Client::in_process(server.server.in_process(user));
    let mut addresses = vec![name.clone()];
    addresses.extend(node_ips.iter().map(ToString::to_string));
    let credentials = server.node_credentials(&name, &addresses)?;
    let signed = &credentials.serving;
    let serving = ServingIdentity {
        certificate: tls::RenewableCertificate::new(&signed.certificate, &signed.key)?,
        ca: credentials.ca_certificate,
    };
    tokio::spawn(renew(serving.certificate.clone(), server.node_signer(&name, &addresses)));
    let (dir, options) = (&options.common.data_dir, &options.node);
    Ok(Box::pin(async move {
        loop {
            let client = client.clone();
            let started = agent::start(client, dir, options, &node_ips, &serving, cpu_priority);
            match started.await {
                Err(error) if is_disk_full(&error) => {
                    let seconds = RETRY_INTERVAL.as_secs();
                    eprintln!("landfall: {error:#}; trying again in {seconds} s");
                }
                started => return started,
            }
            disk_full.notify_one();
            sleep(RETRY_INTERVAL).await;
        }
    }))
}

/// Lets the node's pods reach the API server: at their gateway, or at the node's address if the runtime provides the network.
/// While the store fails, its address cannot be published. A repeated call changes nothing.
///
/// The Service `kubernetes` has endpoints of one family, so pods get the address of that family.
async fn serve_pods(server: &Running, node: &node::Running) -> anyhow::Result<()> {
    let ipv4 = server.service_ranges().api_address().is_ipv4();
    let addresses = match node.gateways() {
        none if none.is_empty() => node.addresses(),
        gateways => gateways,
    };
    for address in addresses.into_iter().filter(|address| address.is_ipv4() == ipv4) {
        loop {
            match server.serve_pods_at(address).await {
                Err(error) if server.store_health().is_err() => {
                    let seconds = RETRY_INTERVAL.as_secs();
                    eprintln!("landfall: {error:#}; trying again in {seconds} s");
                }
                served => break served?,
            }
            sleep(RETRY_INTERVAL).await;
        }
    }
    Ok(())
}

/// Waits until the store has failed for a while. Returns the reason.
async fn store_failed(server: &Running) -> String {
    let mut failed = 0;
    loop {
        match server.store_health() {
            Ok(()) => failed = 0,
            Err(why) if failed >= FAILED_CHECKS => return why,
            Err(_) => failed += 1,
        }
        sleep(CHECK_INTERVAL).await;
    }
}

fn is_disk_full(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    let kinds =
        error.chain().filter_map(|cause| Some(cause.downcast_ref::<std::io::Error>()?.kind()));
    kinds.into_iter().any(|kind| matches!(kind, StorageFull | QuotaExceeded))
}

/// Renews the serving certificate of the node in this process. It needs no request: the certificate
/// authority is in this process too.
async fn renew<E: std::error::Error>(
    certificate: Arc<tls::RenewableCertificate>,
    sign: impl Fn() -> Result<server::pki::Identity, E>,
) {
    let next = || -> Result<tls::Validity, String> {
        let signed = sign().map_err(|error| error.to_string())?;
        certificate.replace(&signed.certificate, &signed.key).map_err(|error| error.to_string())
    };
    tls::keep("node's serving", certificate.validity(), || std::future::ready(next())).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use std::io::{Error, ErrorKind};

    #[test]
    fn only_errors_of_a_full_disk_are_retried() {
        let caused_by = |kind: ErrorKind| {
            let failed: Result<(), Error> = Err(kind.into());
            failed.context("cannot write a file").context("cannot start the node").unwrap_err()
        };
        assert!(is_disk_full(&caused_by(ErrorKind::StorageFull)));
        assert!(is_disk_full(&caused_by(ErrorKind::QuotaExceeded)));
        assert!(!is_disk_full(&caused_by(ErrorKind::PermissionDenied)));
        assert!(!is_disk_full(&anyhow::anyhow!("this host has no name")));
    }
}
