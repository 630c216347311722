//! `landfall timeline POD`: how a pod terminated, or is terminating, drawn as text.
//!
//! An ordinary client of the API: it reads `terminations.landfall.dev`. `lifecycle::timeline` decides
//! what is drawn.

use crate::command::{DATA_DIR, TimelineCommand};
use crate::{install_tls, kubeconfig};
use anyhow::Context;
use client::{Cache, Client, Selection};
use lifecycle::timeline::{TerminationRecord, draw, draw_step};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Width of the drawing if the shell does not set `COLUMNS`.
const WIDTH: usize = 100;

pub(crate) fn run(options: &TimelineCommand) -> anyhow::Result<()> {
    install_tls()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the threads")?;
    runtime.block_on(show(options))
}

async fn show(options: &TimelineCommand) -> anyhow::Result<()> {
    let kubeconfig = find_kubeconfig(options)?;
    let client = Client::from_kubeconfig(&kubeconfig)
        .await
        .with_context(|| format!("cannot use {}", kubeconfig.display()))?;
    let namespace = match &options.namespace {
        Some(namespace) => namespace.clone(),
        None => client.kube().default_namespace().to_owned(),
    };
    let pod = options.pod.strip_prefix("pod/").unwrap_or(&options.pod);
    let selection = Selection::namespace(&namespace).fields(&format!("pod.name={pod}"));
    let records = client.list::<TerminationRecord>(&selection).await?;
    let found = newest(records, options.uid.as_deref());
    if options.follow {
        return follow(&client, selection, options, found).await;
    }
    let Some(record) = found else {
        anyhow::bail!(
            "there is no record of pod {namespace}/{pod}. landfall makes one when a pod that runs on a \
             node is asked to terminate, and keeps it for a day. `kubectl get terminations -n \
             {namespace}` lists all records; --follow waits for a new one"
        );
    };
    print!("{}", draw(&record, width(), clock::now()));
    Ok(())
}

/// The newest record: several pods may have had this name.
fn newest(records: Vec<TerminationRecord>, uid: Option<&str>) -> Option<TerminationRecord> {
    let matches =
        |record: &TerminationRecord| uid.is_none_or(|uid| record.pod.uid.starts_with(uid));
    records.into_iter().filter(matches).max_by_key(|record| record.started)
}

/// Prints steps as they are recorded, and the whole drawing when the pod is gone.
async fn follow(
    client: &Client,
    selection: Selection,
    options: &TimelineCommand,
    found: Option<TerminationRecord>,
) -> anyhow::Result<()> {
    // A termination that is over is followed only if its UID was given.
    let is_over = |record: &TerminationRecord| record.ended.is_some();
    let skipped: BTreeSet<String> = match (&found, &options.uid) {
        (Some(record), None) if is_over(record) => {
            eprintln!("waiting for another pod {} to terminate", options.pod);
            BTreeSet::from([record.pod.uid.clone()])
        }
        (None, _) => {
            eprintln!("waiting for {} to terminate", options.pod);
            BTreeSet::new()
        }
        _ => BTreeSet::new(),
    };
    let cache = Cache::<TerminationRecord>::builder(client).select(selection).start();
    let mut changes = cache.subscribe();
    cache.synced().await;
    let mut shown = BTreeSet::new();
    loop {
        let known = cache.list();
        let candidates = known.iter().filter(|record| !skipped.contains(&record.pod.uid));
        let candidates = candidates.map(|record| TerminationRecord::clone(record)).collect();
        if let Some(record) = newest(candidates, options.uid.as_deref()) {
            for step in &record.steps {
                let key = (step.actor.clone(), step.incarnation.clone(), step.sequence);
                if shown.insert(key) {
                    print!("{}", draw_step(&record, step, width()));
                }
            }
            if is_over(&record) {
                print!("\n{}", draw(&record, width(), clock::now()));
                return Ok(());
            }
        }
        changes.next().await;
    }
}

/// The file that kubectl would use, else one that `landfall up` has written.
fn find_kubeconfig(options: &TimelineCommand) -> anyhow::Result<PathBuf> {
    if let Some(given) = &options.kubeconfig {
        return Ok(given.clone());
    }
    if let Some(data_dir) = &options.data_dir {
        return Ok(data_dir.join("kubeconfig"));
    }
    let variable = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty());
    if let Some(first) = variable.and_then(|paths| std::env::split_paths(&paths).next()) {
        return Ok(first);
    }
    let kube = std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube"));
    let in_home = |name: &str| kube.as_ref().map(|kube| kube.join(name));
    let in_data_dir = Path::new(DATA_DIR).join("kubeconfig");
    let usual = [in_home("config"), in_home(kubeconfig::COPY), Some(in_data_dir)];
    usual.into_iter().flatten().find(|path| path.is_file()).context(
        "no kubeconfig found: name one with --kubeconfig, or export KUBECONFIG; `landfall up` prints \
         where its own is",
    )
}

fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    columns.unwrap_or(WIDTH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Cli, Command};
    use clap::Parser;

    fn found(words: &[&str]) -> Result<PathBuf, String> {
        let line = ["landfall", "timeline", "web"].iter().chain(words);
        let cli = Cli::try_parse_from(line).map_err(|error| error.to_string())?;
        let Command::Timeline(options) = cli.command else { unreachable!("it says timeline") };
        find_kubeconfig(&options).map_err(|error| error.to_string())
    }

    #[test]
    fn a_data_directory_names_its_kubeconfig() {
        assert_eq!(found(&["--data-dir", "/x"]), Ok("/x/kubeconfig".into()));
        assert_eq!(found(&["--kubeconfig", "/y"]), Ok("/y".into()));
        assert!(found(&["--data-dir", "/x", "--kubeconfig", "/y"]).is_err());
    }
}
