//! Options of the agent that runs pods.

use super::DATA_DIR;
use super::values::{data_dir, duration, exact_duration, positive_duration};
use clap::Args;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// The device of the pod network if --pod-link is not given.
pub(crate) const POD_LINK: &str = "lf0";

#[derive(Args)]
pub(crate) struct NodeCommand {
    /// Directory for all data
    #[arg(long, value_name = "DIR", value_parser = data_dir(), default_value = DATA_DIR)]
    pub(crate) data_dir: PathBuf,
    /// URL of the API server: https://HOST:PORT
    #[arg(long, value_name = "URL", required_unless_present = "kubeconfig")]
    pub(crate) server: Option<String>,
    /// Join token, from `landfall token create`
    #[arg(long, value_name = "TOKEN", required_unless_present = "kubeconfig")]
    pub(crate) token: Option<String>,
    /// Certificate authority of the cluster. Without it, the one that the server presents is accepted if
    /// its fingerprint is the one in the token
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Kubeconfig with the node's credentials, instead of --server and --token
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) node: NodeOptions,
}

/// Options of an agent, whether its API server is in this process or elsewhere.
#[derive(Args)]
pub(crate) struct NodeOptions {
    /// Name of the node [default: the name of the host]
    #[arg(long = "node-name", visible_alias = "name", value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Address at which the API server and other nodes reach this node; for pods with both IP families, one of each
    /// [default: the address of the default route; with `landfall up`, of each family of --pod-cidr]
    #[arg(long, value_name = "IP[,IP]", value_delimiter = ',')]
    pub(crate) node_ip: Vec<IpAddr>,
    /// Address and port of the agent's endpoint (logs, exec); port 0 chooses a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:10250")]
    pub(crate) node_listen: SocketAddr,
    /// Container runtime: `native`, or a CRI socket such as unix:///run/containerd/containerd.sock
    #[arg(long, value_name = "RUNTIME", default_value = "native")]
    pub(crate) runtime: String,
    /// Directory of static pod manifests to run
    #[arg(long, value_name = "DIR")]
    pub(crate) pod_manifests: Option<PathBuf>,
    /// Thresholds below which pods are evicted, such as memory.available<100Mi,nodefs.available<10%; an
    /// empty value disables eviction [default: 100Mi of memory, 10% of the disk, 15% for images]
    #[arg(long, value_name = "THRESHOLDS")]
    pub(crate) eviction_hard: Option<String>,
    /// Maximum number of processes in one pod; -1 for no limit
    #[arg(long, value_name = "N", value_parser = pids_limit, default_value = "4096", allow_hyphen_values = true)]
    pub(crate) pod_pids_limit: PidsLimit,
    /// Use the runtime's default seccomp profile for containers that name none
    #[arg(long)]
    pub(crate) seccomp_default: bool,
    /// Node lease duration; the agent renews the lease four times per duration. Must be shorter than the
    /// server's --node-monitor-grace-period
    #[arg(long, value_name = "TIME", value_parser = positive_duration, default_value = "40s")]
    pub(crate) node_lease_duration: Duration,
    /// If landfall restarts while a pod terminates: `full` repeats the preStop hook and gives the whole
    /// grace period again, as kubelet does; `kept` keeps the deadline
    #[arg(long, value_name = "full|kept", default_value = "full")]
    pub(crate) grace_after_restart: GraceAfterRestart,
    /// When preStop hooks and stop signals begin: `upstream`, at once, as in Kubernetes; `acknowledged`, after nothing
    /// sends new connections to the pod. The annotation landfall.dev/drain of a pod or namespace overrides it
    #[arg(long, value_name = "upstream|acknowledged", default_value = "upstream")]
    pub(crate) drain: Drain,
    /// Network device of the pod network, at most seven letters. Names of pods' devices start with it, so
    /// several nodes on one machine need different ones
    #[arg(long, value_name = "NAME", default_value = POD_LINK)]
    pub(crate) pod_link: String,
    /// Delay with which changes of Services and endpoints reach the packet rules of this node, such as
    /// 300ms or 100ms-2s, to imitate slow proxies
    #[arg(long, value_name = "TIME[-TIME]", value_parser = delay_range)]
    pub(crate) proxy_delay: Option<DelayRange>,
    /// Where the health of the Service proxy is served (/healthz, /livez), or `none`
    #[arg(long, value_name = "ADDR:PORT", value_parser = optional_address, default_value = "0.0.0.0:10256")]
    pub(crate) proxy_health_listen: OptionalAddress,
    /// Where the metrics of the Service proxy are served (/metrics), or `none`
    #[arg(long, value_name = "ADDR:PORT", value_parser = optional_address, default_value = "127.0.0.1:10249")]
    pub(crate) proxy_metrics_listen: OptionalAddress,
    #[command(flatten)]
    pub(crate) shutdown: ShutdownOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OptionalAddress(pub(crate) Option<SocketAddr>);

fn optional_address(text: &str) -> Result<OptionalAddress, String> {
    match text {
        "none" => Ok(OptionalAddress(None)),
        text => text.parse().map(|address| OptionalAddress(Some(address))).map_err(|_| {
            "write an address and a port, such as 127.0.0.1:10249, or none".to_owned()
        }),
    }
}

/// A delay is chosen at random from this range for each change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DelayRange(pub(crate) RangeInclusive<Duration>);

fn delay_range(text: &str) -> Result<DelayRange, String> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let (from, to) = (exact_duration(from)?, exact_duration(to)?);
    if from > to {
        return Err("write the shorter time first, such as 100ms-2s".to_owned());
    }
    Ok(DelayRange(from..=to))
}

/// How long pods get when the node shuts down: `landfall down`, or the host shuts down.
#[derive(Args)]
pub(crate) struct ShutdownOptions {
    /// Time for all pods together when the node shuts down, such as 30s or 2m; no pod gets more than its
    /// own grace period [default: each pod gets its own, critical pods after all others]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) shutdown_grace: Option<Duration>,
    /// The last part of --shutdown-grace, for critical pods (priority 2000000000 and above)
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "shutdown_grace")]
    pub(crate) shutdown_grace_critical: Option<Duration>,
    /// Instead: time by priority, lowest first. With 0=20s,1000=10s,2000000000=5s, pods with a priority
    /// from 0 to 999 are terminated first, within 20 seconds
    #[arg(
        long,
        value_name = "PRIORITY=TIME,…",
        value_parser = period,
        value_delimiter = ',',
        conflicts_with = "shutdown_grace"
    )]
    pub(crate) shutdown_grace_by_priority: Vec<node::Period>,
}

impl ShutdownOptions {
    pub(crate) fn periods(&self) -> anyhow::Result<node::Periods> {
        if let Some(total) = self.shutdown_grace {
            let critical = self.shutdown_grace_critical.unwrap_or_default();
            return node::Periods::two(total, critical)
                .map_err(|error| anyhow::anyhow!("--shutdown-grace-critical: {error}"));
        }
        if self.shutdown_grace_by_priority.is_empty() {
            return Ok(node::Periods::Own);
        }
        node::Periods::by_priority(self.shutdown_grace_by_priority.clone())
            .map_err(|error| anyhow::anyhow!("--shutdown-grace-by-priority: {error}"))
    }
}

fn period(text: &str) -> Result<node::Period, String> {
    let (priority, length) = text.split_once('=').ok_or("write PRIORITY=TIME, such as 0=20s")?;
    let priority =
        priority.trim().parse::<i32>().map_err(|error| format!("{priority}: {error}"))?;
    Ok(node::Period { priority, length: duration(length)? })
}

/// None: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PidsLimit(pub(crate) Option<i64>);

fn pids_limit(text: &str) -> Result<PidsLimit, String> {
    match text.trim().parse::<i64>() {
        Ok(-1) => Ok(PidsLimit(None)),
        Ok(limit) if limit > 0 => Ok(PidsLimit(Some(limit))),
        Ok(_) => Err("write a number above zero, or -1 for no limit".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Drain {
    Upstream,
    Acknowledged,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum GraceAfterRestart {
    Full,
    Kept,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Cli, Command};
    use clap::Parser;

    fn options(args: &[&str]) -> Result<NodeOptions, String> {
        let line = ["landfall", "up"].iter().chain(args);
        let cli = Cli::try_parse_from(line).map_err(|error| error.to_string())?;
        let Command::Up(options) = cli.command else { unreachable!("the command is up") };
        Ok(options.node)
    }

    fn periods(args: &[&str]) -> Result<node::Periods, String> {
        options(args)?.shutdown.periods().map_err(|error| error.to_string())
    }

    fn by_priority(rows: &[(i32, u64)]) -> node::Periods {
        let period = |(priority, length): &(i32, u64)| node::Period {
            priority: *priority,
            length: Duration::from_secs(*length),
        };
        node::Periods::by_priority(rows.iter().map(period).collect()).unwrap()
    }

    /// N-113: a limit of processes per pod, which can be removed.
    #[test]
    fn n_113_pods_have_a_limit_of_processes_by_default() {
        let limit = |args: &[&str]| options(args).map(|options| options.pod_pids_limit.0);
        assert_eq!(limit(&[]), Ok(Some(4096)));
        assert_eq!(limit(&["--pod-pids-limit", "64"]), Ok(Some(64)));
        assert_eq!(limit(&["--pod-pids-limit", "-1"]), Ok(None));
        assert_eq!(limit(&["--pod-pids-limit=-1"]), Ok(None));
        for wrong in ["0", "-2", "many"] {
            assert!(limit(&["--pod-pids-limit", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn t_node_87_shutdown_periods_can_be_written_in_two_ways() {
        assert_eq!(periods(&[]), Ok(node::Periods::Own));
        let two = periods(&["--shutdown-grace", "1m", "--shutdown-grace-critical=10"]);
        assert_eq!(two, Ok(by_priority(&[(0, 50), (2_000_000_000, 10)])));
        let list = periods(&["--shutdown-grace-by-priority", "1000=10s,-5=1m30s"]);
        assert_eq!(list, Ok(by_priority(&[(-5, 90), (1000, 10)])));
    }

    #[test]
    fn invalid_shutdown_periods_are_rejected() {
        for wrong in [
            &["--shutdown-grace", "soon"][..],
            &["--shutdown-grace", "-5s"],
            &["--shutdown-grace", "1500ms"],
            &["--shutdown-grace-critical", "5s"],
            &["--shutdown-grace", "5s", "--shutdown-grace-critical", "6s"],
            &["--shutdown-grace-by-priority", "20s"],
            &["--shutdown-grace-by-priority", "0=1s,0=2s"],
            &["--shutdown-grace", "5s", "--shutdown-grace-by-priority", "0=1s"],
        ] {
            assert!(periods(wrong).is_err(), "{wrong:?} was accepted");
        }
    }
}
