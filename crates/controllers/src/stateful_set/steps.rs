//! Does what was planned for a set's pods and claims, in its order, and tells of it (T-CTRL-23).

use super::claims::{self, Owners};
use super::plan::{Step, is_parallel};
use super::{Controller, identity};
use crate::workload::{is_deleted, is_outdated, name, why};
use client::{CONCURRENT_MAX, DeleteOptions, Error, ObjectKey, Recorder, reference};
use futures::future::join_all;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::json;
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Done {
    All,
    /// Something must go first.
    Blocked,
}

/// What became of a pod of the set (T-CTRL-23).
fn tell(recorder: &Recorder, set: &StatefulSet, pod: &Pod, verb: &str, error: Option<&Error>) {
    let said = verb.to_lowercase();
    let (on, what) = (reference(set), format!("{said} Pod {} in StatefulSet", name(pod)));
    let set = name(set);
    match error {
        None => {
            let reason = format!("Successful{verb}");
            recorder.normal(&on, &reason, format!("{what} {set} successful"));
        }
        Some(error) => {
            let message = format!("{what} {set} failed error: {}", why(error));
            recorder.warning(&on, &format!("Failed{verb}"), message);
        }
    }
}

impl Controller<'_> {
    /// One after the other, or if the set is parallel in batches of 1, 2, 4, …. The first failure,
    /// and the first step that is blocked, is the last.
    pub(super) async fn take(
        &self,
        set: &Arc<StatefulSet>,
        steps: Vec<Step>,
    ) -> client::Result<Done> {
        let mut size = 1;
        let mut left = steps.as_slice();
        let mut all = Done::All;
        while !left.is_empty() {
            let (batch, rest) = left.split_at(size.min(left.len()));
            for done in join_all(batch.iter().map(|step| self.take_one(set, step))).await {
                if done? == Done::Blocked {
                    all = Done::Blocked;
                }
            }
            left = rest;
            if is_parallel(set) {
                size = (size * 2).min(CONCURRENT_MAX);
            } else if all == Done::Blocked {
                break;
            }
        }
        Ok(all)
    }

    async fn take_one(&self, set: &Arc<StatefulSet>, step: &Step) -> client::Result<Done> {
        match step {
            Step::Create(pod) => self.create(set, pod).await,
            Step::Delete(pod) => self.delete(set, pod).await,
            Step::Label(pod) => self.label(set, pod).await,
            Step::MakeClaims(pod) => self.make_claims(set, pod).await,
            Step::OwnClaims(pod) => self.own_claims(set, pod).await,
        }
    }

    async fn create(&self, set: &Arc<StatefulSet>, pod: &Pod) -> client::Result<Done> {
        if self.make_claims(set, pod).await? == Done::Blocked {
            return Ok(Done::Blocked);
        }
        match self.cluster.client.create(pod).await {
            Ok(created) => {
                self.pod_writes.wrote(&ObjectKey::of(set.as_ref()), &created);
                self.tell(set, pod, "Create", None);
                Ok(Done::All)
            }
            Err(error) if error.is_namespace_terminating() => Ok(Done::All),
            Err(error) => {
                self.tell(set, pod, "Create", Some(&error));
                Err(error)
            }
        }
    }

    async fn delete(&self, set: &Arc<StatefulSet>, pod: &Arc<Pod>) -> client::Result<Done> {
        let options = DeleteOptions::only(pod.as_ref());
        let key = ObjectKey::of(pod.as_ref());
        match self.cluster.client.delete::<Pod>(&key, &options).await {
            Err(error) if !is_outdated(&error) => {
                self.tell(set, pod, "Delete", Some(&error));
                return Err(error);
            }
            Err(_) => (),
            Ok(_) => self.tell(set, pod, "Delete", None),
        }
        self.pod_writes.deleted(&ObjectKey::of(set.as_ref()), [pod.clone()]);
        Ok(Done::All)
    }

    /// Puts labels back that somebody took away (C-62).
    async fn label(&self, set: &Arc<StatefulSet>, pod: &Arc<Pod>) -> client::Result<Done> {
        let Some(ordinal) = identity::ordinal(set, pod) else { return Ok(Done::All) };
        let patch = json!({ "metadata": {
            "resourceVersion": pod.metadata.resource_version,
            "labels": identity::labels(set, ordinal),
        }});
        match self.cluster.client.patch_merge::<Pod>(&ObjectKey::of(pod.as_ref()), &patch).await {
            Ok(written) => {
                self.pod_writes.wrote(&ObjectKey::of(set.as_ref()), &written);
                self.tell(set, pod, "Update", None);
            }
            Err(error) if is_outdated(&error) => (),
            Err(error) => {
                self.tell(set, pod, "Update", Some(&error));
                return Err(error);
            }
        }
        Ok(Done::All)
    }

    fn tell(&self, set: &Arc<StatefulSet>, pod: &Pod, verb: &str, error: Option<&Error>) {
        tell(&self.recorder, set, pod, verb, error);
    }

    /// Makes the claims that are missing. One that is going, or goes with an earlier pod of that
    /// name, blocks the pod (C-64, T-CTRL-22).
    async fn make_claims(&self, set: &Arc<StatefulSet>, pod: &Pod) -> client::Result<Done> {
        let Some(ordinal) = identity::ordinal(set, pod) else { return Ok(Done::All) };
        for wanted in claims::make(set, ordinal) {
            let there = self.claims.get(&ObjectKey::of(&wanted));
            let is_new = pod.metadata.uid.is_none();
            match there {
                Some(claim) if is_deleted(claim.as_ref()) => return Ok(Done::Blocked),
                Some(claim) if is_new && claims::is_stale(&claim, name(pod)) => {
                    return Ok(Done::Blocked);
                }
                Some(_) => (),
                None => self.make_claim(set, pod, &wanted).await?,
            }
        }
        Ok(Done::All)
    }

    async fn make_claim(
        &self,
        set: &Arc<StatefulSet>,
        pod: &Pod,
        wanted: &PersistentVolumeClaim,
    ) -> client::Result<()> {
        let (on, claim) = (reference(set.as_ref()), name(wanted));
        let (pod, set_name) = (name(pod), name(set.as_ref()));
        match self.cluster.client.create(wanted).await {
            Ok(created) => {
                self.claim_writes.wrote(&ObjectKey::of(set.as_ref()), &created);
                let message =
                    format!("create Claim {claim} Pod {pod} in StatefulSet {set_name} success");
                self.recorder.normal(&on, "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) if error.is_already_exists() => Ok(()),
            Err(error) => {
                let why = why(&error);
                let message = format!(
                    "create Claim {claim} for Pod {pod} in StatefulSet {set_name} failed error: {why}"
                );
                self.recorder.warning(&on, "FailedCreate", message);
                Err(error)
            }
        }
    }

    async fn own_claims(&self, set: &Arc<StatefulSet>, pod: &Arc<Pod>) -> client::Result<Done> {
        let Some(ordinal) = identity::ordinal(set, pod) else { return Ok(Done::All) };
        for (_, claim) in claims::names(set, ordinal) {
            let key = ObjectKey::new(crate::workload::namespace(set.as_ref()), &claim);
            let Some(claim) = self.claims.get(&key) else { continue };
            match claims::owners(set, pod, &claim) {
                Owners::AsTheyAre => (),
                Owners::Conflict => {
                    let message = format!(
                        "PersistentVolumeClaim {} has a conflicting OwnerReference that acts as a \
                         managing controller, the retention policy is ignored for this claim",
                        name(claim.as_ref())
                    );
                    self.recorder.warning(
                        &reference(set.as_ref()),
                        "ConflictingController",
                        message,
                    );
                }
                Owners::Become(owners) => {
                    let mut claim = claim.as_ref().clone();
                    claim.metadata.owner_references = Some(owners);
                    let written = self.cluster.client.update(&claim).await?;
                    self.claim_writes.wrote(&ObjectKey::of(set.as_ref()), &written);
                }
            }
        }
        Ok(Done::All)
    }

    /// Writes the status if a number, revision or generation differs; it is a fresh one then, without
    /// the conditions of others (C-14).
    pub(super) async fn report(
        &self,
        set: &Arc<StatefulSet>,
        status: StatefulSetStatus,
    ) -> client::Result<()> {
        let before = set.status.clone().unwrap_or_default();
        let same = StatefulSetStatus { conditions: before.conditions.clone(), ..status.clone() };
        if same == before && set.status.is_some() {
            return Ok(());
        }
        match self.cluster.client.update_status(set.as_ref(), status).await {
            Err(error) if is_outdated(&error) => Ok(()),
            written => written,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::Severity;

    /// T-CTRL-23, C-218
    #[test]
    fn t_ctrl_23_what_becomes_of_a_pod_is_told() {
        let set = serde_json::from_value(json!({ "metadata": { "name": "db" } })).unwrap();
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "db-0" } })).unwrap();
        let no = Error::Unsendable { doing: "try".into(), why: "no".into() };
        let cases = [
            ("Create", None, Severity::Normal, "SuccessfulCreate", "successful"),
            ("Delete", None, Severity::Normal, "SuccessfulDelete", "successful"),
            ("Update", None, Severity::Normal, "SuccessfulUpdate", "successful"),
            ("Create", Some(&no), Severity::Warning, "FailedCreate", "failed error: no"),
            ("Delete", Some(&no), Severity::Warning, "FailedDelete", "failed error: no"),
        ];
        let (recorder, mut told) = Recorder::collecting();
        for (verb, error, severity, reason, end) in cases {
            tell(&recorder, &set, &pod, verb, error);
            let told = told.try_recv().unwrap();
            assert_eq!((told.severity, told.reason.as_str()), (severity, reason));
            assert_eq!(told.message, format!("{verb} Pod db-0 in StatefulSet db {end}"));
        }
    }
}
            let verb = verb.to_lowercase();
