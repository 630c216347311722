//! Computes how many pods of each PodDisruptionBudget may be disrupted, which the eviction API uses (C-139 to C-142,
//! T-EVICT-12), and resets the condition of pods that were not deleted after an eviction (T-EVICT-13).

mod budget;
mod scale;
mod stale;

use crate::pods;
use crate::served_kinds::ServedKinds;
use crate::start::Cluster;
use budget::{Healthy, Sums};
use client::{Cache, Next, ObjectKey, Queue, Recorder, reference, run_controller};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use std::sync::Arc;

const WORKERS: usize = 4;

/// Budgets by one label that their pods must have, or by their namespace: see [`index_keys`].
const BY_SELECTOR: &str = "selector";

pub(crate) async fn run(cluster: &Cluster) {
    let queue = Queue::new();
    let budgets = Cache::<PodDisruptionBudget>::builder(&cluster.client)
        .index(BY_SELECTOR, |budget: &PodDisruptionBudget| {
            let namespace = budget.metadata.namespace.as_deref().unwrap_or_default();
            let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            selector.map(|selector| index_keys(namespace, selector)).unwrap_or_default()
        })
        .start();
    budgets.feed_keys(&queue);
    let known = budgets.clone();
    cluster.pods.feed_changes(&queue, move |before, after| {
        let state = |pod: &Pod| {
            let owners = pod.metadata.owner_references.clone();
            (pod.metadata.labels.clone(), pods::is_ready(pod), pods::is_being_deleted(pod), owners)
        };
        if before.is_some() && before.map(state) == after.map(state) {
            return Vec::new();
        }
        [before, after].into_iter().flatten().flat_map(|pod| covering(&known, pod)).collect()
    });
    budgets.synced().await;
    cluster.pods.synced().await;
    let recorder = Recorder::new(&cluster.client, "controllermanager", "");
    let kinds = ServedKinds::default();
    tokio::join!(
        run_controller("disruption", &queue, WORKERS, |key| {
            reconcile(cluster, &budgets, &recorder, &kinds, key)
        }),
        stale::run(cluster),
    );
}

async fn reconcile(
    cluster: &Cluster,
    budgets: &Cache<PodDisruptionBudget>,
    recorder: &Recorder,
    kinds: &ServedKinds,
    key: ObjectKey,
) -> client::Result<Next> {
    let Some(budget) = budgets.get(&key) else {
        return Ok(Next::Change);
    };
    let pods = selected(&cluster.pods, &budget);
    let now = clock::now();
    let disrupted = budget::disrupted(&budget, &pods, now);

    let sums = match budget::expectation(&budget) {
        Some(expectation) if expectation.counts_owners() => {
            let scales = scale::of_owners(&cluster.client, kinds, &pods).await;
            scales.map(|scales| Sums {
                unmanaged: scales.unmanaged,
                ..expectation.sums(scales.total)
            })
        }
        Some(expectation) => Ok(expectation.sums(pods.len())),
        None => Ok(Sums::default()),
    };
    let sums = match sums {
        Ok(sums) => sums,
        Err(error) => return fail(cluster, recorder, &budget, error).await,
    };
    let healthy = Healthy { current: budget::count_healthy(&pods, &disrupted), disrupted };
    let again = healthy.disrupted.check_again_in;
    for name in &healthy.disrupted.not_deleted {
        report_not_deleted(cluster, recorder, &key, name);
    }
    let unmanaged = sums.unmanaged;
    let Some(status) = budget::status(&budget, sums, healthy, now) else {
        return Ok(again.into());
    };
    // Events only for changes, not for every reconcile.
    let on = reference(budget.as_ref());
    if pods.is_empty() {
        recorder.normal(&on, "NoPods", "No matching pods found");
    }
    if unmanaged {
        recorder.warning(&on, "UnmanagedPods", budget::unmanaged_text(&budget));
    }
    cluster.client.update_status(budget.as_ref(), status).await?;
    Ok(again.into())
}

/// If the expected number of pods is unknown, no pod may be disrupted (C-140).
async fn fail(
    cluster: &Cluster,
    recorder: &Recorder,
    budget: &PodDisruptionBudget,
    error: scale::Error,
) -> client::Result<Next> {
    if let Some(status) = budget::failed(budget, &error.to_string(), clock::now()) {
        let message = format!("Failed to calculate the number of expected pods: {error}");
        recorder.warning(&reference(budget), "CalculateExpectedPodCountFailed", message);
        cluster.client.update_status(budget, status).await?;
    }
    match error {
        // Retry soon: no pod can be evicted until this succeeds.
        scale::Error::Api(error) => Err(error),
        scale::Error::NoController(_) | scale::Error::NoScale(_) => {
            Ok(Next::After(scale::RETRY_DELAY))
        }
    }
}

/// Records an event for a pod that was evicted but not deleted (T-EVICT-12).
fn report_not_deleted(cluster: &Cluster, recorder: &Recorder, budget: &ObjectKey, name: &str) {
    let namespace = budget.namespace();
    if let Some(pod) = cluster.pods.get(&ObjectKey::new(namespace, name)) {
        // Upstream prints the namespace twice, and clients may match on it.
        let message =
            format!("Pod was expected by PDB {namespace}/{namespace} to be deleted but it wasn't");
        recorder.warning(&reference(pod.as_ref()), "NotDeleted", message);
    }
}

/// The index keys of a budget: labels of which each selected pod has one, or the namespace if no label is required.
fn index_keys(namespace: &str, selector: &LabelSelector) -> Vec<String> {
    if let Some((key, value)) = selector.match_labels.iter().flatten().next() {
        return vec![pods::label(namespace, key, value)];
    }
    let mut expressions = selector.match_expressions.iter().flatten();
    match expressions.find(|expression| expression.operator == "In") {
        Some(expression) => {
            let values = expression.values.iter().flatten();
            values.map(|value| pods::label(namespace, &expression.key, value)).collect()
        }
        None => vec![namespace.to_owned()],
    }
}

/// The budgets that select a pod.
fn covering(budgets: &Cache<PodDisruptionBudget>, pod: &Pod) -> Vec<ObjectKey> {
    let namespace = pods::namespace(pod);
    let labels = pod.metadata.labels.iter().flatten();
    let places = labels.map(|(key, value)| pods::label(namespace, key, value));
    let places = places.chain([namespace.to_owned()]);
    let found = places.flat_map(|place| budgets.by_index(BY_SELECTOR, &place));
    found.filter(|budget| selects(budget, pod)).map(|b| ObjectKey::of(b.as_ref())).collect()
}

fn selects(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    parsed(selector).is_some_and(|selector| matches(&selector, pod))
}

/// An absent selector selects nothing, an empty one everything (C-142).
fn parsed(selector: Option<&LabelSelector>) -> Option<api::selector::LabelSelector> {
    let selector = typed::to_value(selector?).ok()?;
    api::selector::LabelSelector::from_object(&selector).ok()
}

fn matches(selector: &api::selector::LabelSelector, pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    selector.matches(|key| labels?.get(key).map(String::as_str))
}

fn selected(all: &Cache<Pod>, budget: &PodDisruptionBudget) -> Vec<Arc<Pod>> {
    let namespace = budget.metadata.namespace.as_deref().unwrap_or_default();
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let Some(parsed) = parsed(selector) else { return Vec::new() };
    let labels = selector.iter().flat_map(|selector| selector.match_labels.iter().flatten());
    let labels = labels.map(|(key, value)| pods::label(namespace, key, value));
    let mut found = match labels.min_by_key(|label| all.count(pods::BY_LABEL, label)) {
        Some(rarest) => all.by_index(pods::BY_LABEL, &rarest),
        None => all.in_namespace(namespace),
    };
    found.retain(|pod| matches(&parsed, pod));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn c_142_index_finds_the_budgets_of_a_pod() {
        let selector = |value: Value| typed::from_value::<LabelSelector>(value).unwrap();
        let expression = |operator: &str| json!({ "matchExpressions": [{ "key": "a", "operator": operator, "values": ["x", "y"] }] });
        for (given, expected) in [
            (json!({}), vec!["ns"]),
            (json!({ "matchLabels": { "a": "1", "b": "2" } }), vec!["ns/a=1"]),
            (expression("In"), vec!["ns/a=x", "ns/a=y"]),
            (expression("NotIn"), vec!["ns"]),
        ] {
            assert_eq!(index_keys("ns", &selector(given.clone())), expected, "{given}");
        }
        let pod: Pod =
            typed::from_value(json!({ "metadata": { "labels": { "a": "x" } } })).unwrap();
        let budget = |selector: Value| -> PodDisruptionBudget {
            typed::from_value(json!({ "metadata": {}, "spec": { "selector": selector } })).unwrap()
        };
        assert!(selects(&budget(json!({})), &pod), "an empty selector selects all");
        assert!(!selects(&budget(Value::Null), &pod), "an absent one none");
        assert!(selects(&budget(expression("In")), &pod));
        assert!(!selects(&budget(expression("NotIn")), &pod));
    }
}
