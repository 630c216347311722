//! Cron schedules: `minute hour day-of-month month day-of-week`, or `@hourly` and similar.
//!
//! A schedule is five sets of numbers. Given a time, it returns the next time at which it is due, in the
//! local time of the zone that the caller chose. `@every` is a duration and independent of zones. Clients
//! see error messages, so they equal those of the library that upstream uses.

use jiff::civil::DateTime;
use jiff::{SignedDuration, ToSpan};

/// When a job is due: sets of minutes, hours and so on, or a fixed interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule(When);

#[derive(Debug, Clone, PartialEq, Eq)]
enum When {
    Calendar {
        minute: Set,
        hour: Set,
        day: Set,
        month: Set,
        weekday: Set,
    },
    /// `@every 1h30m`; never less than a second.
    Every {
        seconds: i64,
    },
}

/// Numbers 0 to 63 as bits. `any` is set if the field was a star: then only the other one of day and
/// weekday restricts the date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Set {
    bits: u64,
    any: bool,
}

impl Set {
    fn has(self, number: i8) -> bool {
        u32::try_from(number).is_ok_and(|number| self.bits >> number & 1 == 1)
    }
}

struct Bounds {
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

const MINUTE: Bounds = Bounds { min: 0, max: 59, names: &[] };
const HOUR: Bounds = Bounds { min: 0, max: 23, names: &[] };
const DAY: Bounds = Bounds { min: 1, max: 31, names: &[] };
const MONTH: Bounds = Bounds {
    min: 1,
    max: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAY: Bounds =
    Bounds { min: 0, max: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

impl Schedule {
    pub fn parse(text: &str) -> Result<Schedule, String> {
        if text.is_empty() {
            return Err("empty spec string".into());
        }
        let text = without_zone(text)?;
        if text.starts_with('@') {
            return descriptor(text);
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            let list = fields.join(" ");
            return Err(format!("expected exactly 5 fields, found {}: [{list}]", fields.len()));
        };
        Ok(Schedule(When::Calendar {
            minute: set(minute, &MINUTE)?,
            hour: set(hour, &HOUR)?,
            day: set(day, &DAY)?,
            month: set(month, &MONTH)?,
            weekday: set(weekday, &WEEKDAY)?,
        }))
    }

    /// The interval of `@every`, which is independent of the local time.
    pub fn every(&self) -> Option<SignedDuration> {
        match self.0 {
            When::Every { seconds } => Some(SignedDuration::from_secs(seconds)),
            When::Calendar { .. } => None,
        }
    }

    /// The first due time after `time`. `None` if there is none within five years (30 February), and for
    /// `@every`, see [`Schedule::every`].
    pub fn next_after(&self, time: DateTime) -> Option<DateTime> {
        let (minute, hour, day, month, weekday) = match self.0 {
            When::Every { .. } => return None,
            When::Calendar { minute, hour, day, month, weekday } => {
                (minute, hour, day, month, weekday)
            }
        };
        let start = time.with().second(0).subsec_nanosecond(0).build().ok()?;
        let mut next = start.checked_add(1.minute()).ok()?;
        let last_year = next.year().checked_add(5)?;
        while next.year() <= last_year {
            if !month.has(next.month()) {
                next =
                    next.date().first_of_month().checked_add(1.month()).ok()?.to_datetime(MIDNIGHT);
            } else if !is_day(day, weekday, next) {
                next = next.date().tomorrow().ok()?.to_datetime(MIDNIGHT);
            } else if !hour.has(next.hour()) {
                let this_hour = next.with().minute(0).build().ok()?;
                next = this_hour.checked_add(1.hour()).ok()?;
            } else if !minute.has(next.minute()) {
                next = next.checked_add(1.minute()).ok()?;
            } else {
                return Some(next);
            }
        }
        None
    }
}

const MIDNIGHT: jiff::civil::Time = jiff::civil::Time::midnight();

/// If both day and weekday are restricted, one of them has to match; otherwise the restricted one.
fn is_day(day: Set, weekday: Set, time: DateTime) -> bool {
    let by_day = day.has(time.day());
    let by_weekday = weekday.has(time.weekday().to_sunday_zero_offset());
    if day.any || weekday.any { by_day && by_weekday } else { by_day || by_weekday }
}

/// Drops a leading `TZ=` or `CRON_TZ=`; the caller checks whether it is allowed.
fn without_zone(text: &str) -> Result<&str, String> {
    if !text.starts_with("TZ=") && !text.starts_with("CRON_TZ=") {
        return Ok(text);
    }
    match text.split_once(' ') {
        Some((_, rest)) => Ok(rest.trim()),
        None => Err(format!("provided bad location {}: ", text)),
    }
}

fn descriptor(text: &str) -> Result<Schedule, String> {
    let calendar = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => {
            let Some(every) = text.strip_prefix("@every ") else {
                return Err(format!("unrecognized descriptor: {text}"));
            };
            let seconds = duration_seconds(every).ok_or_else(|| {
                let why = format!("time: invalid duration {every:?}");
                format!("failed to parse duration {text}: {why}")
            })?;
            return Ok(Schedule(When::Every { seconds: seconds.max(1) }));
        }
    };
    Schedule::parse(calendar)
}

/// Whole seconds of a Go duration such as `1h30m`.
fn duration_seconds(text: &str) -> Option<i64> {
    let mut rest = text;
    let mut seconds = 0f64;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (value, unit) = rest.split_at(number);
        let end = unit.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(unit.len());
        let scale = match &unit[..end] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        seconds += value.parse::<f64>().ok()? * scale;
        rest = &unit[end..];
    }
    (!text.is_empty() && seconds < 1e10).then_some(seconds as i64)
}

fn set(field: &str, bounds: &Bounds) -> Result<Set, String> {
    let mut set = Set { bits: 0, any: false };
    for part in field.split(',').filter(|part| !part.is_empty()) {
        let range = range(part, bounds)?;
        set.bits |= range.bits;
        set.any |= range.any;
    }
    Ok(set)
}

/// `number | number-number | * [/step]`
fn range(text: &str, bounds: &Bounds) -> Result<Set, String> {
    let steps: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = steps[0].split('-').collect();
    let mut any = false;
    let (start, mut end) = if ends[0] == "*" || ends[0] == "?" {
        any = true;
        (bounds.min, bounds.max)
    } else {
        let start = number(ends[0], bounds.names)?;
        match ends[..] {
            [_] => (start, start),
            [_, end] => (start, number(end, bounds.names)?),
            _ => return Err(format!("too many hyphens: {text}")),
        }
    };
    let step = match steps[..] {
        [_] => 1,
        [_, step] => {
            if ends.len() == 1 {
                end = bounds.max;
            }
            let step = number(step, &[])?;
            any &= step <= 1;
            step
        }
        _ => return Err(format!("too many slashes: {text}")),
    };
    let Bounds { min, max, .. } = bounds;
    if start < *min {
        return Err(format!("beginning of range ({start}) below minimum ({min}): {text}"));
    }
    if end > *max {
        return Err(format!("end of range ({end}) above maximum ({max}): {text}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    let bits = (start..=end).step_by(step as usize).fold(0u64, |bits, n| bits | 1 << n);
    Ok(Set { bits, any })
}

fn number(text: &str, names: &[&str]) -> Result<u32, String> {
    let lower = text.to_lowercase();
    if let Some(place) = names.iter().position(|name| *name == lower) {
        // Months begin at one, weekdays at zero.
        return Ok(place as u32 + u32::from(names.len() == 12));
    }
    match text.parse::<i64>() {
        Ok(value) if value < 0 => Err(format!("negative number ({value}) not allowed: {text}")),
        Ok(value) => Ok(u32::try_from(value).unwrap_or(u32::MAX)),
        Err(_) => Err(format!(
            "failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, after: &str) -> String {
        let schedule = Schedule::parse(schedule).unwrap();
        match schedule.next_after(after.parse().unwrap()) {
            Some(time) => time.to_string(),
            None => "never".into(),
        }
    }

    #[test]
    fn c_122_a_schedule_is_due_at_its_next_time() {
        for (schedule, after, due) in [
            ("*/5 * * * *", "2026-01-01T00:00:00", "2026-01-01T00:05:00"),
            ("*/5 * * * *", "2026-01-01T00:04:59", "2026-01-01T00:05:00"),
            ("0 0 1 * *", "2026-01-01T00:00:00", "2026-02-01T00:00:00"),
            ("@hourly", "2026-12-31T23:10:00", "2027-01-01T00:00:00"),
            ("30 8 * * mon-fri", "2026-01-02T09:00:00", "2026-01-05T08:30:00"),
            ("0 12 13 * fri", "2026-01-01T00:00:00", "2026-01-02T12:00:00"),
            ("0 0 29 feb *", "2026-01-01T00:00:00", "2028-02-29T00:00:00"),
            ("0 0 30 2 *", "2026-01-01T00:00:00", "never"),
            ("1-10/3 5 * * *", "2026-01-01T05:01:00", "2026-01-01T05:04:00"),
            ("*/1 * * * ?", "2026-01-01T00:00:30", "2026-01-01T00:01:00"),
            ("5/20 * * * *", "2026-01-01T00:06:00", "2026-01-01T00:25:00"),
            ("0 0 * JAN,Jul Sun", "2026-02-01T00:00:00", "2026-07-05T00:00:00"),
            ("7,9-11 * * * *", "2026-01-01T00:07:00", "2026-01-01T00:09:00"),
            // 1 January 2026 is a Thursday. If day and weekday are restricted, one of them has to match.
            ("0 0 3 * mon", "2026-01-01T00:00:00", "2026-01-03T00:00:00"),
            ("0 0 3 * mon", "2026-01-03T00:00:00", "2026-01-05T00:00:00"),
            // A step is a restriction: every other day, or Monday. A step of one is none.
            ("0 0 */2 * mon", "2026-01-03T00:00:00", "2026-01-05T00:00:00"),
            ("0 0 */2 * mon", "2026-01-10T00:00:00", "2026-01-11T00:00:00"),
            ("0 0 */1 * mon", "2026-01-05T00:00:00", "2026-01-12T00:00:00"),
            ("@yearly", "2026-01-01T00:00:00", "2027-01-01T00:00:00"),
            ("@annually", "2026-01-01T00:00:00", "2027-01-01T00:00:00"),
            ("@monthly", "2026-01-02T00:00:00", "2026-02-01T00:00:00"),
            ("@weekly", "2026-01-01T00:00:00", "2026-01-04T00:00:00"),
            ("@daily", "2026-01-01T00:00:00", "2026-01-02T00:00:00"),
            ("@midnight", "2026-01-01T00:00:00", "2026-01-02T00:00:00"),
        ] {
            assert_eq!(next(schedule, after), due, "{schedule} after {after}");
        }
    }

    #[test]
    fn c_122_an_interval_has_whole_seconds_and_at_least_one() {
        for (schedule, seconds) in
            [("@every 90s", 90), ("@every 1h0.4s", 3600), ("@every 1h30m", 5400), ("@every 5ms", 1)]
        {
            let every = Schedule::parse(schedule).unwrap().every();
            assert_eq!(every, Some(SignedDuration::from_secs(seconds)), "{schedule}");
        }
        assert_eq!(Schedule::parse("@hourly").unwrap().every(), None);
    }

    #[test]
    fn a_92_c_122_an_invalid_schedule_has_upstreams_error() {
        for (schedule, why) in [
            ("often", "expected exactly 5 fields, found 1: [often]"),
            ("", "empty spec string"),
            ("@fortnightly", "unrecognized descriptor: @fortnightly"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("* * * * 7", "end of range (7) above maximum (6): 7"),
            (
                "@every often",
                "failed to parse duration @every often: time: invalid duration \"often\"",
            ),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            (
                "x * * * *",
                "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax",
            ),
        ] {
            assert_eq!(Schedule::parse(schedule).unwrap_err(), why, "{schedule}");
        }
    }
}
