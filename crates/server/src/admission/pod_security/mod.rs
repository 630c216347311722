//! PodSecurity: how much of the machine the pods of a namespace may reach for.
//!
//! A namespace's labels name a level per mode. `enforce` refuses pods; `warn` warns, also about the
//! templates that pods will be made from. The checks are pure: `baseline` holds what no ordinary pod
//! does, `restricted` what a careful one does not do either. `audit` has no place to be told yet.

mod baseline;
mod existing;
mod restricted;
mod setters;

use super::{refuse, resource};
use crate::call::Call;
use crate::error::{ApiError, Result};
use crate::object::Stored;
use api::value::ValueExt;
use api::{At, Errors};
use serde_json::Value;
use std::fmt;

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
const WARN: &str = "pod-security.kubernetes.io/warn";
const MODES: [&str; 3] = [ENFORCE, "pod-security.kubernetes.io/audit", WARN];
const VERSION_SUFFIX: &str = "-version";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Privileged,
    Baseline,
    Restricted,
}

/// The minor version of Kubernetes whose standards are meant. The latest sorts last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32);

const LATEST: Version = Version(u32::MAX);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Policy {
    level: Level,
    version: Version,
}

/// One thing a pod must not do: `privileged (container "a" must not set …)`.
struct Violation {
    reason: String,
    detail: String,
}

impl Violation {
    fn new(reason: impl Into<String>, detail: impl Into<String>) -> Option<Violation> {
        Some(Violation { reason: reason.into(), detail: detail.into() })
    }
}

/// A new or changed pod; `old` if it was there before.
pub(super) fn check_pod(call: &Call, pod: &Value, old: Option<&Value>) -> Result<()> {
    let Some(policies) = Policies::of(call) else { return Ok(()) };
    if old.is_some_and(|old| !changes_matter(pod, old)) {
        return Ok(());
    }
    if let Some(violations) = policies.enforce.violations(pod) {
        let why = format!("violates PodSecurity \"{}\": {violations}", policies.enforce);
        return Err(refuse(call, pod, why));
    }
    policies.warn_about(call, pod);
    Ok(())
}

/// A new or changed object that pods are made from.
pub(super) fn check_template(call: &Call, object: &Value) {
    if let Some(path) = template_path(resource(call))
        && let Some(policies) = Policies::of(call)
        && let Some(template) = object.at(path)
    {
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

/// The labels of a namespace must say something: a typo would otherwise protect nobody.
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

/// What the namespace of a call asks for.
struct Policies {
    enforce: Policy,
    warn: Policy,
}

impl Policies {
    /// None if it asks for nothing, as most do.
    fn of(call: &Call) -> Option<Policies> {
        let namespace = call.store().get("namespaces", &call.target.namespace)?;
        let of = |mode: &str, unclear: Level| {
            let version = namespace.label(&format!("{mode}{VERSION_SUFFIX}"));
            Policy::parse(namespace.label(mode), version, unclear)
        };
        // What is not understood is enforced as strictly as possible, and not warned about.
        let enforce = of(ENFORCE, Level::Restricted);
        let warn = of(WARN, Level::Privileged);
        let asks = enforce.level.max(warn.level) > Level::Privileged;
        asks.then_some(Policies { enforce, warn })
    }

    fn warn_about(&self, call: &Call, pod: &Value) {
        if let Some(violations) = self.warn.violations(pod) {
            call.warn(format!("would violate PodSecurity \"{}\": {violations}", self.warn));
        }
    }
}

impl Policy {
    /// What the labels of a Namespace object say.
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

    /// `reason (detail), reason (detail)`, if the pod goes beyond the level.
    fn violations(&self, pod: &Value) -> Option<String> {
        let said = self.found(pod).into_iter().map(|Violation { reason, detail }| {
            if detail.is_empty() { reason } else { format!("{reason} ({detail})") }
        });
        let said: Vec<String> = said.collect();
        (!said.is_empty()).then(|| said.join(", "))
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

/// Of what can change in a running pod, only images and new containers can make it worse.
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
