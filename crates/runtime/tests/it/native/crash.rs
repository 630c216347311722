//! State is restored after the agent or a shim dies.

use super::fixture::{TIMEOUT, fixture, script, shims_of, until};
use runtime::{ContainerState, Runtime, SandboxState};

/// Containers run and exit while there is no agent. The next agent restores their states.
#[tokio::test]
async fn a_restarted_agent_restores_running_and_exited_containers() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let exited = fixture.started(&sandbox, &script("exit 4")).await;
    fixture.exit(&exited.id).await;
    let text = "echo up; while ! test -e /tmp/go; do sleep 0.01; done; exit 5";
    let exiting = fixture.started(&sandbox, &script(text)).await;
    let running = fixture.started(&sandbox, &script("sleep 1000")).await;
    let made = fixture.created(&sandbox, &script("exit 6")).await;
    // This one exits while there is no agent; only the shim observes it.
    let exit_file = fixture.directory.path().join("run").join(&sandbox.id);
    let exit_file = exit_file.join("containers").join(&exiting.id).join("exit.json");
    fixture.exec(&exiting.id, &["touch", "/tmp/go"]).await;
    let fixture = fixture.restart().await;
    until(|| exit_file.exists()).await;
    assert_eq!(fixture.exit(&exited.id).await.code, 4);
    assert_eq!(fixture.exit(&exiting.id).await.code, 5);
    assert!(matches!(fixture.container(&running.id).await.state, ContainerState::Running { .. }));
    assert_eq!(fixture.container(&made.id).await.state, ContainerState::Created);
    fixture.native.start_container(&made.id).await.unwrap();
    assert_eq!(fixture.exit(&made.id).await.code, 6);
    let (code, _) = fixture.exec(&running.id, &["true"]).await;
    assert_eq!(code, 0);
    fixture.clean_up().await;
}

/// Every agent counts its execs from 1. Killing an exec of this agent must not kill one of the previous agent.
#[tokio::test]
async fn execs_of_a_previous_agent_are_not_killed() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let container = fixture.started(&sandbox, &script("sleep 1000")).await;
    let sleeps = |seconds: &str| runtime::Exec {
        command: vec!["sleep".into(), seconds.into()],
        stdin: false,
        stdout: true,
        stderr: true,
        tty: false,
        timeout: None,
    };
    let count = async |fixture: &super::fixture::Fixture, seconds: &str| {
        let find = format!("ps | grep 'sleep {seconds}' | grep -vc grep");
        fixture.exec(&container.id, &["sh", "-c", &find]).await.1.trim().to_owned()
    };
    // So many that the numbers of both agents overlap.
    let mut old = Vec::new();
    for _ in 0..40 {
        old.push(fixture.native.exec(&container.id, &sleeps("2001")).await.unwrap());
    }
    // A killed agent does not close its sessions.
    old.into_iter().for_each(std::mem::forget);
    let fixture = fixture.restart().await;
    for _ in 0..10 {
        let mut new = fixture.native.exec(&container.id, &sleeps("2002")).await.unwrap();
        drop(new.kill.take());
        tokio::time::timeout(TIMEOUT, new.exit).await.unwrap().unwrap().unwrap();
    }
    assert_eq!(count(&fixture, "2001").await, "40");
    assert_eq!(count(&fixture, "2002").await, "0");
    fixture.clean_up().await;
}

/// The sandbox and its containers report that the shim was killed.
#[tokio::test]
async fn a_killed_shim_is_reported_at_once() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let container = fixture.started(&sandbox, &script("sleep 1000")).await;
    let mut changes = fixture.native.changes();
    let shim = shims_of(fixture.directory.path().to_str().unwrap());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(shim[0]), nix::sys::signal::SIGKILL).unwrap();
    tokio::time::timeout(TIMEOUT, changes.recv()).await.unwrap().unwrap();
    let exit = fixture.exit(&container.id).await;
    assert_eq!(exit.code, 137);
    assert!(exit.message.contains("the pod's shim was killed by signal 9"), "{}", exit.message);
    let seen = &fixture.native.sandboxes_of(&fixture.uid).await.unwrap()[0];
    assert_eq!(seen.state, SandboxState::NotReady);
    assert_eq!(seen.message, "the pod's shim was killed by signal 9");
    assert!(fixture.native.create_container(&sandbox.id, &script("true")).await.is_err());
    let fixture = fixture.restart().await;
    assert_eq!(fixture.exit(&container.id).await.code, 137);
    fixture.clean_up().await;
}

#[tokio::test]
async fn a_shim_that_died_without_an_agent_is_reported() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let container = fixture.started(&sandbox, &script("sleep 1000")).await;
    let directory = fixture.directory.path().to_str().unwrap().to_owned();
    let shim = shims_of(&directory)[0];
    let super::fixture::Fixture { directory: kept, native, uid, .. } = fixture;
    // The tasks of this runtime are cancelled.
    drop(native);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(shim), nix::sys::signal::SIGKILL).unwrap();
    let fixture = super::fixture::reopen(kept, uid).await;
    let seen = &fixture.native.sandboxes_of(&fixture.uid).await.unwrap()[0];
    assert_eq!(seen.state, SandboxState::NotReady);
    assert!(seen.message.contains("shim"), "{}", seen.message);
    let exit = fixture.exit(&container.id).await;
    assert_eq!(exit.code, 137);
    assert!(exit.message.contains("shim"), "{}", exit.message);
    fixture.clean_up().await;
}

/// Two sandboxes of a pod share its cgroup for a while.
#[tokio::test]
async fn stopping_an_old_sandbox_does_not_affect_the_new_one() {
    let fixture = fixture().await;
    let old = fixture.sandbox().await;
    let before = fixture.started(&old, &script("sleep 1000")).await;
    let mut spec = fixture.sandbox_spec();
    spec.attempt = 1;
    let new = fixture.native.run_sandbox(&spec).await.unwrap();
    let after = fixture.started(&new, &script("sleep 1000")).await;
    let made = fixture.created(&new, &script("exit 3")).await;
    fixture.native.remove_sandbox(&old.id).await.unwrap();
    let sandboxes = fixture.native.sandboxes_of(&fixture.uid).await.unwrap();
    assert_eq!(sandboxes.len(), 1);
    assert!(sandboxes[0].containers.iter().all(|container| container.id != before.id));
    assert!(matches!(fixture.container(&after.id).await.state, ContainerState::Running { .. }));
    assert_eq!(fixture.exec(&after.id, &["true"]).await.0, 0);
    fixture.native.start_container(&made.id).await.unwrap();
    assert_eq!(fixture.exit(&made.id).await.code, 3);
    fixture.clean_up().await;
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_created_leaves_nothing_behind() {
    let fixture = fixture().await;
    let mut spec = fixture.sandbox_spec();
    spec.network = runtime::PodNetwork::Path("/nowhere/at/all".into());
    let error = fixture.native.run_sandbox(&spec).await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    assert!(fixture.native.sandboxes().await.unwrap().is_empty());
    fixture.clean_up().await;
}

/// The agent was killed before it recorded the shim's process.
#[tokio::test]
async fn a_shim_without_a_record_is_found_in_proc() {
    let fixture = fixture().await;
    let directory = fixture.directory.path().to_str().unwrap().to_owned();
    let shared = runtime::SandboxSpec { pid: runtime::Namespace::Pod, ..fixture.sandbox_spec() };
    let sandbox = fixture.native.run_sandbox(&shared).await.unwrap();
    assert!(!shims_of(&directory).is_empty(), "the shim, and perhaps the pause process");
    std::fs::remove_file(fixture.directory.path().join("run").join(&sandbox.id).join("shim.pid"))
        .unwrap();
    let fixture = fixture.restart().await;
    // The kernel kills the pause process a moment after the shim.
    until(|| shims_of(&directory).is_empty()).await;
    let found = fixture.native.sandboxes().await.unwrap();
    assert_eq!(found[0].state, SandboxState::NotReady);
    fixture.clean_up().await;
}

/// A user removed the directory of a sandbox whose shim runs.
#[tokio::test]
async fn a_shim_without_a_directory_is_killed() {
    let fixture = fixture().await;
    let directory = fixture.directory.path().to_str().unwrap().to_owned();
    let host = runtime::SandboxSpec { ipc: runtime::Namespace::Host, ..fixture.sandbox_spec() };
    let sandbox = fixture.native.run_sandbox(&host).await.unwrap();
    let kept = fixture.sandbox().await;
    std::fs::remove_dir_all(fixture.directory.path().join("run").join(&sandbox.id)).unwrap();
    let fixture = fixture.restart().await;
    assert_eq!(shims_of(&directory).len(), 1, "only the shim of the other sandbox");
    let found = fixture.native.sandboxes().await.unwrap();
    assert_eq!((found.len(), &found[0].id, found[0].state), (1, &kept.id, SandboxState::Ready));
    fixture.clean_up().await;
}
