//! `landfall stop` and `landfall down`: end a running landfall, without its pods or with them.

use crate::control::{self, Wish};
use crate::{agent, block_on};
use anyhow::Context;
use std::path::Path;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

pub(crate) fn stop(data_dir: &Path) -> anyhow::Result<()> {
    there_is(data_dir)?;
    block_on(async {
        // Ctrl-C ends this command, not the other one's orderly stop.
        let (_nobody_hurries, hurry) = mpsc::channel(1);
        match control::ask(Wish::Stop, data_dir, hurry, |line| println!("{line}")).await? {
            Some(()) => {
                println!("landfall has stopped; its pods go on, and the next start finds them")
            }
            None => println!("no landfall is running on {}", data_dir.display()),
        }
        Ok(())
    })
}

pub(crate) fn down(data_dir: &Path) -> anyhow::Result<()> {
    there_is(data_dir)?;
    block_on(async {
        let hurry = second_thoughts()?;
        if control::ask(Wish::Down, data_dir, hurry, |line| println!("{line}")).await?.is_some() {
            println!("landfall is down; its objects are still in {}", data_dir.display());
            return Ok(());
        }
        println!("no landfall is running on {}; clearing away what one left", data_dir.display());
        let native = agent::open_runtime(data_dir, "native", None).await?;
        node::clear_away(data_dir, native, |line| println!("{line}")).await?;
        println!("nothing of it is left running");
        Ok(())
    })
}

fn there_is(data_dir: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(
        data_dir.is_dir(),
        "there is no landfall in {}; is --data-dir right?",
        data_dir.display()
    );
    Ok(())
}

/// The first Ctrl-C or SIGTERM hurries; the next ends this command as it would any other.
fn second_thoughts() -> anyhow::Result<mpsc::Receiver<()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let (hurry, hurried) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = interrupt.recv() => 2,
                _ = terminate.recv() => 15,
            }
        };
        next().await;
        let _ = hurry.try_send(());
        let number: i32 = next().await;
        eprintln!("landfall: the running landfall goes on ending its pods without this command");
        std::process::exit(128 + number);
    });
    Ok(hurried)
}
