//! The additional checks of level `restricted`: no root, no privilege escalation, no unneeded capabilities, only safe
//! volume types. In the order of messages.

use super::setters::{Setters, containers, named, plural, quoted, which};
use super::{Version, Violation};
use api::value::ValueExt;
use serde_json::Value;
use std::collections::BTreeSet;

/// Volume types without access to the host.
const VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

pub(super) fn violations(pod: &Value, version: Version) -> impl Iterator<Item = Violation> {
    let since = |minor: u32, found: Option<Violation>| {
        if version >= Version(minor) { found } else { None }
    };
    // Since 1.25 pods for Windows need not set what Windows does not have.
    let windows = pod.text(&["spec", "os", "name"]) == "windows" && version >= Version(25);
    let linux = |found: Option<Violation>| if windows { None } else { found };
    [
        linux(since(8, privilege_escalation(pod))),
        linux(since(22, capabilities(pod))),
        volumes(pod),
        run_as_non_root(pod),
        since(23, run_as_user(pod)),
        linux(since(19, seccomp(pod))),
    ]
    .into_iter()
    .flatten()
}

fn privilege_escalation(pod: &Value) -> Option<Violation> {
    let bad = which(pod, |container| {
        container.at(&["securityContext", "allowPrivilegeEscalation"]) != Some(&Value::Bool(false))
    });
    if bad.is_empty() {
        return None;
    }
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", named(&bad));
    Violation::new("allowPrivilegeEscalation != false", detail)
}

fn capabilities(pod: &Value) -> Option<Violation> {
    let list = |container: &Value, field: &str| -> Vec<String> {
        let list = container.at(&["securityContext", "capabilities", field]);
        let list = list.and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let added = |container: &Value| -> Vec<String> {
        list(container, "add").into_iter().filter(|name| name != "NET_BIND_SERVICE").collect()
    };
    let keeping = which(pod, |container| !list(container, "drop").iter().any(|name| name == "ALL"));
    let adding = which(pod, |container| !added(container).is_empty());
    let mut detail = Vec::new();
    if !keeping.is_empty() {
        detail.push(format!(
            "{} must set securityContext.capabilities.drop=[\"ALL\"]",
            named(&keeping)
        ));
    }
    if !adding.is_empty() {
        let names: BTreeSet<String> = containers(pod).flat_map(added).collect();
        detail.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            named(&adding),
            quoted(&names)
        ));
    }
    if detail.is_empty() {
        None
    } else {
        Violation::new("unrestricted capabilities", detail.join("; "))
    }
}

fn volumes(pod: &Value) -> Option<Violation> {
    let volumes = pod.at(&["spec", "volumes"]).and_then(Value::as_array).into_iter().flatten();
    let source = |volume: &Value| -> Option<String> {
        let fields = volume.as_object()?;
        let source = fields.keys().find(|field| *field != "name")?;
        // Upstream's list of names does not include image volumes.
        Some(if source == "image" { "unknown".into() } else { source.clone() })
    };
    let bad: Vec<(&str, String)> = volumes
        .filter_map(|volume| Some((volume.text(&["name"]), source(volume)?)))
        .filter(|(_, kind)| !VOLUMES.contains(&kind.as_str()))
        .collect();
    if bad.is_empty() {
        return None;
    }
    let kinds: BTreeSet<&String> = bad.iter().map(|(_, kind)| kind).collect();
    Violation::new(
        "restricted volume types",
        format!(
            "{} {} {} {} {}",
            plural("volume", "volumes", bad.len()),
            quoted(bad.iter().map(|(name, _)| name)),
            plural("uses", "use", bad.len()),
            plural("restricted volume type", "restricted volume types", kinds.len()),
            quoted(&kinds)
        ),
    )
}

fn run_as_non_root(pod: &Value) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    let field = ["runAsNonRoot"];
    let setters = Setters::of(pod, |context| match context.at(&field) {
        Some(Value::Bool(false)) => vec!["false".to_owned()],
        _ => vec![],
    });
    if let Some(setters_text) = setters.described() {
        return Violation::new(
            REASON,
            format!("{setters_text} must not set securityContext.runAsNonRoot=false"),
        );
    }
    let open = unset(pod, &field)?;
    let detail = format!("pod or {open} must set securityContext.runAsNonRoot=true");
    Violation::new(REASON, detail)
}

/// The containers for which neither they nor the pod set the field.
fn unset(pod: &Value, field: &[&str]) -> Option<String> {
    if pod.at(&["spec", "securityContext"]).and_then(|context| context.at(field)).is_some() {
        return None;
    }
    let open = which(pod, |container| {
        container.at(&["securityContext"]).and_then(|context| context.at(field)).is_none()
    });
    (!open.is_empty()).then(|| named(&open))
}

fn run_as_user(pod: &Value) -> Option<Violation> {
    let setters = Setters::of(pod, |context| {
        let root = context.at(&["runAsUser"]).and_then(Value::as_i64) == Some(0);
        if root { vec!["0".to_owned()] } else { vec![] }
    });
    let setters_text = setters.described()?;
    Violation::new("runAsUser=0", format!("{setters_text} must not set runAsUser=0"))
}

fn seccomp(pod: &Value) -> Option<Violation> {
    let field = ["seccompProfile", "type"];
    let setters = Setters::of(pod, |context| match context.text(&field) {
        "" | "RuntimeDefault" | "Localhost" => vec![],
        other => vec![other.to_owned()],
    });
    if let Some(setters_text) = setters.described() {
        let values = quoted(&setters.values);
        let detail =
            format!("{setters_text} must not set securityContext.seccompProfile.type to {values}");
        return Violation::new("seccompProfile", detail);
    }
    let open = unset(pod, &field)?;
    let detail = format!(
        "pod or {open} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\""
    );
    Violation::new("seccompProfile", detail)
}
