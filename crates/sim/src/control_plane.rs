//! The control plane of a simulated cluster: server, controllers and scheduler, as one process that can
//! crash and restart.

use crate::connection::{Connection, RequestCounter, ServerHandle};
use crate::event_log::EventLog;
use crate::process_run::ProcessRun;
use crate::random::Random;
use client::Client;
use controllers::ControllerSet;
use server::authn::User;
use server::{Server, ServerInstance, ServerTemplate, SimulatedServer};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// After this long, controllers have nothing left to do in an empty cluster.
const SETTLED: Duration = Duration::from_secs(1);

pub(crate) struct ControlPlane {
    log: EventLog,
    site: ServerInstance,
    server: watch::Sender<Option<Server>>,
    /// Counts the requests on all connections to this control plane.
    pub(crate) counter: RequestCounter,
    running: Option<Running>,
    controllers: ControllerSet,
    seed: u64,
}

/// One run of the control plane.
struct Running {
    indoors: SimulatedServer,
    process: Arc<ProcessRun>,
    _controllers: controllers::Handle,
    _scheduler: scheduler::Handle,
}

impl ControlPlane {
    pub(crate) fn new(
        foundation: &ServerTemplate,
        log: EventLog,
        controllers: ControllerSet,
        seed: u64,
    ) -> ControlPlane {
        let server = watch::Sender::new(None);
        ControlPlane {
            log,
            site: foundation.instance(),
            server,
            counter: RequestCounter::default(),
            running: None,
            controllers,
            seed,
        }
    }

    /// A foundation on which controllers have nothing left to do.
    pub(crate) async fn settled(
        foundation: &ServerTemplate,
    ) -> Result<ServerTemplate, server::Error> {
        let mut control_plane =
            ControlPlane::new(foundation, EventLog::new(), ControllerSet::All, 0);
        control_plane.start().await?;
        tokio::time::sleep(SETTLED).await;
        let running = control_plane.running.as_ref();
        Ok(running.map_or(foundation.clone(), |it| control_plane.site.to_template(&it.indoors)))
    }

    /// What connections lead to.
    pub(crate) fn handle(&self) -> ServerHandle {
        ServerHandle { server: self.server.subscribe(), counter: self.counter.clone() }
    }

    pub(crate) async fn start(&mut self) -> Result<(), server::Error> {
        let indoors = self.site.start().await?;
        self.server.send_replace(Some(indoors.server.clone()));
        let process = ProcessRun::new();
        let as_user = |name: &str, groups: &[&str]| {
            let user = User::authenticated(name, groups);
            let connection = Connection::new(self.handle(), user, Random::new(self.seed, 0))
                .of_process(process.clone());
            Client::in_process(connection)
        };
        let manager = as_user("system:kube-controller-manager", &["system:masters"]);
        let controllers = controllers::start(&manager, options(self.controllers));
        let scheduler = scheduler::start(&as_user("system:kube-scheduler", &[]), None);
        self.running =
            Some(Running { indoors, process, _controllers: controllers, _scheduler: scheduler });
        self.log.note("the control plane starts");
        Ok(())
    }

    /// Stops everything at once. Acknowledged writes are kept.
    pub(crate) fn crash(&mut self) {
        let Some(running) = self.running.take() else { return };
        running.process.crash_now();
        drop(running);
        self.server.send_replace(None);
        self.log.note("the control plane has crashed");
    }

    /// The store accepts this many more writes and then no more. Resolves when it has stopped.
    pub(crate) fn stop_storing_after(&self, writes: u64) -> oneshot::Receiver<()> {
        self.site.cut_after(writes)
    }
}

/// With a pod address range for more nodes than the default.
fn options(controllers: ControllerSet) -> controllers::Options {
    let mut options = controllers::Options { controllers, ..Default::default() };
    if let Ok(range) = controllers::Range::new("10.0.0.0/8", 24) {
        options.pod_cidrs = range.into();
    }
    options
}
