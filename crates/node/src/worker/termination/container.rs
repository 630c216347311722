//! Termination of containers while their pod keeps running: a failed probe, a changed image, a new sandbox. The
//! same state machine runs; only the containers, the grace period and the event's text differ.

use super::super::Worker;
use super::{Interrupted, TerminationRun};
use lifecycle::bringup::ContainerKill;
use lifecycle::observed::Observed;
use lifecycle::termination::{Member, Termination, container_grace, member, members};
use podconfig::PodContainer;
use std::time::Duration;

impl Worker {
    pub(in crate::worker) async fn terminate_container(
        &mut self,
        kill: &ContainerKill,
        observed: &Observed,
    ) -> Result<(), Interrupted> {
        let machine = Termination::new(vec![member(&self.pod, &kill.id, &kill.name)]);
        let text = kill.message.clone();
        let message = Box::new(move |_: &Member| text.clone());
        let run = TerminationRun::new(machine, self.addresses(observed), message, kill.grace);
        self.stop_containers(run, kill.grace, None).await
    }

    /// The container's postStart hook failed (T-NODE-67).
    pub(in crate::worker) async fn terminate_after_post_start(
        &mut self,
        container: &PodContainer<'_>,
        id: &str,
    ) {
        let machine = Termination::new(vec![member(&self.pod, id, &container.name)]);
        let message = Box::new(|_: &Member| "FailedPostStartHook".to_owned());
        let grace = container_grace(&self.pod, None);
        let run = TerminationRun::new(machine, Vec::new(), message, grace);
        let _ = self.stop_containers(run, grace, None).await;
    }

    /// The sandbox has to be replaced: its containers terminate with the pod's own grace period, then it is
    /// stopped (N-36).
    pub(in crate::worker) async fn terminate_in_old_sandbox(
        &mut self,
        observed: &Observed,
    ) -> Result<(), String> {
        let machine = Termination::new(members(&self.pod, observed));
        let message = Box::new(|member: &Member| format!("Stopping container {}", member.name));
        let grace = container_grace(&self.pod, None);
        let run = TerminationRun::new(machine, self.addresses(observed), message, grace);
        if self.stop_containers(run, grace, None).await.is_ok() {
            self.stop_sandboxes(observed).await?;
        }
        Ok(())
    }

    /// RestartAllContainers: no hook, a stop signal with its two seconds, then the kill (T-NODE-68).
    pub(in crate::worker) async fn terminate_for_restart(
        &mut self,
        containers: Vec<(&str, &str)>,
    ) -> Result<(), Interrupted> {
        let all = containers.iter().map(|(id, name)| member(&self.pod, id, name));
        let machine = Termination::new(all.collect());
        let message = Box::new(|_: &Member| "killing".to_owned());
        let run = TerminationRun::new(machine, Vec::new(), message, Duration::ZERO);
        self.stop_containers(run, Duration::ZERO, None).await
    }
}
