//! Security contexts, as the processes in the containers see them.

use super::{can, on_a_node};
use crate::harness::Kubectl;

/// A pod with one sleeping container per security context.
fn pod(name: &str, of_pod: &str, containers: &[(&str, &str)]) -> String {
    let one = |(name, context): &(&str, &str)| {
        format!(
            "  - {{name: {name}, image: 'busybox:1', command: [sleep, '1000'], securityContext: {context}}}\n"
        )
    };
    let containers: String = containers.iter().map(one).collect();
    format!(
        "kubectl apply -f - <<'EOF'\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n\
         spec:\n  terminationGracePeriodSeconds: 1\n  securityContext: {of_pod}\n  containers:\n{containers}EOF"
    )
}

/// N-126, N-127, N-129: the security context of a container overrides the one of the pod, and the kernel enforces it.
#[test]
fn each_container_has_its_own_identity_capabilities_and_filter() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        let profiles = cluster.data_dir().join("kubelet/seccomp/own");
        std::fs::create_dir_all(&profiles).unwrap();
        let deny = r#"{"defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}"#;
        std::fs::write(profiles.join("no-mkdir.json"), deny).unwrap();
        let policy = match can(kubectl, "features.supplementalGroupsPolicy") {
            true => "Strict",
            false => {
                strict_groups_are_refused(kubectl);
                "Merge"
            }
        };
        kubectl.ok(&pod(
            "p",
            &format!("{{runAsUser: 1000, runAsGroup: 2000, supplementalGroups: [4000], fsGroup: 5000, supplementalGroupsPolicy: {policy}}}"),
            &[
                ("plain", "{}"),
                ("root", "{runAsUser: 0, runAsGroup: 0, capabilities: {add: [NET_ADMIN], drop: [CHOWN]}}"),
                ("privileged", "{runAsUser: 0, privileged: true}"),
                ("none", "{runAsUser: 0, capabilities: {drop: [ALL]}, allowPrivilegeEscalation: false}"),
                ("filtered", "{seccompProfile: {type: Localhost, localhostProfile: own/no-mkdir.json}}"),
                ("default", "{seccompProfile: {type: RuntimeDefault}}"),
            ],
        ));
        kubectl.ok(&pod(
            "lost",
            "{}",
            &[("c", "{seccompProfile: {type: Localhost, localhostProfile: gone.json}}")],
        ));
        if can(kubectl, "runtimeHandlers[0].features.userNamespaces") {
            root_is_nobody_on_the_node(kubectl);
        }
        kubectl.ok("kubectl wait --for=condition=Ready pod/p --timeout=30s");
        let says = |container: &str, command: &str, words: &str| {
            kubectl.prints(&format!("kubectl exec p -c {container} -- {command}"), words);
        };
        let status = |container: &str, field: &str, value: &str| {
            says(container, &format!("sh -c \"grep ^{field}: /proc/1/status | cut -f2\""), value);
        };
        says("plain", "id -u", "1000");
        says("plain", "id -G", "2000 4000 5000");
        says("root", "id -u", "0");
        says("root", "id -G", "0 4000 5000");
        // Not root: no effective and no ambient capabilities.
        status("plain", "CapEff", "0000000000000000");
        status("plain", "CapAmb", "0000000000000000");
        status("plain", "CapBnd", "00000000a80425fb");
        // The default capabilities without CHOWN and with NET_ADMIN.
        status("root", "CapEff", "00000000a80435fa");
        status("none", "CapBnd", "0000000000000000");
        status("none", "NoNewPrivs", "1");
        status("plain", "NoNewPrivs", "0");
        let all = kubectl
            .ok("kubectl exec p -c privileged -- sh -c \"grep ^CapEff: /proc/1/status | cut -f2\"");
        assert!(
            u64::from_str_radix(all.trim(), 16).unwrap() & (1 << 21) != 0,
            "no SYS_ADMIN in {all}"
        );
        status("plain", "Seccomp", "0");
        status("privileged", "Seccomp", "0");
        status("default", "Seccomp", "2");
        status("filtered", "Seccomp", "2");
        kubectl.fails("kubectl exec p -c filtered -- mkdir /tmp/x", "Operation not permitted");
        says("filtered", "sh -c 'echo > /tmp/y && ls /tmp/y'", "/tmp/y");
        kubectl.ok("kubectl wait --timeout=30s pod/lost --for=jsonpath='{.status.containerStatuses[0].state.waiting.reason}'=CreateContainerError");
        kubectl.shows("kubectl describe pod lost", &["seccomp/gone.json"]);
        // The status shows the user of the process (N-82).
        kubectl.prints(
            "kubectl get pod p -o jsonpath='{.status.containerStatuses[?(@.name==\"plain\")].user.linux}'",
            "{\"gid\":2000,\"supplementalGroups\":[2000,4000,5000],\"uid\":1000}",
        );
    });
}

/// N-124: network, sandbox, volumes and exec of a pod in a user namespace.
fn root_is_nobody_on_the_node(kubectl: &Kubectl) {
    kubectl.ok(
        "kubectl apply -f - <<'EOF'\napiVersion: v1\nkind: Pod\nmetadata: {name: own}\n\
         spec:\n  hostUsers: false\n  terminationGracePeriodSeconds: 1\n\
         \x20 volumes: [{name: v, emptyDir: {}}]\n\
         \x20 containers:\n  - name: c\n    image: busybox:1\n    volumeMounts: [{name: v, mountPath: /v}]\n\
         \x20   command: [sh, -c, 'touch /v/mine; nc -lp 80 -e true & exec sleep 1000']\nEOF",
    );
    kubectl.ok("kubectl wait --for=condition=Ready pod/own --timeout=30s");
    let says = |command: &str, words: &str| {
        kubectl.prints(&format!("kubectl exec own -- sh -c '{command}'"), words);
    };
    let map = "read inside outside count < /proc/self/uid_map";
    says(&format!("id -u; {map}; echo $inside $((outside % 65536)) $count"), "0\n0 0 65536");
    says(&format!("{map}; test $outside != 0 && echo nobody"), "nobody");
    says(
        "until test -e /v/mine; do :; done; stat -c %u /v/mine /etc/hosts /etc/resolv.conf /dev/shm",
        "0\n0\n0\n0",
    );
    // The user namespace owns the network: root may listen on any port and sees its devices.
    says("until netstat -ltn | grep -q :80; do :; done; ls /sys/class/net", "eth0\nlo");
}

/// N-27: a pod that needs a feature that the runtime does not have is rejected.
fn strict_groups_are_refused(kubectl: &Kubectl) {
    kubectl.ok(&pod("strict", "{supplementalGroupsPolicy: Strict}", &[("c", "{}")]));
    kubectl.ok("kubectl wait --for=jsonpath='{.status.phase}'=Failed pod/strict --timeout=30s");
    kubectl.prints(
        "kubectl get pod strict -o jsonpath='{.status.reason}: {.status.message}'",
        "SupplementalGroupsPolicyNotSupported: Pod was rejected: SupplementalGroupsPolicy=Strict is not supported in this node",
    );
}

/// N-128: each violation has its own message; N-131: an unsafe sysctl is not admitted.
#[test]
fn policy_violations_are_rejected_with_the_reason() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok(&pod("user-0", "{runAsNonRoot: true, runAsUser: 0}", &[("c", "{}")]));
        kubectl.ok(&pod("image-root", "{}", &[("c", "{runAsNonRoot: true}")]));
        kubectl.ok(&pod("fine", "{runAsNonRoot: true, runAsUser: 0}", &[("c", "{runAsUser: 7}")]));
        kubectl.ok(&pod(
            "unsafe",
            "{sysctls: [{name: kernel.msgmax, value: '65536'}]}",
            &[("c", "{}")],
        ));
        kubectl.ok(&pod(
            "safe",
            "{sysctls: [{name: net/ipv4/tcp_keepalive_time, value: '77'}, {name: kernel.shm_rmid_forced, value: '1'}]}",
            &[("c", "{}")],
        ));
        for (name, why) in [
            ("user-0", "container's runAsUser breaks non-root policy"),
            ("image-root", "container has runAsNonRoot and image will run as root"),
        ] {
            kubectl.ok(&format!("kubectl wait --timeout=30s pod/{name} --for=jsonpath='{{.status.containerStatuses[0].state.waiting.reason}}'=CreateContainerConfigError"));
            let uid =
                kubectl.ok(&format!("kubectl get pod {name} -o jsonpath='{{.metadata.uid}}'"));
            kubectl.prints(
                &format!("kubectl get pod {name} -o jsonpath='{{.status.containerStatuses[0].state.waiting.message}}'"),
                &format!("{why} (pod: \"{name}_default({uid})\", container: c)"),
            );
        }
        kubectl.ok("kubectl wait --for=jsonpath='{.status.phase}'=Failed pod/unsafe --timeout=30s
                    kubectl wait --for=condition=Ready pod/fine pod/safe --timeout=30s");
        kubectl.prints(
            "kubectl get pod unsafe -o jsonpath='{.status.reason}: {.status.message}'",
            "SysctlForbidden: Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted",
        );
        kubectl.prints("kubectl exec fine -- id -u", "7");
        kubectl.prints("kubectl exec safe -- cat /proc/sys/net/ipv4/tcp_keepalive_time /proc/sys/kernel/shm_rmid_forced", "77\n1");
    });
}

/// N-123, N-130: masked paths, and shared namespaces.
#[test]
fn paths_are_masked_and_namespaces_shared_as_asked() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok(&pod("p", "{}", &[("c", "{}"), ("privileged", "{privileged: true}")]));
        for (name, field) in [("together", "shareProcessNamespace"), ("host", "hostPID")] {
            let made = pod(name, "{}", &[("a", "{}"), ("b", "{}")]);
            kubectl.ok(&made.replace("spec:\n", &format!("spec:\n  {field}: true\n")));
        }
        kubectl.ok("kubectl wait --for=condition=Ready pod --all --timeout=30s");
        let says = |container: &str, command: &str, words: &str| {
            kubectl.prints(&format!("kubectl exec p -c {container} -- sh -c '{command}'"), words);
        };
        says("c", "cat /proc/kcore /proc/keys /proc/timer_list | wc -c", "0");
        says("c", "ls /proc/acpi /sys/firmware | grep -v :", "");
        kubectl.fails(
            "kubectl exec p -c c -- sh -c 'echo 1 > /proc/sys/kernel/randomize_va_space'",
            "Read-only file system",
        );
        kubectl.fails(
            "kubectl exec p -c c -- sh -c 'echo 1 > /proc/irq/default_smp_affinity'",
            "Read-only file system",
        );
        kubectl.fails("kubectl exec p -c c -- sh -c 'mkdir /sys/fs/x'", "Read-only file system");
        says(
            "privileged",
            "grep -c . /proc/keys > /dev/null; cat /proc/sys/kernel/randomize_va_space > /dev/null; mount | grep -c \" /proc/sys \" || true",
            "0",
        );
        // The processes of the container, of the pod, of the node; some runtimes add a pause process.
        says("c", "ps | grep -c [s]leep", "1");
        kubectl.prints("kubectl exec together -c a -- sh -c 'ps | grep -c [s]leep.1000'", "2");
        kubectl.ok("kubectl exec together -c a -- sh -c 'kill -0 1'");
        let seen = kubectl.ok("kubectl exec host -c a -- ps");
        assert!(seen.contains("landfall"), "{seen}");
    });
}

/// A container in the PID namespace of the node sees landfall and its shims, which have the node's files. With the
/// default capabilities it cannot reach these. With SYS_PTRACE it can (docs/SECURITY.md), which shows that the script
/// finds them.
#[test]
fn a_container_in_the_host_pid_namespace_cannot_reach_files_of_shims() {
    // The brackets keep the script from finding itself.
    let script = r#"for p in /proc/[0-9]*; do
    tr "\0" " " < $p/cmdline 2>/dev/null | grep -q "[l]andfall" || continue
    echo seen
    [ -e $p/root/etc ] && echo reached $p/root
    for f in $p/fd/*; do [ -n "$(readlink $f)" ] && echo reached $f; done
    cat $p/environ 2>/dev/null | grep -q . && echo reached $p/environ
done; true"#;
    on_a_node(&["busybox"], |_, kubectl| {
        let added = "{capabilities: {add: [SYS_PTRACE]}}";
        let made = pod("host", "{}", &[("plain", "{}"), ("tracer", added)]);
        kubectl.ok(&made.replace("spec:\n", "spec:\n  hostPID: true\n"));
        kubectl.ok("kubectl wait --for=condition=Ready pod/host --timeout=30s");
        let found = |container: &str| {
            kubectl.ok(&format!("kubectl exec host -c {container} -- sh -c '{script}'"))
        };
        let plain = found("plain");
        assert!(plain.lines().filter(|line| *line == "seen").count() >= 2, "{plain}");
        assert!(!plain.contains("reached"), "{plain}");
        let tracer = found("tracer");
        assert!(tracer.contains("/root") && tracer.contains("/fd/"), "{tracer}");
    });
}

/// landfall disables huge pages for itself; its pods keep the setting of the host.
#[test]
fn a_container_may_have_huge_pages_although_the_server_has_none() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        let allowed = |status: &str| {
            let line = status.lines().find(|line| line.starts_with("THP_enabled:"));
            line.and_then(|line| line.split_whitespace().nth(1)).map(str::to_owned)
        };
        let ours = std::fs::read_to_string("/proc/self/status").unwrap();
        let server =
            std::fs::read_to_string(format!("/proc/{}/status", cluster.process_id())).unwrap();
        assert_eq!(allowed(&server).as_deref(), Some("0"), "{server}");
        kubectl.ok("kubectl run big --image=busybox:1 --restart=Never -- cat /proc/self/status
kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/big --timeout=60s");
        assert_eq!(allowed(&kubectl.ok("kubectl logs big")), allowed(&ours));
    });
}
