//! The seccomp filter of a container, as an OCI profile (N-127).
//!
//! The default profile allows the system calls of ordinary programs and returns EPERM for others. Capabilities of
//! the container allow additional calls. The lists are in `seccomp_default.txt`.

use crate::{Error, Result, Seccomp, Security};
use serde_json::{Value, json};

const CALLS: &str = include_str!("seccomp_default.txt");

const EPERM: i32 = 1;
const ENOSYS: i32 = 38;
/// All CLONE_NEW* flags. Only containers with CAP_SYS_ADMIN may create namespaces.
const NEW_NAMESPACES: u64 = 0x7E02_0000;
const AF_VSOCK: u64 = 40;

/// `None` means no filter. Privileged containers have none.
pub(crate) fn profile(security: &Security, capabilities: &[String]) -> Result<Option<Value>> {
    match &security.seccomp {
        _ if security.privileged => Ok(None),
        Seccomp::Unconfined => Ok(None),
        Seccomp::RuntimeDefault => Ok(Some(default_profile(capabilities))),
        Seccomp::Localhost(path) => {
            let text = std::fs::read(path).map_err(Error::io("read the seccomp profile", path))?;
            serde_json::from_slice(&text).map(Some).map_err(|error| {
                Error::Refused(format!(
                    "cannot read the seccomp profile {}: {error}",
                    path.display()
                ))
            })
        }
    }
}

fn default_profile(capabilities: &[String]) -> Value {
    let has = |name: &str| capabilities.iter().any(|own| own.strip_prefix("CAP_") == Some(name));
    let admin = has("SYS_ADMIN");
    let mut names: Vec<&str> = Vec::new();
    for line in CALLS.lines() {
        let Some((condition, calls)) = line.split_once(':') else { continue };
        if condition == "always" || has(condition) {
            names.extend(calls.split_whitespace());
        }
    }
    let allow = |names: Value, args: Value| json!({ "names": names, "action": "SCMP_ACT_ALLOW", "args": args });
    let equal = |value: u64| json!([{ "index": 0, "value": value, "op": "SCMP_CMP_EQ" }]);
    let mut rules = vec![
        json!({ "names": names, "action": "SCMP_ACT_ALLOW" }),
        allow(json!(["socket"]), json!([{ "index": 0, "value": AF_VSOCK, "op": "SCMP_CMP_NE" }])),
    ];
    // Values of personality(2) that do not disable security features.
    for personality in [0, 8, 0x2_0000, 0x2_0008, 0xFFFF_FFFF] {
        rules.push(allow(json!(["personality"]), equal(personality)));
    }
    if !admin {
        rules.push(allow(
            json!(["clone"]),
            json!([{ "index": 0, "value": NEW_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ" }]),
        ));
        // A filter cannot read the flags of clone3, which are behind a pointer. With ENOSYS, libraries fall back to clone.
        rules.push(json!({
            "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS,
        }));
    }
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "architectures": architectures(),
        "syscalls": rules,
    })
}

/// Includes the 32-bit architectures for old programs.
fn architectures() -> &'static [&'static str] {
    match std::env::consts::ARCH {
        "x86_64" => &["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "aarch64" => &["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(capabilities: &[&str]) -> String {
        let capabilities: Vec<String> = capabilities.iter().map(|c| (*c).to_owned()).collect();
        default_profile(&capabilities).to_string()
    }

    #[test]
    fn capabilities_allow_additional_calls() {
        assert!(!allowed(&[]).contains("\"mount\""));
        assert!(allowed(&["CAP_SYS_ADMIN"]).contains("\"mount\""));
        assert!(!allowed(&["CAP_SYS_ADMIN"]).contains("SCMP_CMP_MASKED_EQ"));
        assert!(!allowed(&["CAP_SYS_ADMIN"]).contains("init_module"));
        assert!(allowed(&[]).contains("\"openat2\""));
    }

    #[test]
    fn libcontainer_can_parse_the_default_profile() {
        let profile = default_profile(&[]);
        let read: oci_spec::runtime::LinuxSeccomp = serde_json::from_value(profile).unwrap();
        assert!(read.syscalls().as_ref().unwrap().len() > 3);
    }

    #[test]
    fn no_call_is_listed_twice_and_dangerous_ones_need_a_capability() {
        let always = CALLS.lines().filter_map(|line| line.strip_prefix("always:"));
        let mut names: Vec<&str> = always.flat_map(str::split_whitespace).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        for name in
            ["mount", "unshare", "setns", "bpf", "kexec_load", "init_module", "keyctl", "reboot"]
        {
            assert!(!names.contains(&name), "{name}");
        }
    }
}
