//! Options of the API server, the controllers and the scheduler.

use super::DATA_DIR;
use super::values::{data_dir, positive_duration, store_choice};
use clap::Args;
use server::{ServiceRanges, StoreChoice};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

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
    /// Address range of pods; each node gets a /24 of it. For pods with IPv6 addresses, give a range of IPv6 too, or
    /// alone: `10.244.0.0/16,fd00:10:244::/48`; each node gets a /64 of it. Existing nodes keep what they have
    #[arg(long, value_name = "CIDR[,CIDR]", default_value = "10.244.0.0/16")]
    pub(crate) pod_cidr: String,
    /// Address range of Services. The first address is the API server's, the tenth the DNS server's. With a range of
    /// each IP family, such as `10.96.0.0/16,fd00:96::/112`, Services can have both, as their ipFamilyPolicy says;
    /// the first is the default. An existing cluster keeps its range, but can get a second family
    #[arg(long, value_name = "CIDR[,CIDR]", value_parser = ServiceRanges::from_option, default_value = "10.96.0.0/16")]
    pub(crate) service_cidr: ServiceRanges,
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
        let pod_cidrs = controllers::Ranges::new(&self.pod_cidr)
            .map_err(|error| anyhow::anyhow!("--pod-cidr: {error}"))?;
        if self.pod_cidr.split(',').any(|range| self.service_cidr.overlap(range)) {
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
    fn net_26_the_service_ranges_are_one_or_one_per_family() {
        let range = |args: &[&str]| {
            let line = ["landfall", "server"].iter().chain(args);
            let Command::Server(options) = Cli::try_parse_from(line)?.command else {
                unreachable!("the command is server")
            };
            Ok::<_, clap::Error>(options.common.service_cidr)
        };
        assert_eq!(range(&[]).unwrap(), server::ServiceRanges::default());
        assert_eq!(range(&["--service-cidr", "10.7.16.0/20"]).unwrap().to_string(), "10.7.16.0/20");
        let both = "10.96.0.0/16,fd00::/112";
        assert_eq!(range(&["--service-cidr", both]).unwrap().to_string(), both);
        let refused = range(&["--service-cidr", "10.96.0.0/16,10.97.0.0/16"]).unwrap_err();
        assert!(refused.to_string().contains("one of IPv4 and one of IPv6"), "{refused}");
    }

    #[test]
    fn pods_and_services_have_different_addresses() {
        let controllers = |pods: &str, services: &str| {
            let line = ["landfall", "server", "--pod-cidr", pods, "--service-cidr", services];
            let Command::Server(options) = Cli::try_parse_from(line).unwrap().command else {
                unreachable!("the command is server")
            };
            options.common.controllers().map_err(|error| error.to_string())
        };
        let both = "10.244.0.0/16,fd00:10:244::/48";
        for services in ["10.244.128.0/20", "10.96.0.0/16,fd00:10:244::/112"] {
            let refused = controllers(both, services).unwrap_err();
            assert!(refused.contains("choose ranges that do not overlap"), "{refused}");
        }
        controllers(both, "10.96.0.0/16,fd00:96::/112").unwrap();
        let refused = controllers("fd00::/112", "10.96.0.0/16").unwrap_err();
        assert!(refused.contains("--pod-cidr"), "{refused}");
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
