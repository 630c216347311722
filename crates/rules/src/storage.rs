//! Rules of the `storage.k8s.io` kinds: storage classes and CSI drivers.

use super::{Generation, Rules, check, label_selector};
use api::field::{At, Errors};
use api::names;
use api::quantity::Quantity;
use api::value::ValueExt;
use serde_json::{Value, json};

const DRIVER_NAME_MAX: usize = 63;
const NODE_ID_MAX: usize = 256;
const PARAMETERS_MAX: usize = 512;
const PARAMETERS_SIZE_MAX: usize = 256 * 1024;

pub(crate) fn rules(kind: &str) -> Rules {
    let conditional = Rules { unconditional_update: false, ..Rules::NONE };
    match kind {
        "StorageClass" => Rules {
            default: |class| {
                class.set_default("reclaimPolicy", "Delete");
                class.set_default("volumeBindingMode", "Immediate");
            },
            validate: validate_class,
            validate_update: |new, old, errors| {
                validate_immutable(
                    new,
                    old,
                    &["parameters", "provisioner", "reclaimPolicy"],
                    errors,
                );
                let name = "volumeBindingMode";
                check::immutable(&new.field(name), &old.field(name), errors);
            },
            returns_deleted: true,
            ..Rules::NONE
        },
        "CSIDriver" => Rules {
            default: default_driver,
            validate: validate_driver,
            validate_update: |new, old, errors| {
                let (new, old) = (new.field("spec"), old.field("spec"));
                for name in ["attachRequired", "volumeLifecycleModes"] {
                    check::immutable(&new.field(name), &old.field(name), errors);
                }
            },
            generation: Generation::Spec,
            returns_deleted: true,
            ..conditional
        },
        "CSINode" => Rules {
            default: |node| node.object("spec").set_default("drivers", Value::Null),
            validate: validate_node,
            returns_deleted: true,
            ..conditional
        },
        "VolumeAttachment" => Rules {
            prepare_create: |attachment| {
                attachment.map().insert("status".into(), json!({"attached": false}));
            },
            validate: validate_attachment,
            validate_update: |new, old, errors| {
                check::immutable(&new.field("spec"), &old.field("spec"), errors);
            },
            returns_deleted: true,
            ..conditional
        },
        "VolumeAttributesClass" => Rules {
            validate: validate_attributes_class,
            validate_update: |new, old, errors| {
                validate_immutable(new, old, &["driverName", "parameters"], errors);
            },
            returns_deleted: true,
            ..Rules::NONE
        },
        "CSIStorageCapacity" => Rules {
            validate: validate_capacity,
            validate_update: |new, old, errors| {
                for name in ["nodeTopology", "storageClassName"] {
                    check::immutable(&new.field(name), &old.field(name), errors);
                }
            },
            ..conditional
        },
        _ => Rules::NONE,
    }
}

fn validate_immutable(new: &At, old: &At, fields: &[&str], errors: &mut Errors) {
    for name in fields {
        if !check::same(&new.field(name), &old.field(name)) {
            errors.forbidden(&new.field(name), &format!("updates to {name} are forbidden."));
        }
    }
}

fn validate_class(class: &At, errors: &mut Errors) {
    let provisioner = class.field("provisioner");
    if provisioner.text().is_empty() {
        errors.required(&provisioner, "");
    } else {
        for complaint in names::qualified_name(&provisioner.text().to_lowercase()) {
            errors.invalid(&provisioner, &complaint);
        }
    }
    validate_parameters(&class.field("parameters"), true, errors);
    check::one_of_if_set(&class.field("reclaimPolicy"), &["Delete", "Retain"], errors);
    let modes = ["Immediate", "WaitForFirstConsumer"];
    check::one_of_if_set(&class.field("volumeBindingMode"), &modes, errors);
    let mut seen = check::Unique::new();
    for term in class.field("allowedTopologies").items() {
        for expression in term.field("matchLabelExpressions").items() {
            check::text(&expression.field("key"), names::qualified_name, errors);
            if expression.field("values").is_empty() {
                errors.required(&expression.field("values"), "");
            }
        }
        if !seen.add(term.value().cloned().unwrap_or_default()) {
            errors.duplicate(&term.field("matchLabelExpressions"));
        }
    }
}

fn validate_parameters(parameters: &At, may_be_empty: bool, errors: &mut Errors) {
    if parameters.is_empty() && !may_be_empty {
        errors.required(parameters, "must contain at least one key/value pair");
    }
    if parameters.len() > PARAMETERS_MAX {
        errors.push(
            api::field::Wrong::TooLong,
            parameters.path(),
            None,
            &format!("may not be more than {PARAMETERS_MAX} bytes"),
        );
        return;
    }
    let mut size = 0;
    for (key, value) in parameters.entries() {
        if key.is_empty() {
            errors.invalid_value(parameters, key, "field can not be empty.");
        }
        size += key.len() + value.text().len();
    }
    if size > PARAMETERS_SIZE_MAX {
        errors.too_long(parameters, PARAMETERS_SIZE_MAX);
    }
}

/// Defaults of a CSIDriver.
fn default_driver(driver: &mut Value) {
    let spec = driver.object("spec");
    spec.set_default("attachRequired", true);
    for name in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
        spec.set_default(name, false);
    }
    spec.set_default("fsGroupPolicy", "ReadWriteOnceWithFSType");
    if spec.at(&["volumeLifecycleModes"]).and_then(Value::as_array).is_none_or(Vec::is_empty) {
        spec.map().insert("volumeLifecycleModes".into(), json!(["Persistent"]));
    }
}

fn validate_driver(driver: &At, errors: &mut Errors) {
    let metadata = driver.field("metadata");
    let name = metadata.field("name");
    if name.text().len() > DRIVER_NAME_MAX {
        errors.too_long(&name, DRIVER_NAME_MAX);
    }
    let spec = driver.field("spec");
    check::one_of_if_set(
        &spec.field("fsGroupPolicy"),
        &["File", "None", "ReadWriteOnceWithFSType"],
        errors,
    );
    let mut seen = check::Unique::new();
    for request in spec.field("tokenRequests").items() {
        let audience = request.field("audience");
        if !seen.add(audience.text()) {
            errors.duplicate(&audience);
        }
        let seconds = request.field("expirationSeconds");
        if seconds.int().is_some_and(|seconds| seconds < 600) {
            errors.invalid(&seconds, "may not specify a duration less than 10 minutes");
        }
    }
    for mode in spec.field("volumeLifecycleModes").items() {
        check::one_of(&mode, &["Ephemeral", "Persistent"], errors);
    }
}

fn validate_driver_name(name: &At, errors: &mut Errors) {
    if name.text().is_empty() {
        errors.required(name, "");
    }
    if name.text().len() > DRIVER_NAME_MAX {
        errors.too_long(name, DRIVER_NAME_MAX);
    }
    for complaint in names::dns1123_subdomain(&name.text().to_lowercase()) {
        errors.invalid(name, &complaint);
    }
}

fn validate_node(node: &At, errors: &mut Errors) {
    let spec = node.field("spec");
    let mut seen = check::Unique::new();
    for driver in spec.field("drivers").items() {
        let (name, id) = (driver.field("name"), driver.field("nodeID"));
        validate_driver_name(&name, errors);
        if !seen.add(name.text()) {
            errors.duplicate(&name);
        }
        if id.text().is_empty() {
            errors.required(&id, "");
        }
        if id.text().len() > NODE_ID_MAX {
            errors.invalid(&id, &format!("must be {NODE_ID_MAX} characters or less"));
        }
        check::not_negative(&driver.field("allocatable").field("count"), errors);
        let mut keys = check::Unique::new();
        for key in driver.field("topologyKeys").items() {
            if !keys.add(key.text()) {
                errors.duplicate(&key);
            }
            check::text(&key, names::qualified_name, errors);
        }
    }
}

fn validate_attachment(attachment: &At, errors: &mut Errors) {
    let spec = attachment.field("spec");
    validate_driver_name(&spec.field("attacher"), errors);
    let source = spec.field("source");
    let (inline, volume) = (source.field("inlineVolumeSpec"), source.field("persistentVolumeName"));
    match (inline.is_set(), volume.is_set()) {
        (true, true) => {
            errors.forbidden(
                &source,
                "must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            );
        }
        (false, false) => {
            errors.required(
                &source,
                "must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            );
        }
        (false, true) if volume.text().is_empty() => errors.required(&volume, ""),
        _ => {}
    }
    let node = spec.field("nodeName");
    check::text(&node, names::dns1123_subdomain, errors);
}

fn validate_attributes_class(class: &At, errors: &mut Errors) {
    validate_driver_name(&class.field("driverName"), errors);
    validate_parameters(&class.field("parameters"), false, errors);
}

fn validate_capacity(capacity: &At, errors: &mut Errors) {
    check::text(&capacity.field("storageClassName"), names::dns1123_subdomain, errors);
    label_selector::validate(&capacity.field("nodeTopology"), errors);
    for name in ["capacity", "maximumVolumeSize"] {
        let amount = capacity.field(name);
        let negative = |value: &Value| Quantity::from_value(value).is_some_and(|q| q.is_negative());
        if amount.value().is_some_and(negative) {
            errors.invalid(&amount, check::NOT_NEGATIVE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(kind: &str, mut object: Value) -> Vec<String> {
        (rules(kind).default)(&mut object);
        let mut errors = Errors::default();
        (rules(kind).validate)(&At::root(&object), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_147_classes_and_drivers_get_their_defaults() {
        let mut class = json!({"provisioner": "example.com/p"});
        (rules("StorageClass").default)(&mut class);
        assert_eq!(
            class,
            json!({"provisioner": "example.com/p", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"})
        );
        let mut driver = json!({});
        default_driver(&mut driver);
        assert_eq!(driver["spec"]["attachRequired"], true);
        assert_eq!(driver["spec"]["volumeLifecycleModes"], json!(["Persistent"]));
    }

    #[test]
    fn a_77_the_parameters_of_a_storage_class_are_immutable() {
        let old = json!({"provisioner": "a", "volumeBindingMode": "Immediate"});
        let new = json!({"provisioner": "b", "volumeBindingMode": "WaitForFirstConsumer"});
        let mut errors = Errors::default();
        (rules("StorageClass").validate_update)(&At::root(&new), &At::root(&old), &mut errors);
        let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "provisioner: Forbidden: updates to provisioner are forbidden.",
                "volumeBindingMode: Invalid value: \"WaitForFirstConsumer\": field is immutable",
            ]
        );
    }

    #[test]
    fn a_92_invalid_storage_objects_are_rejected() {
        for (kind, object, expected) in [
            ("StorageClass", json!({}), "provisioner: Required value"),
            (
                "StorageClass",
                json!({"provisioner": "p", "reclaimPolicy": "Recycle"}),
                "reclaimPolicy: Unsupported value: \"Recycle\": supported values: \"Delete\", \"Retain\"",
            ),
            (
                "VolumeAttributesClass",
                json!({"driverName": "d"}),
                "parameters: Required value: must contain at least one key/value pair",
            ),
            (
                "VolumeAttachment",
                json!({"spec": {"attacher": "a", "nodeName": "n", "source": {}}}),
                "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            ),
            (
                "CSINode",
                json!({"spec": {"drivers": [{"name": "d"}]}}),
                "spec.drivers[0].nodeID: Required value",
            ),
        ] {
            assert_eq!(messages(kind, object.clone()), [expected], "{kind} {object}");
        }
    }
}
