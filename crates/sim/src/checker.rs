//! Checks the rules of terminations after every event of the event log.
//!
//! It knows which API objects were requested, what each agent has observed and when, and what was really
//! done to containers. From that it derives what may happen and by when it must happen. It never looks
//! into the state of the product.
//!
//! An agent that restarts may begin a termination again (T-NODE-11) or continue it (T-EDGE-3). Both are
//! correct, so lower bounds count from the first deletion, and upper bounds from what this run of the
//! agent has observed.

mod declared;
mod drain;
mod identity;
mod object;
mod services;
mod timeline;

pub(crate) use declared::{change_in_short, rules_in_short};
pub(crate) use object::in_short;
pub use services::Requests;

use crate::event_log::{Agent, Event, Name, Signal};
use identity::NameHolders;
use object::{Object, WatchLine};
use services::ServiceTraffic;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A stop signal always gets this long (T-NODE-19).
const STOP_WINDOW: Duration = Duration::from_secs(2);
/// Time that may pass between a cause and its effect: a few calls of the runtime, each of some milliseconds.
const SLACK: Duration = Duration::from_millis(250);
/// How much too early still counts as the same moment: calls of the runtime take some milliseconds, and one may
/// overtake another.
const SAME: Duration = Duration::from_millis(5);

/// A rule that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenRule {
    pub rule: &'static str,
    pub why: String,
}

type Verdict = Result<(), BrokenRule>;

fn broken(rule: &'static str, why: impl Into<String>) -> Verdict {
    Err(BrokenRule { rule, why: why.into() })
}

#[derive(Default)]
pub(crate) struct Checker {
    pods: BTreeMap<Name, Pod>,
    /// In the order of creation.
    uids_by_name: BTreeMap<Name, Vec<Name>>,
    containers: BTreeMap<Name, Container>,
    containers_by_pod: BTreeMap<Name, Vec<Name>>,
    agents: BTreeMap<Agent, AgentKnowledge>,
    /// Pods whose agent crashed during their termination.
    interrupted: BTreeSet<Name>,
    /// Pods whose agent crashed, in whatever state they were.
    agent_crashed: BTreeSet<Name>,
    name_holders: NameHolders,
    nodes_declared_down: BTreeSet<Name>,
    traffic: ServiceTraffic,
}

/// A pod as the API shows it.
struct Pod {
    name: Name,
    object: Object,
    version: u64,
    /// When it was first deleted, and the smallest grace period since then.
    deleted: Option<(Duration, i64)>,
    /// A user wants it removed even if it still runs.
    forced: bool,
    /// A container ran when the object was removed.
    removed_while_running: bool,
    gone: Option<Duration>,
}

struct Container {
    name: Name,
    uid: Name,
    running: bool,
    since: Duration,
    exited: Option<Duration>,
    code: Option<i32>,
    /// All signals, also those after its exit; true for SIGKILL.
    signals: Vec<(Duration, bool)>,
    actions: BTreeMap<Agent, AgentActions>,
}

/// What one run of an agent did to a container.
#[derive(Default, Clone)]
struct AgentActions {
    stop: Option<Duration>,
    killed: bool,
    hook: Option<Duration>,
    hook_ended: Option<Duration>,
    exit_observed: Option<Duration>,
}

/// What one run of an agent has observed.
#[derive(Default)]
struct AgentKnowledge {
    known: BTreeSet<Name>,
    terminations: BTreeMap<Name, Termination>,
    busy: BTreeMap<Name, u32>,
}

/// The termination of a pod as one run of an agent has observed it.
struct Termination {
    /// When the agent could begin: no call that starts a container was under way.
    started: Option<Duration>,
    observed: Vec<(Duration, Duration)>,
}

impl Termination {
    /// When the grace period ends, not counting the window after the stop signal (T-NODE-5).
    fn deadline(&self) -> Duration {
        let started = self.started.unwrap_or_default();
        let ends = self.observed.iter().map(|(at, grace)| (*at).max(started) + *grace);
        ends.min().unwrap_or(Duration::MAX)
    }

    /// The latest time for a kill, unless the stop signal came late: a shorter delete still leaves the window
    /// after the stop signal.
    fn last(&self) -> Duration {
        let started = self.started.unwrap_or_default();
        let ends =
            self.observed.iter().map(|(at, grace)| (*at).max(started) + (*grace).max(STOP_WINDOW));
        ends.min().unwrap_or(Duration::MAX)
    }

    fn started(&self) -> Duration {
        self.started.unwrap_or(Duration::MAX)
    }
}

impl Checker {
    pub(crate) fn check(&mut self, at: Duration, event: &Event) -> Verdict {
        if let Event::Signal { container, signal, .. }
        | Event::SignalAfterExit { container, signal, .. } = event
        {
            self.update(container, |known| known.signals.push((at, *signal != Signal::Stop)));
        }
        match event {
            Event::ApiChange(line) => self.api(at, line),
            Event::PodObserved { by, uid, grace } => {
                self.pod_observed(at, by, uid, *grace);
                Ok(())
            }
            Event::PodGone { by, uid } => {
                self.pod_gone(at, by, uid);
                Ok(())
            }
            Event::Busy { by, uid } => {
                *self.knowledge(by).busy.entry(uid.clone()).or_default() += 1;
                Ok(())
            }
            Event::Idle { by, uid } => {
                self.idle(at, by, uid);
                Ok(())
            }
            Event::Starting { container, name, pod, uid, by } => {
                self.name_holders.add(container, pod, uid, name);
                self.starting(at, container, name, uid, by)
            }
            Event::Signal { container, signal: Signal::Stop, by } => {
                self.drained(at, container, by)?;
                self.stopped_when_drained(at, container, by);
                self.stop(at, container, by)
            }
            Event::Signal { container, signal: _, by } => self.kill(at, container, by),
            Event::SignalAfterExit { container, by, called_at, .. } => {
                self.signal_after_exit(container, by, *called_at)
            }
            Event::Running { container } => {
                self.update(container, |container| {
                    container.running = true;
                    container.since = at;
                });
                self.process_started(container)
            }
            Event::Exit { container, code } => self.exit(at, container, *code),
            Event::ExitObserved { container, by } => {
                self.update_actions(container, by, |actions| {
                    actions.exit_observed.get_or_insert(at);
                });
                Ok(())
            }
            Event::HookStarted { container, by } => {
                self.drained(at, container, by)?;
                self.hook(at, container, by)
            }
            Event::HookFinished { container, by, .. } => {
                self.update_actions(container, by, |actions| actions.hook_ended = Some(at));
                Ok(())
            }
            Event::AgentRun { agent, running: false } => {
                // This run of the agent no longer has any duties.
                if let Some(knowledge) = self.agents.remove(agent) {
                    self.interrupted.extend(knowledge.terminations.into_keys());
                    self.agent_crashed.extend(knowledge.known);
                }
                Ok(())
            }
            Event::DeleteRequested { pod, grace: Some(0) } => {
                let uid = self.uids_by_name.get(pod).and_then(|uids| uids.last());
                if let Some(pod) = uid.and_then(|uid| self.pods.get_mut(uid)) {
                    pod.forced = true;
                }
                Ok(())
            }
            Event::NodeDeclaredDown { node, down } => {
                self.declare_node(node, *down);
                Ok(())
            }
            Event::Listening { container } => {
                self.listening(container);
                Ok(())
            }
            Event::ProxyStarted { by, addresses, longest_delay } => {
                self.traffic.proxy_started(at, &by.node, addresses, *longest_delay);
                Ok(())
            }
            Event::TrafficChange(line) => self.traffic.api(at, line),
            Event::RulesCommitted { by, service, rules } => {
                self.traffic.committed(at, &by.node, service, rules.as_deref())
            }
            Event::Request(request) => self.traffic.request(at, request),
            Event::AgentRun { .. }
            | Event::DeleteRequested { .. }
            | Event::Record(_)
            | Event::Note(_) => Ok(()),
        }
    }

    /// After all faults have ended and everybody had time: nothing is left of deleted pods.
    pub(crate) fn finish(&self, _at: Duration) -> Verdict {
        for (uid, pod) in &self.pods {
            if pod.deleted.is_some() && pod.gone.is_none() {
                return broken("deletions finish", format!("{} ({uid}) still exists", pod.name));
            }
            if pod.gone.is_some()
                && let Some(id) = self.running_containers(uid).next()
            {
                return broken("T-NODE-13", format!("{} is removed and {id} still runs", pod.name));
            }
        }
        Ok(())
    }

    /// No termination is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.pods.iter().all(|(uid, pod)| match (&pod.deleted, pod.gone) {
            (_, Some(_)) => self.running_containers(uid).next().is_none(),
            (Some(_), None) => false,
            (None, None) => true,
        })
    }

    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.pods.len(), self.containers.len())
    }

    /// The uid of the newest pod of this name, if it still exists.
    pub(crate) fn uid_of(&self, name: &str) -> Option<Name> {
        let uid = self.uids_by_name.get(name)?.last()?;
        self.pods.get(uid).filter(|pod| pod.gone.is_none()).map(|_| uid.clone())
    }

    /// The names of the pods that exist and are not being deleted.
    pub(crate) fn undeleted(&self) -> Vec<Name> {
        let there = self.pods.values().filter(|pod| pod.gone.is_none() && pod.deleted.is_none());
        there.map(|pod| pod.name.clone()).collect()
    }

    fn running_containers<'a>(&'a self, uid: &str) -> impl Iterator<Item = &'a Name> {
        let all = self.containers_by_pod.get(uid).into_iter().flatten();
        all.filter(|id| self.containers.get(*id).is_some_and(|container| container.running))
    }

    fn knowledge(&mut self, by: &Agent) -> &mut AgentKnowledge {
        self.agents.entry(by.clone()).or_default()
    }

    fn update(&mut self, container: &Name, change: impl FnOnce(&mut Container)) {
        if let Some(container) = self.containers.get_mut(container) {
            change(container);
        }
    }

    fn update_actions(
        &mut self,
        container: &Name,
        by: &Agent,
        change: impl FnOnce(&mut AgentActions),
    ) {
        self.update(container, |container| {
            change(container.actions.entry(by.clone()).or_default());
        });
    }

    fn pod_observed(&mut self, at: Duration, by: &Agent, uid: &Name, grace: Option<i64>) {
        let knowledge = self.knowledge(by);
        knowledge.known.insert(uid.clone());
        if let Some(grace) = grace {
            knowledge.observe_deletion(at, uid, grace);
        }
    }

    /// A pod that was removed while it runs was force deleted and gets one second (T-NODE-14).
    fn pod_gone(&mut self, at: Duration, by: &Agent, uid: &Name) {
        self.knowledge(by).observe_deletion(at, uid, 1);
    }

    fn idle(&mut self, at: Duration, by: &Agent, uid: &Name) {
        let knowledge = self.knowledge(by);
        let busy = knowledge.busy.entry(uid.clone()).or_default();
        *busy = busy.saturating_sub(1);
        if *busy == 0
            && let Some(termination) = knowledge.terminations.get_mut(uid)
        {
            termination.started.get_or_insert(at);
        }
    }

    /// No container starts after the agent observed the deletion (T-INV-1), or while another pod of the same name
    /// runs (T-INV-6).
    fn starting(
        &mut self,
        at: Duration,
        id: &Name,
        name: &Name,
        uid: &Name,
        by: &Agent,
    ) -> Verdict {
        let fresh = Container {
            name: name.clone(),
            uid: uid.clone(),
            running: false,
            since: at,
            exited: None,
            code: None,
            signals: Vec::new(),
            actions: BTreeMap::new(),
        };
        self.containers.insert(id.clone(), fresh);
        self.containers_by_pod.entry(uid.clone()).or_default().push(id.clone());
        let termination = self.agents.get(by).and_then(|known| known.terminations.get(uid));
        if let Some((observed, _)) =
            termination.and_then(|termination| termination.observed.first())
            && *observed < at
        {
            let why = format!(
                "{by} starts {id} although it observed at {observed:?} that the pod is being deleted"
            );
            return broken("T-INV-1", why);
        }
        let Some(pod) = self.pods.get(uid) else { return Ok(()) };
        for other in
            self.uids_by_name.get(&pod.name).into_iter().flatten().filter(|other| *other != uid)
        {
            let forced = self.pods.get(other).is_some_and(|other| other.forced);
            if !forced && let Some(running) = self.running_containers(other).next() {
                let why = format!("{id} starts while {running} of the same name runs");
                return broken("T-INV-6", why);
            }
        }
        Ok(())
    }

    fn exit(&mut self, at: Duration, id: &Name, code: i32) -> Verdict {
        let Some(container) = self.containers.get_mut(id) else { return Ok(()) };
        container.code = Some(code);
        container.running = false;
        container.exited = Some(at);
        self.name_holders.remove(id);
        Ok(())
    }

    /// The hook runs once per run of the agent (T-NODE-26, T-EDGE-3).
    fn hook(&mut self, at: Duration, id: &Name, by: &Agent) -> Verdict {
        let mut twice = false;
        self.update_actions(id, by, |actions| twice = actions.hook.replace(at).is_some());
        match twice {
            true => broken("one hook", format!("{by} runs the hook of {id} a second time")),
            false => Ok(()),
        }
    }

    /// Allowed if the agent could not know of the exit when it made the call.
    fn signal_after_exit(&self, id: &Name, by: &Agent, called_at: Duration) -> Verdict {
        let actions = self.containers.get(id).and_then(|container| container.actions.get(by));
        match actions.and_then(|actions| actions.exit_observed) {
            Some(observed) if observed < called_at => {
                broken("no signal after an exit", format!("{by} knew that {id} has exited"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The earliest end of the grace period: an agent that restarted may have continued the termination that the
    /// agent before it began.
    fn earliest(&self, uid: &Name, termination: &Termination) -> Duration {
        let first = self.pods.get(uid).and_then(|pod| pod.deleted);
        match first.filter(|_| self.interrupted.contains(uid)) {
            Some((at, grace)) => termination.deadline().min(at + seconds(grace)),
            None => termination.deadline(),
        }
    }

    /// The stop signal comes once, after the preStop hook (T-INV-5, T-NODE-26, T-NODE-27), in the turn of a sidecar
    /// (T-NODE-35), and without delay (T-NODE-15, T-NODE-19).
    fn stop(&mut self, at: Duration, id: &Name, by: &Agent) -> Verdict {
        let Some(container) = self.containers.get(id) else { return Ok(()) };
        let actions = container.actions.get(by).cloned().unwrap_or_default();
        if actions.stop.is_some() {
            return broken("one stop signal", format!("{by} stops {id} a second time"));
        }
        let verdict = match self.agents.get(by) {
            Some(known) => self.stop_in_time(at, id, container, &actions, known),
            None => Ok(()),
        };
        self.update_actions(id, by, |actions| actions.stop = Some(at));
        verdict
    }

    fn stop_in_time(
        &self,
        at: Duration,
        id: &Name,
        container: &Container,
        actions: &AgentActions,
        known: &AgentKnowledge,
    ) -> Verdict {
        let pod = self.pods.get(&container.uid);
        let Some(termination) = known.terminations.get(&container.uid) else {
            let orphan = !known.known.contains(&container.uid);
            // A user may also have set a terminal phase in the API.
            let over = |pod: &Pod| self.completes(pod, container) || pod.object.is_terminal();
            return match orphan || pod.is_none_or(over) {
                true => Ok(()),
                false => broken("T-NODE-2", format!("{id} is stopped without a reason")),
            };
        };
        let Some(pod) = pod else { return Ok(()) };
        let deadline = termination.deadline();
        let own = self.own_end(pod, container).unwrap_or(Duration::MAX);
        let earliest = self.earliest(&container.uid, termination).min(own);
        let mut due = termination.started().max(container.since);
        if pod.object.has_acknowledged_drain() {
            due = due.max(deadline);
        }
        if pod.object.has_hook(&container.name) {
            match (actions.hook, actions.hook_ended) {
                (_, Some(ended)) => due = due.max(ended),
                (Some(_), None) if at + SAME < earliest => {
                    let why = format!("{id} is stopped while its hook runs, before {earliest:?}");
                    return broken("T-INV-5", why);
                }
                (None, None) if at + SAME < earliest && !container.hook_ran() => {
                    return broken("T-NODE-26", format!("{id} is stopped without its hook"));
                }
                (_, None) => due = deadline,
            }
        }
        if let Some(place) = pod.object.sidecar(&container.name) {
            match self.turn(&container.uid, pod, place) {
                Ok(turn) => due = due.max(turn),
                Err(other) if at + SAME < earliest => {
                    let why = format!("{id} is stopped before its turn: {other} still runs");
                    return broken("T-NODE-35", why);
                }
                Err(_) => due = deadline,
            }
        }
        let due = due.min(deadline.max(termination.started()).max(container.since));
        if at > due + SLACK {
            return broken("T-NODE-15", format!("{id} is stopped at {at:?} instead of {due:?}"));
        }
        Ok(())
    }

    /// When the last container that must end before this sidecar ended; Err: one that still runs.
    fn turn(&self, uid: &str, pod: &Pod, place: usize) -> Result<Duration, Name> {
        let mut last = Duration::ZERO;
        for id in self.containers_by_pod.get(uid).into_iter().flatten() {
            let Some(other) = self.containers.get(id) else { continue };
            if !pod.object.ends_before_sidecar(&other.name, place) {
                continue;
            }
            match other.exited {
                Some(at) => last = last.max(at),
                None if other.running => return Err(id.clone()),
                None => {}
            }
        }
        Ok(last)
    }

    /// Sidecars are stopped when their pod has completed.
    fn completes(&self, pod: &Pod, container: &Container) -> bool {
        pod.object.sidecar(&container.name).is_some() && pod.object.may_complete()
    }

    /// When the grace period of the sidecars of a completed pod ends. It began when the pod completed; a later
    /// deletion does not prolong it (T-NODE-5).
    fn own_end(&self, pod: &Pod, container: &Container) -> Option<Duration> {
        let (deleted, _) = pod.deleted.filter(|_| self.completes(pod, container))?;
        let ended = self.turn(&container.uid, pod, usize::MAX).ok()?;
        (ended < deleted).then(|| ended + seconds(pod.object.own_grace()))
    }

    /// A kill comes once, not before the grace period ends (T-INV-5), and not long after it (T-EDGE-2, T-NODE-15).
    fn kill(&mut self, at: Duration, id: &Name, by: &Agent) -> Verdict {
        let Some(container) = self.containers.get(id) else { return Ok(()) };
        let actions = container.actions.get(by).cloned().unwrap_or_default();
        if actions.killed {
            return broken("one kill", format!("{by} kills {id} a second time"));
        }
        let verdict = self.kill_in_time(at, id, container, &actions, by);
        self.update_actions(id, by, |actions| actions.killed = true);
        verdict
    }

    fn kill_in_time(
        &self,
        at: Duration,
        id: &Name,
        container: &Container,
        actions: &AgentActions,
        by: &Agent,
    ) -> Verdict {
        let Some(stopped) = container.actions.values().filter_map(|t| t.stop).min() else {
            return broken("T-NODE-16", format!("{id} is killed without a stop signal"));
        };
        if at + SAME < stopped + STOP_WINDOW {
            let why = format!("{id} is killed at {at:?}, its stop signal was at {stopped:?}");
            return broken("T-NODE-19", why);
        }
        let pod = self.pods.get(&container.uid);
        if let Some(pod) = pod
            && let Some((first, grace)) = pod.deleted
        {
            let own = self.own_end(pod, container).unwrap_or(Duration::MAX);
            let earliest = (first + seconds(grace)).min(own);
            if at + SAME < earliest {
                let why = format!("{id} is killed at {at:?}, before {earliest:?}");
                return broken("T-INV-5", why);
            }
        }
        let termination =
            self.agents.get(by).and_then(|known| known.terminations.get(&container.uid));
        let Some(termination) = termination else { return Ok(()) };
        let own = actions.stop.unwrap_or(termination.started()) + STOP_WINDOW;
        let latest = termination.last().max(own);
        if at > latest + SLACK {
            let why = format!("{id} is killed at {at:?}, the latest time is {latest:?}");
            return broken("one grace period", why);
        }
        Ok(())
    }

    /// When the first agent knew of the deletion. That may be earlier than the checker's own watch shows it, which
    /// is interrupted like all others when the control plane crashes.
    fn deletion_first_seen(&self, uid: &Name) -> Option<Duration> {
        let terminations = self.agents.values().filter_map(|agent| agent.terminations.get(uid));
        terminations.filter_map(|termination| Some(termination.observed.first()?.0)).min()
    }

    fn api(&mut self, at: Duration, line: &[u8]) -> Verdict {
        let Some(line) = WatchLine::read(line) else { return Ok(()) };
        let object = line.object;
        let uid: Name = object.uid().into();
        let version = object.version();
        if !self.pods.contains_key(&uid) {
            let name: Name = object.name().into();
            self.uids_by_name.entry(name.clone()).or_default().push(uid.clone());
            let pod = Pod {
                name,
                object: object.clone(),
                version: 0,
                deleted: None,
                forced: false,
                removed_while_running: false,
                gone: None,
            };
            self.pods.insert(uid.clone(), pod);
        }
        let running = self.running_containers(&uid).next().cloned();
        let disowned = self.nodes_declared_down.contains(object.node());
        let deleted_at = self.deletion_first_seen(&uid).map_or(at, |seen| seen.min(at));
        let Some(pod) = self.pods.get_mut(&uid) else { return Ok(()) };
        pod.forced |= disowned;
        if version <= pod.version {
            let why = format!("{}: version {version} follows {}", pod.name, pod.version);
            return broken("T-INV-7", why);
        }
        pod.deletion(deleted_at, &object)?;
        if object.is_terminal()
            && !pod.object.is_terminal()
            && !pod.forced
            && let Some(id) = &running
        {
            let why = format!("{} is {} and {id} runs", pod.name, object.phase());
            return broken("T-INV-2", why);
        }
        if pod.object.is_terminal() && object.phase() != pod.object.phase() {
            let why = format!("{} was {} and is {}", pod.name, pod.object.phase(), object.phase());
            return broken("T-NODE-57", why);
        }
        if line.deleted {
            pod.gone = Some(at);
            pod.removed_while_running = running.is_some();
            let by_node = !pod.forced && !pod.object.node().is_empty();
            if by_node && !pod.object.is_terminal() {
                let why = format!("{} is removed in phase {}", pod.name, pod.object.phase());
                return broken("T-INV-3", why);
            }
            if by_node && let Some(id) = &running {
                return broken("T-INV-3", format!("{} is removed and {id} runs", pod.name));
            }
        }
        pod.version = version;
        pod.object = object;
        Ok(())
    }
}

impl Pod {
    /// A deletion is never taken back and its grace period never grows (T-INV-4).
    fn deletion(&mut self, at: Duration, object: &Object) -> Verdict {
        let name = &self.name;
        let Some((first, least)) = self.deleted else {
            self.deleted = object.grace().map(|grace| (at, grace));
            return Ok(());
        };
        let Some(grace) = object.grace() else {
            return broken("T-INV-4", format!("the deletion of {name} is taken back"));
        };
        if grace > least {
            let why = format!("the grace period of {name} grows from {least} to {grace}");
            return broken("T-INV-4", why);
        }
        if object.finalizers() > self.object.finalizers() {
            return broken("T-INV-4", format!("{name} gets a finalizer while it is deleted"));
        }
        self.deleted = Some((first, grace));
        Ok(())
    }
}

impl Container {
    /// In any run of the agent.
    fn hook_ran(&self) -> bool {
        self.actions.values().any(|actions| actions.hook.is_some())
    }
}

impl AgentKnowledge {
    fn observe_deletion(&mut self, at: Duration, uid: &Name, grace: i64) {
        let free = self.busy.get(uid).is_none_or(|busy| *busy == 0);
        let termination = self
            .terminations
            .entry(uid.clone())
            .or_insert_with(|| Termination { started: free.then_some(at), observed: Vec::new() });
        let grace = seconds(grace.max(1));
        if termination.observed.iter().all(|(_, known)| grace < *known) {
            termination.observed.push((at, grace));
        }
    }
}

fn seconds(amount: i64) -> Duration {
    Duration::from_secs(u64::try_from(amount).unwrap_or(0))
}
