//! `landfall stop` and `landfall down`: stop a running landfall, and leave its pods or terminate them.

use crate::control::{self, Request};
use crate::{agent, block_on, data_dir};
use anyhow::Context;
use std::path::Path;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

pub(crate) fn stop(data_dir: &Path) -> anyhow::Result<()> {
    data_dir::must_exist(data_dir)?;
    block_on(async {
        // Ctrl-C ends this command only: the running landfall goes on stopping.
        let (_never_hurry, hurry) = mpsc::channel(1);
        let stopped = control::send(Request::Stop, data_dir, hurry, |line| println!("{line}"));
        match stopped.await? {
            Some(()) => println!(
                "landfall has stopped; its pods keep running, and the next start finds them"
            ),
            None => println!("no landfall is running on {}", data_dir.display()),
        }
        Ok(())
    })
}

pub(crate) fn down(data_dir: &Path) -> anyhow::Result<()> {
    data_dir::must_exist(data_dir)?;
    block_on(async {
        let hurry = hurry_on_signal()?;
        let ended = control::send(Request::Down, data_dir, hurry, |line| println!("{line}"));
        if ended.await?.is_some() {
            println!("landfall is down; its objects are still in {}", data_dir.display());
            return Ok(());
        }
        println!("no landfall is running on {}; removing what it left", data_dir.display());
        remove_leftovers(data_dir, |line| println!("{line}")).await?;
        println!("nothing of it is left running");
        Ok(())
    })
}

/// Terminates the pods of an agent that does not run. `say` is called with progress messages.
pub(crate) async fn remove_leftovers(data_dir: &Path, say: impl Fn(String)) -> anyhow::Result<()> {
    let runtime = agent::open_runtime(data_dir, &agent::last_runtime(data_dir), None).await?;
    Ok(node::remove_leftovers(data_dir, runtime, say).await?)
}

/// The first Ctrl-C or SIGTERM hurries the running landfall; the second ends this command.
fn hurry_on_signal() -> anyhow::Result<mpsc::Receiver<()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let (sender, hurry) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut next_signal = async || {
            tokio::select! {
                _ = interrupt.recv() => 2,
                _ = terminate.recv() => 15,
            }
        };
        next_signal().await;
        let _ = sender.try_send(());
        let number: i32 = next_signal().await;
        eprintln!(
            "landfall: the running landfall goes on terminating its pods without this command"
        );
        std::process::exit(128 + number);
    });
    Ok(hurry)
}
