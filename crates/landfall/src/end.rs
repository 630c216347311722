//! How a running landfall ends: what asks it to, and what becomes of its pods.
//!
//!     SIGTERM, Ctrl-C, `landfall stop`   ──▶ pods go on
//!     the same while the host goes down  ──▶ pods end
//!     `landfall down`                    ──▶ pods end; asked once more, by signal or word: in a hurry

use crate::control::{Asked, Control, Progress, Wish};
use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What asks a process to stop.
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

    /// Whoever is asked to stop while still starting does so. None: that is what happened.
    pub(crate) async fn during<T>(
        &mut self,
        start: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<Option<T>> {
        tokio::select! {
            started = start => started.map(Some),
            () = self.stop() => Ok(None),
        }
    }

    pub(crate) async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Who asked for the end.
pub(crate) enum End {
    Signal,
    Asked(Asked),
}

impl End {
    pub(crate) async fn awaited(signals: &mut Signals, control: &Control) -> End {
        tokio::select! {
            () = signals.stop() => End::Signal,
            asked = control.asked() => End::Asked(asked),
        }
    }

    fn progress(&self) -> Option<Progress> {
        match self {
            End::Signal => None,
            End::Asked(asked) => Some(asked.progress.clone()),
        }
    }

    async fn hurried(&mut self) {
        match self {
            End::Signal => std::future::pending().await,
            End::Asked(asked) => asked.hurried().await,
        }
    }

    /// Everything is done: whoever asked is told.
    pub(crate) async fn done(self) {
        match self {
            End::Signal => {}
            End::Asked(asked) => asked.done().await,
        }
    }
}

/// Ends the node's part: its pods too, if that was asked for.
pub(crate) async fn leave(node: node::Running, end: &mut End, signals: &mut Signals) {
    let with_pods = match end {
        End::Signal => node.host_is_stopping().await,
        End::Asked(asked) => asked.wish == Wish::Down,
    };
    if with_pods {
        end_pods(&node, end, signals).await;
    }
    node.stop().await;
}

async fn end_pods(node: &node::Running, end: &mut End, signals: &mut Signals) {
    let progress = end.progress();
    let say = |line: String| {
        let progress = progress.clone();
        async move {
            if let Some(progress) = progress {
                progress.say(line).await;
            }
        }
    };
    let ending = node.end_pods(say);
    tokio::pin!(ending);
    let cuts = loop {
        tokio::select! {
            cuts = &mut ending => break cuts,
            () = signals.stop() => node.hurry(),
            () = end.hurried() => node.hurry(),
        }
    };
    if !cuts.is_empty() {
        say("not everyone got all the time they could have had:".to_owned()).await;
    }
    for cut in &cuts {
        say(format!("  {cut}")).await;
    }
}
