//! What must be true whatever happens: looks at every line of the book as it is written.
//!
//! It knows what was asked (the API's objects), what each agent has heard and when, and what was really
//! done to containers. From that follows what may happen and until when it has to; nothing here looks
//! into the product. Rules are those of the specification of terminations.
//!
//! An agent that restarts may begin an ending anew (T-NODE-11) or go on with it (T-EDGE-3): both are
//! right, so bounds from below count from the first deletion, bounds from above from what this life of
//! the agent has heard.

mod identity;
mod object;
mod timeline;

pub(crate) use object::in_short;

use crate::book::{Agent, Name, Signal, What};
use identity::Holders;
use object::{Line, Object};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A stop signal always gets this long (T-NODE-19).
const STOP_WINDOW: Duration = Duration::from_secs(2);
/// What may pass between a cause and its effect: a few calls of the runtime, each of some milliseconds.
const SLACK: Duration = Duration::from_millis(250);
/// How much too early is still the same moment: calls of the runtime take some milliseconds, and one may
/// overtake another.
const SAME: Duration = Duration::from_millis(5);

/// A rule that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    pub rule: &'static str,
    pub why: String,
}

type Verdict = Result<(), Broken>;

fn broken(rule: &'static str, why: impl Into<String>) -> Verdict {
    Err(Broken { rule, why: why.into() })
}

#[derive(Default)]
pub(crate) struct Judge {
    pods: BTreeMap<Name, Pod>,
    /// Uids by name, in the order they came.
    named: BTreeMap<Name, Vec<Name>>,
    containers: BTreeMap<Name, Container>,
    of_pod: BTreeMap<Name, Vec<Name>>,
    agents: BTreeMap<Agent, Knowledge>,
    /// Endings in whose midst an agent died.
    interrupted: BTreeSet<Name>,
    /// Pods whose agent died, whatever they were doing.
    left: BTreeSet<Name>,
    /// Which processes have which name.
    holders: Holders,
    /// Nodes of which somebody says that they are off.
    disowned: BTreeSet<Name>,
}

/// A pod as the API has it.
struct Pod {
    name: Name,
    object: Object,
    version: u64,
    /// When it was first deleted, and the smallest grace since.
    deleted: Option<(Duration, i64)>,
    /// Somebody wants it gone whether it runs or not.
    forced: bool,
    /// It ran when its object was removed.
    abandoned: bool,
    gone: Option<Duration>,
}

struct Container {
    name: Name,
    uid: Name,
    running: bool,
    since: Duration,
    exited: Option<Duration>,
    code: Option<i32>,
    /// Everything it was sent, and what came too late: true is a kill.
    signals: Vec<(Duration, bool)>,
    treated: BTreeMap<Agent, Treatment>,
}

/// What one life of an agent did to a container.
#[derive(Default, Clone)]
struct Treatment {
    stop: Option<Duration>,
    killed: bool,
    hook: Option<Duration>,
    hook_ended: Option<Duration>,
    shown_ended: Option<Duration>,
}

/// What one life of an agent has heard.
#[derive(Default)]
struct Knowledge {
    known: BTreeSet<Name>,
    endings: BTreeMap<Name, Ending>,
    busy: BTreeMap<Name, u32>,
}

/// A pod's ending as one life of an agent has heard of it.
struct Ending {
    /// It had its hands free.
    begun: Option<Duration>,
    heard: Vec<(Duration, Duration)>,
}

impl Ending {
    /// When everything should be over, the window after the stop signal aside (T-NODE-5).
    fn deadline(&self) -> Duration {
        let begun = self.begun.unwrap_or_default();
        let ends = self.heard.iter().map(|(at, grace)| (*at).max(begun) + *grace);
        ends.min().unwrap_or(Duration::MAX)
    }

    /// The last moment for a kill, unless the stop signal came late: one that is hurried keeps its
    /// window from then on.
    fn last(&self) -> Duration {
        let begun = self.begun.unwrap_or_default();
        let ends =
            self.heard.iter().map(|(at, grace)| (*at).max(begun) + (*grace).max(STOP_WINDOW));
        ends.min().unwrap_or(Duration::MAX)
    }

    fn begun(&self) -> Duration {
        self.begun.unwrap_or(Duration::MAX)
    }
}

impl Judge {
    pub(crate) fn see(&mut self, at: Duration, what: &What) -> Verdict {
        if let What::Signal { container, signal, .. } | What::TooLate { container, signal, .. } =
            what
        {
            self.change(container, |known| known.signals.push((at, *signal != Signal::Stop)));
        }
        match what {
            What::Api(line) => self.api(at, line),
            What::Told { by, uid, grace } => {
                self.told(at, by, uid, *grace);
                Ok(())
            }
            What::Gone { by, uid } => {
                self.gone(at, by, uid);
                Ok(())
            }
            What::Busy { by, uid } => {
                *self.knowledge(by).busy.entry(uid.clone()).or_default() += 1;
                Ok(())
            }
            What::Idle { by, uid } => {
                self.idle(at, by, uid);
                Ok(())
            }
            What::Starting { container, name, pod, uid, by } => {
                self.holders.starts(container, pod, uid, name);
                self.starting(at, container, name, uid, by)
            }
            What::Signal { container, signal: Signal::Stop, by } => self.stop(at, container, by),
            What::Signal { container, signal: _, by } => self.kill(at, container, by),
            What::TooLate { container, by, asked, .. } => self.too_late(container, by, *asked),
            What::Running { container } => {
                self.change(container, |container| {
                    container.running = true;
                    container.since = at;
                });
                self.takes_its_name(container)
            }
            What::Exit { container, code } => self.exit(at, container, *code),
            What::Shown { container, by } => {
                self.treat(container, by, |treatment| {
                    treatment.shown_ended.get_or_insert(at);
                });
                Ok(())
            }
            What::HookBegins { container, by } => self.hook(at, container, by),
            What::HookEnds { container, by, .. } => {
                self.treat(container, by, |treatment| treatment.hook_ended = Some(at));
                Ok(())
            }
            What::Agent { agent, lives: false } => {
                // What it had to do, it has to do no more.
                if let Some(knowledge) = self.agents.remove(agent) {
                    self.interrupted.extend(knowledge.endings.into_keys());
                    self.left.extend(knowledge.known);
                }
                Ok(())
            }
            What::Asked { pod, grace: Some(0) } => {
                let uid = self.named.get(pod).and_then(|uids| uids.last());
                if let Some(pod) = uid.and_then(|uid| self.pods.get_mut(uid)) {
                    pod.forced = true;
                }
                Ok(())
            }
            What::Disowned { node, still } => {
                self.disown(node, *still);
                Ok(())
            }
            What::Agent { .. } | What::Asked { .. } | What::Record(_) | What::Said(_) => Ok(()),
        }
    }

    /// When faults are over and everybody had time: nothing is left of what was deleted.
    pub(crate) fn finish(&self, _at: Duration) -> Verdict {
        for (uid, pod) in &self.pods {
            if pod.deleted.is_some() && pod.gone.is_none() {
                return broken("deletions finish", format!("{} ({uid}) is still there", pod.name));
            }
            if pod.gone.is_some()
                && let Some(id) = self.runs(uid).next()
            {
                return broken("T-NODE-13", format!("{} is gone and {id} still runs", pod.name));
            }
        }
        Ok(())
    }

    /// Nothing is left to be waited for.
    pub(crate) fn is_quiet(&self) -> bool {
        self.pods.iter().all(|(uid, pod)| match (&pod.deleted, pod.gone) {
            (_, Some(_)) => self.runs(uid).next().is_none(),
            (Some(_), None) => false,
            (None, None) => true,
        })
    }

    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.pods.len(), self.containers.len())
    }

    /// The pod of this name that came last, if it is still there.
    pub(crate) fn uid_of(&self, name: &str) -> Option<Name> {
        let uid = self.named.get(name)?.last()?;
        self.pods.get(uid).filter(|pod| pod.gone.is_none()).map(|_| uid.clone())
    }

    /// The names of pods that nobody has deleted.
    pub(crate) fn living(&self) -> Vec<Name> {
        let there = self.pods.values().filter(|pod| pod.gone.is_none() && pod.deleted.is_none());
        there.map(|pod| pod.name.clone()).collect()
    }

    fn runs<'a>(&'a self, uid: &str) -> impl Iterator<Item = &'a Name> {
        let all = self.of_pod.get(uid).into_iter().flatten();
        all.filter(|id| self.containers.get(*id).is_some_and(|container| container.running))
    }

    fn knowledge(&mut self, by: &Agent) -> &mut Knowledge {
        self.agents.entry(by.clone()).or_default()
    }

    fn change(&mut self, container: &Name, change: impl FnOnce(&mut Container)) {
        if let Some(container) = self.containers.get_mut(container) {
            change(container);
        }
    }

    fn treat(&mut self, container: &Name, by: &Agent, change: impl FnOnce(&mut Treatment)) {
        self.change(container, |container| {
            change(container.treated.entry(by.clone()).or_default());
        });
    }

    fn told(&mut self, at: Duration, by: &Agent, uid: &Name, grace: Option<i64>) {
        let knowledge = self.knowledge(by);
        knowledge.known.insert(uid.clone());
        if let Some(grace) = grace {
            knowledge.hear(at, uid, grace);
        }
    }

    /// What is gone and runs was forced (T-NODE-14).
    fn gone(&mut self, at: Duration, by: &Agent, uid: &Name) {
        self.knowledge(by).hear(at, uid, 1);
    }

    fn idle(&mut self, at: Duration, by: &Agent, uid: &Name) {
        let knowledge = self.knowledge(by);
        let busy = knowledge.busy.entry(uid.clone()).or_default();
        *busy = busy.saturating_sub(1);
        if *busy == 0
            && let Some(ending) = knowledge.endings.get_mut(uid)
        {
            ending.begun.get_or_insert(at);
        }
    }

    /// T-INV-1, T-INV-6.
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
            treated: BTreeMap::new(),
        };
        self.containers.insert(id.clone(), fresh);
        self.of_pod.entry(uid.clone()).or_default().push(id.clone());
        let ending = self.agents.get(by).and_then(|known| known.endings.get(uid));
        if let Some((heard, _)) = ending.and_then(|ending| ending.heard.first())
            && *heard < at
        {
            let why = format!("{by} starts {id} although it heard at {heard:?} that the pod ends");
            return broken("T-INV-1", why);
        }
        let Some(pod) = self.pods.get(uid) else { return Ok(()) };
        for other in self.named.get(&pod.name).into_iter().flatten().filter(|other| *other != uid) {
            let forced = self.pods.get(other).is_some_and(|other| other.forced);
            if !forced && let Some(running) = self.runs(other).next() {
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
        self.holders.ends(id);
        Ok(())
    }

    /// Once per attempt (T-NODE-26, T-EDGE-3).
    fn hook(&mut self, at: Duration, id: &Name, by: &Agent) -> Verdict {
        let mut twice = false;
        self.treat(id, by, |treatment| twice = treatment.hook.replace(at).is_some());
        match twice {
            true => broken("one hook", format!("{by} runs the hook of {id} a second time")),
            false => Ok(()),
        }
    }

    /// It may not have known yet when it began to ask.
    fn too_late(&self, id: &Name, by: &Agent, asked: Duration) -> Verdict {
        let treatment = self.containers.get(id).and_then(|container| container.treated.get(by));
        match treatment.and_then(|treatment| treatment.shown_ended) {
            Some(shown) if shown < asked => {
                broken("no signal after an exit", format!("{by} knew that {id} has ended"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// When an ending could be over at the earliest: an agent that came later may have gone on with
    /// what the one before had begun.
    fn soonest(&self, uid: &Name, ending: &Ending) -> Duration {
        let first = self.pods.get(uid).and_then(|pod| pod.deleted);
        match first.filter(|_| self.interrupted.contains(uid)) {
            Some((at, grace)) => ending.deadline().min(at + seconds(grace)),
            None => ending.deadline(),
        }
    }

    /// T-INV-5, T-NODE-15, 19, 26, 27, 35.
    fn stop(&mut self, at: Duration, id: &Name, by: &Agent) -> Verdict {
        let Some(container) = self.containers.get(id) else { return Ok(()) };
        let treatment = container.treated.get(by).cloned().unwrap_or_default();
        if treatment.stop.is_some() {
            return broken("one stop signal", format!("{by} stops {id} a second time"));
        }
        let verdict = match self.agents.get(by) {
            Some(known) => self.stop_in_time(at, id, container, &treatment, known),
            None => Ok(()),
        };
        self.treat(id, by, |treatment| treatment.stop = Some(at));
        verdict
    }

    fn stop_in_time(
        &self,
        at: Duration,
        id: &Name,
        container: &Container,
        treatment: &Treatment,
        known: &Knowledge,
    ) -> Verdict {
        let pod = self.pods.get(&container.uid);
        let Some(ending) = known.endings.get(&container.uid) else {
            let orphan = !known.known.contains(&container.uid);
            // Somebody may also have said in the API that it is over.
            let over = |pod: &Pod| self.completes(pod, container) || pod.object.is_terminal();
            return match orphan || pod.is_none_or(over) {
                true => Ok(()),
                false => broken("T-NODE-2", format!("{id} is stopped and nobody wanted it")),
            };
        };
        let Some(pod) = pod else { return Ok(()) };
        let deadline = ending.deadline();
        let own = self.own_end(pod, container).unwrap_or(Duration::MAX);
        let soonest = self.soonest(&container.uid, ending).min(own);
        let mut due = ending.begun().max(container.since);
        if pod.object.has_hook(&container.name) {
            match (treatment.hook, treatment.hook_ended) {
                (_, Some(ended)) => due = due.max(ended),
                (Some(_), None) if at + SAME < soonest => {
                    let why = format!("{id} is stopped while its hook runs, before {soonest:?}");
                    return broken("T-INV-5", why);
                }
                (None, None) if at + SAME < soonest && !container.hook_ran() => {
                    return broken("T-NODE-26", format!("{id} is stopped without its hook"));
                }
                (_, None) => due = deadline,
            }
        }
        if let Some(place) = pod.object.sidecar(&container.name) {
            match self.turn(&container.uid, pod, place) {
                Ok(turn) => due = due.max(turn),
                Err(other) if at + SAME < soonest => {
                    let why = format!("{id} is stopped before its turn: {other} still runs");
                    return broken("T-NODE-35", why);
                }
                Err(_) => due = deadline,
            }
        }
        let due = due.min(deadline.max(ending.begun()).max(container.since));
        if at > due + SLACK {
            return broken("T-NODE-15", format!("{id} is stopped at {at:?}, due was {due:?}"));
        }
        Ok(())
    }

    /// When the last of those that end before this sidecar ended, or one that still runs.
    fn turn(&self, uid: &str, pod: &Pod, place: usize) -> Result<Duration, Name> {
        let mut last = Duration::ZERO;
        for id in self.of_pod.get(uid).into_iter().flatten() {
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

    /// Sidecars end after a pod that ran to its end.
    fn completes(&self, pod: &Pod, container: &Container) -> bool {
        pod.object.sidecar(&container.name).is_some() && pod.object.may_complete()
    }

    /// When the sidecars of a pod that ran to its end by itself should be over: their time began to pass
    /// then, and somebody who deletes the pod after that gives them no more of it (T-NODE-5).
    fn own_end(&self, pod: &Pod, container: &Container) -> Option<Duration> {
        let (deleted, _) = pod.deleted.filter(|_| self.completes(pod, container))?;
        let ended = self.turn(&container.uid, pod, usize::MAX).ok()?;
        (ended < deleted).then(|| ended + seconds(pod.object.own_grace()))
    }

    /// T-INV-5: not before its time; T-EDGE-2, T-NODE-15: not after it either.
    fn kill(&mut self, at: Duration, id: &Name, by: &Agent) -> Verdict {
        let Some(container) = self.containers.get(id) else { return Ok(()) };
        let treatment = container.treated.get(by).cloned().unwrap_or_default();
        if treatment.killed {
            return broken("one kill", format!("{by} kills {id} a second time"));
        }
        let verdict = self.kill_in_time(at, id, container, &treatment, by);
        self.treat(id, by, |treatment| treatment.killed = true);
        verdict
    }

    fn kill_in_time(
        &self,
        at: Duration,
        id: &Name,
        container: &Container,
        treatment: &Treatment,
        by: &Agent,
    ) -> Verdict {
        let Some(stopped) = container.treated.values().filter_map(|t| t.stop).min() else {
            return broken("T-NODE-16", format!("{id} is killed and was never asked to stop"));
        };
        if at + SAME < stopped + STOP_WINDOW {
            let why = format!("{id} is killed at {at:?}, stopped at {stopped:?}");
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
        let ending = self.agents.get(by).and_then(|known| known.endings.get(&container.uid));
        let Some(ending) = ending else { return Ok(()) };
        let own = treatment.stop.unwrap_or(ending.begun()) + STOP_WINDOW;
        let latest = ending.last().max(own);
        if at > latest + SLACK {
            let why = format!("{id} is killed at {at:?}, it had until {latest:?}");
            return broken("one grace", why);
        }
        Ok(())
    }

    fn api(&mut self, at: Duration, line: &[u8]) -> Verdict {
        let Some(line) = Line::read(line) else { return Ok(()) };
        let object = line.object;
        let uid: Name = object.uid().into();
        let version = object.version();
        if !self.pods.contains_key(&uid) {
            let name: Name = object.name().into();
            self.named.entry(name.clone()).or_default().push(uid.clone());
            let pod = Pod {
                name,
                object: object.clone(),
                version: 0,
                deleted: None,
                forced: false,
                abandoned: false,
                gone: None,
            };
            self.pods.insert(uid.clone(), pod);
        }
        let running = self.runs(&uid).next().cloned();
        let disowned = self.disowned.contains(object.node());
        let Some(pod) = self.pods.get_mut(&uid) else { return Ok(()) };
        pod.forced |= disowned;
        if version <= pod.version {
            let why = format!("{}: version {version} follows {}", pod.name, pod.version);
            return broken("T-INV-7", why);
        }
        pod.deletion(at, &object)?;
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
            pod.abandoned = running.is_some();
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
    /// T-INV-4
    fn deletion(&mut self, at: Duration, object: &Object) -> Verdict {
        let name = &self.name;
        let Some((first, least)) = self.deleted else {
            self.deleted = object.grace().map(|grace| (at, grace));
            return Ok(());
        };
        let Some(grace) = object.grace() else {
            return broken("T-INV-4", format!("the deletion of {name} is forgotten"));
        };
        if grace > least {
            let why = format!("the grace of {name} grows from {least} to {grace}");
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
    /// In any life of the agent.
    fn hook_ran(&self) -> bool {
        self.treated.values().any(|treatment| treatment.hook.is_some())
    }
}

impl Knowledge {
    fn hear(&mut self, at: Duration, uid: &Name, grace: i64) {
        let free = self.busy.get(uid).is_none_or(|busy| *busy == 0);
        let ending = self
            .endings
            .entry(uid.clone())
            .or_insert_with(|| Ending { begun: free.then_some(at), heard: Vec::new() });
        let grace = seconds(grace.max(1));
        if ending.heard.iter().all(|(_, known)| grace < *known) {
            ending.heard.push((at, grace));
        }
    }
}

fn seconds(amount: i64) -> Duration {
    Duration::from_secs(u64::try_from(amount).unwrap_or(0))
}
