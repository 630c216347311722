//! `kubectl describe` of every kind, on a cluster with running workloads.

use super::on_a_node;

const APP: &str = r#"trap "exit 0" TERM; while :; do sleep 0.05; done"#;

const OBJECTS: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {replicas: 2, selector: {matchLabels: {app: web}}, POD(web)}
---
apiVersion: v1
kind: ReplicationController
metadata: {name: old}
spec: {replicas: 1, POD(old)}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - {name: c, image: 'busybox:1', command: [sh, -c, 'SCRIPT'], volumeMounts: [{name: data, mountPath: /data}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: log}
spec: {selector: {matchLabels: {app: log}}, POD(log)}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: limit}
spec: {hard: {pods: '20', configmaps: '10'}}
";

fn objects() -> String {
    let mut text = OBJECTS.to_owned();
    for app in ["web", "old", "log"] {
        let pod = format!(
            "template: {{metadata: {{labels: {{app: {app}}}}}, spec: {{terminationGracePeriodSeconds: 5, \
             containers: [{{name: c, image: 'busybox:1', command: [sh, -c, 'SCRIPT']}}]}}}}"
        );
        text = text.replace(&format!("POD({app})"), &pod);
    }
    text.replace("SCRIPT", APP)
}

/// What to describe, and the expected words in this order.
const TOLD: &[(&str, &[&str])] = &[
    (
        "deployment web",
        &[
            "Name:",
            "web",
            "Selector:",
            "app=web",
            "Replicas:",
            "2 desired | 2 updated | 2 total | 2 available | 0 unavailable",
            "StrategyType:",
            "RollingUpdate",
            "RollingUpdateStrategy:",
            "25% max unavailable, 25% max surge",
            "Pod Template:",
            "busybox:1",
            "Conditions:",
            "Available",
            "True",
            "MinimumReplicasAvailable",
            "Progressing",
            "True",
            "NewReplicaSetAvailable",
            "OldReplicaSets:",
            "<none>",
            "NewReplicaSet:",
            "(2/2 replicas created)",
            "Events:",
            "ScalingReplicaSet",
            "Scaled up replica set web-",
        ],
    ),
    (
        "rs -l app=web",
        &[
            "Name:",
            "web-",
            "Labels:",
            "pod-template-hash=",
            "deployment.kubernetes.io/revision: 1",
            "Controlled By:",
            "Deployment/web",
            "Replicas:",
            "2 current / 2 desired",
            "Pods Status:",
            "2 Running / 0 Waiting / 0 Succeeded / 0 Failed",
            "Events:",
            "SuccessfulCreate",
            "replicaset-controller",
            "Created pod: web-",
        ],
    ),
    (
        "rc old",
        &[
            "Replicas:",
            "1 current / 1 desired",
            "Pods Status:",
            "1 Running / 0 Waiting / 0 Succeeded / 0 Failed",
            "Events:",
            "SuccessfulCreate",
            "replication-controller",
            "Created pod: old-",
        ],
    ),
    (
        "sts db",
        &[
            "Replicas:",
            "1 desired | 1 total",
            "Update Strategy:",
            "RollingUpdate",
            "Partition:",
            "0",
            "Pods Status:",
            "1 Running / 0 Waiting / 0 Succeeded / 0 Failed",
            "Volume Claims:",
            "data",
            "1Mi",
            "Events:",
            "SuccessfulCreate",
            "statefulset-controller",
            "Create Claim data-db-0 Pod db-0",
            "Create Pod db-0 in StatefulSet db successful",
        ],
    ),
    (
        "ds log",
        &[
            "Desired Number of Nodes Scheduled: 1",
            "Current Number of Nodes Scheduled: 1",
            "Number of Nodes Scheduled with Up-to-date Pods: 1",
            "Number of Nodes Scheduled with Available Pods: 1",
            "Number of Nodes Misscheduled: 0",
            "Pods Status:",
            "1 Running",
            "Events:",
            "SuccessfulCreate",
            "daemonset-controller",
            "Created pod: log-",
        ],
    ),
    (
        "job sum",
        &[
            "Parallelism:",
            "1",
            "Completions:",
            "1",
            "Completion Mode:",
            "NonIndexed",
            "Start Time:",
            "Completed At:",
            "Duration:",
            "Pods Statuses:",
            "0 Active (0 Ready) / 1 Succeeded / 0 Failed",
            "Events:",
            "SuccessfulCreate",
            "Created pod: sum-",
            "Completed",
            "Job completed",
        ],
    ),
    (
        "cronjob tick",
        &[
            "Schedule:",
            "@yearly",
            "Concurrency Policy:",
            "Allow",
            "Suspend:",
            "False",
            "Successful Job History Limit:",
            "3",
            "Failed Job History Limit:",
            "1",
            "Last Schedule Time:",
            "<unset>",
            "Active Jobs:",
            "<none>",
            "Events:",
        ],
    ),
    (
        "pvc data-db-0",
        &[
            "StorageClass:",
            "Status:",
            "Bound",
            "Volume:",
            "pvc-",
            "Finalizers:",
            "kubernetes.io/pvc-protection",
            "Capacity:",
            "Access Modes:",
            "RWO",
            "Used By:",
            "db-0",
        ],
    ),
    (
        "pv",
        &[
            "Finalizers:",
            "kubernetes.io/pv-protection",
            "Status:",
            "Bound",
            "Claim:",
            "default/data-db-0",
            "Reclaim Policy:",
            "Delete",
            "Access Modes:",
            "RWO",
            "VolumeMode:",
            "Filesystem",
            "Capacity:",
            "Node Affinity:",
            "Source:",
        ],
    ),
    (
        "pdb web",
        &[
            "Min available:",
            "1",
            "Selector:",
            "app=web",
            "Status:",
            "Allowed disruptions:",
            "1",
            "Current:",
            "2",
            "Desired:",
            "1",
            "Total:",
            "2",
        ],
    ),
    (
        "ns default",
        &[
            "Name:",
            "default",
            "kubernetes.io/metadata.name=default",
            "Status:",
            "Active",
            "Resource Quotas",
            "limit",
            "Resource",
            "Used",
            "Hard",
            "pods",
            "20",
        ],
    ),
    ("quota limit", &["Resource", "Used", "Hard", "configmaps", "10", "pods", "20"]),
    (
        "node",
        &[
            "Name:",
            "Roles:",
            "Labels:",
            "kubernetes.io/hostname=",
            "Taints:",
            "<none>",
            "Unschedulable:",
            "false",
            "Lease:",
            "HolderIdentity:",
            "RenewTime:",
            "Conditions:",
            "MemoryPressure",
            "False",
            "DiskPressure",
            "PIDPressure",
            "Ready",
            "True",
            "KubeletReady",
            "Addresses:",
            "InternalIP:",
            "Hostname:",
            "Capacity:",
            "cpu:",
            "memory:",
            "pods:",
            "110",
            "Allocatable:",
            "System Info:",
            "Kubelet Version:",
            "v1.36",
            "PodCIDR:",
            "Non-terminated Pods:",
            "(5 in total)",
            "default",
            "Allocated resources:",
            "Events:",
        ],
    ),
    (
        "svc web",
        &[
            "Selector:",
            "app=web",
            "Type:",
            "ClusterIP",
            "IP Family Policy:",
            "SingleStack",
            "IP:",
            "10.",
            "Port:",
            "<unset>",
            "80/TCP",
            "TargetPort:",
            "8080/TCP",
            "Endpoints:",
            ":8080",
            "Session Affinity:",
            "None",
        ],
    ),
    (
        "endpointslice -l kubernetes.io/service-name=web",
        &[
            "Name:",
            "web-",
            "kubernetes.io/service-name=web",
            "AddressType:",
            "IPv4",
            "Ports:",
            "8080",
            "TCP",
            "Endpoints:",
            "Addresses:",
            "Conditions:",
            "Ready:",
            "true",
            "TargetRef:",
            "Pod/web-",
            "NodeName:",
        ],
    ),
    (
        "pod db-0",
        &[
            "Node:",
            "Status:",
            "Running",
            "IP:",
            "Controlled By:",
            "StatefulSet/db",
            "State:",
            "Running",
            "Ready:",
            "True",
            "Conditions:",
            "PodScheduled",
            "True",
            "Volumes:",
            "ClaimName:",
            "data-db-0",
            "Events:",
            "Scheduled",
            "Successfully assigned default/db-0 to",
            "Pulled",
            "Created",
            "Started",
        ],
    ),
];

/// W-70, T-CLI-29: every kind can be described.
#[test]
fn w_70_every_kind_can_be_described() {
    on_a_node(&["busybox"], |_, kubectl| {
        kubectl.ok(&format!(
            "kubectl create job sum --image=busybox:1 -- true
             kubectl create cronjob tick --image=busybox:1 --schedule=@yearly -- true
             kubectl apply -f - <<'EOF'{}EOF
kubectl rollout status deployment/web --timeout=50s",
            objects()
        ));
        kubectl.ok("kubectl rollout status sts/db --timeout=40s
             kubectl rollout status ds/log --timeout=40s
             kubectl wait --for=jsonpath='{.status.readyReplicas}'=1 rc/old --timeout=40s
             kubectl wait --for=condition=Complete job/sum --timeout=40s
             kubectl wait --for=jsonpath='{.status.disruptionsAllowed}'=1 pdb/web --timeout=20s
             kubectl wait --for=jsonpath='{.status.used.pods}'=5 quota/limit --timeout=40s");
        for (what, words) in TOLD {
            kubectl.shows(&format!("kubectl describe {what}"), words);
        }
        kubectl.ok("kubectl delete deployment/web rc/old sts/db ds/log job/sum cronjob/tick pdb/web svc/web
                    kubectl wait --for=delete pod --all --timeout=40s
                    kubectl delete pvc --all quota/limit || kubectl delete pvc --all");
    });
}
