//! Spreads endpoints over slices: at most 100 in each, as few writes as possible (C-178, T-NET-8).
//! Pure.

use super::backends::Port;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Upstream: `MaxEndpointsPerSlice`.
pub(super) const SLICE_MAX: usize = 100;

/// Endpoints by the ports they share.
pub(super) type Groups = BTreeMap<Vec<Port>, Vec<Endpoint>>;

/// What slices of one address type should say.
pub(super) struct Wanted<'a> {
    pub(super) family: &'a str,
    pub(super) groups: Groups,
    /// What every slice of this kind has: labels, annotations, owner, namespace, generateName.
    pub(super) like: &'a ObjectMeta,
    /// Whether there is a slice even if there is nothing to say (C-177).
    pub(super) never_none: bool,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) create: Vec<EndpointSlice>,
    pub(super) update: Vec<EndpointSlice>,
    pub(super) delete: Vec<Arc<EndpointSlice>>,
}

/// `existing` are the slices of this address type.
pub(super) fn plan(wanted: Wanted<'_>, existing: Vec<Arc<EndpointSlice>>) -> Plan {
    let mut plan = Plan::default();
    let mut by_ports: BTreeMap<Vec<Port>, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
    let all = existing.len();
    for slice in existing {
        let going = slice.metadata.deletion_timestamp.is_some();
        if !going && owner_uid(&slice.metadata) == owner_uid(wanted.like) {
            by_ports.entry(ports_of(&slice)).or_default().push(slice);
        } else {
            plan.delete.push(slice);
        }
    }
    for (ports, endpoints) in &wanted.groups {
        let slices = by_ports.remove(ports).unwrap_or_default();
        fill(&mut plan, &wanted, ports, endpoints, slices);
    }
    plan.delete.extend(by_ports.into_values().flatten());
    if wanted.never_none && plan.create.is_empty() && plan.delete.len() == all {
        plan.create.push(slice(&wanted, &[], Vec::new()));
    }
    recycle(&mut plan, wanted.like);
    plan
}

/// The slices of one set of ports. Endpoints stay where they are.
fn fill(
    plan: &mut Plan,
    wanted: &Wanted<'_>,
    ports: &[Port],
    endpoints: &[Endpoint],
    slices: Vec<Arc<EndpointSlice>>,
) {
    let mut left: BTreeMap<String, &Endpoint> =
        endpoints.iter().map(|endpoint| (identity(endpoint), endpoint)).collect();
    let (mut changed, mut unchanged) = (Vec::new(), Vec::new());
    for existing in slices {
        let before = existing.endpoints.as_deref().unwrap_or_default();
        let stay: Vec<Endpoint> =
            before.iter().filter_map(|e| left.remove(&identity(e)).cloned()).collect();
        if stay.is_empty() {
            plan.delete.push(existing);
        } else if stay != before || !is_like(&existing.metadata, wanted.like) {
            changed.push((existing, stay));
        } else {
            unchanged.push(existing);
        }
    }
    let mut left: Vec<Endpoint> = left.into_values().cloned().collect();
    for (_, endpoints) in &mut changed {
        let room = SLICE_MAX.saturating_sub(endpoints.len()).min(left.len());
        endpoints.extend(left.drain(..room));
    }
    while !left.is_empty() {
        let fits = |slice: &Arc<EndpointSlice>| count(slice) + left.len() <= SLICE_MAX;
        let fullest = unchanged.iter().enumerate().filter(|(_, slice)| fits(slice));
        let fullest = fullest.max_by_key(|(_, slice)| count(slice)).map(|(index, _)| index);
        match fullest {
            Some(index) => {
                let existing = unchanged.swap_remove(index);
                let mut endpoints = existing.endpoints.clone().unwrap_or_default();
                endpoints.append(&mut left);
                changed.push((existing, endpoints));
            }
            None => {
                let rest = left.split_off(left.len().min(SLICE_MAX));
                let full = std::mem::replace(&mut left, rest);
                plan.create.push(slice(wanted, ports, full));
            }
        }
    }
    plan.update.extend(changed.into_iter().map(|(existing, endpoints)| EndpointSlice {
        metadata: dressed(&existing.metadata, wanted.like),
        ..slice(wanted, ports, endpoints)
    }));
}

/// A slice that would go can become one that would come.
fn recycle(plan: &mut Plan, like: &ObjectMeta) {
    let is_ours = |slice: &Arc<EndpointSlice>| {
        let going = slice.metadata.deletion_timestamp.is_some();
        !going && owner_uid(&slice.metadata) == owner_uid(like)
    };
    while let Some(index) = plan.delete.iter().position(is_ours) {
        let Some(new) = plan.create.pop() else { return };
        let old = plan.delete.remove(index);
        let same = ports_of(&old) == ports_of(&new) && count(&old) == 0 && count(&new) == 0;
        if !same || !is_like(&old.metadata, like) {
            plan.update.push(EndpointSlice { metadata: dressed(&old.metadata, like), ..new });
        }
    }
}

fn count(slice: &EndpointSlice) -> usize {
    slice.endpoints.as_ref().map_or(0, Vec::len)
}

/// Who an endpoint is, whatever its state.
fn identity(endpoint: &Endpoint) -> String {
    let target = endpoint.target_ref.as_ref();
    let uid = target.and_then(|target| target.uid.as_deref()).unwrap_or_default();
    let hostname = endpoint.hostname.as_deref().unwrap_or_default();
    format!("{} {uid} {hostname}", endpoint.addresses.join(","))
}

fn owner_uid(meta: &ObjectMeta) -> Option<&str> {
    let mut owners = meta.owner_references.iter().flatten();
    let controls = |owner: &&OwnerReference| owner.controller == Some(true);
    owners.find(controls).map(|owner| owner.uid.as_str())
}

fn is_like(meta: &ObjectMeta, like: &ObjectMeta) -> bool {
    let said = |meta: &ObjectMeta| {
        let mut annotations = meta.annotations.clone().unwrap_or_default();
        annotations.remove(super::TRIGGER_TIME);
        annotations
    };
    meta.labels == like.labels
        && (like.annotations.is_none() || said(meta) == said(like))
        && meta.owner_references == like.owner_references
}

fn dressed(meta: &ObjectMeta, like: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        labels: like.labels.clone(),
        owner_references: like.owner_references.clone(),
        annotations: like.annotations.clone().or_else(|| meta.annotations.clone()),
        ..meta.clone()
    }
}

fn slice(wanted: &Wanted<'_>, ports: &[Port], endpoints: Vec<Endpoint>) -> EndpointSlice {
    let ports = ports.iter().map(|port| EndpointPort {
        name: Some(port.name.clone()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone()),
        app_protocol: port.app_protocol.clone(),
    });
    EndpointSlice {
        address_type: wanted.family.to_owned(),
        metadata: wanted.like.clone(),
        ports: Some(ports.collect()),
        endpoints: Some(endpoints),
    }
}

fn ports_of(slice: &EndpointSlice) -> Vec<Port> {
    let ports = slice.ports.iter().flatten().map(|port| Port {
        name: port.name.clone().unwrap_or_default(),
        port: port.port.unwrap_or_default(),
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
        app_protocol: port.app_protocol.clone(),
    });
    ports.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn like() -> ObjectMeta {
        ObjectMeta {
            generate_name: Some("web-".into()),
            labels: Some([("a".into(), "b".into())].into()),
            owner_references: Some(vec![OwnerReference {
                uid: "svc".into(),
                controller: Some(true),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        }
    }

    fn port(number: i32) -> Vec<Port> {
        let (name, protocol) = (String::new(), "TCP".to_owned());
        vec![Port { name, port: number, protocol, app_protocol: None }]
    }

    fn endpoint(number: usize) -> Endpoint {
        Endpoint {
            addresses: vec![format!("10.0.{}.{}", number / 250, number % 250)],
            ..Endpoint::default()
        }
    }

    fn groups(number: i32, endpoints: impl Iterator<Item = usize>) -> Groups {
        [(port(number), endpoints.map(endpoint).collect())].into()
    }

    fn planned(groups: Groups, existing: &[EndpointSlice]) -> Plan {
        let wanted = Wanted { family: "IPv4", groups, like: &like(), never_none: true };
        plan(wanted, existing.iter().cloned().map(Arc::new).collect())
    }

    /// What is there after a plan is carried out.
    fn carried_out(existing: &[EndpointSlice], plan: Plan) -> Vec<EndpointSlice> {
        let name = |slice: &EndpointSlice| slice.metadata.name.clone();
        let mut after: Vec<EndpointSlice> = existing
            .iter()
            .filter(|slice| !plan.delete.iter().any(|gone| name(gone) == name(slice)))
            .map(|slice| {
                plan.update.iter().find(|new| name(new) == name(slice)).unwrap_or(slice).clone()
            })
            .collect();
        for mut slice in plan.create {
            slice.metadata.name = Some(format!("web-{}", clock::uuid()));
            after.push(slice);
        }
        after
    }

    fn sizes(slices: &[EndpointSlice]) -> Vec<usize> {
        slices.iter().map(count).collect()
    }

    #[test]
    fn t_net_8_a_slice_takes_a_hundred() {
        let slices = carried_out(&[], planned(groups(80, 0..250), &[]));
        assert_eq!(sizes(&slices), [100, 100, 50]);
        assert_eq!(planned(groups(80, 0..250), &slices), Plan::default(), "and then rests");
    }

    #[test]
    fn c_177_there_is_always_a_slice_and_it_is_used_when_pods_come() {
        let empty = carried_out(&[], planned(Groups::new(), &[]));
        assert_eq!(sizes(&empty), [0]);
        assert_eq!(empty[0].ports, Some(vec![]));
        assert_eq!(planned(Groups::new(), &empty), Plan::default());
        let plan = planned(groups(80, 0..1), &empty);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0));
        let one = carried_out(&empty, plan);
        let plan = planned(Groups::new(), &one);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0));
        assert_eq!(sizes(&carried_out(&one, plan)), [0]);
    }

    #[test]
    fn c_177_slices_of_another_owner_go() {
        let mut foreign = carried_out(&[], planned(groups(80, 0..1), &[]));
        foreign[0].metadata.owner_references = None;
        let plan = planned(groups(80, 0..1), &foreign);
        assert_eq!((plan.create.len(), plan.delete.len()), (1, 1));
    }

    #[test]
    fn c_178_endpoints_stay_where_they_are_and_room_is_used_in_slices_that_change() {
        let slices = carried_out(&[], planned(groups(80, 0..150), &[]));
        assert_eq!(sizes(&slices), [100, 50]);
        // One goes from the first slice, three come: the first changes anyway and takes one.
        let after = groups(80, (1..150).chain(200..203));
        let plan = planned(after, &slices);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 2, 0));
        assert_eq!(sizes(&carried_out(&slices, plan)), [100, 52]);
        // One comes: only the slice with room changes.
        let plan = planned(groups(80, 0..151), &slices);
        assert_eq!(plan.update.len(), 1);
        assert_eq!(count(&plan.update[0]), 51);
    }

    #[test]
    fn c_176_pods_with_other_port_numbers_are_in_other_slices() {
        let both: Groups = groups(80, 0..2).into_iter().chain(groups(81, 2..3)).collect();
        assert_eq!(sizes(&carried_out(&[], planned(both, &[]))), [2, 1]);
    }

    #[test]
    fn labels_of_the_service_reach_its_slices() {
        let mut slices = carried_out(&[], planned(groups(80, 0..1), &[]));
        slices[0].metadata.labels = None;
        let plan = planned(groups(80, 0..1), &slices);
        assert_eq!(plan.update.len(), 1);
        assert_eq!(plan.update[0].metadata.labels, like().labels);
    }
}
