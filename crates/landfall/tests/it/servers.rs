//! Several servers on one etcd: all respond and are in the Endpoints, one leads, and another takes over (C-194,
//! T-CTRL-63).
//!
//! The audit logs show which server's controllers and scheduler act.

use crate::harness::etcd::{Etcd, beside};
use crate::harness::{self, Cluster, Kubectl};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The lease duration of the leader. Upstream: `--leader-elect-lease-duration`.
const LEASE: Duration = Duration::from_secs(15);
/// Extra time for the next request on a busy machine.
const MOMENT: Duration = Duration::from_secs(1);

/// How often servers check the heartbeats of the others.
const LOOK: Duration = Duration::from_secs(5);

const LEASES: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];

/// What controllers and scheduler wrote through this server, except their leases.
fn writes(audit: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(audit).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_deed = |line: &Value| {
        let reads = matches!(line["verb"].as_str(), Some("get" | "list" | "watch"));
        let leads = LEASES.iter().any(|name| line["objectRef"]["name"] == *name);
        let user = line["user"]["username"].as_str().unwrap_or_default();
        let parts = ["system:kube-", "system:serviceaccount:kube-system:"];
        parts.iter().any(|part| user.starts_with(part)) && !reads && !leads
    };
    lines.filter(is_deed).map(|line| line.to_string()).collect()
}

struct Member {
    cluster: Cluster,
    kubectl: Kubectl,
    audit: PathBuf,
}

impl Member {
    fn start(dir: tempfile::TempDir, etcd: &Etcd) -> Member {
        let (audit, store) = (dir.path().join("audit"), format!("etcd://{}", etcd.address));
        let args = ["--store", &store, "--audit-log", audit.to_str().expect("a plain path")];
        let cluster = Cluster::scheduling_in(dir, &args);
        let kubectl = cluster.kubectl();
        Member { cluster, kubectl, audit }
    }

    /// Starts another server of this cluster.
    fn another(&self, etcd: &Etcd) -> Member {
        let dir = tempfile::tempdir().expect("a directory for the server");
        beside(&self.cluster, dir.path());
        Member::start(dir, etcd)
    }

    /// The holder of this lease.
    fn holder(&self, lease: &str) -> String {
        self.kubectl.ok(&format!(
            "kubectl -n kube-system get lease {lease} -o jsonpath='{{.spec.holderIdentity}}'"
        ))
    }

    fn holders(&self) -> [String; 2] {
        LEASES.map(|lease| self.holder(lease))
    }

    /// How long after this time the current leases were acquired.
    fn taken_after(&self, moment: jiff::Timestamp) -> [Duration; 2] {
        LEASES.map(|lease| {
            let since = "-o jsonpath='{.spec.acquireTime}'";
            let since =
                self.kubectl.ok(&format!("kubectl -n kube-system get lease {lease} {since}"));
            let since: jiff::Timestamp = since.trim().parse().expect("a time");
            Duration::try_from(since.duration_since(moment)).expect("it was taken since")
        })
    }

    /// Checks that controllers and scheduler work: a Deployment gets a pod, and the scheduler handles it.
    fn work_is_done(&self, name: &str) {
        self.kubectl.ok(&format!(
            "kubectl create deployment {name} --image=nginx
             for i in $(seq 250); do
               kubectl get pods -l app={name} -o jsonpath='{{.items[*].status.conditions[*].reason}}' \\
                 | grep -q Unschedulable && exit 0
               sleep 0.1
             done; kubectl get pods; exit 1"
        ));
    }
}

/// C-194: only the holder of the leases acts; after a kill of the leader another one takes over when the lease expires,
/// after an orderly stop at once.
#[test]
fn c_194_one_of_several_servers_leads_and_another_takes_over() {
    let etcd = Etcd::start();
    let dir = tempfile::tempdir().expect("a directory for the server");
    let first = Member::start(dir, &etcd);
    first.work_is_done("a");
    let second = first.another(&etcd);
    let leaders = first.holders();
    second.work_is_done("b");
    assert_eq!(second.holders(), leaders, "the first leads");
    assert!(!writes(&first.audit).is_empty());
    assert_eq!(writes(&second.audit), Vec::<String>::new(), "only the leader acts");
    first.kubectl.shows("kubectl -n kube-system get events", &["LeaderElection", "became leader"]);

    let killed = clock::now();
    drop(first.cluster.kill());
    second.kubectl.ok("kubectl create deployment c --image=nginx");
    second.work_is_done("d");
    let took = second.taken_after(killed);
    assert!(took.iter().all(|took| *took <= LEASE + MOMENT), "{took:?}");
    let followers = second.holders();
    assert!(followers.iter().zip(&leaders).all(|(new, old)| new != old), "{followers:?}");
    second.kubectl.shows("kubectl get rs", &["c-"]);

    let third = second.another(&etcd);
    third.work_is_done("e");
    assert_eq!(writes(&third.audit), Vec::<String>::new(), "only the leader acts");
    let killed_at = clock::now();
    harness::signal(second.cluster.process_id(), "TERM");
    third.work_is_done("f");
    let took = third.taken_after(killed_at);
    assert!(took.iter().all(|took| *took <= Duration::from_secs(2)), "{took:?}");
    drop(second.cluster.ended());
    let last = third.holders();
    assert!(
        last.iter().zip(&followers).all(|(new, old)| new != old && !new.is_empty()),
        "{last:?}"
    );
    let transitions = "{.items[*].spec.leaseTransitions}";
    third
        .kubectl
        .prints(&format!("kubectl -n kube-system get leases -o jsonpath='{transitions}'"), "2 2");
    third.cluster.stop();
}

/// The addresses of the Service `kubernetes`, in Endpoints and EndpointSlices.
fn shown(kubectl: &Kubectl) -> [BTreeSet<String>; 2] {
    let ports = |kind: &str, which: &str, of: &str| {
        kubectl.ok(&format!(
            "kubectl get {kind} {which} -o go-template='{{{{range .{of}}}}}{{{{.}}}}{{{{end}}}}'"
        ))
    };
    let endpoints = ports("endpoints", "kubernetes", "subsets");
    let slices = ports("endpointslices", "-l kubernetes.io/service-name=kubernetes", "items");
    [endpoints, slices].map(|text| {
        // All servers have the address 127.0.0.1 and differ in their ports.
        let after = text.split("port:").skip(1);
        let port = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect();
        after.map(port).collect()
    })
}

#[track_caller]
fn are_shown(kubectl: &Kubectl, servers: &[&Member], within: Duration) {
    let ports = servers.iter().filter_map(|server| server.cluster.url.rsplit(':').next());
    let wanted: BTreeSet<String> = ports.map(str::to_owned).collect();
    let by = clock::now() + within;
    loop {
        let now = shown(kubectl);
        if now.iter().all(|shown| *shown == wanted) {
            return;
        }
        assert!(clock::now() < by, "{now:?} instead of {wanted:?}");
    }
}

/// T-CTRL-63, A-160, NET-95: a server that stops leaves the Endpoints before it exits; one that is killed is removed after
/// 15 s without a heartbeat; all others stay.
#[test]
fn t_ctrl_63_endpoints_list_exactly_the_running_servers() {
    let etcd = Etcd::start();
    let dir = tempfile::tempdir().expect("a directory for the server");
    let first = Member::start(dir, &etcd);
    are_shown(&first.kubectl, &[&first], MOMENT);
    let second = first.another(&etcd);
    let third = first.another(&etcd);
    let all = [&first, &second, &third];
    all.iter().for_each(|member| are_shown(&member.kubectl, &all, MOMENT));

    // Changes of others are reverted.
    first.kubectl.ok(r#"kubectl patch endpoints kubernetes --type=merge -p '{"subsets":[]}'"#);
    are_shown(&first.kubectl, &all, LOOK + MOMENT);
    let version = "kubectl get endpoints kubernetes -o jsonpath='{.metadata.resourceVersion}'";
    let settled = first.kubectl.ok(version);

    second.cluster.stop();
    are_shown(&first.kubectl, &[&first, &third], MOMENT);
    assert_ne!(first.kubectl.ok(version), settled);
    let settled = first.kubectl.ok(version);
    let killed = clock::now();
    drop(third.cluster.kill());
    while first.kubectl.ok(version) == settled {
        assert!(clock::now() < killed + 2 * LEASE + MOMENT, "the killed server is still shown");
    }
    let took = clock::now().duration_since(killed);
    assert!(took > (LEASE - LOOK).try_into().unwrap(), "too soon: {took}");
    are_shown(&first.kubectl, &[&first], MOMENT);
    first.cluster.stop();
}

/// Its nodes would terminate all their pods if the cluster started empty.
#[test]
fn an_empty_etcd_is_not_started_as_a_new_cluster_with_existing_keys() {
    let (etcd, empty) = (Etcd::start(), Etcd::start());
    let first = Member::start(tempfile::tempdir().expect("a directory for the server"), &etcd);
    let dir = tempfile::tempdir().expect("a directory for the server");
    beside(&first.cluster, dir.path());
    let stopped = first.cluster.stop();
    for dir in [&stopped, &dir] {
        let mut command = Command::new("timeout");
        command.args(["20", harness::LANDFALL, "server", "--listen", "127.0.0.1:0"]);
        command.args(["--store", &format!("etcd://{}", empty.address), "--data-dir"]);
        let refused = command.arg(dir.path().join("data")).output().expect("landfall can be run");
        let why = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{why}");
        for part in [&*empty.address, "has no objects of a cluster", "pki", "restore", "start over"]
        {
            assert!(why.contains(part), "{why}");
        }
    }
    // A start that was interrupted before it stored its objects is repeated.
    std::fs::write(dir.path().join("data/first-start"), b"").expect("a file");
    let repeated = Member::start(dir, &empty);
    assert!(!repeated.cluster.data_dir().join("first-start").exists());
    // The cluster itself continues on its own etcd, and a second server joins it with copied keys.
    let first = Member::start(stopped, &etcd);
    first.another(&etcd).cluster.stop();
    first.cluster.stop();
}
