//! Stories about who is next (N-183, N-185).

use super::*;
use crate::filters::Plugin;
use crate::pod::tests::read;
use serde_json::json;

struct Play {
    queue: Queue,
    start: Instant,
    now: Instant,
}

impl Play {
    fn new() -> Play {
        let start = Instant::now();
        Play { queue: Queue::default(), start, now: start }
    }

    fn at(&mut self, millis: u64) -> &mut Play {
        self.now = self.start + Duration::from_millis(millis);
        self
    }

    fn put(&mut self, name: &str, priority: i32) -> &mut Play {
        self.queue.put(pod(name, "1", priority), false, self.now);
        self
    }

    fn take(&mut self) -> Option<String> {
        self.queue.take(self.now).map(|pod| pod.key.name().to_owned())
    }

    fn rejected(&mut self, name: &str) -> &mut Play {
        let by = Plugins::of(&[Plugin::NodeResourcesFit]);
        self.queue.rejected(&key(name), by, self.now);
        self
    }

    fn failed(&mut self, name: &str) -> &mut Play {
        self.queue.failed(&key(name), self.now);
        self
    }

    fn help(&mut self, help: Help) -> &mut Play {
        self.queue.help(self.now, |_, _| help);
        self
    }

    /// Milliseconds from the start.
    fn next_due(&self) -> Option<u128> {
        self.queue.next_due().map(|due| (due - self.start).as_millis())
    }
}

fn pod(name: &str, uid: &str, priority: i32) -> Arc<PodInfo> {
    Arc::new(read(json!({
        "metadata": { "namespace": "default", "name": name, "uid": uid },
        "spec": { "priority": priority, "containers": [] },
    })))
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

#[test]
fn n_183_the_most_important_first_then_who_came_first() {
    let mut play = Play::new();
    play.put("b", 0).put("a", 0).put("high", 10).put("low", -1);
    let order: Vec<String> = std::iter::from_fn(|| play.take()).collect();
    assert_eq!(order, ["high", "b", "a", "low"]);
}

#[test]
fn n_185_a_rejected_pod_waits_for_help_and_then_for_its_back_off() {
    let mut play = Play::new();
    play.put("p", 0).take();
    play.rejected("p");
    assert_eq!(play.at(100_000).take(), None, "nothing has changed");
    assert_eq!(play.help(Help::Perhaps).take().as_deref(), Some("p"), "its back-off is long over");
    play.rejected("p");
    assert_eq!(play.at(100_500).help(Help::None).take(), None);
    assert_eq!(play.help(Help::Perhaps).take(), None);
    assert_eq!(play.next_due(), Some(102_000), "two seconds after the second try");
    assert_eq!(play.at(102_000).take().as_deref(), Some("p"));
}

#[test]
fn n_185_back_off_doubles_up_to_ten_seconds() {
    let mut play = Play::new();
    play.put("p", 0);
    let mut waits = Vec::new();
    let mut now = 0;
    for _ in 0..6 {
        assert_eq!(play.at(now).take().as_deref(), Some("p"));
        let due = play.failed("p").next_due().unwrap() as u64;
        waits.push((due - now) / 1000);
        assert_eq!(play.at(due - 1).take(), None);
        now = due;
    }
    assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
}

#[test]
fn sure_help_ends_the_wait_at_once() {
    let mut play = Play::new();
    play.put("p", 0).take();
    assert_eq!(play.rejected("p").help(Help::Surely).take().as_deref(), Some("p"));
}

#[test]
fn n_185_after_five_minutes_a_pod_is_tried_anyway() {
    let mut play = Play::new();
    play.put("p", 0).take();
    play.rejected("p");
    let mut tried = None;
    while tried.is_none() {
        let due = play.next_due().expect("somebody waits") as u64;
        tried = play.at(due).take().map(|_| due);
    }
    assert_eq!(tried, Some(300_000));
    assert_eq!(play.next_due(), None);
}

#[test]
fn a_pod_that_changed_in_a_way_that_may_help_is_tried_again() {
    let mut play = Play::new();
    play.put("p", 0).take();
    play.rejected("p").at(5_000);
    play.queue.put(pod("p", "1", 0), false, play.now);
    assert_eq!(play.take(), None);
    play.queue.put(pod("p", "1", 0), true, play.now);
    assert_eq!(play.take().as_deref(), Some("p"));
}

#[test]
fn another_pod_of_the_same_name_begins_anew() {
    let mut play = Play::new();
    play.put("p", 0).take();
    play.failed("p");
    play.queue.put(pod("p", "2", 0), false, play.now);
    assert_eq!(play.queue.take(play.now).map(|pod| pod.uid.clone()).as_deref(), Some("2"));
    assert_eq!(play.next_due(), None, "the first one's back-off is gone");
}

#[test]
fn what_is_out_or_gone_is_not_handed_out_again() {
    let mut play = Play::new();
    play.put("p", 0).put("q", 0).take();
    play.help(Help::Surely);
    play.queue.remove(&key("q"));
    assert_eq!(play.take(), None);
    play.queue.remove(&key("p"));
    play.rejected("p").failed("p");
    assert_eq!((play.take(), play.next_due()), (None, None));
}

#[test]
fn a_pod_whose_priority_changes_finds_its_new_place() {
    let mut play = Play::new();
    play.put("a", 0).put("b", 0).put("b", 5);
    assert_eq!(play.take().as_deref(), Some("b"));
    assert_eq!((play.take().as_deref(), play.take()), (Some("a"), None));
}

#[test]
fn n_185_help_is_offered_to_the_most_important_first() {
    let mut play = Play::new();
    play.put("low", -1).put("first", 0).put("second", 0).put("high", 10);
    for name in ["high", "first", "second", "low"] {
        assert_eq!(play.take().as_deref(), Some(name));
        play.rejected(name);
    }
    play.queue.put(pod("low", "1", 5), false, play.now);
    let mut asked = Vec::new();
    play.queue.help(play.now, |pod, _| {
        asked.push(pod.key.name().to_owned());
        Help::None
    });
    assert_eq!(asked, ["high", "low", "first", "second"], "as important as they are now");
}
