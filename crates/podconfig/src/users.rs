//! Ranges of user ids for pods with a user namespace (`hostUsers: false`, N-124): 65536 ids that no
//! other pod has.
//!
//! A range is saved in the pod's directory before it is used, in upstream's format, so that the
//! next agent finds it. Removing the directory frees the range.

use runtime::UserRange;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// User ids per pod.
const COUNT: u32 = 65536;
/// The first range belongs to the node's own users; the last ids of u32 are reserved.
const RANGES_MAX: u32 = u32::MAX / COUNT - 1;
const FILE: &str = "userns";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct UserMappings {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Serialize, Deserialize, Clone, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

pub struct UserRanges {
    pods: PathBuf,
    /// The number of each pod's range, by the uid of the pod. The first is 1.
    allocated: Mutex<BTreeMap<String, u32>>,
}

impl UserRanges {
    /// Reads the ranges of pods that still have a directory. A file that cannot be read is an
    /// error: its pod may be running, and no other pod may get the same range.
    pub fn open(pods: PathBuf) -> Result<UserRanges> {
        let mut allocated = BTreeMap::new();
        for uid in crate::pod_uids(&pods)? {
            let path = pods.join(&uid).join(FILE);
            let text = match std::fs::read(&path) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
                {
                    continue;
                }
                text => text?,
            };
            let range = range_of(&text)
                .map_err(|why| Error::other(format!("{}: {why}", path.display())))?;
            if let Some((other, _)) = allocated.iter().find(|(_, known)| **known == range) {
                let why = format!("{}: pod {other} has the same user ids", path.display());
                return Err(Error::other(why));
            }
            allocated.insert(uid, range);
        }
        Ok(UserRanges { pods, allocated: Mutex::new(allocated) })
    }

    /// Returns the pod's range; allocates and saves one if it has none.
    pub fn get_or_allocate(&self, uid: &str) -> Result<UserRange> {
        let mut allocated = self.allocated();
        if let Some(range) = allocated.get(uid) {
            return Ok(users(*range));
        }
        let used: std::collections::BTreeSet<u32> = allocated.values().copied().collect();
        let range = (1..=RANGES_MAX).find(|range| !used.contains(range)).ok_or_else(|| {
            Error::other("could not find an empty slot to allocate a user namespace")
        })?;
        save(&self.pods.join(uid), range)?;
        allocated.insert(uid.to_owned(), range);
        Ok(users(range))
    }

    /// Frees the pod's range. Call it after the pod's directory was removed.
    pub fn release(&self, uid: &str) {
        self.allocated().remove(uid);
    }

    fn allocated(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.allocated.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn users(range: u32) -> UserRange {
    UserRange { first: range * COUNT, count: COUNT }
}

fn save(directory: &Path, range: u32) -> Result<()> {
    let UserRange { first, count } = users(range);
    let mapping = Mapping { host_id: first, container_id: 0, length: count };
    let saved = UserMappings { uid_mappings: vec![mapping.clone()], gid_mappings: vec![mapping] };
    std::fs::create_dir_all(directory)?;
    let new = directory.join("userns.new");
    let mut file = std::fs::File::create(&new)?;
    file.write_all(&serde_json::to_vec(&saved)?)?;
    // A range lost in a crash of the machine could be allocated twice.
    file.sync_all()?;
    std::fs::rename(&new, directory.join(FILE))?;
    std::fs::File::open(directory)?.sync_all()
}

fn range_of(text: &[u8]) -> std::result::Result<u32, String> {
    let saved: UserMappings = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let [mapping] = saved.uid_mappings.as_slice() else {
        return Err("expected exactly one mapping".into());
    };
    let range = mapping.host_id / COUNT;
    let whole =
        mapping.host_id % COUNT == 0 && mapping.length == COUNT && mapping.container_id == 0;
    if saved.gid_mappings != saved.uid_mappings || !whole || !(1..=RANGES_MAX).contains(&range) {
        return Err("not a range that this agent allocates".into());
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_124_no_two_pods_have_the_same_user_ids_even_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let open = || UserRanges::open(dir.path().to_owned()).unwrap();
        let ranges = open();
        let first = |ranges: &UserRanges, uid: &str| ranges.get_or_allocate(uid).unwrap().first;
        assert_eq!(ranges.get_or_allocate("a").unwrap(), UserRange { first: 65536, count: 65536 });
        assert_eq!(first(&ranges, "b"), 131_072);
        assert_eq!(first(&ranges, "a"), 65536);
        let ranges = open();
        assert_eq!((first(&ranges, "c"), first(&ranges, "b")), (196_608, 131_072));
        std::fs::remove_dir_all(dir.path().join("a")).unwrap();
        ranges.release("a");
        assert_eq!(first(&ranges, "d"), 65536);
        let kept = std::fs::read_to_string(dir.path().join("b/userns")).unwrap();
        let mapping = r#"[{"hostId":131072,"containerId":0,"length":65536}]"#;
        assert_eq!(kept, format!(r#"{{"uidMappings":{mapping},"gidMappings":{mapping}}}"#));
    }

    #[test]
    fn n_124_an_invalid_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("u");
        std::fs::create_dir(&pod).unwrap();
        let mapping = |host: u32, length: u32| {
            let one = format!(r#"[{{"hostId":{host},"containerId":0,"length":{length}}}]"#);
            format!(r#"{{"uidMappings":{one},"gidMappings":{one}}}"#)
        };
        for wrong in ["", "{}", &mapping(0, 65536), &mapping(65537, 65536), &mapping(65536, 1)] {
            std::fs::write(pod.join(FILE), wrong).unwrap();
            let why = UserRanges::open(dir.path().to_owned()).err().unwrap().to_string();
            assert!(why.contains("u/userns"), "{why}");
        }
        std::fs::write(pod.join(FILE), mapping(65536, 65536)).unwrap();
        assert!(UserRanges::open(dir.path().to_owned()).is_ok());
    }
}
