//! Properties of every termination, for any order of inputs.

use super::tests::{cast, play, play_until};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// One termination: its containers, whether it is held, and the inputs with their times (milliseconds).
#[derive(Debug, Clone)]
struct Story {
    members: Vec<Member>,
    held: bool,
    inputs: Vec<(u64, Input)>,
}

/// What happened to one container.
#[derive(Debug, Default)]
struct Life {
    announced: Vec<u64>,
    hooks: Vec<u64>,
    stops: Vec<u64>,
    kills: Vec<u64>,
    exited: Option<u64>,
}

const NAMES: [&str; 5] = ["s:a", "s:b", "i:c", "d", "e"];
const WINDOW: u64 = STOP_WINDOW_MIN.as_millis() as u64;

fn any_input() -> impl Strategy<Value = Input> {
    let id = prop::sample::select(vec!["a", "b", "c", "d", "e"]).prop_map(str::to_owned);
    prop_oneof![
        2 => (0u64..40).prop_map(|s| Input::Terminate { grace: Duration::from_secs(s) }),
        2 => id.clone().prop_map(|id| Input::HookFinished { id }),
        2 => id.clone().prop_map(|id| Input::Exited { id }),
        1 => id.prop_map(|id| Input::StopSent { id }),
        1 => Just(Input::Tick),
        1 => Just(Input::Drained),
    ]
}

prop_compose! {
    fn any_story()(
        hooks in prop::collection::vec(any::<bool>(), NAMES.len()),
        present in prop::collection::vec(any::<bool>(), NAMES.len()),
        held in any::<bool>(),
        inputs in prop::collection::vec((0u64..120, any_input()), 0..12),
        first in 0u64..30,
    ) -> Story {
        let words: Vec<String> = NAMES.iter().zip(hooks).zip(present)
            .filter(|(_, present)| *present)
            .map(|((name, hook), _)| format!("{name}{}", if hook { "+hook" } else { "" }))
            .collect();
        let mut inputs: Vec<_> = inputs.into_iter().map(|(at, input)| (at * 500, input)).collect();
        inputs.push((0, Input::Terminate { grace: Duration::from_secs(first) }));
        inputs.sort_by_key(|(at, _)| *at);
        Story { members: cast(&words.join(" ")), held, inputs }
    }
}

impl Story {
    fn play(&self) -> Vec<(u64, Action)> {
        let mut machine = Termination::new(self.members.clone());
        if self.held {
            machine.hold();
        }
        play(machine, &self.inputs)
    }

    fn lives(&self) -> BTreeMap<String, Life> {
        let mut lives: BTreeMap<String, Life> =
            self.members.iter().map(|m| (m.id.clone(), Life::default())).collect();
        for (at, input) in &self.inputs {
            if let Input::Exited { id } = input
                && let Some(life) = lives.get_mut(id)
            {
                life.exited.get_or_insert(*at);
            }
        }
        for (at, action) in self.play() {
            let (id, field): (_, fn(&mut Life) -> &mut Vec<u64>) = match action {
                Action::Announce { id } => (id, |life| &mut life.announced),
                Action::RunPreStop { id } => (id, |life| &mut life.hooks),
                Action::HookOverran { .. } => continue,
                Action::SendStop { id, .. } => (id, |life| &mut life.stops),
                Action::SendKill { id } => (id, |life| &mut life.kills),
            };
            field(lives.get_mut(&id).unwrap()).push(at);
        }
        lives
    }

    /// The deadlines of all requests so far.
    fn deadlines(&self, until: u64) -> impl Iterator<Item = u64> {
        self.inputs.iter().filter(move |(at, _)| *at <= until).filter_map(|(at, input)| match input
        {
            Input::Terminate { grace } => Some(at + grace.as_millis() as u64),
            _ => None,
        })
    }

    fn deadline(&self, at: u64) -> u64 {
        self.deadlines(at).min().unwrap_or(u64::MAX)
    }

    fn drained_by(&self, at: u64) -> bool {
        let drained = |(when, input): &(u64, Input)| *when <= at && *input == Input::Drained;
        !self.held || self.inputs.iter().any(drained)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// T-INV-5, T-NODE-19: a stop signal is sent once, and at least two seconds pass before the kill.
    #[test]
    fn the_stop_window_is_never_cut_short(story in any_story()) {
        for life in story.lives().values() {
            prop_assert!(life.stops.len() <= 1 && life.kills.len() <= life.stops.len());
            prop_assert!(life.kills.iter().all(|kill| life.stops[0] + WINDOW <= *kill));
        }
    }

    /// T-INV-5: no kill before the earliest requested deadline.
    #[test]
    fn no_kill_comes_early(story in any_story()) {
        for life in story.lives().values() {
            prop_assert!(life.kills.iter().all(|kill| story.deadline(*kill) <= *kill));
        }
    }

    /// Every deadline is kept: two seconds after it, each container has exited or was killed.
    #[test]
    fn no_kill_comes_late(story in any_story()) {
        for life in story.lives().values() {
            for kill in &life.kills {
                let latest = story.deadlines(*kill - 1).map(|due| due + WINDOW).min();
                prop_assert!(latest.is_none_or(|latest| *kill <= latest), "{kill} {latest:?}");
            }
        }
    }

    #[test]
    fn a_container_that_never_exits_is_stopped_once_and_killed_once(story in any_story()) {
        for life in story.lives().values().filter(|life| life.exited.is_none()) {
            prop_assert_eq!((life.announced.len(), life.stops.len(), life.kills.len()), (1, 1, 1));
        }
    }

    #[test]
    fn nothing_happens_to_a_container_after_its_exit(story in any_story()) {
        for life in story.lives().values() {
            let Some(exited) = life.exited else { continue };
            let all = [&life.announced, &life.hooks, &life.stops, &life.kills];
            prop_assert!(all.into_iter().flatten().all(|at| *at <= exited));
        }
    }

    /// T-INV-5, T-NODE-16, 27: the announcement, then the hook at most once, then the stop signal after the hook
    /// or at the deadline.
    #[test]
    fn the_hook_runs_once_and_the_stop_signal_follows_it(story in any_story()) {
        for (id, life) in &story.lives() {
            prop_assert!(life.hooks.len() <= 1);
            prop_assert!(life.hooks.iter().chain(&life.stops).all(|at| life.announced[0] <= *at));
            let (Some(hook), Some(stop)) = (life.hooks.first(), life.stops.first()) else { continue };
            // The end of a hook counts only if it was reported while the hook ran.
            let ended = story.inputs.iter().any(|(at, input)| {
                matches!(input, Input::HookFinished { id: whose } if whose == id) && hook <= at && at <= stop
            });
            prop_assert!(hook <= stop && (ended || story.deadline(*stop) <= *stop));
        }
    }

    /// T-NODE-35, 37: a sidecar's stop signal waits for regular containers and for later sidecars, but not beyond
    /// the deadline. No other container waits.
    #[test]
    fn sidecars_stop_last_in_reverse_order(story in any_story()) {
        let lives = story.lives();
        for member in story.members.iter().filter(|member| member.kind == Kind::Sidecar) {
            let Some(stop) = lives[&member.id].stops.first() else { continue };
            let waited_for = story.members.iter().filter(|other| {
                other.kind == Kind::Regular
                    || (other.kind == Kind::Sidecar && other.place > member.place)
            });
            for other in waited_for {
                let gone = lives[&other.id].exited.is_some_and(|exited| exited <= *stop);
                prop_assert!(gone || story.deadline(*stop) <= *stop);
            }
        }
    }

    #[test]
    fn containers_without_hook_or_turn_are_stopped_immediately(story in any_story()) {
        let story = Story { held: false, ..story };
        let lives = story.lives();
        for member in story.members.iter().filter(|m| m.kind != Kind::Sidecar && !m.hook) {
            let life = &lives[&member.id];
            prop_assert!(life.stops == [0] || life.exited == Some(0));
        }
    }

    /// A held termination runs no hook and sends no signal before traffic has drained or the deadline has passed.
    #[test]
    fn a_held_termination_does_nothing_before_traffic_has_drained(story in any_story()) {
        for life in story.lives().values() {
            for at in life.hooks.iter().chain(&life.stops) {
                prop_assert!(story.drained_by(*at) || story.deadline(*at) <= *at);
            }
        }
    }

    /// A tick only says that time has passed: additional ticks change nothing.
    #[test]
    fn extra_ticks_change_nothing(story in any_story(), ticks in prop::collection::vec(0u64..120, 0..20)) {
        let mut ticked = story.clone();
        ticked.inputs.extend(ticks.into_iter().map(|at| (at * 500 + 1, Input::Tick)));
        ticked.inputs.sort_by_key(|(at, _)| *at);
        prop_assert_eq!(story.play(), ticked.play());
    }

    /// T-EDGE-3: an agent that restarts at any moment, and knows the progress and the deadline, sends the same signals
    /// at the same times as without the restart; only a hook that was running runs again.
    #[test]
    fn a_restarted_agent_keeps_every_deadline(story in any_story(), cut in 0u64..120) {
        let cut = cut * 500 + 1;
        let now = Moment(Duration::from_millis(cut));
        let mut before = Termination::new(story.members.clone());
        play_until(&mut before, &story.inputs, cut);
        let left = now.until(before.due().unwrap());
        let taken_over = before.stages().filter(|(_, stage)| *stage != ContainerStage::Gone);
        let killed = |(member, stage): (&Member, ContainerStage)| {
            matches!(stage, ContainerStage::Killed { .. }).then(|| format!("kill {}", member.id))
        };
        let killed: Vec<String> = before.stages().filter_map(killed).collect();
        let members = taken_over.map(|(member, stage)| {
            let progress = match stage.progress(now) {
                Progress::StopSent { kill_at } => Progress::StopSent { kill_at: Moment(now.until(kill_at)) },
                other => other,
            };
            Member { progress, ..member.clone() }
        });
        let after = Termination::new(members.collect());
        let signals = |actions: Vec<(u64, Action)>, from: u64| {
            let mut all: Vec<(u64, String)> = actions
                .into_iter()
                .filter_map(|(at, action)| match action {
                    Action::SendStop { id, .. } => Some((at + from, format!("stop {id}"))),
                    Action::SendKill { id } => Some((at + from, format!("kill {id}"))),
                    _ => None,
                })
                .collect();
            all.sort();
            all
        };
        let mut resumed = signals(play(after, &[(0, Input::Terminate { grace: left })]), cut);
        // A killed container is killed again, because kills are not part of the progress.
        resumed.retain(|(_, what)| !killed.contains(what));
        let uninterrupted = signals(play(before, &[]), 0);
        prop_assert_eq!(resumed, uninterrupted);
    }

    #[test]
    fn a_termination_is_over_when_every_exit_was_observed(story in any_story()) {
        let mut machine = Termination::new(story.members.clone());
        for (at, input) in &story.inputs {
            machine.step(Moment(Duration::from_millis(*at)), input.clone());
        }
        let all = story.lives().values().all(|life| life.exited.is_some());
        prop_assert_eq!(machine.is_over(), all);
    }
}
