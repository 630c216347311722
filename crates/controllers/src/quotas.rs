//! Counts the usage of quotas per namespace, and writes it to their status (C-154 to C-158).
//!
//! The server charges new objects when they are created. This controller recounts a namespace when an object is
//! deleted, a pod is terminal, the charge of a pod, Service or claim changes, a quota changes, and every five
//! minutes. A write of a quota's status does not cause a recount (C-156).
//!
//! A recount lists all counted objects from the server, because a cache may lag behind what a quota was charged for. To
//! limit the cost, many deletions in a namespace cause one recount, and recounting takes at most a tenth of the time.

use crate::pods;
use crate::served_kinds::ServedKinds;
use crate::start::Cluster;
use api::pod::resources::Amounts;
use api::quantity::Quantity;
use api::quota::{Counted, scope, usage};
use client::{Cache, Next, Object, PartialObject, Selection, ServedKind, run_controller};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaStatus, ResourceRequirements, Service,
};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;
use typed::Typed;

const WORKERS: usize = 5;

/// Upstream: `ResourceQuotaSyncPeriod`.
const COUNT_EVERY: Duration = Duration::from_secs(300);

/// The pause between two recounts of a namespace.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// State between recounts.
#[derive(Default)]
struct State {
    kinds: ServedKinds,
    /// When each namespace may be counted again.
    again: Mutex<BTreeMap<String, Instant>>,
}

pub(crate) async fn run(
    cluster: &Cluster,
    services: Cache<Service>,
    claims: Cache<PersistentVolumeClaim>,
) {
    let queue = &cluster.namespaces_to_recount;
    let quotas = Cache::<ResourceQuota>::start(&cluster.client);
    quotas.feed_changes(queue, |before, after| {
        let spec = |quota: &ResourceQuota| quota.spec.clone();
        let changed = before.map(spec) != after.map(spec);
        let home = after.filter(|_| changed).and_then(|quota| quota.metadata.namespace.clone());
        home.into_iter().collect()
    });
    // Changes of existing objects that change their charge.
    let known = quotas.clone();
    cluster.pods.feed_changes(queue, move |before, after| {
        namespace_if_changed(&known, before, after, is_pod_charged_otherwise)
    });
    let known = quotas.clone();
    services.feed_changes(queue, move |before, after| {
        namespace_if_changed(&known, before, after, |before, after| {
            charged("services", before) != charged("services", after)
        })
    });
    let known = quotas.clone();
    claims.feed_changes(queue, move |before, after| {
        namespace_if_changed(&known, before, after, is_claim_charged_otherwise)
    });
    quotas.synced().await;
    cluster.pods.synced().await;
    let state = State::default();
    run_controller("resource-quotas", queue, WORKERS, |namespace| {
        reconcile(cluster, &quotas, &state, namespace)
    })
    .await;
}

/// The namespace of an object whose charge has changed, if the namespace has quotas.
fn namespace_if_changed<K: Object>(
    quotas: &Cache<ResourceQuota>,
    before: Option<&K>,
    after: Option<&K>,
    otherwise: impl Fn(&K, &K) -> bool,
) -> Vec<String> {
    let (Some(before), Some(after)) = (before, after) else { return Vec::new() };
    let home = after.meta().namespace.clone().unwrap_or_default();
    let changed = !quotas.in_namespace(&home).is_empty() && otherwise(before, after);
    changed.then_some(home).into_iter().collect()
}

/// Whether the charge of a pod has changed (C-155). Compares the relevant fields first, because most changes of a pod
/// do not affect it.
fn is_pod_charged_otherwise(before: &Pod, after: &Pod) -> bool {
    let deadline = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
    let resize = |pod: &Pod| {
        pods::condition(pod, "PodResizePending").and_then(|condition| condition.reason.clone())
    };
    let sized_alike = sizes(before).eq(sizes(after)) && resize(before) == resize(after);
    pods::is_terminal_pod(before) != pods::is_terminal_pod(after)
        || deadline(before) != deadline(after)
        || (!sized_alike && charged("pods", before) != charged("pods", after))
}

/// All resources of a pod: requested, allocated and actual.
fn sizes(pod: &Pod) -> impl Iterator<Item = Size<'_>> {
    let asked = pod.spec.iter().flat_map(|spec| {
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        containers.map(|one| one.resources.as_ref()).chain([spec.resources.as_ref()])
    });
    let has = pod.status.iter().flat_map(|status| {
        let inits = status.init_container_statuses.iter().flatten();
        inits.chain(status.container_statuses.iter().flatten())
    });
    let has = has.map(|one| (one.resources.as_ref(), one.allocated_resources.as_ref()));
    asked.map(|asked| (asked, None)).chain(has)
}

type Size<'a> = (Option<&'a ResourceRequirements>, Option<&'a BTreeMap<String, Text>>);

fn is_claim_charged_otherwise(
    before: &PersistentVolumeClaim,
    after: &PersistentVolumeClaim,
) -> bool {
    // Scopes of quotas select claims by these fields (C-158).
    let attributes = |claim: &PersistentVolumeClaim| {
        let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
        let status = claim.status.as_ref();
        (wanted, status.and_then(|status| status.current_volume_attributes_class_name.clone()))
    };
    attributes(before) != attributes(after)
        || charged("persistentvolumeclaims", before) != charged("persistentvolumeclaims", after)
}

fn charged<K: Typed>(plural: &str, object: &K) -> Amounts {
    let object = typed::to_value(object).unwrap_or_default();
    usage::usage(Counted { group: "", plural }, &object)
}

async fn reconcile(
    cluster: &Cluster,
    quotas: &Cache<ResourceQuota>,
    state: &State,
    namespace: String,
) -> client::Result<Next> {
    let here = quotas.in_namespace(&namespace);
    if here.is_empty() {
        locked(&state.again).remove(&namespace);
        return Ok(Next::Change);
    }
    let began = Instant::now();
    let again = locked(&state.again).get(&namespace).copied();
    if let Some(left) =
        again.and_then(|again| again.checked_duration_since(began)).filter(|l| !l.is_zero())
    {
        return Ok(Next::After(left));
    }
    let content = content(cluster, state, &namespace, &here).await?;
    locked(&state.again).insert(namespace, Instant::now() + pause(began.elapsed()));
    let mut overdue = None;
    for quota in here {
        let status = count(&quota, &content, clock::now());
        let before = quota.status.clone().unwrap_or_default();
        if !is_same(&before, &status) {
            match cluster.client.update_status(quota.as_ref(), status).await {
                Err(error) if error.is_not_found() => (),
                // The server has just charged a new object; recount soon.
                Err(error) if error.is_conflict() => overdue = Some(Duration::from_millis(100)),
                written => written?,
            }
        }
    }
    Ok(Next::After(overdue.unwrap_or(COUNT_EVERY)))
}

/// The pause after a recount that took this long.
fn pause(took: Duration) -> Duration {
    took.saturating_mul(9).clamp(PAUSE_MIN, PAUSE_MAX)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Objects of one kind that quotas count.
struct Content {
    kind: ServedKind,
    objects: Vec<Value>,
}

/// Everything in the namespace that one of the quotas counts.
async fn content(
    cluster: &Cluster,
    state: &State,
    namespace: &str,
    quotas: &[Arc<ResourceQuota>],
) -> client::Result<Vec<Content>> {
    let names: Vec<&String> = quotas.iter().flat_map(|quota| hard(quota).keys()).collect();
    let is_known = |kinds: &[ServedKind]| {
        names.iter().all(|name| kinds.iter().any(|kind| usage::counts(counted(kind), name)))
    };
    let kinds = state.kinds.get(&cluster.client, is_known).await?;
    let mut content = Vec::new();
    for kind in kinds.iter() {
        let counted = counted(kind);
        let asked = names.iter().any(|name| usage::counts(counted, name));
        if !(asked && kind.preferred && kind.namespaced && kind.supports("list")) {
            continue;
        }
        let all = Selection::namespace(namespace);
        let objects = match (counted.group, counted.plural) {
            ("", "pods") => values(cluster.client.list::<Pod>(&all).await?),
            ("", "services") => values(cluster.client.list::<Service>(&all).await?),
            ("", "persistentvolumeclaims") => {
                values(cluster.client.list::<PersistentVolumeClaim>(&all).await?)
            }
            ("resource.k8s.io", "resourceclaims") => {
                values(cluster.client.list::<ResourceClaim>(&all).await?)
            }
            _ => values::<PartialObject>(cluster.client.list_partial(&kind.resource, &all).await?),
        };
        content.push(Content { kind: kind.clone(), objects });
    }
    Ok(content)
}

fn values<T: Typed>(objects: Vec<T>) -> Vec<Value> {
    objects.iter().filter_map(|object| typed::to_value(object).ok()).collect()
}

fn counted(kind: &ServedKind) -> Counted<'_> {
    Counted { group: &kind.resource.group, plural: &kind.resource.plural }
}

fn hard(quota: &ResourceQuota) -> &BTreeMap<String, Text> {
    static NONE: BTreeMap<String, Text> = BTreeMap::new();
    quota.spec.as_ref().and_then(|spec| spec.hard.as_ref()).unwrap_or(&NONE)
}

/// The usage of the resources that the quota limits. Resources of unknown kinds are left out.
fn count(quota: &ResourceQuota, content: &[Content], now: Timestamp) -> ResourceQuotaStatus {
    let limits = json!({ "spec": quota.spec });
    let mut used = Amounts::new();
    for Content { kind, objects } in content {
        let counted = counted(kind);
        let names = hard(quota).keys().filter(|name| usage::counts(counted, name));
        let names: Vec<&String> = names.collect();
        for name in &names {
            used.entry((*name).clone()).or_insert(Quantity::ZERO);
        }
        for object in objects.iter().filter(|object| scope::matches(counted, &limits, object)) {
            let charged = usage::usage(counted, &settled(counted, object, now));
            for (name, amount) in charged {
                if let Some(sum) = used.get_mut(&name) {
                    *sum = *sum + amount;
                }
            }
        }
    }
    let text = |(name, amount): (String, Quantity)| (name, Text(amount.to_string()));
    ResourceQuotaStatus {
        hard: Some(hard(quota).clone()),
        used: Some(used.into_iter().map(text).collect()),
    }
}

/// A pod that should have terminated before now, by its deletion time plus grace period, counts as terminal even if its
/// status does not say so (C-157).
fn settled(kind: Counted<'_>, object: &Value, now: Timestamp) -> Value {
    let mut object = object.clone();
    let meta = &object["metadata"];
    let deleted =
        meta["deletionTimestamp"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
    let grace = meta["deletionGracePeriodSeconds"].as_i64();
    if (kind.group, kind.plural) == ("", "pods")
        && let (Some(deleted), Some(grace)) = (deleted, grace)
        && deleted.saturating_add(SignedDuration::from_secs(grace)).is_ok_and(|end| end < now)
    {
        object["status"]["phase"] = "Failed".into();
    }
    object
}

/// Whether the amounts are equal, regardless of their notation.
fn is_same(before: &ResourceQuotaStatus, after: &ResourceQuotaStatus) -> bool {
    let read = |list: &Option<BTreeMap<String, Text>>| -> Option<BTreeMap<String, Quantity>> {
        let list = list.as_ref()?.iter();
        list.map(|(name, text)| Some((name.clone(), Quantity::parse(&text.0).ok()?))).collect()
    };
    let (hard, used) = (read(&before.hard), read(&before.used));
    hard.is_some() && used.is_some() && hard == read(&after.hard) && used == read(&after.used)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(plural: &str) -> ServedKind {
        ServedKind {
            resource: client::ApiResource {
                group: String::new(),
                version: "v1".into(),
                api_version: "v1".into(),
                kind: String::new(),
                plural: plural.into(),
            },
            namespaced: true,
            verbs: vec![],
            subresources: vec![],
            preferred: true,
        }
    }

    fn pod(cpu: &str, phase: &str, more: Value) -> Value {
        let mut pod = json!({
            "metadata": { "name": "p" },
            "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] },
            "status": { "phase": phase },
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            pod["metadata"][field] = value.clone();
        }
        pod
    }

    fn used(spec: Value, content: &[Content]) -> Value {
        let quota: ResourceQuota =
            typed::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        serde_json::to_value(count(&quota, content, now).used).unwrap()
    }

    #[test]
    fn c_154_c_157_usage_is_counted_by_resource_name() {
        let deleted = |minute: u32| {
            json!({ "deletionTimestamp": format!("2026-01-01T00:{minute:02}:00Z"),
                    "deletionGracePeriodSeconds": 30 })
        };
        let content = [
            Content {
                kind: kind("pods"),
                objects: vec![
                    pod("500m", "Running", json!({})),
                    pod("250m", "Running", json!({})),
                    pod("1", "Succeeded", json!({})),
                    pod("4", "Running", deleted(1)),
                    pod("2", "Running", deleted(10)),
                ],
            },
            Content { kind: kind("configmaps"), objects: vec![json!({ "metadata": {} })] },
        ];
        let hard = json!({ "pods": "10", "count/pods": "10", "requests.cpu": "10", "configmaps": "5",
                           "secrets": "5", "unheard-of": "1" });
        let expected =
            json!({ "pods": "3", "count/pods": "5", "requests.cpu": "2750m", "configmaps": "1" });
        // Secrets are not listed here, as if they could not be.
        assert_eq!(used(json!({ "hard": hard }), &content), expected);
        let none = json!({ "pods": "0", "configmaps": "0" });
        let empty = [
            Content { kind: kind("pods"), objects: vec![] },
            Content { kind: kind("configmaps"), objects: vec![] },
        ];
        assert_eq!(used(json!({ "hard": { "pods": "1", "configmaps": "1" } }), &empty), none);
    }

    #[test]
    fn c_157_events_are_never_counted() {
        let content = ["pods", "events", "bindings"]
            .map(|plural| Content { kind: kind(plural), objects: vec![json!({ "metadata": {} })] });
        let hard = json!({ "count/pods": "5", "count/events": "5", "count/bindings": "5" });
        assert_eq!(used(json!({ "hard": hard }), &content), json!({ "count/pods": "1" }));
    }

    #[test]
    fn c_157_devices_are_counted_by_their_class() {
        let mut claims = kind("resourceclaims");
        claims.resource.group = "resource.k8s.io".into();
        let of = |class: &str, more: Value| {
            let mut one = json!({ "deviceClassName": class });
            one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            one
        };
        let requests = json!([
            { "name": "two", "exactly": of("gpu", json!({ "count": 2 })) },
            { "name": "one", "exactly": of("gpu", json!({})) },
            { "name": "all", "exactly": of("nic", json!({ "allocationMode": "All" })) },
            { "name": "either", "firstAvailable": [
                of("gpu", json!({ "count": 1 })), of("gpu", json!({ "count": 4 })),
                of("tpu", json!({ "count": 3 })) ] },
        ]);
        let claim = json!({ "metadata": {}, "spec": { "devices": { "requests": requests } } });
        let content = [Content { kind: claims, objects: vec![claim] }];
        let name = |class: &str| format!("{class}.deviceclass.resource.k8s.io/devices");
        let hard = json!({ name("gpu"): "9", name("nic"): "9", name("tpu"): "9", name("fpga"): "9",
                           "count/resourceclaims.resource.k8s.io": "9" });
        let expected = json!({ name("gpu"): "7", name("nic"): "32", name("tpu"): "3",
                               name("fpga"): "0", "count/resourceclaims.resource.k8s.io": "1" });
        assert_eq!(used(json!({ "hard": hard }), &content), expected);
    }

    #[test]
    fn c_158_a_scoped_quota_counts_only_matching_objects() {
        let mut bounded = pod("1", "Running", json!({}));
        bounded["spec"]["activeDeadlineSeconds"] = 5.into();
        let content = [Content {
            kind: kind("pods"),
            objects: vec![bounded, pod("1", "Running", json!({}))],
        }];
        let spec = json!({ "hard": { "pods": "10" }, "scopes": ["Terminating"] });
        assert_eq!(used(spec, &content), json!({ "pods": "1" }));
    }

    /// Each row: the object before, after, and whether that causes a recount.
    #[test]
    fn c_155_a_changed_charge_causes_a_recount() {
        let with = |spec: Value, status: Value| -> Pod {
            typed::from_value(json!({ "metadata": {}, "spec": spec, "status": status })).unwrap()
        };
        let cpu = |amount: &str| json!({ "requests": { "cpu": amount } });
        let plain =
            |amount: &str| json!({ "containers": [{ "name": "c", "resources": cpu(amount) }] });
        let sidecar = |amount: &str| {
            json!({ "containers": [], "initContainers": [
                { "name": "s", "restartPolicy": "Always", "resources": cpu(amount) }] })
        };
        let whole = |amount: &str| json!({ "containers": [], "resources": cpu(amount) });
        let has = |amount: &str| {
            json!({ "containerStatuses": [{ "name": "c", "image": "", "imageID": "", "ready": true,
                                            "restartCount": 0, "resources": cpu(amount) }] })
        };
        let none = || json!({});
        for (what, before, after, expected) in [
            ("nothing", with(plain("1"), none()), with(plain("1"), none()), false),
            ("a container", with(plain("2"), none()), with(plain("1"), none()), true),
            ("a sidecar", with(sidecar("2"), none()), with(sidecar("1"), none()), true),
            ("the whole pod", with(whole("2"), none()), with(whole("1"), none()), true),
            ("it started", with(plain("1"), none()), with(plain("1"), has("1")), false),
            ("asked, not done", with(plain("2"), has("2")), with(plain("1"), has("2")), false),
            ("done", with(plain("1"), has("2")), with(plain("1"), has("1")), true),
        ] {
            assert_eq!(is_pod_charged_otherwise(&before, &after), expected, "{what}");
        }
        let claim = |size: &str, given: Value, class: Value| -> PersistentVolumeClaim {
            typed::from_value(json!({
                "metadata": {},
                "spec": { "resources": { "requests": { "storage": size } } },
                "status": { "allocatedResources": given, "currentVolumeAttributesClassName": class },
            }))
            .unwrap()
        };
        let given = |size: &str| json!({ "storage": size });
        let first = || claim("1Gi", given("2Gi"), json!("gold"));
        for (what, after, expected) in [
            ("nothing", first(), false),
            ("given back", claim("1Gi", given("1Gi"), json!("gold")), true),
            ("asked for less than is given", claim("512Mi", given("2Gi"), json!("gold")), false),
            ("another class", claim("1Gi", given("2Gi"), json!("silver")), true),
        ] {
            assert_eq!(is_claim_charged_otherwise(&first(), &after), expected, "{what}");
        }
    }

    #[test]
    fn c_156_recounting_takes_at_most_a_tenth_of_the_time() {
        let pauses = [(0, 1_000), (50, 1_000), (300, 2_700), (60_000, 30_000)];
        for (took, expected) in pauses {
            assert_eq!(pause(Duration::from_millis(took)), Duration::from_millis(expected));
        }
    }

    #[test]
    fn amounts_are_compared_by_value() {
        let status = |hard: &str, used: &str| -> ResourceQuotaStatus {
            serde_json::from_value(json!({ "hard": { "cpu": hard }, "used": { "cpu": used } }))
                .unwrap()
        };
        assert!(is_same(&status("1", "500m"), &status("1000m", "0.5")));
        assert!(!is_same(&status("1", "500m"), &status("1", "501m")));
        assert!(!is_same(&ResourceQuotaStatus::default(), &status("1", "0")));
    }
}
