//! What each pod was granted and what of it is applied, kept across restarts of the agent (N-118, N-122).
//!
//!     <root>/allocations/<uid>.json
//!
//! Files are not synced: after a loss of power nothing runs, and what starts then starts as asked for.
//! Pods that ask for nothing have no entry: their class may not change, so they stay as they are.
//! Not here: who is granted what (`dispatch`), how it is applied (`worker`).

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
    known: Mutex<BTreeMap<String, Allocation>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Allocation {
    pub(crate) granted: Grant,
    /// To what runs.
    pub(crate) applied: Grant,
    /// Granted, and not yet known to be applied.
    pub(crate) resizing: Option<Resizing>,
    /// Asked for, and not granted.
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
    /// What an earlier agent has written down.
    pub(crate) fn open(dir: PathBuf) -> Allocations {
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        let known = entries.filter_map(|entry| read(&entry.path())).collect();
        Allocations { dir, known: Mutex::new(known) }
    }

    /// Forgets pods that are no more.
    pub(crate) fn retain(&self, uids: &BTreeSet<String>) {
        let gone: Vec<String> =
            self.known().keys().filter(|uid| !uids.contains(*uid)).cloned().collect();
        gone.iter().for_each(|uid| self.remove(uid));
    }

    /// The pod with what it was granted instead of what it asks for.
    pub(crate) fn on(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let Some(spec) = &pod.spec else { return pod.clone() };
        let known = self.known();
        let granted = known.get(uid(pod)).map(|known| &known.granted);
        match granted.filter(|granted| !granted.is_of(spec)) {
            None => pod.clone(),
            Some(granted) => Arc::new(with(pod, granted)),
        }
    }

    pub(crate) fn get(&self, uid: &str) -> Option<Allocation> {
        self.known().get(uid).cloned()
    }

    /// To this container, as far as it runs.
    pub(crate) fn applied_to(&self, uid: &str, container: &str) -> Option<ResourceRequirements> {
        self.known().get(uid)?.applied.containers.get(container).cloned()
    }

    /// The pod was admitted: what it asks for is granted, unless it was granted something before.
    pub(crate) fn admit(&self, pod: &Pod) {
        let Some(spec) = &pod.spec else { return };
        if qos_class(spec) == Qos::BestEffort || self.known().contains_key(uid(pod)) {
            return;
        }
        let granted = Grant::of(spec);
        let new = Allocation { applied: granted.clone(), granted, resizing: None, pending: None };
        self.known().insert(uid(pod).to_owned(), new);
        self.save(uid(pod));
    }

    /// Some resize waits.
    pub(crate) fn any_pending(&self) -> bool {
        self.known().values().any(|known| known.pending.is_some())
    }

    pub(crate) fn grant(&self, uid: &str, granted: Grant, generation: i64) {
        let now = clock::now();
        self.change(uid, |known| {
            known.granted = granted;
            known.pending = None;
            known.resizing = Some(Resizing { generation, since: now, error: None });
        });
    }

    /// True: that is news.
    pub(crate) fn wait(
        &self,
        uid: &str,
        reason: &'static str,
        message: String,
        generation: i64,
    ) -> bool {
        let now = clock::now();
        let mut news = false;
        self.change(uid, |known| {
            let since = known.pending.as_ref().map_or(now, |before| before.since);
            let pending = Some(Pending { reason, message, generation, since });
            news = known.pending != pending;
            known.pending = pending;
        });
        news
    }

    /// True: what is asked for is what was granted, and nothing is pending.
    pub(crate) fn settles(&self, uid: &str, asked: &PodSpec) -> bool {
        let mut known = self.known();
        let Some(known) = known.get_mut(uid) else { return true };
        let same = known.granted.is_of(asked);
        if same {
            known.pending = None;
        }
        same
    }

    /// What the spec says is applied. The resize that has ended with it, if one was under way and nothing
    /// else has been granted meanwhile.
    pub(crate) fn applied(&self, uid: &str, spec: &PodSpec) -> Option<Resizing> {
        let mut ended = None;
        self.change(uid, |known| {
            known.applied = Grant::of(spec);
            if known.granted.is_of(spec) {
                ended = known.resizing.take();
            }
        });
        ended
    }

    /// It did not work, and is tried again. True: that is news.
    pub(crate) fn failed(&self, uid: &str, why: &str) -> bool {
        let mut news = false;
        self.change(uid, |known| {
            if let Some(resizing) = &mut known.resizing {
                news = resizing.error.as_deref() != Some(why);
                resizing.error = Some(why.to_owned());
            }
        });
        news
    }

    pub(crate) fn remove(&self, uid: &str) {
        if self.known().remove(uid).is_some() {
            let _ = std::fs::remove_file(self.path(uid));
        }
    }

    fn change(&self, uid: &str, change: impl FnOnce(&mut Allocation)) {
        if let Some(known) = self.known().get_mut(uid) {
            change(known);
        }
        self.save(uid);
    }

    fn save(&self, uid: &str) {
        let Some(saved) = self.known().get(uid).map(Saved::of) else { return };
        let path = self.path(uid);
        let written = std::fs::create_dir_all(&self.dir)
            .and_then(|()| Ok(serde_json::to_vec(&saved)?))
            .and_then(|bytes| std::fs::write(path.with_extension("new"), bytes))
            .and_then(|()| std::fs::rename(path.with_extension("new"), &path));
        if let Err(error) = written {
            tracing::warn!(%error, uid, "what the pod was granted is not written down");
        }
    }

    fn path(&self, uid: &str) -> PathBuf {
        self.dir.join(format!("{uid}.json"))
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Allocation>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Allocation {
    /// PodResizePending and PodResizeInProgress, as far as they are so (N-118, N-119).
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

/// What an event says about a resize: `Pod resize started: {"containers":[…],"generation":2}`.
pub(crate) fn words(what: &str, pod: &Pod, generation: i64, error: &str) -> String {
    #[derive(serde::Serialize)]
    struct One<'a> {
        name: &'a str,
        resources: ResourceRequirements,
    }
    #[derive(serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct All<'a> {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        init_containers: Vec<One<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        containers: Vec<One<'a>>,
        generation: i64,
        #[serde(skip_serializing_if = "str::is_empty")]
        error: &'a str,
    }
    let one = |container: &'_ k8s_openapi::api::core::v1::Container| {
        container.resources.clone().unwrap_or_default()
    };
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let regular = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let all = All {
        init_containers: init.iter().map(|c| One { name: &c.name, resources: one(c) }).collect(),
        containers: regular.iter().map(|c| One { name: &c.name, resources: one(c) }).collect(),
        generation,
        error,
    };
    let json = serde_json::to_string(&all).unwrap_or_default();
    format!("Pod resize {what}: {json}")
}

/// What is in a file.
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
    fn of(known: &Allocation) -> Saved {
        let grant = |grant: &Grant| SavedGrant {
            pod: grant.pod.clone(),
            containers: grant.containers.clone(),
        };
        Saved {
            granted: grant(&known.granted),
            applied: grant(&known.applied),
            resizing: known.resizing.clone(),
        }
    }
}

/// None: it is not one of ours, or not whole.
fn read(path: &Path) -> Option<(String, Allocation)> {
    let uid = path.file_name()?.to_str()?.strip_suffix(".json")?;
    let saved: Saved = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let grant = |saved: SavedGrant| Grant { pod: saved.pod, containers: saved.containers };
    let known = Allocation {
        granted: grant(saved.granted),
        applied: grant(saved.applied),
        resizing: saved.resizing,
        pending: None,
    };
    Some((uid.to_owned(), known))
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
    fn n_122_what_was_granted_and_what_was_applied_outlive_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let allocations = Allocations::open(dir.path().join("allocations"));
        allocations.admit(&pod("1"));
        assert_eq!(cpu(&allocations.on(&pod("2"))), "1", "what is asked for later is not granted");
        allocations.grant("u", granted(&pod("2")), 3);
        assert!(allocations.failed("u", "no") && !allocations.failed("u", "no"));
        drop(allocations);
        let again = Allocations::open(dir.path().join("allocations"));
        again.admit(&pod("5"));
        assert_eq!(cpu(&again.on(&pod("5"))), "2");
        let known = again.get("u").unwrap();
        assert_eq!(known.applied, granted(&pod("1")));
        assert_eq!(known.resizing.as_ref().unwrap().error.as_deref(), Some("no"));
        let spec = pod("2").spec.clone().unwrap();
        assert_eq!(again.applied("u", &spec).unwrap().generation, 3);
        assert_eq!(again.get("u").unwrap().applied, granted(&pod("2")));
        again.retain(&BTreeSet::new());
        assert_eq!(std::fs::read_dir(dir.path().join("allocations")).unwrap().count(), 0);
    }

    /// N-119: what was granted while something else was being applied is still to be applied.
    #[test]
    fn a_resize_that_is_granted_meanwhile_is_not_taken_for_applied() {
        let dir = tempfile::tempdir().unwrap();
        let allocations = Allocations::open(dir.path().into());
        allocations.admit(&pod("1"));
        allocations.grant("u", granted(&pod("2")), 2);
        allocations.grant("u", granted(&pod("3")), 3);
        assert_eq!(allocations.applied("u", pod("2").spec.as_ref().unwrap()), None);
        let known = allocations.get("u").unwrap();
        assert_eq!((known.applied, known.granted), (granted(&pod("2")), granted(&pod("3"))));
        let ended = allocations.applied("u", pod("3").spec.as_ref().unwrap());
        assert_eq!(ended.map(|resizing| resizing.generation), Some(3));
    }

    #[test]
    fn n_118_n_119_conditions_say_what_waits_and_what_is_under_way_and_then_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let allocations = Allocations::open(dir.path().into());
        allocations.admit(&pod("1"));
        let said = || {
            let conditions = allocations.get("u").unwrap().conditions();
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
            conditions.iter().map(one).collect::<Vec<_>>()
        };
        assert_eq!(said(), Vec::<String>::new());
        assert!(allocations.wait("u", "Deferred", "short".into(), 2));
        assert!(!allocations.wait("u", "Deferred", "short".into(), 2), "said once");
        assert!(allocations.any_pending());
        assert_eq!(said(), ["PodResizePending=True 2 Deferred short"]);
        allocations.grant("u", granted(&pod("2")), 2);
        assert_eq!(said(), ["PodResizeInProgress=True 2  "]);
        allocations.failed("u", "why");
        assert_eq!(said(), ["PodResizeInProgress=True 2 Error why"]);
        allocations.applied("u", pod("2").spec.as_ref().unwrap());
        assert_eq!(said(), Vec::<String>::new(), "N-213");
    }

    #[test]
    fn n_118_n_119_events_carry_the_resources_the_generation_and_the_error() {
        let resources = r#"{"limits":{"memory":"1Gi"},"requests":{"cpu":"1"}}"#;
        assert_eq!(
            words("Deferred", &pod("1"), 4, "short"),
            format!(
                "Pod resize Deferred: {{\"containers\":[{{\"name\":\"a\",\"resources\":{resources}}}],\
                 \"generation\":4,\"error\":\"short\"}}"
            )
        );
        assert!(words("started", &pod("1"), 4, "").ends_with("\"generation\":4}"));
    }
}
