//! Waits for one pod until nothing sends it new connections.

use super::Drains;
use super::participant::{DrainParticipant, object_name};
use super::requirement::{
    Requirement, Selected, is_coming, lists, name, newest, requirement, selects,
};
use super::settings::Settings;
use crate::watched::BY_SERVICE;
use client::{ObjectKey, Selection};
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
    /// Who has acknowledged.
    acknowledged: BTreeSet<String>,
    waiting: Vec<String>,
}

impl Wait {
    pub(super) fn new(drains: Drains, pod: Pod, settings: Settings) -> Wait {
        Wait { drains, pod, settings, acknowledged: BTreeSet::new(), waiting: Vec::new() }
    }

    /// Runs until the last update was sent or the receiver is dropped.
    pub(super) fn updates(self) -> mpsc::Receiver<Update> {
        let (sender, receiver) = mpsc::channel(UPDATES_MAX);
        let limit = self.settings.timeout.map(|limit| Instant::now() + limit);
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
        // After a restart of the agent they may not be complete yet.
        self.drains.participants.synced().await;
        self.drains.watched.pods.synced().await;
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

    /// The Services that select the pod or whose slices list it, from the API server: a cache may lag behind.
    async fn services(&mut self, updates: &mpsc::Sender<Update>) -> Vec<Arc<Service>> {
        let namespace = self.pod.metadata.namespace.clone().unwrap_or_default();
        let mut pause = RETRY.0;
        loop {
            let which = Selection::namespace(&namespace);
            match self.drains.client.list::<Service>(&which).await {
                Ok(all) => {
                    let relevant = all.into_iter().map(Arc::new).filter(|service| {
                        selects(service, &self.pod)
                            || lists(&self.pod, &self.with_slices(service.clone()))
                    });
                    return relevant.collect();
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
        let mut current_services = self.drains.watched.services.versions();
        let mut last_since = None;
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
                    let until = *last_since.get_or_insert_with(Instant::now) + REPLACEMENT_WAIT;
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
                _ = current_services.changed() => {}
                () = reached(replacement_until) => {}
            }
        }
    }

    /// These Services as they are now, with their slices. Deleted ones are left out.
    fn selected(&self, services: &[Arc<Service>]) -> Vec<Selected> {
        let present = services.iter().filter_map(|service| self.current(service));
        present.map(|service| self.with_slices(service)).collect()
    }

    fn with_slices(&self, service: Arc<Service>) -> Selected {
        let slices = self.drains.watched.slices.by_index(BY_SERVICE, &name(&service));
        Selected { service, slices }
    }

    /// The newer of this state of the Service and the one in the cache. None: it was deleted.
    fn current(&self, service: &Arc<Service>) -> Option<Arc<Service>> {
        let services = &self.drains.watched.services;
        let version = service.metadata.resource_version.as_deref().unwrap_or_default();
        let is_seen = version.parse().is_ok_and(|it: u64| it <= services.versions().current());
        match is_seen {
            true => services.get(&ObjectKey::of(&**service)),
            false => Some(service.clone()),
        }
    }

    fn replacement_is_coming(&self, selected: &[Selected]) -> bool {
        let namespace = self.pod.metadata.namespace.as_deref().unwrap_or_default();
        let (pods, node) =
            (self.drains.watched.pods.in_namespace(namespace), &self.drains.config.node_name);
        selected.iter().any(|selected| pods.iter().any(|pod| is_coming(selected, pod, node)))
    }

    /// Waits until all participants have committed this version of the slices. False: in the meantime the other endpoints
    /// have gone, so that proxies use the pod again.
    async fn all_committed(
        &mut self,
        version: u64,
        services: &[Arc<Service>],
        updates: &mpsc::Sender<Update>,
    ) -> bool {
        let by_service: Vec<(String, u64)> = self
            .selected(services)
            .iter()
            .map(|one| (name(&one.service), newest(std::slice::from_ref(one)).min(version)))
            .collect();
        let mut slices = self.drains.watched.slices.versions();
        let mut participants = self.drains.participants.versions();
        let mut nodes = self.drains.watched.nodes.versions();
        let mut committed = self.drains.committed.clone();
        loop {
            let own = (self.drains.config.node_name.as_str(), *committed.borrow_and_update());
            let nodes_now = self.drains.watched.nodes.list();
            let known = self.drains.participants.list();
            let mut missing = Vec::new();
            for Asked { who, committed, required } in
                asked(own, &nodes_now, &known, version, &by_service)
            {
                if committed < required {
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

/// Somebody who has to acknowledge.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    who: String,
    committed: u64,
    required: u64,
}

/// Everybody who has to acknowledge: this node (`own`, with what it has committed), all other ready nodes, and registered
/// participants that serve one of the Services. A participant of certain Services watches only their slices, so that only
/// their versions are required of it.
fn asked(
    own: (&str, u64),
    nodes: &[Arc<Node>],
    participants: &[Arc<DrainParticipant>],
    version: u64,
    by_service: &[(String, u64)],
) -> Vec<Asked> {
    let by_name: HashMap<&str, &DrainParticipant> =
        participants.iter().map(|participant| (participant.name(), &**participant)).collect();
    let of_node = |name: &str, committed| {
        let who = format!("node {name}");
        Asked { who, committed, required: version }
    };
    let mut asked = vec![of_node(own.0, own.1)];
    for node in nodes.iter().filter(|node| is_ready(node)) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        if name != own.0 {
            let participant = by_name.get(&*object_name(name));
            asked.push(of_node(name, participant.map_or(0, |participant| participant.committed())));
        }
    }
    for other in participants.iter().filter(|other| other.node().is_none()) {
        let served = by_service.iter().filter(|(service, _)| other.serves(service));
        let required = match other.spec.services.is_empty() {
            true => Some(version),
            false => served.map(|(_, version)| *version).max(),
        };
        asked.extend(required.map(|required| {
            let who = other.name().to_owned();
            Asked { who, committed: other.committed(), required }
        }));
    }
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
        let services = [("d/web".to_owned(), 6), ("d/headless".to_owned(), 9)];
        let asked = asked(("n1", 9), &nodes, &participants, 9, &services);
        let asked: Vec<(&str, u64, u64)> =
            asked.iter().map(|it| (it.who.as_str(), it.committed, it.required)).collect();
        let expected = [
            ("node n1", 9, 9),
            ("node n2", 7, 9),
            ("node n4", 0, 9),
            ("lb", 8, 6),
            ("everything", 0, 9),
        ];
        assert_eq!(asked, expected);
    }
}
