//! Workloads of apps and batch, and pod templates.

use super::column::{AGE, NAME, Printed, boolean, integer, text};
use super::duration;
use super::subject::{NONE, Subject};
use crate::value::ValueExt as _;
use jiff::Timestamp;
use serde_json::Value;

const TEMPLATE: &str = "spec.template.spec";

const CONTAINERS: Printed =
    text("Containers", "The names of the containers.", |o| o.container_names(TEMPLATE).into())
        .wide();
const IMAGES: Printed =
    text("Images", "The images of the containers.", |o| o.images(TEMPLATE).into()).wide();
const SELECTOR: Printed =
    text("Selector", "Which pods belong to it.", |o| o.selector("spec.selector").into()).wide();

pub(super) const POD_TEMPLATE: &[Printed] = &[
    NAME,
    text("Containers", "The names of the containers.", |o| {
        o.container_names("template.spec").into()
    }),
    text("Images", "The images of the containers.", |o| o.images("template.spec").into()),
    text("Pod Labels", "The labels its pods get.", |o| o.labels("template.metadata.labels").into()),
];

const DESIRED: Printed =
    integer("Desired", "How many pods are wanted.", |o| o.int("spec.replicas").into());
const CURRENT: Printed =
    integer("Current", "How many pods there are.", |o| o.int("status.replicas").into());
const READY: Printed =
    integer("Ready", "How many pods are ready.", |o| o.int("status.readyReplicas").into());

pub(super) const REPLICATION_CONTROLLER: &[Printed] = &[
    NAME,
    DESIRED,
    CURRENT,
    READY,
    AGE,
    CONTAINERS,
    IMAGES,
    text("Selector", "Which pods belong to it.", |o| o.labels("spec.selector").into()).wide(),
];

pub(super) const REPLICA_SET: &[Printed] =
    &[NAME, DESIRED, CURRENT, READY, AGE, CONTAINERS, IMAGES, SELECTOR];

const READY_OF_DESIRED: Printed = text("Ready", "How many of the wanted pods are ready.", |o| {
    format!("{}/{}", o.int("status.readyReplicas"), o.int("spec.replicas")).into()
});

pub(super) const DEPLOYMENT: &[Printed] = &[
    NAME,
    READY_OF_DESIRED,
    text("Up-to-date", "How many pods have the newest template.", |o| {
        o.int("status.updatedReplicas").into()
    }),
    text("Available", "How many pods have been ready for long enough.", |o| {
        o.int("status.availableReplicas").into()
    }),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub(super) const STATEFUL_SET: &[Printed] = &[NAME, READY_OF_DESIRED, AGE, CONTAINERS, IMAGES];

pub(super) const DAEMON_SET: &[Printed] = &[
    NAME,
    integer("Desired", "How many nodes should run its pod.", |o| {
        o.int("status.desiredNumberScheduled").into()
    }),
    integer("Current", "How many of those nodes run it.", |o| {
        o.int("status.currentNumberScheduled").into()
    }),
    integer("Ready", "On how many nodes it is ready.", |o| o.int("status.numberReady").into()),
    integer("Up-to-date", "How many nodes run the newest template.", |o| {
        o.int("status.updatedNumberScheduled").into()
    }),
    integer("Available", "On how many nodes it has been ready for long enough.", |o| {
        o.int("status.numberAvailable").into()
    }),
    text("Node Selector", "Which nodes are meant.", |o| {
        o.labels("spec.template.spec.nodeSelector").into()
    }),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub(super) const JOB: &[Printed] = &[
    NAME,
    text("Status", "How far the job has come.", |o| job_status(o).into()),
    text("Completions", "How many pods have succeeded, of how many.", |o| completions(o).into()),
    text("Duration", "How long it took, or has taken so far.", |o| job_duration(o).into()),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

fn job_status(o: &Subject) -> &'static str {
    let is = |condition| o.has_true_condition(condition);
    match () {
        () if is("Complete") => "Complete",
        () if is("Failed") => "Failed",
        () if o.is_deleting() => "Terminating",
        () if is("Suspended") => "Suspended",
        () if is("FailureTarget") => "FailureTarget",
        () if is("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

fn completions(o: &Subject) -> String {
    let succeeded = o.int("status.succeeded");
    if o.get("spec.completions").is_some() {
        return format!("{succeeded}/{}", o.int("spec.completions"));
    }
    match o.int("spec.parallelism") {
        several @ 2.. => format!("{succeeded}/1 of {several}"),
        _ => format!("{succeeded}/1"),
    }
}

fn job_duration(o: &Subject) -> String {
    let time = |path| o.text(path).parse::<Timestamp>().ok();
    let Some(start) = time("status.startTime") else {
        return String::new();
    };
    let end = time("status.completionTime").unwrap_or(o.now);
    duration::human(end.duration_since(start))
}

const JOB_TEMPLATE: &str = "spec.jobTemplate.spec.template.spec";

pub(super) const CRON_JOB: &[Printed] = &[
    NAME,
    text("Schedule", "When it runs, in cron's notation.", |o| o.text("spec.schedule").into()),
    text("Timezone", "Whose clock the schedule follows.", |o| {
        o.text_or("spec.timeZone", NONE).into()
    }),
    boolean("Suspend", "Whether new runs are held back.", |o| {
        if o.flag("spec.suspend") { "True" } else { "False" }.into()
    }),
    integer("Active", "How many runs are under way.", |o| o.count("status.active").into()),
    text("Last Schedule", "How long ago it last ran.", |o| {
        match o.get("status.lastScheduleTime") {
            Some(_) => o.age("status.lastScheduleTime").into(),
            None => NONE.into(),
        }
    }),
    AGE,
    text("Containers", "The names of the containers.", |o| o.container_names(JOB_TEMPLATE).into())
        .wide(),
    text("Images", "The images of the containers.", |o| o.images(JOB_TEMPLATE).into()).wide(),
    text("Selector", "Which pods belong to its jobs.", |o| {
        o.selector("spec.jobTemplate.spec.selector").into()
    })
    .wide(),
];

pub(super) const CONTROLLER_REVISION: &[Printed] = &[
    NAME,
    text("Controller", "Whose history this is.", |o| controller(o).into()),
    text("Revision", "Its number in that history.", |o| o.int("revision").into()),
    AGE,
];

/// `statefulset.apps/web`
fn controller(o: &Subject) -> String {
    let owners = o.list("metadata.ownerReferences");
    let Some(owner) = owners.iter().find(|owner| owner["controller"] == Value::Bool(true)) else {
        return NONE.to_owned();
    };
    let kind = owner.text(&["kind"]).to_lowercase();
    let name = owner.text(&["name"]);
    match owner.text(&["apiVersion"]).split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{name}"),
        None => format!("{kind}/{name}"),
    }
}
