//! Cgroups: what is written into them and what the kernel makes of it.

use super::world::{World, script, until, world};
use runtime::{Resources, Runtime};
use std::path::PathBuf;

fn v2() -> bool {
    std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// A control file of a container (or of its pod, when `id` is empty), v1 or v2.
fn read(world: &World, id: &str, v1: (&str, &str), v2_file: &str) -> String {
    let root = PathBuf::from("/sys/fs/cgroup");
    let group = format!("{}/{id}", world.cgroup().trim_matches('/'));
    let path =
        if v2() { root.join(group).join(v2_file) } else { root.join(v1.0).join(group).join(v1.1) };
    std::fs::read_to_string(&path)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .trim()
        .to_owned()
}

/// N-106, N-107, N-108: shares, quota, memory and pids reach the kernel; an update changes them.
#[tokio::test]
async fn n_107_limits_are_written_and_can_be_changed_while_it_runs() {
    let world = world().await;
    let mut spec = world.sandbox_spec();
    spec.resources.memory_limit = Some(256 << 20);
    let sandbox = world.native.run_sandbox(&spec).await.unwrap();
    let mut spec = script("sleep 1000");
    spec.resources = Resources {
        cpu_shares: Some(512),
        cpu_quota: Some(50_000),
        memory_limit: Some(64 << 20),
        pids_limit: Some(77),
        ..Resources::default()
    };
    let container = world.started(&sandbox, &spec).await;
    let memory = ("memory", "memory.limit_in_bytes");
    assert_eq!(read(&world, "", memory, "memory.max"), (256u64 << 20).to_string());
    assert_eq!(read(&world, &container.id, memory, "memory.max"), (64u64 << 20).to_string());
    assert_eq!(read(&world, &container.id, ("pids", "pids.max"), "pids.max"), "77");
    let (shares, quota) = if v2() { ("59", "50000 100000") } else { ("512", "50000") };
    assert_eq!(read(&world, &container.id, ("cpu", "cpu.shares"), "cpu.weight"), shares);
    assert_eq!(read(&world, &container.id, ("cpu", "cpu.cfs_quota_us"), "cpu.max"), quota);
    let update = Resources { memory_limit: Some(32 << 20), ..Resources::default() };
    world.native.update_container(&container.id, &update).await.unwrap();
    assert_eq!(read(&world, &container.id, memory, "memory.max"), (32u64 << 20).to_string());
    let now = world.container(&container.id).await.resources;
    assert_eq!((now.memory_limit, now.cpu_shares), (Some(32 << 20), Some(512)));
    world.leave().await;
}

/// N-108: a container that takes more memory than it may is OOMKilled, with 137.
#[tokio::test]
async fn n_108_too_much_memory_is_oomkilled() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let mut spec = script("exec tail /dev/zero");
    spec.resources.memory_limit = Some(16 << 20);
    let (exit, _) = world.run(&sandbox, &spec).await;
    assert_eq!((exit.code, exit.reason.as_str()), (137, "OOMKilled"));
    world.leave().await;
}

#[tokio::test]
async fn a_fork_bomb_meets_its_limit_and_dies_with_its_container() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let mut spec = script("bomb() { bomb | bomb & }; echo up; bomb; sleep 1000");
    spec.resources.pids_limit = Some(40);
    let container = world.started(&sandbox, &spec).await;
    world.wait_for_log(&container, "up").await;
    let count = || read(&world, &container.id, ("pids", "pids.current"), "pids.current");
    until(|| count().parse::<u32>().unwrap() >= 2).await;
    assert!(count().parse::<u32>().unwrap() <= 40);
    world.native.kill_container(&container.id).await.unwrap();
    world.exit(&container.id).await;
    assert_eq!(count(), "0");
    world.leave().await;
}

#[tokio::test]
async fn usage_counts_processor_and_memory_and_disk() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let text = "head -c 1000000 /dev/zero > /file; seq 200000 > /dev/null; echo up; sleep 1000";
    let container = world.started(&sandbox, &script(text)).await;
    world.wait_for_log(&container, "up").await;
    let usage = &world.native.usage().await.unwrap()[0];
    assert_eq!((&usage.container_id, &usage.pod), (&container.id, &world.uid));
    assert!(usage.cpu_nanoseconds > 0 && usage.memory_bytes > 0 && usage.disk_bytes >= 1_000_000);
    assert!((1..=2).contains(&usage.processes), "T-NODE-78: {}", usage.processes);
    world.leave().await;
}
