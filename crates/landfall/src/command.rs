//! What a person can type.

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use server::StoreChoice;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Kubernetes in one file.
///
/// Start a cluster with `landfall up`, then use the kubectl you have:
///
///     sudo landfall up &
///     export KUBECONFIG=/var/lib/landfall/kubeconfig
///     kubectl get namespaces
///
/// Everything it keeps is in one directory (--data-dir). Stop it with Ctrl-C or SIGTERM; what was
/// acknowledged is there at the next start, however it was stopped.
#[derive(Parser)]
#[command(name = "landfall", version, verbatim_doc_comment)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a whole cluster in the foreground
    ///
    /// Prints one line that starts with `ready` when the API answers. The admin's kubeconfig is
    /// DIR/kubeconfig, a bearer token with the same rights is in DIR/admin.token.
    Up(UpOptions),
    /// Run the API server (and, unless told not to, the controllers) without a node
    Server(ServerOptions),
    /// Print the version
    Version,
    /// Print a completion script for your shell
    ///
    /// For bash: landfall completions bash > /etc/bash_completion.d/landfall
    Completions { shell: clap_complete::Shell },
}

#[derive(Args)]
pub(crate) struct UpOptions {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Do not run pods on this machine
    #[arg(long)]
    pub(crate) no_node: bool,
}

#[derive(Args)]
pub(crate) struct ServerOptions {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Only answer requests: do not keep up the objects that controllers make
    #[arg(long)]
    pub(crate) no_controllers: bool,
}

#[derive(Args)]
pub(crate) struct Common {
    /// Where everything is kept
    #[arg(long, value_name = "DIR", default_value = "/var/lib/landfall")]
    pub(crate) data_dir: PathBuf,
    /// The address and port to answer on; port 0 takes any free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:6443")]
    pub(crate) listen: SocketAddr,
    /// Where objects are stored: `embedded` (a file in the data directory) or
    /// `etcd://HOST:PORT[,HOST:PORT…]`
    #[arg(long, value_name = "STORE", default_value = "embedded")]
    pub(crate) store: String,
    /// Write one line of JSON per request to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_log: Option<PathBuf>,
}

impl Common {
    pub(crate) fn store_choice(&self) -> anyhow::Result<StoreChoice> {
        if self.store == "embedded" {
            return Ok(StoreChoice::Embedded);
        }
        let hosts = self.store.strip_prefix("etcd://").with_context(|| {
            format!("--store {:?} is neither `embedded` nor `etcd://HOST:PORT`", self.store)
        })?;
        let endpoints: Vec<String> = hosts
            .split(',')
            .map(str::trim)
            .filter(|host| !host.is_empty())
            .map(|host| format!("http://{host}"))
            .collect();
        if endpoints.is_empty() {
            bail!("--store {:?} names no host: write etcd://HOST:PORT", self.store);
        }
        Ok(StoreChoice::Etcd(endpoints))
    }
}
