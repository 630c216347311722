//! Shutdown of the host: pods terminate in order, before the host goes down.

mod systemd;

use super::shutdown::polite;
use crate::harness::{Cluster, down, import_all, other_runtime, signal};
use crate::kernel_state::{KernelState, processes};
use std::path::Path;
use std::process::Command;
use systemd::Host;

/// T-NODE-85, T-NODE-86, T-NODE-88: landfall holds a delay lock of logind until all pods have terminated; a cancelled
/// shutdown is noticed; a SIGTERM during a shutdown terminates pods too.
#[test]
fn the_host_waits_until_pods_have_terminated() {
    let kernel = KernelState::capture();
    let dir = tempfile::tempdir().unwrap();
    let order = dir.path().join("out/order");
    let host = Host::start(dir.path(), &order);
    import_all(dir.path(), &["busybox"]);
    let args = ["--shutdown-grace", "40s", "--shutdown-grace-critical", "10s"];
    let cluster = Cluster::with_node_inside(&host.entrance(), &host.bus_address(), dir, &args);
    let kubectl = cluster.kubectl();

    let locked = || host.asks("ListInhibitors", &[]).contains("\"landfall\"");
    host.until("landfall has a lock", locked);
    assert!(host.asks("ListInhibitors", &[]).contains("\"delay\""));
    assert!(host.delay().contains("uint64 40000000"), "{}", host.delay());

    kubectl.ok(&(polite(&cluster, "p", "terminationGracePeriodSeconds: 20")
        + "kubectl wait --for=condition=Ready pod/p --timeout=60s"));
    host.asks("PowerOff", &["boolean:false"]);
    kubectl.ok("kubectl wait --for=condition=Ready=false node/n1 --timeout=20s");
    assert_eq!(host.went_down(), ("poweroff.target".into(), "p asked\np gone\n".into()));
    let status = "kubectl get pod p -o jsonpath='{.status.phase}: {.status.reason}'";
    kubectl.prints(status, "Failed: Terminated");

    host.stays_up();
    host.until("landfall has a lock again", locked);
    kubectl.ok("kubectl wait --for=condition=Ready node/n1 --timeout=20s");
    kubectl.shows("kubectl get events", &["Shutdown manager detected shutdown cancellation"]);
    kubectl.prints(status, "Failed: Terminated");

    kubectl.ok(&(polite(&cluster, "q", "terminationGracePeriodSeconds: 20")
        + "kubectl wait --for=condition=Ready pod/q --timeout=60s"));
    host.is_stopping();
    signal(cluster.process_id(), "TERM");
    let data = cluster.data_dir();
    let dir = cluster.ended();
    if other_runtime().is_none() {
        assert_eq!(processes(&data), Vec::<String>::new(), "pods have ended too");
    }
    let order = std::fs::read_to_string(order).unwrap();
    assert!(order.ends_with("q asked\nq gone\n"), "{order}");
    down(&data);
    kernel.assert_unchanged(&data);
    drop(dir);
}

#[test]
fn the_unit_files_are_what_systemd_understands() {
    let dir = tempfile::tempdir().unwrap();
    let ours = ["landfall.service", "landfall.slice"].map(|name| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist").join(name);
        let text = std::fs::read_to_string(file).unwrap();
        let ours = dir.path().join(name);
        let program = crate::harness::LANDFALL;
        std::fs::write(&ours, text.replace("/usr/local/bin/landfall", program)).unwrap();
        ours
    });
    let verified = Command::new("systemd-analyze").arg("verify").args(&ours).output();
    let verified = verified.expect("systemd-analyze is there: `scripts/install all` installs it");
    let stderr = String::from_utf8_lossy(&verified.stderr);
    let about_us: Vec<&str> = stderr.lines().filter(|line| line.contains("landfall")).collect();
    assert_eq!(about_us, Vec::<&str>::new());
}
