//! `landfall drill`: restarts a workload under load. The crate `drill` measures; this file asks, shows progress, writes
//! reports, and turns Ctrl-C into an orderly end.

mod progress;

use crate::command::{DrillCommand, DrillFormat};
use crate::{install_tls, kubeconfig};
use anyhow::Context;
use client::Client;
use drill::{Drilled, Error, Interrupt, Options, RolloutModel, Target, Workload, WorkloadRef};
use progress::ProgressLine;
use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// The target was missed.
const MISSED: u8 = 1;
/// Nothing could be measured.
const NOT_MEASURED: u8 = 2;

/// Errors are printed here, because they have an exit code of their own.
pub(crate) fn run(options: &DrillCommand) -> anyhow::Result<ExitCode> {
    let work = async {
        let mut code = ExitCode::from(NOT_MEASURED);
        match drill_or_other(options).await {
            Ok(done) => code = done,
            Err(error) => eprintln!("landfall: {error:#}"),
        }
        Ok(code)
    };
    install_tls()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the threads")?;
    runtime.block_on(work)
}

async fn drill_or_other(options: &DrillCommand) -> anyhow::Result<ExitCode> {
    if options.from_pod {
        anyhow::bail!(
            "--from-pod is not supported yet: requests are sent from this machine. Run the drill on a node to be close \
             to the pods"
        );
    }
    if let Some(file) = options.file.as_deref() {
        let workload = Workload::from_manifest(&read(file)?)?;
        return forecast(options, &workload);
    }
    let path = kubeconfig::find(options.kubeconfig.as_deref(), options.data_dir.as_deref())?;
    let client = Client::from_kubeconfig(&path)
        .await
        .with_context(|| format!("cannot use {}", path.display()))?
        .named("landfall-drill");
    let namespace = match &options.namespace {
        Some(namespace) => namespace.clone(),
        None => client.kube().default_namespace().to_owned(),
    };
    let id = WorkloadRef::parse(options.workload.as_deref().unwrap_or_default(), &namespace)?;
    if options.forecast {
        return forecast(options, &Workload::load(&client, &id).await?);
    }
    if options.restore {
        return restore(&client, &id).await;
    }
    drill_workload(&client, options, id).await
}

fn read(file: &Path) -> anyhow::Result<String> {
    /// Largest manifest that is read.
    const MANIFEST_MAX: u64 = 4 << 20;
    let mut text = String::new();
    let failed = || format!("cannot read {}", file.display());
    match file.as_os_str() == "-" {
        true => std::io::stdin().take(MANIFEST_MAX).read_to_string(&mut text),
        false => std::fs::File::open(file)
            .with_context(failed)?
            .take(MANIFEST_MAX)
            .read_to_string(&mut text),
    }
    .with_context(failed)?;
    Ok(text)
}

fn forecast(options: &DrillCommand, workload: &Workload) -> anyhow::Result<ExitCode> {
    let startup = options.startup.map(|time| time.as_secs_f64());
    let model = RolloutModel::of(workload, startup)
        .map_err(|why| anyhow::anyhow!("{} cannot be forecast: {why}", workload.id))?;
    let name = workload.id.to_string();
    let text = match options.output {
        DrillFormat::Text => drill::forecast_text(&name, &model.forecast()),
        DrillFormat::Json => pretty(&drill::forecast_json(&name, &model.forecast())),
        DrillFormat::Junit | DrillFormat::Html => {
            anyhow::bail!("a forecast is printed as text or json")
        }
    };
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

async fn restore(client: &Client, id: &WorkloadRef) -> anyhow::Result<ExitCode> {
    let restored = drill::restore(client, id).await?;
    let pods = if restored.template { "; its pods are being replaced" } else { "" };
    println!("{id} is as it was before the drill{pods}");
    Ok(ExitCode::SUCCESS)
}

async fn drill_workload(
    client: &Client,
    command: &DrillCommand,
    id: WorkloadRef,
) -> anyhow::Result<ExitCode> {
    let options = options(command, id.clone());
    let workload = Workload::load(client, &id).await?;
    if let Some(original) = drill::Original::left_behind(&workload)? {
        let started = original.started;
        confirm(
            command.yes,
            &format!(
                "A drill that began at {started} has not put back the values of {id}: it was killed, or it still runs \
                 elsewhere. This drill would put them back first."
            ),
        )?;
        drill::restore(client, &id).await?;
        drill::settled(client, &id).await?;
    }
    let target = Target::find(client, &options).await?;
    confirm(command.yes, &plan(&target, &options))?;
    let (stopper, interrupt) = Interrupt::new();
    stop_on_signals(stopper)?;
    let progress = ProgressLine::new();
    let shown = progress.clone();
    let report = move |event: drill::Progress<'_>| shown.show(event);
    let drilled = drill::run(client, &options, &target, &interrupt, &report).await;
    progress.clear();
    let drilled = match drilled {
        Err(Error::Interrupted) => {
            anyhow::bail!(
                "interrupted; {id} has its own values again, and its pods may be being replaced"
            )
        }
        drilled => drilled?,
    };
    write_reports(command, &drilled)?;
    let applied = command.apply && apply(client, command, &drilled).await?;
    Ok(match drilled.reached() || applied {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(MISSED),
    })
}

fn options(command: &DrillCommand, workload: WorkloadRef) -> Options {
    Options {
        workload,
        target: command.target,
        restarts: command.restarts,
        rate: command.rate,
        connections: command.connections.iter().map(|one| one.kind()).collect(),
        path: command.path.clone(),
        slow_path: command.slow_path.clone(),
        timeout: command.timeout,
        service: command.service.clone(),
        port: command.port.clone(),
        url: command.url.clone(),
        proxy_delay: command.proxy_delay.clone(),
        time_limit: command.time_limit,
        search: !command.no_search,
        pre_stop_max: command.prestop_max,
    }
}

/// What the drill is going to do, for the user to confirm.
fn plan(target: &Target, options: &Options) -> String {
    let mut plan = format!(
        "This drill restarts {} several times and sends {} requests per second to {} ({}).",
        target.workload.id, options.rate, target.address, target.via
    );
    if !options.search {
        plan = plan.replace(
            "several times",
            &format!("{} times and once more at the end", options.restarts),
        );
    } else if let Some(why) = drill::why_no_search(target) {
        plan += &format!(" Note: {why}.");
    } else {
        plan += &format!(
            " It varies the preStop sleep of container {} from 0 to at most {} s, and the grace period with it, for at most \
             {} s.",
            target.container,
            options.pre_stop_max,
            options.time_limit.as_secs()
        );
    }
    if let Some(delay) = &options.proxy_delay {
        plan += &format!(" Meanwhile the packet rules of all nodes are delayed by {}.", delay.text);
    }
    plan + " Everything is put back at the end, on errors and on Ctrl-C."
}

/// Asks on a terminal. Without one, --yes is needed.
fn confirm(yes: bool, question: &str) -> anyhow::Result<()> {
    eprintln!("{question}");
    if yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        anyhow::bail!("nothing was changed: there is no terminal to ask on. Pass --yes to agree");
    }
    eprint!("Continue? [y/N] ");
    std::io::stderr().flush().ok();
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("cannot read the answer")?;
    anyhow::ensure!(
        matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"),
        "nothing was changed"
    );
    Ok(())
}

/// The first signal ends the drill in order; it puts everything back.
fn stop_on_signals(stopper: drill::Stopper) -> anyhow::Result<()> {
    let mut interrupts = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    let mut terminations = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut hangups = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupts.recv() => {}
            _ = terminations.recv() => {}
            _ = hangups.recv() => {}
        }
        stopper.stop();
        // Kept alive, so that further signals are ignored while values are put back.
        std::future::pending::<()>().await;
    });
    Ok(())
}

fn write_reports(command: &DrillCommand, drilled: &Drilled) -> anyhow::Result<()> {
    let write = |file: &Path, text: String| {
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    if let Some(file) = &command.html {
        write(file, drill::html(drilled))?;
    }
    if let Some(file) = &command.junit {
        write(file, drill::junit(drilled))?;
    }
    let text = match command.output {
        DrillFormat::Text => drill::text(drilled),
        DrillFormat::Json => pretty(&drill::json(drilled)),
        DrillFormat::Junit => drill::junit(drilled),
        DrillFormat::Html => drill::html(drilled),
    };
    // The reader of the output may be gone by now.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn pretty(value: &serde_json::Value) -> String {
    format!("{value:#}\n")
}

/// Sets the recommended values. False: there is nothing to set.
async fn apply(client: &Client, command: &DrillCommand, drilled: &Drilled) -> anyhow::Result<bool> {
    let (Some(found), Some(_)) = (&drilled.recommended, drilled.patch()) else {
        eprintln!("nothing to apply");
        return Ok(false);
    };
    let id = &drilled.target.workload.id;
    let (hook, grace) = (found.setting.pre_stop_seconds, found.setting.grace_seconds);
    let question = format!(
        "Setting preStop {hook} s and grace period {grace} s for {id} for good; its pods are replaced once more."
    );
    confirm(command.yes, &question)?;
    drill::apply(client, drilled).await?;
    eprintln!("{id} has the recommended values; its pods are being replaced");
    Ok(true)
}

#[cfg(test)]
mod tests {
    use crate::command::{Cli, Command};
    use clap::Parser;

    #[test]
    fn a_drill_needs_a_workload_or_a_manifest() {
        let parse = |words: &[&str]| {
            let line = ["landfall", "drill"].iter().chain(words);
            Cli::try_parse_from(line).map_err(|error| error.to_string())
        };
        assert!(parse(&["deploy/web", "--target", "99.9", "--for", "10m"]).is_ok());
        assert!(parse(&["deploy/web", "--connections", "new,keepalive,slow"]).is_ok());
        assert!(parse(&["--forecast", "-f", "web.yaml"]).is_ok());
        assert!(parse(&[]).is_err() && parse(&["-f", "web.yaml"]).is_err());
        assert!(parse(&["deploy/web", "--apply", "--no-search"]).is_err());
        let cli = parse(&["deploy/web"]).unwrap();
        assert!(matches!(cli.command, Command::Drill(_)));
    }
}
