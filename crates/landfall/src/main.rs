//! The binary: the one place that joins the parts.
#![doc = include_str!("../README.md")]

mod command;

mod agent;
mod control;
mod data_dir;
mod hints;
mod kubeconfig;
mod local_node;
mod shutdown;
mod traffic;
mod up;

mod backup;
mod drill;
mod image;
mod stop;
mod timeline;
mod token;

mod allocator;

use anyhow::Context;
use clap::{CommandFactory, Parser};
use command::{Cli, Command};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn main() -> ExitCode {
    // A pod's shim is this program too. It stays small, so nothing else is set up before this.
    if let Some(code) = runtime::run_shim_if_asked() {
        return code;
    }
    let cli = Cli::parse();
    match run(&cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("landfall: {error:#}");
            if let Some(remedy) = hints::permission_remedy(&error) {
                eprintln!("{remedy}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Drill(options) => drill::run(options),
        other => run_other(other).map(|()| ExitCode::SUCCESS),
    }
}

/// Commands that have succeeded if they return no error.
fn run_other(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Drill(_) => Ok(()),
        Command::Up(options) => up::run(options),
        Command::Stop { data_dir } => stop::stop(data_dir),
        Command::Down { data_dir } => stop::down(data_dir),
        Command::Kubeconfig(options) => kubeconfig::run(options),
        Command::Backup { file, data_dir } => backup::take(file, data_dir),
        Command::Restore(options) => backup::restore(options),
        Command::Server(options) => up::run_server(options),
        Command::Node(options) => up::run_node(options),
        Command::Image(command) => image::run(command),
        Command::Token(command) => token::run(command),
        Command::Timeline(options) => timeline::run(options),
        Command::Version => {
            let kubernetes = server::discovery::git_version();
            println!("landfall {} (Kubernetes {kubernetes})", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        Command::Completions { shell } => {
            let out = &mut std::io::stdout();
            clap_complete::generate(*shell, &mut Cli::command(), "landfall", out);
            Ok(())
        }
    }
}

/// Stack of a worker thread. Futures of a debug build are large; unused stack costs nothing.
const STACK: usize = 8 << 20;

fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK)
        .build()
        .context("cannot start the threads")?;
    runtime.block_on(work)
}

/// Must run before the first TLS connection.
fn install_tls() -> anyhow::Result<()> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("the TLS library was set up twice"))
}
