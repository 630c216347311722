//! Sandboxes and containers come, run, end and go.

use super::fixture::{BOX, PATIENCE, until, with_containerd};
use runtime::{
    Capabilities, ContainerState, Cri, Error, ImageReference, Mount, Namespace, PodNetwork,
    Propagation, Resources, Runtime as _, SandboxState, Security, User,
};
use std::fs;
use std::time::Duration;

#[test]
fn a_pod_runs_logs_ends_and_is_forgotten() {
    with_containerd(|world| async move {
        let cri = &world.cri;
        assert_eq!(cri.version().await.unwrap().name, "containerd");
        assert!(cri.brings_network());
        let (sandbox, container) =
            world.run("web", "echo $GREETING; echo oops >&2; sleep 0.2; exit 3").await;
        assert_eq!(sandbox.state, SandboxState::Ready);
        assert_eq!(sandbox.pod.uid, "uid-web");
        assert_eq!(sandbox.labels["io.kubernetes.pod.name"], "web");
        assert_eq!(sandbox.labels["app"], "web");
        assert_eq!(sandbox.annotations.len(), 1, "{:?}", sandbox.annotations);
        assert!(sandbox.addresses[0].to_string().starts_with("10.88.5."));
        assert_eq!(container.state, ContainerState::Created);
        assert_eq!(container.image_name, BOX);

        let exit = world.exit("web", &container.id).await;
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
fn changes_tell_of_an_end_nobody_asked_for() {
    with_containerd(|world| async move {
        let mut changes = world.cri.changes();
        let (_, container) = world.run("web", "sleep 0.1").await;
        let told = async {
            while world.look("web", &container.id).await.state == ContainerState::Created
                || matches!(
                    world.look("web", &container.id).await.state,
                    ContainerState::Running { .. }
                )
            {
                assert_eq!(changes.recv().await.unwrap().pod, "uid-web");
            }
        };
        tokio::time::timeout(PATIENCE, told).await.expect("nobody told us");
    });
}

#[test]
fn stopping_asks_first_and_killing_does_not() {
    with_containerd(|world| async move {
        let loops = "while :; do sleep 0.05; done";
        let script = format!("trap 'exit 7' TERM; echo ready; {loops}");
        let (_, polite) = world.run("polite", &script).await;
        let (_, deaf) = world.run("deaf", &format!("trap '' TERM; echo ready; {loops}")).await;
        for container in [&polite, &deaf] {
            let ready = async || {
                fs::read_to_string(&container.log_path).ok()?.contains("ready").then_some(())
            };
            until("it has set its trap", ready).await;
            world.cri.stop_container(&container.id, Duration::from_secs(60)).await.unwrap();
        }
        assert_eq!(world.exit("polite", &polite.id).await.code, 7);
        assert!(matches!(world.look("deaf", &deaf.id).await.state, ContainerState::Running { .. }));
        world.cri.kill_container(&deaf.id).await.unwrap();
        assert_eq!(world.exit("deaf", &deaf.id).await.code, 137);
        // What has ended, or never was, is fine.
        world.cri.kill_container(&deaf.id).await.unwrap();
        world.cri.stop_container(&deaf.id, Duration::from_secs(1)).await.unwrap();
        world.cri.kill_container("no-such-container").await.unwrap();
    });
}

#[test]
fn a_command_that_is_not_there_is_a_start_error() {
    with_containerd(|world| async move {
        let sandbox = world.cri.run_sandbox(&world.sandbox("web")).await.unwrap();
        let mut spec = world.container("").await;
        spec.command = Some(vec!["/no/such/command".into()]);
        let container = world.cri.create_container(&sandbox.id, &spec).await.unwrap();
        let error = world.cri.start_container(&container.id).await.unwrap_err();
        assert!(matches!(&error, Error::Start(why) if why.contains("no such file")), "{error}");
        let exit = world.exit("web", &container.id).await;
        assert_eq!((exit.code, exit.reason.as_str()), (128, "StartError"));
        assert_eq!(exit.started_at, None);
    });
}

#[test]
fn a_new_process_finds_everything_and_goes_on() {
    with_containerd(|world| async move {
        let (sandbox, first) = world.run("web", "sleep 1000").await;
        let again = Cri::connect(&world.socket).await.unwrap();
        let seen = again.sandboxes().await.unwrap();
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].containers[0].id, first.id);
        assert_eq!(seen[0].containers[0].annotations["count"], "1");
        let mut spec = world.container("sleep 1000").await;
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
fn a_container_is_as_confined_as_it_was_asked_to_be() {
    with_containerd(|world| async move {
        let volume = world.directory.join("volume");
        fs::create_dir(&volume).unwrap();
        fs::write(volume.join("file"), "from the node").unwrap();
        let mut around = world.sandbox("web");
        around.sysctls.insert("net.ipv4.ip_unprivileged_port_start".into(), "80".into());
        around.pid = Namespace::Pod;
        let sandbox = world.cri.run_sandbox(&around).await.unwrap();
        let script = "id; cat /data/file; touch /data/x; touch /x; echo end; \
                      cat /proc/sys/net/ipv4/ip_unprivileged_port_start; ls /proc/1/exe; \
                      cat /proc/self/status | while read a b; do [ $a = CapBnd: ] && echo bnd $b; done";
        let mut spec = world.container(script).await;
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
        let container = world.cri.create_container(&sandbox.id, &spec).await.unwrap();
        assert_eq!(container.resources, spec.resources);
        assert!(container.mounts.iter().any(|m| m.target.ends_with("data") && m.read_only));
        world.cri.start_container(&container.id).await.unwrap();
        world.exit("web", &container.id).await;
        let log = fs::read_to_string(&container.log_path).unwrap();
        for wanted in [
            "uid=1234(nina) gid=77 groups=77,88",
            "from the node",
            "touch: /data/x: Read-only file system",
            "touch: /x: Read-only file system",
            " F 80\n",
            "bnd 0000000000000400",
        ] {
            assert!(log.contains(wanted), "{wanted} is not in {log}");
        }
    });
}

#[test]
fn privileges_and_the_nodes_namespaces_can_be_had() {
    with_containerd(|world| async move {
        let mut around = world.sandbox("web");
        (around.network, around.hostname) = (PodNetwork::Host, None);
        (around.pid, around.ipc) = (Namespace::Host, Namespace::Host);
        let sandbox = world.cri.run_sandbox(&around).await.unwrap();
        assert_eq!(sandbox.network, PodNetwork::Host);
        assert!(sandbox.addresses.is_empty());
        let mut spec = world.container("ls /sys/class/net; cat /proc/self/status").await;
        spec.security.privileged = true;
        let container = world.cri.create_container(&sandbox.id, &spec).await.unwrap();
        world.cri.start_container(&container.id).await.unwrap();
        world.exit("web", &container.id).await;
        let log = fs::read_to_string(&container.log_path).unwrap();
        let own = fs::read_to_string("/proc/self/status").unwrap();
        let bound = own.lines().find_map(|line| line.strip_prefix("CapBnd:\t")).unwrap();
        assert!(log.contains(&format!("CapEff:\t{bound}")), "{log}");
        around.network = PodNetwork::Path("/run/netns/x".into());
        assert!(matches!(world.cri.run_sandbox(&around).await, Err(Error::Refused(_))));
    });
}

#[test]
fn use_is_measured_and_limits_change_while_it_runs() {
    with_containerd(|world| async move {
        let (_, container) = world.run("web", "while :; do :; done").await;
        let wanted = Resources { memory_limit: Some(128 << 20), ..Resources::default() };
        world.cri.update_container(&container.id, &wanted).await.unwrap();
        assert_eq!(world.look("web", &container.id).await.resources, wanted);
        let used = until("some processor time was used", async || {
            let all = world.cri.usage().await.unwrap();
            all.into_iter().find(|used| used.cpu_nanoseconds > 1_000_000)
        })
        .await;
        assert_eq!((used.pod.as_str(), used.container.as_str()), ("uid-web", "main"));
        assert!(used.working_set_bytes > 0);
    });
}

#[test]
fn the_pod_as_a_whole_is_limited_and_its_cgroup_goes_with_it() {
    with_containerd(|world| async move {
        let mut around = world.sandbox("web");
        around.resources.memory_limit = Some(96 << 20);
        let files =
            ["/sys/fs/cgroup/memoryPATH/memory.limit_in_bytes", "/sys/fs/cgroupPATH/memory.max"];
        let files = files.map(|file| file.replace("PATH", &around.cgroup));
        let limit = || files.iter().find_map(|file| fs::read_to_string(file).ok());
        let sandbox = world.cri.run_sandbox(&around).await.unwrap();
        assert_eq!(limit().unwrap().trim(), (96 << 20).to_string());
        world.cri.stop_sandbox(&sandbox.id).await.unwrap();
        world.cri.remove_sandbox(&sandbox.id).await.unwrap();
        assert_eq!(limit(), None);
    });
}

#[test]
fn images_are_found_listed_and_removed() {
    with_containerd(|world| async move {
        let images = world.cri.images();
        let image = images.find(&ImageReference(BOX.into())).await.unwrap().unwrap();
        assert_eq!(image.tags, [BOX]);
        let by_id = images.find(&ImageReference(image.id.clone())).await.unwrap();
        assert_eq!(by_id, Some(image.clone()));
        assert_eq!(images.find(&ImageReference("no/such:image".into())).await.unwrap(), None);
        assert_eq!(images.list().await.unwrap().len(), 2);
        assert!(images.directory().starts_with(&world.directory));
        let absent = ImageReference("127.0.0.1:9/no/such:image".into());
        let error = images.pull(&absent, &[], &|_| {}).await.unwrap_err();
        assert!(matches!(error, Error::Pull(_)), "{error:?}");
        images.remove(&image.id).await.unwrap();
        assert_eq!(images.find(&ImageReference(BOX.into())).await.unwrap(), None);
    });
}

#[test]
fn nobody_at_the_socket_is_said_plainly() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let error = runtime.block_on(Cri::connect("unix:///no/such.sock")).err().unwrap();
    let text = error.to_string();
    let wanted = "cannot connect to the container runtime at unix:///no/such.sock";
    assert!(text.starts_with(wanted) && text.contains("No such file"), "{text}");
}
