//! The servers and the store of a run, and the faults that are injected.

use super::members::{MEMBERS, Members};
use crate::harness::signal;
use crate::process::{Landfall, Random, Reach};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;

/// The shortest and the longest fault.
const FAULT_MS: (u64, u64) = (100, 1500);
/// Long enough for the other members to notice and to elect another leader.
const MEMBER_FAULT_MS: (u64, u64) = (600, 2000);

const NO_MEMBERS: &str = "only an etcd has members";

#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    KillServer(usize),
    PauseServer(usize),
    KillMember(usize),
    PauseMember(usize),
    CutMember(usize),
}

pub(crate) struct Site {
    home: tempfile::TempDir,
    servers: Vec<Server>,
    members: Option<Members>,
}

struct Server {
    dir: PathBuf,
    args: Vec<String>,
    landfall: Option<Landfall>,
    reach: watch::Sender<Reach>,
}

impl Server {
    async fn start(dir: PathBuf, args: Vec<String>) -> Server {
        let landfall = start(&dir, &args).await;
        let (reach, _) = watch::channel(landfall.reach());
        Server { dir, args, landfall: Some(landfall), reach }
    }

    async fn kill_and_start(&mut self) {
        self.landfall.take().expect("it runs").kill();
        let landfall = start(&self.dir, &self.args).await;
        self.reach.send_replace(landfall.reach());
        self.landfall = Some(landfall);
    }
}

async fn start(dir: &std::path::Path, args: &[String]) -> Landfall {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    Landfall::start_with(dir, &args).await
}

impl Site {
    /// One server with an embedded store.
    pub(crate) async fn embedded() -> Site {
        let home = tempfile::tempdir().expect("a directory");
        let server = Server::start(home.path().join("data"), Vec::new()).await;
        Site { home, servers: vec![server], members: None }
    }

    /// Two servers on three members: one knows only the first member and must fail if that one is disconnected; the other
    /// one knows the other members.
    pub(crate) async fn etcd() -> Site {
        let home = tempfile::tempdir().expect("a directory");
        let members = Members::start().await;
        let mut servers = Vec::new();
        for (at, known) in [&[0][..], &[1, 2]].into_iter().enumerate() {
            let dir = home.path().join(format!("data-{at}"));
            if at > 0 {
                copy_keys(&home.path().join("data-0"), &dir);
            }
            let args = vec!["--store".to_owned(), members.store(known)];
            servers.push(Server::start(dir, args).await);
        }
        Site { home, servers, members: Some(members) }
    }

    pub(crate) fn servers(&self) -> Vec<watch::Receiver<Reach>> {
        self.servers.iter().map(|server| server.reach.subscribe()).collect()
    }

    pub(crate) fn any_server_fault(&self, random: &mut Random) -> Fault {
        let server = random.below(self.servers.len() as u64) as usize;
        match random.below(2) {
            0 => Fault::KillServer(server),
            _ => Fault::PauseServer(server),
        }
    }

    pub(crate) fn any_member_fault(&self, random: &mut Random) -> Fault {
        let member = random.below(MEMBERS as u64) as usize;
        match random.below(4) {
            0 => Fault::KillMember(member),
            1 => Fault::PauseMember(member),
            _ => Fault::CutMember(member),
        }
    }

    /// Injects a fault, waits for its duration, and ends it.
    pub(crate) async fn suffer(&mut self, fault: Fault, random: &mut Random) {
        let mut last = async |(least, most): (u64, u64)| {
            tokio::time::sleep(Duration::from_millis(least + random.below(most - least))).await;
        };
        match fault {
            Fault::KillServer(at) => self.servers[at].kill_and_start().await,
            Fault::PauseServer(at) => {
                let process = self.servers[at].landfall.as_ref().expect("it runs").id();
                signal(process, "STOP");
                last(FAULT_MS).await;
                signal(process, "CONT");
            }
            Fault::KillMember(at) => {
                let members = self.members.as_mut().expect(NO_MEMBERS);
                members.kill(at);
                last(FAULT_MS).await;
                members.start_again(at);
            }
            Fault::PauseMember(at) => {
                let members = self.members.as_ref().expect(NO_MEMBERS);
                members.pause(at);
                last(MEMBER_FAULT_MS).await;
                members.go_on(at);
            }
            Fault::CutMember(at) => {
                let members = self.members.as_ref().expect(NO_MEMBERS);
                members.cut_off(Some(at));
                last(MEMBER_FAULT_MS).await;
                members.cut_off(None);
            }
        }
    }

    pub(crate) fn assert_no_panic(&self) {
        for server in &self.servers {
            crate::process::assert_no_panic(&server.dir);
        }
        assert!(self.home.path().is_dir());
    }
}

/// All servers of a cluster need the keys of the same authority.
fn copy_keys(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to.join("pki")).expect("a directory");
    for name in ["admin.token", "pki/ca.crt", "pki/ca.key", "pki/sa.key"] {
        std::fs::copy(from.join(name), to.join(name)).expect("the first server has made its keys");
    }
}
