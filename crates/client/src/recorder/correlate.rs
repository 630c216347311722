//! Which events are the same, which are too many (N-179). Pure: time is in what is told.
//!
//! Three questions, asked in upstream's order: are there so many alike that they are told as one;
//! was exactly this told before, so that it is counted; is there too much talk about one object.

use super::recent::Recent;
use super::{Happening, Severity};
use jiff::{SignedDuration, Timestamp};
use std::collections::HashSet;

/// How much is remembered of each sort. Upstream: `maxLruCacheEntries`.
const REMEMBERED: usize = 4096;

/// So many that differ in their message only, each within `SIMILAR_WITHIN` of the one before, are
/// told as one from then on. Upstream: `defaultAggregateMaxEvents`, `…IntervalInSeconds`.
const SIMILAR_MAX: usize = 10;
const SIMILAR_WITHIN: SignedDuration = SignedDuration::from_secs(600);
const COMBINED: &str = "(combined from similar events): ";

/// So many events about one object, then one per `SPAM_REFILL`. Upstream: `defaultSpamBurst`, `…QPS`.
const SPAM_BURST: f64 = 25.0;
const SPAM_REFILL: SignedDuration = SignedDuration::from_secs(300);

/// An event as it is to be in the API.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Event {
    pub(super) name: String,
    /// More than one: it is there already, and is to be counted up.
    pub(super) count: i32,
    pub(super) first: Timestamp,
    pub(super) happening: Happening,
}

pub(super) struct Correlator {
    similar: Recent<String, Similar>,
    told: Recent<String, Told>,
    talk: Recent<String, Bucket>,
    /// The last number used in a name: no two events get the same.
    number: i128,
    offset: i128,
}

struct Similar {
    messages: HashSet<String>,
    last: Timestamp,
}

#[derive(Clone)]
struct Told {
    name: String,
    count: i32,
    first: Timestamp,
}

struct Bucket {
    tokens: f64,
    at: Timestamp,
}

impl Correlator {
    /// `chance` keeps two recorders apart that speak of one object in the same (simulated) instant.
    pub(super) fn new(chance: u64) -> Self {
        Correlator {
            similar: Recent::new(REMEMBERED),
            told: Recent::new(REMEMBERED),
            talk: Recent::new(REMEMBERED),
            number: 0,
            offset: i128::from(chance % 1000),
        }
    }

    /// `None` if it is one too many.
    pub(super) fn hear(&mut self, happening: Happening) -> Option<Event> {
        let (key, happening) = self.combine(happening);
        let event = self.count(&key, happening);
        self.may_talk(&event.happening).then_some(event)
    }

    /// What to count it under, and how to say it.
    fn combine(&mut self, happening: Happening) -> (String, Happening) {
        let alike = alike(&happening);
        let exactly = format!("{alike}{SEPARATOR}{}", happening.message);
        // What events.k8s.io has written may only be counted: its text is for ever.
        if !happening.action.is_empty() {
            return (exactly, happening);
        }
        let now = happening.at;
        let make = || Similar { messages: HashSet::new(), last: now };
        let many = self.similar.with(&alike, make, |similar| {
            if now.duration_since(similar.last) > SIMILAR_WITHIN {
                similar.messages.clear();
            }
            similar.last = now;
            if similar.messages.len() + 1 < SIMILAR_MAX {
                similar.messages.insert(happening.message.clone());
                return false;
            }
            !similar.messages.contains(&happening.message)
        });
        match many {
            true => {
                let message = format!("{COMBINED}{}", happening.message);
                (alike, Happening { message, ..happening })
            }
            false => (exactly, happening),
        }
    }

    fn count(&mut self, key: &String, happening: Happening) -> Event {
        let number = (happening.at.as_nanosecond() + self.offset).max(self.number + 1);
        let make = || {
            let object = happening.on.name.as_deref().unwrap_or_default();
            Told { name: format!("{object}.{number:x}"), count: 0, first: happening.at }
        };
        let told = self.told.with(key, make, |told| {
            told.count = told.count.saturating_add(1);
            told.clone()
        });
        if told.count == 1 {
            self.number = number;
        }
        Event { name: told.name, count: told.count, first: told.first, happening }
    }

    fn may_talk(&mut self, happening: &Happening) -> bool {
        let now = happening.at;
        let make = || Bucket { tokens: SPAM_BURST, at: now };
        // What is ordinary must not keep a warning from being heard.
        let about = joined([&object(happening), severity(happening)]);
        self.talk.with(&about, make, |bucket| {
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

fn object(happening: &Happening) -> String {
    let on = &happening.on;
    let parts = [&on.kind, &on.namespace, &on.name, &on.uid, &on.api_version];
    joined(parts.map(|part| part.as_deref().unwrap_or_default()))
}

/// Everything but the message.
fn alike(happening: &Happening) -> String {
    let object = object(happening);
    let part = happening.on.field_path.as_deref().unwrap_or_default();
    joined([&object, part, severity(happening), &happening.reason, &happening.action])
}

fn severity(happening: &Happening) -> &'static str {
    match happening.severity {
        Severity::Normal => "Normal",
        Severity::Warning => "Warning",
    }
}

fn joined<const N: usize>(parts: [&str; N]) -> String {
    parts.join(&SEPARATOR.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ObjectReference;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn told(pod: &str, message: &str, second: i64) -> Happening {
        Happening {
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

    fn heard(all: impl IntoIterator<Item = Happening>) -> Vec<Option<Event>> {
        let mut correlator = Correlator::new(0);
        all.into_iter().map(|happening| correlator.hear(happening)).collect()
    }

    #[test]
    fn n_179_a_name_is_the_objects_name_and_nanoseconds_in_hex() {
        let event = heard([told("web", "m", 0)]).remove(0).unwrap();
        assert_eq!(event.name, "web.18fae27693b40000");
        assert_eq!((event.count, event.first), (1, at(0)));
    }

    /// C-199
    #[test]
    fn n_179_equal_events_are_counted_and_others_are_not() {
        let other = Happening { reason: "Killing".into(), ..told("web", "m", 3) };
        let happenings = [
            told("web", "m", 0),
            told("web", "m", 1),
            told("web", "n", 2),
            other,
            told("db", "m", 4),
        ];
        let events: Vec<Event> = heard(happenings).into_iter().flatten().collect();
        assert_eq!(events.iter().map(|e| e.count).collect::<Vec<_>>(), [1, 2, 1, 1, 1]);
        assert_eq!(events[0].name, events[1].name);
        assert_eq!((events[1].first, events[1].happening.at), (at(0), at(1)));
        let names: HashSet<_> = events.iter().map(|event| &event.name).collect();
        assert_eq!(names.len(), 4);
    }

    #[test]
    fn two_events_of_one_instant_have_two_names() {
        let events = heard([told("web", "a", 0), told("web", "b", 0)]);
        assert_ne!(events[0].as_ref().unwrap().name, events[1].as_ref().unwrap().name);
    }

    /// C-199
    #[test]
    fn n_179_many_similar_events_become_one_that_counts() {
        let events = heard((0..12).map(|n| told("web", &format!("m{n}"), n)));
        let events: Vec<Event> = events.into_iter().flatten().collect();
        assert!(events[..9].iter().all(|event| event.count == 1));
        assert_eq!(events[9].happening.message, "(combined from similar events): m9");
        assert_eq!(events[11].happening.message, "(combined from similar events): m11");
        assert_eq!((events[9].count, events[10].count, events[11].count), (1, 2, 3));
        assert_eq!(events[9].name, events[11].name);
    }

    #[test]
    fn n_179_similar_events_that_come_rarely_stay_apart() {
        let events = heard((0..15).map(|n| told("web", &format!("m{n}"), n * 601)));
        assert!(events.iter().flatten().all(|event| !event.happening.message.starts_with('(')));
    }

    #[test]
    fn n_180_what_events_k8s_io_has_written_keeps_its_text() {
        let modern =
            |n| Happening { action: "Scheduling".into(), ..told("web", &format!("m{n}"), n) };
        let events = heard((0..12).map(modern));
        assert!(events.iter().flatten().all(|event| event.count == 1));
    }

    /// C-199
    #[test]
    fn n_179_an_object_may_be_talked_about_25_times_then_once_per_5_minutes() {
        let burst = (0..40).map(|_| told("web", "m", 0));
        let normal = Happening { severity: Severity::Normal, ..told("web", "m", 0) };
        let later = [told("db", "m", 0), told("web", "m", 299), told("web", "m", 301), normal];
        let events = heard(burst.chain(later));
        let told: Vec<bool> = events.iter().map(Option::is_some).collect();
        assert_eq!(told.iter().position(|told| !told), Some(25));
        assert_eq!(told[40..], [true, false, true, true], "of the other sort it may");
        assert_eq!(events[42].as_ref().unwrap().count, 42, "what was not written is counted too");
    }
}
