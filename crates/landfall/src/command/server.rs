//! Options of the API server, the controllers and the scheduler.

use super::DATA_DIR;
use super::values::{data_dir, positive_duration, store_choice};
use clap::Args;
use server::{ServiceRange, StoreChoice};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The prefix length of a node's share of --pod-cidr.
const NODE_CIDR_PREFIX: u8 = 24;

#[derive(Args)]
pub(crate) struct ServerOptions {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Run the API server alone, without controllers and scheduler
    #[arg(long)]
    pub(crate) no_controllers: bool,
}

#[derive(Args)]
pub(crate) struct Common {
    /// Directory for all data
    #[arg(long, value_name = "DIR", value_parser = data_dir(), default_value = DATA_DIR)]
    pub(crate) data_dir: PathBuf,
    /// Address and port of the API server; port 0 chooses a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:6443")]
    pub(crate) listen: SocketAddr,
    /// Where to store objects: `embedded` (a file in the data directory) or
    /// `etcd://HOST:PORT[,HOST:PORT…]`. Several servers can share one etcd: give each its own data
    /// directory with a copy of the first one's `pki` directory. One of them is the leader
    #[arg(long, value_name = "STORE", default_value = "embedded")]
    pub(crate) store: String,
    /// Address range of pods; each node gets a /24 of it
    #[arg(long, value_name = "CIDR", default_value = "10.244.0.0/16")]
    pub(crate) pod_cidr: String,
    /// Address range of Services, of IPv4. The first address is the API server's, the tenth the DNS server's. An
    /// existing cluster keeps its range
    #[arg(long, value_name = "CIDR", value_parser = ServiceRange::from_option, default_value = "10.96.0.0/16")]
    pub(crate) service_cidr: ServiceRange,
    /// A node is NotReady if it has not renewed its lease for this long. Its pods are evicted after the
    /// time that they tolerate
    #[arg(long, value_name = "TIME", value_parser = positive_duration, default_value = "50s")]
    pub(crate) node_monitor_grace_period: Duration,
    /// Number of finished pods to keep; the oldest are removed first. 0 keeps all
    #[arg(long, value_name = "N", default_value_t = controllers::FINISHED_MAX)]
    pub(crate) terminated_pod_gc_threshold: usize,
    /// Do not run the scheduler, because you run another one
    #[arg(long)]
    pub(crate) no_scheduler: bool,
    /// Number of termination records (`kubectl get terminations`) to keep, each for a day at most
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) keep_terminations: usize,
    #[command(flatten)]
    pub(crate) audit: AuditFlags,
}

/// Names and meanings are those of kube-apiserver.
#[derive(Debug, Clone, Args)]
pub(crate) struct AuditFlags {
    /// Log requests to this file, as JSON lines (audit.k8s.io/v1 Event)
    #[arg(long, alias = "audit-log-path", value_name = "FILE")]
    pub(crate) audit_log: Option<PathBuf>,
    /// Audit policy (audit.k8s.io/v1 Policy) [default: metadata of all requests]
    #[arg(long, value_name = "FILE", requires = "audit_log")]
    pub(crate) audit_policy_file: Option<PathBuf>,
    /// Start a new audit log when the file has reached this size (0: 100 MB)
    #[arg(long, value_name = "MB", default_value_t = 0, requires = "audit_log")]
    pub(crate) audit_log_maxsize: u64,
    /// Number of old audit logs to keep (0: all)
    #[arg(long, value_name = "N", default_value_t = 0, requires = "audit_log")]
    pub(crate) audit_log_maxbackup: usize,
    /// Number of days to keep old audit logs (0: no limit)
    #[arg(long, value_name = "DAYS", default_value_t = 0, requires = "audit_log")]
    pub(crate) audit_log_maxage: u32,
}

impl AuditFlags {
    pub(crate) fn config(&self) -> Option<server::AuditConfig> {
        Some(server::AuditConfig {
            path: self.audit_log.clone()?,
            policy: self.audit_policy_file.clone(),
            rotation: server::Rotation {
                max_size: self.audit_log_maxsize,
                max_backups: self.audit_log_maxbackup,
                max_age: self.audit_log_maxage,
            },
        })
    }
}

impl Common {
    pub(crate) fn controllers(&self) -> anyhow::Result<controllers::Options> {
        let pod_cidrs = controllers::Range::new(&self.pod_cidr, NODE_CIDR_PREFIX)
            .map_err(|error| anyhow::anyhow!("--pod-cidr: {error}"))?;
        if self.service_cidr.overlaps(&self.pod_cidr) {
            anyhow::bail!(
                "--pod-cidr {} and --service-cidr {} have common addresses: choose ranges that do not overlap",
                self.pod_cidr,
                self.service_cidr
            );
        }
        let threshold = self.terminated_pod_gc_threshold;
        Ok(controllers::Options {
            pod_cidrs,
            finished_pods_max: (threshold > 0).then_some(threshold),
            node_grace_period: self.node_monitor_grace_period,
            identity: self.identity(),
            ..Default::default()
        })
    }

    /// The name under which this server takes part in leader election (C-194). None: its store is
    /// embedded, so there are no other servers.
    fn identity(&self) -> Option<String> {
        let shared = self.store != "embedded";
        shared.then(|| format!("{}_{}", node::default_name(), clock::uuid()))
    }

    pub(crate) fn store_choice(&self) -> anyhow::Result<StoreChoice> {
        store_choice(&self.store)
    }
}

#[cfg(test)]
mod tests {
    use crate::command::{Cli, Command};
    use clap::Parser;

    fn audit(args: &[&str]) -> Option<server::AuditConfig> {
        let line = ["landfall", "up"].iter().chain(args);
        let cli = Cli::try_parse_from(line).expect("these options exist");
        let Command::Up(options) = cli.command else { unreachable!("the command is up") };
        options.common.audit.config()
    }

    #[test]
    fn the_service_range_is_one_of_ipv4() {
        let range = |args: &[&str]| {
            let line = ["landfall", "server"].iter().chain(args);
            let Command::Server(options) = Cli::try_parse_from(line)?.command else {
                unreachable!("the command is server")
            };
            Ok::<_, clap::Error>(options.common.service_cidr)
        };
        assert_eq!(range(&[]).unwrap(), server::ServiceRange::default());
        assert_eq!(range(&["--service-cidr", "10.7.16.0/20"]).unwrap().to_string(), "10.7.16.0/20");
        let refused = range(&["--service-cidr", "10.96.0.0/16,fd00::/112"]).unwrap_err();
        assert!(refused.to_string().contains("IPv6 addresses are not supported"), "{refused}");
    }

    #[test]
    fn pods_and_services_have_different_addresses() {
        let line = ["landfall", "server", "--service-cidr", "10.244.128.0/20"];
        let Command::Server(options) = Cli::try_parse_from(line).unwrap().command else {
            unreachable!("the command is server")
        };
        let refused = options.common.controllers().unwrap_err().to_string();
        assert!(refused.contains("choose ranges that do not overlap"), "{refused}");
    }

    #[test]
    fn audit_flags_set_file_policy_and_rotation() {
        assert!(audit(&[]).is_none());
        let plain = audit(&["--audit-log", "/log"]).unwrap();
        assert_eq!((plain.path, plain.policy), ("/log".into(), None));
        assert_eq!(plain.rotation, server::Rotation::default());
        let all = audit(&[
            "--audit-log-path=/log",
            "--audit-policy-file=/policy",
            "--audit-log-maxsize=1",
            "--audit-log-maxbackup=2",
            "--audit-log-maxage=3",
        ])
        .unwrap();
        assert_eq!((all.path, all.policy), ("/log".into(), Some("/policy".into())));
        let rotation = server::Rotation { max_size: 1, max_backups: 2, max_age: 3 };
        assert_eq!(all.rotation, rotation);
    }
}
