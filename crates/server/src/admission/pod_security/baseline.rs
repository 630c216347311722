//! The checks of level `baseline`, which prevent access to the host, in the order of messages.

use super::setters::{Setters, containers, named, plural, quoted, which};
use super::{Version, Violation};
use api::value::ValueExt;
use serde_json::Value;
use std::collections::BTreeSet;

const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Capabilities that container runtimes grant by default.
const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Kernel parameters that affect only the pod, and the version since which they are allowed.
const SYSCTLS: [(&str, u32); 12] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
];

/// `restricted` omits the checks that the stricter level replaces.
pub(super) fn violations(
    pod: &Value,
    version: Version,
    restricted: bool,
) -> impl Iterator<Item = Violation> {
    let unless = |stricter: bool, found: Option<Violation>| if stricter { None } else { found };
    let own_capabilities = restricted && version >= Version(22);
    let own_seccomp = restricted && version >= Version(19);
    [
        app_armor(pod),
        unless(own_capabilities, capabilities(pod)),
        host_namespaces(pod),
        unless(restricted, host_path(pod)),
        host_ports(pod),
        unless(version < Version(34), host_probes(pod)),
        privileged(pod),
        proc_mount(pod),
        se_linux(pod, version),
        unless(own_seccomp, seccomp(pod)),
        sysctls(pod, version),
        windows_host_process(pod),
    ]
    .into_iter()
    .flatten()
}

fn app_armor(pod: &Value) -> Option<Violation> {
    let setters = Setters::of(pod, |context| {
        let kind = context.text(&["appArmorProfile", "type"]);
        let fine = matches!(kind, "" | "RuntimeDefault" | "Localhost");
        if fine { vec![] } else { vec![kind.to_owned()] }
    });
    let annotations = pod.at(&["metadata", "annotations"]).and_then(Value::as_object);
    let annotations: Vec<String> = annotations
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.starts_with(APPARMOR))
        .filter_map(|(key, value)| Some((key, value.as_str()?)))
        .filter(|(_, profile)| {
            !(profile.is_empty()
                || *profile == "runtime/default"
                || profile.starts_with("localhost/"))
        })
        .map(|(key, profile)| format!("{key}={profile:?}"))
        .collect();
    let also = match annotations.len() {
        0 => None,
        count => Some(plural("annotation", "annotations", count)),
    };
    let setters_text = setters.described_with(also)?;
    let values: Vec<&String> = setters.values.iter().chain(&annotations).collect();
    Violation::new(
        plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len()),
        format!("{setters_text} must not set AppArmor profile type to {}", quoted(&values)),
    )
}

fn capabilities(pod: &Value) -> Option<Violation> {
    let added = |container: &Value| -> Vec<String> {
        let added = container.at(&["securityContext", "capabilities", "add"]);
        let added = added.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        added.filter(|name| !CAPABILITIES.contains(name)).map(str::to_owned).collect()
    };
    let bad = which(pod, |container| !added(container).is_empty());
    let names: BTreeSet<String> = containers(pod).flat_map(added).collect();
    if bad.is_empty() {
        return None;
    }
    Violation::new(
        "non-default capabilities",
        format!(
            "{} must not include {} in securityContext.capabilities.add",
            named(&bad),
            quoted(&names)
        ),
    )
}

fn host_namespaces(pod: &Value) -> Option<Violation> {
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|field| pod.at(&["spec", field]) == Some(&Value::Bool(true)))
        .map(|field| format!("{field}=true"))
        .collect();
    if shared.is_empty() { None } else { Violation::new("host namespaces", shared.join(", ")) }
}

fn host_path(pod: &Value) -> Option<Violation> {
    let volumes = pod.at(&["spec", "volumes"]).and_then(Value::as_array).into_iter().flatten();
    let names: Vec<&str> = volumes
        .filter(|volume| volume.at(&["hostPath"]).is_some())
        .map(|volume| volume.text(&["name"]))
        .collect();
    if names.is_empty() {
        return None;
    }
    let detail = format!("{} {}", plural("volume", "volumes", names.len()), quoted(&names));
    Violation::new("hostPath volumes", detail)
}

fn host_ports(pod: &Value) -> Option<Violation> {
    let of = |container: &Value| -> Vec<i64> {
        let ports = container.get("ports").and_then(Value::as_array).into_iter().flatten();
        ports.filter_map(|port| port["hostPort"].as_i64()).filter(|port| *port != 0).collect()
    };
    let bad = which(pod, |container| !of(container).is_empty());
    if bad.is_empty() {
        return None;
    }
    // Sorted as text, like upstream's sets.
    let ports: BTreeSet<String> =
        containers(pod).flat_map(of).map(|port| port.to_string()).collect();
    let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
    Violation::new(
        "hostPort",
        format!(
            "{} {} {} {}",
            named(&bad),
            plural("uses", "use", bad.len()),
            plural("hostPort", "hostPorts", ports.len()),
            ports.join(", ")
        ),
    )
}

fn host_probes(pod: &Value) -> Option<Violation> {
    const HANDLERS: [&[&str]; 5] = [
        &["livenessProbe"],
        &["readinessProbe"],
        &["startupProbe"],
        &["lifecycle", "postStart"],
        &["lifecycle", "preStop"],
    ];
    let hosts = |container: &Value| -> Vec<String> {
        let mut hosts = Vec::new();
        for handler in HANDLERS.iter().filter_map(|path| container.at(path)) {
            for action in ["httpGet", "tcpSocket"] {
                let host = handler.text(&[action, "host"]);
                if !matches!(host, "" | "127.0.0.1" | "::1") {
                    hosts.push(host.to_owned());
                }
            }
        }
        hosts
    };
    let bad: BTreeSet<&str> =
        which(pod, |container| !hosts(container).is_empty()).into_iter().collect();
    if bad.is_empty() {
        return None;
    }
    let hosts: BTreeSet<String> = containers(pod).flat_map(hosts).collect();
    let bad: Vec<&str> = bad.into_iter().collect();
    Violation::new(
        "probe or lifecycle host",
        format!(
            "{} {} {} {}",
            named(&bad),
            plural("uses", "use", bad.len()),
            plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len()),
            quoted(&hosts)
        ),
    )
}

fn privileged(pod: &Value) -> Option<Violation> {
    let bad = which(pod, |container| {
        container.at(&["securityContext", "privileged"]) == Some(&Value::Bool(true))
    });
    if bad.is_empty() {
        return None;
    }
    let detail = format!("{} must not set securityContext.privileged=true", named(&bad));
    Violation::new("privileged", detail)
}

fn proc_mount(pod: &Value) -> Option<Violation> {
    let of = |container: &Value| -> String {
        container.text(&["securityContext", "procMount"]).to_owned()
    };
    let is_bad = |mount: &String| !matches!(mount.as_str(), "" | "Default");
    let bad = which(pod, |container| is_bad(&of(container)));
    if bad.is_empty() {
        return None;
    }
    let values: BTreeSet<String> = containers(pod).map(of).filter(is_bad).collect();
    let detail =
        format!("{} must not set securityContext.procMount to {}", named(&bad), quoted(&values));
    Violation::new("procMount", detail)
}

fn se_linux(pod: &Value, version: Version) -> Option<Violation> {
    let allowed = |kind: &str| match kind {
        "" | "container_t" | "container_init_t" | "container_kvm_t" => true,
        "container_engine_t" => version >= Version(31),
        _ => false,
    };
    // Types have a prefix, which distinguishes them from users and roles.
    let setters = Setters::of(pod, |context| {
        let mut bad = Vec::new();
        let kind = context.text(&["seLinuxOptions", "type"]);
        if !allowed(kind) {
            bad.push(format!("type {kind}"));
        }
        for field in ["user", "role"] {
            if !context.text(&["seLinuxOptions", field]).is_empty() {
                bad.push(field.to_owned());
            }
        }
        bad
    });
    let setters_text = setters.described()?;
    let types: Vec<&str> =
        setters.values.iter().filter_map(|value| value.strip_prefix("type ")).collect();
    let mut detail = Vec::new();
    if !types.is_empty() {
        detail.push(format!("{} {}", plural("type", "types", types.len()), quoted(&types)));
    }
    for field in ["user", "role"] {
        if setters.values.contains(field) {
            detail.push(format!("{field} may not be set"));
        }
    }
    let detail = format!(
        "{setters_text} set forbidden securityContext.seLinuxOptions: {}",
        detail.join("; ")
    );
    Violation::new("seLinuxOptions", detail)
}

fn seccomp(pod: &Value) -> Option<Violation> {
    let setters = Setters::of(pod, |context| {
        let kind = context.text(&["seccompProfile", "type"]);
        let fine = matches!(kind, "" | "RuntimeDefault" | "Localhost");
        if fine { vec![] } else { vec![kind.to_owned()] }
    });
    let setters_text = setters.described()?;
    let values = quoted(&setters.values);
    let detail =
        format!("{setters_text} must not set securityContext.seccompProfile.type to {values}");
    Violation::new("seccompProfile", detail)
}

fn sysctls(pod: &Value, version: Version) -> Option<Violation> {
    let set = pod.at(&["spec", "securityContext", "sysctls"]).and_then(Value::as_array);
    let known = |name: &str| {
        SYSCTLS.iter().any(|(safe, since)| *safe == name && version >= Version(*since))
    };
    let names: Vec<&str> = set
        .into_iter()
        .flatten()
        .map(|sysctl| sysctl.text(&["name"]))
        .filter(|name| !known(name))
        .collect();
    if names.is_empty() { None } else { Violation::new("forbidden sysctls", names.join(", ")) }
}

fn windows_host_process(pod: &Value) -> Option<Violation> {
    let setters =
        Setters::of(pod, |context| match context.at(&["windowsOptions", "hostProcess"]) {
            Some(Value::Bool(true)) => vec!["true".to_owned()],
            _ => vec![],
        });
    let detail = setters.described()?;
    let detail = format!("{detail} must not set securityContext.windowsOptions.hostProcess=true");
    Violation::new("hostProcess", detail)
}
