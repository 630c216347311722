//! Rules of the `resource.k8s.io` kinds: dynamic resource allocation.
//!
//! Not checked here: that CEL selectors compile, and what drivers write into statuses.

use super::{Generation, Rules, check};
use api::field::{At, Errors};
use api::names;
use api::value::ValueExt;
use serde_json::{Value, json};

const REQUESTS_MAX: usize = 32;
const SELECTORS_MAX: usize = 32;
const DEVICES_MAX: usize = 128;
const DRIVER_NAME_MAX: usize = 63;

pub(crate) fn rules(kind: &str) -> Rules {
    let common = Rules { returns_deleted: true, ..Rules::NONE };
    match kind {
        "ResourceClaim" => Rules {
            default: |claim| {
                default_claim(claim.object("spec"));
                claim.object("status");
            },
            prepare_create: |claim| {
                claim.map().insert("status".into(), json!({}));
            },
            validate: |claim, errors| validate_claim(&claim.field("spec"), errors),
            validate_update: |new, old, errors| {
                check::immutable(&new.field("spec"), &old.field("spec"), errors);
            },
            ..common
        },
        "ResourceClaimTemplate" => Rules {
            default: |template| default_claim(template.object("spec").object("spec")),
            validate: |template, errors| {
                let outer = template.field("spec");
                validate_claim(&outer.field("spec"), errors);
            },
            validate_update: |new, old, errors| {
                check::immutable(&new.field("spec"), &old.field("spec"), errors);
            },
            ..common
        },
        "DeviceClass" => Rules {
            default: |class| {
                class.object("spec");
            },
            validate: |class, errors| {
                let spec = class.field("spec");
                validate_selectors(&spec.field("selectors"), errors);
                for config in spec.field("config").items() {
                    validate_config(&config, errors);
                }
            },
            generation: Generation::Spec,
            ..common
        },
        "ResourceSlice" => Rules {
            default: default_slice,
            validate: validate_slice,
            validate_update: |new, old, errors| {
                let (new, old) = (new.field("spec"), old.field("spec"));
                check::immutable(&new.field("driver"), &old.field("driver"), errors);
                let (pool, before) = (new.field("pool"), old.field("pool"));
                check::immutable(&pool.field("name"), &before.field("name"), errors);
                check::immutable(&new.field("nodeName"), &old.field("nodeName"), errors);
            },
            fields: &[
                ("spec.nodeName", |slice| slice.text(&["spec", "nodeName"]).into()),
                ("spec.driver", |slice| slice.text(&["spec", "driver"]).into()),
            ],
            generation: Generation::Spec,
            ..common
        },
        _ => Rules::NONE,
    }
}

fn default_claim(spec: &mut Value) {
    let devices = spec.object("devices");
    for request in devices.list_mut("requests") {
        if request.at(&["exactly"]).is_some() {
            default_request(request.object("exactly"));
        }
        for alternative in request.list_mut("firstAvailable") {
            default_request(alternative);
        }
    }
}

fn default_request(request: &mut Value) {
    request.set_default("allocationMode", "ExactCount");
    if request.text(&["allocationMode"]) == "ExactCount"
        && request.at(&["count"]).and_then(Value::as_i64).unwrap_or(0) == 0
    {
        request.map().insert("count".into(), json!(1));
    }
    for toleration in request.list_mut("tolerations") {
        toleration.set_default("operator", "Equal");
    }
}

fn default_slice(slice: &mut Value) {
    let spec = slice.object("spec");
    let pool = spec.object("pool");
    pool.set_default("generation", 0);
    pool.set_default("resourceSliceCount", 0);
}

fn validate_claim(spec: &At, errors: &mut Errors) {
    let devices = spec.field("devices");
    let requests = devices.field("requests");
    if requests.len() > REQUESTS_MAX {
        errors.too_many(&requests, REQUESTS_MAX);
    }
    let mut seen = check::Unique::new();
    for request in requests.items() {
        validate_name(&request.field("name"), &mut seen, errors);
        let (exactly, first) = (request.field("exactly"), request.field("firstAvailable"));
        match (exactly.is_set(), !first.is_empty()) {
            (true, true) => errors.invalid(
                &request,
                "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
            ),
            (false, false) => errors
                .required(&request, "exactly one of `exactly` or `firstAvailable` is required"),
            (true, false) => validate_request(&exactly, errors),
            (false, true) => {
                let mut names = check::Unique::new();
                for alternative in first.items() {
                    validate_name(&alternative.field("name"), &mut names, errors);
                    validate_request(&alternative, errors);
                }
            }
        }
    }
    for config in devices.field("config").items() {
        validate_config(&config, errors);
    }
}

fn validate_name(name: &At, seen: &mut check::Unique, errors: &mut Errors) {
    if name.text().is_empty() {
        errors.required(name, "");
        return;
    }
    check::text(name, names::dns1123_label, errors);
    if !seen.add(name.text()) {
        errors.duplicate(name);
    }
}

fn validate_request(request: &At, errors: &mut Errors) {
    let class = request.field("deviceClassName");
    if class.text().is_empty() {
        errors.required(&class, "");
    } else {
        check::text(&class, names::dns1123_subdomain, errors);
    }
    validate_selectors(&request.field("selectors"), errors);
    let (mode, count) = (request.field("allocationMode"), request.field("count"));
    match mode.text() {
        "All" => {
            if count.int().unwrap_or(0) != 0 {
                let detail = "must not be specified when allocationMode is 'All'";
                errors.invalid(&count, detail);
            }
        }
        "ExactCount" => {
            if count.int().unwrap_or(0) <= 0 {
                errors.invalid(&count, "must be greater than zero");
            }
        }
        _ => errors.not_supported(&mode, &["All", "ExactCount"]),
    }
}

fn validate_selectors(selectors: &At, errors: &mut Errors) {
    if selectors.len() > SELECTORS_MAX {
        errors.too_many(selectors, SELECTORS_MAX);
    }
    for selector in selectors.items() {
        let cel = selector.field("cel");
        if !cel.is_set() {
            errors.required(&cel, "");
        } else if cel.field("expression").text().trim().is_empty() {
            errors.required(&cel.field("expression"), "");
        }
    }
}

fn validate_config(config: &At, errors: &mut Errors) {
    let opaque = config.field("opaque");
    if !opaque.is_set() {
        errors.required(&opaque, "");
        return;
    }
    validate_driver(&opaque.field("driver"), errors);
    if !opaque.field("parameters").is_set() {
        errors.required(&opaque.field("parameters"), "");
    }
}

fn validate_driver(driver: &At, errors: &mut Errors) {
    if driver.text().is_empty() {
        errors.required(driver, "");
    } else {
        if driver.text().len() > DRIVER_NAME_MAX {
            errors.too_long(driver, DRIVER_NAME_MAX);
        }
        check::text(driver, names::dns1123_subdomain, errors);
    }
}

fn validate_slice(slice: &At, errors: &mut Errors) {
    let spec = slice.field("spec");
    validate_driver(&spec.field("driver"), errors);
    let pool = spec.field("pool");
    check::required_text(&pool.field("name"), "", errors);
    if pool.field("resourceSliceCount").int().unwrap_or(0) <= 0 {
        errors.invalid(&pool.field("resourceSliceCount"), "must be greater than zero");
    }
    check::not_negative(&pool.field("generation"), errors);
    let places = [
        !spec.field("nodeName").text().is_empty(),
        spec.field("nodeSelector").is_set(),
        spec.field("allNodes").is_true(),
        spec.field("perDeviceNodeSelection").is_true(),
    ];
    let one_of = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match places.iter().filter(|set| **set).count() {
        0 => errors.required(&spec, one_of),
        1 => {}
        _ => errors.invalid(&spec, &format!("{one_of}, but multiple fields are set")),
    }
    let devices = spec.field("devices");
    if devices.len() > DEVICES_MAX {
        errors.too_many(&devices, DEVICES_MAX);
    }
    let mut seen = check::Unique::new();
    for device in devices.items() {
        validate_name(&device.field("name"), &mut seen, errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(request: Value) -> Vec<String> {
        let mut claim = json!({"spec": {"devices": {"requests": [request]}}});
        (rules("ResourceClaim").default)(&mut claim);
        let mut errors = Errors::default();
        (rules("ResourceClaim").validate)(&At::root(&claim), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_92_a_device_request_has_exactly_one_form() {
        assert!(messages(json!({"name": "r", "exactly": {"deviceClassName": "c"}})).is_empty());
        let at = "spec.devices.requests[0]";
        assert_eq!(
            messages(json!({"name": "r"})),
            [format!(
                "{at}: Required value: exactly one of `exactly` or `firstAvailable` is required"
            )]
        );
        assert_eq!(
            messages(json!({"name": "r", "exactly": {}})),
            [format!("{at}.exactly.deviceClassName: Required value")]
        );
    }

    #[test]
    fn a_103_slices_are_selected_by_node_and_driver() {
        let slice = json!({"spec": {"nodeName": "n", "driver": "d"}});
        let read: Vec<_> =
            rules("ResourceSlice").fields.iter().map(|(_, read)| read(&slice)).collect();
        assert_eq!(read, ["n", "d"]);
    }
}
