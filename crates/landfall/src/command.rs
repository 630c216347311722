//! The command line: every command, its options and its help.

mod drill;
mod node;
mod server;
mod values;

pub(crate) use drill::{DrillCommand, Format as DrillFormat};
pub(crate) use node::{Drain, GraceAfterRestart, NodeCommand, NodeOptions, POD_LINK};
pub(crate) use server::{Common, ServerOptions};

use ::server::StoreChoice;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use values::data_dir;

/// The data directory if --data-dir is not given.
pub(crate) const DATA_DIR: &str = "/var/lib/landfall";

/// Kubernetes in one file.
///
/// Start a cluster and use it with any kubectl:
///
///     sudo landfall up
///     kubectl run hello --image=busybox:1 -- sleep 1000
///     kubectl delete pod hello
///     landfall timeline hello
///
/// `landfall up` prints which KUBECONFIG to export. All data is in one directory (--data-dir).
///
/// Ctrl-C, SIGTERM and `landfall stop` stop landfall and leave its pods running; the next start finds
/// them again. `landfall down` terminates the pods too.
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
    /// Prints a line that starts with `ready` when the API server answers and the node is Ready. The
    /// administrator's kubeconfig is DIR/kubeconfig; DIR/admin.token contains a bearer token with the same
    /// rights. If you start it with sudo, you find a copy of the kubeconfig in ~/.kube/landfall.yaml.
    ///
    /// Needs root, because it runs containers. Without root, use `landfall server`.
    Up(UpOptions),
    /// Stop landfall and leave its pods running, for example to upgrade it
    ///
    /// The same as SIGTERM, Ctrl-C or `systemctl stop`. The next start finds the pods again: the same
    /// containers, no restart counted, no log line and no exit code lost. Returns when landfall has exited.
    Stop {
        /// Data directory of the landfall to stop
        #[arg(long, value_name = "DIR", value_parser = data_dir(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// Terminate all pods, each within its grace period, and stop landfall
    ///
    /// Every pod gets its preStop hook, its stop signal and its terminationGracePeriodSeconds; critical
    /// pods are terminated after all others. (--shutdown-grace and similar options of `landfall up` change
    /// this.) At the end it lists pods that had to be killed or got less time, and what to change. Press
    /// Ctrl-C to hurry: pods that are left get two seconds.
    ///
    /// All objects stay in the data directory. Terminated pods are Failed with the reason Terminated, and
    /// the next `landfall up` finds them.
    ///
    /// If landfall is not running, only the processes are left: each pod gets its stop signal and two
    /// seconds, but no preStop hook. Start landfall first to terminate pods gracefully.
    Down {
        /// Data directory of the landfall to stop
        #[arg(long, value_name = "DIR", value_parser = data_dir(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// Print the administrator's kubeconfig, or add it to yours
    ///
    ///     sudo landfall kubeconfig > landfall.yaml     # print it
    ///     sudo landfall kubeconfig --merge             # add a context to ~/.kube/config
    ///
    /// --merge adds a cluster, a user and a context and changes nothing else. The current context stays
    /// what it is, if there is one. A file that cannot be parsed is left as it is. With sudo, the file of
    /// the user who called sudo is changed.
    #[command(verbatim_doc_comment)]
    Kubeconfig(KubeconfigCommand),
    /// Write a backup of a running cluster into one file
    ///
    /// The file contains all objects as they were at one moment, the cluster's certificate authority, the
    /// key that signs service account tokens, and the administrator's token. It does not contain images,
    /// volumes or container logs. It is verified after it was written, and appears under its name only
    /// when it is complete. FILE must not exist yet.
    ///
    /// Users who can read the file can read every Secret and are administrators of the cluster. Only its
    /// owner can read it; encrypt it before it leaves the machine, for example with `age` or `gpg`.
    /// Backups are made on the machine of the API server only, by users who can read its data directory.
    /// No request over the network returns one.
    ///
    ///     sudo landfall backup /root/landfall-$(date +%F).backup
    ///     sudo landfall restore --check /root/landfall-2026-01-31.backup
    #[command(verbatim_doc_comment)]
    Backup {
        /// File to write
        file: PathBuf,
        /// Data directory of the running landfall
        #[arg(long, value_name = "DIR", value_parser = data_dir(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// Restore a cluster from a backup into an empty data directory
    ///
    /// The file is verified first: if it is damaged, incomplete or from a newer landfall, nothing changes.
    /// An existing cluster is never overwritten: the data directory must be empty or not exist, and so
    /// must the etcd, if --store names one. A backup of an embedded store can be restored into etcd, and
    /// the other way round.
    ///
    /// The result is the same cluster: kubeconfigs, tokens and nodes that joined keep working. Changes
    /// made after the backup are lost. Every object gets a new resourceVersion, greater than any that the
    /// cluster has given out, so that clients notice and list again. Stop the old cluster first: two
    /// clusters with one identity would both tell the nodes what to run.
    ///
    ///     sudo landfall restore /root/landfall-2026-01-31.backup
    ///     sudo landfall up
    #[command(verbatim_doc_comment)]
    Restore(RestoreOptions),
    /// Run the API server, controllers and scheduler without a node; needs no root
    Server(ServerOptions),
    /// Run pods for an API server on another machine
    ///
    /// `landfall token create` on the machine of the API server prints the whole command.
    Node(NodeCommand),
    /// Import, pull, list and remove images of this node
    #[command(subcommand)]
    Image(ImageCommand),
    /// Create join tokens for nodes, replace the administrator's token
    #[command(subcommand)]
    Token(TokenCommand),
    /// Show how a pod terminated: who asked, every step, and how long each took
    ///
    /// Reads the cluster's termination records (`kubectl get terminations`) and draws the newest one of
    /// this pod: a bar for every container and a line for every step, with the time since the request.
    /// Records are kept for a day after the pod is gone.
    ///
    ///     landfall timeline web-1
    ///     landfall timeline web-1 -n shop --follow     # then: kubectl delete pod web-1 -n shop
    #[command(verbatim_doc_comment)]
    Timeline(TimelineCommand),
    /// Restart a workload under load: which requests are lost, why, and what to change
    ///
    /// Sends requests to the workload's Service at fixed times, restarts its pods, and counts the requests
    /// that get no good answer. Each loss is explained: refused, reset, cut by SIGKILL, timeout, and at which
    /// step of a pod's termination. Then it varies the preStop sleep and the grace period to find the
    /// smallest values that lose nothing, and prints the patch.
    ///
    ///     landfall drill deploy/web                              # measure, search, recommend
    ///     landfall drill deploy/web --no-search --restarts 3     # only measure
    ///     landfall drill deploy/web --connections new,keepalive,slow --slow-path /report
    ///     landfall drill deploy/web --proxy-delay 400ms          # with slow proxies (landfall clusters)
    ///     landfall drill deploy/web --yes --junit drill.xml --html drill.html   # in CI
    ///     landfall drill deploy/web --apply                      # and set the recommended values
    ///     landfall drill deploy/web --restore                    # after a drill was killed
    ///     landfall drill --forecast -f web.yaml                  # peak pods, duration, kill times
    ///
    /// It restarts pods, so it says what it will do and asks first (--yes answers). At the end, on errors and
    /// on Ctrl-C the workload gets its own values back. It works with any Kubernetes cluster; on landfall
    /// the steps of each termination are exact.
    ///
    /// Exit codes: 0 the workload as it is reaches the target (or --apply has set values that do), 1 it
    /// misses the target, 2 it could not be measured.
    #[command(verbatim_doc_comment)]
    Drill(Box<DrillCommand>),
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
    /// Add the context `landfall` to your ~/.kube/config, as `landfall kubeconfig --merge` does
    #[arg(long)]
    pub(crate) merge_kubeconfig: bool,
    #[command(flatten)]
    pub(crate) node: NodeOptions,
}

#[derive(Args)]
pub(crate) struct KubeconfigCommand {
    /// Add it to your ~/.kube/config instead of printing it
    #[arg(long)]
    pub(crate) merge: bool,
    /// Name of the context, cluster and user to add
    #[arg(long, value_name = "NAME", default_value = crate::kubeconfig::CONTEXT, requires = "merge")]
    pub(crate) context: String,
    /// Data directory of the cluster
    #[arg(long, value_name = "DIR", value_parser = data_dir(), default_value = DATA_DIR)]
    pub(crate) data_dir: PathBuf,
}

#[derive(Args)]
pub(crate) struct RestoreOptions {
    /// The backup
    pub(crate) file: PathBuf,
    /// Only verify the file and print a summary
    #[arg(long)]
    pub(crate) check: bool,
    /// Data directory to restore into; it must be empty or not exist
    #[arg(long, value_name = "DIR", value_parser = data_dir(), default_value = DATA_DIR)]
    pub(crate) data_dir: PathBuf,
    /// Where to store objects: `embedded` (a file in the data directory) or `etcd://HOST:PORT[,HOST:PORT…]`.
    /// Use the same value for `landfall up` afterwards
    #[arg(long, value_name = "STORE", default_value = "embedded")]
    pub(crate) store: String,
}

impl RestoreOptions {
    pub(crate) fn store_choice(&self) -> anyhow::Result<StoreChoice> {
        values::store_choice(&self.store)
    }
}

#[derive(Subcommand)]
pub(crate) enum ImageCommand {
    /// Import the images of an archive (OCI layout or docker archive, compressed or not)
    Import {
        /// The archive, or the directory of an OCI layout
        file: PathBuf,
        /// Data directory of the landfall that gets the images; created if it does not exist
        #[arg(long, value_name = "DIR", value_parser = data_dir(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// Pull an image from its registry, without credentials
    ///
    /// Mirrors and additional certificate authorities are configured in DIR/images/registries.json
    /// (see docs/IMAGES.md).
    Pull {
        /// Name of the image, such as `nginx:1.27` or `registry.example/team/app@sha256:…`
        image: String,
        /// Data directory of the landfall that gets the image; created if it does not exist
        #[arg(long, value_name = "DIR", value_parser = data_dir(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// List images
    List {
        /// Data directory of the landfall
        #[arg(long, value_name = "DIR", value_parser = data_dir(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// Remove an image; if it has several names and you give one of them, only that name
    Rm {
        /// Name, digest or ID of the image
        image: String,
        /// Data directory of the landfall
        #[arg(long, value_name = "DIR", value_parser = data_dir(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
}

#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token with which nodes can join for a day, and print the command that uses it
    Create {
        /// Data directory of the cluster
        #[arg(long, value_name = "DIR", value_parser = data_dir(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
    /// Replace the administrator's token (DIR/admin.token)
    ///
    /// A running landfall accepts only the new one from then on, without a restart.
    Rotate {
        /// Data directory of the cluster
        #[arg(long, value_name = "DIR", value_parser = data_dir(), default_value = DATA_DIR)]
        data_dir: PathBuf,
    },
}

#[derive(Args)]
pub(crate) struct TimelineCommand {
    /// Name of the pod
    pub(crate) pod: String,
    /// Namespace of the pod [default: the kubeconfig's]
    #[arg(short, long, value_name = "NS")]
    pub(crate) namespace: Option<String>,
    /// Kubeconfig of the cluster [default: $KUBECONFIG, ~/.kube/config, or the one of `landfall up`]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Use the kubeconfig in this data directory
    #[arg(long, value_name = "DIR", value_parser = data_dir(), conflicts_with = "kubeconfig")]
    pub(crate) data_dir: Option<PathBuf>,
    /// If several pods had this name: the one whose UID starts with this
    #[arg(long, value_name = "UID")]
    pub(crate) uid: Option<String>,
    /// Print steps as they happen until the pod is gone; waits for the termination to begin
    #[arg(short, long)]
    pub(crate) follow: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_makes_its_data_directory_absolute() {
        let expected = std::env::current_dir().unwrap().join("here");
        for words in [
            &["up"][..],
            &["server"],
            &["node", "--server", "s", "--token", "t"],
            &["stop"],
            &["down"],
            &["kubeconfig"],
            &["backup", "f"],
            &["restore", "f"],
            &["token", "create"],
            &["token", "rotate"],
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
                Command::Kubeconfig(options) => options.data_dir,
                Command::Stop { data_dir }
                | Command::Down { data_dir }
                | Command::Backup { data_dir, .. } => data_dir,
                Command::Restore(options) => options.data_dir,
                Command::Token(
                    TokenCommand::Create { data_dir } | TokenCommand::Rotate { data_dir },
                )
                | Command::Image(
                    ImageCommand::List { data_dir }
                    | ImageCommand::Rm { data_dir, .. }
                    | ImageCommand::Pull { data_dir, .. }
                    | ImageCommand::Import { data_dir, .. },
                ) => data_dir,
                _ => unreachable!("this command has no data directory"),
            };
            assert_eq!(data_dir, expected, "{words:?}");
        }
    }
}
