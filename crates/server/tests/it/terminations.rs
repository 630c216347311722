//! Termination records: requests, posted steps, access and expiry (T-EDGE-7, T-EDGE-13).

use crate::cluster::{self, Client, Cluster, PODS, pod};
use serde_json::{Value, json};
use server::authn::User;
use std::time::Duration;

const RECORDS: &str = "/apis/landfall.dev/v1/namespaces/default/terminations";

/// The name of the record of a pod.
fn name(pod: &Value) -> String {
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    format!("{}.{}", pod["metadata"]["name"].as_str().unwrap(), &uid[..8])
}

async fn record(cluster: &Cluster, pod: &Value) -> Value {
    cluster.read(&format!("{RECORDS}/{}", name(pod))).await
}

fn whats(record: &Value) -> Vec<&str> {
    record["steps"].as_array().unwrap().iter().map(|step| step["what"].as_str().unwrap()).collect()
}

fn step(actor: &str, sequence: i64, what: Value) -> Value {
    let mut step = json!({"at": "2026-01-02T03:04:05.000006Z", "monotonic": 1, "actor": actor,
                          "incarnation": "a", "sequence": sequence});
    step.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
    step
}

fn steps(pod: &Value, steps: &[Value]) -> Value {
    let (name, uid) = (&pod["metadata"]["name"], &pod["metadata"]["uid"]);
    json!({"apiVersion": "landfall.dev/v1", "kind": "TerminationSteps",
           "pod": {"name": name, "uid": uid}, "steps": steps})
}

async fn post_steps(client: &Client, pod: &Value, posts: &[Value]) -> cluster::Reply {
    client.post(&format!("{RECORDS}/{}/steps", name(pod)), steps(pod, posts)).await
}

fn stopped() -> Value {
    step("node/n1", 1, json!({"what": "SandboxStopped"}))
}

#[tokio::test]
async fn a_record_names_the_requester_its_client_and_the_grace_period() {
    let cluster = Cluster::start().await;
    let mut web = pod("web");
    web["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet",
        "name": "web", "uid": "1", "controller": true}]);
    let web = cluster.bound(web).await;
    let agent = [("user-agent", "kubectl/v1.36.4"), ("content-type", "application/json")];
    let options = json!({"gracePeriodSeconds": 7}).to_string();
    cluster.send("DELETE", &format!("{PODS}/web"), &agent, options).await.ok();
    let record = record(&cluster, &web).await;
    assert_eq!(record["pod"]["node"], "n1");
    assert_eq!(record["pod"]["owner"], "ReplicaSet/web");
    let request = &record["request"];
    assert_eq!((&request["by"], &request["agent"]), (&json!("admin"), &json!("kubectl/v1.36.4")));
    assert_eq!(request["graceAskedSeconds"], 7);
    assert_eq!(request["graceSeconds"], 7);
    assert_eq!(record["outcome"], "Ending");
    let at = |value: &Value| value.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let patience = at(&request["deadline"]).duration_since(at(&record["started"]));
    assert_eq!(patience.as_secs(), 7);
}

#[tokio::test]
async fn a_record_names_the_owner_of_a_controllers_delete_and_evictions() {
    let cluster = Cluster::start().await;
    let mut owned = pod("owned");
    owned["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet",
        "name": "web", "uid": "1", "controller": true}]);
    let owned = cluster.bound(owned).await;
    let manager = User::authenticated("system:kube-controller-manager", &["system:masters"]);
    cluster.user(manager).delete(&format!("{PODS}/owned")).await.ok();
    assert_eq!(record(&cluster, &owned).await["request"]["through"], "ReplicaSet/web");
    let evicted = cluster.bound(pod("evicted")).await;
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted"}});
    cluster.post(&format!("{PODS}/evicted/eviction"), eviction).await.ok();
    assert_eq!(record(&cluster, &evicted).await["request"]["through"], "eviction");
    let scheduler = User::authenticated("system:kube-scheduler", &["system:masters"]);
    let victim = cluster.bound(pod("victim")).await;
    cluster.user(scheduler).delete(&format!("{PODS}/victim")).await.ok();
    assert_eq!(record(&cluster, &victim).await["request"]["through"], "preemption");
}

#[tokio::test]
async fn only_a_later_delete_with_a_shorter_grace_period_is_a_step() {
    let cluster = Cluster::start().await;
    let web = cluster.bound(pod("web")).await;
    for grace in [20, 25, 5] {
        let options = json!({"gracePeriodSeconds": grace});
        cluster.delete_with(&format!("{PODS}/web"), options).await.ok();
    }
    let record = record(&cluster, &web).await;
    assert_eq!(whats(&record), ["Requested", "Shortened"]);
    assert_eq!(record["request"]["graceSeconds"], 5);
}

/// T-EDGE-13, W-56: a forced deletion is recorded as unsafe by request.
#[tokio::test]
async fn a_forced_removal_is_unsafe_by_request_until_the_node_has_confirmed() {
    let cluster = Cluster::start().await;
    let web = cluster.bound(pod("web")).await;
    cluster.delete_with(&format!("{PODS}/web"), json!({"gracePeriodSeconds": 0})).await.ok();
    let forced = record(&cluster, &web).await;
    assert_eq!(whats(&forced), ["Requested", "UnsafeByRequest", "Removed"]);
    assert_eq!((&forced["outcome"], &forced["confirmed"]), (&json!("Forced"), &json!(false)));
    assert!(forced["ended"].is_null(), "the end is not confirmed");
    assert_eq!(forced["summary"], "unsafe by request of admin: may still run");
    post_steps(&cluster.node("n1"), &web, &[stopped()]).await.ok();
    let confirmed = record(&cluster, &web).await;
    assert_eq!((&confirmed["outcome"], &confirmed["confirmed"]), (&json!("Forced"), &json!(true)));
    assert!(confirmed["ended"].is_string());
}

#[tokio::test]
async fn a_removal_by_the_node_or_after_its_confirmation_is_not_forced() {
    let cluster = Cluster::start().await;
    let node = cluster.node("n1");
    let web = cluster.bound(pod("web")).await;
    cluster.delete(&format!("{PODS}/web")).await.ok();
    node.delete_with(&format!("{PODS}/web"), json!({"gracePeriodSeconds": 0})).await.ok();
    let removed = record(&cluster, &web).await;
    assert_eq!(whats(&removed), ["Requested", "Removed"]);
    assert_eq!(removed["outcome"], "Clean");
    // Its node has reported that nothing runs: removing the pod now is not a forced removal.
    let done = cluster.bound(pod("done")).await;
    post_steps(
        &node,
        &done,
        &[
            step("node/n1", 0, json!({"what": "Seen", "reason": "Completed"})),
            stopped(),
            step("node/n1", 2, json!({"what": "StatusWritten"})),
        ],
    )
    .await
    .ok();
    cluster.delete_with(&format!("{PODS}/done"), json!({"gracePeriodSeconds": 0})).await.ok();
    let record = record(&cluster, &done).await;
    assert!(!whats(&record).contains(&"UnsafeByRequest"), "{record}");
    assert_eq!(record["outcome"], "Completed");
}

#[tokio::test]
async fn unscheduled_pods_and_mirror_pods_leave_no_record() {
    let cluster = Cluster::start().await;
    cluster.make(PODS, pod("waiting")).await;
    cluster.delete(&format!("{PODS}/waiting")).await.ok();
    let mut mirror = pod("mirror");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    let node = cluster.node("n1").make("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    mirror["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "n1",
        "uid": node["metadata"]["uid"], "controller": true}]);
    mirror["spec"]["nodeName"] = "n1".into();
    mirror["spec"]["automountServiceAccountToken"] = false.into();
    cluster.node("n1").make(PODS, mirror).await;
    cluster.delete_with(&format!("{PODS}/mirror"), json!({"gracePeriodSeconds": 0})).await.ok();
    cluster.bound(pod("dry")).await;
    cluster.delete(&format!("{PODS}/dry?dryRun=All")).await.ok();
    assert!(cluster.names(RECORDS).await.is_empty());
}

#[tokio::test]
async fn records_cannot_be_written_and_the_error_says_why() {
    let cluster = Cluster::start().await;
    let web = cluster.bound(pod("web")).await;
    cluster.delete(&format!("{PODS}/web")).await.ok();
    let path = format!("{RECORDS}/{}", name(&web));
    let object = cluster.read(&path).await;
    for reply in [
        cluster.post(RECORDS, object.clone()).await,
        cluster.put(&path, &object).await,
        cluster.patch(&path, json!({"outcome": "Clean"})).await,
        cluster.delete(&path).await,
        cluster.delete(RECORDS).await,
    ] {
        let message = reply.refused(405, "MethodNotAllowed");
        assert!(message.contains("terminations.landfall.dev are read-only"), "{message}");
    }
    assert_eq!(cluster.read(&path).await, object);
}

#[tokio::test]
async fn a_repeated_post_adds_no_step() {
    let cluster = Cluster::start().await;
    let web = cluster.bound(pod("web")).await;
    let node = cluster.node("n1");
    let first = [
        step("node/n1", 0, json!({"what": "Seen", "reason": "Deleted"})),
        step(
            "node/n1",
            1,
            json!({"what": "Signal", "container": "c", "signal": "SIGTERM", "target": "process 1"}),
        ),
    ];
    post_steps(&node, &web, &first).await.ok();
    let before = record(&cluster, &web).await;
    post_steps(&node, &web, &first).await.ok();
    assert_eq!(record(&cluster, &web).await, before, "not even a new version");
    let exit = step("node/n1", 2, json!({"what": "Exited", "container": "c", "exitCode": 0}));
    let again = [&first[..], &[exit]].concat();
    post_steps(&node, &web, &again).await.ok();
    assert_eq!(whats(&record(&cluster, &web).await), ["Seen", "Signal", "Exited"]);
}

#[tokio::test]
async fn concurrent_posts_are_all_recorded() {
    let cluster = Cluster::start().await;
    let web = cluster.bound(pod("web")).await;
    let node = cluster.node("n1");
    let posts = (0..20).map(|n| {
        let (node, web) = (node.clone(), web.clone());
        async move {
            post_steps(&node, &web, &[step("node/n1", n, json!({"what": "AgentRestarted"}))])
                .await
                .ok()
        }
    });
    futures::future::join_all(posts).await;
    assert_eq!(record(&cluster, &web).await["steps"].as_array().unwrap().len(), 20);
}

/// A-154, T-API-35: nodes post steps only for their own pods.
#[tokio::test]
async fn callers_post_steps_only_as_themselves_and_nodes_only_for_their_own_pods() {
    let cluster = Cluster::start().await;
    let web = cluster.bound(pod("web")).await;
    let of = |actor: &str| [step(actor, 0, json!({"what": "AgentRestarted"}))];
    let packets = |actor: &str| [step(actor, 0, json!({"what": "RulesCommitted"}))];
    let (own, other) = (cluster.node("n1"), cluster.node("n2"));
    let reply = post_steps(&other, &web, &of("node/n2")).await;
    assert!(
        reply.refused(403, "Forbidden").contains("can only post steps of pods with spec.nodeName")
    );
    let reply = post_steps(&other, &web, &of("node/n1")).await;
    assert!(reply.refused(403, "Forbidden").contains("cannot post steps of \"node/n1\""));
    post_steps(&own, &web, &of("server")).await.refused(403, "Forbidden");
    post_steps(&own, &web, &of("node/n1")).await.ok();
    // Every node's proxy has rules for the pod's packets.
    post_steps(&other, &web, &packets("proxy/n2")).await.ok();
    post_steps(&other, &web, &of("proxy/n2")).await.refused(403, "Forbidden");
    let slices = "system:serviceaccount:kube-system:endpointslice-controller";
    let slices = cluster.user(User::authenticated(slices, &[]));
    let flipped = json!({"what": "EndpointFlipped", "slice": "web-1"});
    post_steps(&slices, &web, &[step("endpointslice-controller", 0, flipped.clone())]).await.ok();
    post_steps(&slices, &web, &[step("node/n1", 9, flipped.clone())])
        .await
        .refused(403, "Forbidden");
    let somebody = cluster.user(User::authenticated("somebody", &[]));
    post_steps(&somebody, &web, &[step("somebody", 0, flipped)]).await.refused(403, "Forbidden");
}

#[tokio::test]
async fn steps_of_an_unknown_pod_are_refused() {
    let cluster = Cluster::start().await;
    let web = cluster.bound(pod("web")).await;
    let node = cluster.node("n1");
    let mut stranger = web.clone();
    stranger["metadata"]["uid"] = "00000000-0000".into();
    post_steps(&node, &stranger, &[stopped()]).await.refused(404, "NotFound");
    let elsewhere = format!("{RECORDS}/another.12345678/steps");
    let reply = node.post(&elsewhere, steps(&web, &[stopped()])).await;
    assert!(reply.refused(400, "BadRequest").contains("is called"));
    let none = post_steps(&node, &web, &[]).await;
    none.refused(400, "BadRequest");
    let odd = post_steps(&node, &web, &[step("node/n1", 0, json!({"what": "Sneezed"}))]).await;
    assert!(odd.refused(400, "BadRequest").contains("Sneezed"));
    assert!(cluster.names(RECORDS).await.is_empty());
}

#[tokio::test]
async fn only_users_with_the_role_view_may_read_records() {
    let cluster = Cluster::start().await;
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    cluster
        .make(
            bindings,
            json!({"metadata": {"name": "v"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "viewer"}]}),
        )
        .await;
    let viewer = cluster.user(User::authenticated("viewer", &[]));
    viewer.get(RECORDS).await.ok();
    viewer.get("/apis/landfall.dev/v1/terminations").await.refused(403, "Forbidden");
    let somebody = cluster.user(User::authenticated("somebody", &[]));
    somebody.get(RECORDS).await.refused(403, "Forbidden");
    cluster.node("n1").get(RECORDS).await.refused(403, "Forbidden");
}

#[tokio::test]
async fn records_outlive_the_pod_and_the_server() {
    let cluster = Cluster::start().await;
    let web = cluster.bound(pod("web")).await;
    cluster.delete(&format!("{PODS}/web")).await.ok();
    post_steps(&cluster.node("n1"), &web, &[stopped()]).await.ok();
    let node = cluster.node("n1");
    node.delete_with(&format!("{PODS}/web"), json!({"gracePeriodSeconds": 0})).await.ok();
    let before = record(&cluster, &web).await;
    let cluster = cluster.restart().await;
    assert_eq!(cluster.get(&format!("{PODS}/web")).await.code, 404);
    assert_eq!(record(&cluster, &web).await, before);
    // A step that arrives late is added.
    let late = step("node/n1", 9, json!({"what": "CgroupGone"}));
    post_steps(&cluster.node("n1"), &web, &[late]).await.ok();
    assert!(whats(&record(&cluster, &web).await).contains(&"CgroupGone"));
}

#[tokio::test]
async fn watchers_see_a_record_grow_and_selectors_find_it() {
    let cluster = Cluster::start().await;
    let mut watch = cluster.watch(RECORDS).await;
    let web = cluster.bound(pod("web")).await;
    cluster.delete(&format!("{PODS}/web")).await.ok();
    post_steps(&cluster.node("n1"), &web, &[stopped()]).await.ok();
    for (kind, steps) in [("ADDED", 1), ("MODIFIED", 2)] {
        let event: Value = serde_json::from_str(&watch.line().await.unwrap()).unwrap();
        assert_eq!(event["type"], kind);
        assert_eq!(event["object"]["steps"].as_array().unwrap().len(), steps);
    }
    let found =
        cluster.names(&format!("{RECORDS}?fieldSelector=pod.name=web,outcome=Ending")).await;
    assert_eq!(found, [name(&web)]);
    assert!(cluster.names(&format!("{RECORDS}?fieldSelector=pod.name=other")).await.is_empty());
}

async fn ends(cluster: &Cluster, pod_name: &str) {
    cluster.bound(pod(pod_name)).await;
    let path = format!("{PODS}/{pod_name}");
    cluster.delete(&path).await.ok();
    let node = cluster.node("n1");
    node.delete_with(&path, json!({"gracePeriodSeconds": 0})).await.ok();
}

async fn until_kept(cluster: &Cluster, wanted: &[&str]) {
    let kept = async {
        loop {
            let names = cluster.names(RECORDS).await;
            let pods: Vec<&str> =
                names.iter().map(|name| name.split('.').next().unwrap()).collect();
            if pods == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(10), kept).await;
    assert!(waited.is_ok(), "{:?} instead of {wanted:?}", cluster.names(RECORDS).await);
}

#[tokio::test]
async fn the_newest_and_the_unfinished_records_are_kept() {
    let cluster = Cluster::start().await;
    cluster.bound(pod("a-slow")).await;
    cluster.delete(&format!("{PODS}/a-slow")).await.ok();
    for name in ["b", "c", "d"] {
        ends(&cluster, name).await;
    }
    cluster.running.keep_terminations(3);
    until_kept(&cluster, &["a-slow", "c", "d"]).await;
    ends(&cluster, "e").await;
    until_kept(&cluster, &["a-slow", "d", "e"]).await;
}

#[tokio::test(start_paused = true)]
async fn records_stay_for_a_day() {
    let cluster = Cluster::on_simulated_time().await;
    ends(&cluster, "web").await;
    tokio::time::sleep(Duration::from_secs(23 * 3600)).await;
    assert_eq!(cluster.names(RECORDS).await.len(), 1);
    tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
    assert!(cluster.names(RECORDS).await.is_empty());
}

#[tokio::test]
async fn records_go_with_their_namespace() {
    let cluster = Cluster::start().await;
    let namespace = "/api/v1/namespaces/gone";
    cluster.make("/api/v1/namespaces", json!({"metadata": {"name": "gone"}})).await;
    cluster.make(&format!("{namespace}/pods"), pod("web")).await;
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web"},
                         "target": {"kind": "Node", "name": "n1"}});
    cluster.post(&format!("{namespace}/pods/web/binding"), binding).await.ok();
    let options = json!({"gracePeriodSeconds": 0});
    cluster.delete_with(&format!("{namespace}/pods/web"), options).await.ok();
    let records = "/apis/landfall.dev/v1/namespaces/gone/terminations";
    assert_eq!(cluster.names(records).await.len(), 1);
    cluster.delete(namespace).await.ok();
    let mut emptied = cluster.read(namespace).await;
    assert_eq!(
        cluster.names(records).await.len(),
        1,
        "records stay while the namespace is terminating"
    );
    emptied["spec"]["finalizers"] = json!([]);
    cluster.put(&format!("{namespace}/finalize"), &emptied).await.ok();
    let gone = async {
        while !cluster.names(records).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), gone).await.is_ok());
}

/// The server crashes after it removed a pod and before it recorded that.
#[tokio::test(start_paused = true)]
async fn a_record_left_open_by_a_crash_is_closed_and_expires() {
    let cluster = Cluster::on_simulated_time().await;
    let web = cluster.bound(pod("web")).await;
    cluster.delete(&format!("{PODS}/web")).await.ok();
    let open = record(&cluster, &web).await;
    assert_eq!((&open["outcome"], whats(&open)), (&json!("Ending"), vec!["Requested"]));
    let node = cluster.node("n1");
    node.delete_with(&format!("{PODS}/web"), json!({"gracePeriodSeconds": 0})).await.ok();
    let version = record(&cluster, &web).await["metadata"]["resourceVersion"].clone();
    let mut stuck = open;
    stuck["metadata"]["resourceVersion"] = version;
    let cluster = cluster.with_stored("landfall.dev/terminations", &[stuck]).await;

    tokio::time::sleep(Duration::from_secs(8 * 60)).await;
    assert_eq!(record(&cluster, &web).await["outcome"], "Ending", "the node may still report");
    tokio::time::sleep(Duration::from_secs(4 * 60)).await;
    let closed = record(&cluster, &web).await;
    assert_eq!(whats(&closed), ["Requested", "Lost", "Removed"]);
    assert_eq!(closed["outcome"], "Lost");
    assert!(closed["ended"].is_string());
    tokio::time::sleep(Duration::from_secs(25 * 3600)).await;
    assert!(cluster.names(RECORDS).await.is_empty());
}

#[tokio::test]
async fn deletes_in_one_namespace_do_not_evict_records_of_another() {
    let cluster = Cluster::start().await;
    ends(&cluster, "kept").await;
    let namespace = "/api/v1/namespaces/churn";
    cluster.make("/api/v1/namespaces", json!({"metadata": {"name": "churn"}})).await;
    cluster.running.keep_terminations(3);
    let records = "/apis/landfall.dev/v1/namespaces/churn/terminations";
    for n in 0..6 {
        let name = format!("p{n}");
        cluster.make(&format!("{namespace}/pods"), pod(&name)).await;
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
                             "target": {"kind": "Node", "name": "n1"}});
        cluster.post(&format!("{namespace}/pods/{name}/binding"), binding).await.ok();
        let options = json!({"gracePeriodSeconds": 0});
        cluster.delete_with(&format!("{namespace}/pods/{name}"), options).await.ok();
    }
    let settled = async {
        while cluster.names(records).await.len() > 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(10), settled).await.is_ok());
    until_kept(&cluster, &["kept"]).await;
}
