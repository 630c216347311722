//! A cluster with a node for one test, its pods, and a watch of them.

use super::witness::{LONG, Place, now};
use crate::harness::{Background, Cluster, Kubectl, down};
use crate::kernel_state::KernelState;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) struct Node {
    pub(crate) kubectl: Kubectl,
    pub(crate) place: Place,
    pub(crate) cluster: Cluster,
    kernel: KernelState,
}

/// Runs a test on a cluster with a node and these images, then ends the cluster and checks that nothing is left.
pub(crate) fn on_a_node(images: &[&str], args: &[&str], test: impl FnOnce(&Node)) {
    let node = Node::start(images, args);
    test(&node);
    node.end();
}

impl Node {
    pub(crate) fn start(images: &[&str], args: &[&str]) -> Node {
        let kernel = KernelState::capture();
        let cluster = Cluster::with_node(images, args);
        let place = Place::new(cluster.dir().join("out"));
        Node { kubectl: cluster.kubectl(), place, cluster, kernel }
    }

    pub(crate) fn end(self) {
        self.kubectl.ok("kubectl delete pods --all --all-namespaces --grace-period=1");
        down(&self.cluster.data_dir());
        self.kernel.assert_unchanged(&self.cluster.data_dir());
    }

    /// Kills landfall with SIGKILL and starts it again on the same data.
    pub(crate) fn restart(self, args: &[&str]) -> Node {
        let Node { cluster, place, kernel, .. } = self;
        let cluster = Cluster::with_node_in(cluster.kill(), args);
        Node { kubectl: cluster.kubectl(), place, cluster, kernel }
    }

    /// Creates objects; returns the output of kubectl.
    pub(crate) fn create(&self, objects: &[Value]) -> String {
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let output = self.kubectl.run(&format!("kubectl create -f - <<'EOF'\n{list}\nEOF"));
        assert_eq!(output.code, 0, "{output}");
        output.stderr
    }

    /// Creates pods and waits until every witness in them has reported its start.
    pub(crate) fn run(&self, pods: &[Value], witnesses: &[&str]) {
        self.create(pods);
        for witness in witnesses {
            self.place.at(witness, "start");
        }
    }

    pub(crate) fn delete(&self, words: &str) {
        self.kubectl.ok(&format!("kubectl delete pod --wait=false {words}"));
    }

    /// The value at this JSON path of a pod.
    pub(crate) fn get(&self, pod: &str, path: &str) -> String {
        self.kubectl.ok(&format!("kubectl get pod {pod} -o jsonpath='{path}'"))
    }

    /// The termination record of a pod.
    pub(crate) fn record(&self, pod: &str) -> Value {
        let all: Value =
            serde_json::from_str(&self.kubectl.ok("kubectl get terminations -o json")).unwrap();
        let mut all = all["items"].as_array().unwrap().iter();
        all.find(|one| one["pod"]["name"] == pod).expect("it is recorded").clone()
    }

    /// Watches all pods from now on.
    pub(crate) fn watch(&self) -> Watch {
        let list: Value = serde_json::from_str(&self.kubectl.ok("kubectl get --raw /api/v1/pods"))
            .expect("a list of pods");
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        Watch::start(self.kubectl.spawn(&format!(
            "exec kubectl get --raw '/api/v1/pods?watch=1&resourceVersion={version}'"
        )))
    }
}

/// The events of a watch of pods, with the time of their arrival as `seen`.
pub(crate) struct Watch {
    seen: Arc<(Mutex<Vec<Value>>, Condvar)>,
    over: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

/// How long the reader waits for a line before it checks whether it should stop.
const TURN: Duration = Duration::from_millis(100);

impl Watch {
    fn start(process: Background) -> Watch {
        let (seen, over) = (Arc::<(Mutex<Vec<Value>>, Condvar)>::default(), Arc::default());
        let (told, stop) = (seen.clone(), Arc::<AtomicBool>::clone(&over));
        let reader = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match process.next(TURN) {
                    Ok(line) => {
                        let mut event: Value = serde_json::from_str(&line).expect("an event");
                        event["seen"] = now().into();
                        told.0.lock().unwrap().push(event);
                        told.1.notify_all();
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        });
        Watch { seen, over, reader: Some(reader) }
    }

    /// All events of a pod up to its removal.
    #[track_caller]
    pub(crate) fn until_deleted(&self, pod: &str) -> Vec<Value> {
        self.until(pod, |event| event["type"] == "DELETED")
    }

    /// All events of a pod up to the first one that matches.
    #[track_caller]
    pub(crate) fn until(&self, pod: &str, last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let of_pod = |event: &&Value| event["object"]["metadata"]["name"] == pod;
        let there = |seen: &Vec<Value>| seen.iter().filter(of_pod).any(&last);
        let seen = self.seen.0.lock().unwrap();
        let (seen, _) = self.seen.1.wait_timeout_while(seen, LONG, |seen| !there(seen)).unwrap();
        assert!(there(&seen), "{pod}: not seen in {:#?}", seen.last());
        let mut all: Vec<Value> = seen.iter().filter(of_pod).cloned().collect();
        let end = all.iter().position(&last).expect("it is there");
        all.truncate(end + 1);
        all
    }

    /// The last state of a container before its pod was removed.
    #[track_caller]
    pub(crate) fn end_of(&self, pod: &str, container: &str) -> Value {
        let events = self.until_deleted(pod);
        let object = &events.last().expect("there is one")["object"];
        state_of(object, container)["terminated"].clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.reader.take().map(JoinHandle::join);
    }
}

/// The state of a container, sidecar or not.
pub(crate) fn state_of(pod: &Value, container: &str) -> Value {
    let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let all = lists.iter().filter_map(|list| pod["status"][list].as_array()).flatten();
    let mut all = all.filter(|status| status["name"] == container);
    all.next().map(|status| status["state"].clone()).unwrap_or_default()
}
