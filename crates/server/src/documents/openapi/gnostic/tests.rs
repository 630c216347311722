//! Decodes the encoded document with only the wire format and the field numbers of the published message.

use super::super::fixtures::{schema, with_cron_tab};
use super::*;

/// The fields of a message: number and content. Only the wire types that occur here.
fn fields(mut bytes: &[u8]) -> Vec<(u32, &[u8])> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => {
                let before = bytes;
                varint(&mut bytes);
                fields.push(((key >> 3) as u32, &before[..before.len() - bytes.len()]));
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            other => panic!("wire type {other}"),
        };
        let (content, rest) = bytes.split_at(length);
        fields.push(((key >> 3) as u32, content));
        bytes = rest;
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

fn one(bytes: &[u8], number: u32) -> &[u8] {
    all(bytes, number).first().copied().unwrap_or_else(|| panic!("no field {number}"))
}

fn all(bytes: &[u8], number: u32) -> Vec<&[u8]> {
    fields(bytes).into_iter().filter(|field| field.0 == number).map(|field| field.1).collect()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The value of a `Named…` message in a list of them.
fn by_name<'a>(bytes: &'a [u8], number: u32, name: &str) -> &'a [u8] {
    let found = all(bytes, number).into_iter().find(|named| text(one(named, 1)) == name);
    one(found.unwrap_or_else(|| panic!("no {name}")), 2)
}

fn extension(message: &[u8], number: u32, name: &str) -> Value {
    serde_json::from_str(text(one(by_name(message, number, name), 2))).unwrap()
}

#[test]
fn a_52_the_protobuf_document_has_the_same_content_as_the_json() {
    let registry = with_cron_tab(schema());
    let document = document_bytes(&registry);
    assert_eq!(text(one(&document, 1)), "2.0");
    assert_eq!(text(one(one(&document, 2), 1)), "Kubernetes");
    let json = v2::document(&registry);
    let count = |key: &str| json[key].as_object().unwrap().len();
    assert_eq!(all(one(&document, 8), 2).len(), count("paths"));
    assert_eq!(all(one(&document, 9), 1).len(), count("definitions"));
    assert_eq!(all(one(&document, 10), 1).len(), count("parameters"));
}

#[test]
fn a_53_kubectl_finds_merge_keys_and_kinds() {
    let document = document_bytes(&Registry::built_in());
    let definitions = one(&document, 9);
    let pod = by_name(definitions, 1, "io.k8s.api.core.v1.Pod");
    assert_eq!(
        extension(pod, 31, "x-kubernetes-group-version-kind"),
        serde_json::json!([{"group": "", "version": "v1", "kind": "Pod"}])
    );
    assert_eq!(text(one(one(pod, 22), 1)), "object");
    let spec = by_name(one(pod, 25), 1, "spec");
    assert_eq!(text(one(spec, 1)), "#/definitions/io.k8s.api.core.v1.PodSpec");
    let spec = by_name(definitions, 1, "io.k8s.api.core.v1.PodSpec");
    assert_eq!(all(spec, 19), [b"containers"]);
    let containers = by_name(one(spec, 25), 1, "containers");
    assert_eq!(extension(containers, 31, "x-kubernetes-patch-merge-key"), "name");
    assert_eq!(text(one(one(containers, 22), 1)), "array");
    let item = one(one(containers, 23), 1);
    assert_eq!(text(one(item, 1)), "#/definitions/io.k8s.api.core.v1.Container");
}

#[test]
fn a_53_kubectl_finds_that_a_patch_can_be_a_dry_run() {
    let document = document_bytes(&Registry::built_in());
    let path = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}";
    let patch = one(by_name(one(&document, 8), 2, path), 8);
    assert_eq!(extension(patch, 13, "x-kubernetes-group-version-kind")["kind"], "Deployment");
    let queries: Vec<&str> = all(patch, 8)
        .iter()
        .filter_map(|item| all(item, 1).first().copied()) // Parameter
        .filter_map(|parameter| all(parameter, 2).first().copied()) // NonBodyParameter
        .filter_map(|place| all(place, 3).first().copied()) // QueryParameterSubSchema
        .map(|query| text(one(query, 4)))
        .collect();
    assert_eq!(queries, ["dryRun", "fieldManager", "fieldValidation"]);
    // The body is a parameter too, and there is a response.
    let body = one(one(one(all(patch, 8)[0], 1), 1), 5);
    assert!(text(one(body, 1)).ends_with("meta.v1.Patch"));
    let answer = one(one(by_name(one(patch, 9), 1, "200"), 1), 2);
    assert!(text(one(one(answer, 1), 1)).ends_with("v1.Deployment"));
}
