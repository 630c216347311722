//! Sequences of calls, and which pod comes next (N-183, N-185).

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

    fn requeue(&mut self, help: QueueingHint) -> &mut Play {
        self.queue.requeue(self.now, |_, _| help);
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
fn n_183_higher_priority_comes_first_then_first_in_first_out() {
    let mut play = Play::new();
    play.put("b", 0).put("a", 0).put("high", 10).put("low", -1);
    let order: Vec<String> = std::iter::from_fn(|| play.take()).collect();
    assert_eq!(order, ["high", "b", "a", "low"]);
}

#[test]
fn n_185_a_rejected_pod_waits_for_an_event_and_then_for_its_backoff() {
    let mut play = Play::new();
    play.put("p", 0).take();
    play.rejected("p");
    assert_eq!(play.at(100_000).take(), None, "nothing has changed");
    assert_eq!(
        play.requeue(QueueingHint::QueueAfterBackoff).take().as_deref(),
        Some("p"),
        "its back-off is long over"
    );
    play.rejected("p");
    assert_eq!(play.at(100_500).requeue(QueueingHint::Skip).take(), None);
    assert_eq!(play.requeue(QueueingHint::QueueAfterBackoff).take(), None);
    assert_eq!(play.next_due(), Some(102_000), "two seconds after the second try");
    assert_eq!(play.at(102_000).take().as_deref(), Some("p"));
}

#[test]
fn n_185_backoff_doubles_up_to_ten_seconds() {
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
fn queue_now_activates_without_backoff() {
    let mut play = Play::new();
    play.put("p", 0).take();
    assert_eq!(play.rejected("p").requeue(QueueingHint::QueueNow).take().as_deref(), Some("p"));
}

#[test]
fn n_185_after_five_minutes_a_pod_is_tried_without_an_event() {
    let mut play = Play::new();
    play.put("p", 0).take();
    play.rejected("p");
    let mut tried = None;
    while tried.is_none() {
        let due = play.next_due().expect("a pod waits") as u64;
        tried = play.at(due).take().map(|_| due);
    }
    assert_eq!(tried, Some(300_000));
    assert_eq!(play.next_due(), None);
}

#[test]
fn a_relevant_change_of_the_pod_requeues_it() {
    let mut play = Play::new();
    play.put("p", 0).take();
    play.rejected("p").at(5_000);
    play.queue.put(pod("p", "1", 0), false, play.now);
    assert_eq!(play.take(), None);
    play.queue.put(pod("p", "1", 0), true, play.now);
    assert_eq!(play.take().as_deref(), Some("p"));
}

#[test]
fn a_new_pod_of_the_same_name_starts_without_backoff() {
    let mut play = Play::new();
    play.put("p", 0).take();
    play.failed("p");
    play.queue.put(pod("p", "2", 0), false, play.now);
    assert_eq!(play.queue.take(play.now).map(|pod| pod.uid.clone()).as_deref(), Some("2"));
    assert_eq!(play.next_due(), None, "the backoff of the first one is gone");
}

#[test]
fn taken_and_removed_pods_are_not_returned_again() {
    let mut play = Play::new();
    play.put("p", 0).put("q", 0).take();
    play.requeue(QueueingHint::QueueNow);
    play.queue.remove(&key("q"));
    assert_eq!(play.take(), None);
    play.queue.remove(&key("p"));
    play.rejected("p").failed("p");
    assert_eq!((play.take(), play.next_due()), (None, None));
}

#[test]
fn a_change_of_priority_reorders_the_queue() {
    let mut play = Play::new();
    play.put("a", 0).put("b", 0).put("b", 5);
    assert_eq!(play.take().as_deref(), Some("b"));
    assert_eq!((play.take().as_deref(), play.take()), (Some("a"), None));
}

#[test]
fn n_185_hints_are_evaluated_in_the_order_of_priority() {
    let mut play = Play::new();
    play.put("low", -1).put("first", 0).put("second", 0).put("high", 10);
    for name in ["high", "first", "second", "low"] {
        assert_eq!(play.take().as_deref(), Some(name));
        play.rejected(name);
    }
    play.queue.put(pod("low", "1", 5), false, play.now);
    let mut evaluated = Vec::new();
    play.queue.requeue(play.now, |pod, _| {
        evaluated.push(pod.key.name().to_owned());
        QueueingHint::Skip
    });
    assert_eq!(evaluated, ["high", "low", "first", "second"], "by current priority");
}
