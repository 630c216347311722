//! The bootstrap objects are valid.

use super::*;
use access::default_roles;
use api::metadata;
use api::{At, Errors, Registry};
use jiff::Timestamp;
use serde_json::Value;
use std::collections::BTreeSet;

fn names(objects: &[Value]) -> Vec<String> {
    let name = |object: &Value| {
        format!("{}/{}", object["metadata"]["namespace"], object["metadata"]["name"])
    };
    objects.iter().map(name).collect()
}

#[test]
fn a_190_every_flow_schema_refers_to_an_existing_level() {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let levels: BTreeSet<String> = names(&priority_levels()).into_iter().collect();
    let schemas = flow_schemas(now);
    for schema in &schemas {
        let level = &schema["spec"]["priorityLevelConfiguration"]["name"];
        assert!(levels.contains(&format!("null/{level}")), "{level}");
        assert!(
            schema["spec"]["rules"][0]["subjects"].as_array().is_some_and(|who| !who.is_empty())
        );
    }
    let precedence = |name: &str| {
        let schema = schemas.iter().find(|schema| schema["metadata"]["name"] == name).unwrap();
        schema["spec"]["matchingPrecedence"].clone()
    };
    assert_eq!((precedence("exempt"), precedence("catch-all")), (1.into(), 10000.into()));
    assert_eq!((schemas.len(), levels.len()), (13, 8));
}

#[test]
fn a_159_a_160_the_cluster_starts_with_its_namespaces_service_and_classes() {
    let all = names(&namespaces());
    assert_eq!(all[1], "null/\"kube-system\"");
    assert_eq!(all.len(), 4);
    let values: Vec<i64> =
        priority_classes().iter().filter_map(|class| class["value"].as_i64()).collect();
    assert_eq!(values, [2_000_000_000, 2_000_001_000]);
    let ip = "10.96.0.1".parse().unwrap();
    assert_eq!(kubernetes_service(ip, 6443)["spec"]["clusterIP"], "10.96.0.1");
    let server = ["192.0.2.7:6443".parse().unwrap()].into();
    assert_eq!(endpoint_slices(&server)[0]["endpoints"][0]["addresses"][0], "192.0.2.7");
    assert_eq!(endpoints(&server)["subsets"][0]["ports"][0]["port"], 6443);
}

#[test]
fn a_160_servers_are_grouped_by_port_and_address_family() {
    let servers = ["192.0.2.7:6443", "[2001:db8::7]:6443", "192.0.2.8:6443", "192.0.2.8:7443"];
    let servers = servers.map(|server| server.parse().unwrap()).into();
    let slices: Vec<String> = endpoint_slices(&servers)
        .iter()
        .enumerate()
        .map(|(number, slice)| {
            let name = slice["metadata"]["name"].as_str().unwrap();
            assert_eq!(number_of_slice(name), Some(number));
            let endpoints = slice["endpoints"].as_array().unwrap().iter();
            let addresses: Vec<_> =
                endpoints.map(|endpoint| endpoint["addresses"][0].as_str().unwrap()).collect();
            format!("{name} {} {}", addresses.join(","), slice["ports"][0]["port"])
        })
        .collect();
    assert_eq!(
        slices,
        [
            "kubernetes 192.0.2.7,192.0.2.8 6443",
            "kubernetes-2 192.0.2.8 7443",
            "kubernetes-3 2001:db8::7 6443"
        ]
    );
    let subsets = &endpoints(&servers)["subsets"];
    assert_eq!(subsets[0]["addresses"].as_array().map(Vec::len), Some(3));
    assert_eq!(subsets[1]["addresses"][0]["ip"], "192.0.2.8");
    assert_eq!(number_of_slice("kubernetes-x2b4c"), None);
    assert_eq!(number_of_slice("kubernetes-02"), None);
}

#[test]
fn every_object_is_complete_and_valid() {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let server = ["192.0.2.7:6443".parse().unwrap()].into();
    let mut objects = [
        default_roles::cluster_roles(),
        default_roles::cluster_role_bindings(),
        default_roles::roles(),
        default_roles::role_bindings(),
        namespaces(),
        priority_classes(),
        flow_schemas(now),
        priority_levels(),
    ]
    .concat();
    objects.extend([
        kubernetes_service("10.96.0.1".parse().unwrap(), 6443),
        dns_service("10.96.0.10".parse().unwrap()),
        endpoint_slices(&server).remove(0),
        endpoints(&server),
        service_cidr(&["10.96.0.0/16".to_owned()], now),
        authentication_config_map("-----BEGIN CERTIFICATE-----"),
    ]);
    let registry = Registry::built_in();
    for object in objects {
        let api_version = object["apiVersion"].as_str().unwrap();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = registry.by_kind(group, version, object["kind"].as_str().unwrap()).unwrap();
        let decoded = api::decode::value(&kind.schema, kind.ty, object.clone()).unwrap();
        assert_eq!(decoded.problems, [], "{object}");
        let mut finished = decoded.value;
        let rules = rules::of(kind);
        (rules.default)(&mut finished);
        assert_eq!(finished, object, "defaults have nothing to add");
        let mut errors = Errors::default();
        let root = At::root(&finished);
        metadata::validate(&root, rules.name, kind.namespaced, &mut errors);
        (rules.validate)(&root, &mut errors);
        assert_eq!(errors, Errors::default(), "{object}");
    }
}
