//! Limits in cgroups, and their effects.

use super::fixture::{Fixture, fixture, fixture_with, script, until};
use runtime::{ImageConfig, Resources, Runtime};
use std::path::PathBuf;

fn v2() -> bool {
    std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// Reads a control file of a container, or of its pod if `id` is empty, on v1 or v2.
fn read(fixture: &Fixture, id: &str, v1: (&str, &str), v2_file: &str) -> String {
    let root = PathBuf::from("/sys/fs/cgroup");
    let group = format!("{}/{id}", fixture.cgroup().trim_matches('/'));
    let path =
        if v2() { root.join(group).join(v2_file) } else { root.join(v1.0).join(group).join(v1.1) };
    std::fs::read_to_string(&path)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .trim()
        .to_owned()
}

/// N-106, N-107, N-108: shares, quota, memory and pids reach the kernel; an update changes them.
#[tokio::test]
async fn n_107_limits_are_set_and_can_be_changed_while_a_container_runs() {
    let fixture = fixture().await;
    let mut spec = fixture.sandbox_spec();
    spec.resources.memory_limit = Some(256 << 20);
    let sandbox = fixture.native.run_sandbox(&spec).await.unwrap();
    let mut spec = script("sleep 1000");
    spec.resources = Resources {
        cpu_shares: Some(512),
        cpu_quota: Some(50_000),
        memory_limit: Some(64 << 20),
        pids_limit: Some(77),
        ..Resources::default()
    };
    let container = fixture.started(&sandbox, &spec).await;
    let memory = ("memory", "memory.limit_in_bytes");
    assert_eq!(read(&fixture, "", memory, "memory.max"), (256u64 << 20).to_string());
    assert_eq!(read(&fixture, &container.id, memory, "memory.max"), (64u64 << 20).to_string());
    assert_eq!(read(&fixture, &container.id, ("pids", "pids.max"), "pids.max"), "77");
    let (shares, quota) = if v2() { ("59", "50000 100000") } else { ("512", "50000") };
    assert_eq!(read(&fixture, &container.id, ("cpu", "cpu.shares"), "cpu.weight"), shares);
    assert_eq!(read(&fixture, &container.id, ("cpu", "cpu.cfs_quota_us"), "cpu.max"), quota);
    let update = Resources { memory_limit: Some(32 << 20), ..Resources::default() };
    fixture.native.update_container(&container.id, &update).await.unwrap();
    assert_eq!(read(&fixture, &container.id, memory, "memory.max"), (32u64 << 20).to_string());
    let now = fixture.container(&container.id).await.resources;
    assert_eq!((now.memory_limit, now.cpu_shares), (Some(32 << 20), Some(512)));
    fixture.clean_up().await;
}

/// N-108: a container that exceeds its memory limit exits with 137 and reason OOMKilled.
#[tokio::test]
async fn n_108_exceeding_the_memory_limit_is_oomkilled() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let mut spec = script("exec tail /dev/zero");
    spec.resources.memory_limit = Some(16 << 20);
    let (exit, _) = fixture.run(&sandbox, &spec).await;
    assert_eq!((exit.code, exit.reason.as_str()), (137, "OOMKilled"));
    fixture.clean_up().await;
}

#[tokio::test]
async fn a_fork_bomb_is_limited_and_killed_with_its_container() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let mut spec = script("bomb() { bomb | bomb & }; echo up; bomb; sleep 1000");
    spec.resources.pids_limit = Some(40);
    let container = fixture.started(&sandbox, &spec).await;
    fixture.wait_for_log(&container, "up").await;
    let count = || read(&fixture, &container.id, ("pids", "pids.current"), "pids.current");
    until(|| count().parse::<u32>().unwrap() >= 2).await;
    assert!(count().parse::<u32>().unwrap() <= 40);
    fixture.native.kill_container(&container.id).await.unwrap();
    fixture.exit(&container.id).await;
    assert_eq!(count(), "0");
    fixture.clean_up().await;
}

#[tokio::test]
async fn usage_contains_cpu_memory_and_disk() {
    let image = ImageConfig { volumes: vec!["/data".into()], ..ImageConfig::default() };
    let fixture = fixture_with(image).await;
    let sandbox = fixture.sandbox().await;
    let text = "for at in /file /data/file; do head -c 1000000 /dev/zero > $at; done; seq 200000 > /dev/null; echo up; sleep 1000";
    let container = fixture.started(&sandbox, &script(text)).await;
    fixture.wait_for_log(&container, "up").await;
    let usage = &fixture.native.usage().await.unwrap()[0];
    assert_eq!((&usage.container_id, &usage.pod), (&container.id, &fixture.uid));
    assert!(usage.cpu_nanoseconds > 0 && usage.memory_bytes > 0);
    assert!(usage.disk_bytes >= 2_000_000, "layer and volume: {}", usage.disk_bytes);
    assert!((1..=2).contains(&usage.processes), "T-NODE-78: {}", usage.processes);
    fixture.clean_up().await;
}
