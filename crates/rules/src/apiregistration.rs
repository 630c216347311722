//! Rules of the `apiregistration.k8s.io` kinds: which server serves a group and version.

use super::{Rules, check};
use api::field::{At, Errors};
use api::names;
use api::names::NameRule;
use api::value::ValueExt;
use serde_json::json;

const GROUP_PRIORITY_MAX: i64 = 20_000;
const VERSION_PRIORITY_MAX: i64 = 1_000;

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "APIService" => Rules {
            default: |service| {
                let spec = service.object("spec");
                if spec.at(&["service"]).is_some() {
                    spec.object("service").set_default("port", 443);
                }
                service.object("status");
            },
            prepare_create: |service| {
                service.map().insert("status".into(), json!({}));
            },
            validate,
            name: NameRule::Own,
            unconditional_update: false,
            ..Rules::NONE
        },
        _ => Rules::NONE,
    }
}

fn validate(service: &At, errors: &mut Errors) {
    let (metadata, spec) = (service.field("metadata"), service.field("spec"));
    let (group, version) = (spec.field("group"), spec.field("version"));
    let name = metadata.field("name");
    check::text(&name, names::path_segment, errors);
    let required = format!("{}.{}", version.text(), group.text());
    if name.text() != required {
        let detail = format!("must be `spec.version+\".\"+spec.group`: {required:?}");
        errors.invalid(&name, &detail);
    }
    if group.text().is_empty() {
        if version.text() != "v1" {
            let detail = "only v1 may have an empty group and it better be legacy kube";
            errors.required(&group, detail);
        }
    } else if !names::dns1123_subdomain(group.text()).is_empty() {
        errors.invalid(&group, &names::dns1123_subdomain(group.text()).join(","));
    }
    let wrong = names::dns1035_label(version.text());
    if !wrong.is_empty() {
        errors.invalid(&version, &wrong.join(","));
    }
    for (name, most) in
        [("groupPriorityMinimum", GROUP_PRIORITY_MAX), ("versionPriority", VERSION_PRIORITY_MAX)]
    {
        let at = spec.field(name);
        let value = at.int().unwrap_or(0);
        if value <= 0 || value > most {
            errors.invalid_value(&at, value, &format!("must be positive and less than {most}"));
        }
    }
    validate_backend(&spec, errors);
}

fn validate_backend(spec: &At, errors: &mut Errors) {
    let (bundle, insecure) = (spec.field("caBundle"), spec.field("insecureSkipTLSVerify"));
    let service = spec.field("service");
    let has_bundle = !bundle.text().is_empty();
    if !service.is_set() {
        if has_bundle {
            let shown = format!("{} bytes", bundle.text().len() / 4 * 3);
            errors.invalid_value(&bundle, shown, "local APIServices may not have a caBundle");
        }
        if insecure.is_true() {
            let detail = "local APIServices may not have insecureSkipTLSVerify";
            errors.invalid(&insecure, detail);
        }
        return;
    }
    for name in ["namespace", "name"] {
        check::required_text(&service.field(name), "", errors);
    }
    let port = service.field("port");
    for complaint in names::port_number(port.int().unwrap_or(443)) {
        errors.invalid(&port, &format!("port is not valid: {complaint}"));
    }
    if insecure.is_true() && has_bundle {
        errors.invalid(&insecure, "may not be true if caBundle is present");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn messages(name: &str, more: Value) -> Vec<String> {
        let mut service = json!({"metadata": {"name": name}, "spec": {"group": "g.example.com",
            "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
            "service": {"namespace": "n", "name": "s"}}});
        api::patch::merge_into(&mut service["spec"], &more);
        (rules("APIService").default)(&mut service);
        let mut errors = Errors::default();
        validate(&At::root(&service), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_75_a_220_an_api_service_is_named_after_its_version() {
        assert!(messages("v1.g.example.com", json!({})).is_empty());
        assert_eq!(
            messages("other", json!({})),
            [
                "metadata.name: Invalid value: \"other\": must be `spec.version+\".\"+spec.group`: \"v1.g.example.com\""
            ]
        );
        assert_eq!(
            messages("v1.g.example.com", json!({"versionPriority": 1001})),
            ["spec.versionPriority: Invalid value: 1001: must be positive and less than 1000"]
        );
    }
}
