//! Computes when a schedule was last due and is next due, in the time zone of the CronJob (C-122…C-124).
//!
//! Local times that a clock change skips are not due; those that it repeats are due once. The default zone is UTC.

use api::schedule::Schedule;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// At most this many missed times are counted. Upstream: `tooManyMissed`.
pub(super) const MISSED_MAX: usize = 100;

/// How far back the last due time is searched. A larger window is used only if the smaller one has none.
const WINDOWS: [SignedDuration; 4] = [
    SignedDuration::from_hours(1),
    SignedDuration::from_hours(24),
    SignedDuration::from_hours(24 * 31),
    SignedDuration::from_hours(24 * 366 * 5),
];

/// Time zones that were loaded, by name.
#[derive(Default)]
pub(super) struct Zones(Mutex<BTreeMap<String, TimeZone>>);

impl Zones {
    /// Errors have the text that Go uses.
    pub(super) fn get(&self, named: Option<&str>) -> Result<TimeZone, String> {
        let Some(named) = named.filter(|named| *named != "UTC" && *named != "Etc/UTC") else {
            return Ok(TimeZone::UTC);
        };
        let mut known = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(zone) = known.get(named) {
            return Ok(zone.clone());
        }
        let zone =
            api::time_zone::time_zone(named).ok_or_else(|| format!("unknown time zone {named}"))?;
        known.insert(named.to_owned(), zone.clone());
        Ok(zone)
    }
}

/// A schedule in a zone.
pub(super) struct Times {
    schedule: Schedule,
    zone: TimeZone,
}

/// Due times in an interval.
#[derive(Debug, PartialEq)]
pub(super) struct Due {
    pub(super) last: Timestamp,
    /// More than [`MISSED_MAX`] times were due.
    pub(super) too_many: bool,
}

impl Times {
    pub(super) fn new(schedule: Schedule, zone: TimeZone) -> Times {
        Times { schedule, zone }
    }

    /// RFC 3339 in the zone, as Go formats it: with `Z` if the offset is zero.
    pub(super) fn format(&self, at: Timestamp) -> String {
        if self.zone.to_offset(at).seconds() == 0 {
            return clock::rfc3339(at);
        }
        at.to_zoned(self.zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    }

    /// The first due time later than `after`.
    pub(super) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        if let Some(every) = self.schedule.every() {
            return whole_second(after)?.checked_add(every).ok();
        }
        let mut civil = self.zone.to_datetime(after);
        loop {
            civil = self.schedule.next_after(civil)?;
            let ambiguous = self.zone.to_ambiguous_timestamp(civil);
            let found = match ambiguous.offset() {
                AmbiguousOffset::Gap { .. } => continue,
                AmbiguousOffset::Unambiguous { .. } => ambiguous.unambiguous().ok(),
                AmbiguousOffset::Fold { .. } => {
                    let again = self.zone.to_ambiguous_timestamp(civil).later().ok();
                    ambiguous.earlier().ok().filter(|at| *at > after).or(again)
                }
            };
            if let Some(found) = found.filter(|found| *found > after) {
                return Some(found);
            }
        }
    }

    /// The last due time in (`from`, `until`], and whether there were too many. Schedules with an interval count from
    /// `base`, which is not later than `from`.
    pub(super) fn due(&self, base: Timestamp, from: Timestamp, until: Timestamp) -> Option<Due> {
        if let Some(every) = self.schedule.every() {
            return due_by_interval(base, every, from, until);
        }
        let first = self.next(from).filter(|first| *first <= until)?;
        let mut counted = 1;
        let mut last = first;
        while counted <= MISSED_MAX {
            match self.next(last).filter(|next| *next <= until) {
                Some(next) => last = next,
                None => return Some(Due { last, too_many: false }),
            }
            counted += 1;
        }
        Some(Due { last: self.last(last, until), too_many: true })
    }

    /// The last due time up to `until`; `known` is an earlier one.
    fn last(&self, known: Timestamp, until: Timestamp) -> Timestamp {
        for window in WINDOWS {
            let start = until.checked_sub(window).unwrap_or(known).max(known);
            let mut last = None;
            let mut at = start;
            // At most 60 in the first window of an hour, because schedules have a resolution of minutes.
            while let Some(next) = self.next(at).filter(|next| *next <= until) {
                last = Some(next);
                at = next;
            }
            if let Some(last) = last {
                return last;
            }
        }
        known
    }
}

fn whole_second(at: Timestamp) -> Option<Timestamp> {
    Timestamp::from_second(at.as_second()).ok()
}

/// As [`Times::due`], for intervals. Divides instead of counting, because there may be very many times.
fn due_by_interval(
    base: Timestamp,
    every: SignedDuration,
    from: Timestamp,
    until: Timestamp,
) -> Option<Due> {
    let (start, every) = (base.as_second(), every.as_secs().max(1));
    let times_up_to = |at: Timestamp| (at.as_second() - start).div_euclid(every).max(0);
    let (before, all) = (times_up_to(from), times_up_to(until));
    let last = Timestamp::from_second(start + all * every).ok().filter(|_| all > before)?;
    let missed_max = i64::try_from(MISSED_MAX).unwrap_or(i64::MAX);
    Some(Due { last, too_many: all - before > missed_max })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(schedule: &str, zone: Option<&str>) -> Times {
        Times::new(Schedule::parse(schedule).unwrap(), Zones::default().get(zone).unwrap())
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn c_123_skipped_local_times_are_not_due_and_repeated_ones_are_due_once() {
        // In Berlin the clock changes from 2 to 3 on 29 March 2026, and from 3 to 2 on 25 October.
        let cases = [
            ("30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-30T00:30:00Z"),
            ("30 4 * * *", "2026-03-28T12:00:00Z", "2026-03-29T02:30:00Z"),
            ("30 2 * * *", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"),
            ("30 2 * * *", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
            ("0 * * * *", "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z"),
        ];
        let berlin = Some("Europe/Berlin");
        for (schedule, after, expected) in cases {
            let next = times(schedule, berlin).next(at(after));
            assert_eq!(next, Some(at(expected)), "{schedule} after {after}");
        }
        assert!(Zones::default().get(Some("Moon/Base")).is_err());
        assert!(Zones::default().get(Some("../../etc/passwd")).is_err());
    }

    /// At the end of daylight saving time one local hour takes two hours.
    #[test]
    fn c_122_intervals_ignore_clock_changes() {
        let often = times("@every 10m", Some("Europe/Berlin"));
        let mut now = at("2026-10-25T00:30:00.7Z");
        for expected in ["00:40", "00:50", "01:00", "01:10", "01:20"] {
            now = often.next(now).unwrap();
            assert_eq!(now, at(&format!("2026-10-25T{expected}:00Z")));
        }
    }

    /// However many times were missed, and even if only few of them still count.
    #[test]
    fn c_124_intervals_keep_their_phase() {
        let often = times("@every 7m", None);
        let base = at("2026-01-01T00:00:30Z");
        let due = |from: &str, until: &str| often.due(base, at(from), at(until));
        let one = |last: &str, too_many| Some(Due { last: at(last), too_many });
        let start = "2026-01-01T00:00:30Z";
        assert_eq!(due(start, "2026-01-01T00:07:29Z"), None);
        assert_eq!(due(start, "2026-01-01T00:07:30Z"), one("2026-01-01T00:07:30Z", false));
        // 100 missed times, and 101.
        assert_eq!(due(start, "2026-01-01T11:46:59Z"), one("2026-01-01T11:40:30Z", false));
        assert_eq!(due(start, "2026-01-01T11:47:30Z"), one("2026-01-01T11:47:30Z", true));
        assert_eq!(due(start, "2026-02-01T00:00:00Z"), one("2026-01-31T23:59:30Z", true));
        let late = "2026-01-31T23:59:00Z";
        assert_eq!(due(late, "2026-02-01T00:00:00Z"), one("2026-01-31T23:59:30Z", false));
        assert_eq!(due("2026-01-31T23:59:30Z", "2026-02-01T00:00:00Z"), None);
    }

    #[test]
    fn c_125_times_are_formatted_as_in_go() {
        let cases = [
            (None, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
            (Some("Europe/Berlin"), "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00"),
            (Some("Europe/London"), "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
            (Some("Europe/London"), "2026-07-01T00:00:00Z", "2026-07-01T01:00:00+01:00"),
            (Some("America/New_York"), "2026-01-01T00:00:00Z", "2025-12-31T19:00:00-05:00"),
        ];
        for (zone, when, written) in cases {
            assert_eq!(times("@hourly", zone).format(at(when)), written, "{zone:?}");
        }
    }

    #[test]
    fn c_124_only_the_last_missed_time_counts() {
        let minutes = times("*/5 * * * *", None);
        let due = |from: &str, until: &str| minutes.due(at(from), at(from), at(until));
        let one = |last: &str, too_many| Some(Due { last: at(last), too_many });
        assert_eq!(due("2026-01-01T00:00:00Z", "2026-01-01T00:04:59Z"), None);
        assert_eq!(
            due("2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"),
            one("2026-01-01T00:05:00Z", false)
        );
        assert_eq!(
            due("2026-01-01T00:00:00Z", "2026-01-01T01:07:00Z"),
            one("2026-01-01T01:05:00Z", false)
        );
        assert_eq!(
            due("2025-01-01T00:00:00Z", "2026-01-01T01:07:00Z"),
            one("2026-01-01T01:05:00Z", true)
        );
    }
}
