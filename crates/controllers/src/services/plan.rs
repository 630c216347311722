//! Distributes endpoints to slices of limited size with few writes (C-178, T-NET-8). Pure.

use super::backends::Port;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Endpoints by their sorted ports.
#[derive(Default)]
pub(super) struct Groups(BTreeMap<Vec<Port>, Group>);

struct Group {
    /// In the order of the Service.
    ports: Vec<Port>,
    endpoints: Vec<Endpoint>,
}

impl Groups {
    pub(super) fn add(&mut self, ports: Vec<Port>, endpoint: Endpoint) {
        let group = self.0.entry(sorted(ports.clone()));
        group.or_insert_with(|| Group { ports, endpoints: Vec::new() }).endpoints.push(endpoint);
    }
}

pub(super) fn sorted(mut ports: Vec<Port>) -> Vec<Port> {
    ports.sort();
    ports
}

/// The desired endpoints of one address type.
pub(super) struct Desired<'a> {
    pub(super) family: &'a str,
    pub(super) groups: Groups,
    /// Maximum number of endpoints per slice.
    pub(super) slice_max: usize,
    /// Metadata of every slice: labels, annotations, owner, namespace, generateName.
    pub(super) like: &'a ObjectMeta,
    /// Whether there is a slice even if there are no endpoints (C-177).
    pub(super) never_none: bool,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) create: Vec<EndpointSlice>,
    pub(super) update: Vec<EndpointSlice>,
    pub(super) delete: Vec<Arc<EndpointSlice>>,
}

/// `existing` are the slices of this address type, without those that are being deleted.
pub(super) fn plan(wanted: Desired<'_>, existing: Vec<Arc<EndpointSlice>>) -> Plan {
    let mut plan = Plan::default();
    let mut by_ports: BTreeMap<Vec<Port>, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
    let all = existing.len();
    for slice in existing {
        if owner_uid(&slice.metadata) == owner_uid(wanted.like) {
            by_ports.entry(sorted(ports_of(&slice))).or_default().push(slice);
        } else {
            plan.delete.push(slice);
        }
    }
    for (ports, group) in &wanted.groups.0 {
        let slices = by_ports.remove(ports).unwrap_or_default();
        fill(&mut plan, &wanted, group, slices);
    }
    plan.delete.extend(by_ports.into_values().flatten());
    if wanted.never_none && plan.create.is_empty() && plan.delete.len() == all {
        plan.create.push(slice(&wanted, &[], Vec::new()));
    }
    recycle(&mut plan, wanted.like);
    plan
}

/// Plans the slices of one set of ports. Endpoints are not moved between slices.
fn fill(plan: &mut Plan, wanted: &Desired<'_>, group: &Group, slices: Vec<Arc<EndpointSlice>>) {
    let (ports, slice_max) = (&group.ports, wanted.slice_max);
    let mut left: BTreeMap<String, &Endpoint> =
        group.endpoints.iter().map(|endpoint| (identity(endpoint), endpoint)).collect();
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
    // Fill the fullest first, so that others can become empty.
    changed.sort_by_key(|(_, endpoints)| Reverse(endpoints.len()));
    for (_, endpoints) in &mut changed {
        let room = slice_max.saturating_sub(endpoints.len()).min(left.len());
        endpoints.extend(left.drain(..room));
    }
    while !left.is_empty() {
        let fits = |slice: &Arc<EndpointSlice>| count(slice) + left.len() <= slice_max;
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
                let rest = left.split_off(left.len().min(slice_max));
                let full = std::mem::replace(&mut left, rest);
                plan.create.push(slice(wanted, ports, full));
            }
        }
    }
    plan.update.extend(changed.into_iter().map(|(existing, endpoints)| EndpointSlice {
        metadata: with_metadata(&existing.metadata, wanted.like),
        ..slice(wanted, ports, endpoints)
    }));
}

/// Updates slices that would be deleted instead of creating new ones.
fn recycle(plan: &mut Plan, like: &ObjectMeta) {
    let is_ours = |slice: &Arc<EndpointSlice>| owner_uid(&slice.metadata) == owner_uid(like);
    while let Some(index) = plan.delete.iter().position(is_ours) {
        let Some(new) = plan.create.pop() else { return };
        let old = plan.delete.remove(index);
        let same = ports_of(&old) == ports_of(&new) && count(&old) == 0 && count(&new) == 0;
        if !same || !is_like(&old.metadata, like) {
            plan.update.push(EndpointSlice { metadata: with_metadata(&old.metadata, like), ..new });
        }
    }
}

fn count(slice: &EndpointSlice) -> usize {
    slice.endpoints.as_ref().map_or(0, Vec::len)
}

/// Identifies an endpoint regardless of its state. Upstream: `hashEndpoint`.
pub(super) fn identity(endpoint: &Endpoint) -> String {
    let target = endpoint.target_ref.as_ref();
    let namespace = target.and_then(|target| target.namespace.as_deref()).unwrap_or_default();
    let name = target.and_then(|target| target.name.as_deref()).unwrap_or_default();
    let hostname = endpoint.hostname.as_deref().unwrap_or_default();
    format!("{} {namespace}/{name} {hostname}", endpoint.addresses.join(","))
}

fn owner_uid(meta: &ObjectMeta) -> Option<&str> {
    let mut owners = meta.owner_references.iter().flatten();
    let controls = |owner: &&OwnerReference| owner.controller == Some(true);
    owners.find(controls).map(|owner| owner.uid.as_str())
}

fn is_like(meta: &ObjectMeta, like: &ObjectMeta) -> bool {
    let annotations = |meta: &ObjectMeta| {
        let mut annotations = meta.annotations.clone().unwrap_or_default();
        annotations.remove(super::TRIGGER_TIME);
        annotations
    };
    meta.labels == like.labels
        && (like.annotations.is_none() || annotations(meta) == annotations(like))
        && meta.owner_references == like.owner_references
}

fn with_metadata(meta: &ObjectMeta, like: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        labels: like.labels.clone(),
        owner_references: like.owner_references.clone(),
        annotations: like.annotations.clone().or_else(|| meta.annotations.clone()),
        ..meta.clone()
    }
}

fn slice(wanted: &Desired<'_>, ports: &[Port], endpoints: Vec<Endpoint>) -> EndpointSlice {
    let list = ports.iter().map(|port| EndpointPort {
        name: Some(port.name.clone()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone()),
        app_protocol: port.app_protocol.clone(),
    });
    EndpointSlice {
        address_type: wanted.family.to_owned(),
        metadata: wanted.like.clone(),
        ports: (!ports.is_empty()).then(|| list.collect()),
        endpoints: Some(endpoints),
    }
}

pub(super) fn ports_of(slice: &EndpointSlice) -> Vec<Port> {
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
    use serde_json::{Value, json};
    use std::ops::Range;

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

    fn grouped(each: impl Iterator<Item = (Vec<Port>, Endpoint)>) -> Groups {
        let mut groups = Groups::default();
        each.for_each(|(ports, endpoint)| groups.add(ports, endpoint));
        groups
    }

    fn groups(number: i32, endpoints: impl Iterator<Item = usize>) -> Groups {
        grouped(endpoints.map(|n| (port(number), endpoint(n))))
    }

    fn planned(groups: Groups, existing: &[EndpointSlice]) -> Plan {
        let wanted =
            Desired { family: "IPv4", groups, slice_max: 100, like: &like(), never_none: true };
        plan(wanted, existing.iter().cloned().map(Arc::new).collect())
    }

    /// The slices after a plan.
    fn performed(existing: &[EndpointSlice], plan: Plan) -> Vec<EndpointSlice> {
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

    /// Slices of port 80 with these endpoints.
    fn slices_of(each: &[Range<usize>]) -> Vec<EndpointSlice> {
        let laid = each.iter().enumerate().map(|(number, range)| {
            let plan = planned(groups(80, range.clone()), &[]);
            let mut slice = plan.create.into_iter().next().unwrap();
            slice.metadata.name = Some(format!("web-{number}"));
            slice
        });
        laid.collect()
    }

    /// NET-79, T-NET-8: first surplus endpoints are removed, then slices that are written anyway are filled, the
    /// fullest first, then the rest goes into the best fitting slice, or into new ones. No endpoint is moved.
    #[test]
    fn net_79_c_178_slices_are_filled_with_few_writes() {
        /// Name, slices, desired endpoints, sizes of slices afterwards, writes.
        type Row<'a> = (&'a str, &'a [Range<usize>], &'a [Range<usize>], &'a [usize], usize);
        let only = |from: usize, to: usize| from..to;
        #[rustfmt::skip]
        let rows: &[Row<'_>] = &[
            ("no slices yet", &[], &[only(0, 250)], &[100, 100, 50], 3),
            ("no change", &[0..60, 100..190], &[0..60, 100..190], &[60, 90], 0),
            ("small slices are not merged", &[0..1, 1..2, 2..3], &[only(0, 3)], &[1, 1, 1], 0),
            ("an empty slice is deleted", &[0..2, 2..3], &[only(0, 2)], &[2], 1),
            ("those that are written are filled", &[0..60, 100..190, 200..210],
             &[1..60, 101..190, 200..210, 300..302], &[59, 91, 10], 2),
            ("and then the next fullest", &[0..60, 100..190, 200..210],
             &[1..60, 101..190, 200..210, 300..315], &[63, 100, 10], 2),
            ("best where it all fits", &[0..40, 100..160, 200..295],
             &[0..40, 100..160, 200..295, 300..310], &[40, 70, 95], 1),
            ("if it fits", &[0..40, 100..160], &[0..40, 100..160, 300..345], &[85, 60], 1),
            ("else in a new one", &[0..40, 100..160], &[0..40, 100..160, 300..370], &[40, 60, 70], 1),
            ("a hundred and the rest", &[0..40, 100..160], &[0..40, 100..160, 300..430],
             &[40, 90, 100], 2),
            ("a replacement is an update", &[only(0, 1)], &[only(1, 2)], &[1], 1),
        ];
        for (what, slices, wanted, expected, writes) in rows {
            let slices = slices_of(slices);
            let plan = planned(groups(80, wanted.iter().cloned().flatten()), &slices);
            assert_eq!(
                plan.create.len() + plan.update.len() + plan.delete.len(),
                *writes,
                "{what}"
            );
            let after = performed(&slices, plan);
            assert_eq!(sizes(&after), *expected, "{what}");
            let again = planned(groups(80, wanted.iter().cloned().flatten()), &after);
            assert_eq!(again, Plan::default(), "{what}: the next plan is empty");
        }
    }

    /// NET-79: a slice that would be deleted is updated instead, even with other ports.
    #[test]
    fn net_79_a_slice_is_reused_for_other_ports() {
        let slices = performed(&[], planned(groups(80, 0..2), &[]));
        let plan = planned(groups(81, 0..2), &slices);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0));
        assert_eq!(plan.update[0].metadata.name, slices[0].metadata.name);
        assert_eq!(plan.update[0].ports.as_ref().unwrap()[0].port, Some(81));
    }

    /// NET-80: addresses, hostname, and the pod's namespace and name identify an endpoint.
    #[test]
    fn net_80_other_changes_of_an_endpoint_keep_its_position() {
        let read = |value: Value| -> Endpoint { serde_json::from_value(value).unwrap() };
        let pod = |address: &str, name: &str, uid: &str, more: Value| {
            let target = json!({ "kind": "Pod", "namespace": "ns", "name": name, "uid": uid });
            let mut endpoint = json!({ "addresses": [address], "targetRef": target });
            endpoint.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read(endpoint)
        };
        let one = |endpoint: &Endpoint| [(port(80), endpoint.clone())].into_iter();
        let before = pod("10.0.0.1", "a", "1", json!({}));
        // It is between others, so that its position can be checked.
        let others = |n: usize| (port(80), endpoint(500 + n));
        let slices = performed(&[], planned(grouped((0..3).map(others).chain(one(&before))), &[]));
        let names = |slice: &EndpointSlice| -> Vec<String> {
            slice.endpoints.iter().flatten().map(identity).collect()
        };
        for (what, after, same) in [
            ("its uid", pod("10.0.0.1", "a", "2", json!({})), true),
            ("its node", pod("10.0.0.1", "a", "1", json!({ "nodeName": "n" })), true),
            ("its zone", pod("10.0.0.1", "a", "1", json!({ "zone": "z" })), true),
            (
                "a condition",
                pod("10.0.0.1", "a", "1", json!({ "conditions": { "ready": false } })),
                true,
            ),
            ("its address", pod("10.0.0.2", "a", "1", json!({})), false),
            ("its hostname", pod("10.0.0.1", "a", "1", json!({ "hostname": "h" })), false),
            ("its pod", pod("10.0.0.1", "b", "1", json!({})), false),
        ] {
            let plan = planned(grouped((0..3).map(others).chain(one(&after))), &slices);
            assert_eq!(
                (plan.create.len(), plan.update.len(), plan.delete.len()),
                (0, 1, 0),
                "{what}"
            );
            let now = &plan.update[0];
            assert!(now.endpoints.as_ref().unwrap().contains(&after), "{what}");
            assert_eq!(names(now) == names(&slices[0]), same, "{what}");
        }
    }

    /// NET-78: the order of ports in a Service does not matter.
    #[test]
    fn net_78_the_same_ports_in_another_order_are_the_same_slice() {
        let listed = |numbers: [i32; 2]| -> Vec<Port> {
            let named = |number| Port { name: format!("p{number}"), ..port(number).remove(0) };
            numbers.map(named).into()
        };
        let slices =
            performed(&[], planned(grouped([(listed([81, 80]), endpoint(0))].into_iter()), &[]));
        let shown = |slice: &EndpointSlice| -> Vec<i32> {
            slice.ports.iter().flatten().filter_map(|port| port.port).collect()
        };
        assert_eq!(shown(&slices[0]), [81, 80], "in the order of the Service");
        let turned = grouped([(listed([80, 81]), endpoint(0))].into_iter());
        assert_eq!(planned(turned, &slices), Plan::default());
        let both = [(listed([80, 81]), endpoint(0)), (listed([81, 80]), endpoint(1))];
        let plan = planned(grouped(both.into_iter()), &slices);
        assert_eq!(sizes(&performed(&slices, plan)), [2]);
    }

    #[test]
    fn c_177_there_is_always_a_slice_and_new_endpoints_use_it() {
        let empty = performed(&[], planned(Groups::default(), &[]));
        assert_eq!(sizes(&empty), [0]);
        assert_eq!(empty[0].ports, None);
        assert_eq!(planned(Groups::default(), &empty), Plan::default());
        let plan = planned(groups(80, 0..1), &empty);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0));
        let one = performed(&empty, plan);
        let plan = planned(Groups::default(), &one);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0));
        assert_eq!(sizes(&performed(&one, plan)), [0]);
    }

    #[test]
    fn c_177_slices_of_another_owner_are_deleted() {
        let mut foreign = performed(&[], planned(groups(80, 0..1), &[]));
        foreign[0].metadata.owner_references = None;
        let plan = planned(groups(80, 0..1), &foreign);
        assert_eq!((plan.create.len(), plan.delete.len()), (1, 1));
    }

    #[test]
    fn c_176_pods_with_other_port_numbers_are_in_other_slices() {
        let number = |n: usize| if n < 2 { 80 } else { 81 };
        let both = grouped((0..3).map(|n| (port(number(n)), endpoint(n))));
        assert_eq!(sizes(&performed(&[], planned(both, &[]))), [2, 1]);
    }

    #[test]
    fn labels_of_the_service_are_copied_to_its_slices() {
        let mut slices = performed(&[], planned(groups(80, 0..1), &[]));
        slices[0].metadata.labels = None;
        let plan = planned(groups(80, 0..1), &slices);
        assert_eq!(plan.update.len(), 1);
        assert_eq!(plan.update[0].metadata.labels, like().labels);
    }
}
