//! The binary: the one place that joins the parts. Commands are read here and handed on.

mod command;

mod agent;
mod allocator;
mod control;
mod down;
mod end;
mod image;
mod timeline;
mod token;
mod up;

use anyhow::Context;
use clap::{CommandFactory, Parser};
use command::{Cli, Command};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: allocator::Chosen = allocator::Chosen;

fn main() -> ExitCode {
    // A pod's shim is this program too. It stays small: nothing else is set up before.
    if let Some(code) = runtime::run_shim_if_asked() {
        return code;
    }
    let cli = Cli::parse();
    let outcome = match &cli.command {
        Command::Up(options) => up::run(options),
        Command::Stop { data_dir } => down::stop(data_dir),
        Command::Down { data_dir } => down::down(data_dir),
        Command::Server(options) => up::run_server(options),
        Command::Node(options) => up::run_node(options),
        Command::Image(command) => image::run(command),
        Command::Token(command) => token::run(command),
        Command::Timeline(command) => timeline::run(command),
        Command::Version => {
            println!(
                "landfall {} (Kubernetes {})",
                env!("CARGO_PKG_VERSION"),
                server::discovery::git_version()
            );
            Ok(())
        }
        Command::Completions { shell } => {
            clap_complete::generate(
                *shell,
                &mut Cli::command(),
                "landfall",
                &mut std::io::stdout(),
            );
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("landfall: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Of a worker thread. Futures of an unoptimised build are large, and untouched stack costs nothing.
const STACK: usize = 8 << 20;

fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK)
        .build()
        .context("the runtime could not be started")?;
    runtime.block_on(work)
}
