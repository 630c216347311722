//! PodSecurity: enforces the Pod Security Standards.
//!
//! A namespace's labels set a level per mode. `enforce` refuses pods; `warn` warns, also about pod templates; `audit`
//! annotates the audit log. The checks are pure: `baseline` prevents access to the host, `restricted` adds hardening.

mod baseline;
mod existing;
mod restricted;
mod setters;

use super::{refuse, resource};
use crate::object::Stored;
use crate::request::call::Call;
use crate::response::error::{ApiError, Result};
use api::value::ValueExt;
use api::{At, Errors};
use serde_json::Value;
use std::fmt;

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
const WARN: &str = "pod-security.kubernetes.io/warn";
const AUDIT: &str = "pod-security.kubernetes.io/audit";
const MODES: [&str; 3] = [ENFORCE, AUDIT, WARN];
/// Annotations of the audit log.
const ENFORCED_POLICY: &str = "pod-security.kubernetes.io/enforce-policy";
const AUDIT_VIOLATIONS: &str = "pod-security.kubernetes.io/audit-violations";
const VERSION_SUFFIX: &str = "-version";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Privileged,
    Baseline,
    Restricted,
}

/// The minor version of Kubernetes whose standards apply. The latest sorts last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32);

const LATEST: Version = Version(u32::MAX);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Policy {
    level: Level,
    version: Version,
}

/// A violation: `privileged (container "a" must not set …)`.
struct Violation {
    reason: String,
    detail: String,
}

impl Violation {
    fn new(reason: impl Into<String>, detail: impl Into<String>) -> Option<Violation> {
        Some(Violation { reason: reason.into(), detail: detail.into() })
    }
}

/// Checks a new pod, or an update if there is an `old` one.
pub(super) fn check_pod(call: &Call, pod: &Value, old: Option<&Value>) -> Result<()> {
    if old.is_some_and(|old| !changes_matter(pod, old)) {
        return Ok(());
    }
    let Some(policies) = Policies::of(call) else {
        call.annotate(ENFORCED_POLICY, || Policy::NONE.to_string());
        return Ok(());
    };
    call.annotate(ENFORCED_POLICY, || policies.enforce.to_string());
    policies.annotate(call, pod);
    if let Some(violations) = policies.enforce.violations(pod) {
        let why = format!("violates PodSecurity \"{}\": {violations}", policies.enforce);
        return Err(refuse(call, pod, why));
    }
    policies.warn_about(call, pod);
    Ok(())
}

/// Warns about the pod template of a new or updated object.
pub(super) fn check_template(call: &Call, object: &Value) {
    if let Some(path) = template_path(resource(call))
        && let Some(policies) = Policies::of(call)
        && let Some(template) = object.at(path)
    {
        policies.annotate(call, template);
        policies.warn_about(call, template);
    }
}

fn template_path(resource: (&str, &str)) -> Option<&'static [&'static str]> {
    match resource {
        ("", "podtemplates") => Some(&["template"]),
        ("", "replicationcontrollers")
        | ("apps", "replicasets" | "deployments" | "statefulsets" | "daemonsets")
        | ("batch", "jobs") => Some(&["spec", "template"]),
        ("batch", "cronjobs") => Some(&["spec", "jobTemplate", "spec", "template"]),
        _ => None,
    }
}

/// The labels of a namespace must be valid: otherwise a typo would disable the protection.
pub(super) fn check_namespace(call: &Call, namespace: &Value, old: Option<&Value>) -> Result<()> {
    let root = At::root(namespace);
    let (metadata, mut errors) = (root.field("metadata"), Errors::default());
    let labels = metadata.field("labels");
    for mode in MODES {
        let level = labels.key(mode);
        if level.str().is_some_and(|level| Level::parse(level).is_none()) {
            errors.invalid(&level, "must be one of privileged, baseline, restricted");
        }
        let key = format!("{mode}{VERSION_SUFFIX}");
        let version = labels.key(&key);
        if version.str().is_some_and(|version| Version::parse(version).is_none()) {
            errors.invalid(&version, "must be \"latest\" or \"v1.x\"");
        }
    }
    let labels_of = |value: &Value| value.at(&["metadata", "labels"]).cloned();
    let changed = old.is_none_or(|old| labels_of(old) != labels_of(namespace));
    if changed && !errors.is_empty() {
        return Err(ApiError::invalid(&call.kind, super::name_of(namespace), errors));
    }
    if let (true, Some(old)) = (changed, old) {
        existing::warn(call, namespace, Policy::enforced(old), Policy::enforced(namespace));
    }
    Ok(())
}

/// The policies of a call's namespace.
struct Policies {
    enforce: Policy,
    audit: Policy,
    warn: Policy,
}

impl Policies {
    /// None if there are no labels, the usual case.
    fn of(call: &Call) -> Option<Policies> {
        let namespace = call.store().get("namespaces", &call.target.namespace)?;
        let of = |mode: &str, unclear: Level| {
            let version = namespace.label(&format!("{mode}{VERSION_SUFFIX}"));
            Policy::parse(namespace.label(mode), version, unclear)
        };
        // An invalid label means the strictest level for `enforce`, and none for warnings.
        let enforce = of(ENFORCE, Level::Restricted);
        let warn = of(WARN, Level::Privileged);
        let audit = of(AUDIT, Level::Privileged);
        let asks = enforce.level.max(warn.level).max(audit.level) > Level::Privileged;
        asks.then_some(Policies { enforce, audit, warn })
    }

    /// Adds violations of the `audit` level to the audit log.
    fn annotate(&self, call: &Call, pod: &Value) {
        if call.audit.is_some()
            && let Some(violations) = self.audit.violations(pod)
        {
            let policy = &self.audit;
            let message = || format!("would violate PodSecurity \"{policy}\": {violations}");
            call.annotate(AUDIT_VIOLATIONS, message);
        }
    }

    fn warn_about(&self, call: &Call, pod: &Value) {
        if let Some(violations) = self.warn.violations(pod) {
            call.warn(format!("would violate PodSecurity \"{}\": {violations}", self.warn));
        }
    }
}

impl Policy {
    /// The policy without labels.
    const NONE: Policy = Policy { level: Level::Privileged, version: LATEST };

    /// The enforced policy of a Namespace object.
    fn enforced(namespace: &Value) -> Policy {
        let label = |key: &str| namespace.at(&["metadata", "labels", key]).and_then(Value::as_str);
        let version = format!("{ENFORCE}{VERSION_SUFFIX}");
        Policy::parse(label(ENFORCE), label(&version), Level::Restricted)
    }

    fn parse(level: Option<&str>, version: Option<&str>, unclear: Level) -> Policy {
        let level = level.map_or(Level::Privileged, |level| Level::parse(level).unwrap_or(unclear));
        let version = version.and_then(Version::parse).unwrap_or(LATEST);
        Policy { level, version }
    }

    /// `reason (detail), reason (detail)`, if the pod violates the level.
    fn violations(&self, pod: &Value) -> Option<String> {
        let texts = self.found(pod).into_iter().map(|Violation { reason, detail }| {
            if detail.is_empty() { reason } else { format!("{reason} ({detail})") }
        });
        let texts: Vec<String> = texts.collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    }

    fn found(&self, pod: &Value) -> Vec<Violation> {
        let Policy { level, version } = *self;
        let mut found: Vec<Violation> = Vec::new();
        if level >= Level::Baseline {
            found.extend(baseline::violations(pod, version, level == Level::Restricted));
        }
        if level == Level::Restricted {
            found.extend(restricted::violations(pod, version));
        }
        found
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            LATEST => write!(f, "{level}:latest"),
            Version(minor) => write!(f, "{level}:v1.{minor}"),
        }
    }
}

impl Level {
    fn parse(text: &str) -> Option<Level> {
        match text {
            "privileged" => Some(Level::Privileged),
            "baseline" => Some(Level::Baseline),
            "restricted" => Some(Level::Restricted),
            _ => None,
        }
    }
}

impl Version {
    fn parse(text: &str) -> Option<Version> {
        if text == "latest" {
            return Some(LATEST);
        }
        let minor = text.strip_prefix("v1.")?;
        let canonical = minor == "0" || !minor.starts_with('0');
        let digits = canonical && minor.bytes().all(|byte| byte.is_ascii_digit());
        minor.parse().ok().filter(|_| digits).map(Version)
    }
}

/// Among the mutable fields of a pod, only images and new containers can add violations.
fn changes_matter(new: &Value, old: &Value) -> bool {
    let list = |pod: &Value, field: &str| -> Vec<Value> {
        let list = pod.at(&["spec", field]).and_then(Value::as_array);
        let seen = |container: &Value| {
            serde_json::json!([container.get("image"), container.get("securityContext")])
        };
        list.into_iter().flatten().map(seen).collect()
    };
    setters::LISTS.iter().any(|field| list(new, field) != list(old, field))
}

#[cfg(test)]
mod tests;
