//! Turns the generated Kubernetes types into the two files that the `schema` module reads: the
//! structure of every type (text, read at start) and the descriptions (gzip, read on first use).
//!
//! The files are checked in under `src/schema`, so that a build does not have to compile the generated
//! types. The tests here regenerate both and fail if one is out of date; `make schema` then writes it.
//! That happens with another version of `k8s-openapi`, another kind in `add_kinds` or a change of our own
//! types in `schema/`.
//!
//! The structure has one block per type, types sorted by name:
//!
//! ```text
//! =io.k8s.api.core.v1.Pod        an object type, followed by its fields
//! metadata #571                  optional field; `#571` is the 571st type of the file
//! containers! [#12               required field; a list of the 12th type
//! :io.k8s….Quantity q            a named type that is not an object
//! ```
//!
//! Not here, because the generated types do not contain them: how lists merge
//! (`src/schema/merge_rules.rs`) and protobuf numbers (`src/protobuf/numbers.txt`).

mod drain;
mod fields;
mod terminations;
mod usage;

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// Set by `make schema`: the test writes a file that is out of date instead of failing.
const WRITE: &str = "LANDFALL_WRITE_SCHEMA";

#[test]
fn the_structure_file_is_up_to_date() {
    let path = path_of("structure.txt");
    let current = structure(&types());
    if fs::read_to_string(&path).ok().as_ref() != Some(&current) {
        write(&path, current.as_bytes());
    }
}

/// Compares unpacked text: another version of flate2 may compress it differently.
#[test]
fn the_descriptions_file_is_up_to_date() {
    let path = path_of("descriptions.gz");
    let current = descriptions(&types());
    if fs::read(&path).ok().and_then(|packed| unpack(&packed)).as_ref() != Some(&current) {
        write(&path, &pack(&current));
    }
}

fn path_of(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/schema").join(file)
}

/// Writes the file if `make schema` runs the test, else fails.
fn write(path: &Path, bytes: &[u8]) {
    let may_write = std::env::var_os(WRITE).is_some();
    assert!(may_write, "{} is out of date; run `make schema`", path.display());
    fs::write(path, bytes).unwrap();
}

/// Deterministic: the gzip header has neither a time nor a name.
fn pack(text: &str) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(text.as_bytes()).unwrap();
    gzip.finish().unwrap()
}

/// `None` if the data is corrupt, for example after a failed merge.
fn unpack(packed: &[u8]) -> Option<String> {
    let mut text = String::new();
    GzDecoder::new(packed).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The JSON schema of every type that a served kind reaches, by name.
fn types() -> BTreeMap<String, Value> {
    let mut generator = SchemaSettings::draft07().into_generator();
    let listed = add_kinds(&mut generator);
    let mut types: BTreeMap<String, Value> =
        generator.take_definitions(false).into_iter().collect();
    let ours = [terminations::types(), drain::types()];
    let with_lists = ours.iter().filter_map(|types| Some(types.first()?.0.clone()));
    let listed = listed.into_iter().chain(with_lists).chain(usage::listed());
    for name in listed {
        let (list, schema) = list_of(&name);
        types.insert(list, schema);
    }
    types.extend(ours.into_iter().flatten());
    types.extend(usage::types());
    types.insert(format!("{META}.CreateOptions"), write_options("CreateOptions", false));
    types.insert(format!("{META}.UpdateOptions"), write_options("UpdateOptions", false));
    types.insert(format!("{META}.PatchOptions"), write_options("PatchOptions", true));
    types
}

macro_rules! add {
    ($generator:ident: $($ty:ty),* $(,)?) => {
        [$({
            $generator.subschema_for::<$ty>();
            <$ty>::schema_name().into_owned()
        }),*]
    };
}

/// Adds the kinds and all they refer to; returns the names of those that have a list kind.
#[rustfmt::skip]
fn add_kinds(generator: &mut SchemaGenerator) -> Vec<String> {
    use k8s_openapi::api::*;
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
    use k8s_openapi::kube_aggregator::pkg::apis::apiregistration;

    // Never stored, so there is no list kind.
    add![generator:
        core::v1::Binding,
        authentication::v1::SelfSubjectReview, authentication::v1::TokenReview,
        authentication::v1::TokenRequest,
        authorization::v1::LocalSubjectAccessReview, authorization::v1::SelfSubjectAccessReview,
        authorization::v1::SelfSubjectRulesReview, authorization::v1::SubjectAccessReview,
        autoscaling::v1::Scale, policy::v1::Eviction,
        meta::APIGroup, meta::APIGroupList, meta::APIResourceList, meta::APIVersions,
        meta::DeleteOptions, meta::ListMeta, meta::Status,
    ];
    add![generator:
        core::v1::ComponentStatus, core::v1::ConfigMap, core::v1::Endpoints, core::v1::Event,
        core::v1::LimitRange, core::v1::Namespace, core::v1::Node, core::v1::PersistentVolumeClaim,
        core::v1::PersistentVolume, core::v1::Pod, core::v1::PodTemplate,
        core::v1::ReplicationController, core::v1::ResourceQuota, core::v1::Secret,
        core::v1::ServiceAccount, core::v1::Service,
        apiregistration::v1::APIService,
        apps::v1::ControllerRevision, apps::v1::DaemonSet, apps::v1::Deployment,
        apps::v1::ReplicaSet, apps::v1::StatefulSet,
        events::v1::Event,
        autoscaling::v2::HorizontalPodAutoscaler, autoscaling::v1::HorizontalPodAutoscaler,
        batch::v1::CronJob, batch::v1::Job,
        certificates::v1::CertificateSigningRequest,
        networking::v1::IngressClass, networking::v1::Ingress, networking::v1::IPAddress,
        networking::v1::NetworkPolicy, networking::v1::ServiceCIDR,
        policy::v1::PodDisruptionBudget,
        rbac::v1::ClusterRoleBinding, rbac::v1::ClusterRole, rbac::v1::RoleBinding, rbac::v1::Role,
        storage::v1::CSIDriver, storage::v1::CSINode, storage::v1::CSIStorageCapacity,
        storage::v1::StorageClass, storage::v1::VolumeAttachment, storage::v1::VolumeAttributesClass,
        admissionregistration::v1::MutatingAdmissionPolicy,
        admissionregistration::v1::MutatingAdmissionPolicyBinding,
        admissionregistration::v1::MutatingWebhookConfiguration,
        admissionregistration::v1::ValidatingAdmissionPolicy,
        admissionregistration::v1::ValidatingAdmissionPolicyBinding,
        admissionregistration::v1::ValidatingWebhookConfiguration,
        apiextensions::v1::CustomResourceDefinition,
        scheduling::v1::PriorityClass, coordination::v1::Lease, node::v1::RuntimeClass,
        discovery::v1::EndpointSlice,
        resource::v1::DeviceClass, resource::v1::ResourceClaim, resource::v1::ResourceClaimTemplate,
        resource::v1::ResourceSlice,
        flowcontrol::v1::FlowSchema, flowcontrol::v1::PriorityLevelConfiguration,
    ].into()
}

fn list_of(item: &str) -> (String, Value) {
    let kind = item.rsplit('.').next().unwrap_or(item);
    let schema = json!({
        "description": format!("{kind}List is a list of {kind} objects."),
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string", "description": "The version of the API this list is in."},
            "kind": {"type": "string", "description": format!("Always {kind}List.")},
            "metadata": {
                "$ref": format!("#/definitions/{META}.ListMeta"),
                "description": "Standard list metadata.",
            },
            "items": {
                "type": "array",
                "items": {"$ref": format!("#/definitions/{item}")},
                "description": "The objects.",
            },
        },
        "required": ["items"],
    });
    (format!("{item}List"), schema)
}

/// The options of writes, which are query parameters and not in the generated types.
fn write_options(kind: &str, force: bool) -> Value {
    let mut schema = json!({
        "description": format!("{kind} may be given with the request."),
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "dryRun": {"type": "array", "items": {"type": "string"}},
            "fieldManager": {"type": "string"},
            "fieldValidation": {"type": "string"},
        },
    });
    if force {
        schema["properties"]["force"] = json!({"type": "boolean"});
    }
    schema
}

fn structure(types: &BTreeMap<String, Value>) -> String {
    let places: BTreeMap<&str, usize> =
        types.keys().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
    let mut out = String::new();
    for (name, schema) in types {
        if let Some(shape) = special(name) {
            let _ = writeln!(out, ":{name} {shape}");
        } else {
            assert_eq!(schema["type"], "object", "{name} is neither an object nor known");
            let _ = writeln!(out, "={name}");
            write_fields(&mut out, schema, &places);
        }
    }
    out
}

fn write_fields(out: &mut String, object: &Value, places: &BTreeMap<&str, usize>) {
    let required = object["required"].as_array().map_or(&[][..], Vec::as_slice);
    for (field, schema) in object["properties"].as_object().into_iter().flatten() {
        let mark = if required.contains(&json!(field)) { "!" } else { "" };
        let _ = writeln!(out, "{field}{mark} {}", shape(schema, places));
    }
}

/// Types whose JSON differs from their schema.
fn special(name: &str) -> Option<&'static str> {
    let short = name.rsplit('.').next().unwrap_or(name);
    match short {
        "Quantity" => Some("q"),
        "IntOrString" => Some("x"),
        "Time" => Some("t"),
        "MicroTime" => Some("m"),
        "Duration" => Some("d"),
        "FieldsV1" => Some("f"),
        "RawExtension" | "JSON" => Some("*"),
        "JSONSchemaPropsOrArray" | "JSONSchemaPropsOrBool" | "JSONSchemaPropsOrStringArray" => {
            Some("*")
        }
        _ => None,
    }
}

/// A type in the file: a letter, `#` and an index, or `[` (list) or `{` (map) before another type.
fn shape(schema: &Value, places: &BTreeMap<&str, usize>) -> String {
    if let Some(target) = schema["$ref"].as_str() {
        let name = target.rsplit('/').next().unwrap_or(target);
        let place = places.get(name).unwrap_or_else(|| panic!("no type {name}"));
        return format!("#{place}");
    }
    match (schema["type"].as_str(), schema["format"].as_str()) {
        (Some("string"), Some("byte")) => "y".into(),
        (Some("string"), None) => "s".into(),
        (Some("boolean"), _) => "b".into(),
        (Some("integer"), Some("int32")) => "i".into(),
        (Some("integer"), _) => "l".into(),
        (Some("number"), _) => "n".into(),
        (Some("array"), _) => format!("[{}", shape(&schema["items"], places)),
        (Some("object"), _) if schema["additionalProperties"].is_object() => {
            format!("{{{}", shape(&schema["additionalProperties"], places))
        }
        other => panic!("unexpected {other:?} in {schema}"),
    }
}

/// One line per type and field that has a description: `type`, `type field`, tab, JSON string.
fn descriptions(types: &BTreeMap<String, Value>) -> String {
    let mut out = String::new();
    for (name, schema) in types {
        if schema["description"].is_string() {
            let _ = writeln!(out, "{name}\t{}", schema["description"]);
        }
        for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
            if schema["description"].is_string() {
                let _ = writeln!(out, "{name} {field}\t{}", schema["description"]);
            }
        }
    }
    out
}
