//! Health, discovery, `kubectl explain`, and `kubectl auth can-i`.

use crate::harness::{Cluster, each_kubectl};

#[test]
fn health_endpoints_report_ready() {
    each_kubectl(|kubectl| {
        kubectl
            .shows("kubectl get --raw '/readyz?verbose'", &["[+]ping ok", "readyz check passed"]);
        kubectl.prints("kubectl get --raw /livez", "ok");
        kubectl.shows("kubectl version", &["v1.36"]);
        kubectl.shows("kubectl get cs", &["STATUS", "MESSAGE", "ERROR", "etcd-0", "Healthy", "ok"]);
        kubectl.shows("kubectl cluster-info", &["is running at", "https://127.0.0.1:"]);
    });
}

/// T-CLI-35: the columns and filters of `kubectl api-resources`.
#[test]
fn t_cli_35_api_resources_are_listed_and_filtered() {
    each_kubectl(|kubectl| {
        kubectl.shows(
            "kubectl api-resources",
            &[
                "NAME",
                "SHORTNAMES",
                "NAMESPACED",
                "KIND",
                "configmaps",
                "cm",
                "true",
                "ConfigMap",
                "namespaces",
                "ns",
                "false",
                "Namespace",
                "pods",
                "po",
                "true",
                "Pod",
                "deployments",
                "deploy",
                "apps/v1",
                "Deployment",
                "ingresses",
                "ing",
                "networking.k8s.io/v1",
                "Ingress",
            ],
        );
        kubectl.shows(
            "kubectl api-resources -o wide",
            &["VERBS", "pods", "create", "delete", "deletecollection", "watch"],
        );
        let listable = kubectl.ok("kubectl api-resources --verbs=list --namespaced -o name");
        assert!(listable.lines().any(|line| line == "pods"), "{listable}");
        assert!(!listable.lines().any(|line| line == "nodes" || line == "bindings"), "{listable}");
        kubectl.shows("kubectl api-resources --api-group=batch", &["cronjobs", "jobs"]);
        kubectl.shows("kubectl api-versions", &["apps/v1", "batch/v1", "networking.k8s.io/v1"]);
        if !kubectl.is_before(28) {
            let all = kubectl.ok("kubectl api-resources --categories=all -o name");
            // T-CLI-11: the kinds of the category `all`.
            assert_eq!(
                all.split_whitespace().collect::<Vec<_>>(),
                [
                    "pods",
                    "replicationcontrollers",
                    "services",
                    "daemonsets.apps",
                    "deployments.apps",
                    "replicasets.apps",
                    "statefulsets.apps",
                    "horizontalpodautoscalers.autoscaling",
                    "cronjobs.batch",
                    "jobs.batch",
                ]
            );
        }
    });
}

#[test]
fn fields_are_explained() {
    each_kubectl(|kubectl| {
        kubectl.shows(
            "kubectl explain pod.spec.containers.lifecycle",
            &["Pod", "v1", "lifecycle", "postStart", "preStop", "stopSignal"],
        );
        kubectl.shows(
            "kubectl explain pod.spec.terminationGracePeriodSeconds",
            &["terminationGracePeriodSeconds", "<integer>", "terminate gracefully"],
        );
        kubectl.shows(
            "kubectl explain deployment --recursive",
            &["Deployment", "strategy", "rollingUpdate", "maxSurge"],
        );
        kubectl.fails("kubectl explain pod.spec.nonsense", "nonsense");
    });
}

#[test]
fn users_can_review_their_own_rights() {
    each_kubectl(|kubectl| {
        kubectl.shows("kubectl auth can-i --list", &["Resources", "Verbs", "*.*", "[*]"]);
        kubectl.prints("kubectl auth can-i delete pods", "yes");
        assert_eq!(kubectl.run("kubectl auth can-i delete pods --as=alice").stdout.trim(), "no");
        kubectl.ok("kubectl create role reader --verb=get,list --resource=pods
            kubectl create rolebinding reader --role=reader --user=alice");
        kubectl.prints("kubectl auth can-i list pods --as=alice", "yes");
        kubectl.shows("kubectl auth can-i --list --as=alice", &["pods", "[get list]"]);
        if !kubectl.is_before(28) {
            kubectl
                .shows("kubectl auth whoami", &["Username", "kubernetes-admin", "system:masters"]);
            kubectl.prints(
                "kubectl auth whoami --as=alice -o jsonpath='{.status.userInfo.username}'",
                "alice",
            );
        }
    });
}

#[test]
fn a_token_of_a_service_account_authenticates_it() {
    each_kubectl(|kubectl| {
        if kubectl.is_before(24) {
            return; // `create token` came with 1.24.
        }
        kubectl.ok("kubectl create serviceaccount robot");
        let token = kubectl.ok("kubectl create token robot --duration=10m");
        assert_eq!(token.trim().split('.').count(), 3, "a JWT: {token}");
        let ns = &kubectl.namespace;
        // A kubeconfig without the admin's certificate, so that the token is used.
        let output = kubectl.run(&format!(
            r#"kubectl config view --raw --minify > robot.kubeconfig
            kubectl --kubeconfig robot.kubeconfig config set-credentials robot --token={token}
            kubectl --kubeconfig robot.kubeconfig config set-context --current --user=robot
            kubectl --kubeconfig robot.kubeconfig auth whoami -o jsonpath='{{.status.userInfo.username}}'"#,
            token = token.trim(),
        ));
        assert!(output.stdout.contains(&format!("system:serviceaccount:{ns}:robot")), "{output}");
    });
}

#[test]
fn every_listed_resource_can_be_listed_as_a_table() {
    let cluster = Cluster::start(&[]);
    let kubectl = cluster.kubectl();
    let output = kubectl.run(
        "kubectl api-resources --verbs=list -o name \
         | xargs -n 1 -P 4 kubectl get --all-namespaces --ignore-not-found -o wide",
    );
    assert_eq!(output.code, 0, "{output}");
    output.has_in_order(&["NAME"]);
    cluster.stop();
}
