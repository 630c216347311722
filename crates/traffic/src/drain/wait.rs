//! Waits for one pod until nothing sends it new connections.

use super::Drains;
use super::participant::{DrainParticipant, object_name};
use super::requirement::{Requirement, Selected, is_coming, name, newest, requirement, selects};
use super::settings::Settings;
use crate::watched::BY_SERVICE;
use client::Selection;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use lifecycle::drain::DrainUpdate as Update;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Updates that the receiver has not read yet.
const UPDATES_MAX: usize = 64;
/// Pauses between attempts to list the Services, doubling.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// The last endpoint of a Service waits this long for a pod that replaces it to be created.
const REPLACEMENT_WAIT: Duration = Duration::from_secs(1);

pub(super) struct Wait {
    drains: Drains,
    pod: Pod,
    settings: Settings,
    began: Instant,
    /// Who has acknowledged.
    acknowledged: BTreeSet<String>,
    waiting: Vec<String>,
}

impl Wait {
    pub(super) fn new(drains: Drains, pod: Pod, settings: Settings) -> Wait {
        Wait {
            drains,
            pod,
            settings,
            began: Instant::now(),
            acknowledged: BTreeSet::new(),
            waiting: Vec::new(),
        }
    }

    /// Runs until the last update was sent or the receiver is dropped.
    pub(super) fn updates(self) -> mpsc::Receiver<Update> {
        let (sender, receiver) = mpsc::channel(UPDATES_MAX);
        let limit = self.settings.timeout.map(|limit| self.began + limit);
        tokio::spawn(async move {
            let last = tokio::select! {
                () = self.run(&sender) => Update::Drained,
                () = reached(limit) => Update::TimedOut,
                () = sender.closed() => return,
            };
            let _ = sender.send(last).await;
        });
        receiver
    }

    async fn run(mut self, updates: &mpsc::Sender<Update>) {
        let services = self.services(updates).await;
        if services.is_empty() {
            return;
        }
        loop {
            let version = self.required_version(&services, updates).await;
            // Other participants learn from it that an acknowledgement is wanted.
            self.drains.awaits.send_if_modified(|awaits| {
                let newer = version > *awaits;
                *awaits = version.max(*awaits);
                newer
            });
            if self.all_committed(version, &services, updates).await {
                return;
            }
        }
    }

    /// The Services that select the pod, from the API server: a cache may lag behind.
    async fn services(&mut self, updates: &mpsc::Sender<Update>) -> Vec<Arc<Service>> {
        let namespace = self.pod.metadata.namespace.clone().unwrap_or_default();
        let mut pause = RETRY.0;
        loop {
            let which = Selection::namespace(&namespace);
            match self.drains.client.list::<Service>(&which).await {
                Ok(all) => {
                    let selecting = all.into_iter().filter(|service| selects(service, &self.pod));
                    return selecting.map(Arc::new).collect();
                }
                Err(error) => {
                    tracing::info!(%error, "listing the Services of a terminating pod failed, will retry");
                    self.report(vec!["the API server".to_owned()], updates).await;
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY.1);
                }
            }
        }
    }

    /// Waits until the slices show that the pod terminates and that other endpoints can be used.
    async fn required_version(
        &mut self,
        services: &[Arc<Service>],
        updates: &mpsc::Sender<Update>,
    ) -> u64 {
        let mut slices = self.drains.watched.slices.versions();
        let mut pods = self.drains.watched.pods.versions();
        loop {
            let selected = self.selected(services);
            let mut replacement_until = None;
            match requirement(&self.pod, &self.drains.config.node_name, &selected) {
                Requirement::Committed(version) => return version,
                Requirement::NotMarked(names) => {
                    let missing = names.iter().map(|name| format!("the EndpointSlices of {name}"));
                    self.report(missing.collect(), updates).await;
                }
                Requirement::LastEndpoint(names) => {
                    let until = self.began + REPLACEMENT_WAIT;
                    if !self.replacement_is_coming(&selected) {
                        if Instant::now() >= until {
                            // Nothing could take the pod's connections, however long it waits.
                            return newest(&selected);
                        }
                        replacement_until = Some(until);
                    }
                    let missing = names.iter().map(|name| format!("another endpoint of {name}"));
                    self.report(missing.collect(), updates).await;
                }
            }
            tokio::select! {
                _ = slices.changed() => {}
                _ = pods.changed() => {}
                () = reached(replacement_until) => {}
            }
        }
    }

    /// The slices of these Services, without Services that were deleted in the meantime.
    fn selected(&self, services: &[Arc<Service>]) -> Vec<Selected> {
        let watched = &self.drains.watched;
        let slices = |service: &Arc<Service>| Selected {
            slices: watched.slices.by_index(BY_SERVICE, &name(service)),
            service: service.clone(),
        };
        let present = services.iter().map(slices).filter(|selected| {
            // A Service that this node has not seen yet has no slices here either.
            !selected.slices.is_empty() || !self.was_deleted(&selected.service)
        });
        present.collect()
    }

    /// The cache has seen a newer state than the Service, and does not have it.
    fn was_deleted(&self, service: &Service) -> bool {
        let services = &self.drains.watched.services;
        let version = service.metadata.resource_version.as_deref().unwrap_or_default();
        let seen =
            version.parse::<u64>().is_ok_and(|version| version <= services.versions().current());
        seen && services.get(&client::ObjectKey::of(service)).is_none()
    }

    fn replacement_is_coming(&self, selected: &[Selected]) -> bool {
        let namespace = self.pod.metadata.namespace.as_deref().unwrap_or_default();
        let pods = self.drains.watched.pods.in_namespace(namespace);
        selected.iter().any(|selected| pods.iter().any(|pod| is_coming(selected, pod)))
    }

    /// Waits until all participants have committed this version of the slices. False: in the meantime the other endpoints
    /// have gone, so that proxies use the pod again.
    async fn all_committed(
        &mut self,
        version: u64,
        services: &[Arc<Service>],
        updates: &mpsc::Sender<Update>,
    ) -> bool {
        let names: Vec<String> = services.iter().map(|service| name(service)).collect();
        let mut slices = self.drains.watched.slices.versions();
        let mut participants = self.drains.participants.versions();
        let mut nodes = self.drains.watched.nodes.versions();
        let mut committed = self.drains.committed.clone();
        loop {
            let own = *committed.borrow_and_update();
            let known = self.drains.participants.list();
            let asked = asked(
                &self.drains.config.node_name,
                own,
                &self.drains.watched.nodes.list(),
                &known,
                &names,
            );
            let mut missing = Vec::new();
            for (who, committed) in asked {
                if committed < version {
                    missing.push(who);
                } else if self.acknowledged.insert(who.clone()) {
                    let _ = updates.send(Update::Acknowledged(who)).await;
                }
            }
            if missing.is_empty() {
                return true;
            }
            self.report(missing, updates).await;
            let alive = tokio::select! {
                changed = participants.changed() => changed,
                changed = nodes.changed() => changed,
                changed = committed.changed() => changed.is_ok(),
                changed = slices.changed() => changed,
            };
            if !alive {
                return std::future::pending().await; // The proxy has stopped; the grace period is the limit.
            }
            if self.is_used_again(services) {
                self.acknowledged.clear();
                return false;
            }
        }
    }

    fn is_used_again(&self, services: &[Arc<Service>]) -> bool {
        let selected = self.selected(services);
        let required = requirement(&self.pod, &self.drains.config.node_name, &selected);
        matches!(required, Requirement::LastEndpoint(_)) && self.replacement_is_coming(&selected)
    }

    async fn report(&mut self, missing: Vec<String>, updates: &mpsc::Sender<Update>) {
        if missing != self.waiting {
            self.waiting = missing.clone();
            let _ = updates.send(Update::Waiting(missing)).await;
        }
    }
}

/// Everybody who has to acknowledge, and what they have committed: this node, all other ready nodes, and registered
/// participants that serve one of the Services.
fn asked(
    own_name: &str,
    own_committed: u64,
    nodes: &[Arc<Node>],
    participants: &[Arc<DrainParticipant>],
    services: &[String],
) -> Vec<(String, u64)> {
    let by_name: HashMap<&str, &DrainParticipant> =
        participants.iter().map(|participant| (participant.name(), &**participant)).collect();
    let mut asked = vec![(format!("node {own_name}"), own_committed)];
    for node in nodes.iter().filter(|node| is_ready(node)) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        if name == own_name {
            continue;
        }
        let participant = by_name.get(&*object_name(name));
        let committed = participant.map_or(0, |participant| participant.committed());
        asked.push((format!("node {name}"), committed));
    }
    let others = participants.iter().filter(|other| other.node().is_none());
    let others = others.filter(|other| other.serves(services));
    asked.extend(others.map(|other| (other.name().to_owned(), other.committed())));
    asked
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut ready = conditions.into_iter().flatten().filter(|condition| condition.type_ == "Ready");
    ready.any(|condition| condition.status == "True")
}

async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_ready_nodes_and_the_registered_participants_of_the_services_are_asked() {
        let node = |name: &str, ready: &str| -> Arc<Node> {
            let conditions = json!([{ "type": "Ready", "status": ready,
                "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z" }]);
            let node =
                json!({ "metadata": { "name": name }, "status": { "conditions": conditions } });
            Arc::new(typed::from_value(node).unwrap())
        };
        let participant = |name: &str, services: &[&str], committed: &str| {
            let object = json!({ "apiVersion": "landfall.dev/v1", "kind": "DrainParticipant",
                "metadata": { "name": name }, "spec": { "services": services },
                "status": { "committed": committed } });
            Arc::new(serde_json::from_value::<DrainParticipant>(object).unwrap())
        };
        let nodes =
            [node("n1", "True"), node("n2", "True"), node("n3", "Unknown"), node("n4", "True")];
        let participants = [
            participant("node.n1", &[], "3"),
            participant("node.n2", &[], "7"),
            participant("node.gone", &[], "1"),
            participant("lb", &["d/web"], "8"),
            participant("everything", &[], ""),
            participant("elsewhere", &["d/other"], "2"),
        ];
        let asked = asked("n1", 9, &nodes, &participants, &["d/web".to_owned()]);
        let asked: Vec<(&str, u64)> = asked.iter().map(|(who, it)| (who.as_str(), *it)).collect();
        let expected =
            [("node n1", 9), ("node n2", 7), ("node n4", 0), ("lb", 8), ("everything", 0)];
        assert_eq!(asked, expected);
    }
}
