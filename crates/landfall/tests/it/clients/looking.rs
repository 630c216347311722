//! Finding one's way around: health, discovery, explanations, one's own rights.

use crate::harness::{Cluster, each_kubectl};

#[test]
fn the_cluster_says_that_it_is_ready() {
    each_kubectl(|kubectl| {
        kubectl
            .shows("kubectl get --raw '/readyz?verbose'", &["[+]ping ok", "readyz check passed"]);
        kubectl.prints("kubectl get --raw /livez", "ok");
        kubectl.shows("kubectl version", &["v1.36"]);
        kubectl.shows("kubectl get cs", &["STATUS", "MESSAGE", "ERROR", "etcd-0", "Healthy", "ok"]);
        kubectl.shows("kubectl cluster-info", &["is running at", "https://127.0.0.1:"]);
    });
}

/// T-CLI-35
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
            // T-CLI-11
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
fn people_can_ask_what_they_may_do() {
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
fn a_service_account_gets_a_token_and_is_known_by_it() {
    each_kubectl(|kubectl| {
        if kubectl.is_before(24) {
            return; // `create token` came with 1.24.
        }
        kubectl.ok("kubectl create serviceaccount robot");
        let token = kubectl.ok("kubectl create token robot --duration=10m");
        assert_eq!(token.trim().split('.').count(), 3, "a JWT: {token}");
        let ns = &kubectl.namespace;
        // A kubeconfig without the admin's certificate: only the token speaks.
        let said = kubectl.run(&format!(
            r#"kubectl config view --raw --minify > robot.kubeconfig
            kubectl --kubeconfig robot.kubeconfig config set-credentials robot --token={token}
            kubectl --kubeconfig robot.kubeconfig config set-context --current --user=robot
            kubectl --kubeconfig robot.kubeconfig auth whoami -o jsonpath='{{.status.userInfo.username}}'"#,
            token = token.trim(),
        ));
        assert!(said.stdout.contains(&format!("system:serviceaccount:{ns}:robot")), "{said}");
    });
}

#[test]
fn every_listed_resource_can_be_listed_as_a_table() {
    let cluster = Cluster::start(&[]);
    let kubectl = cluster.kubectl();
    let said = kubectl.run(
        "kubectl api-resources --verbs=list -o name \
         | xargs -n 1 -P 4 kubectl get --all-namespaces --ignore-not-found -o wide",
    );
    assert_eq!(said.code, 0, "{said}");
    said.has_in_order(&["NAME"]);
    cluster.stop();
}
