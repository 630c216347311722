//! `landfall timeline POD`: how a pod ended, or is ending, drawn as text.
//!
//! An ordinary client of the API: it reads `terminations.landfall.dev`. What is drawn is decided in
//! `lifecycle::timeline`.

use crate::command::{DATA_DIR, TimelineCommand};
use anyhow::Context;
use client::{Cache, Client, Selection};
use lifecycle::timeline::{Termination, draw, draw_step};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Unless the shell says how wide it is.
const WIDTH: usize = 100;

pub(crate) fn run(options: &TimelineCommand) -> anyhow::Result<()> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("the TLS library was set up twice"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime could not be started")?;
    runtime.block_on(show(options))
}

async fn show(options: &TimelineCommand) -> anyhow::Result<()> {
    let kubeconfig = kubeconfig(options)?;
    let client = Client::from_kubeconfig(&kubeconfig)
        .await
        .with_context(|| format!("{} cannot be used", kubeconfig.display()))?;
    let namespace = match &options.namespace {
        Some(namespace) => namespace.clone(),
        None => client.kube().default_namespace().to_owned(),
    };
    let pod = options.pod.strip_prefix("pod/").unwrap_or(&options.pod);
    let which = Selection::namespace(&namespace).fields(&format!("pod.name={pod}"));
    let records = client.list::<Termination>(&which).await?;
    let found = newest(records, options.uid.as_deref());
    if options.follow {
        return follow(&client, which, options, found).await;
    }
    let Some(record) = found else {
        anyhow::bail!(
            "there is no record of an ending of pod {namespace}/{pod}. One is made when a pod that \
             runs on a node ends, and kept for a day; `kubectl get terminations -n {namespace}` shows \
             those that are there, --follow waits for one"
        );
    };
    print!("{}", draw(&record, width(), clock::now()));
    Ok(())
}

/// A name may have been used again: the newest, unless one is asked for.
fn newest(records: Vec<Termination>, uid: Option<&str>) -> Option<Termination> {
    let wanted = |record: &Termination| uid.is_none_or(|uid| record.pod.uid.starts_with(uid));
    records.into_iter().filter(wanted).max_by_key(|record| record.started)
}

/// Steps as they are told; the whole when it is over.
async fn follow(
    client: &Client,
    which: Selection,
    options: &TimelineCommand,
    found: Option<Termination>,
) -> anyhow::Result<()> {
    // One that is over is not what somebody waits for, unless they named it.
    let over = |record: &Termination| record.ended.is_some();
    let skipped: BTreeSet<String> = match (&found, &options.uid) {
        (Some(record), None) if over(record) => {
            eprintln!("waiting for another ending of {}", options.pod);
            BTreeSet::from([record.pod.uid.clone()])
        }
        (None, _) => {
            eprintln!("waiting for {} to end", options.pod);
            BTreeSet::new()
        }
        _ => BTreeSet::new(),
    };
    let cache = Cache::<Termination>::builder(client).select(which).start();
    let mut changes = cache.subscribe();
    cache.synced().await;
    let mut shown = BTreeSet::new();
    loop {
        let known = cache.list();
        let fresh = known.iter().filter(|record| !skipped.contains(&record.pod.uid));
        let fresh = fresh.map(|record| Termination::clone(record)).collect();
        if let Some(record) = newest(fresh, options.uid.as_deref()) {
            for step in &record.steps {
                let key = (step.actor.clone(), step.incarnation.clone(), step.sequence);
                if shown.insert(key) {
                    print!("{}", draw_step(&record, step, width()));
                }
            }
            if over(&record) {
                print!("\n{}", draw(&record, width(), clock::now()));
                return Ok(());
            }
        }
        changes.next().await;
    }
}

/// As kubectl finds it; and where `landfall up` puts it.
fn kubeconfig(options: &TimelineCommand) -> anyhow::Result<PathBuf> {
    if let Some(given) = &options.kubeconfig {
        return Ok(given.clone());
    }
    if let Some(data_dir) = &options.data_dir {
        return Ok(data_dir.join("kubeconfig"));
    }
    let named = std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty());
    let named = named.and_then(|paths| std::env::split_paths(&paths).next());
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"));
    let ours = Path::new(DATA_DIR).join("kubeconfig");
    if let Some(named) = named {
        return Ok(named);
    }
    let mut usual = home.into_iter().chain([ours]);
    usual.find(|path| path.is_file()).context(
        "no kubeconfig: give one with --kubeconfig, or export KUBECONFIG; `landfall up` says where \
         its own is",
    )
}

fn width() -> usize {
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    told.unwrap_or(WIDTH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Cli, Command};
    use clap::Parser;

    fn chosen(words: &[&str]) -> Result<PathBuf, String> {
        let line = ["landfall", "timeline", "web"].iter().chain(words);
        let cli = Cli::try_parse_from(line).map_err(|error| error.to_string())?;
        let Command::Timeline(options) = cli.command else { unreachable!("it says timeline") };
        kubeconfig(&options).map_err(|error| error.to_string())
    }

    #[test]
    fn a_data_directory_names_its_kubeconfig() {
        assert_eq!(chosen(&["--data-dir", "/x"]), Ok("/x/kubeconfig".into()));
        assert_eq!(chosen(&["--kubeconfig", "/y"]), Ok("/y".into()));
        assert!(chosen(&["--data-dir", "/x", "--kubeconfig", "/y"]).is_err());
    }
}
