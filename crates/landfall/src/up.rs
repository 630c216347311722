//! `landfall up` and `landfall server`: start, say so, run until told to stop.

use crate::command::{Common, ServerOptions, UpOptions};
use anyhow::Context;
use server::Config;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) fn run(options: &UpOptions) -> anyhow::Result<()> {
    if !options.no_node {
        eprintln!(
            "landfall: this version has no node agent yet: pods are accepted and stay Pending"
        );
    }
    serve(&options.common, true)
}

pub(crate) fn run_server(options: &ServerOptions) -> anyhow::Result<()> {
    serve(&options.common, !options.no_controllers)
}

fn serve(common: &Common, controllers: bool) -> anyhow::Result<()> {
    log_to_stderr();
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("the TLS library was set up twice"))?;
    let config = Config {
        data_dir: common.data_dir.clone(),
        listen: common.listen,
        store: common.store_choice()?,
        audit_log: common.audit_log.clone(),
        controllers,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime could not be started")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let running = server::start(config).await?;
        println!(
            "ready: https://{} is answering; export KUBECONFIG={}",
            running.address,
            running.kubeconfig.display()
        );
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        running.stop().await;
        Ok(())
    })
}

/// Quiet unless something is wrong; `LANDFALL_LOG=debug` shows more.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("LANDFALL_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
