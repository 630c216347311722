//! A pod's status has several writers: the node keeps and considers what others write.

use crate::agent::bed::{Bed, pass, phase};
use client::ObjectKey;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use serde_json::{Value, json};

async fn write_status(bed: &Bed, name: &str, status: Value) {
    let key = ObjectKey::new("default", name);
    bed.client.patch_status::<Pod>(&key, &json!({ "status": status })).await.unwrap();
}

fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_)
}

fn says(pod: &Pod, type_: &str, status: &str) -> bool {
    condition(pod, type_).is_some_and(|condition| condition.status == status)
}

/// N-79, N-75, W-43: Ready follows the conditions that readiness gates name.
#[tokio::test(start_paused = true)]
async fn n_79_ready_follows_the_conditions_of_readiness_gates() {
    let bed = Bed::new().await;
    let _agent = bed.agent().await;
    bed.pod("web", json!({ "readinessGates": [{ "conditionType": "gate" }] }), json!({})).await;
    let pod = bed.until("web", |pod| says(pod, "ContainersReady", "True")).await;
    let ready = condition(&pod, "Ready").unwrap();
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_deref()),
        ("False", Some("ReadinessGatesNotReady"))
    );
    for word in ["True", "False", "True"] {
        write_status(&bed, "web", json!({ "conditions": [{ "type": "gate", "status": word }] }))
            .await;
        pass(1000).await;
        let pod = bed.find("web").await.unwrap();
        assert!(says(&pod, "Ready", word) && says(&pod, "gate", word), "{word}: {pod:#?}");
    }
}

/// `kubectl get --show-managed-fields` says who wrote the status.
#[tokio::test(start_paused = true)]
async fn the_agent_writes_as_kubelet() {
    let bed = Bed::new().await;
    let _agent = bed.agent().await;
    bed.pod("web", json!({}), json!({})).await;
    let pod = bed.until_running("web").await;
    let mut managers = pod.metadata.managed_fields.iter().flatten();
    let status = managers.find(|entry| entry.subresource.as_deref() == Some("status")).unwrap();
    assert_eq!(status.manager.as_deref(), Some("kubelet"));
}

/// N-75, T-NODE-58: conditions of others survive everything that the node writes, to the end of the pod.
#[tokio::test(start_paused = true)]
async fn n_75_conditions_of_others_survive_restarts_and_the_termination() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    let held = json!({ "finalizers": ["example.com/hold"] });
    bed.pod("web", json!({ "restartPolicy": "OnFailure" }), json!({})).await;
    bed.patch("web", json!({ "metadata": held })).await;
    bed.until_running("web").await;
    let foreign: Vec<Value> =
        (0..20).map(|n| json!({ "type": format!("example.com/c{n}"), "status": "True" })).collect();
    write_status(&bed, "web", json!({ "conditions": foreign })).await;
    let survive = |pod: &Pod| {
        let all = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        all.filter(|condition| condition.type_.starts_with("example.com/")).count()
    };
    bed.machine.exit("c", 1);
    let restarted = |pod: &Pod| {
        let mut all =
            pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        all.any(|status| status.restart_count == 1 && status.ready)
    };
    let pod = bed.until("web", restarted).await;
    assert_eq!(survive(&pod), 20, "after a restart of the container");
    drop(agent);
    let _agent = bed.agent().await;
    let disrupted = json!({ "type": "DisruptionTarget", "status": "True",
        "reason": "PreemptionByScheduler", "message": "made room" });
    write_status(&bed, "web", json!({ "conditions": [disrupted] })).await;
    bed.delete("web", Some(5)).await;
    let over = |pod: &Pod| matches!(phase(pod), "Succeeded" | "Failed");
    let pod = bed.until("web", over).await;
    pass(15_000).await;
    let last = bed.find("web").await.unwrap();
    for pod in [&pod, &last] {
        assert_eq!(survive(pod), 20, "after the end");
        let reason = condition(pod, "DisruptionTarget").and_then(|c| c.reason.as_deref());
        assert_eq!(reason, Some("PreemptionByScheduler"), "job failure policies look for it");
    }
    bed.patch("web", json!({ "metadata": { "finalizers": null } })).await;
    bed.until_gone("web").await;
}

/// T-NODE-68: a complete restart of all containers; the API server validates every status.
#[tokio::test(start_paused = true)]
async fn t_node_68_all_containers_are_restarted_in_place() {
    let bed = Bed::new().await;
    let _agent = bed.agent().await;
    let rules = json!([{ "action": "RestartAllContainers",
        "exitCodes": { "operator": "In", "values": [88] } }]);
    let mut spec = bed.spec(
        json!({ "restartPolicy": "Never", "initContainers": [
            { "name": "init", "image": "i:1" }] }),
        json!({ "restartPolicy": "Never", "restartPolicyRules": rules }),
    );
    let web = json!({ "name": "web", "image": "i:1",
        "lifecycle": { "preStop": { "exec": { "command": ["hook"] } } } });
    spec["containers"].as_array_mut().unwrap().push(web);
    let pod = json!({ "metadata": { "namespace": "default", "name": "job" }, "spec": spec });
    bed.client.create(&typed::from_value::<Pod>(pod).unwrap()).await.unwrap();
    bed.machine.ignore_stop();
    let initialise = async |restarts: i32| {
        bed.until("job", |pod| {
            let mut init =
                pod.status.iter().flat_map(|s| s.init_container_statuses.iter().flatten());
            init.any(|status| {
                let running = status.state.as_ref().is_some_and(|state| state.running.is_some());
                running && status.restart_count == restarts
            })
        })
        .await;
        bed.machine.exit("init", 0);
    };
    initialise(0).await;
    bed.until_running("job").await;
    bed.machine.clear_calls();
    bed.machine.exit("c", 88);
    bed.until("job", |pod| says(pod, "AllContainersRestarting", "True")).await;
    initialise(1).await;
    let back = |pod: &Pod| {
        let mut all =
            pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        all.clone().count() == 2 && all.all(|status| status.restart_count == 1 && status.ready)
    };
    let pod = bed.until("job", back).await;
    assert_eq!(phase(&pod), "Running");
    assert!(says(&pod, "AllContainersRestarting", "False"));
    let init = &pod.status.as_ref().unwrap().init_container_statuses.as_ref().unwrap()[0];
    assert_eq!(init.restart_count, 1);
    assert_eq!(bed.machine.calls(), ["stop web", "kill web"], "T-NODE-26: without the hook");
}
