//! What each controller may do: `system:controller:<name>`, bound to the service account of that
//! name in kube-system.

use super::Grant::{Named, On};
use super::roles::{EVENTS, READ, Role};

pub(super) const CONTROLLERS: &[Role] = &[
    (
        "attachdetach-controller",
        &[
            On("list watch", "core", "persistentvolumes persistentvolumeclaims"),
            On(READ, "core", "nodes"),
            On("patch update", "core", "nodes/status"),
            On("list watch", "core", "pods"),
            EVENTS,
            On("get create delete list watch", "storage.k8s.io", "volumeattachments"),
            On(READ, "storage.k8s.io", "csidrivers"),
            On(READ, "storage.k8s.io", "csinodes"),
        ],
    ),
    (
        "certificate-controller",
        &[
            On("get list watch delete", "certificates.k8s.io", "certificatesigningrequests"),
            On(
                "update",
                "certificates.k8s.io",
                "certificatesigningrequests/status certificatesigningrequests/approval",
            ),
            Named(
                "approve",
                "certificates.k8s.io",
                "signers",
                "kubernetes.io/kube-apiserver-client-kubelet",
            ),
            Named(
                "sign",
                "certificates.k8s.io",
                "signers",
                "kubernetes.io/legacy-unknown kubernetes.io/kube-apiserver-client \
                 kubernetes.io/kube-apiserver-client-kubelet kubernetes.io/kubelet-serving",
            ),
            On("create", "authorization.k8s.io", "subjectaccessreviews"),
            EVENTS,
        ],
    ),
    (
        "clusterrole-aggregation-controller",
        &[On("escalate get list watch update patch", "rbac.authorization.k8s.io", "clusterroles")],
    ),
    (
        "cronjob-controller",
        &[
            On("get list watch update", "batch", "cronjobs"),
            On("get list watch create update delete patch", "batch", "jobs"),
            On("update", "batch", "cronjobs/status"),
            On("update", "batch", "cronjobs/finalizers"),
            On("list watch delete", "core", "pods"),
            EVENTS,
        ],
    ),
    (
        "daemon-set-controller",
        &[
            On(READ, "apps extensions", "daemonsets"),
            On("update", "apps extensions", "daemonsets/status"),
            On("update", "apps extensions", "daemonsets/finalizers"),
            On("list watch", "core", "nodes"),
            On("list watch create delete patch", "core", "pods"),
            On("create", "core", "pods/binding"),
            On("get list watch create delete update patch", "apps", "controllerrevisions"),
            EVENTS,
        ],
    ),
    (
        "deployment-controller",
        &[
            On("get list watch update", "apps extensions", "deployments"),
            On("update", "apps extensions", "deployments/status"),
            On("update", "apps extensions", "deployments/finalizers"),
            On("get list watch create update patch delete", "apps extensions", "replicasets"),
            On("get list watch update", "core", "pods"),
            EVENTS,
        ],
    ),
    (
        "device-taint-eviction-controller",
        &[
            On("get list watch delete", "core", "pods"),
            On("update patch", "core", "pods/status"),
            On(READ, "resource.k8s.io", "resourceclaims"),
            On(READ, "resource.k8s.io", "resourceslices"),
            On(READ, "resource.k8s.io", "deviceclasses"),
            On(READ, "resource.k8s.io", "devicetaintrules"),
            EVENTS,
        ],
    ),
    (
        "disruption-controller",
        &[
            On(READ, "apps extensions", "deployments"),
            On(READ, "apps extensions", "replicasets"),
            On(READ, "core", "replicationcontrollers"),
            On(READ, "policy", "poddisruptionbudgets"),
            On(READ, "apps", "statefulsets"),
            On("update", "policy", "poddisruptionbudgets/status"),
            On("list watch", "core", "pods"),
            On("patch update", "core", "pods/status"),
            On("get", "*", "*/scale"),
            EVENTS,
        ],
    ),
    (
        "endpoint-controller",
        &[
            On(READ, "core", "services pods"),
            On("get list watch create update delete", "core", "endpoints"),
            On("create", "core", "endpoints/restricted"),
            EVENTS,
        ],
    ),
    (
        "endpointslice-controller",
        &[
            On(READ, "core", "services pods nodes"),
            On("update", "core", "services/finalizers"),
            On("get list watch create update delete", "discovery.k8s.io", "endpointslices"),
            On("create", "discovery.k8s.io", "endpointslices/restricted"),
            On("create", "landfall.dev", "terminations/steps"),
            EVENTS,
        ],
    ),
    (
        "endpointslicemirroring-controller",
        &[
            On(READ, "core", "services endpoints"),
            On("update", "core", "services/finalizers"),
            On("update", "core", "endpoints/finalizers"),
            On("get list watch create update delete", "discovery.k8s.io", "endpointslices"),
            On("create", "discovery.k8s.io", "endpointslices/restricted"),
            EVENTS,
        ],
    ),
    (
        "ephemeral-volume-controller",
        &[
            On(READ, "core", "pods"),
            On("update", "core", "pods/finalizers"),
            On("get list watch create", "core", "persistentvolumeclaims"),
            EVENTS,
        ],
    ),
    (
        "expand-controller",
        &[
            On("get list watch update patch", "core", "persistentvolumes"),
            On("update patch", "core", "persistentvolumeclaims/status"),
            On(READ, "core", "persistentvolumeclaims"),
            EVENTS,
            On("get", "core", "services"),
        ],
    ),
    ("generic-garbage-collector", &[On("get list watch patch update delete", "*", "*"), EVENTS]),
    (
        "horizontal-pod-autoscaler",
        &[
            On(READ, "autoscaling", "horizontalpodautoscalers"),
            On("update", "autoscaling", "horizontalpodautoscalers/status"),
            On("get update", "*", "*/scale"),
            On("list watch", "core", "pods"),
            On("list watch", "metrics.k8s.io", "pods"),
            On(READ, "custom.metrics.k8s.io", "*"),
            On(READ, "external.metrics.k8s.io", "*"),
            EVENTS,
        ],
    ),
    (
        "job-controller",
        &[
            On("get list watch update patch", "batch", "jobs"),
            On("update", "batch", "jobs/status"),
            On("update", "batch", "jobs/finalizers"),
            On("list watch create delete patch", "core", "pods"),
            EVENTS,
        ],
    ),
    (
        "landfall-local-provisioner",
        &[
            On("get list watch create delete", "core", "persistentvolumes"),
            On("get list watch patch", "core", "persistentvolumeclaims"),
            On("get list watch create", "storage.k8s.io", "storageclasses"),
            EVENTS,
        ],
    ),
    (
        "legacy-service-account-token-cleaner",
        &[
            Named(
                "get",
                "core",
                "configmaps",
                "kube-apiserver-legacy-service-account-token-tracking",
            ),
            On("patch delete", "core", "secrets"),
        ],
    ),
    (
        "namespace-controller",
        &[
            On("get list watch delete", "core", "namespaces"),
            On("update", "core", "namespaces/finalize namespaces/status"),
            On("get list watch delete deletecollection", "*", "*"),
        ],
    ),
    (
        "node-controller",
        &[
            On("get list watch update delete patch", "core", "nodes"),
            On("patch update", "core", "nodes/status"),
            On("patch update", "core", "pods/status"),
            On("list watch get delete", "core", "pods"),
            EVENTS,
        ],
    ),
    (
        "persistent-volume-binder",
        &[
            On("get list watch update create delete", "core", "persistentvolumes"),
            On("update", "core", "persistentvolumes/status"),
            On("get list watch update", "core", "persistentvolumeclaims"),
            On("update", "core", "persistentvolumeclaims/status"),
            // Ours patches what upstream's updates.
            On("patch", "core", "persistentvolumes persistentvolumes/status"),
            On("patch", "core", "persistentvolumeclaims persistentvolumeclaims/status"),
            On("list watch get create delete", "core", "pods"),
            On(READ, "storage.k8s.io", "storageclasses"),
            On("list watch", "core", "nodes"),
            EVENTS,
            On("watch", "core", "events"),
            On("get", "core", "services"),
        ],
    ),
    (
        "pod-garbage-collector",
        &[
            On("list watch delete", "core", "pods"),
            On(READ, "core", "nodes"),
            On("patch", "core", "pods/status"),
        ],
    ),
    (
        "pv-protection-controller",
        &[On("get list watch update patch", "core", "persistentvolumes"), EVENTS],
    ),
    (
        "pvc-protection-controller",
        &[
            On("get list watch update patch", "core", "persistentvolumeclaims"),
            On(READ, "core", "pods"),
            EVENTS,
        ],
    ),
    (
        "replicaset-controller",
        &[
            On("get list watch update", "apps extensions", "replicasets"),
            On("update", "apps extensions", "replicasets/status"),
            On("update", "apps extensions", "replicasets/finalizers"),
            On("list watch patch create delete", "core", "pods"),
            EVENTS,
        ],
    ),
    (
        "replication-controller",
        &[
            On("get list watch update", "core", "replicationcontrollers"),
            On("update", "core", "replicationcontrollers/status"),
            On("update", "core", "replicationcontrollers/finalizers"),
            On("list watch patch create delete", "core", "pods"),
            EVENTS,
        ],
    ),
    (
        "resource-claim-controller",
        &[
            On(READ, "core", "pods"),
            On("update", "core", "pods/finalizers"),
            On("get list watch create delete", "resource.k8s.io", "resourceclaims"),
            On("update patch", "resource.k8s.io", "resourceclaims resourceclaims/status"),
            On("update patch", "core", "pods/status"),
            On(READ, "resource.k8s.io", "resourceclaimtemplates"),
            EVENTS,
        ],
    ),
    (
        "resourcequota-controller",
        &[On("list watch", "*", "*"), On("update", "core", "resourcequotas/status"), EVENTS],
    ),
    ("root-ca-cert-publisher", &[On("create update", "core", "configmaps"), EVENTS]),
    (
        "route-controller",
        &[On("list watch", "core", "nodes"), On("patch", "core", "nodes/status"), EVENTS],
    ),
    (
        "selinux-warning-controller",
        &[
            EVENTS,
            On(READ, "core", "persistentvolumes"),
            On(READ, "core", "persistentvolumeclaims"),
            On(READ, "core", "pods"),
            On(READ, "storage.k8s.io", "csidrivers"),
        ],
    ),
    ("service-account-controller", &[On("create", "core", "serviceaccounts"), EVENTS]),
    (
        "service-cidrs-controller",
        &[
            On("get list watch patch update", "networking.k8s.io", "servicecidrs"),
            On("patch update", "networking.k8s.io", "servicecidrs/finalizers"),
            On("patch update", "networking.k8s.io", "servicecidrs/status"),
            On(READ, "networking.k8s.io", "ipaddresses"),
            EVENTS,
        ],
    ),
    (
        "service-controller",
        &[
            On(READ, "core", "services"),
            On("patch update", "core", "services/status"),
            On("list watch", "core", "nodes"),
            EVENTS,
        ],
    ),
    (
        "statefulset-controller",
        &[
            On("list watch", "core", "pods"),
            On(READ, "apps", "statefulsets"),
            On("update", "apps", "statefulsets/status"),
            On("update", "apps", "statefulsets/finalizers"),
            On("get create delete update patch", "core", "pods"),
            On("get create delete update patch list watch", "apps", "controllerrevisions"),
            On("get create list watch", "core", "persistentvolumeclaims"),
            On("update delete", "core", "persistentvolumeclaims"),
            On("update", "core", "pods/finalizers"),
            EVENTS,
        ],
    ),
    ("ttl-after-finished-controller", &[On("get list watch delete", "batch", "jobs"), EVENTS]),
    ("ttl-controller", &[On("update patch list watch", "core", "nodes"), EVENTS]),
    (
        "validatingadmissionpolicy-status-controller",
        &[
            On(READ, "admissionregistration.k8s.io", "validatingadmissionpolicies"),
            On(
                "get patch update",
                "admissionregistration.k8s.io",
                "validatingadmissionpolicies/status",
            ),
            EVENTS,
        ],
    ),
    (
        "volumeattributesclass-protection-controller",
        &[
            On(READ, "core", "persistentvolumeclaims"),
            On(READ, "core", "persistentvolumes"),
            On("get list watch update patch", "storage.k8s.io", "volumeattributesclasses"),
            EVENTS,
        ],
    ),
];
