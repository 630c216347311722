//! `landfall timeline POD`: how a pod terminated, or is terminating, drawn as text.
//!
//! An ordinary client of the API: it reads `terminations.landfall.dev`. `lifecycle::timeline` decides
//! what is drawn.

use crate::command::TimelineCommand;
use crate::{install_tls, kubeconfig};
use anyhow::Context;
use client::{Cache, Client, Selection};
use lifecycle::timeline::{TerminationRecord, draw, draw_step};
use std::collections::BTreeSet;

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
    let kubeconfig = kubeconfig::find(options.kubeconfig.as_deref(), options.data_dir.as_deref())?;
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

fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    columns.unwrap_or(WIDTH)
}
