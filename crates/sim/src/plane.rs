//! The control plane of a simulated cluster: server, controllers and scheduler, as one process that can
//! crash and come again.

use crate::book::Book;
use crate::chance::Chance;
use crate::life::Life;
use crate::line::{Line, Meter, Port};
use client::Client;
use controllers::Who;
use server::authn::User;
use server::{Foundation, Indoors, Server, Site};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Controllers have done by then what they do in an empty cluster.
const SETTLED: Duration = Duration::from_secs(1);

pub(crate) struct Plane {
    book: Book,
    site: Site,
    port: watch::Sender<Option<Server>>,
    /// Of all lines that lead here.
    pub(crate) meter: Meter,
    running: Option<Running>,
    who: Who,
    seed: u64,
}

/// One life of it.
struct Running {
    indoors: Indoors,
    life: Arc<Life>,
    _controllers: controllers::Handle,
    _scheduler: scheduler::Handle,
}

impl Plane {
    pub(crate) fn new(foundation: &Foundation, book: Book, who: Who, seed: u64) -> Plane {
        let port = watch::Sender::new(None);
        Plane {
            book,
            site: foundation.site(),
            port,
            meter: Meter::default(),
            running: None,
            who,
            seed,
        }
    }

    /// A foundation on which controllers have nothing to do any more.
    pub(crate) async fn settled(foundation: &Foundation) -> Result<Foundation, server::Error> {
        let mut plane = Plane::new(foundation, Book::new(), Who::All, 0);
        plane.start().await?;
        tokio::time::sleep(SETTLED).await;
        let running = plane.running.as_ref();
        Ok(running.map_or(foundation.clone(), |it| plane.site.foundation(&it.indoors)))
    }

    /// Where lines lead.
    pub(crate) fn port(&self) -> Port {
        Port { server: self.port.subscribe(), meter: self.meter.clone() }
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
        let controllers = controllers::start(&manager, options(self.who));
        let scheduler = scheduler::start(&as_user("system:kube-scheduler", &[]), None);
        self.running =
            Some(Running { indoors, life, _controllers: controllers, _scheduler: scheduler });
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

/// Room for more nodes than a cluster has by default.
fn options(who: Who) -> controllers::Options {
    let mut options = controllers::Options { who, ..Default::default() };
    if let Ok(range) = controllers::Range::new("10.0.0.0/8", 24) {
        options.pod_cidrs = range;
    }
    options
}
