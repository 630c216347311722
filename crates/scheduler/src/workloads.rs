//! Which pods belong together: those of a Service, a ReplicaSet, a StatefulSet, a
//! ReplicationController. They are spread a little even if nobody asks for it (N-192).

use crate::census::Question;
use crate::pod::PodInfo;
use api::selector::LabelSelector;
use client::ObjectKey;
use std::collections::{BTreeMap, HashMap};

#[derive(Debug, Default)]
pub(crate) struct Workloads {
    services: BTreeMap<ObjectKey, LabelSelector>,
    /// By kind, namespace and name.
    owners: HashMap<(&'static str, ObjectKey), LabelSelector>,
}

impl Workloads {
    /// A Service without a selector selects nothing.
    pub(crate) fn put_service(&mut self, key: &ObjectKey, selector: Option<LabelSelector>) {
        match selector.filter(|selector| !selector.is_everything()) {
            Some(selector) => drop(self.services.insert(key.clone(), selector)),
            None => drop(self.services.remove(key)),
        }
    }

    pub(crate) fn put_owner(
        &mut self,
        kind: &'static str,
        key: &ObjectKey,
        selector: Option<LabelSelector>,
    ) {
        let key = (kind, key.clone());
        match selector {
            Some(selector) => drop(self.owners.insert(key, selector)),
            None => drop(self.owners.remove(&key)),
        }
    }

    /// The pods that this one belongs with, if it belongs with any.
    pub(crate) fn siblings(&self, pod: &PodInfo) -> Option<Question> {
        let namespace = pod.namespace();
        let services = self.services.range(ObjectKey::new(namespace, "")..);
        let services = services.take_while(|(key, _)| key.namespace() == namespace);
        let services = services.map(|(_, selector)| selector);
        let ours = services.filter(|selector| selector.matches(|key| pod.label(key)));
        let owners = pod.pod.metadata.owner_references.iter().flatten();
        let owner = owners.filter(|owner| owner.controller == Some(true)).find_map(|owner| {
            let kinds = ["ReplicaSet", "StatefulSet", "ReplicationController"];
            let kind = kinds.into_iter().find(|kind| *kind == owner.kind)?;
            self.owners.get(&(kind, ObjectKey::new(namespace, &owner.name)))
        });
        let here = Some([namespace.to_owned()].into());
        let all: Vec<_> =
            ours.chain(owner).map(|selector| (here.clone(), selector.clone())).collect();
        (!all.is_empty()).then_some(Question { all, staying: true })
    }
}
