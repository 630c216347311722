//! Logs with kubectl, and following a log through rotations.

use crate::cluster::{Cluster, TIMEOUT};
use bytes::Bytes;
use endpoint::logs::{self, Query, Rotation, Writer};
use serde_json::json;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use tokio::sync::mpsc;

const LINES: &str = "2026-01-02T03:04:05.1Z stdout F one\n\
                     2026-01-02T03:04:06.2Z stderr F two\n\
                     2026-01-02T03:04:07.3Z stdout P thr\n\
                     2026-01-02T03:04:07.4Z stdout F ee\n";

fn append(path: &Path, text: &str) {
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn n_162_a_242_options_of_kubectl_logs_select_what_is_returned() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], LINES).await;
    cluster.pod("two", &["a", "b"], "2026-01-02T03:04:05Z stdout F mine\n").await;
    for kubectl in cluster.kubectls() {
        assert_eq!(kubectl.ok("kubectl logs p"), "one\ntwo\nthree\n");
        assert_eq!(kubectl.ok("kubectl logs p --tail=2"), "three\n");
        assert_eq!(kubectl.ok("kubectl logs p --tail=0"), "");
        assert_eq!(
            kubectl.ok("kubectl logs p --since-time=2026-01-02T03:04:06Z --tail=3"),
            "two\nthree\n"
        );
        assert_eq!(kubectl.ok("kubectl logs p --limit-bytes=5"), "one\nt");
        assert_eq!(
            kubectl.ok("kubectl logs p --timestamps --tail=3"),
            "2026-01-02T03:04:06.200000000Z two\n2026-01-02T03:04:07.300000000Z three\n"
        );
        assert_eq!(kubectl.ok("kubectl logs p --since=1h"), "");
        assert_eq!(kubectl.ok("kubectl logs two -c b"), "mine\n");
        let output = kubectl.ok("kubectl logs two --all-containers --prefix");
        assert!(output.contains("/b] mine"), "{output}");
        let raw = "kubectl get --raw /api/v1/namespaces/default/pods";
        let choose = "a container name must be specified for pod two, choose one of: [a b]";
        kubectl.fails(&format!("{raw}/two/log"), choose);
        kubectl.fails(
            "kubectl logs p -p",
            "previous terminated container \"c\" in pod \"p\" not found",
        );
        let invalid = "PodLogOptions \"p\" is invalid: ";
        for (options, why) in [
            ("tailLines=-1", "tailLines: Invalid value: -1: must be greater than or equal to 0"),
            ("limitBytes=0", "limitBytes: Invalid value: 0: must be greater than 0"),
            ("sinceSeconds=0", "sinceSeconds: Invalid value: 0: must be greater than 0"),
        ] {
            kubectl.fails(&format!("{raw}/p/log?{options}"), &format!("{invalid}{why}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn n_161_a_243_the_error_tells_why_there_is_no_log() {
    let cluster = Cluster::start().await;
    let unbound = json!({ "containers": [{ "name": "c", "image": "busybox" }] });
    cluster.pod_of("unbound", unbound, "").await;
    let mut pod = cluster.pod("p", &["c"], "").await;
    let status = pod.status.as_mut().unwrap().container_statuses.as_mut().unwrap();
    let waiting = json!({ "waiting": { "reason": "ContainerCreating" } });
    status[0].state = Some(crate::cluster::parse(waiting));
    cluster.pods.put(Arc::new(pod.clone()));
    for kubectl in cluster.kubectls() {
        assert_eq!(kubectl.ok("kubectl logs unbound"), "");
        let waiting = "container \"c\" in pod \"p\" is waiting to start: ContainerCreating";
        kubectl.fails("kubectl logs p", waiting);
    }
    cluster.pods.remove(pod.metadata.uid.as_deref().unwrap());
    for kubectl in cluster.kubectls() {
        let gone = "the server could not find the requested resource ( pods/log p)";
        kubectl.fails("kubectl logs p", gone);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn n_163_kubectl_logs_follows_until_the_container_ends() {
    for installed in testbed::installed_kubectls() {
        let cluster = Cluster::start().await;
        let pod = cluster.pod("p", &["c"], LINES).await;
        let kubectl = cluster.kubectl(&installed);
        let mut following = kubectl.spawn("exec kubectl logs -f p --tail=1");
        assert_eq!(following.next(TIMEOUT).as_deref(), Ok("ee"));
        append(&cluster.log(&pod, "c"), "2026-01-02T03:04:08Z stdout F more\n");
        assert_eq!(following.next(TIMEOUT).as_deref(), Ok("more"));
        append(&cluster.log(&pod, "c"), "2026-01-02T03:04:09Z stdout F last\n");
        cluster.runtime.exit("c", 0);
        assert_eq!(following.next(TIMEOUT).as_deref(), Ok("last"));
        assert_eq!(following.next(TIMEOUT), Err(RecvTimeoutError::Disconnected));
        assert_eq!(following.exit(TIMEOUT), Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn n_159_n_163_following_continues_through_a_rotation_without_loss() {
    let cluster = Cluster::start().await;
    let pod = cluster.pod("p", &["c"], "2026-01-02T03:04:05Z stdout F a\n").await;
    let log = cluster.log(&pod, "c");
    let writer = Writer {
        runtime: cluster.runtime.clone(),
        pod: pod.metadata.uid.clone().unwrap(),
        container_id: "c-id".into(),
    };
    let (chunks, mut read) = mpsc::channel::<Bytes>(4);
    let path = log.clone();
    let query = Query { follow: true, ..Query::default() };
    let following = tokio::spawn(async move { logs::read(&path, &query, &writer, &chunks).await });
    assert_eq!(next(&mut read).await.as_deref(), Some("a\n"));
    let rotation = Rotation { max_bytes: 1, max_files: 3, ..Rotation::default() };
    let runtime: Arc<dyn runtime::Runtime> = cluster.runtime.clone();
    append(&log, "2026-01-02T03:04:06Z stdout F b\n");
    logs::rotate_all(&runtime, rotation).await;
    append(&log, "2026-01-02T03:04:07Z stdout F c\n");
    let mut output = String::new();
    while !output.ends_with("c\n") {
        output.push_str(&next(&mut read).await.unwrap());
    }
    assert_eq!(output, "b\nc\n");
    let files = std::fs::read_dir(log.parent().unwrap()).unwrap().count();
    assert_eq!(files, 2, "the current file and the renamed one");
    cluster.runtime.exit("c", 0);
    assert_eq!(next(&mut read).await, None);
    following.await.unwrap().unwrap();
}

/// N-159, N-163: the log of a fast writer is rotated several times before the reader reads again.
#[tokio::test(flavor = "multi_thread")]
async fn n_163_following_continues_through_several_rotations_at_once() {
    let cluster = Cluster::start().await;
    let line = |text: &str| format!("2026-01-02T03:04:05Z stdout F {text}\n");
    let pod = cluster.pod("p", &["c"], &line("0")).await;
    let log = cluster.log(&pod, "c");
    let writer = Writer {
        runtime: cluster.runtime.clone(),
        pod: pod.metadata.uid.clone().unwrap(),
        container_id: "c-id".into(),
    };
    let (chunks, mut read) = mpsc::channel::<Bytes>(1);
    let path = log.clone();
    let query = Query { follow: true, ..Query::default() };
    let following = tokio::spawn(async move { logs::read(&path, &query, &writer, &chunks).await });
    // The channel is full, so that the reader waits before the next line.
    let full = async {
        while read.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, full).await.expect("a chunk in time");
    append(&log, &line("0, the end"));
    for number in 1..=3 {
        let renamed = log.with_file_name(format!("0.log.20260102-030405.00000000{number}"));
        std::fs::rename(&log, renamed).unwrap();
        std::fs::write(&log, line(&number.to_string())).unwrap();
    }
    let mut output = String::new();
    while !output.ends_with("3\n") {
        output.push_str(&next(&mut read).await.unwrap());
    }
    cluster.runtime.exit("c", 0);
    assert_eq!(next(&mut read).await, None);
    assert_eq!(output, "0\n0, the end\n1\n2\n3\n");
    following.await.unwrap().unwrap();
}

async fn next(read: &mut mpsc::Receiver<Bytes>) -> Option<String> {
    let chunk = tokio::time::timeout(TIMEOUT, read.recv()).await.expect("a chunk in time");
    chunk.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
}
