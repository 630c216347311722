//! How a running landfall stops: what asks it to, and what happens to its pods.
//!
//!     SIGTERM, Ctrl-C, `landfall stop`       ──▶ pods keep running
//!     SIGTERM while the host shuts down      ──▶ pods are terminated
//!     `landfall down`                        ──▶ pods are terminated; a second request hurries

use crate::control::{ControlSocket, PendingRequest, Progress, Request};
use crate::stop::remove_leftovers;
use anyhow::Context;
use std::path::Path;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that stop landfall: SIGTERM and SIGINT.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn listen() -> anyhow::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
        })
    }

    /// Runs `start` unless a signal comes first. None: a signal came.
    pub(crate) async fn during<T>(
        &mut self,
        start: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<Option<T>> {
        tokio::select! {
            started = start => started.map(Some),
            () = self.received() => Ok(None),
        }
    }

    pub(crate) async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Why landfall stops.
pub(crate) enum StopCause {
    Signal,
    Requested(PendingRequest),
}

impl StopCause {
    /// Waits for a signal or a request to stop, and serves other requests meanwhile. `server` is None
    /// if this landfall only runs a node.
    pub(crate) async fn wait(
        signals: &mut Signals,
        control: &ControlSocket,
        server: Option<&server::Running>,
    ) -> StopCause {
        let backups = server.map(server::Running::backups);
        loop {
            let pending = tokio::select! {
                () = signals.received() => return StopCause::Signal,
                pending = control.next(backups.as_ref()) => pending,
            };
            match pending.request {
                Request::Stop | Request::Down => return StopCause::Requested(pending),
                Request::RotateToken => pending.answer(rotate_token(server)).await,
            }
        }
    }

    fn progress(&self) -> Option<Progress> {
        match self {
            StopCause::Signal => None,
            StopCause::Requested(pending) => Some(pending.progress.clone()),
        }
    }

    async fn hurried(&mut self) {
        match self {
            StopCause::Signal => std::future::pending().await,
            StopCause::Requested(pending) => pending.hurried().await,
        }
    }

    /// Tells the client, if there is one, that everything is done.
    pub(crate) async fn done(self) {
        match self {
            StopCause::Signal => {}
            StopCause::Requested(pending) => pending.done().await,
        }
    }
}

fn rotate_token(server: Option<&server::Running>) -> anyhow::Result<()> {
    let server = server.context(
        "this landfall is a node without an API server: run this where the API server runs",
    )?;
    server.rotate_admin_token().context("the token was not replaced")
}

/// Stops the agent. Terminates its pods first for `landfall down` and when the host shuts down. Returns
/// how many pods keep running.
pub(crate) async fn stop_node(
    node: node::Running,
    cause: &mut StopCause,
    signals: &mut Signals,
) -> usize {
    let with_pods = match cause {
        StopCause::Signal => node.host_is_stopping().await,
        StopCause::Requested(pending) => pending.request == Request::Down,
    };
    if with_pods {
        terminate_pods(&node, cause, signals).await;
    }
    let running = if with_pods { 0 } else { node.running_pods() };
    node.stop().await;
    running
}

/// For `landfall down` while no agent runs: terminates its pods without their specs, as `landfall down` does
/// when no landfall runs.
pub(crate) async fn remove_pods(cause: &StopCause, data_dir: &Path) {
    let StopCause::Requested(PendingRequest { request: Request::Down, progress, .. }) = cause
    else {
        return;
    };
    let say = |line: String| progress.try_send(line);
    if let Err(error) = remove_leftovers(data_dir, say).await {
        progress.send(format!("not everything is removed: {error:#}")).await;
    }
}

async fn terminate_pods(node: &node::Running, cause: &mut StopCause, signals: &mut Signals) {
    let progress = cause.progress();
    let show = |line: String| {
        let progress = progress.clone();
        async move {
            if let Some(progress) = progress {
                progress.send(line).await;
            }
        }
    };
    let termination = node.terminate_pods(show);
    tokio::pin!(termination);
    let shortened = loop {
        tokio::select! {
            shortened = &mut termination => break shortened,
            () = signals.received() => node.hurry(),
            () = cause.hurried() => node.hurry(),
        }
    };
    if !shortened.is_empty() {
        show("pods that got less than their grace period, or had to be killed:".to_owned()).await;
    }
    for pod in &shortened {
        show(format!("  {pod}")).await;
    }
}
