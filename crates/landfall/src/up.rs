//! `landfall up`, `server` and `node`: start, say so, run until told to stop.

use crate::agent::{self, Serving};
use crate::block_on;
use crate::command::{Common, NodeCommand, ServerOptions, UpOptions};
use crate::control::Control;
use crate::end::{End, Signals, leave};
use anyhow::Context;
use client::Client;
use runtime::Precedence;
use server::authn::User;
use server::{Config, Running};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

pub(crate) fn run(options: &UpOptions) -> anyhow::Result<()> {
    prepare()?;
    block_on(async {
        let mut signals = Signals::listen()?;
        let control = server_control(&options.common)?;
        let precedence = match options.no_node {
            true => Precedence::default(),
            false => agent::precedence(&options.node),
        };
        let started = signals.during(start(options, &precedence)).await?;
        let Some((server, plane, node)) = started else {
            return Ok(());
        };
        say_ready(&server);
        let mut asked = End::awaited(&mut signals, &control).await;
        // First the pods, whose last statuses the API has to take; the API comes last.
        if let Some(node) = node {
            leave(node, &mut asked, &mut signals).await;
        }
        plane.stop().await;
        server.stop().await;
        asked.done().await;
        Ok(())
    })
}

async fn start(
    options: &UpOptions,
    precedence: &Precedence,
) -> anyhow::Result<(Running, ControlPlane, Option<node::Running>)> {
    let server = start_server(&options.common, true).await?;
    let mut chosen = options.common.controllers()?;
    if !options.no_node {
        chosen.local_volumes = Some(controllers::LocalVolumes {
            node: agent::name(&options.node)?,
            directory: options.common.data_dir.join("volumes"),
        });
    }
    let plane = ControlPlane::start(&server, &options.common, chosen);
    let node = match options.no_node {
        true => None,
        false => Some(start_node(&server, options, precedence).await?),
    };
    if let Some(node) = &node {
        node.ready().await;
    }
    Ok((server, plane, node))
}

pub(crate) fn run_server(options: &ServerOptions) -> anyhow::Result<()> {
    prepare()?;
    block_on(async {
        let mut signals = Signals::listen()?;
        let control = server_control(&options.common)?;
        let server = start_server(&options.common, !options.no_controllers).await?;
        let chosen = options.common.controllers()?;
        let plane = (!options.no_controllers)
            .then(|| ControlPlane::start(&server, &options.common, chosen));
        say_ready(&server);
        let asked = End::awaited(&mut signals, &control).await;
        if let Some(plane) = plane {
            plane.stop().await;
        }
        server.stop().await;
        asked.done().await;
        Ok(())
    })
}

/// An agent alone, for a server elsewhere.
pub(crate) fn run_node(options: &NodeCommand) -> anyhow::Result<()> {
    prepare()?;
    block_on(async {
        let mut signals = Signals::listen()?;
        let control = control(&options.data_dir)?;
        let precedence = agent::precedence(&options.node);
        let started = signals.during(start_alone(options, &precedence)).await?;
        let Some(node) = started else { return Ok(()) };
        let answers = node.address.map(|address| format!(" answers on {address}"));
        println!("ready: node {}{}", agent::name(&options.node)?, answers.unwrap_or_default());
        let mut asked = End::awaited(&mut signals, &control).await;
        leave(node, &mut asked, &mut signals).await;
        asked.done().await;
        Ok(())
    })
}

async fn start_alone(
    options: &NodeCommand,
    precedence: &Precedence,
) -> anyhow::Result<node::Running> {
    let credentials = join(options).await?;
    let serving = Serving { shown: credentials.serving.clone(), ca: credentials.ca.clone() };
    let client = credentials.client.clone();
    let (dir, options) = (&options.data_dir, &options.node);
    // What is still missing comes while the agent works.
    tokio::spawn(credentials.renewing());
    let node = agent::start(client, dir, options, &serving, precedence).await?;
    node.ready().await;
    Ok(node)
}

/// Credentials of this node: from a token at first, from then on its own.
async fn join(options: &NodeCommand) -> anyhow::Result<node::Credentials> {
    let dir = options.data_dir.join("node");
    let (name, address) = (agent::name(&options.node)?, agent::address(&options.node));
    let ca = options.ca.as_ref().map(std::fs::read_to_string).transpose().context("--ca")?;
    let credentials = match &options.kubeconfig {
        Some(kubeconfig) => node::serve_as(kubeconfig, &name, &[address], &dir).await?,
        None => {
            let server = options.server.as_deref().context("--server is missing")?;
            let token = options.token.as_deref().context("--token is missing")?;
            let addresses = &[address];
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
        audit_log: common.audit_log.clone(),
        controllers,
    };
    let server = server::start(config).await?;
    server.keep_terminations(common.keep_terminations);
    Ok(server)
}

fn say_ready(server: &Running) {
    println!(
        "ready: https://{} is answering; export KUBECONFIG={}",
        server.address,
        server.kubeconfig.display()
    );
}

async fn start_node(
    server: &Running,
    options: &UpOptions,
    precedence: &Precedence,
) -> anyhow::Result<node::Running> {
    let (name, address) = (agent::name(&options.node)?, agent::address(&options.node));
    let user = User::authenticated(format!("system:node:{name}"), &["system:nodes"]);
    let client = Client::in_process(server.server.door(user));
    let addresses = [name.clone(), address.to_string()];
    let credentials = server.node_credentials(&name, &addresses)?;
    let made = &credentials.serving;
    let serving = Serving {
        shown: tls::Shown::new(&made.certificate, &made.key)?,
        ca: credentials.ca_certificate.clone(),
    };
    tokio::spawn(renew(serving.shown.clone(), server.node_signer(&name, &addresses)));
    let (dir, options) = (&options.common.data_dir, &options.node);
    agent::start(client, dir, options, &serving, precedence).await
}

/// The node in this process asks nobody for its next certificate: the authority is here.
async fn renew<E: std::error::Error>(
    shown: Arc<tls::Shown>,
    sign: impl Fn() -> Result<server::pki::Identity, E>,
) {
    let next = || -> Result<tls::Validity, String> {
        let made = sign().map_err(|error| error.to_string())?;
        shown.replace(&made.certificate, &made.key).map_err(|error| error.to_string())
    };
    tls::keep("node's serving", shown.life(), || std::future::ready(next())).await;
}

/// Controllers and scheduler: ordinary clients that happen to live in this process.
struct ControlPlane {
    controllers: controllers::Handle,
    scheduler: Option<scheduler::Handle>,
}

impl ControlPlane {
    fn start(server: &Running, options: &Common, chosen: controllers::Options) -> ControlPlane {
        let as_user = |name: &str, groups: &[&str]| {
            Client::in_process(server.server.door(User::authenticated(name, groups)))
        };
        let identity = chosen.identity.clone();
        let manager = as_user("system:kube-controller-manager", &["system:masters"]);
        let controllers = controllers::start(&manager, chosen);
        server.server.also_show(controllers.metrics());
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

fn prepare() -> anyhow::Result<()> {
    log_to_stderr();
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("the TLS library was set up twice"))
}

fn server_control(common: &Common) -> anyhow::Result<Control> {
    // Nothing is made for a command line that makes no sense.
    common.store_choice()?;
    common.controllers()?;
    control(&common.data_dir)
}

fn control(data_dir: &Path) -> anyhow::Result<Control> {
    server::pki::make_private_dir(data_dir)
        .with_context(|| format!("cannot create {}", data_dir.display()))?;
    Control::listen(data_dir)
}

/// What goes wrong, and how far long pulls have come.
const LOGGED: &str = "warn,node::images::progress=info";

/// Quiet unless something is wrong; `LANDFALL_LOG=debug` shows more.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("LANDFALL_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(LOGGED));
    let plain = std::env::var_os("NO_COLOR").is_some_and(|said| !said.is_empty());
    let colours = std::io::stderr().is_terminal() && !plain;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours);
    log.with_writer(std::io::stderr).init();
}
