//! Who gets processors before others: the agent and its shims, and nothing that runs in a pod.

use super::world::{needs_root, script, shims_of, world_with_shims_in};
use runtime::{Exec, Namespace, Precedence, Runtime};
use std::path::{Path, PathBuf};

/// Where the cpu controller is, and the file that says what a group weighs.
fn controller() -> (PathBuf, &'static str) {
    let root = Path::new("/sys/fs/cgroup");
    match root.join("cgroup.controllers").exists() {
        true => (root.to_owned(), "cpu.weight"),
        false => (root.join("cpu"), "cpu.shares"),
    }
}

fn processes(group: &Path) -> Vec<i32> {
    let list = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    list.lines().map(|line| line.parse().unwrap()).collect()
}

/// Where this process is, in all hierarchies.
fn own_place() -> String {
    std::fs::read_to_string("/proc/self/cgroup").unwrap()
}

#[tokio::test]
async fn agent_and_shims_have_precedence_and_what_runs_in_pods_does_not() {
    needs_root();
    let (root, file) = controller();
    let pods = format!("/landfall-test-{}", std::process::id());
    let (agents, shims) = (
        root.join(format!("{}.agent", pods.trim_matches('/'))),
        root.join(format!("{}.shims", pods.trim_matches('/'))),
    );
    let before = own_place();
    if file == "cpu.weight" && before.contains(".service") {
        return; // In a unified tree a service stays where its manager has put it.
    }
    let precedence = Precedence::take(&pods);
    let weight = |group: &Path| -> u32 {
        std::fs::read_to_string(group.join(file)).unwrap().trim().parse().unwrap()
    };
    let ordinary = if file == "cpu.weight" { 100 } else { 1024 };
    assert_eq!((weight(&agents), weight(&shims)), (10 * ordinary, 5 * ordinary));

    let world = world_with_shims_in(precedence.shims()).await;
    let mut spec = world.sandbox_spec();
    spec.pid = Namespace::Pod;
    let sandbox = world.native.run_sandbox(&spec).await.unwrap();
    let container = world.started(&sandbox, &script("echo up; sleep 1000")).await;
    world.wait_for_log(&container, "up").await;
    let exec = Exec { command: vec!["sleep".into(), "1000".into()], ..Exec::default() };
    let session = world.native.exec(&container.id, &exec).await.unwrap();

    // A shim and its pause have the same command line.
    let mut wanted = shims_of(world.directory.path().to_str().unwrap());
    let mut found = processes(&shims);
    wanted.sort_unstable();
    found.sort_unstable();
    assert_eq!((wanted.len(), &found), (2, &wanted));
    assert_eq!(processes(&agents), [std::process::id() as i32]);
    let group = root.join(world.cgroup().trim_matches('/')).join(&container.id);
    assert!(processes(&group).len() >= 2, "the container's and the exec's");

    drop(session);
    drop(precedence);
    assert_eq!(own_place(), before);
    assert!(!agents.exists(), "nobody is in it");
    assert_eq!(processes(&shims).len(), 2, "shims outlive the agent, and keep what they have");
    world.leave().await;
    Precedence::clear_away(&pods);
    assert!(!shims.exists());
}

#[tokio::test]
async fn where_no_group_can_be_made_pods_run_all_the_same() {
    needs_root();
    let before = own_place();
    // Below a file there is no directory.
    let precedence = Precedence::take("/cgroup.procs/pods");
    assert_eq!((precedence.shims(), own_place()), (None, before));
    for lost in [None, Some("/sys/fs/cgroup/not-there".into())] {
        let world = world_with_shims_in(lost).await;
        let sandbox = world.sandbox().await;
        let (exit, log) = world.run(&sandbox, &script("echo ran")).await;
        assert_eq!((exit.code, log.stdout().as_str()), (0, "ran\n"));
        world.leave().await;
    }
}
