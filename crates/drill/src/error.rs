//! Why a drill could not measure. Each message says what to do next.

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error(
        "{0:?} names no workload: write KIND/NAME, such as deploy/web or statefulset/db. Other kinds are not restarted \
         by a drill"
    )]
    UnknownKind(String),
    #[error(
        "there is no {kind} {name} in namespace {namespace}; `kubectl get {plural} -A` lists all"
    )]
    NoWorkload { kind: &'static str, plural: &'static str, namespace: String, name: String },
    #[error("{0} was deleted during the drill. There is nothing left to restore")]
    Deleted(String),
    #[error("{what} cannot be restarted by a drill: {why}")]
    NotRestartable { what: String, why: String },
    #[error(
        "no Service in namespace {namespace} selects the pods of {workload}. Create one, name it with --service, or give \
         the address with --url"
    )]
    NoService { namespace: String, workload: String },
    #[error("Service {service} has no TCP port{wanted}; it has {ports}. Choose one with --port")]
    NoPort { service: String, wanted: String, ports: String },
    #[error(
        "Service {service} has no ready endpoint, so every request would fail. Look at `kubectl get pods` and their \
         readiness probes first"
    )]
    NoEndpoints { service: String },
    #[error(
        "no address of Service {service} answers from this machine. Tried {tried}. Run the drill on a node, make the Service \
         a NodePort or LoadBalancer, or name an address with --url"
    )]
    Unreachable { service: String, tried: String },
    #[error("cannot use --url {url:?}: {why}")]
    Url { url: String, why: String },
    #[error(
        "{path} does not answer properly before the drill: {why}. Choose another path with --path or --slow-path"
    )]
    BadAnswer { path: String, why: String },
    #[error(
        "requests fail without any restart: {failed} of {total} ({classes}). Fix that first; a drill could not tell these \
         losses from those of a restart"
    )]
    Unhealthy { failed: usize, total: usize, classes: String },
    #[error(
        "{workload} is being rolled out ({state}). Wait for `kubectl rollout status`, then start the drill again"
    )]
    Busy { workload: String, state: String },
    #[error("the rollout of {workload} does not proceed: {why}")]
    RolloutStuck { workload: String, why: String },
    #[error("the rollout of {workload} was not complete within {seconds} s: {state}")]
    RolloutTimeout { workload: String, seconds: u64, state: String },
    #[error(
        "someone else changed the pod template of {0} during the drill. The drill has stopped and put back its own changes"
    )]
    ChangedByOthers(String),
    #[error(
        "this machine is too busy to measure: {why}, in {attempts} runs. Stop other work on it, lower --rate, or run the drill \
         on another machine"
    )]
    Saturated { why: String, attempts: usize },
    #[error("interrupted")]
    Interrupted,
    #[error("{0} is not being drilled: it has no annotation {annotation}", annotation = crate::restore::ANNOTATION)]
    NothingToRestore(String),
    #[error("the annotation {annotation} of {workload} cannot be read: {why}. Remove it and set preStop hook and grace period by hand",
        annotation = crate::restore::ANNOTATION)]
    BadRestoreRecord { workload: String, why: String },
    #[error("{0}")]
    Unsupported(String),
    #[error("the manifest cannot be used: {0}")]
    Manifest(String),
}

/// The error and its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
