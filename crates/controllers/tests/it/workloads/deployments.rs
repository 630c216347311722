//! Deployments, with the ReplicaSets that do their work.

use super::cluster::{Cluster, NAMESPACE, names, template};
use client::Client;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Event, Pod, ResourceQuota};
use kube::client::Body;
use serde_json::{Value, json};
use server::InProcessService;
use tower::{BoxError, Service as _};

fn deployment(replicas: i32, more: Value) -> Value {
    let mut spec = json!({
        "replicas": replicas,
        "selector": { "matchLabels": { "app": "web" } },
        "template": template("web", "one"),
    });
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({ "metadata": { "namespace": NAMESPACE, "name": "web" }, "spec": spec })
}

fn image(image: &str) -> Value {
    json!({ "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": image }] } } } })
}

fn reason(deployment: &Deployment, type_: &str) -> Option<String> {
    let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)?.reason.clone()
}

fn is_done(deployment: &Deployment) -> bool {
    let status = deployment.status.clone().unwrap_or_default();
    let wanted = deployment.spec.as_ref().unwrap().replicas;
    status.observed_generation == deployment.metadata.generation
        && [status.replicas, status.updated_replicas, status.available_replicas]
            .iter()
            .all(|count| *count == wanted)
}

fn revision(set: &ReplicaSet) -> &str {
    &set.metadata.annotations.as_ref().unwrap()["deployment.kubernetes.io/revision"]
}

/// Acts as the node until the rollout is complete. Returns the largest number of pods and the smallest number of ready ones.
async fn roll(cluster: &Cluster) -> (usize, usize) {
    let (mut most, mut fewest) = (0, usize::MAX);
    for _ in 0..500 {
        let pods = cluster.all::<Pod>().await;
        let living: Vec<&Pod> =
            pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
        let ready = |pod: &&&Pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            let mut conditions = conditions.into_iter().flatten();
            conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        most = most.max(living.len());
        fewest = fewest.min(living.iter().filter(ready).count());
        if let Some(pod) = living.iter().find(|pod| !ready(pod)) {
            cluster.bind(pod).await;
            cluster.runs(pod, true).await;
        }
        cluster.clear().await;
        if is_done(&cluster.get::<Deployment>("web").await) {
            return (most, fewest);
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("the rollout does not end: {:#?}", cluster.get::<Deployment>("web").await);
}

/// Stopping the cluster checks that no request was forbidden.
#[tokio::test(start_paused = true)]
async fn c_197_each_controller_acts_under_its_own_service_account() {
    let cluster = Cluster::start().await;
    cluster.create::<Deployment>(deployment(1, json!({}))).await;
    roll(&cluster).await;
    for (verb, resource, account) in [
        ("create", "replicasets", "deployment-controller"),
        ("create", "pods", "replicaset-controller"),
    ] {
        let (user, agent) = cluster.sender_of(verb, resource).unwrap();
        assert_eq!(user, format!("system:serviceaccount:kube-system:{account}"));
        let shown = agent.starts_with("kube-controller-manager/") && agent.ends_with(&user);
        assert!(shown, "{agent}");
    }
    let sets = cluster.all::<ReplicaSet>().await;
    let manager = &sets[0].metadata.managed_fields.as_ref().unwrap()[0].manager;
    assert_eq!(manager.as_deref(), Some("kube-controller-manager"));
    cluster.stop().await;
}

/// C-212: otherwise the observed generation would never reach the current one.
#[tokio::test(start_paused = true)]
async fn c_29_c_41_c_43_a_deployment_starts_and_rolls_within_its_limits() {
    let cluster = Cluster::start().await;
    cluster.create::<Deployment>(deployment(3, json!({}))).await;
    roll(&cluster).await;
    let web = cluster
        .when::<Deployment>("web", |web| {
            reason(web, "Progressing").as_deref() == Some("NewReplicaSetAvailable")
        })
        .await;
    assert_eq!(reason(&web, "Available").as_deref(), Some("MinimumReplicasAvailable"));
    assert_eq!(web.metadata.generation, Some(1), "C-32: the revision raises no generation");
    assert_eq!(web.status.unwrap().terminating_replicas, Some(0));
    let message = cluster.event("ScalingReplicaSet").await;
    assert!(
        message.ends_with("from 0 to 3") && message.starts_with("Scaled up replica set web-"),
        "{message}"
    );

    cluster.patch::<Deployment>("web", image("two")).await;
    cluster.when_all::<ReplicaSet>(|sets| sets.len() == 2).await;
    let (most, fewest) = roll(&cluster).await;
    assert!(most <= 4, "{most} pods lived at once");
    assert!(fewest >= 3, "only {fewest} were ready");
    let sets = cluster.all::<ReplicaSet>().await;
    let mut revisions: Vec<&str> = sets.iter().map(revision).collect();
    revisions.sort();
    assert_eq!(revisions, ["1", "2"]);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_33_a_rollback_uses_the_old_set_again() {
    let cluster = Cluster::start().await;
    cluster.create::<Deployment>(deployment(1, json!({}))).await;
    roll(&cluster).await;
    let first = names(&cluster.all::<ReplicaSet>().await);
    cluster.patch::<Deployment>("web", image("two")).await;
    cluster.when_all::<ReplicaSet>(|sets| sets.len() == 2).await;
    roll(&cluster).await;
    cluster.patch::<Deployment>("web", image("one")).await;
    let is_third = |set: &ReplicaSet| revision(set) == "3";
    let set = cluster.when::<ReplicaSet>(&first[0], is_third).await;
    assert_eq!(set.metadata.annotations.unwrap()["deployment.kubernetes.io/revision-history"], "1");
    roll(&cluster).await;
    assert_eq!(cluster.all::<ReplicaSet>().await.len(), 2);
    let living = cluster.living(1).await;
    assert!(names(&living)[0].starts_with(&first[0]));
    cluster.stop().await;
}

/// C-52: the removal of the last old pod triggers the next reconcile.
#[tokio::test(start_paused = true)]
async fn t_ctrl_13_recreate_never_has_old_and_new_pods_at_once() {
    let cluster = Cluster::start().await;
    let recreate = json!({ "strategy": { "type": "Recreate", "rollingUpdate": null } });
    cluster.create::<Deployment>(deployment(2, recreate)).await;
    roll(&cluster).await;
    cluster.patch::<Deployment>("web", image("two")).await;
    cluster.living(0).await;
    assert_eq!(cluster.all::<Pod>().await.len(), 2, "the old ones are in their grace");
    cluster.quiet().await;
    assert_eq!(cluster.all::<ReplicaSet>().await.len(), 1, "and nothing new is begun");
    cluster.clear().await;
    cluster.living(2).await;
    roll(&cluster).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_57_a_rollout_without_progress_exceeds_its_deadline() {
    let cluster = Cluster::start().await;
    cluster.create::<Deployment>(deployment(1, json!({ "progressDeadlineSeconds": 30 }))).await;
    let pods = cluster.living(1).await;
    let stuck = |web: &Deployment| {
        reason(web, "Progressing").as_deref() == Some("ProgressDeadlineExceeded")
    };
    cluster.when::<Deployment>("web", stuck).await;
    cluster.bind(&pods[0]).await;
    cluster.runs(&pods[0], true).await;
    cluster.when::<Deployment>("web", |web| !stuck(web) && is_done(web)).await;
    cluster.stop().await;
}

/// C-15: the observed generation is updated even while the Deployment is paused.
#[tokio::test(start_paused = true)]
async fn c_53_a_paused_deployment_scales_but_does_not_roll() {
    let cluster = Cluster::start().await;
    cluster.create::<Deployment>(deployment(1, json!({}))).await;
    roll(&cluster).await;
    let mut change = image("two");
    change["spec"]["paused"] = json!(true);
    change["spec"]["replicas"] = json!(2);
    cluster.patch::<Deployment>("web", change).await;
    cluster.living(2).await;
    assert_eq!(cluster.all::<ReplicaSet>().await.len(), 1);
    let web = cluster.get::<Deployment>("web").await;
    assert_eq!(reason(&web, "Progressing").as_deref(), Some("DeploymentPaused"));
    assert_eq!(web.status.unwrap().observed_generation, web.metadata.generation, "C-15");
    cluster.patch::<Deployment>("web", json!({ "spec": { "paused": false } })).await;
    cluster.when_all::<ReplicaSet>(|sets| sets.len() == 2).await;
    roll(&cluster).await;
    cluster.stop().await;
}

/// C-215: templates are compared by meaning.
#[tokio::test(start_paused = true)]
async fn c_28_a_restarted_controller_writes_nothing_and_creates_no_second_set() {
    let mut cluster = Cluster::start().await;
    cluster.create::<Deployment>(deployment(2, json!({}))).await;
    roll(&cluster).await;
    cluster.quiet().await;
    let before = cluster.get::<Deployment>("web").await;
    cluster.restart_controllers().await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    let after = cluster.get::<Deployment>("web").await;
    assert_eq!(after.metadata.resource_version, before.metadata.resource_version);
    assert_eq!(cluster.all::<ReplicaSet>().await.len(), 1);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_34_a_taken_name_is_skipped() {
    let cluster = Cluster::start().await;
    cluster.create::<Deployment>(deployment(1, json!({}))).await;
    let sets = cluster.when_all::<ReplicaSet>(|sets| sets.len() == 1).await;
    let taken = names(&sets)[0].clone();
    cluster.delete::<Deployment>("web").await;
    // The garbage collector deletes it.
    cluster.when_all::<ReplicaSet>(|sets| sets.is_empty()).await;
    let other = json!({
        "metadata": { "namespace": NAMESPACE, "name": taken },
        "spec": { "replicas": 0, "selector": { "matchLabels": { "app": "other" } },
                  "template": template("other", "x") },
    });
    cluster.create::<ReplicaSet>(other).await;
    cluster.create::<Deployment>(deployment(1, json!({}))).await;
    let collided =
        |web: &Deployment| web.status.as_ref().and_then(|status| status.collision_count) == Some(1);
    cluster.when::<Deployment>("web", collided).await;
    cluster.when_all::<ReplicaSet>(|sets| sets.len() == 2).await;
    cluster.stop().await;
}

/// A connection to the server on which a set is gone when it is read.
fn with_a_set_that_goes(service: InProcessService, name: &str) -> Client {
    type Request = http::Request<Body>;
    let path = format!("/apis/apps/v1/namespaces/{NAMESPACE}/replicasets/{name}");
    Client::in_process(tower::service_fn(move |request: Request| {
        let (mut service, path) = (service.clone(), path.clone());
        async move {
            if request.method() == http::Method::GET && request.uri().path() == path {
                let delete = http::Request::delete(&path).body(Body::empty())?;
                service.call(delete).await.map_err(BoxError::from)?;
            }
            service.call(request).await.map_err(BoxError::from)
        }
    }))
}

/// The set belongs to an earlier Deployment of that name; the garbage collector deletes it, without an event for the
/// controller.
#[tokio::test(start_paused = true)]
async fn c_34_a_name_that_becomes_free_is_used() {
    let mut cluster = Cluster::start().await;
    cluster.create::<Deployment>(deployment(1, json!({}))).await;
    let sets = cluster.when_all::<ReplicaSet>(|sets| sets.len() == 1).await;
    let taken = names(&sets)[0].clone();
    cluster.delete::<Deployment>("web").await;
    cluster.when_all::<ReplicaSet>(|sets| sets.is_empty()).await;
    let other = json!({
        "metadata": { "namespace": NAMESPACE, "name": taken },
        "spec": { "replicas": 0, "selector": { "matchLabels": { "app": "other" } },
                  "template": template("other", "x") },
    });
    let other = cluster.create::<ReplicaSet>(other).await;
    cluster.restart_controllers_through(|service| with_a_set_that_goes(service, &taken)).await;
    cluster.create::<Deployment>(deployment(1, json!({}))).await;
    let ours = |set: &ReplicaSet| set.metadata.uid != other.metadata.uid;
    cluster.when::<ReplicaSet>(&taken, ours).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_10_t_ctrl_12_a_rollout_completes_while_old_pods_are_terminating() {
    let cluster = Cluster::start().await;
    let one = json!({ "strategy": { "type": "RollingUpdate",
                      "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } } });
    cluster.create::<Deployment>(deployment(2, one)).await;
    roll(&cluster).await;
    let before = names(&cluster.all::<Pod>().await);
    cluster.patch::<Deployment>("web", image("two")).await;
    cluster.when_all::<ReplicaSet>(|sets| sets.len() == 2).await;
    // As `roll`, but no terminating pod exits.
    let done = |web: &Deployment| {
        is_done(web) && reason(web, "Progressing").as_deref() == Some("NewReplicaSetAvailable")
    };
    for _ in 0..500 {
        for pod in cluster.all::<Pod>().await {
            if pod.metadata.deletion_timestamp.is_none()
                && !before.contains(&names(std::slice::from_ref(&pod))[0])
            {
                cluster.bind(&pod).await;
                cluster.runs(&pod, true).await;
            }
        }
        if done(&cluster.get::<Deployment>("web").await) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let going = |web: &Deployment| {
        done(web) && web.status.as_ref().unwrap().terminating_replicas == Some(2)
    };
    cluster.when::<Deployment>("web", going).await;
    assert_eq!(cluster.all::<Pod>().await.len(), 4, "more than two and the one of the surge");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_35_a_refused_set_is_reported() {
    let cluster = Cluster::start().await;
    let quota = json!({ "metadata": { "namespace": NAMESPACE, "name": "q" },
                        "spec": { "hard": { "count/replicasets.apps": "0" } } });
    cluster.create::<ResourceQuota>(quota).await;
    let counted =
        |quota: &ResourceQuota| quota.status.as_ref().is_some_and(|status| status.hard.is_some());
    cluster.when::<ResourceQuota>("q", counted).await;
    cluster.create::<Deployment>(deployment(1, json!({}))).await;
    let failed =
        |web: &Deployment| reason(web, "Progressing").as_deref() == Some("ReplicaSetCreateError");
    let web = cluster.when::<Deployment>("web", failed).await;
    let conditions = web.status.unwrap().conditions.unwrap();
    let condition = conditions.iter().find(|one| one.type_ == "Progressing").unwrap();
    assert_eq!(condition.status, "False");
    let message = condition.message.clone().unwrap();
    assert!(message.starts_with("Failed to create new replica set \"web-"), "{message}");
    assert!(message.contains("exceeded quota: q"), "{message}");
    assert_eq!(cluster.event_on("Deployment", "ReplicaSetCreateError").await, message);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_37_an_adopted_set_is_rolled_without_changes() {
    let cluster = Cluster::start().await;
    let set = json!({
        "metadata": { "namespace": NAMESPACE, "name": "earlier", "labels": { "app": "web" } },
        "spec": { "replicas": 1, "selector": { "matchLabels": { "app": "web" } },
                  "template": template("web", "zero") },
    });
    let set = cluster.create::<ReplicaSet>(set).await;
    cluster.all_run(1).await;
    cluster.create::<Deployment>(deployment(1, json!({}))).await;
    cluster.when_all::<ReplicaSet>(|sets| sets.len() == 2).await;
    roll(&cluster).await;
    let after = cluster.get::<ReplicaSet>("earlier").await;
    assert_eq!(after.metadata.owner_references.unwrap()[0].kind, "Deployment");
    assert_eq!(after.metadata.labels, set.metadata.labels, "it is not relabelled");
    let (after, before) = (after.spec.unwrap(), set.spec.unwrap());
    assert_eq!((after.template, after.selector), (before.template, before.selector));
    let made = |event: &&Event| event.reason.as_deref() == Some("SuccessfulCreate");
    let events = cluster.all::<Event>().await;
    assert_eq!(events.iter().filter(made).count(), 2, "its own, and one new");
    cluster.stop().await;
}

/// C-203, C-216: removed conditions are restored, and those of others stay.
#[tokio::test(start_paused = true)]
async fn c_203_removed_conditions_are_restored() {
    let cluster = Cluster::start().await;
    cluster.create::<Deployment>(deployment(1, json!({}))).await;
    roll(&cluster).await;
    cluster.quiet().await;
    let mut web = cluster.get::<Deployment>("web").await;
    let mine = json!([{ "type": "Mine", "status": "True" }]);
    web.status.as_mut().unwrap().conditions = serde_json::from_value(mine).unwrap();
    let written = cluster.client.replace_status(&web).await.unwrap();
    assert_eq!(written.status.unwrap().conditions.unwrap().len(), 1);
    let back = |web: &Deployment| {
        let conditions = web.status.as_ref().unwrap().conditions.as_ref().unwrap();
        let has = |type_: &str| conditions.iter().any(|one| one.type_ == type_);
        has("Mine") && has("Available") && has("Progressing")
    };
    cluster.when::<Deployment>("web", back).await;
    cluster.stop().await;
}
