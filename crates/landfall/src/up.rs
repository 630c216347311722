//! `landfall up`, `server` and `node`: start, print that it is ready, run until asked to stop.

use crate::agent::{self, ServingIdentity};
use crate::block_on;
use crate::command::{Common, NodeCommand, ServerOptions, UpOptions};
use crate::control::ControlSocket;
use crate::kubeconfig::{self, Published};
use crate::local_node::LocalNode;
use crate::shutdown::{Signals, StopCause, stop_node};
use crate::{data_dir, hints};
use anyhow::Context;
use client::Client;
use runtime::CpuPriority;
use server::authn::User;
use server::{Config, Running};
use std::io::IsTerminal;
use std::path::Path;

pub(crate) fn run(options: &UpOptions) -> anyhow::Result<()> {
    if !options.no_node {
        hints::require_root("landfall up")?;
    }
    prepare()?;
    block_on(async {
        let mut signals = Signals::listen()?;
        let control = open_server_control(&options.common)?;
        let cpu_priority = match options.no_node {
            true => CpuPriority::default(),
            false => {
                agent::check_link(&options.common.data_dir, &options.node)?;
                agent::cpu_priority(&options.node)
            }
        };
        let started = signals.during(start(options, &cpu_priority)).await?;
        let Some((server, control_plane, mut node)) = started else {
            return Ok(());
        };
        let published = kubeconfig::publish(options);
        print_ready(&server, &published);
        if published.copy.is_some() && !published.merged {
            hints::merge_kubeconfig(&options.common.data_dir);
        }
        let data_dir = options.common.data_dir.clone();
        tokio::spawn(async move { kubeconfig::keep_published(&data_dir, &published).await });

        let mut cause = tokio::select! {
            cause = StopCause::wait(&mut signals, &control, Some(&server)) => cause,
            error = node.start_failed(&server) => return Err(error),
        };
        // Pods come first: the API server must still accept their last statuses.
        let running_pods = node.stop(&mut cause, &mut signals, &options.common.data_dir).await;
        control_plane.stop().await;
        server.stop().await;
        hints::stopped(&cause, running_pods, &options.common.data_dir);
        cause.done().await;
        Ok(())
    })
}

async fn start<'a>(
    options: &'a UpOptions,
    cpu_priority: &'a CpuPriority,
) -> anyhow::Result<(Running, ControlPlane, LocalNode<'a>)> {
    let server = start_server(&options.common, true).await?;
    let mut controllers = options.common.controllers()?;
    if !options.no_node {
        let directory = options.common.data_dir.join("volumes");
        data_dir::make_private(&directory)?;
        let node = agent::name(&options.node)?;
        controllers.local_volumes = Some(controllers::LocalVolumes { node, directory });
    }
    let control_plane = ControlPlane::start(&server, &options.common, controllers);
    let node = match options.no_node {
        true => LocalNode::Absent,
        false => LocalNode::start(&server, options, cpu_priority).await?,
    };
    Ok((server, control_plane, node))
}

pub(crate) fn run_server(options: &ServerOptions) -> anyhow::Result<()> {
    prepare()?;
    block_on(async {
        let mut signals = Signals::listen()?;
        let control = open_server_control(&options.common)?;
        let server = start_server(&options.common, !options.no_controllers).await?;
        let controllers = options.common.controllers()?;
        let control_plane = (!options.no_controllers)
            .then(|| ControlPlane::start(&server, &options.common, controllers));
        print_ready(&server, &Published::default());
        let cause = StopCause::wait(&mut signals, &control, Some(&server)).await;
        if let Some(control_plane) = control_plane {
            control_plane.stop().await;
        }
        server.stop().await;
        hints::stopped(&cause, 0, &options.common.data_dir);
        cause.done().await;
        Ok(())
    })
}

/// An agent alone, for an API server elsewhere.
pub(crate) fn run_node(options: &NodeCommand) -> anyhow::Result<()> {
    hints::require_root("landfall node")?;
    prepare()?;
    block_on(async {
        let mut signals = Signals::listen()?;
        let control = open_control(&options.data_dir)?;
        agent::check_link(&options.data_dir, &options.node)?;
        let cpu_priority = agent::cpu_priority(&options.node);
        let started = signals.during(start_node_alone(options, &cpu_priority)).await?;
        let Some(node) = started else { return Ok(()) };
        let answers = node.address.map(|address| format!(" answers on {address}"));
        println!("ready: node {}{}", agent::name(&options.node)?, answers.unwrap_or_default());
        let mut cause = StopCause::wait(&mut signals, &control, None).await;
        let running_pods = stop_node(node, &mut cause, &mut signals).await;
        hints::stopped(&cause, running_pods, &options.data_dir);
        cause.done().await;
        Ok(())
    })
}

async fn start_node_alone(
    options: &NodeCommand,
    cpu_priority: &CpuPriority,
) -> anyhow::Result<node::Running> {
    let credentials = join(options).await?;
    let serving =
        ServingIdentity { certificate: credentials.serving.clone(), ca: credentials.ca.clone() };
    let client = credentials.client.clone();
    let (dir, options) = (&options.data_dir, &options.node);
    let addresses = agent::addresses(options, "")?;
    // A serving certificate that is not approved yet arrives while the agent works.
    tokio::spawn(credentials.renewing());
    let node = agent::start(client, dir, options, &addresses, &serving, cpu_priority).await?;
    node.ready().await;
    Ok(node)
}

/// Credentials of this node: from a join token the first time, later from its data directory.
async fn join(options: &NodeCommand) -> anyhow::Result<node::Credentials> {
    let dir = options.data_dir.join("node");
    let (name, addresses) = (agent::name(&options.node)?, agent::addresses(&options.node, "")?);
    let ca = options.ca.as_ref().map(std::fs::read_to_string).transpose().context("--ca")?;
    let credentials = match &options.kubeconfig {
        Some(kubeconfig) => node::serve_as(kubeconfig, &name, &addresses, &dir).await?,
        None => {
            let server = options.server.as_deref().context("--server is missing")?;
            let token = options.token.as_deref().context("--token is missing")?;
            let addresses = &addresses;
            node::join(node::Join { server, token, ca, name: &name, addresses, dir: &dir }).await?
        }
    };
    Ok(credentials)
}

async fn start_server(common: &Common, controllers: bool) -> anyhow::Result<Running> {
    let config = Config {
        data_dir: common.data_dir.clone(),
        listen: common.listen,
        store: common.store_choice()?,
        service_ranges: common.service_cidr,
        audit_log: common.audit.config(),
        controllers,
    };
    let server = server::start(config).await?;
    server.keep_terminations(common.keep_terminations);
    Ok(server)
}

/// The first line starts with `ready`: scripts wait for it.
fn print_ready(server: &Running, published: &Published) {
    let kubeconfig = published.copy.as_ref().unwrap_or(&server.kubeconfig);
    println!(
        "ready: https://{} is answering; export KUBECONFIG={}",
        server.address,
        kubeconfig.display()
    );
    if published.merged {
        println!(
            "or use the context in your kubeconfig: kubectl --context {}",
            kubeconfig::CONTEXT
        );
    }
    hints::missing_kubectl();
}

/// Controllers and scheduler: ordinary clients of the API that run in this process.
struct ControlPlane {
    controllers: controllers::Handle,
    scheduler: Option<scheduler::Handle>,
}

impl ControlPlane {
    fn start(
        server: &Running,
        options: &Common,
        controllers: controllers::Options,
    ) -> ControlPlane {
        let as_user = |name: &str, groups: &[&str]| {
            Client::in_process(server.server.in_process(User::authenticated(name, groups)))
        };
        let identity = controllers.identity.clone();
        let manager = as_user("system:kube-controller-manager", &[]);
        let door = server.server.clone();
        let accounts = controllers::Accounts::new(move |account| {
            Client::in_process(door.in_process(User::of_controller(account)))
        });
        let controllers = controllers::Options { accounts: Some(accounts), ..controllers };
        let controllers = controllers::start(&manager, controllers);
        server.server.also_show(controllers.metrics());
        server.server.also_show(client::metrics());
        ControlPlane {
            controllers,
            scheduler: (!options.no_scheduler).then(|| {
                let scheduler = scheduler::start(&as_user("system:kube-scheduler", &[]), identity);
                server.server.also_show(scheduler.metrics());
                scheduler
            }),
        }
    }

    async fn stop(self) {
        if let Some(scheduler) = self.scheduler {
            scheduler.stop().await;
        }
        self.controllers.stop().await;
    }
}

pub(crate) fn prepare() -> anyhow::Result<()> {
    log_to_stderr();
    if let Err(error) = runtime::raise_descriptor_limit() {
        eprintln!("landfall: cannot raise the limit of open files: {error}");
    }
    crate::install_tls()
}

fn open_server_control(common: &Common) -> anyhow::Result<ControlSocket> {
    // Invalid options are reported before anything is created.
    common.store_choice()?;
    common.controllers()?;
    open_control(&common.data_dir)
}

fn open_control(data_dir: &Path) -> anyhow::Result<ControlSocket> {
    data_dir::prepare(data_dir)?;
    ControlSocket::listen(data_dir)
}

/// Warnings and errors, and the progress of long image pulls.
const DEFAULT_LOG_FILTER: &str = "warn,node::images::progress=info";

/// `LANDFALL_LOG` sets another filter, such as `debug`.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("LANDFALL_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(DEFAULT_LOG_FILTER));
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colors = std::io::stderr().is_terminal() && !no_color;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colors);
    log.with_writer(std::io::stderr).init();
}
