//! The security context of a container: settings of pod and container merged (N-126 to N-130).

use crate::identity::full_name;
use crate::{ConfigError, NodeFacts, PodContainer};
use k8s_openapi::api::core::v1::{Pod, PodSecurityContext, SeccompProfile, SecurityContext};
use runtime::{Capabilities, Image, Seccomp, Security, User};

const MASKED: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: &[&str] =
    &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// `volume_groups` are the groups of the pod's PersistentVolumes.
pub(crate) fn security(
    pod: &Pod,
    container: &PodContainer<'_>,
    image: &Image,
    facts: &NodeFacts,
    volume_groups: &[u32],
) -> Result<Security, ConfigError> {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.clone());
    let of_pod = of_pod.unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    check_non_root(pod, container, image, &of_pod, &own)?;
    let privileged = own.privileged == Some(true);
    let unmasked = privileged || own.proc_mount.as_deref() == Some("Unmasked");
    Ok(Security {
        user: match own.run_as_user.or(of_pod.run_as_user) {
            Some(uid) => User::Uid(id(uid)?),
            None => User::Image,
        },
        group: own.run_as_group.or(of_pod.run_as_group).map(id).transpose()?,
        supplemental_groups: groups(&of_pod, volume_groups)?,
        strict_groups: of_pod.supplemental_groups_policy.as_deref() == Some("Strict"),
        privileged,
        no_new_privs: own.allow_privilege_escalation == Some(false),
        read_only_root: own.read_only_root_filesystem == Some(true),
        capabilities: capabilities(&own),
        seccomp: match privileged {
            true => Seccomp::Unconfined,
            false => seccomp(own.seccomp_profile.or(of_pod.seccomp_profile).as_ref(), facts)?,
        },
        masked_paths: if unmasked { Vec::new() } else { masked() },
        read_only_paths: if unmasked {
            Vec::new()
        } else {
            READ_ONLY.iter().map(|p| (*p).into()).collect()
        },
        oom_score_adj: crate::resources::oom_score_adj(pod, container, facts),
    })
}

fn id(number: i64) -> Result<u32, ConfigError> {
    u32::try_from(number)
        .map_err(|_| ConfigError::new(format!("{number} is not a user or group id")))
}

fn groups(of_pod: &PodSecurityContext, of_volumes: &[u32]) -> Result<Vec<u32>, ConfigError> {
    let listed = of_pod.supplemental_groups.iter().flatten().chain(&of_pod.fs_group);
    let mut groups = listed.map(|group| id(*group)).collect::<Result<Vec<u32>, _>>()?;
    groups.extend(of_volumes.iter().filter(|group| !groups.contains(group)).collect::<Vec<_>>());
    Ok(groups)
}

fn capabilities(own: &SecurityContext) -> Capabilities {
    let plain = |names: &Option<Vec<String>>| {
        let names = names.iter().flatten().map(|name| name.to_uppercase());
        names.map(|name| name.strip_prefix("CAP_").map(str::to_owned).unwrap_or(name)).collect()
    };
    let Some(given) = &own.capabilities else { return Capabilities::default() };
    Capabilities { add: plain(&given.add), drop: plain(&given.drop) }
}

fn seccomp(profile: Option<&SeccompProfile>, facts: &NodeFacts) -> Result<Seccomp, ConfigError> {
    let Some(profile) = profile else {
        return Ok(if facts.seccomp_default {
            Seccomp::RuntimeDefault
        } else {
            Seccomp::Unconfined
        });
    };
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(Seccomp::RuntimeDefault),
        "Localhost" => {
            let path = profile.localhost_profile.as_deref().unwrap_or_default();
            if path.is_empty() || path.starts_with('/') || path.split('/').any(|part| part == "..")
            {
                return Err(ConfigError::new(
                    "localhostProfile must be set if seccompProfile type is Localhost.",
                ));
            }
            Ok(Seccomp::Localhost(facts.root_dir.join("seccomp").join(path)))
        }
        _ => Ok(Seccomp::Unconfined),
    }
}

/// The default paths, and the thermal throttling counters of each processor.
fn masked() -> Vec<String> {
    let mut paths: Vec<String> = MASKED.iter().map(|path| (*path).to_owned()).collect();
    let processors = std::fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let counters = processors.map(|processor| processor.path().join("thermal_throttle"));
    paths.extend(counters.filter(|path| path.exists()).map(|path| path.display().to_string()));
    paths
}

/// Refuses a container that must not run as root but would, or may (N-128).
fn check_non_root(
    pod: &Pod,
    container: &PodContainer<'_>,
    image: &Image,
    of_pod: &PodSecurityContext,
    own: &SecurityContext,
) -> Result<(), ConfigError> {
    if own.run_as_non_root.or(of_pod.run_as_non_root) != Some(true) {
        return Ok(());
    }
    let on = format!("(pod: \"{}\", container: {})", full_name(pod), container.name);
    let refused = |why: &str| Err(ConfigError::new(format!("{why} {on}")));
    match own.run_as_user.or(of_pod.run_as_user) {
        Some(0) => return refused("container's runAsUser breaks non-root policy"),
        Some(_) => return Ok(()),
        None => {}
    }
    match (image.uid, image.username.as_str()) {
        (Some(0), _) | (None, "") => {
            refused("container has runAsNonRoot and image will run as root")
        }
        (Some(_), _) => Ok(()),
        (None, name) => refused(&format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user \
             is non-root"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containers;
    use serde_json::{Value, json};

    fn image(uid: Option<u32>, username: &str) -> Image {
        Image {
            id: "sha256:1".into(),
            tags: vec![],
            digests: vec![],
            size: 0,
            uid,
            username: username.into(),
            pinned: false,
        }
    }

    fn build(of_pod: Value, own: Value, image: &Image) -> Result<Security, String> {
        let pod: Pod = typed::from_value(json!({
            "metadata": { "namespace": "ns", "name": "p", "uid": "u" },
            "spec": { "securityContext": of_pod, "containers": [{ "name": "c", "securityContext": own }] },
        }))
        .unwrap();
        let facts = NodeFacts::new("n", "/var/lib/kubelet");
        let built = security(&pod, &containers(&pod)[0], image, &facts, &[777]);
        built.map_err(|error| error.message)
    }

    #[test]
    fn n_126_n_127_settings_of_the_container_override_those_of_the_pod() {
        let of_pod = json!({ "runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4],
            "supplementalGroupsPolicy": "Strict", "seccompProfile": { "type": "RuntimeDefault" } });
        let plain = build(of_pod.clone(), json!(null), &image(None, "")).unwrap();
        assert_eq!((plain.user, plain.group), (User::Uid(1), Some(2)));
        assert_eq!(plain.supplemental_groups, [4, 3, 777]);
        assert!(plain.strict_groups && !plain.no_new_privs && !plain.read_only_root);
        assert_eq!(plain.seccomp, Seccomp::RuntimeDefault);

        let own = json!({ "runAsUser": 10, "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true, "seccompProfile": { "type": "Localhost", "localhostProfile": "a/b.json" },
            "capabilities": { "add": ["CAP_SYS_TIME"], "drop": ["ALL"] } });
        let merged = build(of_pod, own, &image(None, "")).unwrap();
        assert_eq!((merged.user, merged.group), (User::Uid(10), Some(2)));
        assert!(merged.no_new_privs && merged.read_only_root);
        assert_eq!(merged.seccomp, Seccomp::Localhost("/var/lib/kubelet/seccomp/a/b.json".into()));
        let expected = Capabilities { add: vec!["SYS_TIME".into()], drop: vec!["ALL".into()] };
        assert_eq!(merged.capabilities, expected);
    }

    #[test]
    fn n_127_n_130_a_privileged_container_has_no_seccomp_profile_and_no_masked_paths() {
        let plain = build(json!(null), json!(null), &image(None, "")).unwrap();
        assert_eq!(plain.user, User::Image);
        assert_eq!(plain.seccomp, Seccomp::Unconfined);
        assert!(plain.masked_paths.iter().any(|path| path == "/proc/kcore"));
        assert!(plain.read_only_paths.iter().any(|path| path == "/proc/sys"));

        let of_pod = json!({ "seccompProfile": { "type": "RuntimeDefault" } });
        let privileged = build(of_pod, json!({ "privileged": true }), &image(None, "")).unwrap();
        assert!(
            privileged.privileged
                && privileged.masked_paths.is_empty()
                && privileged.read_only_paths.is_empty()
        );
        assert_eq!(privileged.seccomp, Seccomp::Unconfined);

        let unmasked =
            build(json!(null), json!({ "procMount": "Unmasked" }), &image(None, "")).unwrap();
        assert!(
            !unmasked.privileged
                && unmasked.masked_paths.is_empty()
                && unmasked.read_only_paths.is_empty()
        );
    }

    #[test]
    fn n_127_the_nodes_default_profile_applies_to_containers_without_one() {
        let facts = NodeFacts { seccomp_default: true, ..NodeFacts::new("n", "/k") };
        let profile = |kind: &str| SeccompProfile { type_: kind.into(), ..Default::default() };
        let chosen =
            |profile: Option<&SeccompProfile>| seccomp(profile, &facts).map_err(|e| e.message);
        assert_eq!(chosen(None), Ok(Seccomp::RuntimeDefault));
        assert_eq!(chosen(Some(&profile("Unconfined"))), Ok(Seccomp::Unconfined));
        assert_eq!(seccomp(None, &NodeFacts::new("n", "/k")).ok(), Some(Seccomp::Unconfined));
    }

    #[test]
    fn n_128_run_as_non_root_is_verified_before_the_container_is_created() {
        const ON: &str = "(pod: \"p_ns(u)\", container: c)";
        let no = json!(null);
        let required = json!({ "runAsNonRoot": true });
        for (of_pod, own, image, expected) in [
            (&required, json!({ "runAsUser": 5 }), image(Some(0), ""), None),
            (&required, json!({ "runAsNonRoot": false }), image(Some(0), ""), None),
            (&no, json!({ "runAsNonRoot": true }), image(Some(1000), ""), None),
            (
                &required,
                json!({ "runAsUser": 0 }),
                image(Some(7), ""),
                Some("container's runAsUser breaks non-root policy"),
            ),
            (
                &required,
                no.clone(),
                image(Some(0), ""),
                Some("container has runAsNonRoot and image will run as root"),
            ),
            (
                &required,
                no.clone(),
                image(None, ""),
                Some("container has runAsNonRoot and image will run as root"),
            ),
            (
                &required,
                no.clone(),
                image(None, "nginx"),
                Some(
                    "container has runAsNonRoot and image has non-numeric user (nginx), cannot verify user is non-root",
                ),
            ),
        ] {
            let error = build(of_pod.clone(), own, &image).err();
            assert_eq!(error, expected.map(|why| format!("{why} {ON}")));
        }
    }
}
