//! Measures an API server and prints the results beside reference figures and targets.
//!
//!     process   starts a server in a fresh directory, reads its CPU time and memory
//!     link      one HTTP/1.1 connection over TLS
//!     load      the same request N times from C connections
//!     fanout    one writer, many watchers
//!     standard  all of it with the reference load, as a table with targets
//!     grow      the cost of operations as more objects are stored
//!     definitions  applying and deleting many CustomResourceDefinitions
//!
//! How to run it and how to read what it prints: docs/BENCHMARKS.md. It uses no code of
//! the server, so that any other API server can be measured in the same way.

mod definitions;
mod fanout;
mod grow;
mod link;
mod load;
mod process;
mod standard;
mod table;

use anyhow::{Context, Result, bail};
use clap::Parser;
use link::Target;
use process::{Processes, Started};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Measure an API server.
///
/// Without --server, a fresh landfall is started for it, with its data in a temporary directory
/// that is removed afterwards (TMPDIR decides where).
#[derive(Parser)]
#[command(name = "bench")]
struct Options {
    /// Number of pods [default: 5000, with --quick 500]
    #[arg(long)]
    n: Option<usize>,
    /// Number of connections that send requests at the same time
    #[arg(long, default_value_t = standard::CONNECTIONS)]
    connections: usize,
    /// A tenth of the load, to see whether it runs; there are no targets then
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Show how the cost of an operation grows with the number of stored objects
    #[arg(long)]
    grow: bool,
    /// Apply and delete CustomResourceDefinitions; --n is their number [default: 314, with --quick 60]
    #[arg(long, conflicts_with = "grow")]
    definitions: bool,
    /// With --grow: numbers of stored pods to measure with
    /// [default: 1000,5000,20000, with --quick 100,500,2000]
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<usize>,
    /// The landfall to start [default: the one built beside this program]
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    landfall: Option<PathBuf>,
    /// Measure this running server instead
    #[arg(long, value_name = "URL", requires = "token")]
    server: Option<String>,
    /// Bearer token for --server, with all rights in the namespace
    #[arg(long, requires = "server")]
    token: Option<String>,
    /// Certificate authority of --server; without it, the certificate is not verified
    #[arg(long, value_name = "FILE", requires = "server")]
    ca: Option<PathBuf>,
    /// Processes of --server on this machine, whose CPU time and memory are added up
    #[arg(long, value_name = "PID", value_delimiter = ',', requires = "server")]
    pid: Vec<u32>,
    /// Namespace for pods and config maps; config maps labelled `app=bench` there are deleted
    #[arg(long, default_value = "default")]
    namespace: String,
}

/// The server to measure, with its processes if they are on this machine.
struct Subject {
    target: Arc<Target>,
    processes: Processes,
    started: Option<Duration>,
    /// The server that was started for this run; it is stopped with it.
    own: Option<Started>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(printed) => {
            println!("{printed}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<String> {
    if options.connections == 0 || options.n == Some(0) || options.sizes.contains(&0) {
        bail!("--connections, --n and --sizes must not be zero");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        // In each case the server is stopped: the future that owns it is dropped.
        tokio::select! {
            outcome = measure(options) => outcome,
            _ = terminate.recv() => bail!("stopped by SIGTERM"),
            _ = interrupt.recv() => bail!("interrupted"),
        }
    })
}

async fn measure(options: &Options) -> Result<String> {
    if cfg!(debug_assertions) {
        eprintln!("bench: this is a debug build; its figures say nothing about a release build");
    }
    let subject = subject(options).await?;
    prepare(&subject.target).await?;
    if options.grow {
        grow::run(options, &subject).await
    } else if options.definitions {
        definitions::run(options, &subject).await
    } else {
        standard::run(options, &subject).await
    }
}

async fn subject(options: &Options) -> Result<Subject> {
    if let (Some(url), Some(token)) = (&options.server, &options.token) {
        let ca = options.ca.as_deref();
        let target = Target::new(url, token, ca, &options.namespace)?;
        let processes = Processes(options.pid.clone());
        return Ok(Subject { target: Arc::new(target), processes, started: None, own: None });
    }
    let binary = match &options.landfall {
        Some(path) => path.clone(),
        None => beside_this_program()?,
    };
    let own = Started::start(&binary).await?;
    let target = Target::new(&own.url, &own.token()?, Some(&own.ca()), &options.namespace)?;
    let target = Arc::new(target);
    let took = own.until_ready(&target).await?;
    let processes = Processes(vec![own.pid()]);
    Ok(Subject { target, processes, started: Some(took), own: Some(own) })
}

/// `target/release/examples/bench` was built with `target/release/landfall`.
fn beside_this_program() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(|examples| examples.parent());
    let binary = folder.context("this program is in no folder")?.join("landfall");
    if !binary.exists() {
        bail!("there is no {}: build it, or name one with --landfall", binary.display());
    }
    Ok(binary)
}

/// Without controllers the service account of pods has to be created here.
async fn prepare(target: &Arc<Target>) -> Result<()> {
    let account = serde_json::json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" },
    });
    let mut link = link::Link::open(target).await?;
    let made = link.ask(&load::Ask::create(target.path("serviceaccounts"), &account)).await?;
    match made.status().as_u16() {
        201 | 409 => Ok(()),
        status => bail!("the account that pods run as could not be made: {status}"),
    }
}
