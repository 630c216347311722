//! The operations of all clients of a run, and the checks of them.

use super::checker;
use super::operation::{Answer, Call, NEVER, Operation};
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A version of an object that a client saw.
#[derive(Debug, Clone, Copy)]
struct Sighting {
    value: u64,
    revision: u64,
    start: u64,
    end: u64,
    /// The response to the write that created this version.
    written: bool,
}

#[derive(Default)]
pub(crate) struct History {
    moment: AtomicU64,
    objects: Mutex<BTreeMap<String, Vec<Operation>>>,
    sightings: Mutex<Vec<Sighting>>,
}

/// Counts of a run, for the test output.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) answered: usize,
    pub(crate) unknown: usize,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} operations answered, {} not", self.answered, self.unknown)
    }
}

impl History {
    /// The next logical time.
    pub(crate) fn now(&self) -> u64 {
        self.moment.fetch_add(1, Ordering::SeqCst)
    }

    /// Records an operation that ends now, unless it had no response. `seen` is the version in the response: value and
    /// resourceVersion.
    pub(crate) fn add(
        &self,
        (client, name): (usize, &str),
        start: u64,
        call: Call,
        answer: Answer,
        seen: Option<(u64, u64)>,
    ) {
        let end = if answer == Answer::Unknown { NEVER } else { self.now() };
        let operation = Operation { client, start, end, call, answer };
        let mut objects = self.objects.lock().expect("no thread panics while it holds the lock");
        objects.entry(name.to_owned()).or_default().push(operation);
        drop(objects);
        if let Some((value, revision)) = seen {
            let written = call != Call::Read;
            let sighting = Sighting { value, revision, start, end, written };
            self.sightings.lock().expect("no thread panics while it holds the lock").push(sighting);
        }
    }

    pub(crate) fn tally(&self) -> Tally {
        let objects = self.objects.lock().expect("no thread panics while it holds the lock");
        let unknown = objects.values().flatten().filter(|operation| operation.is_unknown()).count();
        let answered = objects.values().map(Vec::len).sum::<usize>() - unknown;
        Tally { answered, unknown }
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let objects = self.objects.lock().expect("no thread panics while it holds the lock");
        for (name, operations) in objects.iter() {
            checker::check(operations).map_err(|why| format!("{name}: {why}"))?;
        }
        check_revisions(&self.sightings.lock().expect("no thread panics while it holds the lock"))
    }
}

/// Every version has a unique resourceVersion, and a write gets a greater one than any that was seen before the request,
/// of any object and through any server.
fn check_revisions(sightings: &[Sighting]) -> Result<(), String> {
    let (mut by_value, mut by_revision) = (HashMap::new(), HashMap::new());
    for seen in sightings {
        let Sighting { value, revision, .. } = *seen;
        let same = *by_value.entry(value).or_insert(revision);
        if same != revision {
            return Err(format!("{value} was shown with resourceVersion {same} and {revision}"));
        }
        let same = *by_revision.entry(revision).or_insert(value);
        if same != value {
            return Err(format!("resourceVersion {revision} was shown with {same} and {value}"));
        }
    }
    let mut ended: Vec<Sighting> = sightings.to_vec();
    ended.sort_unstable_by_key(|seen| seen.end);
    let mut writes: Vec<Sighting> = sightings.iter().filter(|s| s.written).copied().collect();
    writes.sort_unstable_by_key(|write| write.start);
    let (mut greatest, mut ended) = (0, ended.into_iter().peekable());
    for write in writes {
        while let Some(seen) = ended.next_if(|seen| seen.end < write.start) {
            greatest = greatest.max(seen.revision);
        }
        if write.revision <= greatest {
            return Err(format!(
                "{} was written with resourceVersion {} when {greatest} had been seen",
                write.value, write.revision
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sighting(value: u64, revision: u64, start: u64, written: bool) -> Sighting {
        Sighting { value, revision, start, end: start + 1, written }
    }

    #[test]
    fn resource_versions_that_repeat_change_or_go_back_are_found() {
        let (first, second) = (sighting(1, 10, 0, true), sighting(2, 11, 4, true));
        let read = sighting(1, 10, 2, false);
        assert_eq!(check_revisions(&[first, read, second]), Ok(()));
        for (story, wrong) in [
            ("one version with two", sighting(1, 12, 6, false)),
            ("two versions with one", sighting(3, 11, 6, true)),
            ("it goes back", sighting(3, 9, 6, true)),
        ] {
            assert!(check_revisions(&[first, read, second, wrong]).is_err(), "{story}");
        }
        // Of two concurrent writes either may have the greater one.
        let long = Sighting { end: 9, ..sighting(3, 9, 0, true) };
        assert_eq!(check_revisions(&[first, long, second]), Ok(()));
    }
}
