//! Webhooks and policies: defaults and validation errors.

use super::rules;
use api::field::{At, Errors};
use serde_json::{Value, json};

fn messages(kind: &str, mut object: Value) -> Vec<String> {
    (rules(kind).default)(&mut object);
    let mut errors = Errors::default();
    (rules(kind).validate)(&At::root(&object), &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

fn hook(more: Value) -> Value {
    let mut hook = json!({
        "name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"name": "s", "namespace": "n"}},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
    });
    api::patch::merge_into(&mut hook, &more);
    json!({"webhooks": [hook]})
}

#[test]
fn a_147_webhooks_get_their_defaults() {
    let mut configuration = hook(json!({}));
    (rules("MutatingWebhookConfiguration").default)(&mut configuration);
    let hook = &configuration["webhooks"][0];
    for (field, value) in [
        ("failurePolicy", json!("Fail")),
        ("matchPolicy", json!("Equivalent")),
        ("namespaceSelector", json!({})),
        ("objectSelector", json!({})),
        ("timeoutSeconds", json!(10)),
        ("reinvocationPolicy", json!("Never")),
    ] {
        assert_eq!(hook[field], value, "{field}");
    }
    assert_eq!(hook["rules"][0]["scope"], "*");
    assert_eq!(hook["clientConfig"]["service"]["port"], 443);
}

#[test]
fn a_92_invalid_webhooks_are_rejected_with_upstreams_messages() {
    let kind = "ValidatingWebhookConfiguration";
    assert!(messages(kind, hook(json!({}))).is_empty());
    for (more, expected) in [
        (
            json!({"name": "short"}),
            "webhooks[0].name: Invalid value: \"short\": should be a domain with at least three segments separated by dots",
        ),
        (
            json!({"sideEffects": null}),
            "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun",
        ),
        (
            json!({"timeoutSeconds": 31}),
            "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
        ),
        (
            json!({"clientConfig": {"service": null}}),
            "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
        ),
        (
            json!({"clientConfig": {"service": null, "url": "http://x"}}),
            "webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
        ),
        (
            json!({"admissionReviewVersions": ["v9"]}),
            "webhooks[0].admissionReviewVersions: Invalid value: [\"v9\"]: must include at least one of v1, v1beta1",
        ),
    ] {
        assert_eq!(messages(kind, hook(more.clone())), [expected], "{more}");
    }
}

#[test]
fn a_167_a_168_policies_and_bindings_are_validated() {
    let rule =
        json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]});
    let constraints = json!({"resourceRules": [rule]});
    let policy = |validations: Value| json!({"spec": {"matchConstraints": constraints, "validations": validations}});
    let kind = "ValidatingAdmissionPolicy";
    assert!(messages(kind, policy(json!([{"expression": "true"}]))).is_empty());
    assert_eq!(
        messages(kind, policy(json!([]))),
        [
            "spec.validations: Required value: validations or auditAnnotations must contain at least one item"
        ]
    );
    let kind = "ValidatingAdmissionPolicyBinding";
    assert!(
        messages(kind, json!({"spec": {"policyName": "p", "validationActions": ["Deny"]}}))
            .is_empty()
    );
    assert_eq!(
        messages(kind, json!({"spec": {}})),
        [
            "spec.policyName: Required value",
            "spec.validationActions: Required value: at least one validation action is required"
        ]
    );
    let patch = json!({"patchType": "JSONPatch", "jsonPatch": {"expression": "[]"}});
    let mutating = json!({"spec": {"matchConstraints": constraints, "mutations": [patch], "reinvocationPolicy": "Never"}});
    assert!(messages("MutatingAdmissionPolicy", mutating).is_empty());
}
