//! Volumes, claims, storage classes and CSI drivers.

use super::column::{AGE, NAME, Printed, boolean, integer, name, text};
use super::subject::{NONE, Subject, UNSET, join, or, plain};
use crate::value::ValueExt as _;
use serde_json::Value;

const STATUS: Printed = text("Status", "Whether it is bound.", |o| {
    if o.is_deleting() { "Terminating" } else { o.text("status.phase") }.into()
});
const CLASS: Printed = text("StorageClass", "Its storage class.", |o| {
    or(o.annotation("volume.beta.kubernetes.io/storage-class"), o.text("spec.storageClassName"))
        .into()
});
const ATTRIBUTES_CLASS: Printed =
    text("VolumeAttributesClass", "Its class of changeable attributes.", |o| {
        o.text_or("spec.volumeAttributesClassName", UNSET).into()
    });
const MODE: Printed = text("VolumeMode", "A file system, or a raw block device.", |o| {
    o.text_or("spec.volumeMode", UNSET).into()
})
.wide();

pub(super) const PERSISTENT_VOLUME: &[Printed] = &[
    NAME,
    text("Capacity", "How much it holds.", |o| capacity(o, "spec").into()),
    text("Access Modes", "How it can be mounted.", |o| access_modes(o, "spec").into()),
    text("Reclaim Policy", "What becomes of it when its claim is gone.", |o| {
        o.text("spec.persistentVolumeReclaimPolicy").into()
    }),
    STATUS,
    text("Claim", "Who has claimed it.", |o| match o.get("spec.claimRef") {
        Some(claim) => format!("{}/{}", claim.text(&["namespace"]), claim.text(&["name"])).into(),
        None => "".into(),
    }),
    CLASS,
    ATTRIBUTES_CLASS,
    text("Reason", "Why it is in this state.", |o| o.text("status.reason").into()),
    AGE,
    MODE,
];

pub(super) const PERSISTENT_VOLUME_CLAIM: &[Printed] = &[
    NAME,
    STATUS,
    text("Volume", "The volume it is bound to.", |o| o.text("spec.volumeName").into()),
    text("Capacity", "How much that volume holds.", |o| bound(o, capacity).into()),
    text("Access Modes", "How that volume can be mounted.", |o| bound(o, access_modes).into()),
    CLASS,
    ATTRIBUTES_CLASS,
    AGE,
    MODE,
];

/// The printed status of a bound claim; empty if it is not bound.
fn bound(o: &Subject, print: fn(&Subject, &str) -> String) -> String {
    if o.text("spec.volumeName").is_empty() { String::new() } else { print(o, "status") }
}

fn capacity(o: &Subject, part: &str) -> String {
    o.get(&format!("{part}.capacity.storage")).map_or_else(|| "0".to_owned(), plain)
}

/// Printed in this order without duplicates, whatever the order in the object.
const ACCESS_MODES: &[(&str, &str)] = &[
    ("ReadWriteOnce", "RWO"),
    ("ReadOnlyMany", "ROX"),
    ("ReadWriteMany", "RWX"),
    ("ReadWriteOncePod", "RWOP"),
];

fn access_modes(o: &Subject, part: &str) -> String {
    let modes = o.list(&format!("{part}.accessModes"));
    let given = ACCESS_MODES.iter().filter(|(mode, _)| modes.iter().any(|given| given == mode));
    join(given.map(|(_, short)| short), ",")
}

pub(super) const STORAGE_CLASS: &[Printed] = &[
    name(|o| {
        let is_default = [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ]
        .iter()
        .any(|key| o.annotation(key) == "true");
        let mark = if is_default { " (default)" } else { "" };
        format!("{}{mark}", o.text("metadata.name")).into()
    }),
    text("Provisioner", "Who makes its volumes.", |o| o.text("provisioner").into()),
    text("ReclaimPolicy", "What becomes of a volume when its claim is gone.", |o| {
        o.text_or("reclaimPolicy", "Delete").into()
    }),
    text("VolumeBindingMode", "When a volume is chosen.", |o| {
        o.text_or("volumeBindingMode", "Immediate").into()
    }),
    text("AllowVolumeExpansion", "Whether volumes can grow.", |o| {
        o.flag("allowVolumeExpansion").into()
    }),
    AGE,
];

pub(super) const VOLUME_ATTRIBUTES_CLASS: &[Printed] = &[
    NAME,
    text("DriverName", "Which driver knows these attributes.", |o| o.text("driverName").into()),
    AGE,
];

pub(super) const VOLUME_ATTACHMENT: &[Printed] = &[
    NAME,
    text("Attacher", "Who attaches it.", |o| o.text("spec.attacher").into()),
    text("PV", "Which volume.", |o| o.text("spec.source.persistentVolumeName").into()),
    text("Node", "To which node.", |o| o.text("spec.nodeName").into()),
    boolean("Attached", "Whether it is attached.", |o| o.flag("status.attached").into()),
    AGE,
];

pub(super) const CSI_NODE: &[Printed] = &[
    NAME,
    integer("Drivers", "How many drivers the node has.", |o| o.count("spec.drivers").into()),
    AGE,
];

pub(super) const CSI_DRIVER: &[Printed] = &[
    NAME,
    boolean("AttachRequired", "Whether volumes are attached before they are mounted.", |o| {
        (o.get("spec.attachRequired").is_none() || o.flag("spec.attachRequired")).into()
    }),
    boolean("PodInfoOnMount", "Whether the driver is told about the pod.", |o| {
        o.flag("spec.podInfoOnMount").into()
    }),
    boolean("StorageCapacity", "Whether the driver says how much room it has.", |o| {
        o.flag("spec.storageCapacity").into()
    }),
    text("TokenRequests", "For whom the driver gets tokens.", |o| {
        match o.get("spec.tokenRequests") {
            None => UNSET.into(),
            Some(_) => {
                let requests = o.list("spec.tokenRequests").iter();
                join(requests.map(|request| request.text(&["audience"])), ",").into()
            }
        }
    }),
    boolean("RequiresRepublish", "Whether mounted volumes are refreshed.", |o| {
        o.flag("spec.requiresRepublish").into()
    }),
    text("Modes", "How long its volumes live.", |o| {
        let modes = o.list("spec.volumeLifecycleModes").iter().filter_map(Value::as_str);
        or(&join(modes, ","), NONE).into()
    }),
    AGE,
];
