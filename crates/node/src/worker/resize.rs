//! Applies newly granted resources to the cgroups of a running pod, in the order that `lifecycle` decides
//! (N-119 to N-121).

use super::Worker;
use crate::allocations::{event_message, with};
use k8s_openapi::api::core::v1::Pod;
use lifecycle::observed::Observed;
use lifecycle::resize::{ResizeStep, Resized, Resource, steps, too_small};
use lifecycle::resources::Cgroup;

use runtime::Resources;
use std::collections::BTreeMap;

impl Worker {
    /// Resources were granted that are not applied yet.
    pub(super) fn resize_is_due(&self) -> bool {
        let known = self.deps.allocations.get(&self.uid);
        let spec = self.pod.spec.as_ref();
        known
            .zip(spec)
            .is_some_and(|(known, spec)| known.resizing.is_some() || !known.applied.is_of(spec))
    }

    /// Returns whether something changed. Containers that must restart for the resize have been terminated
    /// before. Resources granted since then may need another restart and wait for the next pass.
    pub(super) async fn resize(&mut self, observed: &Observed) -> Result<bool, String> {
        let Some(known) = self.deps.allocations.get(&self.uid) else { return Ok(false) };
        let before = with(&self.pod, &known.applied);
        // Without a sandbox there is nothing to change: the next one is created with what is granted.
        if observed.ready_sandbox().is_some()
            && let Err(why) = self.try_resize(&before, observed).await
        {
            if self.deps.allocations.failed(&self.uid, &why) {
                let generation = known.resizing.map_or(0, |resizing| resizing.generation);
                let message = event_message("error", &self.pod, generation, &why);
                self.deps.recorder.warning(&self.reference(), "ResizeError", message);
            }
            self.publish(observed);
            return Err(why);
        }
        let spec = self.pod.spec.clone().unwrap_or_default();
        if let Some(ended) = self.deps.allocations.applied(&self.uid, &spec) {
            let message = event_message("completed", &self.pod, ended.generation, "");
            self.deps.recorder.normal(&self.reference(), "ResizeCompleted", message);
        }
        Ok(true)
    }

    async fn try_resize(&self, before: &Pod, observed: &Observed) -> Result<(), String> {
        let after = self.pod.clone();
        let facts = &self.deps.facts;
        let resized = self.resized(before, &after, observed);
        if resized.iter().any(|c| c.after.memory_limit < c.before.memory_limit.or(Some(i64::MAX)))
            && let Some(why) = too_small(&resized, &self.memory_in_use().await?)
        {
            return Err(why);
        }
        let group = |pod: &Pod| in_group(&podconfig::pod_resources(pod, facts));
        let pod = (group(before), group(&after));
        for step in steps(pod, &resized) {
            match step {
                ResizeStep::PodLimit(resource) => {
                    self.limit_pod(limit_of(&pod.1, resource)).await?
                }
                ResizeStep::PodRequest => {
                    let shares = Some(pod.1.cpu_shares);
                    let request = Resources { cpu_shares: shares, ..Resources::default() };
                    self.limit_pod(request).await?;
                }
                ResizeStep::Container { name, resource } => {
                    let found = resized.iter().find(|container| container.name == name);
                    let id = observed.latest(&name).map(|container| container.id.as_str());
                    if let (Some(container), Some(id)) = (found, id) {
                        self.limit_container(id, &container.after, resource).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The running containers with their resources before and after.
    fn resized(&self, before: &Pod, after: &Pod, observed: &Observed) -> Vec<Resized> {
        let facts = &self.deps.facts;
        let groups = |pod: &Pod| -> BTreeMap<String, Cgroup> {
            let of = |container: &podconfig::PodContainer<'_>| {
                in_group(&podconfig::container_resources(pod, container, facts))
            };
            podconfig::containers(pod).iter().map(|c| (c.name.clone(), of(c))).collect()
        };
        let mut before = groups(before);
        let running = |name: &str| observed.latest(name).is_some_and(|c| c.is_running());
        let resized = groups(after).into_iter().filter(|(name, _)| running(name));
        resized
            .filter_map(|(name, after)| {
                Some(Resized { before: before.remove(&name)?, name, after })
            })
            .collect()
    }

    async fn memory_in_use(&self) -> Result<BTreeMap<String, i64>, String> {
        let all = self.deps.runtime.load().await.map_err(|error| error.to_string())?;
        let own = all.into_iter().filter(|usage| usage.pod == self.uid);
        let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        Ok(own.map(|usage| (usage.container, bytes(usage.memory_bytes))).collect())
    }

    async fn limit_pod(&self, resources: Resources) -> Result<(), String> {
        let path = podconfig::pod_cgroup(&self.pod, &self.deps.facts);
        let limited = self.deps.runtime.limit_group(&path, &resources).await;
        limited.map_err(|error| error.to_string())
    }

    async fn limit_container(
        &self,
        id: &str,
        to: &Cgroup,
        resource: Resource,
    ) -> Result<(), String> {
        let cpu_shares = (resource == Resource::Cpu).then_some(to.cpu_shares);
        let memory = to.memory_limit.filter(|_| resource == Resource::Memory);
        let swap_limit = memory.filter(|_| self.deps.facts.swap);
        let resources = Resources { cpu_shares, swap_limit, ..limit_of(to, resource) };
        let updated = self.deps.runtime.update_container(id, &resources).await;
        updated.map_err(|error| error.to_string())
    }
}

fn limit_of(group: &Cgroup, resource: Resource) -> Resources {
    match resource {
        Resource::Memory => Resources { memory_limit: group.memory_limit, ..Resources::default() },
        Resource::Cpu => Resources { cpu_quota: group.cpu_quota, ..Resources::default() },
    }
}

fn in_group(resources: &Resources) -> Cgroup {
    Cgroup {
        cpu_shares: resources.cpu_shares.unwrap_or_default(),
        cpu_quota: resources.cpu_quota,
        memory_limit: resources.memory_limit,
    }
}
