//! Admission, tested through requests.

use crate::cluster::{Client, Cluster, PODS, STRATEGIC, pod};
use serde_json::{Value, json};
use server::authn::User;

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

fn pod_with(name: &str, resources: Value) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["resources"] = resources;
    pod
}

/// A quota with the status that the quota controller would write.
async fn quota(client: &Client, name: &str, spec: Value, used: Value) {
    let hard = spec["hard"].clone();
    client
        .make(
            QUOTAS,
            json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec}),
        )
        .await;
    let status = json!({"status": {"hard": hard, "used": used}});
    assert_eq!(client.patch(&format!("{QUOTAS}/{name}/status"), status).await.code, 200);
}

async fn used(client: &Client, name: &str) -> Value {
    client.read(&format!("{QUOTAS}/{name}")).await["status"]["used"].clone()
}

#[tokio::test]
async fn a_new_pod_gets_account_token_priority_and_tolerations() {
    let cluster = Cluster::start().await;
    let made = cluster.admin().make(PODS, pod("p4")).await;
    // A-155, A-156, A-154: the answer of a real server, but for the random suffix.
    let spec = &made["spec"];
    let volume = spec["volumes"][0]["name"].as_str().unwrap().to_owned();
    assert!(volume.starts_with("kube-api-access-") && volume.len() == 21, "{volume}");
    assert_eq!(
        *spec,
        json!({
            "containers": [{
                "image": "nginx:1.27", "imagePullPolicy": "IfNotPresent", "name": "app", "resources": {},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "volumeMounts": [{"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": volume, "readOnly": true}],
            }],
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
            "priority": 0, "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {},
            "serviceAccount": "default", "serviceAccountName": "default", "terminationGracePeriodSeconds": 30,
            "tolerations": [
                {"effect": "NoExecute", "key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300},
                {"effect": "NoExecute", "key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 300},
            ],
            "volumes": [{"name": volume, "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}},
                {"downwardAPI": {"items": [{"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}, "path": "namespace"}]}},
            ]}}],
        })
    );
}

#[tokio::test]
async fn a_155_a_pod_with_a_missing_service_account_is_refused() {
    let cluster = Cluster::start().await;
    let mut wanted = pod("p");
    wanted["spec"]["serviceAccountName"] = "ghost".into();
    let reply = cluster.admin().post(PODS, wanted).await;
    assert_eq!(reply.code, 403);
    assert_eq!(
        reply.message(),
        "pods \"p\" is forbidden: error looking up service account default/ghost: serviceaccount \"ghost\" not found"
    );
    assert_eq!(reply.body["details"], json!({"name": "p", "kind": "pods"}));
}

#[tokio::test]
async fn a_157_an_exhausted_quota_refuses_and_a_dry_run_reserves_nothing() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin();
    quota(&admin, "q", json!({"hard": {"pods": "1"}}), json!({"pods": "0"})).await;
    let dry = admin.post(&format!("{PODS}?dryRun=All"), pod("dry")).await;
    assert_eq!(dry.code, 201, "{}", dry.body);
    assert_eq!(used(&admin, "q").await, json!({"pods": "0"}));
    admin.make(PODS, pod("one")).await;
    assert_eq!(used(&admin, "q").await, json!({"pods": "1"}));
    let reply = admin.post(PODS, pod("two")).await;
    assert_eq!(reply.code, 403);
    assert_eq!(
        reply.message(),
        "pods \"two\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"
    );
}

/// An update that sets activeDeadlineSeconds moves the pod to the quota of scope Terminating.
#[tokio::test]
async fn a_157_a_pod_that_becomes_terminating_is_charged_to_the_quota_of_that_scope() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin();
    let scoped = json!({"hard": {"pods": "1"}, "scopes": ["Terminating"]});
    quota(&admin, "ending", scoped, json!({"pods": "0"})).await;
    for name in ["one", "two"] {
        cluster.make(PODS, pod(name)).await;
    }
    let deadline = json!({"spec": {"activeDeadlineSeconds": 60}});
    let relabel = json!({"metadata": {"labels": {"a": "b"}}});
    cluster.patch(&format!("{PODS}/one"), relabel).await.ok();
    assert_eq!(used(&admin, "ending").await, json!({"pods": "0"}));
    cluster.patch(&format!("{PODS}/one"), deadline.clone()).await.ok();
    assert_eq!(used(&admin, "ending").await, json!({"pods": "1"}));
    let reply = cluster.patch(&format!("{PODS}/two"), deadline).await;
    assert_eq!(
        reply.refused(403, "Forbidden"),
        "pods \"two\" is forbidden: exceeded quota: ending, requested: pods=1, used: pods=1, limited: pods=1"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_157_concurrent_creations_do_not_exceed_a_quota() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin();
    quota(
        &admin,
        "q",
        json!({"hard": {"count/configmaps": "5"}}),
        json!({"count/configmaps": "0"}),
    )
    .await;
    let tries = (0..20).map(|n| {
        let admin = admin.clone();
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{n}")}});
        tokio::spawn(
            async move { admin.post("/api/v1/namespaces/default/configmaps", map).await.code },
        )
    });
    let codes: Vec<u16> =
        futures::future::join_all(tries).await.into_iter().map(|code| code.unwrap()).collect();
    assert_eq!(codes.iter().filter(|code| **code == 201).count(), 5, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == 403).count(), 15, "{codes:?}");
    assert_eq!(used(&admin, "q").await, json!({"count/configmaps": "5"}));
}

#[tokio::test]
async fn a_157_if_one_of_two_quotas_is_exhausted_nothing_is_reserved_in_the_other() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin();
    quota(&admin, "a", json!({"hard": {"pods": "5"}}), json!({"pods": "0"})).await;
    quota(&admin, "b", json!({"hard": {"requests.cpu": "1"}}), json!({"requests.cpu": "0"})).await;
    let reply = admin.post(PODS, pod("p")).await;
    assert_eq!(
        reply.message(),
        "pods \"p\" is forbidden: failed quota: b: must specify requests.cpu for: app"
    );
    let reply = admin.post(PODS, pod_with("p", json!({"requests": {"cpu": "2"}}))).await;
    assert_eq!(
        reply.message(),
        "pods \"p\" is forbidden: exceeded quota: b, requested: requests.cpu=2, used: requests.cpu=0, limited: requests.cpu=1"
    );
    assert_eq!(used(&admin, "a").await, json!({"pods": "0"}));
}

#[tokio::test]
async fn a_157_a_service_that_becomes_a_load_balancer_counts_as_one() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin();
    quota(
        &admin,
        "q",
        json!({"hard": {"services.nodeports": "0"}}),
        json!({"services.nodeports": "0"}),
    )
    .await;
    let services = "/api/v1/namespaces/default/services";
    admin
        .make(
            services,
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}),
        )
        .await;
    let reply = admin.patch(&format!("{services}/s"), json!({"spec": {"type": "NodePort"}})).await;
    assert_eq!(
        reply.message(),
        "services \"s\" is forbidden: exceeded quota: q, requested: services.nodeports=1, used: services.nodeports=0, limited: services.nodeports=0"
    );
}

#[tokio::test]
async fn a_154_limit_ranges_set_defaults_and_refuse() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin();
    let limits = json!([{"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}}]);
    admin
        .make(
            "/api/v1/namespaces/default/limitranges",
            json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "lr"}, "spec": {"limits": limits}}),
        )
        .await;
    let made = admin.make(PODS, pod("small")).await;
    assert_eq!(
        made["spec"]["containers"][0]["resources"],
        json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}})
    );
    assert_eq!(
        made["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu request for container app; cpu limit for container app"
    );
    assert_eq!(made["status"]["qosClass"], "Burstable");
    let reply = admin.post(PODS, pod_with("big", json!({"limits": {"cpu": "2"}}))).await;
    assert_eq!(
        reply.message(),
        "pods \"big\" is forbidden: maximum cpu usage per Container is 1, but limit is 2"
    );
}

#[tokio::test]
async fn a_154_priority_comes_from_the_class_and_there_is_one_default() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin();
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let class = |name: &str, value: i64| json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value, "globalDefault": true});
    let mut wanted = pod("a");
    wanted["spec"]["priorityClassName"] = "none".into();
    let reply = admin.post(PODS, wanted).await;
    assert_eq!(
        reply.message(),
        "pods \"a\" is forbidden: no PriorityClass with name none was found"
    );
    let mut critical = pod("critical");
    critical["spec"]["priorityClassName"] = "system-node-critical".into();
    let made = admin.make(PODS, critical).await;
    assert_eq!(made["spec"]["priority"], 2_000_001_000);
    let reply = admin.delete(&format!("{classes}/system-node-critical")).await;
    assert_eq!(
        reply.message(),
        "priorityclasses.scheduling.k8s.io \"system-node-critical\" is forbidden: this is a system priority class and cannot be deleted"
    );
    admin.make(classes, class("usual", 7)).await;
    let reply = admin.post(classes, class("second", 8)).await;
    assert_eq!(
        reply.message(),
        "priorityclasses.scheduling.k8s.io \"second\" is forbidden: PriorityClass usual is already marked as default. Only one default can exist"
    );
    let made = admin.make(PODS, pod("b")).await;
    assert_eq!(made["spec"]["priority"], 7);
    assert_eq!(made["spec"]["priorityClassName"], "usual");
}

#[tokio::test]
async fn a_154_claims_get_class_and_finalizer_and_grow_only_if_allowed() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin();
    let class = |name: &str| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "example.com/disk",
            "metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        })
    };
    admin.make("/apis/storage.k8s.io/v1/storageclasses", class("fixed")).await;
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let made = admin.make(claims, claim).await;
    assert_eq!(made["spec"]["storageClassName"], "fixed");
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let bigger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    let path = format!("{claims}/c");
    admin.patch(&format!("{path}/status"), json!({"status": {"phase": "Bound"}})).await;
    let bound = json!({"spec": {"volumeName": "v"}});
    assert_eq!(admin.patch(&path, bound).await.code, 200);
    let reply = admin.patch(&path, bigger).await;
    assert_eq!(
        reply.message(),
        "persistentvolumeclaims \"c\" is forbidden: only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"
    );
}

#[tokio::test]
async fn n_117_a_pod_cannot_be_resized_beyond_its_node() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    admin.make("/api/v1/nodes", node).await;
    let status = json!({"status": {"allocatable": {"cpu": "4", "memory": "1Gi"}}});
    assert_eq!(admin.patch("/api/v1/nodes/n/status", status).await.code, 200);
    let mut bound = pod_with("p", json!({"requests": {"cpu": "1", "memory": "1Mi"}}));
    bound["spec"]["nodeName"] = "n".into();
    let name = admin.make(PODS, bound).await["spec"]["containers"][0]["name"].clone();
    let resize = async |requests: Value| {
        let patch =
            json!({"spec": {"containers": [{"name": name, "resources": {"requests": requests}}]}});
        admin.patch_as(STRATEGIC, &format!("{PODS}/p/resize"), patch.to_string()).await
    };
    let reply = resize(json!({"cpu": "9"})).await;
    assert_eq!(reply.code, 403);
    let why =
        "node didn't have enough allocatable resources: cpu, requested: 9000, allocatable: 4000";
    assert_eq!(reply.message(), format!("pods \"p\" is forbidden: {why}"));
    assert_eq!(reply.body["details"]["causes"][0]["reason"], "NodeCapacity");
    let reply = resize(json!({"memory": "2Gi"})).await;
    assert!(reply.message().contains("memory, requested: 2147483648, allocatable: 1073741824"));
    assert_eq!(resize(json!({"cpu": "4"})).await.code, 200);
}

#[tokio::test]
async fn a_154_a_new_node_is_not_ready() {
    let cluster = Cluster::start().await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"unschedulable": true}});
    let made = cluster.admin().make("/api/v1/nodes", node).await;
    assert_eq!(
        made["spec"],
        json!({"taints": [{"effect": "NoSchedule", "key": "node.kubernetes.io/not-ready"}], "unschedulable": true})
    );
}

#[tokio::test]
async fn t_api_35_a_node_may_write_only_its_own_objects() {
    let cluster = Cluster::start().await;
    let (admin, n1, n2) = (cluster.admin(), cluster.node("n1"), cluster.node("n2"));
    let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    n1.make("/api/v1/nodes", node("n1")).await;
    let reply = n1.post("/api/v1/nodes", node("n2")).await;
    assert_eq!(
        reply.message(),
        "nodes \"n2\" is forbidden: node \"n1\" is not allowed to modify node \"n2\""
    );
    let mut bound = pod("p");
    bound["spec"]["nodeName"] = "n1".into();
    admin.make(PODS, bound).await;
    let status = json!({"status": {"phase": "Running"}});
    let path = format!("{PODS}/p");
    assert_eq!(n1.patch(&format!("{path}/status"), status.clone()).await.code, 200);
    let reply = n2.patch(&format!("{path}/status"), status).await;
    assert_eq!(
        reply.message(),
        "pods \"p\" is forbidden: node \"n2\" can only update pod status for pods with spec.nodeName set to itself"
    );
    let reply = n2.delete(&format!("{path}?gracePeriodSeconds=0")).await;
    assert_eq!(reply.code, 403);
    assert_eq!(
        reply.message(),
        "pods \"p\" is forbidden: node \"n2\" can only delete pods with spec.nodeName set to itself"
    );
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let reply = n2.post(&format!("{path}/eviction"), eviction).await;
    assert_eq!(
        reply.message(),
        "pods \"p\" is forbidden: node n2 can only evict pods with spec.nodeName set to itself"
    );
    assert_eq!(n1.delete(&format!("{path}?gracePeriodSeconds=0")).await.code, 200);
    let lease = |name: &str| json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {"holderIdentity": name}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    n1.make(leases, lease("n1")).await;
    let reply = n1.post(leases, lease("n2")).await;
    assert_eq!(
        reply.message(),
        "leases.coordination.k8s.io \"n2\" is forbidden: can only access node lease with the same name as the requesting node"
    );
}

#[tokio::test]
async fn a_185_a_user_cannot_grant_rights_that_it_does_not_hold() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin();
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let version = "rbac.authorization.k8s.io/v1";
    admin
        .make(
            &format!("{rbac}/clusterroles"),
            json!({"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": "writer"}, "rules": [
                {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["create", "update"]},
            ]}),
        )
        .await;
    admin
        .make(
            &format!("{rbac}/clusterrolebindings"),
            json!({"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": {"name": "ana"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "writer"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ana"}]}),
        )
        .await;
    let ana = cluster.user(User::authenticated("ana", &[]));
    let role = json!({"apiVersion": version, "kind": "Role", "metadata": {"name": "r"}, "rules": [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
    ]});
    let reply = ana.post(&format!("{rbac}/namespaces/default/roles"), role).await;
    assert_eq!(reply.code, 403);
    assert_eq!(
        reply.message(),
        "roles.rbac.authorization.k8s.io \"r\" is forbidden: user \"ana\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}"
    );
}

#[tokio::test]
async fn a_154_a_pod_of_an_unknown_runtime_class_is_refused() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin();
    let mut wanted = pod("p");
    wanted["spec"]["runtimeClassName"] = "vm".into();
    let reply = admin.post(PODS, wanted.clone()).await;
    assert_eq!(
        reply.message(),
        "pods \"p\" is forbidden: pod rejected: RuntimeClass \"vm\" not found"
    );
    admin
        .make(
            "/apis/node.k8s.io/v1/runtimeclasses",
            json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "vm"}, "handler": "vm", "overhead": {"podFixed": {"memory": "64Mi"}}}),
        )
        .await;
    let made = admin.make(PODS, wanted).await;
    assert_eq!(made["spec"]["overhead"], json!({"memory": "64Mi"}));
}

#[tokio::test]
async fn an_update_keeps_values_that_admission_set() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin();
    let mut made = admin.make(PODS, pod("p")).await;
    let spec = made["spec"].as_object_mut().unwrap();
    for field in ["priority", "preemptionPolicy", "tolerations"] {
        spec.remove(field);
    }
    made["metadata"]["labels"] = json!({"a": "b"});
    let reply = admin.put(&format!("{PODS}/p"), &made).await;
    assert_eq!(reply.code, 200, "{}", reply.body);
    assert_eq!(reply.body["spec"]["priority"], 0);
    assert!(reply.warnings().is_empty());
}

#[tokio::test]
async fn a_158_a_restricted_namespace_refuses_pods_and_warns_about_templates() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin();
    let namespace = |level: &str| {
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "safe", "labels": {
            "pod-security.kubernetes.io/enforce": level,
            "pod-security.kubernetes.io/warn": "baseline",
            "pod-security.kubernetes.io/warn-version": "v1.35",
        }}})
    };
    let reply = admin.post("/api/v1/namespaces", namespace("strict")).await;
    assert_eq!(reply.code, 422);
    assert_eq!(
        reply.message(),
        "Namespace \"safe\" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"strict\": must be one of privileged, baseline, restricted"
    );
    admin.make("/api/v1/namespaces", namespace("restricted")).await;
    let reply = admin.post("/api/v1/namespaces/safe/pods", pod("p")).await;
    assert_eq!(reply.code, 403);
    assert!(
        reply.message().starts_with(
            "pods \"p\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false (container \"app\" must set"
        ),
        "{}",
        reply.message()
    );
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "i"}]}},
    }});
    let reply = admin.post("/apis/apps/v1/namespaces/safe/deployments", deployment).await;
    assert_eq!(reply.code, 201, "{}", reply.body);
    assert_eq!(
        reply.warnings(),
        [
            "299 - \"would violate PodSecurity \\\"baseline:v1.35\\\": host namespaces (hostNetwork=true)\""
        ]
    );
}

#[tokio::test]
async fn a_158_a_stricter_namespace_warns_about_existing_pods() {
    let cluster = Cluster::start().await;
    let admin = cluster.admin();
    let mut host = pod("p");
    host["spec"]["hostNetwork"] = true.into();
    admin.make(PODS, host).await;
    let labels =
        json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    let reply = admin.patch("/api/v1/namespaces/default", labels).await;
    assert_eq!(reply.code, 200, "{}", reply.body);
    assert_eq!(
        reply.warnings(),
        [
            "299 - \"existing pods in namespace \\\"default\\\" violate the new PodSecurity enforce level \\\"baseline:latest\\\"\"",
            "299 - \"p: host namespaces\"",
        ]
    );
}

#[tokio::test]
async fn a_90_a_signing_request_records_its_caller_and_cannot_request_masters() {
    let cluster = Cluster::start().await;
    let key = rcgen::KeyPair::generate().unwrap();
    let request = |name: &str, group: &str| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "ana");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, group);
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let pem = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
            "spec": {"request": pem, "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"], "username": "root"},
        })
    };
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let admin = cluster.admin();
    let made = admin.make(requests, request("fine", "team")).await;
    assert_eq!(made["spec"]["username"], "admin");
    assert_eq!(made["spec"]["groups"], json!(["system:masters", "system:authenticated"]));
    let reply = admin.post(requests, request("bold", "system:masters")).await;
    assert_eq!(
        reply.message(),
        "certificatesigningrequests.certificates.k8s.io \"bold\" is forbidden: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"
    );
}
