//! kube-rs: typed and dynamic objects, its watcher and its waits.

use crate::harness::Cluster;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use kube::api::{
    Api, DeleteParams, DynamicObject, EvictParams, ListParams, Patch, PatchParams, PostParams,
    Preconditions, WatchEvent, WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::discovery::{Discovery, Scope};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::watcher;
use kube::{Client, Config, Error, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

const NS: &str = "rust";
const SOON: Duration = Duration::from_secs(30);

/// Runs a test with a client of a new cluster that has a namespace and a node that exists only as an object.
fn with_cluster<F: Future<Output = ()>>(test: impl FnOnce(Client) -> F) {
    let cluster = Cluster::start(&[]);
    // Another test of this process may have installed it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).expect("a kubeconfig");
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options);
        let config = config.await.expect("it has all a client needs");
        let client = Client::try_from(config).expect("a client");
        let pp = PostParams::default();
        let namespace: Namespace = object(json!({"metadata": {"name": NS}}));
        Api::all(client.clone()).create(&pp, &namespace).await.expect("a namespace");
        let node: Node = object(json!({"metadata": {"name": "nowhere"}}));
        Api::all(client.clone()).create(&pp, &node).await.expect("a node");
        let bound = tokio::time::timeout(SOON * 2, test(client));
        bound.await.expect("the story comes to an end");
    });
    cluster.stop();
}

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("the types know it")
}

fn pod(name: &str) -> Pod {
    object(json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "nginx"}]},
    }))
}

fn deployment(name: &str) -> Deployment {
    object(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "nginx"}]},
            },
        },
    }))
}

async fn bind(pods: &Api<Pod>, name: &str) {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "nowhere"},
    });
    let done: Value = pods
        .create_subresource("binding", name, &PostParams::default(), &binding)
        .await
        .expect("the pod is bound");
    assert_eq!(done["status"], "Success");
}

/// kube-rs supports JSON patches only with another feature.
async fn json_patch(
    client: &Client,
    api: &Api<Deployment>,
    patch: Value,
) -> kube::Result<Deployment> {
    let request = http::Request::patch(format!("{}/d", api.resource_url()))
        .header("Content-Type", "application/json-patch+json")
        .body(serde_json::to_vec(&patch).expect("it is JSON"));
    client.request(request.expect("a request")).await
}

/// The code, reason and message of an error.
#[track_caller]
fn error_of<T: std::fmt::Debug>(result: kube::Result<T>) -> (u16, String, String) {
    match result {
        Err(Error::Api(status)) => (status.code, status.reason.clone(), status.message.clone()),
        other => panic!("should be refused: {other:?}"),
    }
}

#[test]
fn objects_are_created_read_listed_and_replaced() {
    with_cluster(|client| async move {
        let maps: Api<ConfigMap> = Api::namespaced(client, NS);
        let pp = PostParams::default();
        for name in ["a", "b", "c"] {
            let map = object(
                json!({"metadata": {"name": name, "labels": {"of": "us"}}, "data": {"k": name}}),
            );
            maps.create(&pp, &map).await.expect("created");
        }
        let ours = ListParams::default().labels("of=us");
        let names = |list: &kube::api::ObjectList<ConfigMap>| -> Vec<String> {
            list.iter().map(ResourceExt::name_any).collect()
        };
        assert_eq!(names(&maps.list(&ours).await.expect("listed")), ["a", "b", "c"]);
        let page = maps.list(&ours.clone().limit(2)).await.expect("a page");
        let token = page.metadata.continue_.clone().expect("there is more");
        let rest =
            maps.list(&ours.clone().limit(2).continue_token(&token)).await.expect("the rest");
        assert_eq!((names(&page).len(), names(&rest)), (2, vec!["c".to_owned()]));
        let meta = maps.get_metadata("a").await.expect("only metadata");
        assert_eq!(meta.metadata.name.as_deref(), Some("a"));

        let mut map = maps.get("a").await.expect("read");
        let old = map.clone();
        map.data.get_or_insert_default().insert("k".into(), "new".into());
        maps.replace("a", &pp, &map).await.expect("replaced");
        let (code, reason, message) = error_of(maps.replace("a", &pp, &old).await);
        assert_eq!((code, reason.as_str()), (409, "Conflict"), "{message}");
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let made = object(json!({"metadata": {"name": "dry"}}));
        maps.create(&dry, &made).await.expect("it would work");
        assert!(maps.get_opt("dry").await.expect("asked").is_none());
        maps.delete_collection(&DeleteParams::default(), &ours).await.expect("deleted");
        assert!(maps.list(&ours).await.expect("listed").items.is_empty());
    });
}

#[test]
fn patches_of_every_kind_and_scale_work() {
    with_cluster(|client| async move {
        let api: Api<Deployment> = Api::namespaced(client.clone(), NS);
        api.create(&PostParams::default(), &deployment("d")).await.expect("created");
        let names = |d: &Deployment| -> Vec<String> {
            let spec = d.spec.clone().and_then(|spec| spec.template.spec);
            spec.map_or_else(Vec::new, |spec| spec.containers.into_iter().map(|c| c.name).collect())
        };
        let pp = PatchParams::default();
        let side = json!({"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "x"}]}}}});
        let got = api.patch("d", &pp, &Patch::Strategic(&side)).await.expect("strategic");
        assert_eq!(names(&got), ["side", "c"]);
        let got = api.patch("d", &pp, &Patch::Merge(&side)).await.expect("merge");
        assert_eq!(names(&got), ["side"]);
        let more = json!([{"op": "replace", "path": "/spec/replicas", "value": 4}]);
        let got = json_patch(&client, &api, more).await.expect("JSON");
        assert_eq!(got.spec.and_then(|spec| spec.replicas), Some(4));
        let unmet = json!([{"op": "test", "path": "/spec/replicas", "value": 5}]);
        let (code, reason, _) = error_of(json_patch(&client, &api, unmet).await);
        assert_eq!((code, reason.as_str()), (422, "Invalid"));
        let applied =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 7}});
        let apply = PatchParams::apply("rust");
        let (code, reason, message) =
            error_of(api.patch("d", &apply, &Patch::Apply(&applied)).await);
        assert_eq!((code, reason.as_str()), (409, "Conflict"), "{message}");
        let got =
            api.patch("d", &apply.clone().force(), &Patch::Apply(&applied)).await.expect("apply");
        assert_eq!(got.spec.and_then(|spec| spec.replicas), Some(7));
        assert_eq!(api.get_scale("d").await.expect("scale").spec.and_then(|s| s.replicas), Some(7));
        let scale = json!({"spec": {"replicas": 1}});
        api.patch_scale("d", &pp, &Patch::Merge(&scale)).await.expect("scaled");
        assert_eq!(api.get("d").await.expect("read").spec.and_then(|spec| spec.replicas), Some(1));
        let status = json!({"status": {"replicas": 1, "observedGeneration": 1}});
        let got = api.patch_status("d", &pp, &Patch::Merge(&status)).await.expect("status");
        assert_eq!(got.status.and_then(|status| status.replicas), Some(1));
    });
}

#[test]
fn pods_are_deleted_gracefully_with_a_shorter_grace_period_and_by_force() {
    with_cluster(|client| async move {
        let pods: Api<Pod> = Api::namespaced(client, NS);
        let pp = PostParams::default();
        let made = pods.create(&pp, &pod("p")).await.expect("created");
        bind(&pods, "p").await;
        let grace = |pod: &Pod| pod.metadata.deletion_grace_period_seconds;
        let with = |secs| DeleteParams::default().grace_period(secs);
        for (ask, granted) in [(DeleteParams::default(), 30), (with(40), 30), (with(5), 5)] {
            let going = pods.delete("p", &ask).await.expect("accepted").left().expect("the pod");
            assert_eq!(grace(&going), Some(granted));
            assert!(going.metadata.deletion_timestamp.is_some());
        }
        let other = Preconditions { uid: Some("other".into()), ..Preconditions::default() };
        let (code, reason, _) = error_of(pods.delete("p", &with(0).preconditions(other)).await);
        assert_eq!((code, reason.as_str()), (409, "Conflict"));
        let uid = made.uid().expect("it has one");
        let gone = await_condition(pods.clone(), "p", conditions::is_deleted(&uid));
        let at_once = with(0);
        let (gone, _) = tokio::join!(gone, pods.delete("p", &at_once));
        gone.expect("the wait ends when it is gone");

        pods.create(&pp, &pod("evicted")).await.expect("created");
        bind(&pods, "evicted").await;
        pods.evict("evicted", &EvictParams::default()).await.expect("evicted");
        let evicted = pods.get("evicted").await.expect("still there");
        assert_eq!(grace(&evicted), Some(30));
    });
}

#[test]
fn owners_wait_for_their_dependents_or_orphan_them() {
    with_cluster(|client| async move {
        let api: Api<Deployment> = Api::namespaced(client, NS);
        for (dp, finalizer) in
            [(DeleteParams::foreground(), "foregroundDeletion"), (DeleteParams::orphan(), "orphan")]
        {
            let name = finalizer.to_lowercase();
            api.create(&PostParams::default(), &deployment(&name)).await.expect("created");
            let going = api.delete(&name, &dp).await.expect("accepted").left().expect("kept");
            assert_eq!(going.finalizers(), [finalizer]);
            assert!(going.metadata.deletion_timestamp.is_some());
        }
        api.create(&PostParams::default(), &deployment("d")).await.expect("created");
        let gone = api.delete("d", &DeleteParams::background()).await.expect("accepted");
        let gone = gone.right().expect("a status says that it is gone");
        assert!(gone.is_success());
    });
}

#[test]
fn errors_have_code_reason_and_message() {
    with_cluster(|client| async move {
        let pods: Api<Pod> = Api::namespaced(client.clone(), NS);
        let pp = PostParams::default();
        pods.create(&pp, &pod("p")).await.expect("created");
        let (code, reason, message) = error_of(pods.get("nope").await);
        assert_eq!(
            (code, reason.as_str(), message.as_str()),
            (404, "NotFound", r#"pods "nope" not found"#)
        );
        let (code, reason, message) = error_of(pods.create(&pp, &pod("p")).await);
        assert_eq!(
            (code, reason.as_str(), message.as_str()),
            (409, "AlreadyExists", r#"pods "p" already exists"#)
        );
        match pods.create(&pp, &pod("Bad_Name")).await {
            Err(Error::Api(status)) => {
                assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
                let details = status.details.expect("details");
                assert_eq!(details.causes[0].field, "metadata.name");
            }
            other => panic!("should be invalid: {other:?}"),
        }
        let elsewhere: Api<Pod> = Api::namespaced(client, "no-such");
        let (code, _, message) = error_of(elsewhere.create(&pp, &pod("p")).await);
        assert_eq!((code, message.as_str()), (404, r#"namespaces "no-such" not found"#));
    });
}

#[test]
fn a_plain_watch_sees_each_event_once_and_in_order() {
    with_cluster(|client| async move {
        let maps: Api<ConfigMap> = Api::namespaced(client, NS);
        let start = maps.list(&ListParams::default()).await.expect("listed");
        let version = start.metadata.resource_version.expect("a list has one");
        let pp = PostParams::default();
        maps.create(&pp, &object(json!({"metadata": {"name": "c"}}))).await.expect("created");
        let change = json!({"data": {"a": "b"}});
        maps.patch("c", &PatchParams::default(), &Patch::Merge(&change)).await.expect("patched");
        maps.delete("c", &DeleteParams::default()).await.expect("deleted");
        let wp = WatchParams::default();
        let mut events = pin!(maps.watch(&wp, &version).await.expect("a watch"));
        let mut seen = Vec::new();
        while seen.len() < 3 {
            match events.try_next().await.expect("an event").expect("the watch goes on") {
                WatchEvent::Added(_) => seen.push("added"),
                WatchEvent::Modified(_) => seen.push("modified"),
                WatchEvent::Deleted(_) => seen.push("deleted"),
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(error) => panic!("{error:?}"),
            }
        }
        assert_eq!(seen, ["added", "modified", "deleted"]);
    });
}

#[test]
fn the_watcher_starts_with_existing_objects_by_list_and_by_stream() {
    with_cluster(|client| async move {
        let maps: Api<ConfigMap> = Api::namespaced(client, NS);
        let pp = PostParams::default();
        let map =
            |name: String| object(json!({"metadata": {"name": name, "labels": {"of": "us"}}}));
        maps.create(&pp, &map("there".into())).await.expect("created");
        let plain = watcher::Config::default().labels("of=us");
        for (i, config) in [plain.clone(), plain.streaming_lists()].into_iter().enumerate() {
            let mut events = pin!(watcher(maps.clone(), config));
            let mut first = Vec::new();
            loop {
                match events.next().await.expect("it never ends").expect("an event") {
                    watcher::Event::InitApply(map) => first.push(map.name_any()),
                    watcher::Event::InitDone => break,
                    _ => {}
                }
            }
            assert_eq!(first, ["there"]);
            let name = format!("new-{i}");
            maps.create(&pp, &map(name.clone())).await.expect("created");
            let event = events.next().await.expect("it never ends").expect("an event");
            assert!(
                matches!(&event, watcher::Event::Apply(map) if map.name_any() == name),
                "{event:?}"
            );
            maps.delete(&name, &DeleteParams::default()).await.expect("deleted");
            let event = events.next().await.expect("it never ends").expect("an event");
            assert!(
                matches!(&event, watcher::Event::Delete(map) if map.name_any() == name),
                "{event:?}"
            );
        }
    });
}

#[test]
fn everything_that_discovery_names_can_be_listed() {
    with_cluster(|client| async move {
        let discovery = Discovery::new(client.clone()).run().await.expect("discovered");
        let mut kinds = 0;
        for group in discovery.groups() {
            for (resource, capabilities) in group.recommended_resources() {
                if !capabilities.supports_operation(kube::discovery::verbs::LIST) {
                    continue;
                }
                let api: Api<DynamicObject> = match capabilities.scope {
                    Scope::Cluster | Scope::Namespaced => Api::all_with(client.clone(), &resource),
                };
                let listed = api.list(&ListParams::default().limit(1)).await;
                listed.unwrap_or_else(|error| panic!("{}: {error}", resource.plural));
                kinds += 1;
            }
        }
        assert!(kinds > 50, "only {kinds} kinds");
    });
}
