//! LimitRanges and ResourceQuotas.

use super::checks::{self, Duplicates};
use super::resources;
use crate::Rules;
use api::field::{At, Errors};
use api::names;
use api::quantity::{self, Quantity};
use api::value::ValueExt;
use serde_json::{Value, json};

pub(super) const RANGE: Rules = Rules {
    default: default_range,
    validate: validate_range,
    create_on_update: true,
    ..Rules::NONE
};

pub(super) const QUOTA: Rules = Rules {
    default: default_quota,
    prepare_create: |quota| {
        quota.map().insert("status".into(), json!({}));
    },
    validate: validate_quota,
    validate_update: validate_quota_update,
    validate_status_update: |new, _, errors| quota_amounts(&new.field("status"), errors),
    returns_deleted: true,
    ..Rules::NONE
};

const LISTS: &[&str] = &["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];

fn default_range(range: &mut Value) {
    for limit in range.object("spec").list_mut("limits") {
        if limit.text(&["type"]) == "Container" {
            // A missing amount is taken from the next list: default from max, defaultRequest from default or min.
            for (to, from) in
                [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")]
            {
                let given = limit.at(&[from]).and_then(Value::as_object).cloned();
                for (name, amount) in given.into_iter().flatten() {
                    limit.object(to).set_default(&name, amount);
                }
            }
        }
        LISTS.iter().for_each(|list| quantity::canonicalize_list(limit.get_mut(*list)));
    }
}

fn validate_range(range: &At, errors: &mut Errors) {
    let spec = range.field("spec");
    let mut seen = Duplicates::default();
    for limit in spec.field("limits").items() {
        let kind = limit.field("type");
        limit_type(&kind, errors);
        if seen.repeats(kind.text()) {
            errors.duplicate(&kind);
        }
        for list in LISTS {
            let list_at = limit.field(list);
            if kind.text() == "Pod" && list.starts_with("default") {
                if !list_at.is_empty() {
                    errors.forbidden(&list_at, "may not be specified when `type` is 'Pod'");
                }
                continue;
            }
            if *list == "maxLimitRequestRatio" && kind.text() == "PersistentVolumeClaim" {
                storage_limit(&limit, errors);
            }
            for (resource, at) in list_at.entries() {
                match kind.text() {
                    "Pod" | "Container" => resources::container_name(&at, resource, errors),
                    _ => {
                        resources::name(&at, resource, errors);
                    }
                }
            }
        }
        amounts_agree(&limit, errors);
    }
}

fn limit_type(kind: &At, errors: &mut Errors) {
    let wrong = names::qualified_name(kind.text());
    let known = ["Pod", "Container", "PersistentVolumeClaim"].contains(&kind.text());
    if wrong.is_empty() && !kind.text().contains('/') && !known {
        errors.invalid(kind, "must be a standard limit type or fully qualified");
    }
    for wrong in wrong {
        errors.invalid_value(kind, kind.text(), &wrong);
    }
}

fn storage_limit(limit: &At, errors: &mut Errors) {
    let has = |list: &str| limit.field(list).key("storage").is_set();
    if !has("min") && !has("max") {
        errors.required(
            &limit.field("limits"),
            "either minimum or maximum storage value is required, but neither was provided",
        );
    }
}

/// min ≤ defaultRequest ≤ default ≤ max, for every resource in any of the lists.
fn amounts_agree(limit: &At, errors: &mut Errors) {
    let mut resources: Vec<String> = LISTS
        .iter()
        .flat_map(|list| limit.field(list).entries().map(|(n, _)| n.to_owned()).collect::<Vec<_>>())
        .collect();
    resources.sort_unstable();
    resources.dedup();
    for name in &resources {
        let amount = |list: &str| checks::quantity(&limit.field(list).key(name));
        // (smaller, larger, path, value in the message, names of the two)
        let rows: [(&str, &str, &str, &str, [&str; 2]); 6] = [
            ("min", "max", "min", "min", ["min value", "max value"]),
            (
                "min",
                "defaultRequest",
                "defaultRequest",
                "defaultRequest",
                ["min value", "default request value"],
            ),
            (
                "defaultRequest",
                "max",
                "defaultRequest",
                "defaultRequest",
                ["default request value", "max value"],
            ),
            (
                "defaultRequest",
                "default",
                "defaultRequest",
                "defaultRequest",
                ["default request value", "default limit value"],
            ),
            ("min", "default", "default", "min", ["min value", "default value"]),
            ("default", "max", "default", "max", ["default value", "max value"]),
        ];
        for (small, large, field, shown, [first, second]) in rows {
            if let (Some(small), Some(large), Some(shown)) =
                (amount(small), amount(large), amount(shown))
                && small > large
            {
                let detail = format!("{first} {small} is greater than {second} {large}");
                let at = limit.field(field);
                errors.invalid_value(&at.key(name), shown.to_string(), &detail);
            }
        }
        ratio(limit, name, errors);
        if let (Some(default), Some(request)) = (amount("default"), amount("defaultRequest"))
            && default != request
            && !self::resources::may_overcommit(name)
        {
            let detail = format!(
                "default value {default} must equal to defaultRequest value {request} in {name}"
            );
            let at = limit.field("defaultRequest");
            errors.invalid_value(&at.key(name), request.to_string(), &detail);
        }
    }
}

fn ratio(limit: &At, name: &str, errors: &mut Errors) {
    let amount = |list: &str| checks::quantity(&limit.field(list).key(name));
    let Some(ratio) = amount("maxLimitRequestRatio") else {
        return;
    };
    let list = limit.field("maxLimitRequestRatio");
    let at = list.key(name);
    if ratio < Quantity::whole(1) {
        errors.invalid_value(&at, ratio.to_string(), &format!("ratio {ratio} is less than 1"));
    }
    if let (Some(min), Some(max)) = (amount("min"), amount("max")) {
        let most = max.milli_value() as f64 / min.milli_value() as f64;
        if ratio.milli_value() as f64 / 1000.0 > most {
            let detail = format!("ratio {ratio} is greater than max/min = {most:.6}");
            errors.invalid_value(&at, ratio.to_string(), &detail);
        }
    }
}

fn default_quota(quota: &mut Value) {
    quantity::canonicalize_list(quota.object("spec").get_mut("hard"));
    if let Some(status) = quota.get_mut("status") {
        quantity::canonicalize_list(status.get_mut("hard"));
        quantity::canonicalize_list(status.get_mut("used"));
    }
}

const SCOPES: &[&str] = &[
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];
const CONFLICTS: &[[&str; 2]] =
    &[["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];
const WRONG_RESOURCE: &str = "unsupported scope applied to resource";

fn validate_quota(quota: &At, errors: &mut Errors) {
    let spec = quota.field("spec");
    for (resource, amount) in spec.field("hard").entries() {
        resources::quota_name(&amount, resource, errors);
        resources::amount(&amount, resource, errors);
    }
    scopes(&spec, errors);
    scope_selector(&spec, errors);
    quota_amounts(&quota.field("status"), errors);
}

fn quota_amounts(status: &At, errors: &mut Errors) {
    for list in ["hard", "used"] {
        for (resource, amount) in status.field(list).entries() {
            resources::quota_name(&amount, resource, errors);
            resources::amount(&amount, resource, errors);
        }
    }
}

/// Whether the scope applies to what is counted under this resource name.
fn scope_fits(scope: &str, resource: &str) -> bool {
    let compute = || {
        ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory", "pods"]
            .contains(&resource)
            || resource.starts_with("hugepages-")
            || resource.starts_with("requests.hugepages-")
            || resource.ends_with("ephemeral-storage")
    };
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => {
            ["persistentvolumeclaims", "requests.storage"].contains(&resource)
        }
        "CrossNamespacePodAffinity"
        | "Terminating"
        | "NotTerminating"
        | "NotBestEffort"
        | "PriorityClass" => compute(),
        _ => true,
    }
}

fn misfits(spec: &At, scope: &str) -> usize {
    let hard = spec.field("hard");
    hard.entries()
        .filter(|(name, _)| resources::is_quota_name(name) && !scope_fits(scope, name))
        .count()
}

fn scopes(spec: &At, errors: &mut Errors) {
    let scopes = spec.field("scopes");
    for scope in scopes.items() {
        if !SCOPES.contains(&scope.text()) {
            errors.invalid(&scopes, "unsupported scope");
        }
        for _ in 0..misfits(spec, scope.text()) {
            errors.invalid(&scopes, WRONG_RESOURCE);
        }
    }
    let has = |name: &&str| scopes.items().any(|scope| scope.text() == *name);
    for _ in CONFLICTS.iter().filter(|pair| pair.iter().all(has)) {
        errors.invalid(&scopes, "conflicting scopes");
    }
}

fn scope_selector(spec: &At, errors: &mut Errors) {
    let selector = spec.field("scopeSelector");
    let list = selector.field("matchExpressions");
    for requirement in list.items() {
        let scope = requirement.field("scopeName").text();
        let (operator, values) =
            (requirement.field("operator").text(), requirement.field("values"));
        if !SCOPES.contains(&scope) {
            errors.invalid_value(&list.field("scopeName"), scope, "unsupported scope");
        }
        for _ in 0..misfits(spec, scope) {
            errors.invalid_value(
                &list,
                selector.value().cloned().unwrap_or_default(),
                WRONG_RESOURCE,
            );
        }
        let valued = ["PriorityClass", "VolumeAttributesClass"].contains(&scope);
        if SCOPES.contains(&scope) && !valued && operator != "Exists" {
            errors.invalid_value(&list.field("operator"), operator, "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity");
        }
        match operator {
            "In" | "NotIn" => {
                if values.is_empty() {
                    errors.required(&list.field("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector");
                }
            }
            "Exists" | "DoesNotExist" => {
                if !values.is_empty() {
                    let shown = values.value().cloned().unwrap_or_default();
                    errors.invalid_value(&list.field("values"), shown, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector");
                }
            }
            _ => errors.invalid_value(
                &list.field("operator"),
                operator,
                "not a valid selector operator",
            ),
        }
    }
    let has = |name: &&str| list.items().any(|r| r.field("scopeName").text() == *name);
    for _ in CONFLICTS.iter().filter(|pair| pair.iter().all(has)) {
        let shown = spec.field("scopes").value().cloned().unwrap_or_default();
        errors.invalid_value(&list, shown, "conflicting scopes");
    }
}

fn validate_quota_update(new: &At, old: &At, errors: &mut Errors) {
    let sorted = |quota: &At| {
        let spec = quota.field("spec");
        let mut scopes: Vec<String> =
            spec.field("scopes").items().map(|scope| scope.text().to_owned()).collect();
        scopes.sort_unstable();
        scopes.dedup();
        scopes
    };
    if sorted(new) != sorted(old) {
        let spec = new.field("spec");
        errors.invalid(&spec.field("scopes"), api::metadata::IMMUTABLE);
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{NOTHING, create, defaulted, update};
    use serde_json::{Value, json};

    fn range(limit: Value) -> Value {
        json!({"spec": {"limits": [limit]}})
    }

    #[test]
    fn a_147_missing_limits_are_derived_from_the_others() {
        let made = defaulted(
            "LimitRange",
            range(
                json!({"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1", "memory": "1024Ki"}}),
            ),
        );
        assert_eq!(
            made["spec"]["limits"][0],
            json!({
                "type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1", "memory": "1Mi"},
                "default": {"cpu": "2"}, "defaultRequest": {"cpu": "2", "memory": "1Mi"},
            })
        );
    }

    #[test]
    fn a_92_invalid_limit_ranges_are_rejected_with_upstreams_messages() {
        for (limit, message) in [
            (
                json!({"type": "Cup"}),
                "spec.limits[0].type: Invalid value: \"Cup\": must be a standard limit type or fully qualified",
            ),
            (
                json!({"type": "Pod", "max": {"cpu": "1"}, "min": {"cpu": "2"}}),
                "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1",
            ),
            (
                json!({"type": "Pod", "default": {"cpu": "1"}}),
                "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
            ),
            (
                json!({"type": "PersistentVolumeClaim"}),
                "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither was provided",
            ),
            (
                json!({"type": "Pod", "maxLimitRequestRatio": {"cpu": "500m"}}),
                "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"500m\": ratio 500m is less than 1",
            ),
        ] {
            assert_eq!(create("LimitRange", range(limit)), [message]);
        }
        assert_eq!(
            create(
                "LimitRange",
                range(json!({"type": "PersistentVolumeClaim", "max": {"storage": "10Gi"}}))
            ),
            NOTHING
        );
    }

    #[test]
    fn a_92_invalid_quotas_are_rejected_with_upstreams_messages() {
        let quota = |spec: Value| json!({ "spec": spec });
        for (spec, message) in [
            (
                json!({"hard": {"pods": "1.5"}}),
                "spec.hard[pods]: Invalid value: \"1500m\": must be an integer",
            ),
            (
                json!({"scopes": ["BestEffort", "NotBestEffort"]}),
                "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: conflicting scopes",
            ),
            (
                json!({"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}),
                "spec.scopes: Invalid value: [\"BestEffort\"]: unsupported scope applied to resource",
            ),
        ] {
            assert_eq!(create("ResourceQuota", quota(spec)), [message]);
        }
        let good = json!({"hard": {"count/deployments.apps": "1", "requests.example.com/gpu": "1", "services.loadbalancers": "0"}});
        assert_eq!(create("ResourceQuota", quota(good)), NOTHING);
        let old = json!({"metadata": {}, "spec": {"scopes": ["BestEffort"]}});
        assert_eq!(
            update("ResourceQuota", &old, json!({"spec": {"scopes": ["Terminating"]}})),
            ["spec.scopes: Invalid value: [\"Terminating\"]: field is immutable"]
        );
    }
}
