//! Pods that exceed their limits of ephemeral storage (N-137). Pure.

use super::usage::PodUsage;
use api::quantity::Quantity;
use lifecycle::resources::pod_limits;

const STORAGE: &str = "ephemeral-storage";

/// The message about the first limit that is exceeded: of a volume, the pod, a container.
pub(super) fn exceeded(usage: &PodUsage) -> Option<String> {
    volume(usage).or_else(|| pod(usage)).or_else(|| container(usage))
}

fn volume(usage: &PodUsage) -> Option<String> {
    let volumes = usage.pod.spec.as_ref()?.volumes.as_deref().unwrap_or_default();
    volumes.iter().find_map(|volume| {
        let empty_dir = volume.empty_dir.as_ref()?;
        if empty_dir.medium.as_deref() == Some("Memory") {
            return None; // Its tmpfs enforces the limit.
        }
        let limit = Quantity::parse(&empty_dir.size_limit.as_ref()?.0).ok()?;
        let used = usage.volumes.iter().find(|used| used.volume == volume.name)?.bytes;
        let name = &volume.name;
        (limit.value() > 0 && exceeds(used, &limit))
            .then(|| format!("Usage of EmptyDir volume {name:?} exceeds the limit \"{limit}\". "))
    })
}

fn pod(usage: &PodUsage) -> Option<String> {
    let limits = pod_limits(usage.pod.spec.as_ref()?);
    let limit = limits.get(STORAGE)?;
    exceeds(usage.disk(), limit).then(|| {
        format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ")
    })
}

fn container(usage: &PodUsage) -> Option<String> {
    usage.pod.spec.as_ref()?.containers.iter().find_map(|container| {
        let limits = container.resources.as_ref()?.limits.as_ref()?;
        let limit = Quantity::parse(&limits.get(STORAGE)?.0).ok()?;
        let own = usage.containers.iter().find(|own| own.name == container.name)?;
        let name = &container.name;
        exceeds(own.storage(), &limit).then(|| {
            format!("Container {name} exceeded its local ephemeral storage limit \"{limit}\". ")
        })
    })
}

fn exceeds(used: u64, limit: &Quantity) -> bool {
    i64::try_from(used).unwrap_or(i64::MAX) > limit.value()
}

#[cfg(test)]
mod tests {
    use super::super::usage::ContainerUsage;
    use super::*;
    use serde_json::{Value, json};
    use std::sync::Arc;
    use volumes::VolumeUsage;

    const MI: u64 = 1 << 20;

    fn usage(spec: Value, disk: u64, logs: u64, volume: u64) -> PodUsage {
        PodUsage {
            pod: Arc::new(typed::from_value(json!({ "spec": spec })).unwrap()),
            containers: vec![ContainerUsage {
                name: "c".into(),
                memory: 0,
                disk: disk * MI,
                logs: logs * MI,
                messages: 0,
            }],
            volumes: vec![VolumeUsage {
                volume: "v".into(),
                bytes: volume * MI,
                inodes: 0,
                on_disk: true,
            }],
            files: 0,
            inodes: 0,
            processes: 0,
        }
    }

    #[test]
    fn n_137_each_limit_has_its_message() {
        let with_volume = json!({ "containers": [{ "name": "c" }],
            "volumes": [{ "name": "v", "emptyDir": { "sizeLimit": "10Mi" } }] });
        let in_memory = json!({ "containers": [{ "name": "c" }],
            "volumes": [{ "name": "v", "emptyDir": { "medium": "Memory", "sizeLimit": "10Mi" } }] });
        let limited = json!({ "containers": [
            { "name": "c", "resources": { "limits": { "ephemeral-storage": "20Mi" } } },
            { "name": "d", "resources": { "limits": { "ephemeral-storage": "80Mi" } } }] });
        let rows = [
            (usage(with_volume.clone(), 0, 0, 10), None),
            (
                usage(with_volume, 0, 0, 11),
                Some("Usage of EmptyDir volume \"v\" exceeds the limit \"10Mi\". "),
            ),
            (usage(in_memory, 0, 0, 11), None),
            (usage(limited.clone(), 10, 10, 80), None),
            (
                usage(limited.clone(), 10, 10, 81),
                Some(
                    "Pod ephemeral local storage usage exceeds the total limit of containers 100Mi. ",
                ),
            ),
            (
                usage(limited, 15, 6, 0),
                Some("Container c exceeded its local ephemeral storage limit \"20Mi\". "),
            ),
        ];
        for (usage, expected) in rows {
            assert_eq!(exceeded(&usage).as_deref(), expected, "{usage:?}");
        }
    }
}
