//! Pods with a user namespace (N-124).

use super::fixture::{Fixture, fixture, script};
use runtime::{
    ContainerSpec, Mount, Namespace, PodNetwork, Propagation, Runtime, Sandbox, SandboxSpec,
    UserRange,
};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command};

const FIRST: u32 = 7 << 16;

/// A network namespace that belongs to a new user namespace, until this value is dropped.
struct Network(Child);

impl Network {
    fn new() -> Network {
        let mut command = Command::new("/bin/busybox");
        let child = command.args(["unshare", "-U", "-n", "/bin/busybox", "sleep", "1000"]).spawn();
        let network =
            Network(child.expect("this test needs /bin/busybox: run `scripts/install all`"));
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let theirs = network.file("ns/net");
        while std::fs::read_link(&theirs).unwrap() == own {
            std::thread::yield_now();
        }
        for map in ["uid_map", "gid_map"] {
            std::fs::write(network.file(map), format!("0 {FIRST} 65536\n")).unwrap();
        }
        network
    }

    fn file(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.0.id()).into()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sandbox_spec(fixture: &Fixture, network: &Network) -> SandboxSpec {
    let mut spec = fixture.sandbox_spec();
    spec.users = Some(UserRange { first: FIRST, count: 65536 });
    spec.network = PodNetwork::Path(network.file("ns/net"));
    spec
}

async fn output(fixture: &Fixture, sandbox: &Sandbox, spec: &ContainerSpec) -> String {
    let (exit, log) = fixture.run(sandbox, spec).await;
    assert_eq!(exit.code, 0, "{exit:?} {}", log.0);
    log.stdout()
}

fn volume(fixture: &Fixture) -> (PathBuf, Mount) {
    let source = fixture.directory.path().join("volume");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("of-root"), "").unwrap();
    std::fs::write(source.join("of-alice"), "").unwrap();
    std::os::unix::fs::chown(source.join("of-alice"), Some(1000), Some(1000)).unwrap();
    let mount = Mount {
        source: source.clone(),
        target: "/v".into(),
        read_only: false,
        recursive_read_only: false,
        propagation: Propagation::Private,
        no_exec: false,
    };
    (source, mount)
}

/// N-124: root in the pod is an unprivileged user on the node; owners of files in volumes do not change.
#[tokio::test]
async fn n_124_root_in_the_pod_is_unprivileged_on_the_node() {
    let fixture = fixture().await;
    let network = Network::new();
    let mut sandbox_spec = sandbox_spec(&fixture, &network);
    sandbox_spec.sysctls.insert("kernel.shm_rmid_forced".into(), "1".into());
    sandbox_spec.sysctls.insert("net.ipv4.tcp_keepalive_time".into(), "77".into());
    let sandbox = fixture.native.run_sandbox(&sandbox_spec).await.unwrap();
    let (source, mount) = volume(&fixture);
    let mut spec = script(
        "id -u; tr -s ' ' < /proc/self/uid_map; tr -s ' ' < /proc/self/gid_map; \
         stat -c %u /bin/busybox /v/of-root /v/of-alice /dev/shm /work; \
         cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/tcp_keepalive_time; \
         touch /v/written /written /dev/shm/x && hostname && ls /sys/class/net && echo ready; exec sleep 1000",
    );
    spec.mounts = vec![mount];
    spec.working_dir = Some("/work".into());
    let container = fixture.started(&sandbox, &spec).await;
    fixture.wait_for_log(&container, "ready").await;
    let map = format!(" 0 {FIRST} 65536\n");
    assert_eq!(
        fixture.log(&container).stdout(),
        format!("0\n{map}{map}0\n0\n1000\n0\n0\n1\n77\nweb-0\nlo\nready\n")
    );
    assert_eq!(std::fs::metadata(source.join("written")).unwrap().uid(), 0);
    let run = fixture.directory.path().join("run").join(&sandbox.id);
    let upper = run.join("containers").join(&container.id).join("upper");
    assert_eq!(std::fs::metadata(upper.join("written")).unwrap().uid(), FIRST);

    // The same holds for an exec.
    let text = "id -u; stat -c %u /v/of-alice; touch /by-exec && grep Cap[EB] /proc/self/status | tr -d '\\t'; \
                readlink /proc/self/ns/user; readlink /proc/1/ns/user";
    let (code, seen) = fixture.exec(&container.id, &["sh", "-c", text]).await;
    assert_eq!(code, 0, "{seen}");
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[..4], ["0", "1000", "CapEff:00000000a80425fb", "CapBnd:00000000a80425fb"]);
    assert_eq!(lines[4], lines[5]);
    assert_ne!(lines[4], std::fs::read_link("/proc/self/ns/user").unwrap().to_str().unwrap());
    assert_eq!(std::fs::metadata(upper.join("by-exec")).unwrap().uid(), FIRST);
    fixture.clean_up().await;
}

/// N-124, N-123: a user namespace together with a shared PID namespace and a terminal.
#[tokio::test]
async fn n_124_a_user_namespace_works_with_a_shared_pid_namespace() {
    let fixture = fixture().await;
    let network = Network::new();
    let mut sandbox_spec = sandbox_spec(&fixture, &network);
    sandbox_spec.pid = Namespace::Pod;
    let sandbox = fixture.native.run_sandbox(&sandbox_spec).await.unwrap();
    let other = fixture.started(&sandbox, &script("exec sleep 4321")).await;
    let mut spec = script("ps | grep -c [4]321; id -u; tr -s ' ' < /proc/self/uid_map; test -t 0");
    spec.tty = true;
    let seen = output(&fixture, &sandbox, &spec).await.replace('\r', "");
    assert_eq!(seen, format!("1\n0\n 0 {FIRST} 65536\n"));
    fixture.native.kill_container(&other.id).await.unwrap();
    fixture.clean_up().await;
}

/// N-124: if owners cannot be mapped, the container does not start.
#[tokio::test]
async fn n_124_a_volume_that_cannot_be_mapped_fails_the_container() {
    let fixture = fixture().await;
    let network = Network::new();
    let sandbox = fixture.native.run_sandbox(&sandbox_spec(&fixture, &network)).await.unwrap();
    let mut spec = script("true");
    let (_, mount) = volume(&fixture);
    spec.mounts = vec![Mount { source: "/proc/self/ns".into(), ..mount }];
    let container = fixture.created(&sandbox, &spec).await;
    let _ = fixture.native.start_container(&container.id).await;
    let exit = fixture.exit(&container.id).await;
    assert_eq!(exit.code, 128);
    assert!(exit.message.contains("cannot map the owners of files in"), "{}", exit.message);
    fixture.clean_up().await;
}

/// A pod with hostUsers: false never runs with the node's users.
#[tokio::test]
async fn n_124_a_user_namespace_needs_its_own_network_namespace() {
    let fixture = fixture().await;
    let mut spec = fixture.sandbox_spec();
    spec.users = Some(UserRange { first: FIRST, count: 65536 });
    let error = fixture.native.run_sandbox(&spec).await.unwrap_err().to_string();
    assert!(error.contains("needs its own network namespace"), "{error}");
    spec.network = PodNetwork::Path("/proc/self/ns/net".into());
    let error = fixture.native.run_sandbox(&spec).await.unwrap_err().to_string();
    assert!(error.contains("belongs to the node's user namespace"), "{error}");
    fixture.clean_up().await;
}
