//! Logs: with kubectl, followed through a rotation, and over WebSocket.

use super::cluster::{Cluster, PATIENCE};
use super::shell::shells;
use bytes::Bytes;
use node::logs::{self, Query, Rotation, Writer};
use serde_json::json;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;

const LINES: &str = "2026-01-02T03:04:05.1Z stdout F one\n\
                     2026-01-02T03:04:06.2Z stderr F two\n\
                     2026-01-02T03:04:07.3Z stdout P thr\n\
                     2026-01-02T03:04:07.4Z stdout F ee\n";

fn append(path: &Path, text: &str) {
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// N-162, A-242
#[tokio::test(flavor = "multi_thread")]
async fn a_242_kubectl_logs_with_its_options() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], LINES).await;
    cluster.pod("two", &["a", "b"], "2026-01-02T03:04:05Z stdout F mine\n").await;
    for shell in shells(&cluster) {
        assert_eq!(shell.ok("kubectl logs p").await, "one\ntwo\nthree\n");
        assert_eq!(shell.ok("kubectl logs p --tail=2").await, "three\n");
        assert_eq!(shell.ok("kubectl logs p --tail=0").await, "");
        assert_eq!(
            shell.ok("kubectl logs p --since-time=2026-01-02T03:04:06Z --tail=3").await,
            "two\nthree\n"
        );
        assert_eq!(shell.ok("kubectl logs p --limit-bytes=5").await, "one\nt");
        assert_eq!(
            shell.ok("kubectl logs p --timestamps --tail=3").await,
            "2026-01-02T03:04:06.200000000Z two\n2026-01-02T03:04:07.300000000Z three\n"
        );
        assert_eq!(shell.ok("kubectl logs p --since=1h").await, "");
        assert_eq!(shell.ok("kubectl logs two -c b").await, "mine\n");
        let said = shell.ok("kubectl logs two --all-containers --prefix").await;
        assert!(said.contains("/b] mine"), "{said}");
        let raw = "kubectl get --raw /api/v1/namespaces/default/pods";
        let choose = "a container name must be specified for pod two, choose one of: [a b]";
        shell.fails(&format!("{raw}/two/log"), choose).await;
        shell
            .fails(
                "kubectl logs p -p",
                "previous terminated container \"c\" in pod \"p\" not found",
            )
            .await;
        let invalid = "PodLogOptions \"p\" is invalid: ";
        for (options, why) in [
            ("tailLines=-1", "tailLines: Invalid value: -1: must be greater than or equal to 0"),
            ("limitBytes=0", "limitBytes: Invalid value: 0: must be greater than 0"),
            ("sinceSeconds=0", "sinceSeconds: Invalid value: 0: must be greater than 0"),
        ] {
            shell.fails(&format!("{raw}/p/log?{options}"), &format!("{invalid}{why}")).await;
        }
    }
}

/// A-243, N-161
#[tokio::test(flavor = "multi_thread")]
async fn a_243_why_there_is_nothing_to_show() {
    let cluster = Cluster::start().await;
    let unbound = json!({ "containers": [{ "name": "c", "image": "busybox" }] });
    cluster.pod_of("unbound", unbound, "").await;
    let mut pod = cluster.pod("p", &["c"], "").await;
    let status = pod.status.as_mut().unwrap().container_statuses.as_mut().unwrap();
    let waiting = json!({ "waiting": { "reason": "ContainerCreating" } });
    status[0].state = Some(super::cluster::parse(waiting));
    cluster.pods.put(Arc::new(pod.clone()));
    for shell in shells(&cluster) {
        assert_eq!(shell.ok("kubectl logs unbound").await, "");
        let waiting = "container \"c\" in pod \"p\" is waiting to start: ContainerCreating";
        shell.fails("kubectl logs p", waiting).await;
    }
    cluster.pods.remove(pod.metadata.uid.as_deref().unwrap());
    for shell in shells(&cluster) {
        let gone = "the server could not find the requested resource ( pods/log p)";
        shell.fails("kubectl logs p", gone).await;
    }
}

/// N-163
#[tokio::test(flavor = "multi_thread")]
async fn n_163_kubectl_logs_follows_until_the_container_ends() {
    for place in 0..super::shell::shells(&Cluster::start().await).len() {
        let cluster = Cluster::start().await;
        let pod = cluster.pod("p", &["c"], LINES).await;
        let shell = &shells(&cluster)[place];
        let mut following = shell.spawn("logs -f p --tail=1");
        assert_eq!(following.line().await.as_deref(), Some("ee"));
        append(&cluster.log(&pod, "c"), "2026-01-02T03:04:08Z stdout F more\n");
        assert_eq!(following.line().await.as_deref(), Some("more"));
        append(&cluster.log(&pod, "c"), "2026-01-02T03:04:09Z stdout F last\n");
        cluster.runtime.end("c");
        assert_eq!(following.line().await.as_deref(), Some("last"));
        assert_eq!(following.line().await, None);
        assert_eq!(following.code().await, Some(0));
    }
}

/// N-159, N-163
#[tokio::test(flavor = "multi_thread")]
async fn n_163_following_goes_on_through_a_rotation_and_misses_nothing() {
    let cluster = Cluster::start().await;
    let pod = cluster.pod("p", &["c"], "2026-01-02T03:04:05Z stdout F a\n").await;
    let log = cluster.log(&pod, "c");
    let writer = Writer {
        runtime: cluster.runtime.clone(),
        pod: pod.metadata.uid.clone().unwrap(),
        container_id: "c-id".into(),
    };
    let (pieces, mut read) = mpsc::channel::<Bytes>(4);
    let path = log.clone();
    let query = Query { follow: true, ..Query::default() };
    let following = tokio::spawn(async move { logs::read(&path, &query, &writer, &pieces).await });
    assert_eq!(next(&mut read).await.as_deref(), Some("a\n"));
    let rotation = Rotation { max_bytes: 1, max_files: 3, ..Rotation::default() };
    let runtime: Arc<dyn runtime::Runtime> = cluster.runtime.clone();
    append(&log, "2026-01-02T03:04:06Z stdout F b\n");
    logs::rotate_all(&runtime, rotation).await;
    append(&log, "2026-01-02T03:04:07Z stdout F c\n");
    let mut shown = String::new();
    while !shown.ends_with("c\n") {
        shown.push_str(&next(&mut read).await.unwrap());
    }
    assert_eq!(shown, "b\nc\n");
    let files = std::fs::read_dir(log.parent().unwrap()).unwrap().count();
    assert_eq!(files, 2, "the file and the one that was renamed");
    cluster.runtime.end("c");
    assert_eq!(next(&mut read).await, None);
    following.await.unwrap().unwrap();
}

async fn next(read: &mut mpsc::Receiver<Bytes>) -> Option<String> {
    let piece = tokio::time::timeout(PATIENCE, read.recv()).await.expect("a piece in time");
    piece.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
}
