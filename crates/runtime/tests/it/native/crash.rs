//! What is left when the agent or a shim dies: everything that can be known.

use super::world::{SOON, script, shims_of, until, world};
use runtime::{ContainerState, Runtime, SandboxState};

/// The agent is gone, containers run on and end; the next agent knows all of it.
#[tokio::test]
async fn an_agent_that_comes_back_finds_what_runs_and_how_the_rest_ended() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let ended = world.started(&sandbox, &script("exit 4")).await;
    world.exit(&ended.id).await;
    let text = "echo up; while ! test -e /tmp/go; do sleep 0.01; done; exit 5";
    let ending = world.started(&sandbox, &script(text)).await;
    let running = world.started(&sandbox, &script("sleep 1000")).await;
    let made = world.created(&sandbox, &script("exit 6")).await;
    // Its end comes while nobody is there: the shim alone sees it.
    let exit_file = world.directory.path().join("run").join(&sandbox.id);
    let exit_file = exit_file.join("containers").join(&ending.id).join("exit.json");
    world.exec(&ending.id, &["touch", "/tmp/go"]).await;
    let world = world.restart().await;
    until(|| exit_file.exists()).await;
    assert_eq!(world.exit(&ended.id).await.code, 4);
    assert_eq!(world.exit(&ending.id).await.code, 5);
    assert!(matches!(world.container(&running.id).await.state, ContainerState::Running { .. }));
    assert_eq!(world.container(&made.id).await.state, ContainerState::Created);
    world.native.start_container(&made.id).await.unwrap();
    assert_eq!(world.exit(&made.id).await.code, 6);
    let (code, _) = world.exec(&running.id, &["true"]).await;
    assert_eq!(code, 0);
    world.leave().await;
}

/// The numbers of execs begin anew with every agent, the processes go on: ending an exec of this agent
/// ends none of the last one's.
#[tokio::test]
async fn an_exec_of_an_agent_that_is_gone_is_not_mistaken_for_a_new_one() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let container = world.started(&sandbox, &script("sleep 1000")).await;
    let sleeps = |seconds: &str| runtime::Exec {
        command: vec!["sleep".into(), seconds.into()],
        stdin: false,
        stdout: true,
        stderr: true,
        tty: false,
        timeout: None,
    };
    let count = async |world: &super::world::World, seconds: &str| {
        let find = format!("ps | grep 'sleep {seconds}' | grep -vc grep");
        world.exec(&container.id, &["sh", "-c", &find]).await.1.trim().to_owned()
    };
    // The numbers of both agents overlap, wherever each of them has come to.
    let mut old = Vec::new();
    for _ in 0..40 {
        old.push(world.native.exec(&container.id, &sleeps("2001")).await.unwrap());
    }
    // An agent that is killed does not end its sessions.
    old.into_iter().for_each(std::mem::forget);
    let world = world.restart().await;
    for _ in 0..10 {
        let mut new = world.native.exec(&container.id, &sleeps("2002")).await.unwrap();
        drop(new.kill.take());
        tokio::time::timeout(SOON, new.exit).await.unwrap().unwrap().unwrap();
    }
    assert_eq!(count(&world, "2001").await, "40");
    assert_eq!(count(&world, "2002").await, "0");
    world.leave().await;
}

/// Nothing is hidden: the sandbox and its containers say that the shim was killed.
#[tokio::test]
async fn a_killed_shim_is_noticed_at_once_and_said() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let container = world.started(&sandbox, &script("sleep 1000")).await;
    let mut changes = world.native.changes();
    let shim = shims_of(world.directory.path().to_str().unwrap());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(shim[0]), nix::sys::signal::SIGKILL).unwrap();
    tokio::time::timeout(SOON, changes.recv()).await.unwrap().unwrap();
    let exit = world.exit(&container.id).await;
    assert_eq!(exit.code, 137);
    assert!(exit.message.contains("the pod's shim was killed by signal 9"), "{}", exit.message);
    let seen = &world.native.sandboxes_of(&world.uid).await.unwrap()[0];
    assert_eq!(seen.state, SandboxState::NotReady);
    assert_eq!(seen.message, "the pod's shim was killed by signal 9");
    assert!(world.native.create_container(&sandbox.id, &script("true")).await.is_err());
    let world = world.restart().await;
    assert_eq!(world.exit(&container.id).await.code, 137);
    world.leave().await;
}

#[tokio::test]
async fn a_shim_that_died_while_no_agent_was_there_is_reported() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let container = world.started(&sandbox, &script("sleep 1000")).await;
    let directory = world.directory.path().to_str().unwrap().to_owned();
    let shim = shims_of(&directory)[0];
    let super::world::World { directory: kept, native, uid, .. } = world;
    // Forgotten, not dropped in order: no task of it will run again.
    drop(native);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(shim), nix::sys::signal::SIGKILL).unwrap();
    let world = super::world::again(kept, uid).await;
    let seen = &world.native.sandboxes_of(&world.uid).await.unwrap()[0];
    assert_eq!(seen.state, SandboxState::NotReady);
    assert!(seen.message.contains("shim"), "{}", seen.message);
    let exit = world.exit(&container.id).await;
    assert_eq!(exit.code, 137);
    assert!(exit.message.contains("shim"), "{}", exit.message);
    world.leave().await;
}

/// Two incarnations of a pod share its cgroup for a while.
#[tokio::test]
async fn an_old_sandbox_is_stopped_without_touching_the_new_one() {
    let world = world().await;
    let old = world.sandbox().await;
    let before = world.started(&old, &script("sleep 1000")).await;
    let mut spec = world.sandbox_spec();
    spec.attempt = 1;
    let new = world.native.run_sandbox(&spec).await.unwrap();
    let after = world.started(&new, &script("sleep 1000")).await;
    let made = world.created(&new, &script("exit 3")).await;
    world.native.remove_sandbox(&old.id).await.unwrap();
    let sandboxes = world.native.sandboxes_of(&world.uid).await.unwrap();
    assert_eq!(sandboxes.len(), 1);
    assert!(sandboxes[0].containers.iter().all(|container| container.id != before.id));
    assert!(matches!(world.container(&after.id).await.state, ContainerState::Running { .. }));
    assert_eq!(world.exec(&after.id, &["true"]).await.0, 0);
    world.native.start_container(&made.id).await.unwrap();
    assert_eq!(world.exit(&made.id).await.code, 3);
    world.leave().await;
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_made_leaves_nothing() {
    let world = world().await;
    let mut spec = world.sandbox_spec();
    spec.network = runtime::PodNetwork::Path("/nowhere/at/all".into());
    let error = world.native.run_sandbox(&spec).await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    assert!(world.native.sandboxes().await.unwrap().is_empty());
    world.leave().await;
}
