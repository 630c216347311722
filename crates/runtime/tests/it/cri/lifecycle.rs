//! Sandboxes and containers from creation to removal.

use super::fixture::{BOX, TIMEOUT, until, with_containerd};
use runtime::{
    Capabilities, ContainerState, Cri, Error, ImageReference, Mount, Namespace, PodNetwork,
    Propagation, Resources, Runtime as _, SandboxState, Security, User,
};
use std::fs;
use std::time::Duration;

#[test]
fn a_pod_runs_exits_and_is_removed() {
    with_containerd(|fixture| async move {
        let cri = &fixture.cri;
        assert_eq!(cri.version().await.unwrap().name, "containerd");
        assert!(cri.brings_network());
        let (sandbox, container) =
            fixture.run("web", "echo $GREETING; echo oops >&2; sleep 0.2; exit 3").await;
        assert_eq!(sandbox.state, SandboxState::Ready);
        assert_eq!(sandbox.pod.uid, "uid-web");
        assert_eq!(sandbox.labels["io.kubernetes.pod.name"], "web");
        assert_eq!(sandbox.labels["app"], "web");
        assert_eq!(sandbox.annotations.len(), 1, "{:?}", sandbox.annotations);
        assert!(sandbox.addresses[0].to_string().starts_with("10.88.5."));
        assert_eq!(container.state, ContainerState::Created);
        assert_eq!(container.image_name, BOX);

        let exit = fixture.exit("web", &container.id).await;
        assert_eq!((exit.code, exit.reason.as_str()), (3, ""));
        assert!(exit.started_at.unwrap() < exit.finished_at);
        let log = fs::read_to_string(&container.log_path).unwrap();
        assert!(log.contains(" stdout F hello\n") && log.contains(" stderr F oops\n"), "{log}");
        assert!(container.log_path.ends_with("logs/web/main/0.log"));

        cri.remove_container(&container.id).await.unwrap();
        cri.remove_container(&container.id).await.unwrap();
        assert!(container.log_path.exists());
        cri.stop_sandbox(&sandbox.id).await.unwrap();
        cri.stop_sandbox(&sandbox.id).await.unwrap();
        let stopped = cri.sandboxes_of("uid-web").await.unwrap();
        assert_eq!(stopped[0].state, SandboxState::NotReady);
        assert!(stopped[0].containers.is_empty());
        cri.remove_sandbox(&sandbox.id).await.unwrap();
        cri.remove_sandbox(&sandbox.id).await.unwrap();
        assert!(cri.sandboxes().await.unwrap().is_empty());
    });
}

#[test]
fn changes_report_an_exit() {
    with_containerd(|fixture| async move {
        let mut changes = fixture.cri.changes();
        let (_, container) = fixture.run("web", "sleep 0.1").await;
        let exited = async {
            while fixture.observe("web", &container.id).await.state == ContainerState::Created
                || matches!(
                    fixture.observe("web", &container.id).await.state,
                    ContainerState::Running { .. }
                )
            {
                assert_eq!(changes.recv().await.unwrap().pod, "uid-web");
            }
        };
        tokio::time::timeout(TIMEOUT, exited).await.expect("no change was reported");
    });
}

#[test]
fn stop_sends_the_stop_signal_and_kill_sends_sigkill() {
    with_containerd(|fixture| async move {
        let loops = "while :; do sleep 0.05; done";
        let script = format!("trap 'exit 7' TERM; echo ready; {loops}");
        let (_, polite) = fixture.run("polite", &script).await;
        let (_, deaf) = fixture.run("deaf", &format!("trap '' TERM; echo ready; {loops}")).await;
        for container in [&polite, &deaf] {
            let ready = async || {
                fs::read_to_string(&container.log_path).ok()?.contains("ready").then_some(())
            };
            until("the signal handler is set", ready).await;
            fixture.cri.stop_container(&container.id, Duration::from_secs(60)).await.unwrap();
        }
        assert_eq!(fixture.exit("polite", &polite.id).await.code, 7);
        assert!(matches!(
            fixture.observe("deaf", &deaf.id).await.state,
            ContainerState::Running { .. }
        ));
        fixture.cri.kill_container(&deaf.id).await.unwrap();
        assert_eq!(fixture.exit("deaf", &deaf.id).await.code, 137);
        // No error if it has exited or does not exist.
        fixture.cri.kill_container(&deaf.id).await.unwrap();
        fixture.cri.stop_container(&deaf.id, Duration::from_secs(1)).await.unwrap();
        fixture.cri.kill_container("no-such-container").await.unwrap();
    });
}

#[test]
fn a_missing_command_is_a_start_error() {
    with_containerd(|fixture| async move {
        let sandbox = fixture.cri.run_sandbox(&fixture.sandbox("web")).await.unwrap();
        let mut spec = fixture.container("").await;
        spec.command = Some(vec!["/no/such/command".into()]);
        let container = fixture.cri.create_container(&sandbox.id, &spec).await.unwrap();
        let error = fixture.cri.start_container(&container.id).await.unwrap_err();
        assert!(matches!(&error, Error::Start(why) if why.contains("no such file")), "{error}");
        let exit = fixture.exit("web", &container.id).await;
        assert_eq!((exit.code, exit.reason.as_str()), (128, "StartError"));
        assert_eq!(exit.started_at, None);
    });
}

#[test]
fn a_new_connection_restores_the_state() {
    with_containerd(|fixture| async move {
        let (sandbox, first) = fixture.run("web", "sleep 1000").await;
        let again = Cri::connect(&fixture.socket).await.unwrap();
        let seen = again.sandboxes().await.unwrap();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].containers[0].id, first.id);
        assert_eq!(seen[0].containers[0].annotations["count"], "1");
        let mut spec = fixture.container("sleep 1000").await;
        (spec.name, spec.log_path) = ("second".into(), "second/0.log".into());
        let second = again.create_container(&sandbox.id, &spec).await.unwrap();
        again.start_container(&second.id).await.unwrap();
        let seen = again.sandboxes_of("uid-web").await.unwrap();
        let names: Vec<_> = seen[0].containers.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["second", "main"]);
        let error = again.create_container("no-such-sandbox", &spec).await.unwrap_err();
        assert!(error.is_not_found(), "{error}");
    });
}

#[test]
fn the_security_context_and_limits_are_applied() {
    with_containerd(|fixture| async move {
        let volume = fixture.directory.join("volume");
        fs::create_dir(&volume).unwrap();
        fs::write(volume.join("file"), "from the node").unwrap();
        let mut sandbox_spec = fixture.sandbox("web");
        sandbox_spec.sysctls.insert("net.ipv4.ip_unprivileged_port_start".into(), "80".into());
        sandbox_spec.pid = Namespace::Pod;
        let sandbox = fixture.cri.run_sandbox(&sandbox_spec).await.unwrap();
        let script = "id; cat /data/file; touch /data/x; touch /x; echo end; \
                      cat /proc/sys/net/ipv4/ip_unprivileged_port_start; ls /proc/1/exe; \
                      cat /proc/self/status | while read a b; do [ $a = CapBnd: ] && echo bnd $b; done";
        let mut spec = fixture.container(script).await;
        spec.mounts = vec![Mount {
            source: volume,
            target: "/data".into(),
            read_only: true,
            recursive_read_only: false,
            propagation: Propagation::Private,
            no_exec: false,
        }];
        spec.security = Security {
            user: User::Uid(1234),
            group: Some(77),
            supplemental_groups: vec![88],
            read_only_root: true,
            no_new_privs: true,
            capabilities: Capabilities {
                add: vec!["NET_BIND_SERVICE".into()],
                drop: vec!["ALL".into()],
            },
            ..Security::default()
        };
        spec.resources = Resources {
            memory_limit: Some(64 << 20),
            cpu_shares: Some(512),
            cpu_quota: Some(50_000),
            ..Resources::default()
        };
        let container = fixture.cri.create_container(&sandbox.id, &spec).await.unwrap();
        assert_eq!(container.resources, spec.resources);
        assert!(container.mounts.iter().any(|m| m.target.ends_with("data") && m.read_only));
        fixture.cri.start_container(&container.id).await.unwrap();
        fixture.exit("web", &container.id).await;
        let log = fs::read_to_string(&container.log_path).unwrap();
        for expected in [
            "uid=1234(nina) gid=77 groups=77,88",
            "from the node",
            "touch: /data/x: Read-only file system",
            "touch: /x: Read-only file system",
            " F 80\n",
            "bnd 0000000000000400",
        ] {
            assert!(log.contains(expected), "{expected} is not in {log}");
        }
    });
}

#[test]
fn privileged_containers_and_host_namespaces_work() {
    with_containerd(|fixture| async move {
        let mut sandbox_spec = fixture.sandbox("web");
        (sandbox_spec.network, sandbox_spec.hostname) = (PodNetwork::Host, None);
        (sandbox_spec.pid, sandbox_spec.ipc) = (Namespace::Host, Namespace::Host);
        let sandbox = fixture.cri.run_sandbox(&sandbox_spec).await.unwrap();
        assert_eq!(sandbox.network, PodNetwork::Host);
        assert!(sandbox.addresses.is_empty());
        let mut spec = fixture.container("ls /sys/class/net; cat /proc/self/status").await;
        spec.security.privileged = true;
        let container = fixture.cri.create_container(&sandbox.id, &spec).await.unwrap();
        fixture.cri.start_container(&container.id).await.unwrap();
        fixture.exit("web", &container.id).await;
        let log = fs::read_to_string(&container.log_path).unwrap();
        let own = fs::read_to_string("/proc/self/status").unwrap();
        let bound = own.lines().find_map(|line| line.strip_prefix("CapBnd:\t")).unwrap();
        assert!(log.contains(&format!("CapEff:\t{bound}")), "{log}");
        sandbox_spec.network = PodNetwork::Path("/run/netns/x".into());
        assert!(matches!(fixture.cri.run_sandbox(&sandbox_spec).await, Err(Error::Refused(_))));
    });
}

#[test]
fn usage_is_reported_and_limits_can_be_changed() {
    with_containerd(|fixture| async move {
        let (_, container) = fixture.run("web", "while :; do :; done").await;
        let limits = Resources { memory_limit: Some(128 << 20), ..Resources::default() };
        fixture.cri.update_container(&container.id, &limits).await.unwrap();
        assert_eq!(fixture.observe("web", &container.id).await.resources, limits);
        let used = until("some CPU time was used", async || {
            let all = fixture.cri.usage().await.unwrap();
            all.into_iter().find(|used| used.cpu_nanoseconds > 1_000_000)
        })
        .await;
        assert_eq!((used.pod.as_str(), used.container.as_str()), ("uid-web", "main"));
        assert!(used.working_set_bytes > 0);
    });
}

#[test]
fn the_pods_cgroup_has_limits_and_is_removed_with_the_pod() {
    with_containerd(|fixture| async move {
        let mut sandbox_spec = fixture.sandbox("web");
        sandbox_spec.resources.memory_limit = Some(96 << 20);
        let files =
            ["/sys/fs/cgroup/memoryPATH/memory.limit_in_bytes", "/sys/fs/cgroupPATH/memory.max"];
        let files = files.map(|file| file.replace("PATH", &sandbox_spec.cgroup));
        let limit = || files.iter().find_map(|file| fs::read_to_string(file).ok());
        let sandbox = fixture.cri.run_sandbox(&sandbox_spec).await.unwrap();
        assert_eq!(limit().unwrap().trim(), (96 << 20).to_string());
        fixture.cri.stop_sandbox(&sandbox.id).await.unwrap();
        fixture.cri.remove_sandbox(&sandbox.id).await.unwrap();
        assert_eq!(limit(), None);
    });
}

#[test]
fn images_are_found_listed_and_removed() {
    with_containerd(|fixture| async move {
        let images = fixture.cri.images();
        let image = images.find(&ImageReference(BOX.into())).await.unwrap().unwrap();
        assert_eq!(image.tags, [BOX]);
        let by_id = images.find(&ImageReference(image.id.clone())).await.unwrap();
        assert_eq!(by_id, Some(image.clone()));
        assert_eq!(images.find(&ImageReference("no/such:image".into())).await.unwrap(), None);
        assert_eq!(images.list().await.unwrap().len(), 2);
        assert!(images.directory().starts_with(&fixture.directory));
        let absent = ImageReference("127.0.0.1:9/no/such:image".into());
        let error = images.pull(&absent, &[], &|_| {}).await.unwrap_err();
        assert!(matches!(error, Error::Pull(_)), "{error:?}");
        images.remove(&image.id).await.unwrap();
        assert_eq!(images.find(&ImageReference(BOX.into())).await.unwrap(), None);
    });
}

#[test]
fn connecting_to_a_missing_socket_is_a_clear_error() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(Cri::connect("unix:///no/such.sock")).err().unwrap();
    let text = error.to_string();
    let expected = "cannot connect to the container runtime at unix:///no/such.sock";
    assert!(text.starts_with(expected) && text.contains("No such file"), "{text}");
}
