//! A node of a simulated cluster: a machine, and one agent after another on it.

use crate::book::{Agent, Book, What};
use crate::chance::Chance;
use crate::cluster::Wrap;
use crate::hands::Hands;
use crate::life::Life;
use crate::line::{Line, Port};
use crate::machine::Machine;
use client::Client;
use runtime::Runtime;
use server::authn::User;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// What every simulated machine is.
const HARDWARE: node::Hardware =
    node::Hardware { cores: 64, memory_bytes: 256 << 30, storage_bytes: 1 << 40 };
/// An agent that could not be started is started again after this.
const START_AGAIN: Duration = Duration::from_secs(1);

pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) line: Line,
    now: Arc<Mutex<Now>>,
    task: JoinHandle<()>,
}

/// The agent that is alive, and how long nobody will be when it has died.
struct Now {
    life: Arc<Life>,
    downtime: Duration,
    /// One has died, and the next has not begun.
    away: bool,
}

/// What all lives of an agent share.
struct Place {
    name: String,
    number: u16,
    seed: u64,
    directory: PathBuf,
    book: Book,
    machine: Arc<Machine>,
    line: Line,
    wrap: Option<Wrap>,
    grace: node::GraceAfterRestart,
}

impl Host {
    pub(crate) fn start(
        number: u16,
        seed: u64,
        port: Port,
        book: &Book,
        directory: PathBuf,
        wrap: Option<Wrap>,
    ) -> Host {
        let name = format!("n{number}");
        let user = User::authenticated(format!("system:node:{name}"), &["system:nodes"]);
        let line = Line::new(port, user, Chance::new(seed, 1000 + u64::from(number)));
        let place = Place {
            machine: Machine::new(&name, number, book.clone()),
            name: name.clone(),
            number,
            seed,
            directory,
            book: book.clone(),
            line: line.clone(),
            wrap,
            grace: match seed % 2 {
                0 => node::GraceAfterRestart::Full,
                _ => node::GraceAfterRestart::Kept,
            },
        };
        let now =
            Arc::new(Mutex::new(Now { life: Life::new(), downtime: Duration::ZERO, away: false }));
        let task = tokio::spawn(live(place, now.clone()));
        Host { name, line, now, task }
    }

    /// In the middle of whatever it does then, so many steps from now; 0: at once.
    pub(crate) fn crash_after(&self, steps: u64, downtime: Duration) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.downtime = downtime;
        match steps {
            0 => now.life.end(),
            steps => now.life.end_after(steps),
        }
    }

    /// When it next wants to stop a container, before the container has its signal.
    pub(crate) fn crash_at_stop(&self, downtime: Duration) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.downtime = downtime;
        now.life.end_at_stop();
    }
}

impl Host {
    /// Nobody is there who could do anything, and the cluster may not have noticed yet.
    pub(crate) fn is_away(&self) -> bool {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).away
    }

    /// It will not crash after all.
    pub(crate) fn spare(&self) {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).life.spare();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn live(place: Place, now: Arc<Mutex<Now>>) {
    for number in 1.. {
        let life = {
            let mut now = now.lock().unwrap_or_else(PoisonError::into_inner);
            now.away = false;
            now.life.clone()
        };
        let agent = Agent { node: place.name.as_str().into(), life: number };
        place.book.write(What::Agent { agent: agent.clone(), lives: true });
        tokio::select! {
            biased;
            () = life.died() => {}
            () = run(&place, &agent, &life) => {}
        }
        place.book.write(What::Agent { agent, lives: false });
        let downtime = {
            let mut now = now.lock().unwrap_or_else(PoisonError::into_inner);
            now.life = Life::new();
            now.away = true;
            now.downtime
        };
        tokio::time::sleep(downtime).await;
    }
}

/// Until it is dropped.
async fn run(place: &Place, agent: &Agent, life: &Arc<Life>) {
    let line = place.line.of(life.clone()).heard(place.book.clone(), agent.clone());
    loop {
        let stream = (u64::from(place.number) << 32) + u64::from(agent.life);
        let hands: Arc<dyn Runtime> = Arc::new(Hands {
            machine: place.machine.clone(),
            agent: agent.clone(),
            life: life.clone(),
            book: place.book.clone(),
            chance: Mutex::new(Chance::new(place.seed, stream)),
        });
        let runtime = match &place.wrap {
            Some(wrap) => wrap(hands),
            None => hands,
        };
        let [more, number] = place.number.to_be_bytes();
        let config = node::Config {
            name: place.name.clone(),
            data_dir: place.directory.clone(),
            log_dir: place.directory.join("log"),
            node_ip: Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2u8.wrapping_add(more), number))),
            endpoint: None,
            hardware: Some(HARDWARE),
            runtime,
            link: "sim".into(),
            manifests: None,
            cluster_dns: Vec::new(),
            service_cidrs: Vec::new(),
            cgroup: "/sim".into(),
            eviction_hard: Some(String::new()),
            pod_pids_limit: None,
            lease: node::LEASE_DURATION,
            grace_after_restart: place.grace,
            shutdown: node::Periods::default(),
            version: server::discovery::git_version().to_owned(),
        };
        match node::start(Client::in_process(line.clone()), config).await {
            Ok(_running) => std::future::pending::<()>().await,
            Err(error) => place.book.say(format!("{agent} cannot start: {error}")),
        }
        tokio::time::sleep(START_AGAIN).await;
    }
}
