//! What a person can type.

use anyhow::{Context, bail};
use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use server::StoreChoice;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Where everything is kept unless told otherwise.
pub(crate) const DATA_DIR: &str = "/var/lib/landfall";

/// What the pods' network is called unless told otherwise.
pub(crate) const POD_LINK: &str = "lf0";

/// A data directory, said in full: what is started below it works elsewhere, and so may whoever reads
/// where the kubeconfig is.
fn directory() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

/// Kubernetes in one file.
///
/// Start a cluster with `landfall up`, then use the kubectl you have:
///
///     sudo landfall up &
///     export KUBECONFIG=/var/lib/landfall/kubeconfig
///     kubectl run hello --image=busybox -- sleep 1000
///
/// Everything it keeps is in one directory (--data-dir). Stop it with Ctrl-C, SIGTERM or `landfall
/// stop`: pods go on running and are found again at the next start, however it was stopped. `landfall
/// down` ends the pods too. No registry at hand? `landfall image import FILE`.
#[derive(Parser)]
#[command(name = "landfall", version, verbatim_doc_comment)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a whole cluster in the foreground
    ///
    /// Prints one line that starts with `ready` when the API answers and the node is Ready. The
    /// admin's kubeconfig is DIR/kubeconfig, a bearer token with the same rights is in
    /// DIR/admin.token.
    Up(UpOptions),
    /// Stop landfall and leave its pods running, as for an upgrade
    ///
    /// The same as SIGTERM, Ctrl-C or `systemctl stop`. The next start finds the pods again: the same
    /// containers, no restart counted, no log line and no exit code lost. Waits until landfall is gone.
    Stop {
        /// The data directory of the landfall to stop
        #[arg(long, value_name = "DIR", value_parser = directory(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// End a cluster: its pods, each within its grace period, then landfall itself
    ///
    /// Every pod gets its preStop hook, its stop signal and the time that
    /// terminationGracePeriodSeconds gives it; critical pods end after all others (--shutdown-grace and
    /// its kin, given to `landfall up`, say otherwise). The last lines tell whose time was cut, and
    /// what to change. In a hurry? Ctrl-C: what has not ended gets two seconds.
    ///
    /// Objects stay in the data directory: ended pods are Failed with the reason Terminated, and the
    /// next `landfall up` finds them. Also clears away what a landfall that was killed has left running.
    Down {
        /// The data directory of the landfall to end
        #[arg(long, value_name = "DIR", value_parser = directory(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// Run the API server (and, unless told not to, the controllers) without a node
    Server(ServerOptions),
    /// Run pods for an API server elsewhere
    ///
    /// Make a token there with `landfall token create`, which prints the whole command.
    Node(NodeCommand),
    /// Images of this machine: import, pull, list, remove
    #[command(subcommand)]
    Image(ImageCommand),
    /// Tokens by which nodes join
    #[command(subcommand)]
    Token(TokenCommand),
    /// Show how a pod ended: who asked, every step, how long each took
    ///
    /// Reads the cluster's records of endings (`kubectl get terminations`) and draws the newest of
    /// this pod: a bar for every container and a line for every step, with the time since the
    /// request. Records stay for a day after the pod is gone.
    ///
    ///     landfall timeline web-1
    ///     landfall timeline web-1 -n shop --follow     # then: kubectl delete pod web-1 -n shop
    #[command(verbatim_doc_comment)]
    Timeline(TimelineCommand),
    /// Print the version
    Version,
    /// Print a completion script for your shell
    ///
    /// For bash: landfall completions bash > /etc/bash_completion.d/landfall
    Completions { shell: clap_complete::Shell },
}

#[derive(Args)]
pub(crate) struct UpOptions {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Do not run pods on this machine
    #[arg(long)]
    pub(crate) no_node: bool,
    #[command(flatten)]
    pub(crate) node: NodeOptions,
}

/// How an agent runs, wherever its API server is.
#[derive(Args)]
pub(crate) struct NodeOptions {
    /// The node's name; by default the host's
    #[arg(long = "node-name", visible_alias = "name", value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The address other nodes and the API server reach this node by; by default that of the
    /// default route
    #[arg(long, value_name = "IP")]
    pub(crate) node_ip: Option<IpAddr>,
    /// Where the agent answers the API server (logs, exec); port 0 takes any free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:10250")]
    pub(crate) node_listen: SocketAddr,
    /// What runs containers: `native`, or a CRI socket such as
    /// unix:///run/containerd/containerd.sock
    #[arg(long, value_name = "RUNTIME", default_value = "native")]
    pub(crate) runtime: String,
    /// Run the pods described in this directory, without an API server's say
    #[arg(long, value_name = "DIR")]
    pub(crate) pod_manifests: Option<PathBuf>,
    /// When pods are evicted, such as memory.available<100Mi,nodefs.available<10%; empty: never. By
    /// default as upstream does: below 100Mi of memory, 10% of the disk, 15% for images
    #[arg(long, value_name = "THRESHOLDS")]
    pub(crate) eviction_hard: Option<String>,
    /// How many processes one pod may have; without it as many as the node can
    #[arg(long, value_name = "N")]
    pub(crate) pod_pids_limit: Option<i64>,
    /// How long a sign of life of this node lasts; it gives four in that time. Shorter than the
    /// server's --node-monitor-grace-period
    #[arg(long, value_name = "TIME", value_parser = some_time, default_value = "40s")]
    pub(crate) node_lease_duration: Duration,
    /// Of a pod that is ending when landfall is restarted: `full`, its hook and its whole grace
    /// period again, as upstream does, or `kept`, what is left of it
    #[arg(long, value_name = "full|kept", default_value = "full")]
    pub(crate) grace_after_restart: GraceAfterRestart,
    /// The device of the pods' network, at most seven letters; pods' links are called after it, so
    /// nodes on one machine need different ones
    #[arg(long, value_name = "NAME", default_value = POD_LINK)]
    pub(crate) pod_link: String,
    #[command(flatten)]
    pub(crate) shutdown: ShutdownOptions,
}

/// How long pods get when the node ends them: `landfall down`, or the host goes down.
#[derive(Args)]
pub(crate) struct ShutdownOptions {
    /// When the node shuts down, all pods together get this long, such as 30s or 2m; no pod gets more
    /// than its own grace period. Without it every pod gets its own, critical ones after all others
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) shutdown_grace: Option<Duration>,
    /// Of --shutdown-grace, the last part, for critical pods (priority 2000000000 and above)
    #[arg(long, value_name = "TIME", value_parser = time, requires = "shutdown_grace")]
    pub(crate) shutdown_grace_critical: Option<Duration>,
    /// Instead: how long pods get by priority, lowest first, such as 0=20s,1000=10s,2000000000=5s: pods
    /// from 0 to 999 end first, within 20 seconds
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
                .map_err(|why| anyhow::anyhow!("--shutdown-grace-critical: {why}"));
        }
        if self.shutdown_grace_by_priority.is_empty() {
            return Ok(node::Periods::Own);
        }
        node::Periods::by_priority(self.shutdown_grace_by_priority.clone())
            .map_err(|why| anyhow::anyhow!("--shutdown-grace-by-priority: {why}"))
    }
}

/// `90s`, `1m30s`, `2m`; a bare number is seconds.
fn time(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let written = match text.parse::<u32>() {
        Ok(seconds) => return Ok(Duration::from_secs(seconds.into())),
        Err(_) => text.parse::<jiff::SignedDuration>().map_err(|why| why.to_string())?,
    };
    // Upstream has no shorter ones either: graces are counted in whole seconds.
    Duration::try_from(written)
        .ok()
        .filter(|time| time.subsec_nanos() == 0)
        .ok_or_else(|| "write whole seconds, such as 30s or 2m".to_owned())
}

/// The same, but not none.
fn some_time(text: &str) -> Result<Duration, String> {
    let some = time(text)?;
    if some.is_zero() { Err("write at least a second".to_owned()) } else { Ok(some) }
}

fn period(text: &str) -> Result<node::Period, String> {
    let (priority, length) = text.split_once('=').ok_or("write PRIORITY=TIME, such as 0=20s")?;
    let priority = priority.trim().parse::<i32>().map_err(|why| format!("{priority}: {why}"))?;
    Ok(node::Period { priority, length: time(length)? })
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum GraceAfterRestart {
    Full,
    Kept,
}

#[derive(Args)]
pub(crate) struct NodeCommand {
    /// Where everything is kept
    #[arg(long, value_name = "DIR", value_parser = directory(), default_value = DATA_DIR)]
    pub(crate) data_dir: PathBuf,
    /// The API server to work for, as https://HOST:PORT
    #[arg(long, value_name = "URL", required_unless_present = "kubeconfig")]
    pub(crate) server: Option<String>,
    /// A join token (`landfall token create`)
    #[arg(long, value_name = "TOKEN", required_unless_present = "kubeconfig")]
    pub(crate) token: Option<String>,
    /// The cluster's certificate authority; without it the server's is taken on trust of its
    /// fingerprint in the token
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// A kubeconfig with the node's credentials, instead of --server and --token
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) node: NodeOptions,
}

#[derive(Subcommand)]
pub(crate) enum ImageCommand {
    /// Add the images of an archive: an OCI layout or a docker archive, packed or not
    Import {
        /// The archive, or the directory of an OCI layout
        file: PathBuf,
        /// The data directory of the landfall that shall have them
        #[arg(long, value_name = "DIR", value_parser = directory(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// Fetch an image from its registry, as pods that name it would
    Pull {
        /// Its name: `nginx:1.27`, `registry.example/team/app@sha256:…`
        image: String,
        /// The data directory of the landfall that shall have it
        #[arg(long, value_name = "DIR", value_parser = directory(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// Show the images that are here
    List {
        /// The data directory to look into
        #[arg(long, value_name = "DIR", value_parser = directory(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// Remove an image; of one that has several names, by name, only that name
    Rm {
        /// Its name, digest or id
        image: String,
        /// The data directory to remove it from
        #[arg(long, value_name = "DIR", value_parser = directory(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
}

#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token with which nodes can join for a day, and print the command that uses it
    Create {
        /// The data directory of the cluster
        #[arg(long, value_name = "DIR", value_parser = directory(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
}

#[derive(Args)]
pub(crate) struct TimelineCommand {
    /// The pod
    pub(crate) pod: String,
    /// Its namespace; by default the kubeconfig's
    #[arg(short, long, value_name = "NS")]
    pub(crate) namespace: Option<String>,
    /// How the cluster is reached; by default $KUBECONFIG, ~/.kube/config, or that of `landfall up`
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Instead: the data directory of the landfall whose kubeconfig is used
    #[arg(long, value_name = "DIR", value_parser = directory(), conflicts_with = "kubeconfig")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Of several pods that had this name, the one whose uid begins like this
    #[arg(long, value_name = "UID")]
    pub(crate) uid: Option<String>,
    /// Show steps as they happen, until the pod has ended; waits for the ending if there is none yet
    #[arg(short, long)]
    pub(crate) follow: bool,
}

#[derive(Args)]
pub(crate) struct ServerOptions {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Only answer requests: do not keep up the objects that controllers make
    #[arg(long)]
    pub(crate) no_controllers: bool,
}

#[derive(Args)]
pub(crate) struct Common {
    /// Where everything is kept
    #[arg(long, value_name = "DIR", value_parser = directory(), default_value = DATA_DIR)]
    pub(crate) data_dir: PathBuf,
    /// The address and port to answer on; port 0 takes any free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:6443")]
    pub(crate) listen: SocketAddr,
    /// Where objects are stored: `embedded` (a file in the data directory) or
    /// `etcd://HOST:PORT[,HOST:PORT…]`. Several servers may share one etcd: each has a data directory
    /// of its own with a copy of the first one's `pki` directory in it, and one of them leads
    #[arg(long, value_name = "STORE", default_value = "embedded")]
    pub(crate) store: String,
    /// Where pods get their addresses from; each node gets a /24 of it
    #[arg(long, value_name = "CIDR", default_value = "10.244.0.0/16")]
    pub(crate) pod_cidr: String,
    /// A node that gives no sign of life for so long is NotReady, and its pods are evicted after what
    /// they tolerate
    #[arg(long, value_name = "TIME", value_parser = some_time, default_value = "50s")]
    pub(crate) node_monitor_grace_period: Duration,
    /// How many finished pods may stay; the oldest go first. 0 lets all of them stay
    #[arg(long, value_name = "N", default_value_t = controllers::FINISHED_MAX)]
    pub(crate) terminated_pod_gc_threshold: usize,
    /// Do not decide where pods run: another scheduler does
    #[arg(long)]
    pub(crate) no_scheduler: bool,
    /// How many records of endings (`kubectl get terminations`) are kept, for a day at most
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) keep_terminations: usize,
    /// Write one line of JSON per request to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_log: Option<PathBuf>,
}

impl Common {
    pub(crate) fn controllers(&self) -> anyhow::Result<controllers::Options> {
        let pod_cidrs = controllers::Range::new(&self.pod_cidr, 24)
            .map_err(|why| anyhow::anyhow!("--pod-cidr: {why}"))?;
        let most = self.terminated_pod_gc_threshold;
        let finished_pods_max = (most > 0).then_some(most);
        Ok(controllers::Options {
            pod_cidrs,
            finished_pods_max,
            silent_nodes_after: self.node_monitor_grace_period,
            identity: self.identity(),
            ..Default::default()
        })
    }

    /// If there may be several servers: who this one is (C-194). Whose store is its own is alone.
    fn identity(&self) -> Option<String> {
        let shared = self.store != "embedded";
        shared.then(|| format!("{}_{}", node::default_name(), clock::uuid()))
    }

    pub(crate) fn store_choice(&self) -> anyhow::Result<StoreChoice> {
        if self.store == "embedded" {
            return Ok(StoreChoice::Embedded);
        }
        let hosts = self.store.strip_prefix("etcd://").with_context(|| {
            format!("--store {:?} is neither `embedded` nor `etcd://HOST:PORT`", self.store)
        })?;
        let endpoints: Vec<String> = hosts
            .split(',')
            .map(str::trim)
            .filter(|host| !host.is_empty())
            .map(|host| format!("http://{host}"))
            .collect();
        if endpoints.is_empty() {
            bail!("--store {:?} names no host: write etcd://HOST:PORT", self.store);
        }
        Ok(StoreChoice::Etcd(endpoints))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn periods(args: &[&str]) -> Result<node::Periods, String> {
        let line = ["landfall", "up"].iter().chain(args);
        let cli = Cli::try_parse_from(line).map_err(|error| error.to_string())?;
        let Command::Up(options) = cli.command else { unreachable!("it says up") };
        options.node.shutdown.periods().map_err(|error| error.to_string())
    }

    #[test]
    fn a_data_directory_is_said_in_full_by_every_command_that_takes_one() {
        let wanted = std::env::current_dir().unwrap().join("here");
        for words in [
            &["up"][..],
            &["server"],
            &["node", "--server", "s", "--token", "t"],
            &["stop"],
            &["down"],
            &["token", "create"],
            &["image", "list"],
            &["image", "rm", "i"],
            &["image", "pull", "i"],
            &["image", "import", "f"],
        ] {
            let line = ["landfall"].iter().chain(words).chain(&["--data-dir", "here"]);
            let data_dir = match Cli::try_parse_from(line).unwrap().command {
                Command::Up(options) => options.common.data_dir,
                Command::Server(options) => options.common.data_dir,
                Command::Node(options) => options.data_dir,
                Command::Stop { data_dir } | Command::Down { data_dir } => data_dir,
                Command::Token(TokenCommand::Create { data_dir })
                | Command::Image(
                    ImageCommand::List { data_dir }
                    | ImageCommand::Rm { data_dir, .. }
                    | ImageCommand::Pull { data_dir, .. }
                    | ImageCommand::Import { data_dir, .. },
                ) => data_dir,
                _ => unreachable!("it has no data directory"),
            };
            assert_eq!(data_dir, wanted, "{words:?}");
        }
    }

    fn table(rows: &[(i32, u64)]) -> node::Periods {
        let period = |(priority, length): &(i32, u64)| node::Period {
            priority: *priority,
            length: Duration::from_secs(*length),
        };
        node::Periods::by_priority(rows.iter().map(period).collect()).unwrap()
    }

    #[test]
    fn t_node_87_periods_of_a_shutdown_can_be_written_in_two_ways() {
        assert_eq!(periods(&[]), Ok(node::Periods::Own));
        let two = periods(&["--shutdown-grace", "1m", "--shutdown-grace-critical=10"]);
        assert_eq!(two, Ok(table(&[(0, 50), (2_000_000_000, 10)])));
        let list = periods(&["--shutdown-grace-by-priority", "1000=10s,-5=1m30s"]);
        assert_eq!(list, Ok(table(&[(-5, 90), (1000, 10)])));
    }

    #[test]
    fn periods_that_mean_nothing_are_refused() {
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
            assert!(periods(wrong).is_err(), "{wrong:?} was taken");
        }
    }
}
