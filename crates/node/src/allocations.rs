//! The resources that each pod was granted and those that are applied, kept across restarts of the
//! agent (N-118, N-122).
//!
//!     <root>/allocations/<uid>.json
//!
//! Files are not synced: after a loss of power no container runs, and pods start with what their
//! spec requests. BestEffort pods have no entry: a resize must not change the QoS class, so they
//! cannot be resized. Not here: what is granted (`dispatch`), how it is applied (`worker`).

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lifecycle::resize::Grant;
use lifecycle::resources::{Qos, qos_class};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) struct Allocations {
    dir: PathBuf,
    by_uid: Mutex<BTreeMap<String, Allocation>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Allocation {
    pub(crate) granted: Grant,
    /// Applied to the running containers.
    pub(crate) applied: Grant,
    /// A granted resize that is not yet applied completely.
    pub(crate) resizing: Option<Resizing>,
    /// A resize that is not granted.
    pub(crate) pending: Option<Pending>,
}

#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Resizing {
    pub(crate) generation: i64,
    pub(crate) since: Timestamp,
    pub(crate) error: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pending {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) generation: i64,
    pub(crate) since: Timestamp,
}

impl Allocations {
    /// Reads what earlier agents have saved.
    pub(crate) fn open(dir: PathBuf) -> Allocations {
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        let by_uid = entries.filter_map(|entry| read(&entry.path())).collect();
        Allocations { dir, by_uid: Mutex::new(by_uid) }
    }

    /// Removes the entries of all other pods.
    pub(crate) fn retain(&self, uids: &BTreeSet<String>) {
        let gone: Vec<String> =
            self.by_uid().keys().filter(|uid| !uids.contains(*uid)).cloned().collect();
        gone.iter().for_each(|uid| self.remove(uid));
    }

    /// The pod with the granted resources instead of those in its spec.
    pub(crate) fn with_granted(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let Some(spec) = &pod.spec else { return pod.clone() };
        let allocations = self.by_uid();
        let granted = allocations.get(uid(pod)).map(|allocation| &allocation.granted);
        match granted.filter(|granted| !granted.is_of(spec)) {
            None => pod.clone(),
            Some(granted) => Arc::new(with(pod, granted)),
        }
    }

    pub(crate) fn get(&self, uid: &str) -> Option<Allocation> {
        self.by_uid().get(uid).cloned()
    }

    /// The resources that are applied to this container.
    pub(crate) fn applied_to(&self, uid: &str, container: &str) -> Option<ResourceRequirements> {
        self.by_uid().get(uid)?.applied.containers.get(container).cloned()
    }

    /// Grants an admitted pod what its spec requests, unless it already has a grant.
    pub(crate) fn admit(&self, pod: &Pod) {
        let Some(spec) = &pod.spec else { return };
        if qos_class(spec) == Qos::BestEffort || self.by_uid().contains_key(uid(pod)) {
            return;
        }
        let granted = Grant::of(spec);
        let new = Allocation { applied: granted.clone(), granted, resizing: None, pending: None };
        self.by_uid().insert(uid(pod).to_owned(), new);
        self.save(uid(pod));
    }

    /// Whether a resize of some pod is pending.
    pub(crate) fn any_pending(&self) -> bool {
        self.by_uid().values().any(|allocation| allocation.pending.is_some())
    }

    /// Grants a resize.
    pub(crate) fn grant(&self, uid: &str, granted: Grant, generation: i64) {
        let now = clock::now();
        self.change(uid, |allocation| {
            allocation.granted = granted;
            allocation.pending = None;
            allocation.resizing = Some(Resizing { generation, since: now, error: None });
        });
    }

    /// Records that a resize is not granted. Returns true if that was not recorded before.
    pub(crate) fn defer(
        &self,
        uid: &str,
        reason: &'static str,
        message: String,
        generation: i64,
    ) -> bool {
        let now = clock::now();
        let mut changed = false;
        self.change(uid, |allocation| {
            let since = allocation.pending.as_ref().map_or(now, |before| before.since);
            let pending = Some(Pending { reason, message, generation, since });
            changed = allocation.pending != pending;
            allocation.pending = pending;
        });
        changed
    }

    /// Whether the spec asks for what was granted. If so, no resize is pending any more.
    pub(crate) fn is_settled(&self, uid: &str, spec: &PodSpec) -> bool {
        let mut allocations = self.by_uid();
        let Some(allocation) = allocations.get_mut(uid) else { return true };
        let same = allocation.granted.is_of(spec);
        if same {
            allocation.pending = None;
        }
        same
    }

    /// Records that the resources of `spec` are applied. Returns the resize that is complete now,
    /// if there was one and nothing else has been granted meanwhile.
    pub(crate) fn applied(&self, uid: &str, spec: &PodSpec) -> Option<Resizing> {
        let mut completed = None;
        self.change(uid, |allocation| {
            allocation.applied = Grant::of(spec);
            if allocation.granted.is_of(spec) {
                completed = allocation.resizing.take();
            }
        });
        completed
    }

    /// Records that applying a resize failed; it is retried. Returns true if the error is new.
    pub(crate) fn failed(&self, uid: &str, why: &str) -> bool {
        let mut changed = false;
        self.change(uid, |allocation| {
            if let Some(resizing) = &mut allocation.resizing {
                changed = resizing.error.as_deref() != Some(why);
                resizing.error = Some(why.to_owned());
            }
        });
        changed
    }

    pub(crate) fn remove(&self, uid: &str) {
        if self.by_uid().remove(uid).is_some() {
            let _ = std::fs::remove_file(self.path(uid));
        }
    }

    fn change(&self, uid: &str, change: impl FnOnce(&mut Allocation)) {
        if let Some(allocation) = self.by_uid().get_mut(uid) {
            change(allocation);
        }
        self.save(uid);
    }

    fn save(&self, uid: &str) {
        let Some(saved) = self.by_uid().get(uid).map(Saved::of) else { return };
        let path = self.path(uid);
        let written = std::fs::create_dir_all(&self.dir)
            .and_then(|()| Ok(serde_json::to_vec(&saved)?))
            .and_then(|bytes| std::fs::write(path.with_extension("new"), bytes))
            .and_then(|()| std::fs::rename(path.with_extension("new"), &path));
        if let Err(error) = written {
            tracing::warn!(%error, uid, "saving the pod's granted resources failed");
        }
    }

    fn path(&self, uid: &str) -> PathBuf {
        self.dir.join(format!("{uid}.json"))
    }

    fn by_uid(&self) -> MutexGuard<'_, BTreeMap<String, Allocation>> {
        self.by_uid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Allocation {
    /// The conditions PodResizePending and PodResizeInProgress, if they are true (N-118, N-119).
    pub(crate) fn conditions(&self) -> Vec<PodCondition> {
        let condition = |type_: &str, generation: i64, since: Timestamp| PodCondition {
            type_: type_.into(),
            status: "True".into(),
            observed_generation: Some(generation),
            last_transition_time: Some(Time(whole_second(since))),
            ..PodCondition::default()
        };
        let pending = self.pending.as_ref().map(|pending| PodCondition {
            reason: Some(pending.reason.into()),
            message: Some(pending.message.clone()),
            ..condition("PodResizePending", pending.generation, pending.since)
        });
        let resizing = self.resizing.as_ref().map(|resizing| PodCondition {
            reason: resizing.error.as_ref().map(|_| "Error".into()),
            message: resizing.error.clone(),
            ..condition("PodResizeInProgress", resizing.generation, resizing.since)
        });
        pending.into_iter().chain(resizing).collect()
    }
}

/// The pod with these resources.
pub(crate) fn with(pod: &Pod, grant: &Grant) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        grant.put_into(spec);
    }
    pod
}

/// The message of an event about a resize: `Pod resize started: {"containers":[…],"generation":2}`.
pub(crate) fn event_message(what: &str, pod: &Pod, generation: i64, error: &str) -> String {
    #[derive(serde::Serialize)]
    struct ContainerResources<'a> {
        name: &'a str,
        resources: ResourceRequirements,
    }
    #[derive(serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct PodResources<'a> {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        init_containers: Vec<ContainerResources<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        containers: Vec<ContainerResources<'a>>,
        generation: i64,
        #[serde(skip_serializing_if = "str::is_empty")]
        error: &'a str,
    }
    let resources = |container: &'_ k8s_openapi::api::core::v1::Container| {
        container.resources.clone().unwrap_or_default()
    };
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let regular = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let all = PodResources {
        init_containers: init
            .iter()
            .map(|c| ContainerResources { name: &c.name, resources: resources(c) })
            .collect(),
        containers: regular
            .iter()
            .map(|c| ContainerResources { name: &c.name, resources: resources(c) })
            .collect(),
        generation,
        error,
    };
    let json = serde_json::to_string(&all).unwrap_or_default();
    format!("Pod resize {what}: {json}")
}

/// The content of a file.
#[derive(serde::Serialize, serde::Deserialize)]
struct Saved {
    granted: SavedGrant,
    applied: SavedGrant,
    resizing: Option<Resizing>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct SavedGrant {
    pod: Option<ResourceRequirements>,
    containers: BTreeMap<String, ResourceRequirements>,
}

impl Saved {
    fn of(allocation: &Allocation) -> Saved {
        let grant = |grant: &Grant| SavedGrant {
            pod: grant.pod.clone(),
            containers: grant.containers.clone(),
        };
        Saved {
            granted: grant(&allocation.granted),
            applied: grant(&allocation.applied),
            resizing: allocation.resizing.clone(),
        }
    }
}

/// None if it is not one of our files, or is incomplete.
fn read(path: &Path) -> Option<(String, Allocation)> {
    let uid = path.file_name()?.to_str()?.strip_suffix(".json")?;
    let saved: Saved = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let grant = |saved: SavedGrant| Grant { pod: saved.pod, containers: saved.containers };
    let allocation = Allocation {
        granted: grant(saved.granted),
        applied: grant(saved.applied),
        resizing: saved.resizing,
        pending: None,
    };
    Some((uid.to_owned(), allocation))
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(cpu: &str) -> Arc<Pod> {
        let resources = json!({"requests": {"cpu": cpu}, "limits": {"memory": "1Gi"}});
        let spec = json!({"containers": [{"name": "a", "resources": resources}]});
        Arc::new(typed::from_value(json!({"metadata": {"uid": "u"}, "spec": spec})).unwrap())
    }

    fn cpu(pod: &Pod) -> String {
        let resources = pod.spec.as_ref().unwrap().containers[0].resources.as_ref().unwrap();
        resources.requests.as_ref().unwrap()["cpu"].0.clone()
    }

    fn granted(pod: &Pod) -> Grant {
        Grant::of(pod.spec.as_ref().unwrap())
    }

    #[test]
    fn n_122_granted_and_applied_resources_survive_a_restart_of_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let allocations = Allocations::open(dir.path().join("allocations"));
        allocations.admit(&pod("1"));
        assert_eq!(cpu(&allocations.with_granted(&pod("2"))), "1", "a later spec is not granted");
        allocations.grant("u", granted(&pod("2")), 3);
        assert!(allocations.failed("u", "no") && !allocations.failed("u", "no"));
        drop(allocations);
        let again = Allocations::open(dir.path().join("allocations"));
        again.admit(&pod("5"));
        assert_eq!(cpu(&again.with_granted(&pod("5"))), "2");
        let known = again.get("u").unwrap();
        assert_eq!(known.applied, granted(&pod("1")));
        assert_eq!(known.resizing.as_ref().unwrap().error.as_deref(), Some("no"));
        let spec = pod("2").spec.clone().unwrap();
        assert_eq!(again.applied("u", &spec).unwrap().generation, 3);
        assert_eq!(again.get("u").unwrap().applied, granted(&pod("2")));
        again.retain(&BTreeSet::new());
        assert_eq!(std::fs::read_dir(dir.path().join("allocations")).unwrap().count(), 0);
    }

    /// N-119: a resize that is granted while an older one is applied must still be applied.
    #[test]
    fn a_resize_that_is_granted_during_another_does_not_count_as_applied() {
        let dir = tempfile::tempdir().unwrap();
        let allocations = Allocations::open(dir.path().into());
        allocations.admit(&pod("1"));
        allocations.grant("u", granted(&pod("2")), 2);
        allocations.grant("u", granted(&pod("3")), 3);
        assert_eq!(allocations.applied("u", pod("2").spec.as_ref().unwrap()), None);
        let known = allocations.get("u").unwrap();
        assert_eq!((known.applied, known.granted), (granted(&pod("2")), granted(&pod("3"))));
        let completed = allocations.applied("u", pod("3").spec.as_ref().unwrap());
        assert_eq!(completed.map(|resizing| resizing.generation), Some(3));
    }

    #[test]
    fn n_118_n_119_conditions_show_pending_and_running_resizes_until_they_are_complete() {
        let dir = tempfile::tempdir().unwrap();
        let allocations = Allocations::open(dir.path().into());
        allocations.admit(&pod("1"));
        let conditions = || {
            let found = allocations.get("u").unwrap().conditions();
            let one = |c: &PodCondition| {
                let text = |text: &Option<String>| text.clone().unwrap_or_default();
                let generation = c.observed_generation.unwrap();
                format!(
                    "{}={} {generation} {} {}",
                    c.type_,
                    c.status,
                    text(&c.reason),
                    text(&c.message)
                )
            };
            found.iter().map(one).collect::<Vec<_>>()
        };
        assert_eq!(conditions(), Vec::<String>::new());
        assert!(allocations.defer("u", "Deferred", "short".into(), 2));
        assert!(!allocations.defer("u", "Deferred", "short".into(), 2), "reported once");
        assert!(allocations.any_pending());
        assert_eq!(conditions(), ["PodResizePending=True 2 Deferred short"]);
        allocations.grant("u", granted(&pod("2")), 2);
        assert_eq!(conditions(), ["PodResizeInProgress=True 2  "]);
        allocations.failed("u", "why");
        assert_eq!(conditions(), ["PodResizeInProgress=True 2 Error why"]);
        allocations.applied("u", pod("2").spec.as_ref().unwrap());
        assert_eq!(conditions(), Vec::<String>::new(), "N-213");
    }

    #[test]
    fn n_118_n_119_event_messages_contain_resources_generation_and_error() {
        let resources = r#"{"limits":{"memory":"1Gi"},"requests":{"cpu":"1"}}"#;
        assert_eq!(
            event_message("Deferred", &pod("1"), 4, "short"),
            format!(
                "Pod resize Deferred: {{\"containers\":[{{\"name\":\"a\",\"resources\":{resources}}}],\
                 \"generation\":4,\"error\":\"short\"}}"
            )
        );
        assert!(event_message("started", &pod("1"), 4, "").ends_with("\"generation\":4}"));
    }
}
