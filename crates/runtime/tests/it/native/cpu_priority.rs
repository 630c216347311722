//! The agent and its shims have a higher CPU weight than the processes of pods.

use super::fixture::{fixture_with_shims_in, needs_root, script, shims_of};
use runtime::{CpuPriority, Exec, Namespace, Runtime};
use std::path::{Path, PathBuf};

/// The root of the cpu hierarchy, and the name of the file with the weight.
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

/// The cgroups of this process.
fn own_cgroups() -> String {
    std::fs::read_to_string("/proc/self/cgroup").unwrap()
}

#[tokio::test]
async fn agent_and_shims_have_a_higher_cpu_weight_than_pods() {
    needs_root();
    let (root, file) = controller();
    let pods = format!("/landfall-test-{}", std::process::id());
    let (agents, shims) = (
        root.join(format!("{}.agent", pods.trim_matches('/'))),
        root.join(format!("{}.shims", pods.trim_matches('/'))),
    );
    let before = own_cgroups();
    if file == "cpu.weight" && before.contains(".service") {
        return; // On v2 a systemd service stays in its cgroup.
    }
    let cpu_priority = CpuPriority::acquire(&pods);
    let weight = |group: &Path| -> u32 {
        std::fs::read_to_string(group.join(file)).unwrap().trim().parse().unwrap()
    };
    let default = if file == "cpu.weight" { 100 } else { 1024 };
    assert_eq!((weight(&agents), weight(&shims)), (10 * default, 5 * default));

    let fixture = fixture_with_shims_in(cpu_priority.shims()).await;
    let mut spec = fixture.sandbox_spec();
    spec.pid = Namespace::Pod;
    let sandbox = fixture.native.run_sandbox(&spec).await.unwrap();
    let container = fixture.started(&sandbox, &script("echo up; sleep 1000")).await;
    fixture.wait_for_log(&container, "up").await;
    let exec = Exec { command: vec!["sleep".into(), "1000".into()], ..Exec::default() };
    let session = fixture.native.exec(&container.id, &exec).await.unwrap();

    // The shim and the pause process have the same command line.
    let mut expected = shims_of(fixture.directory.path().to_str().unwrap());
    let mut found = processes(&shims);
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!((expected.len(), &found), (2, &expected));
    assert_eq!(processes(&agents), [std::process::id() as i32]);
    let group = root.join(fixture.cgroup().trim_matches('/')).join(&container.id);
    assert!(processes(&group).len() >= 2, "the processes of the container and of the exec");

    drop(session);
    drop(cpu_priority);
    assert_eq!(own_cgroups(), before);
    assert!(!agents.exists(), "it is empty");
    assert_eq!(processes(&shims).len(), 2, "shims outlive the agent and keep their cgroup");
    fixture.clean_up().await;
    CpuPriority::remove(&pods);
    assert!(!shims.exists());
}

#[tokio::test]
async fn pods_run_even_if_the_cgroups_cannot_be_created() {
    needs_root();
    let before = own_cgroups();
    // This path is below a file, so the cgroup cannot be created.
    let cpu_priority = CpuPriority::acquire("/cgroup.procs/pods");
    assert_eq!((cpu_priority.shims(), own_cgroups()), (None, before));
    for missing in [None, Some("/sys/fs/cgroup/not-there".into())] {
        let fixture = fixture_with_shims_in(missing).await;
        let sandbox = fixture.sandbox().await;
        let (exit, log) = fixture.run(&sandbox, &script("echo ran")).await;
        assert_eq!((exit.code, log.stdout().as_str()), (0, "ran\n"));
        fixture.clean_up().await;
    }
}
