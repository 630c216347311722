//! Security contexts of pods and containers.

use super::checks::{self, Duplicates};
use api::field::{At, Errors};
use api::names;

const PROFILE_PATH_MAX: usize = 4095;
const SYSCTL_MAX: usize = 253;
const SYSCTL_FORM: &str = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

/// `securityContext` of a pod; it also depends on other fields of the spec.
pub(super) fn pod(spec: &At, errors: &mut Errors) {
    let context = spec.field("securityContext");
    for id in ["fsGroup", "runAsUser", "runAsGroup"] {
        user_id(&context.field(id), errors);
    }
    for group in context.field("supplementalGroups").items() {
        user_id(&group, errors);
    }
    let shared = spec.field("shareProcessNamespace");
    if shared.is_true() && spec.field("hostPID").is_true() {
        let shown = context.field("shareProcessNamespace");
        errors.invalid_value(
            &shown,
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    sysctls(spec, &context.field("sysctls"), errors);
    let policies: [(&str, &[&str]); 3] = [
        ("fsGroupChangePolicy", &["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", &["Merge", "Strict"]),
        ("seLinuxChangePolicy", &["MountOption", "Recursive"]),
    ];
    checks::optional_one_of(&context.field(policies[0].0), policies[0].1, errors);
    seccomp(&context.field("seccompProfile"), errors);
    windows(&context.field("windowsOptions"), errors);
    app_armor(&context.field("appArmorProfile"), errors);
    for (field, supported) in &policies[1..] {
        checks::optional_one_of(&context.field(field), supported, errors);
    }
}

/// `securityContext` of a container.
pub(super) fn container(context: &At, host_users: bool, errors: &mut Errors) {
    if !context.is_set() {
        return;
    }
    user_id(&context.field("runAsUser"), errors);
    user_id(&context.field("runAsGroup"), errors);
    let proc_mount = context.field("procMount");
    checks::optional_one_of(&proc_mount, &["Default", "Unmasked"], errors);
    if host_users && proc_mount.text() == "Unmasked" {
        errors.invalid(&proc_mount, "`hostUsers` must be false to use `Unmasked`");
    }
    seccomp(&context.field("seccompProfile"), errors);
    if context.field("allowPrivilegeEscalation").bool() == Some(false) {
        if context.field("privileged").is_true() {
            errors.invalid(
                context,
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        let capabilities = context.field("capabilities");
        let added = capabilities.field("add");
        if added.items().any(|capability| capability.text() == "CAP_SYS_ADMIN") {
            errors.invalid(context, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN");
        }
    }
    windows(&context.field("windowsOptions"), errors);
    app_armor(&context.field("appArmorProfile"), errors);
}

fn user_id(at: &At, errors: &mut Errors) {
    if let Some(id) = at.int() {
        checks::each(at, names::user_id(id), errors);
    }
}

fn seccomp(profile: &At, errors: &mut Errors) {
    if !profile.is_set() {
        return;
    }
    let kind = profile.field("type");
    let local = profile.field("localhostProfile");
    if kind.text().is_empty() {
        errors.required(&kind, "type is required when seccompProfile is set");
    } else {
        checks::optional_one_of(&kind, &["Localhost", "RuntimeDefault", "Unconfined"], errors);
    }
    if kind.text() != "Localhost" {
        if local.is_set() {
            let value = profile.value().cloned().unwrap_or_default();
            errors.invalid_value(&local, value, "can only be set when seccomp type is Localhost");
        }
    } else if !local.is_set() {
        errors.required(&local, "must be set when seccomp type is Localhost");
    } else {
        checks::descending_path(&local, errors);
    }
}

fn app_armor(profile: &At, errors: &mut Errors) {
    if !profile.is_set() {
        return;
    }
    let kind = profile.field("type");
    let local = profile.field("localhostProfile");
    match kind.text() {
        "Localhost" => {
            let path = local.text();
            if path.trim() != path {
                errors.invalid(&local, "must not be padded with whitespace");
            } else if path.is_empty() {
                errors.required(&local, "must be set when AppArmor type is Localhost");
            }
            if path.len() > PROFILE_PATH_MAX {
                errors.too_long(&local, PROFILE_PATH_MAX);
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if local.is_set() {
                errors.invalid(&local, "can only be set when AppArmor type is Localhost");
            }
        }
        "" => errors.required(&kind, "type is required when appArmorProfile is set"),
        _ => errors.not_supported(&kind, &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}

fn windows(options: &At, errors: &mut Errors) {
    let name = options.field("gmsaCredentialSpecName");
    if name.is_set() {
        checks::each(&name, names::dns1123_subdomain(name.text()), errors);
    }
    for field in ["gmsaCredentialSpec", "runAsUserName"] {
        if options.field(field).str() == Some("") {
            errors.invalid(&options.field(field), &format!("{field} cannot be an empty string"));
        }
    }
}

fn sysctls(spec: &At, sysctls: &At, errors: &mut Errors) {
    let mut seen = Duplicates::default();
    for sysctl in sysctls.items() {
        let name = sysctl.field("name");
        if name.text().is_empty() {
            errors.required(&name, "");
        } else if !is_sysctl(name.text()) {
            let detail =
                format!("must have at most {SYSCTL_MAX} characters and match regex {SYSCTL_FORM}");
            errors.invalid(&name, &detail);
        } else if seen.repeats(name.text()) {
            errors.duplicate(&name);
        }
        let plain = name.text().replace('/', ".");
        if spec.field("hostNetwork").is_true() && plain.starts_with("net.") {
            errors.invalid(&name, "may not be specified when 'hostNetwork' is true");
        } else if spec.field("hostIPC").is_true() && is_ipc_sysctl(&plain) {
            errors.invalid(&name, "may not be specified when 'hostIPC' is true");
        }
    }
}

fn is_sysctl(name: &str) -> bool {
    let alnum = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let good = |part: &str| match part.as_bytes() {
        [] => false,
        [one] => alnum(*one),
        [first, between @ .., last] => {
            let inner = |c: &u8| alnum(*c) || *c == b'-' || *c == b'_';
            alnum(*first) && alnum(*last) && between.iter().all(inner)
        }
    };
    name.len() <= SYSCTL_MAX && name.split(['.', '/']).all(good)
}

fn is_ipc_sysctl(name: &str) -> bool {
    name == "kernel.sem"
        || ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|prefix| name.starts_with(prefix))
}

/// A pod with `spec.os.name` must not have options of another operating system.
pub(super) fn operating_system(spec: &At, errors: &mut Errors) {
    let os = spec.field("os");
    if !os.is_set() {
        return;
    }
    let name = os.field("name");
    match name.text() {
        "" => errors.required(&name, "cannot be empty"),
        "linux" => not_for_linux(spec, errors),
        "windows" => not_for_windows(spec, errors),
        other => {
            let supported = "supported values: \"linux\", \"windows\"";
            errors.push(api::field::Wrong::NotSupported, os.path(), Some(&other.into()), supported);
        }
    }
}

const CONTAINER_LISTS: &[&str] = &["initContainers", "containers", "ephemeralContainers"];

fn not_for_linux(spec: &At, errors: &mut Errors) {
    let detail = "windows options cannot be set for a linux pod";
    let forbid = |owner: &At, errors: &mut Errors| {
        let context = owner.field("securityContext");
        if context.field("windowsOptions").is_set() {
            errors.forbidden(&context.field("windowsOptions"), detail);
        }
    };
    forbid(spec, errors);
    for list in CONTAINER_LISTS {
        spec.field(list).items().for_each(|container| forbid(&container, errors));
    }
}

fn not_for_windows(spec: &At, errors: &mut Errors) {
    let detail = "cannot be set for a windows pod";
    let context = spec.field("securityContext");
    for field in ["appArmorProfile", "seLinuxOptions"] {
        if context.field(field).is_set() {
            errors.forbidden(&context.field(field), detail);
        }
    }
    if spec.field("hostUsers").is_set() {
        errors.forbidden(&spec.field("hostUsers"), detail);
    }
    for field in ["hostPID", "hostIPC"] {
        if spec.field(field).is_true() {
            errors.forbidden(&spec.field(field), detail);
        }
    }
    for field in [
        "seccompProfile",
        "fsGroup",
        "fsGroupChangePolicy",
        "sysctls",
        "runAsUser",
        "runAsGroup",
        "supplementalGroups",
        "supplementalGroupsPolicy",
        "seLinuxChangePolicy",
    ] {
        if context.field(field).is_set() {
            errors.forbidden(&context.field(field), detail);
        }
    }
    for list in CONTAINER_LISTS {
        for container in spec.field(list).items() {
            let context = container.field("securityContext");
            for field in [
                "appArmorProfile",
                "seLinuxOptions",
                "seccompProfile",
                "capabilities",
                "readOnlyRootFilesystem",
                "privileged",
                "allowPrivilegeEscalation",
                "procMount",
                "runAsUser",
                "runAsGroup",
            ] {
                if context.field(field).is_set() {
                    errors.forbidden(&context.field(field), detail);
                }
            }
        }
    }
}
