//! What configuring a pod must know of the node, and where on the node a pod's things lie (N-34).

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

#[derive(Debug, Clone)]
pub(crate) struct NodeFacts {
    pub(crate) name: String,
    /// `/var/lib/kubelet`, or what stands for it.
    pub(crate) root_dir: PathBuf,
    /// `/var/log/pods`
    pub(crate) log_root: PathBuf,
    /// As in the Node's status.
    pub(crate) allocatable: BTreeMap<String, Quantity>,
    pub(crate) capacity: BTreeMap<String, Quantity>,
    /// The primary family first.
    pub(crate) host_ips: Vec<IpAddr>,
    /// `cluster.local`
    pub(crate) cluster_domain: String,
    pub(crate) cluster_dns: Vec<IpAddr>,
    /// The node's own, for dnsPolicy Default.
    pub(crate) resolv_conf: PathBuf,
    /// The node's own, for pods in its network.
    pub(crate) hosts_file: PathBuf,
    /// Pods without a seccomp profile get RuntimeDefault instead of Unconfined.
    pub(crate) seccomp_default: bool,
    /// podPidsLimit; None: no limit per pod (N-113).
    pub(crate) pod_pids_limit: Option<i64>,
    /// Sizes of huge pages this kernel has, in bytes.
    pub(crate) huge_pages: Vec<u64>,
    /// There is somewhere to swap to. Containers do not, all the same (N-114).
    pub(crate) swap: bool,
    /// The kernel and the runtime can make a mount read-only with all that is below it (N-153).
    pub(crate) recursive_read_only: bool,
    /// The cgroup all pods are below: `/kubepods`.
    pub(crate) cgroup_root: String,
}

impl NodeFacts {
    /// A node with upstream's defaults.
    pub(crate) fn new(name: &str, root_dir: impl Into<PathBuf>) -> NodeFacts {
        NodeFacts {
            name: name.to_owned(),
            root_dir: root_dir.into(),
            log_root: "/var/log/pods".into(),
            allocatable: BTreeMap::new(),
            capacity: BTreeMap::new(),
            host_ips: Vec::new(),
            cluster_domain: "cluster.local".into(),
            cluster_dns: Vec::new(),
            resolv_conf: "/etc/resolv.conf".into(),
            hosts_file: "/etc/hosts".into(),
            seccomp_default: false,
            pod_pids_limit: None,
            huge_pages: Vec::new(),
            swap: false,
            recursive_read_only: true,
            cgroup_root: "/kubepods".into(),
        }
    }

    pub(crate) fn pods_dir(&self) -> PathBuf {
        self.root_dir.join("pods")
    }

    pub(crate) fn pod_dir(&self, uid: &str) -> PathBuf {
        self.pods_dir().join(uid)
    }

    /// `<namespace>_<name>_<uid>`, where the logs of a pod are (N-157).
    pub(crate) fn log_dir(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.log_root.join(format!("{namespace}_{name}_{uid}"))
    }
}
