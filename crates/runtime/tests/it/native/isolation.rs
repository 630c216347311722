//! What a container sees and may do.

use super::world::{World, script, world};
use runtime::{
    Capabilities, ContainerSpec, Mount, Namespace, Propagation, Runtime, Sandbox, Seccomp, User,
};

async fn output(world: &World, sandbox: &Sandbox, spec: &ContainerSpec) -> String {
    let (exit, log) = world.run(sandbox, spec).await;
    assert_eq!(exit.code, 0, "{exit:?} {}", log.0);
    log.stdout()
}

/// N-123: UTS and IPC belong to the pod, processes to the container.
#[tokio::test]
async fn n_123_containers_share_what_a_pod_shares() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let text = "hostname; echo $$; for n in ipc uts; do readlink /proc/self/ns/$n; done";
    let first = output(&world, &sandbox, &script(text)).await;
    let second = output(&world, &sandbox, &script(text)).await;
    assert_eq!(first, second);
    assert!(first.starts_with("web-0\n1\n"), "{first}");
    let own = std::fs::read_link("/proc/self/ns/ipc").unwrap();
    assert!(!first.contains(own.to_str().unwrap()));
    let spec = script("echo shared > /dev/shm/x; grep ' /dev/shm ' /proc/mounts");
    assert!(output(&world, &sandbox, &spec).await.contains("size=65536k"));
    assert_eq!(output(&world, &sandbox, &script("cat /dev/shm/x")).await, "shared\n");
    world.leave().await;
}

/// N-123: with shareProcessNamespace one sees the other, and orphans are reaped.
#[tokio::test]
async fn n_123_a_shared_process_namespace_has_a_reaping_process_1() {
    let world = world().await;
    let mut spec = world.sandbox_spec();
    spec.pid = Namespace::Pod;
    let sandbox = world.native.run_sandbox(&spec).await.unwrap();
    let other = world.started(&sandbox, &script("exec sleep 4321")).await;
    let (code, seen) = world
        .run(
            &sandbox,
            &script("(sleep 0.01 &); ps; sleep 0.1; ps | grep -c 'sleep 0.01'; test $$ != 1"),
        )
        .await;
    assert_eq!(code.code, 0, "{}", seen.0);
    assert!(seen.stdout().contains("sleep 4321"), "{}", seen.0);
    world.native.kill_container(&other.id).await.unwrap();
    assert_eq!(world.exit(&other.id).await.code, 137);
    let mut joined = script("ps | grep -c 'sleep 99'");
    let target = world.started(&sandbox, &script("exec sleep 9999")).await;
    joined.pid_of = Some(target.id.clone());
    assert_ne!(output(&world, &sandbox, &joined).await, "0\n");
    world.leave().await;
}

#[tokio::test]
async fn host_namespaces_are_the_nodes() {
    let world = world().await;
    let mut spec = world.sandbox_spec();
    (spec.ipc, spec.pid, spec.hostname) = (Namespace::Host, Namespace::Host, None);
    let sandbox = world.native.run_sandbox(&spec).await.unwrap();
    let text = "for n in pid ipc uts; do readlink /proc/self/ns/$n; done";
    let seen = output(&world, &sandbox, &script(text)).await;
    for name in ["pid", "ipc", "uts"] {
        let own = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        assert!(seen.contains(own.to_str().unwrap()), "{name}");
    }
    world.leave().await;
}

/// N-131: set in the pod's namespaces and nowhere else.
#[tokio::test]
async fn n_131_sysctls_are_the_pods_own() {
    let world = world().await;
    let mut spec = world.sandbox_spec();
    spec.sysctls.insert("kernel.shm_rmid_forced".into(), "1".into());
    spec.sysctls.insert("kernel/shmmni".into(), "4000".into());
    let sandbox = world.native.run_sandbox(&spec).await.unwrap();
    let text = "cat /proc/sys/kernel/shm_rmid_forced /proc/sys/kernel/shmmni";
    assert_eq!(output(&world, &sandbox, &script(text)).await, "1\n4000\n");
    assert_ne!(std::fs::read_to_string("/proc/sys/kernel/shmmni").unwrap(), "4000\n");
    world.leave().await;
}

/// N-127, N-129, N-130: the security context, row by row.
#[tokio::test]
async fn n_127_the_security_context_is_applied() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let status = |field: &str| format!("grep {field}: /proc/self/status | tr -d '\\t'");

    let mut spec = script("id -u; id -g; id -G; touch /x 2>/dev/null || echo denied");
    spec.security.user = User::Uid(4242);
    spec.security.supplemental_groups = vec![77];
    assert_eq!(output(&world, &sandbox, &spec).await, "4242\n0\n0 77\ndenied\n");

    let mut spec = script(&format!("{}; {}", status("CapEff"), status("CapBnd")));
    assert_eq!(
        output(&world, &sandbox, &spec).await,
        "CapEff:00000000a80425fb\nCapBnd:00000000a80425fb\n"
    );
    spec.security.user = User::Uid(1000);
    assert_eq!(
        output(&world, &sandbox, &renamed(&spec)).await,
        "CapEff:0000000000000000\nCapBnd:00000000a80425fb\n"
    );
    spec.security.user = User::Uid(0);
    spec.security.capabilities =
        Capabilities { add: vec!["SYS_NICE".into()], drop: vec!["ALL".into()] };
    assert_eq!(
        output(&world, &sandbox, &renamed(&spec)).await,
        "CapEff:0000000000800000\nCapBnd:0000000000800000\n"
    );

    let denied = script("ip link add dummy0 type dummy 2>&1 | grep -q 'Operation not permitted'");
    output(&world, &sandbox, &denied).await;

    let mut spec = script(&status("NoNewPrivs"));
    spec.security.no_new_privs = true;
    assert_eq!(output(&world, &sandbox, &spec).await, "NoNewPrivs:1\n");

    for no_new_privs in [false, true] {
        let mut spec = script(&format!(
            "{}; unshare -m true 2>/dev/null || echo denied; mkdir /d",
            status("Seccomp")
        ));
        spec.security.seccomp = Seccomp::RuntimeDefault;
        spec.security.no_new_privs = no_new_privs;
        assert_eq!(output(&world, &sandbox, &spec).await, "Seccomp:2\ndenied\n");
    }

    let mut spec = script("touch /x 2>/dev/null || echo denied; touch /dev/shm/y /dev/y");
    spec.security.read_only_root = true;
    assert_eq!(output(&world, &sandbox, &spec).await, "denied\n");

    let mut spec = script(
        "cat /proc/keys | wc -c; touch /proc/sys/kernel/hostname 2>/dev/null; echo 1 > /proc/sys/kernel/ns_last_pid 2>/dev/null || echo denied",
    );
    spec.security.masked_paths = vec!["/proc/keys".into(), "/nowhere".into()];
    spec.security.read_only_paths = vec!["/proc/sys".into()];
    assert_eq!(output(&world, &sandbox, &spec).await, "0\ndenied\n");
    world.leave().await;
}

fn renamed(spec: &ContainerSpec) -> ContainerSpec {
    ContainerSpec { log_path: format!("c/{}.log", clock::uuid()).into(), ..spec.clone() }
}

/// N-127: a privileged container has what the node has.
#[tokio::test]
async fn n_127_privileged_means_everything_the_node_has() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let mut spec = script(
        "grep CapEff: /proc/self/status | tr -d '\\t'; mkdir /m; mount -t tmpfs t /m && echo mounted; grep ' /sys ' /proc/mounts | grep -c rw,; ls /dev | wc -l",
    );
    spec.security.privileged = true;
    spec.security.masked_paths = vec!["/proc/keys".into()];
    let seen = output(&world, &sandbox, &spec).await;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let own = status.lines().find_map(|line| line.strip_prefix("CapPrm:\t")).unwrap();
    assert!(seen.starts_with(&format!("CapEff:{own}\nmounted\n1\n")), "{seen} {own}");
    assert!(seen.lines().last().unwrap().parse::<u32>().unwrap() > 12, "{seen}");
    world.leave().await;
}

/// N-63, N-214: the cgroup filesystem shows the container's own and cannot be written; devices are few.
#[tokio::test]
async fn n_63_cgroups_and_devices_are_guarded() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let mut spec = script(
        "cat /proc/self/cgroup | grep -c -v ':/$'; \
         f=$(ls /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null); cat $f; \
         echo 999999999 2>/dev/null > $f || echo denied; \
         mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk 2>/dev/null || echo denied; \
         ls /dev/null /dev/pts/ptmx /dev/tty /dev/mqueue -d | wc -l",
    );
    spec.resources.memory_limit = Some(48 << 20);
    let seen = output(&world, &sandbox, &spec).await;
    assert_eq!(seen, format!("0\n{}\ndenied\ndenied\n4\n", 48 << 20));
    world.leave().await;
}

/// N-145, N-152…N-154: parents first, read-only, noexec, missing sources become directories.
#[tokio::test]
async fn n_154_binds_are_mounted_parents_first_and_as_they_should_be() {
    let world = world().await;
    let sandbox = world.sandbox().await;
    let root = world.directory.path();
    for name in ["outer", "inner"] {
        std::fs::create_dir(root.join(name)).unwrap();
        std::fs::write(root.join(name).join("name"), name).unwrap();
    }
    std::fs::write(root.join("file"), "file").unwrap();
    let mount = |source: &str, target: &str| Mount {
        source: root.join(source),
        target: target.into(),
        read_only: false,
        recursive_read_only: false,
        propagation: Propagation::Private,
        no_exec: false,
    };
    let mut spec = script(
        "cat /v/name /v/in/name /etc/one; echo; touch /v/in/x 2>/dev/null || echo denied; \
         touch /v/y; ls -d /missing; grep -c ' /v .*noexec' /proc/mounts; pwd",
    );
    spec.mounts = vec![
        Mount { read_only: true, ..mount("inner", "/v/in") },
        Mount { no_exec: true, ..mount("outer", "/v") },
        mount("file", "/etc/one"),
        mount("not/there", "/missing"),
    ];
    spec.working_dir = Some("/v/deep/here".into());
    let seen = output(&world, &sandbox, &spec).await;
    assert_eq!(seen, "outerinnerfile\ndenied\n/missing\n1\n/v/deep/here\n");
    assert!(root.join("outer/y").exists() && root.join("not/there").is_dir());
    let mut shared = script("cat /v/name");
    shared.security.privileged = true;
    shared.mounts = vec![Mount { propagation: Propagation::Shared, ..mount("outer", "/v") }];
    assert_eq!(output(&world, &sandbox, &shared).await, "outer\n");
    world.leave().await;
}
