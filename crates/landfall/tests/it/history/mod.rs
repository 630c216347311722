//! Reads and writes of single objects are linearizable while servers and etcd members are killed, paused or disconnected.
//!
//! Clients create, read, update and delete a few objects through any server, as fast as they can, and record requests and
//! responses (`client`, `record`). Meanwhile servers or members of etcd are killed and paused, or a member is
//! disconnected from the others (`site`, `members`). Afterwards there must be an order of all operations that agrees with
//! time and explains every response (`checker`, `operation`).

mod checker;
mod client;
mod members;
mod operation;
mod record;
mod site;

use self::client::{NAMES, Worker, read_all};
use self::record::{History, Tally};
use self::site::Site;
use crate::process::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::timeout;

const CLIENTS: usize = 5;
const FAULTS: usize = 4;
/// How many operations happen between two faults.
const BETWEEN: (u64, u64) = (20, 150);
/// The longest wait for these operations.
const BETWEEN_MAX: Duration = Duration::from_secs(20);
/// Servers respond again within this time after all faults have ended.
const HEALING_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);
/// A run with fewer responses proves nothing.
const ANSWERED_MIN: usize = 60;

#[derive(Debug, Clone, Copy)]
enum Scene {
    /// One server is killed and paused.
    Embedded,
    /// Two servers on etcd are killed and paused.
    Servers,
    /// Members of the etcd are killed, paused and disconnected.
    Members,
}

const SCENES: [Scene; 3] = [Scene::Embedded, Scene::Servers, Scene::Members];

async fn run(scene: Scene, mut random: Random) -> Tally {
    let mut site = match scene {
        Scene::Embedded => Site::embedded().await,
        Scene::Servers | Scene::Members => Site::etcd().await,
    };
    let (history, stop) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
    let worker = |id: usize| Worker {
        id: id + 1,
        random: random.fork(),
        history: history.clone(),
        servers: site.servers(),
        stop: stop.clone(),
    };
    let workers: Vec<_> =
        (0..CLIENTS).map(worker).map(|worker| tokio::spawn(worker.run())).collect();
    for _ in 0..FAULTS {
        more_operations(&history, BETWEEN.0 + random.below(BETWEEN.1 - BETWEEN.0)).await;
        let fault = match scene {
            Scene::Embedded | Scene::Servers => site.any_server_fault(&mut random),
            Scene::Members => site.any_member_fault(&mut random),
        };
        println!("{fault:?}");
        site.suffer(fault, &mut random).await;
    }
    more_operations(&history, BETWEEN.0).await;
    stop.store(true, Ordering::Release);
    for worker in workers {
        worker.await.expect("every answer is one that a client may get");
    }
    for server in site.servers() {
        let reach = server.borrow().clone();
        let healing = async {
            while let Err(why) = read_all(&reach, &history).await {
                println!("not yet: {why}");
                tokio::time::sleep(LOOK).await;
            }
        };
        timeout(HEALING_MAX, healing).await.expect("a server answers when all faults are over");
    }
    history.check().unwrap_or_else(|why| panic!("{scene:?}: {why}"));
    site.assert_no_panic();
    history.tally()
}

async fn more_operations(history: &History, count: u64) {
    let wanted = history.tally().answered + count as usize;
    let waiting = async {
        while history.tally().answered < wanted {
            tokio::time::sleep(LOOK).await;
        }
    };
    // A server that still does not respond is found at the end of the run.
    let _ = timeout(BETWEEN_MAX, waiting).await;
}

async fn check_one(scene: Scene) {
    let tally = run(scene, Random::seeded()).await;
    println!("{scene:?}: {tally}, {} objects", NAMES.len());
    assert!(tally.answered > ANSWERED_MIN, "too little happened to prove anything: {tally}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedded_server_that_is_killed_and_paused_is_linearizable() {
    check_one(Scene::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_on_etcd_that_are_killed_and_paused_are_linearizable() {
    check_one(Scene::Servers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_etcd_may_be_killed_paused_and_cut_off() {
    check_one(Scene::Members).await;
}

/// `make test-history` runs `RUNS` of them, from `SEED` on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_are_linearizable_in_many_runs() {
    let number = |name: &str, or: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
    };
    let (runs, seed) = (number("LANDFALL_TEST_RUNS", 6), number("LANDFALL_TEST_SEED", 1));
    for at in 0..runs {
        let scene = SCENES[at as usize % SCENES.len()];
        println!("run {at}: {scene:?}, LANDFALL_SEED={}", seed + at);
        let tally = run(scene, Random::from_seed(seed + at)).await;
        println!("run {at}: {tally}");
    }
    println!("{runs} runs, 0 violations");
}
