//! `landfall down`: ends a cluster and everything it started.

use crate::{agent, control};
use anyhow::Context;
use std::path::Path;

pub(crate) fn run(data_dir: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(
        data_dir.is_dir(),
        "there is no landfall in {}; is --data-dir right?",
        data_dir.display()
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("the runtime could not be started")?;
    runtime.block_on(async {
        if control::ask_down(data_dir, |line| println!("{line}")).await?.is_some() {
            println!("landfall is down; its objects are still in {}", data_dir.display());
            return Ok(());
        }
        println!("no landfall is running on {}; clearing away what one left", data_dir.display());
        let native = agent::open_runtime(data_dir, "native").await?;
        node::clear_away(data_dir, native, |line| println!("{line}")).await?;
        println!("nothing of it is left running");
        Ok(())
    })
}
