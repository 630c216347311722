//! Tables, watches, descriptions and events as kubectl prints them.

use super::deletion::bound_pod;
use crate::harness::each_kubectl;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

/// T-CLI-16: the columns of pods.
#[test]
fn t_cli_16_pods_have_their_columns() {
    each_kubectl(|kubectl| {
        kubectl.ok("kubectl run p --image=nginx");
        kubectl.shows(
            "kubectl get po",
            &["NAME", "READY", "STATUS", "RESTARTS", "AGE", "p", "0/1", "Pending", "0"],
        );
        kubectl.shows(
            "kubectl get po -o wide",
            &["AGE", "IP", "NODE", "NOMINATED NODE", "READINESS GATES", "<none>"],
        );
        kubectl.shows("kubectl get po --show-labels", &["LABELS", "run=p"]);
        kubectl.shows("kubectl get po -L run", &["RUN", "p"]);
        kubectl.prints("kubectl get po -o custom-columns=N:.metadata.name --no-headers", "p");
        kubectl.shows("kubectl get po --sort-by=.metadata.name", &["p"]);
        kubectl.prints(
            "kubectl get po -o 'go-template={{range .items}}{{.metadata.name}}{{end}}'",
            "p",
        );
    });
}

/// T-CLI-17, T-CLI-18, T-CLI-19, T-CLI-20, T-CLI-21, T-CLI-22, T-EDGE-30: how STATUS is derived from the pod's status.
#[test]
fn t_cli_17_to_22_the_status_column_is_derived_from_the_status() {
    each_kubectl(|kubectl| {
        if kubectl.is_before(24) {
            return; // Writing a status takes --subresource; what is printed is the server's work.
        }
        bound_pod(kubectl, "p");
        let status = |json: &str| {
            kubectl.ok(&format!(
                "kubectl patch po p --subresource=status --type=merge -p '{{\"status\":{json}}}'"
            ))
        };
        let container = |state: &str| {
            format!(
                r#"{{"name":"p","image":"nginx","imageID":"","ready":false,"restartCount":3,"state":{state}}}"#
            )
        };
        let shows = |words: &[&str]| kubectl.shows("kubectl get po p --no-headers", words);
        // T-CLI-19, T-CLI-23: the reason of the first container, and the number of restarts.
        status(&format!(
            r#"{{"phase":"Running","containerStatuses":[{}]}}"#,
            container(r#"{"waiting":{"reason":"CrashLoopBackOff"}}"#)
        ));
        shows(&["p", "0/1", "CrashLoopBackOff", "3"]);
        status(&format!(
            r#"{{"containerStatuses":[{}]}}"#,
            container(r#"{"terminated":{"exitCode":137}}"#)
        ));
        shows(&["ExitCode:137"]);
        // T-CLI-18: the first unfinished init container decides.
        let init = |state: &str| {
            let first = container(state).replace(r#""p""#, r#""first""#);
            status(&format!(r#"{{"phase":"Pending","initContainerStatuses":[{first}]}}"#));
        };
        init(r#"{"waiting":{"reason":"CrashLoopBackOff"}}"#);
        shows(&["Init:CrashLoopBackOff"]);
        init(r#"{"terminated":{"exitCode":1,"reason":"Error"}}"#);
        shows(&["Init:Error"]);
        // A container that is not in the spec may not leave its terminated state (A-84).
        status(r#"{"initContainerStatuses":null}"#);
        init(r#"{"running":{}}"#);
        shows(&["Init:0/0"]);
        // T-CLI-20: a completed container does not hide one that failed or one that runs.
        let beside = |other: &str, ready: &str| {
            let done = container(r#"{"terminated":{"exitCode":0,"reason":"Completed"}}"#);
            let other = container(other).replace(r#""p""#, r#""q""#);
            let other = other.replace(r#""ready":false"#, &format!(r#""ready":{ready}"#));
            status(&format!(
                r#"{{"phase":"Running","initContainerStatuses":null,"containerStatuses":[{done},{other}]}}"#
            ));
        };
        beside(r#"{"terminated":{"exitCode":1,"reason":"Error"}}"#, "false");
        shows(&["Error"]);
        status(r#"{"containerStatuses":null}"#);
        beside(r#"{"running":{}}"#, "true");
        shows(&["NotReady"]);
        // T-CLI-17: status.reason replaces the phase.
        status(r#"{"phase":"Failed","reason":"Evicted","containerStatuses":null}"#);
        shows(&["Evicted"]);
        // T-CLI-22: a completed pod that a finalizer keeps does not show Terminating.
        kubectl.ok(r#"kubectl patch po p --type=merge -p '{"metadata":{"finalizers":["example.com/hold"]}}'"#);
        status(&format!(
            r#"{{"phase":"Succeeded","reason":null,"containerStatuses":[{}]}}"#,
            container(r#"{"terminated":{"exitCode":0,"reason":"Completed"}}"#)
        ));
        kubectl.ok("kubectl delete po p --wait=false");
        shows(&["Completed"]);
        // T-CLI-21: NodeLost shows Unknown.
        status(r#"{"phase":"Running","reason":"NodeLost"}"#);
        shows(&["Unknown"]);
        kubectl.ok(r#"kubectl patch po p --type=merge -p '{"metadata":{"finalizers":null}}'
            kubectl delete po p --force --grace-period=0 --ignore-not-found"#);
    });
}

/// W-63: `get -w` shows every transition.
#[test]
fn w_63_a_watch_shows_every_transition_as_it_happens() {
    each_kubectl(|kubectl| {
        kubectl.ok("kubectl run first --image=nginx");
        let watch = kubectl.spawn("exec kubectl get po -w");
        watch.line("first", SOON);
        bound_pod(kubectl, "p");
        watch.line("p       0/1     Pending", SOON);
        kubectl.ok("kubectl delete po p --wait=false");
        watch.line("Terminating", SOON);
        kubectl.ok("kubectl delete po p --force --grace-period=0");
        watch.line("Terminating", SOON);
        // T-CLI-26: one row per event, also for DELETED.
        let events = kubectl.spawn("exec kubectl get po -w --output-watch-events");
        events.line("EVENT", SOON);
        events.line("ADDED      first", SOON);
        kubectl.ok("kubectl label po first x=y");
        events.line("MODIFIED   first", SOON);
        kubectl.ok("kubectl delete po first");
        events.line("DELETED    first", SOON);
        // Names, JSON, and one object only.
        kubectl.ok("kubectl create cm c --from-literal=a=b");
        let one = kubectl.spawn("exec kubectl get cm c -w -o jsonpath='{.data.a}{\"\\n\"}'");
        one.line("b", SOON);
        kubectl.ok(r#"kubectl patch cm c -p '{"data":{"a":"changed"}}'"#);
        one.line("changed", SOON);
    });
}

#[test]
fn waiting_ends_when_the_condition_is_true() {
    each_kubectl(|kubectl| {
        if kubectl.is_before(24) {
            return;
        }
        kubectl.ok("kubectl run p --image=nginx");
        let mut wait = kubectl.spawn("exec kubectl wait --for=condition=Ready po/p --timeout=60s");
        let mut gone = kubectl.spawn("exec kubectl wait --for=delete po/p --timeout=60s");
        kubectl.ok(r#"kubectl patch po p --subresource=status --type=merge \
            -p '{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}'"#);
        assert_eq!(wait.exit(SOON), Some(0), "{}", wait.stderr());
        kubectl.ok("kubectl delete po p");
        assert_eq!(gone.exit(SOON), Some(0), "{}", gone.stderr());
        kubectl.fails("kubectl wait --for=condition=Ready po/p --timeout=1s", "not found");
    });
}

/// T-CLI-28, T-EDGE-30: kubectl itself computes how long the termination lasts.
#[test]
fn t_cli_28_a_description_shows_the_termination() {
    each_kubectl(|kubectl| {
        bound_pod(kubectl, "p");
        kubectl.shows(
            "kubectl describe po p",
            &[
                "Name:",
                "p",
                "Node:",
                "nowhere",
                "Status:",
                "Pending",
                "Containers:",
                "Image:",
                "nginx",
                "QoS Class:",
                "Events:",
            ],
        );
        kubectl.ok("kubectl delete po p --wait=false");
        kubectl.shows(
            "kubectl describe po p",
            &["Status:", "Terminating (lasts", "Termination Grace Period:", "30s"],
        );
        kubectl.ok("kubectl delete po p --force --grace-period=0");
    });
}

/// T-CLI-30: describe shows the conditions that T-CTRL-55 defines.
#[test]
fn t_cli_30_a_description_of_a_namespace_shows_what_remains() {
    each_kubectl(|kubectl| {
        kubectl.shows(
            "kubectl describe ns $NS",
            &["Name:", "Status:", "Active", "No resource quota."],
        );
        if kubectl.is_before(24) {
            return; // It does not print a namespace's conditions.
        }
        kubectl.ok(r#"export S=held-$NS
            kubectl create ns $S
            kubectl -n $S create cm held --from-literal=a=b
            kubectl -n $S patch cm held --type=merge -p '{"metadata":{"finalizers":["example.com/hold"]}}'
            kubectl delete ns $S --wait=false
            for i in $(seq 300); do kubectl get ns $S -o yaml | grep -q 'type: NamespaceFinalizersRemaining' \
              && break; sleep 0.1; done"#);
        let described = kubectl.ok("kubectl describe ns held-$NS");
        let line = |start: &str| -> Vec<&str> {
            let found = described.lines().map(str::trim).find(|line| line.starts_with(start));
            found.unwrap_or_else(|| panic!("no {start} in {described}")).split("  ").collect()
        };
        let cells = |start: &str| -> Vec<String> {
            let cells = line(start).into_iter().map(|cell| cell.trim().to_owned());
            cells.filter(|cell| !cell.is_empty()).collect()
        };
        assert_eq!(cells("Status:"), ["Status:", "Terminating"]);
        assert_eq!(cells("Type"), ["Type", "Status", "LastTransitionTime", "Reason", "Message"]);
        for [kind, status, reason, message] in [
            [
                "NamespaceDeletionDiscoveryFailure",
                "False",
                "ResourcesDiscovered",
                "All resources successfully discovered",
            ],
            [
                "NamespaceDeletionGroupVersionParsingFailure",
                "False",
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed",
            ],
            [
                "NamespaceDeletionContentFailure",
                "False",
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ],
            [
                "NamespaceContentRemaining",
                "True",
                "SomeResourcesRemain",
                "Some resources are remaining: configmaps. has 1 resource instances",
            ],
            [
                "NamespaceFinalizersRemaining",
                "True",
                "SomeFinalizersRemain",
                "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances",
            ],
        ] {
            let row = cells(kind);
            assert_eq!(row.len(), 5, "{row:?}");
            assert_eq!([&*row[0], &*row[1], &*row[3], &*row[4]], [kind, status, reason, message]);
        }
        kubectl.ok(r#"kubectl -n held-$NS patch cm held --type=merge -p '{"metadata":{"finalizers":null}}'"#);
    });
}

/// T-CLI-29: describe shows State and Last State of each container.
#[test]
fn t_cli_29_a_description_shows_the_state_and_last_state_of_containers() {
    each_kubectl(|kubectl| {
        if kubectl.is_before(24) {
            return; // It cannot write a status.
        }
        bound_pod(kubectl, "p");
        kubectl.ok(
            r#"kubectl patch po p --subresource=status --type=merge -p '{"status":{"phase":"Running",
            "containerStatuses":[{"name":"p","image":"nginx","imageID":"i","ready":false,"restartCount":7,
            "state":{"waiting":{"reason":"CrashLoopBackOff","message":"back-off 10s"}},
            "lastState":{"terminated":{"exitCode":137,"signal":9,"reason":"Error","message":"last words",
            "startedAt":"2026-01-01T00:00:00Z","finishedAt":"2026-01-01T00:01:00Z"}}}]}}'"#,
        );
        kubectl.shows(
            "kubectl describe po p",
            &[
                "State:",
                "Waiting",
                "Reason:",
                "CrashLoopBackOff",
                "Last State:",
                "Terminated",
                "Reason:",
                "Error",
                "Message:",
                "last words",
                "Exit Code:",
                "137",
                "Signal:",
                "9",
                "Started:",
                "01 Jan 2026",
                "Finished:",
                "01 Jan 2026",
                "Ready:",
                "False",
                "Restart Count:",
                "7",
            ],
        );
    });
}

/// T-CLI-31: field selectors of events.
#[test]
fn t_cli_31_events_are_selected_by_their_object() {
    each_kubectl(|kubectl| {
        kubectl.ok("kubectl run p --image=nginx");
        let uid = kubectl.ok("kubectl get po p -o jsonpath='{.metadata.uid}'");
        for (name, reason, about) in [("one", "Killing", "p"), ("two", "Pulled", "other")] {
            kubectl.ok(&format!(
                "kubectl create --validate=false -f - <<END
apiVersion: v1
kind: Event
metadata: {{name: {name}, namespace: $NS}}
involvedObject: {{kind: Pod, namespace: $NS, name: {about}, uid: {uid}}}
reason: {reason}
message: Stopping container {about}
type: Normal
count: 1
firstTimestamp: 2030-01-01T00:00:00Z
lastTimestamp: 2030-01-01T00:00:00Z
source: {{component: kubelet}}
END"
            ));
        }
        kubectl.shows("kubectl get events", &["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]);
        let about = kubectl.ok("kubectl get events --field-selector involvedObject.name=p");
        assert!(
            about.contains("Killing") && about.contains("pod/p") && !about.contains("Pulled"),
            "{about}"
        );
        kubectl.prints(
            "kubectl get events --field-selector reason=Pulled,type=Normal -o name",
            "event/two",
        );
        kubectl.shows(
            "kubectl describe po p",
            &["Events:", "Killing", "kubelet", "Stopping container p"],
        );
        kubectl
            .fails("kubectl get events --field-selector nonsense=p", "field label not supported");
    });
}

/// T-CLI-32: field selectors of pods.
#[test]
fn t_cli_32_pods_are_selected_by_their_fields() {
    each_kubectl(|kubectl| {
        bound_pod(kubectl, "bound");
        kubectl.ok("kubectl run free --image=nginx --restart=Never");
        for (selector, expected) in [
            ("metadata.name=free", "pod/free"),
            ("spec.nodeName=nowhere", "pod/bound"),
            ("spec.nodeName!=nowhere", "pod/free"),
            ("spec.restartPolicy=Never", "pod/free"),
            ("status.phase=Pending,spec.nodeName=nowhere", "pod/bound"),
            ("status.phase!=Pending", ""),
            ("spec.schedulerName=other", ""),
            ("spec.serviceAccountName=no-such", ""),
        ] {
            kubectl
                .prints(&format!("kubectl get po --field-selector={selector} -o name"), expected);
        }
        kubectl.ok("kubectl delete po --all --force --grace-period=0");
    });
}

#[test]
fn long_lists_are_read_in_pages_and_as_a_whole() {
    each_kubectl(|kubectl| {
        let many: String = (0..25)
            .map(|i| format!("---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{i:02}, labels: {{many: x}}}}\n"))
            .collect();
        kubectl.ok(&format!("kubectl create --validate=false -f - <<END\n{many}END"));
        let names = kubectl.ok("kubectl get cm -l many=x --chunk-size=4 -o name");
        assert_eq!(names.lines().count(), 25);
        assert_eq!(
            kubectl.ok("kubectl get cm -l many=x --chunk-size=4 --no-headers").lines().count(),
            25
        );
        kubectl.ok("kubectl delete cm -l many=x");
        kubectl.prints("kubectl get cm -l many=x -o name", "");
    });
}
