//! Facts about the node that the configuration of pods depends on, and where a pod's files are (N-34).

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

#[derive(Debug, Clone)]
pub struct NodeFacts {
    pub name: String,
    /// `/var/lib/kubelet`, or the directory used instead.
    pub root_dir: PathBuf,
    /// `/var/log/pods`
    pub log_root: PathBuf,
    /// As in the status of the Node.
    pub allocatable: BTreeMap<String, Quantity>,
    pub capacity: BTreeMap<String, Quantity>,
    /// The primary address family first.
    pub host_ips: Vec<IpAddr>,
    /// `cluster.local`
    pub cluster_domain: String,
    pub cluster_dns: Vec<IpAddr>,
    /// The node's file, for dnsPolicy Default.
    pub resolv_conf: PathBuf,
    /// The node's file, for host network pods.
    pub hosts_file: PathBuf,
    /// Pods without a seccomp profile get RuntimeDefault instead of Unconfined.
    pub seccomp_default: bool,
    /// `podPidsLimit`; None means no limit (N-113).
    pub pod_pids_limit: Option<i64>,
    /// The huge page sizes of this kernel, in bytes.
    pub huge_pages: Vec<u64>,
    /// The node has swap. Containers still get none (N-114).
    pub swap: bool,
    /// Kernel and runtime support mounts that are read-only recursively (N-153).
    pub recursive_read_only: bool,
    /// The parent cgroup of all pods: `/kubepods`.
    pub cgroup_root: String,
}

impl NodeFacts {
    /// A node with the default settings of upstream.
    pub fn new(name: &str, root_dir: impl Into<PathBuf>) -> NodeFacts {
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

    pub fn pods_dir(&self) -> PathBuf {
        self.root_dir.join("pods")
    }

    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.pods_dir().join(uid)
    }

    /// The directory with the logs of a pod: `<namespace>_<name>_<uid>` (N-157).
    pub fn log_dir(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.log_root.join(format!("{namespace}_{name}_{uid}"))
    }
}
