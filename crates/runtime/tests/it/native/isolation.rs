//! Namespaces, security context and mounts of containers.

use super::fixture::{Fixture, fixture, script};
use runtime::{
    Capabilities, ContainerSpec, Mount, Namespace, Propagation, Runtime, Sandbox, Seccomp, User,
};

async fn output(fixture: &Fixture, sandbox: &Sandbox, spec: &ContainerSpec) -> String {
    let (exit, log) = fixture.run(sandbox, spec).await;
    assert_eq!(exit.code, 0, "{exit:?} {}", log.0);
    log.stdout()
}

/// N-123: the UTS and IPC namespaces belong to the pod, the PID namespace to the container.
#[tokio::test]
async fn n_123_containers_share_the_pods_namespaces() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let text = "hostname; echo $$; for n in ipc uts; do readlink /proc/self/ns/$n; done";
    let first = output(&fixture, &sandbox, &script(text)).await;
    let second = output(&fixture, &sandbox, &script(text)).await;
    assert_eq!(first, second);
    assert!(first.starts_with("web-0\n1\n"), "{first}");
    let own = std::fs::read_link("/proc/self/ns/ipc").unwrap();
    assert!(!first.contains(own.to_str().unwrap()));
    let spec = script("echo shared > /dev/shm/x; grep ' /dev/shm ' /proc/mounts");
    assert!(output(&fixture, &sandbox, &spec).await.contains("size=65536k"));
    assert_eq!(output(&fixture, &sandbox, &script("cat /dev/shm/x")).await, "shared\n");
    fixture.clean_up().await;
}

/// N-123: with shareProcessNamespace, containers see each other's processes and orphans are reaped.
#[tokio::test]
async fn n_123_the_pause_process_of_a_shared_pid_namespace_reaps_orphans() {
    let fixture = fixture().await;
    let mut spec = fixture.sandbox_spec();
    spec.pid = Namespace::Pod;
    let sandbox = fixture.native.run_sandbox(&spec).await.unwrap();
    let other = fixture.started(&sandbox, &script("exec sleep 4321")).await;
    let (code, seen) = fixture
        .run(
            &sandbox,
            &script("(sleep 0.01 &); ps; sleep 0.1; ps | grep -c 'sleep 0.01'; test $$ != 1"),
        )
        .await;
    assert_eq!(code.code, 0, "{}", seen.0);
    assert!(seen.stdout().contains("sleep 4321"), "{}", seen.0);
    fixture.native.kill_container(&other.id).await.unwrap();
    assert_eq!(fixture.exit(&other.id).await.code, 137);
    let mut joined = script("ps | grep -c 'sleep 99'");
    let target = fixture.started(&sandbox, &script("exec sleep 9999")).await;
    joined.pid_of = Some(target.id.clone());
    assert_ne!(output(&fixture, &sandbox, &joined).await, "0\n");
    fixture.clean_up().await;
}

#[tokio::test]
async fn host_namespaces_are_those_of_the_node() {
    let fixture = fixture().await;
    let mut spec = fixture.sandbox_spec();
    (spec.ipc, spec.pid, spec.hostname) = (Namespace::Host, Namespace::Host, None);
    let sandbox = fixture.native.run_sandbox(&spec).await.unwrap();
    let text = "for n in pid ipc uts; do readlink /proc/self/ns/$n; done";
    let seen = output(&fixture, &sandbox, &script(text)).await;
    for name in ["pid", "ipc", "uts"] {
        let own = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        assert!(seen.contains(own.to_str().unwrap()), "{name}");
    }
    fixture.clean_up().await;
}

/// N-131: sysctls are set in the pod's namespaces only.
#[tokio::test]
async fn n_131_sysctls_apply_to_the_pod_only() {
    let fixture = fixture().await;
    let mut spec = fixture.sandbox_spec();
    spec.sysctls.insert("kernel.shm_rmid_forced".into(), "1".into());
    spec.sysctls.insert("kernel/shmmni".into(), "4000".into());
    let sandbox = fixture.native.run_sandbox(&spec).await.unwrap();
    let text = "cat /proc/sys/kernel/shm_rmid_forced /proc/sys/kernel/shmmni";
    assert_eq!(output(&fixture, &sandbox, &script(text)).await, "1\n4000\n");
    assert_ne!(std::fs::read_to_string("/proc/sys/kernel/shmmni").unwrap(), "4000\n");
    fixture.clean_up().await;
}

/// N-127, N-129, N-130: user, capabilities, no_new_privs, seccomp, read-only root, masked paths.
#[tokio::test]
async fn n_127_the_security_context_is_applied() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let status = |field: &str| format!("grep {field}: /proc/self/status | tr -d '\\t'");

    let mut spec = script("id -u; id -g; id -G; touch /x 2>/dev/null || echo denied");
    spec.security.user = User::Uid(4242);
    spec.security.supplemental_groups = vec![77];
    assert_eq!(output(&fixture, &sandbox, &spec).await, "4242\n0\n0 77\ndenied\n");

    let mut spec = script(&format!("{}; {}", status("CapEff"), status("CapBnd")));
    assert_eq!(
        output(&fixture, &sandbox, &spec).await,
        "CapEff:00000000a80425fb\nCapBnd:00000000a80425fb\n"
    );
    spec.security.user = User::Uid(1000);
    assert_eq!(
        output(&fixture, &sandbox, &renamed(&spec)).await,
        "CapEff:0000000000000000\nCapBnd:00000000a80425fb\n"
    );
    spec.security.user = User::Uid(0);
    spec.security.capabilities =
        Capabilities { add: vec!["SYS_NICE".into()], drop: vec!["ALL".into()] };
    assert_eq!(
        output(&fixture, &sandbox, &renamed(&spec)).await,
        "CapEff:0000000000800000\nCapBnd:0000000000800000\n"
    );

    let denied = script("ip link add dummy0 type dummy 2>&1 | grep -q 'Operation not permitted'");
    output(&fixture, &sandbox, &denied).await;

    let mut spec = script(&status("NoNewPrivs"));
    spec.security.no_new_privs = true;
    assert_eq!(output(&fixture, &sandbox, &spec).await, "NoNewPrivs:1\n");

    for no_new_privs in [false, true] {
        let mut spec = script(&format!(
            "{}; unshare -m true 2>/dev/null || echo denied; mkdir /d",
            status("Seccomp")
        ));
        spec.security.seccomp = Seccomp::RuntimeDefault;
        spec.security.no_new_privs = no_new_privs;
        assert_eq!(output(&fixture, &sandbox, &spec).await, "Seccomp:2\ndenied\n");
    }

    let mut spec = script("touch /x 2>/dev/null || echo denied; touch /dev/shm/y /dev/y");
    spec.security.read_only_root = true;
    assert_eq!(output(&fixture, &sandbox, &spec).await, "denied\n");

    let mut spec = script(
        "cat /proc/keys | wc -c; touch /proc/sys/kernel/hostname 2>/dev/null; echo 1 > /proc/sys/kernel/ns_last_pid 2>/dev/null || echo denied",
    );
    spec.security.masked_paths = vec!["/proc/keys".into(), "/nowhere".into()];
    spec.security.read_only_paths = vec!["/proc/sys".into()];
    assert_eq!(output(&fixture, &sandbox, &spec).await, "0\ndenied\n");
    fixture.clean_up().await;
}

fn renamed(spec: &ContainerSpec) -> ContainerSpec {
    ContainerSpec { log_path: format!("c/{}.log", clock::uuid()).into(), ..spec.clone() }
}

/// N-127: a privileged container has all capabilities and devices of the node.
#[tokio::test]
async fn n_127_privileged_containers_have_all_capabilities_and_devices() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let mut spec = script(
        "grep CapEff: /proc/self/status | tr -d '\\t'; mkdir /m; mount -t tmpfs t /m && echo mounted; grep ' /sys ' /proc/mounts | grep -c rw,; ls /dev | wc -l",
    );
    spec.security.privileged = true;
    spec.security.masked_paths = vec!["/proc/keys".into()];
    let seen = output(&fixture, &sandbox, &spec).await;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let own = status.lines().find_map(|line| line.strip_prefix("CapPrm:\t")).unwrap();
    assert!(seen.starts_with(&format!("CapEff:{own}\nmounted\n1\n")), "{seen} {own}");
    assert!(seen.lines().last().unwrap().parse::<u32>().unwrap() > 12, "{seen}");
    fixture.clean_up().await;
}

/// N-63, N-214: the cgroup file system shows the container's own cgroup and is read-only; few devices are allowed.
#[tokio::test]
async fn n_63_cgroups_are_read_only_and_devices_restricted() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let mut spec = script(
        "cat /proc/self/cgroup | grep -c -v ':/$'; \
         f=$(ls /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null); cat $f; \
         echo 999999999 2>/dev/null > $f || echo denied; \
         mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk 2>/dev/null || echo denied; \
         ls /dev/null /dev/pts/ptmx /dev/tty /dev/mqueue -d | wc -l",
    );
    spec.resources.memory_limit = Some(48 << 20);
    let seen = output(&fixture, &sandbox, &spec).await;
    assert_eq!(seen, format!("0\n{}\ndenied\ndenied\n4\n", 48 << 20));
    fixture.clean_up().await;
}

/// N-145, N-152…N-154: order of mounts, read-only, noexec, missing sources become directories.
#[tokio::test]
async fn n_154_volumes_are_mounted_in_order_with_their_options() {
    let fixture = fixture().await;
    let sandbox = fixture.sandbox().await;
    let root = fixture.directory.path();
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
    let seen = output(&fixture, &sandbox, &spec).await;
    assert_eq!(seen, "outerinnerfile\ndenied\n/missing\n1\n/v/deep/here\n");
    assert!(root.join("outer/y").exists() && root.join("not/there").is_dir());
    let mut shared = script("cat /v/name");
    shared.security.privileged = true;
    shared.mounts = vec![Mount { propagation: Propagation::Shared, ..mount("outer", "/v") }];
    assert_eq!(output(&fixture, &sandbox, &shared).await, "outer");
    fixture.clean_up().await;
}

/// N-63: containerd mounts proc, sysfs, cgroups, /dev, /dev/pts, /dev/shm and mqueue with nosuid, but not the root
/// filesystem and volumes.
#[tokio::test]
async fn n_63_only_the_root_filesystem_and_volumes_allow_setuid_programs() {
    let fixture = fixture().await;
    let volume = fixture.directory.path().join("volume");
    for pid in [Namespace::Container, Namespace::Pod] {
        let mut sandbox = fixture.sandbox_spec();
        sandbox.pid = pid;
        let sandbox = fixture.native.run_sandbox(&sandbox).await.unwrap();
        let mut spec = script(
            "while read source target kind options rest; do \
               case $options in *nosuid*) ;; *) echo $target ;; esac; \
             done < /proc/mounts",
        );
        spec.mounts = vec![Mount {
            source: volume.clone(),
            target: "/v".into(),
            read_only: false,
            recursive_read_only: false,
            propagation: Propagation::Private,
            no_exec: false,
        }];
        assert_eq!(output(&fixture, &sandbox, &spec).await, "/\n/v\n", "{pid:?}");
        fixture.native.remove_sandbox(&sandbox.id).await.unwrap();
    }
    fixture.clean_up().await;
}
