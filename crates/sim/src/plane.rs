//! The control plane of a simulated cluster: server, controllers and scheduler, as one process that can
//! crash and come again.

use crate::book::Book;
use crate::chance::Chance;
use crate::life::Life;
use crate::line::{Line, Port};
use client::Client;
use server::authn::User;
use server::{Foundation, Indoors, Server, Site};
use std::sync::Arc;
use tokio::sync::{oneshot, watch};

pub(crate) struct Plane {
    book: Book,
    site: Site,
    port: watch::Sender<Option<Server>>,
    running: Option<Running>,
    scheduler: bool,
    seed: u64,
}

/// One life of it.
struct Running {
    _indoors: Indoors,
    life: Arc<Life>,
    _controllers: controllers::Handle,
    _scheduler: Option<scheduler::Handle>,
}

impl Plane {
    pub(crate) fn new(foundation: &Foundation, book: Book, scheduler: bool, seed: u64) -> Plane {
        let port = watch::Sender::new(None);
        Plane { book, site: foundation.site(), port, running: None, scheduler, seed }
    }

    /// Where lines lead.
    pub(crate) fn port(&self) -> Port {
        self.port.subscribe()
    }

    pub(crate) async fn start(&mut self) -> Result<(), server::Error> {
        let indoors = self.site.start().await?;
        self.port.send_replace(Some(indoors.server.clone()));
        let life = Life::new();
        let as_user = |name: &str, groups: &[&str]| {
            let user = User::authenticated(name, groups);
            let line = Line::new(self.port(), user, Chance::new(self.seed, 0)).of(life.clone());
            Client::in_process(line)
        };
        let manager = as_user("system:kube-controller-manager", &["system:masters"]);
        let controllers = controllers::start(&manager, controllers::Options::default());
        let scheduler =
            self.scheduler.then(|| scheduler::start(&as_user("system:kube-scheduler", &[]), None));
        self.running = Some(Running {
            _indoors: indoors,
            life,
            _controllers: controllers,
            _scheduler: scheduler,
        });
        self.book.say("the control plane runs");
        Ok(())
    }

    /// Nothing of it happens any more. What it has acknowledged is kept.
    pub(crate) fn crash(&mut self) {
        let Some(running) = self.running.take() else { return };
        running.life.end();
        drop(running);
        self.port.send_replace(None);
        self.book.say("the control plane has crashed");
    }

    /// It stores so many more things and then nothing. Resolves when that has happened.
    pub(crate) fn cut_after(&self, writes: u64) -> oneshot::Receiver<()> {
        self.site.cut_after(writes)
    }
}
