//! Mount points for other volumes inside a volume that the node writes (N-154).
//!
//! Such a volume is read-only for containers, so its mount points must exist before it is mounted.

use k8s_openapi::api::core::v1::Pod;
use podconfig::containers;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

pub(crate) fn make_mount_points(pod: &Pod, volume: &str, folder: &Path) -> std::io::Result<()> {
    for point in points(pod, volume) {
        let path = folder.join(&point);
        if fs::symlink_metadata(&path).is_err() && path.parent().is_some_and(|it| !is_link(it)) {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(&path)?;
        }
    }
    Ok(())
}

/// A link is a file of the volume: do not create directories behind it.
fn is_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink())
}

/// The mount paths below a mount path of the volume, relative to that.
fn points(pod: &Pod, volume: &str) -> BTreeSet<PathBuf> {
    let mut points = BTreeSet::new();
    for container in containers(pod) {
        let mounts = container.volume_mounts.as_deref().unwrap_or_default();
        let whole = |path: &Option<String>| path.as_deref().is_none_or(str::is_empty);
        let ours = mounts.iter().filter(|mount| mount.name == volume && whole(&mount.sub_path));
        for own in ours.filter(|mount| whole(&mount.sub_path_expr)) {
            let inside = mounts.iter().filter(|mount| mount.mount_path != own.mount_path);
            points.extend(inside.filter_map(|mount| {
                let relative = Path::new(&mount.mount_path).strip_prefix(&own.mount_path).ok()?;
                let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
                let reserved = relative.to_string_lossy().starts_with("..");
                (plain && !reserved && !relative.as_os_str().is_empty())
                    .then(|| relative.to_owned())
            }));
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn n_154_a_volume_mounted_below_another_gets_a_mount_point() {
        let pod: Pod = typed::from_value(json!({ "spec": { "containers": [
            { "name": "c", "volumeMounts": [
                { "name": "cfg", "mountPath": "/etc/app" },
                { "name": "data", "mountPath": "/etc/app/data/deep" },
                { "name": "other", "mountPath": "/etc/application" },
                { "name": "cfg", "mountPath": "/x", "subPath": "s" },
                { "name": "data", "mountPath": "/x/y" },
            ] },
        ] } }))
        .unwrap();
        let folder = tempfile::tempdir().unwrap();
        make_mount_points(&pod, "cfg", folder.path()).unwrap();
        make_mount_points(&pod, "cfg", folder.path()).unwrap();
        assert!(folder.path().join("data/deep").is_dir());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
