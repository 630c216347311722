//! Performs the planned steps for a set's pods and claims in order, and records events (T-CTRL-23).

use super::claims::{self, OwnerUpdate};
use super::plan::{Step, is_parallel};
use super::{Controller, identity};
use crate::workload::{error_message, is_being_deleted, is_outdated, name, namespace};
use client::{CONCURRENT_MAX, DeleteOptions, Error, ObjectKey, Recorder, reference};
use futures::future::join_all;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::json;
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Done {
    All,
    /// A step must wait until another object is deleted.
    Blocked,
}

/// Records the result of a step for a pod (T-CTRL-23).
fn record(recorder: &Recorder, set: &StatefulSet, pod: &Pod, verb: &str, error: Option<&Error>) {
    let (on, what) = (reference(set), format!("{verb} Pod {} in StatefulSet", name(pod)));
    let set = name(set);
    match error {
        None => {
            let reason = format!("Successful{verb}");
            recorder.normal(&on, &reason, format!("{what} {set} successful"));
        }
        Some(error) => {
            let message = format!("{what} {set} failed error: {}", error_message(error));
            recorder.warning(&on, &format!("Failed{verb}"), message);
        }
    }
}

impl Controller<'_> {
    /// Performs the steps one after the other, or in batches of 1, 2, 4, … if the set is parallel. Stops at the first
    /// error, and at the first blocked step unless the set is parallel.
    pub(super) async fn perform(
        &self,
        set: &Arc<StatefulSet>,
        steps: Vec<Step>,
    ) -> client::Result<Done> {
        let mut size = 1;
        let mut left = steps.as_slice();
        let mut all = Done::All;
        while !left.is_empty() {
            let (batch, rest) = left.split_at(size.min(left.len()));
            for done in join_all(batch.iter().map(|step| self.perform_one(set, step))).await {
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

    async fn perform_one(&self, set: &Arc<StatefulSet>, step: &Step) -> client::Result<Done> {
        match step {
            Step::Create(pod) => self.create(set, pod).await,
            Step::Delete(pod) => self.delete(set, pod).await,
            Step::Label(pod) => self.label(set, pod).await,
            Step::MakeClaims(pod) => match self.make_claims(set, pod).await? {
                // The event is recorded when the pod is created; here it only blocks the following steps.
                Some(_) => Ok(Done::Blocked),
                None => self.own_claims(set, pod).await,
            },
            Step::OwnClaims(pod) => self.own_claims(set, pod).await,
        }
    }

    async fn create(&self, set: &Arc<StatefulSet>, pod: &Pod) -> client::Result<Done> {
        if self.has_stale_claim(set, pod) {
            return Ok(Done::Blocked);
        }
        if let Some(error) = self.make_claims(set, pod).await? {
            self.record(set, pod, "Create", Some(&error));
            return Err(error);
        }
        match self.cluster.client.create(pod).await {
            Ok(created) => {
                self.pod_writes.wrote(&ObjectKey::of(set.as_ref()), &created);
                self.record(set, pod, "Create", None);
                self.own_claims(set, &created).await
            }
            Err(error) if error.is_namespace_terminating() => Ok(Done::All),
            Err(error) => {
                self.record(set, pod, "Create", Some(&error));
                Err(error)
            }
        }
    }

    async fn delete(&self, set: &Arc<StatefulSet>, pod: &Arc<Pod>) -> client::Result<Done> {
        let options = DeleteOptions::only(pod.as_ref());
        let key = ObjectKey::of(pod.as_ref());
        match self.cluster.client.delete::<Pod>(&key, &options).await {
            Err(error) if !is_outdated(&error) => {
                self.record(set, pod, "Delete", Some(&error));
                return Err(error);
            }
            Err(_) => (),
            Ok(_) => self.record(set, pod, "Delete", None),
        }
        self.pod_writes.deleted(&ObjectKey::of(set.as_ref()), [pod.clone()]);
        Ok(Done::All)
    }

    /// Restores labels that somebody removed (C-62).
    async fn label(&self, set: &Arc<StatefulSet>, pod: &Arc<Pod>) -> client::Result<Done> {
        let Some(ordinal) = identity::ordinal(set, pod) else { return Ok(Done::All) };
        let patch = json!({ "metadata": {
            "resourceVersion": pod.metadata.resource_version,
            "labels": identity::labels(set, ordinal),
        }});
        match self.cluster.client.patch_merge::<Pod>(&ObjectKey::of(pod.as_ref()), &patch).await {
            Ok(written) => {
                self.pod_writes.wrote(&ObjectKey::of(set.as_ref()), &written);
                self.record(set, pod, "Update", None);
            }
            Err(error) if is_outdated(&error) => (),
            Err(error) => {
                self.record(set, pod, "Update", Some(&error));
                return Err(error);
            }
        }
        Ok(Done::All)
    }

    fn record(&self, set: &Arc<StatefulSet>, pod: &Pod, verb: &str, error: Option<&Error>) {
        record(&self.recorder, set, pod, verb, error);
    }

    /// Whether a claim will be deleted with an earlier pod of that name. The new pod waits for that (T-CTRL-22).
    fn has_stale_claim(&self, set: &Arc<StatefulSet>, pod: &Pod) -> bool {
        let ordinal = identity::ordinal(set, pod);
        let mut names = ordinal.into_iter().flat_map(|ordinal| claims::names(set, ordinal));
        names.any(|(_, claim)| {
            let claim = self.claims.get(&ObjectKey::new(namespace(set.as_ref()), &claim));
            claim.is_some_and(|claim| claims::is_stale(&claim, name(pod)))
        })
    }

    /// Creates missing claims. Returns an error text if some are being deleted (C-64).
    async fn make_claims(
        &self,
        set: &Arc<StatefulSet>,
        pod: &Pod,
    ) -> client::Result<Option<Error>> {
        let Some(ordinal) = identity::ordinal(set, pod) else { return Ok(None) };
        let mut terminating = Vec::new();
        for wanted in claims::make(set, ordinal) {
            match self.claims.get(&ObjectKey::of(&wanted)) {
                Some(claim) if is_being_deleted(claim.as_ref()) => {
                    terminating.push(format!("pvc {} is being deleted", name(&wanted)));
                }
                Some(_) => (),
                None => self.make_claim(set, pod, &wanted).await?,
            }
        }
        let why = match terminating.as_slice() {
            [] => return Ok(None),
            [one] => one.clone(),
            all => format!("[{}]", all.join(", ")),
        };
        Ok(Some(Error::Unsendable { doing: format!("create pod {}", name(pod)), why }))
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
                    format!("Create Claim {claim} Pod {pod} in StatefulSet {set_name} success");
                self.recorder.normal(&on, "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) if error.is_already_exists() => Ok(()),
            Err(error) => {
                let why = error_message(&error);
                let message = format!(
                    "Create Claim {claim} for Pod {pod} in StatefulSet {set_name} failed error: {why}"
                );
                self.recorder.warning(&on, "FailedCreate", message);
                Err(error)
            }
        }
    }

    /// Updates the owners of claims. Claims that were created just now have their owners and may be missing in the
    /// cache (C-65).
    async fn own_claims(&self, set: &Arc<StatefulSet>, pod: &Pod) -> client::Result<Done> {
        let Some(ordinal) = identity::ordinal(set, pod) else { return Ok(Done::All) };
        for (_, claim) in claims::names(set, ordinal) {
            let key = ObjectKey::new(namespace(set.as_ref()), &claim);
            let Some(claim) = self.claims.get(&key) else { continue };
            match claims::owners(set, pod, &claim) {
                OwnerUpdate::Unchanged => (),
                OwnerUpdate::Conflict => {
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
                OwnerUpdate::Replace(owners) => {
                    let mut claim = claim.as_ref().clone();
                    claim.metadata.owner_references = Some(owners);
                    let written = self.cluster.client.update(&claim).await?;
                    self.claim_writes.wrote(&ObjectKey::of(set.as_ref()), &written);
                }
            }
        }
        Ok(Done::All)
    }

    /// Writes the status if a number, revision or generation differs. The written status does not keep the
    /// conditions of others (C-14).
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

    /// T-CTRL-23, C-218: deleting a pod records an event; event reasons and messages are upstream's.
    #[test]
    fn t_ctrl_23_each_step_records_an_event() {
        let set = typed::from_value(json!({ "metadata": { "name": "db" } })).unwrap();
        let pod: Pod = typed::from_value(json!({ "metadata": { "name": "db-0" } })).unwrap();
        let no = Error::Unsendable { doing: "try".into(), why: "no".into() };
        let cases = [
            ("Create", None, Severity::Normal, "SuccessfulCreate", "successful"),
            ("Delete", None, Severity::Normal, "SuccessfulDelete", "successful"),
            ("Update", None, Severity::Normal, "SuccessfulUpdate", "successful"),
            ("Create", Some(&no), Severity::Warning, "FailedCreate", "failed error: no"),
            ("Delete", Some(&no), Severity::Warning, "FailedDelete", "failed error: no"),
        ];
        let (recorder, mut events) = Recorder::collecting();
        for (verb, error, severity, reason, end) in cases {
            record(&recorder, &set, &pod, verb, error);
            let event = events.try_recv().unwrap();
            assert_eq!((event.severity, event.reason.as_str()), (severity, reason));
            assert_eq!(event.message, format!("{verb} Pod db-0 in StatefulSet db {end}"));
        }
    }
}
