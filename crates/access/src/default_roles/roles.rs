//! The default roles and who gets them, as tables. The parent module turns them into objects.

use super::Grant::{self, Named, On, Paths};
use super::Subject::{self, Account, Group, User};

pub(super) type Role = (&'static str, &'static [Grant]);

pub(super) const READ: &str = "get list watch";
const WRITE: &str = "create delete deletecollection patch update";
const READ_WRITE: &str = "get list watch create delete deletecollection patch update";
const READ_UPDATE: &str = "get list watch patch update";

pub(super) const EVENTS: Grant = On("create patch update", "core events.k8s.io", "events");

const TOKEN_REVIEWS: Grant = On("create", "authentication.k8s.io", "tokenreviews");
const ACCESS_REVIEWS: Grant = On("create", "authorization.k8s.io", "subjectaccessreviews");
const SIGNING_REQUESTS: Grant =
    On("create get list watch", "certificates.k8s.io", "certificatesigningrequests");

/// Roles made of the roles labelled for them, and the role they are part of themselves.
pub(super) const AGGREGATED: &[(&str, Option<&str>)] =
    &[("admin", None), ("edit", Some("admin")), ("view", Some("edit"))];

pub(super) const CLUSTER_ROLES: &[Role] = &[
    ("cluster-admin", &[On("*", "*", "*"), Paths("*", "*")]),
    (
        "system:discovery",
        &[Paths(
            "get",
            "/livez /readyz /healthz /version /version/ /openapi /openapi/* /api /api/* /apis /apis/*",
        )],
    ),
    (
        "system:basic-user",
        &[
            On(
                "create",
                "authorization.k8s.io",
                "selfsubjectaccessreviews selfsubjectrulesreviews",
            ),
            On("create", "authentication.k8s.io", "selfsubjectreviews"),
        ],
    ),
    ("system:public-info-viewer", &[Paths("get", "/livez /readyz /healthz /version /version/")]),
    (
        "system:monitoring",
        &[
            Paths(
                "get",
                "/healthz /healthz/* /livez /livez/* /metrics /metrics/slis /readyz /readyz/*",
            ),
            On("get", "core", "nodes/metrics"),
        ],
    ),
    (
        "system:service-account-issuer-discovery",
        &[Paths(
            "get",
            "/.well-known/openid-configuration /.well-known/openid-configuration/ \
             /openid/v1/jwks /openid/v1/jwks/",
        )],
    ),
    ("system:auth-delegator", &[TOKEN_REVIEWS, ACCESS_REVIEWS]),
    (
        "system:aggregate-to-admin",
        &[
            On("create", "authorization.k8s.io", "localsubjectaccessreviews"),
            On(READ_WRITE, "rbac.authorization.k8s.io", "roles rolebindings"),
        ],
    ),
    ("system:aggregate-to-edit", AGGREGATE_TO_EDIT),
    ("system:aggregate-to-view", AGGREGATE_TO_VIEW),
    ("landfall:aggregate-to-view", &[On(READ, "landfall.dev", "terminations drainparticipants")]),
    // Upstream's comes with metrics-server.
    ("system:aggregated-metrics-reader", &[On(READ, "metrics.k8s.io", "pods nodes")]),
    ("system:node", NODE),
    (
        "system:node-proxier",
        &[
            On("list watch", "core", "services endpoints"),
            On(READ, "core", "nodes"),
            EVENTS,
            On("list watch", "discovery.k8s.io", "endpointslices"),
            On("list watch", "networking.k8s.io", "servicecidrs"),
            On("create", "landfall.dev", "terminations/steps"),
        ],
    ),
    // What the agents of nodes need to forward traffic of Services, to answer DNS queries and to enforce policies.
    (
        "landfall:node-traffic",
        &[
            On(READ, "core", "services nodes namespaces pods"),
            On(READ, "discovery.k8s.io", "endpointslices"),
            On(READ, "networking.k8s.io", "networkpolicies servicecidrs"),
            On("get list watch create update patch", "landfall.dev", "drainparticipants"),
            EVENTS,
        ],
    ),
    (
        "system:node-problem-detector",
        &[On("get", "core", "nodes"), On("patch", "core", "nodes/status"), EVENTS],
    ),
    ("system:node-bootstrapper", &[SIGNING_REQUESTS]),
    (
        "system:kubelet-api-admin",
        &[
            On(READ, "core", "nodes"),
            On("proxy", "core", "nodes"),
            On(
                "*",
                "core",
                "nodes/proxy nodes/metrics nodes/stats nodes/log nodes/configz nodes/healthz \
                 nodes/pods",
            ),
        ],
    ),
    (
        "system:heapster",
        &[On(READ, "core", "events pods nodes namespaces"), On(READ, "extensions", "deployments")],
    ),
    ("system:kube-aggregator", &[On(READ, "core", "services endpoints")]),
    ("system:kube-dns", &[On("list watch", "core", "endpoints services")]),
    ("system:kube-controller-manager", CONTROLLER_MANAGER),
    ("system:kube-scheduler", SCHEDULER),
    (
        "system:volume-scheduler",
        &[
            On(READ_UPDATE, "core", "persistentvolumes"),
            On(READ, "storage.k8s.io", "storageclasses"),
            On(READ_UPDATE, "core", "persistentvolumeclaims"),
        ],
    ),
    (
        "system:persistent-volume-provisioner",
        &[
            On("get list watch create delete", "core", "persistentvolumes"),
            On("get list watch update", "core", "persistentvolumeclaims"),
            On(READ, "storage.k8s.io", "storageclasses"),
            On("watch", "core", "events"),
            EVENTS,
        ],
    ),
    (
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        &[On("create", "certificates.k8s.io", "certificatesigningrequests/nodeclient")],
    ),
    (
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        &[On("create", "certificates.k8s.io", "certificatesigningrequests/selfnodeclient")],
    ),
    (
        "system:certificates.k8s.io:legacy-unknown-approver",
        &[Named("approve", "certificates.k8s.io", "signers", "kubernetes.io/legacy-unknown")],
    ),
    (
        "system:certificates.k8s.io:kubelet-serving-approver",
        &[Named("approve", "certificates.k8s.io", "signers", "kubernetes.io/kubelet-serving")],
    ),
    (
        "system:certificates.k8s.io:kube-apiserver-client-approver",
        &[Named(
            "approve",
            "certificates.k8s.io",
            "signers",
            "kubernetes.io/kube-apiserver-client",
        )],
    ),
    (
        "system:certificates.k8s.io:kube-apiserver-client-kubelet-approver",
        &[Named(
            "approve",
            "certificates.k8s.io",
            "signers",
            "kubernetes.io/kube-apiserver-client-kubelet",
        )],
    ),
];

const AGGREGATE_TO_VIEW: &[Grant] = &[
    On(
        READ,
        "core",
        "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods \
         replicationcontrollers replicationcontrollers/scale serviceaccounts services \
         services/status",
    ),
    On(
        READ,
        "core",
        "bindings events limitranges namespaces/status pods/log pods/status \
         replicationcontrollers/status resourcequotas resourcequotas/status",
    ),
    On(READ, "core", "namespaces"),
    On(READ, "discovery.k8s.io", "endpointslices"),
    On(
        READ,
        "apps",
        "controllerrevisions daemonsets daemonsets/status deployments deployments/scale \
         deployments/status replicasets replicasets/scale replicasets/status statefulsets \
         statefulsets/scale statefulsets/status",
    ),
    On(READ, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
    On(READ, "batch", "cronjobs cronjobs/status jobs jobs/status"),
    On(
        READ,
        "extensions",
        "daemonsets daemonsets/status deployments deployments/scale deployments/status ingresses \
         ingresses/status networkpolicies replicasets replicasets/scale replicasets/status \
         replicationcontrollers/scale",
    ),
    On(READ, "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
    On(READ, "networking.k8s.io", "ingresses ingresses/status networkpolicies"),
    On(READ, "resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates"),
];

const AGGREGATE_TO_EDIT: &[Grant] = &[
    On(READ, "core", "pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy"),
    On("impersonate", "core", "serviceaccounts"),
    On(WRITE, "core", "pods pods/attach pods/exec pods/portforward pods/proxy"),
    On("create", "core", "pods/eviction"),
    On(
        WRITE,
        "core",
        "configmaps events persistentvolumeclaims replicationcontrollers \
         replicationcontrollers/scale secrets serviceaccounts services services/proxy",
    ),
    On("create", "core", "serviceaccounts/token"),
    On(
        WRITE,
        "apps",
        "daemonsets deployments deployments/rollback deployments/scale replicasets \
         replicasets/scale statefulsets statefulsets/scale",
    ),
    On(WRITE, "autoscaling", "horizontalpodautoscalers"),
    On(WRITE, "batch", "cronjobs jobs"),
    On(
        WRITE,
        "extensions",
        "daemonsets deployments deployments/rollback deployments/scale ingresses networkpolicies \
         replicasets replicasets/scale replicationcontrollers/scale",
    ),
    On(WRITE, "policy", "poddisruptionbudgets"),
    On(WRITE, "networking.k8s.io", "ingresses networkpolicies"),
    On(READ_WRITE, "coordination.k8s.io", "leases"),
    On(WRITE, "resource.k8s.io", "resourceclaims resourceclaimtemplates"),
];

const NODE: &[Grant] = &[
    TOKEN_REVIEWS,
    On("create", "authorization.k8s.io", "subjectaccessreviews localsubjectaccessreviews"),
    On(READ, "core", "services"),
    On("create get list watch", "core", "nodes"),
    On("update patch", "core", "nodes/status"),
    On("update patch", "core", "nodes"),
    On("create update patch", "core", "events"),
    On(READ, "core", "pods"),
    On("create delete", "core", "pods"),
    On("update patch", "core", "pods/status"),
    On("create", "core", "pods/eviction"),
    On("create", "landfall.dev", "terminations/steps"),
    On(READ, "core", "secrets configmaps"),
    On("get", "core", "persistentvolumeclaims persistentvolumes"),
    On("get", "core", "endpoints"),
    SIGNING_REQUESTS,
    On("get create update patch delete", "coordination.k8s.io", "leases"),
    On("get", "storage.k8s.io", "volumeattachments"),
    On("get update patch", "core", "persistentvolumeclaims/status"),
    On("create", "core", "serviceaccounts/token"),
    On(READ, "storage.k8s.io", "csidrivers"),
    On("get create update patch delete", "storage.k8s.io", "csinodes"),
    On(READ, "node.k8s.io", "runtimeclasses"),
    On("get", "resource.k8s.io", "resourceclaims"),
    On("deletecollection", "resource.k8s.io", "resourceslices"),
    On("get list watch create update patch delete", "resource.k8s.io", "resourceslices"),
];

const CONTROLLER_MANAGER: &[Grant] = &[
    EVENTS,
    On("create list watch", "coordination.k8s.io", "leases"),
    Named("get update", "coordination.k8s.io", "leases", "kube-controller-manager"),
    On("create", "core", "secrets serviceaccounts"),
    On("delete", "core", "secrets"),
    On("get", "core", "namespaces secrets serviceaccounts configmaps"),
    On("update", "core", "secrets serviceaccounts"),
    TOKEN_REVIEWS,
    ACCESS_REVIEWS,
    On("list watch", "*", "*"),
    On("create", "core", "serviceaccounts/token"),
];

const SCHEDULER: &[Grant] = &[
    EVENTS,
    On("create list watch", "coordination.k8s.io", "leases"),
    Named("get update", "coordination.k8s.io", "leases", "kube-scheduler"),
    On(READ, "core", "nodes"),
    On("get list watch delete", "core", "pods"),
    On("create", "core", "pods/binding bindings"),
    On("update patch", "core", "pods/status"),
    On(READ, "core", "services replicationcontrollers"),
    On(READ, "apps extensions", "replicasets"),
    On(READ, "apps", "statefulsets"),
    On(READ, "policy", "poddisruptionbudgets"),
    On(READ, "core", "persistentvolumeclaims persistentvolumes"),
    TOKEN_REVIEWS,
    ACCESS_REVIEWS,
    On(READ, "storage.k8s.io", "csinodes"),
    On(READ, "core", "namespaces"),
    On(READ, "storage.k8s.io", "csidrivers"),
    On(READ, "storage.k8s.io", "csistoragecapacities"),
    On(READ, "storage.k8s.io", "volumeattachments"),
    On(READ, "resource.k8s.io", "deviceclasses resourceslices"),
    On(READ_UPDATE, "resource.k8s.io", "resourceclaims"),
    On(READ_UPDATE, "resource.k8s.io", "resourceclaims/status"),
];

/// ClusterRoleBindings: each has the name of its role.
pub(super) const BINDINGS: &[(&str, &[Subject])] = &[
    ("cluster-admin", &[Group("system:masters")]),
    ("system:monitoring", &[Group("system:monitoring")]),
    ("system:discovery", &[Group("system:authenticated")]),
    ("system:basic-user", &[Group("system:authenticated")]),
    (
        "system:public-info-viewer",
        &[Group("system:authenticated"), Group("system:unauthenticated")],
    ),
    ("system:node-proxier", &[User("system:kube-proxy")]),
    ("system:kube-controller-manager", &[User("system:kube-controller-manager")]),
    ("system:kube-dns", &[Account("kube-dns")]),
    ("system:kube-scheduler", &[User("system:kube-scheduler")]),
    ("system:volume-scheduler", &[User("system:kube-scheduler")]),
    // Nodes are authorized by their group and name; upstream keeps the binding, empty.
    ("system:node", &[]),
    ("landfall:node-traffic", &[Group("system:nodes")]),
    ("system:service-account-issuer-discovery", &[Group("system:serviceaccounts")]),
];

/// As kubeadm: a join token may request a node's certificate, which is approved, and nodes may renew theirs.
pub(super) const JOINING: &[(&str, &str, &str)] = &[
    ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", JOINERS),
    (
        "kubeadm:node-autoapprove-bootstrap",
        "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
        JOINERS,
    ),
    (
        "kubeadm:node-autoapprove-certificate-rotation",
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
        "system:nodes",
    ),
];
const JOINERS: &str = "system:bootstrappers:kubeadm:default-node-token";

const READER: &str = "extension-apiserver-authentication-reader";
const LOCK_MANAGER: &str = "system::leader-locking-kube-controller-manager";
const LOCK_SCHEDULER: &str = "system::leader-locking-kube-scheduler";
const DNS_SLICES: &str = "landfall:dns-endpoint-slices";
const SIGNER: &str = "system:controller:bootstrap-signer";
const CLOUD: &str = "system:controller:cloud-provider";
const CLEANER: &str = "system:controller:token-cleaner";

/// Namespace, name, rules.
pub(super) const LOCAL_ROLES: &[(&str, &str, &[Grant])] = &[
    (
        "kube-system",
        READER,
        &[Named(READ, "core", "configmaps", "extension-apiserver-authentication")],
    ),
    ("kube-system", SIGNER, &[On(READ, "core", "secrets")]),
    // A node may write only the slice of its own name: `node_restriction` in `server`.
    (
        "kube-system",
        DNS_SLICES,
        &[On("get create update patch delete", "discovery.k8s.io", "endpointslices")],
    ),
    ("kube-system", CLOUD, &[On("create get list watch", "core", "configmaps")]),
    ("kube-system", CLEANER, &[On("get list watch delete", "core", "secrets"), EVENTS]),
    (
        "kube-system",
        LOCK_MANAGER,
        &[
            On("watch", "core", "configmaps"),
            Named("get update", "core", "configmaps", "kube-controller-manager"),
        ],
    ),
    (
        "kube-system",
        LOCK_SCHEDULER,
        &[
            On("watch", "core", "configmaps"),
            Named("get update", "core", "configmaps", "kube-scheduler"),
        ],
    ),
    (
        "kube-public",
        SIGNER,
        &[
            On(READ, "core", "configmaps"),
            Named("update", "core", "configmaps", "cluster-info"),
            EVENTS,
        ],
    ),
];

/// Namespace, name, role, subjects.
pub(super) const LOCAL_BINDINGS: &[(&str, &str, &str, &[Subject])] = &[
    ("kube-system", DNS_SLICES, DNS_SLICES, &[Group("system:nodes")]),
    (
        "kube-system",
        "system::extension-apiserver-authentication-reader",
        READER,
        &[User("system:kube-controller-manager"), User("system:kube-scheduler")],
    ),
    (
        "kube-system",
        LOCK_MANAGER,
        LOCK_MANAGER,
        &[User("system:kube-controller-manager"), Account("kube-controller-manager")],
    ),
    (
        "kube-system",
        LOCK_SCHEDULER,
        LOCK_SCHEDULER,
        &[User("system:kube-scheduler"), Account("kube-scheduler")],
    ),
    ("kube-system", SIGNER, SIGNER, &[Account("bootstrap-signer")]),
    ("kube-system", CLOUD, CLOUD, &[Account("cloud-provider")]),
    ("kube-system", CLEANER, CLEANER, &[Account("token-cleaner")]),
    ("kube-public", SIGNER, SIGNER, &[Account("bootstrap-signer")]),
];
