//! The parameters of requests, in the path and in the query.

/// One parameter. They are few, so they are all written down here.
#[derive(Debug, PartialEq)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) place: Place,
    pub(super) ty: &'static str,
    pub(super) about: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Place {
    Path,
    Query,
}

const fn path(name: &'static str, about: &'static str) -> Parameter {
    Parameter { name, place: Place::Path, ty: "string", about }
}

const fn query(name: &'static str, ty: &'static str, about: &'static str) -> Parameter {
    Parameter { name, place: Place::Query, ty, about }
}

pub(super) static NAME: Parameter = path("name", "The name of the object.");
pub(super) static NAMESPACE: Parameter = path("namespace", "The namespace of the object.");
pub(super) static PATH: Parameter = path("path", "The path of the request that is passed on.");
pub(super) static PRETTY: Parameter =
    query("pretty", "string", "If 'true', the answer is indented.");
pub(super) static FORCE: Parameter = query(
    "force",
    "boolean",
    "Apply only: take over fields that other managers own. Not allowed with other patches.",
);
static DRY_RUN: Parameter = query(
    "dryRun",
    "string",
    "'All': do everything but store the result. No other value is allowed.",
);
static FIELD_MANAGER: Parameter = query(
    "fieldManager",
    "string",
    "Who makes this change, for managedFields. At most 128 printable characters.",
);
static FIELD_VALIDATION: Parameter = query(
    "fieldValidation",
    "string",
    "What to do about unknown and repeated fields: 'Ignore' drops them, 'Warn' drops them and \
     sends a warning (the default), 'Strict' refuses the request.",
);
static GRACE_PERIOD: Parameter = query(
    "gracePeriodSeconds",
    "integer",
    "Seconds until the object is deleted; 0 deletes now. Each kind has its own default.",
);
static ORPHAN_DEPENDENTS: Parameter = query(
    "orphanDependents",
    "boolean",
    "Deprecated: use propagationPolicy. Whether dependents are left behind.",
);
static PROPAGATION: Parameter = query(
    "propagationPolicy",
    "string",
    "What happens to dependents: 'Orphan' leaves them, 'Background' deletes them afterwards, \
     'Foreground' deletes them first.",
);
static IGNORE_READ_ERROR: Parameter = query(
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "boolean",
    "Delete the object even if it cannot be read from the store.",
);
static CONTINUE: Parameter =
    query("continue", "string", "Where to go on, from the metadata of the previous part.");
static FIELD_SELECTOR: Parameter =
    query("fieldSelector", "string", "Only objects whose fields have these values.");
static LABEL_SELECTOR: Parameter =
    query("labelSelector", "string", "Only objects whose labels match.");
static LIMIT: Parameter = query("limit", "integer", "At most this many objects per answer.");
static RESOURCE_VERSION: Parameter =
    query("resourceVersion", "string", "How fresh the answer must be.");
static RESOURCE_VERSION_MATCH: Parameter = query(
    "resourceVersionMatch",
    "string",
    "How resourceVersion is meant in a list: 'Exact' or 'NotOlderThan'.",
);
static SEND_INITIAL: Parameter = query(
    "sendInitialEvents",
    "boolean",
    "Watches only: begin with the objects that are there, followed by a bookmark.",
);
static TIMEOUT: Parameter =
    query("timeoutSeconds", "integer", "How long a list or a watch may take.");
static BOOKMARKS: Parameter = query(
    "allowWatchBookmarks",
    "boolean",
    "Watches only: send events of type BOOKMARK from time to time.",
);
static WATCH_PARAMETER: Parameter =
    query("watch", "boolean", "Send changes as they happen instead of a list.");

pub(super) static WRITE: &[&Parameter] = &[&DRY_RUN, &FIELD_MANAGER, &FIELD_VALIDATION];
pub(super) static DELETE: &[&Parameter] =
    &[&DRY_RUN, &GRACE_PERIOD, &IGNORE_READ_ERROR, &ORPHAN_DEPENDENTS, &PROPAGATION];
pub(super) static LIST: &[&Parameter] = &[
    &CONTINUE,
    &FIELD_SELECTOR,
    &LABEL_SELECTOR,
    &LIMIT,
    &RESOURCE_VERSION,
    &RESOURCE_VERSION_MATCH,
    &SEND_INITIAL,
    &TIMEOUT,
];
pub(super) static WATCH: &[&Parameter] = &[&BOOKMARKS, &WATCH_PARAMETER];

static CONTAINER: Parameter =
    query("container", "string", "Which container; not needed if there is only one.");
pub(super) static LOG: &[&Parameter] = &[
    &CONTAINER,
    &query("follow", "boolean", "Go on sending lines as they are written."),
    &query(
        "insecureSkipTLSVerifyBackend",
        "boolean",
        "Do not check the certificate of the node that has the log.",
    ),
    &query("limitBytes", "integer", "Stop after this many bytes."),
    &query("previous", "boolean", "The log of the container's previous run."),
    &query("sinceSeconds", "integer", "Only lines of the last so many seconds."),
    &query("sinceTime", "string", "Only lines written after this time (RFC 3339)."),
    &query("stream", "string", "Which output: 'All', 'Stdout' or 'Stderr'."),
    &query("tailLines", "integer", "Only so many lines from the end."),
    &query("timestamps", "boolean", "Put the time before each line."),
];

static STDIN: Parameter = query("stdin", "boolean", "Whether to send standard input.");
static STDOUT: Parameter = query("stdout", "boolean", "Whether to receive standard output.");
static STDERR: Parameter = query("stderr", "boolean", "Whether to receive standard error.");
static TTY: Parameter = query("tty", "boolean", "Whether to use a terminal.");

/// The parameters of a subresource that forwards a connection.
pub(super) fn connect(subresource: &str) -> &'static [&'static Parameter] {
    static ATTACH: &[&Parameter] = &[&CONTAINER, &STDERR, &STDIN, &STDOUT, &TTY];
    static COMMAND: Parameter =
        query("command", "string", "The command and, repeated, each of its arguments.");
    static EXEC: &[&Parameter] = &[&COMMAND, &CONTAINER, &STDERR, &STDIN, &STDOUT, &TTY];
    static PORTS: &[&Parameter] =
        &[&query("ports", "integer", "The ports to forward, for connections by WebSocket.")];
    static PROXY: &[&Parameter] = &[&query("path", "string", "The path to request there.")];
    match subresource {
        "attach" => ATTACH,
        "exec" => EXEC,
        "portforward" => PORTS,
        _ => PROXY,
    }
}
