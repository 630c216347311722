//! Counts repeated events, combines similar ones and limits their rate (N-179). Pure: events carry their time.
//!
//! The three steps are upstream's, in its order: combine events that differ only in their message if there are
//! many; count an event that is equal to an earlier one; drop events if there are too many about one object.

use super::RecordedEvent;
use super::lru::LruMap;
use jiff::{SignedDuration, Timestamp};
use std::collections::HashSet;

/// Entries that each map keeps. Upstream: `maxLruCacheEntries`.
const ENTRIES_MAX: usize = 4096;

/// After this many events that differ only in their message, each within `SIMILAR_WITHIN` of the one before,
/// further ones are combined. Upstream: `defaultAggregateMaxEvents`, `…IntervalInSeconds`.
const SIMILAR_MAX: usize = 10;
const SIMILAR_WITHIN: SignedDuration = SignedDuration::from_secs(600);
const COMBINED: &str = "(combined from similar events): ";

/// Token bucket per object: this many events, then one per `SPAM_REFILL`. Upstream: `defaultSpamBurst`, `…QPS`.
const SPAM_BURST: f64 = 25.0;
const SPAM_REFILL: SignedDuration = SignedDuration::from_secs(300);

/// An event as it is written to the API.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ApiEvent {
    pub(super) name: String,
    /// If greater than one, the object exists already and its count is updated.
    pub(super) count: i32,
    pub(super) first: Timestamp,
    pub(super) recorded: RecordedEvent,
}

pub(super) struct Correlator {
    similar: LruMap<String, Similar>,
    counted: LruMap<String, CountedEvent>,
    rate_limits: LruMap<String, Bucket>,
    /// The last number used in a name. Each new event gets a higher one.
    number: i128,
    /// Keeps names of two recorders apart.
    offset: i128,
}

struct Similar {
    messages: HashSet<String>,
    last: Timestamp,
}

#[derive(Clone)]
struct CountedEvent {
    name: String,
    count: i32,
    first: Timestamp,
}

struct Bucket {
    tokens: f64,
    at: Timestamp,
}

impl Correlator {
    /// `random` keeps the event names of two recorders apart if both record an event about one object in the same
    /// (simulated) instant.
    pub(super) fn new(random: u64) -> Self {
        Correlator {
            similar: LruMap::new(ENTRIES_MAX),
            counted: LruMap::new(ENTRIES_MAX),
            rate_limits: LruMap::new(ENTRIES_MAX),
            number: 0,
            offset: i128::from(random % 1000),
        }
    }

    /// `None` if the rate limit of the object is exceeded.
    pub(super) fn correlate(&mut self, event: RecordedEvent) -> Option<ApiEvent> {
        let (key, event) = self.combine(event);
        let event = self.count(&key, event);
        self.take_token(&event.recorded).then_some(event)
    }

    /// The key to count the event under, and the event with its final message.
    fn combine(&mut self, event: RecordedEvent) -> (String, RecordedEvent) {
        let without_message = without_message(&event);
        let exactly = format!("{without_message}{SEPARATOR}{}", event.message);
        // The text of an event of events.k8s.io is immutable; only its count can change.
        if !event.action.is_empty() {
            return (exactly, event);
        }
        let now = event.at;
        let make = || Similar { messages: HashSet::new(), last: now };
        let many = self.similar.with(&without_message, make, |similar| {
            if now.duration_since(similar.last) > SIMILAR_WITHIN {
                similar.messages.clear();
            }
            similar.last = now;
            if similar.messages.len() + 1 < SIMILAR_MAX {
                similar.messages.insert(event.message.clone());
                return false;
            }
            !similar.messages.contains(&event.message)
        });
        match many {
            true => {
                let message = format!("{COMBINED}{}", event.message);
                (without_message, RecordedEvent { message, ..event })
            }
            false => (exactly, event),
        }
    }

    fn count(&mut self, key: &String, event: RecordedEvent) -> ApiEvent {
        let number = (event.at.as_nanosecond() + self.offset).max(self.number + 1);
        let make = || {
            let object = event.on.name.as_deref().unwrap_or_default();
            CountedEvent { name: format!("{object}.{number:x}"), count: 0, first: event.at }
        };
        let counted = self.counted.with(key, make, |counted| {
            counted.count = counted.count.saturating_add(1);
            counted.clone()
        });
        if counted.count == 1 {
            self.number = number;
        }
        let CountedEvent { name, count, first } = counted;
        ApiEvent { name, count, first, recorded: event }
    }

    fn take_token(&mut self, event: &RecordedEvent) -> bool {
        let now = event.at;
        let make = || Bucket { tokens: SPAM_BURST, at: now };
        // Normal events must not use up the tokens of warnings.
        let about = joined([&object(event), event.severity.as_str()]);
        self.rate_limits.with(&about, make, |bucket| {
            let passed = now.duration_since(bucket.at).as_secs_f64().max(0.0);
            bucket.tokens = (bucket.tokens + passed / SPAM_REFILL.as_secs_f64()).min(SPAM_BURST);
            bucket.at = bucket.at.max(now);
            let may = bucket.tokens >= 1.0;
            if may {
                bucket.tokens -= 1.0;
            }
            may
        })
    }
}

/// Cannot be in a name, a kind or a reason.
const SEPARATOR: char = '\u{1f}';

fn object(event: &RecordedEvent) -> String {
    let on = &event.on;
    let parts = [&on.kind, &on.namespace, &on.name, &on.uid, &on.api_version];
    joined(parts.map(|part| part.as_deref().unwrap_or_default()))
}

/// Everything but the message.
fn without_message(event: &RecordedEvent) -> String {
    let object = object(event);
    let part = event.on.field_path.as_deref().unwrap_or_default();
    joined([&object, part, event.severity.as_str(), &event.reason, &event.action])
}

fn joined<const N: usize>(parts: [&str; N]) -> String {
    parts.join(&SEPARATOR.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;
    use k8s_openapi::api::core::v1::ObjectReference;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn event(pod: &str, message: &str, second: i64) -> RecordedEvent {
        RecordedEvent {
            on: ObjectReference {
                kind: Some("Pod".into()),
                namespace: Some("default".into()),
                name: Some(pod.into()),
                ..ObjectReference::default()
            },
            severity: Severity::Warning,
            reason: "BackOff".into(),
            message: message.into(),
            action: String::new(),
            at: at(second),
        }
    }

    fn correlated(all: impl IntoIterator<Item = RecordedEvent>) -> Vec<Option<ApiEvent>> {
        let mut correlator = Correlator::new(0);
        all.into_iter().map(|event| correlator.correlate(event)).collect()
    }

    #[test]
    fn n_179_event_name_is_the_object_name_and_nanoseconds_in_hex() {
        let event = correlated([event("web", "m", 0)]).remove(0).unwrap();
        assert_eq!(event.name, "web.18fae27693b40000");
        assert_eq!((event.count, event.first), (1, at(0)));
    }

    /// C-199: equal events increase a count.
    #[test]
    fn n_179_equal_events_are_counted_and_others_are_not() {
        let other = RecordedEvent { reason: "Killing".into(), ..event("web", "m", 3) };
        let events = [
            event("web", "m", 0),
            event("web", "m", 1),
            event("web", "n", 2),
            other,
            event("db", "m", 4),
        ];
        let events: Vec<ApiEvent> = correlated(events).into_iter().flatten().collect();
        assert_eq!(events.iter().map(|e| e.count).collect::<Vec<_>>(), [1, 2, 1, 1, 1]);
        assert_eq!(events[0].name, events[1].name);
        assert_eq!((events[1].first, events[1].recorded.at), (at(0), at(1)));
        let names: HashSet<_> = events.iter().map(|event| &event.name).collect();
        assert_eq!(names.len(), 4);
    }

    #[test]
    fn events_of_one_instant_get_different_names() {
        let events = correlated([event("web", "a", 0), event("web", "b", 0)]);
        assert_ne!(events[0].as_ref().unwrap().name, events[1].as_ref().unwrap().name);
    }

    /// C-199: more than ten similar events are combined.
    #[test]
    fn n_179_many_similar_events_are_combined_into_one() {
        let events = correlated((0..12).map(|n| event("web", &format!("m{n}"), n)));
        let events: Vec<ApiEvent> = events.into_iter().flatten().collect();
        assert!(events[..9].iter().all(|event| event.count == 1));
        assert_eq!(events[9].recorded.message, "(combined from similar events): m9");
        assert_eq!(events[11].recorded.message, "(combined from similar events): m11");
        assert_eq!((events[9].count, events[10].count, events[11].count), (1, 2, 3));
        assert_eq!(events[9].name, events[11].name);
    }

    #[test]
    fn n_179_rare_similar_events_are_not_combined() {
        let events = correlated((0..15).map(|n| event("web", &format!("m{n}"), n * 601)));
        assert!(events.iter().flatten().all(|event| !event.recorded.message.starts_with('(')));
    }

    #[test]
    fn n_180_events_of_events_k8s_io_are_not_combined() {
        let with_action =
            |n| RecordedEvent { action: "Scheduling".into(), ..event("web", &format!("m{n}"), n) };
        let events = correlated((0..12).map(with_action));
        assert!(events.iter().flatten().all(|event| event.count == 1));
    }

    /// C-199: the rate of events per object is limited.
    #[test]
    fn n_179_an_object_gets_25_events_then_one_per_5_minutes() {
        let burst = (0..40).map(|_| event("web", "m", 0));
        let normal = RecordedEvent { severity: Severity::Normal, ..event("web", "m", 0) };
        let later = [event("db", "m", 0), event("web", "m", 299), event("web", "m", 301), normal];
        let events = correlated(burst.chain(later));
        let written: Vec<bool> = events.iter().map(Option::is_some).collect();
        assert_eq!(written.iter().position(|written| !written), Some(25));
        assert_eq!(written[40..], [true, false, true, true], "another severity has its own limit");
        assert_eq!(events[42].as_ref().unwrap().count, 42, "unwritten events are counted too");
    }
}
