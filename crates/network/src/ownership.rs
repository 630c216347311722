//! Determines which landfall instance a network device belongs to.
//!
//! An instance writes its mark into the alias of every device that it creates; `ip link` shows it. Devices are
//! removed by their mark, not by their name, because another instance on this machine may use the same names.

use crate::link::{self, Device};
use crate::netlink::Socket;
use crate::{Cidr, Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// The first word of every mark.
const MARK_PREFIX: &str = "landfall";
/// The kernel's limit for an alias, in bytes.
const ALIAS_MAX: usize = 255;

/// An instance is identified by its state directory, not by its process.
#[derive(Debug)]
pub(crate) struct Instance {
    path: PathBuf,
    saved: Saved,
    /// An older version of landfall, without marks, used this state directory.
    predates_marks: bool,
    alias: String,
}

#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
struct Saved {
    id: String,
    /// The gateway device of this instance. Saved before the device is created, because the kernel sets the
    /// alias in a second step and the process may be killed in between.
    link: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Us,
    /// Another instance, with the directory of its records.
    Other(String),
    /// An instance whose data directory was deleted.
    Abandoned,
    /// The device has no mark.
    Unknown,
}

impl Instance {
    /// `has_records`: an earlier process has used this state directory.
    pub(crate) fn open(state_dir: &Path, has_records: bool) -> Result<Instance> {
        let path = state_dir.join("instance.json");
        let saved: Option<Saved> =
            fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let predates_marks = saved.is_none() && has_records;
        let saved = saved.unwrap_or_else(|| Saved { id: clock::uuid(), link: None });
        let alias = alias(&saved.id, state_dir);
        let instance = Instance { path, saved, predates_marks, alias };
        instance.save()?;
        Ok(instance)
    }

    pub(crate) fn alias(&self) -> &str {
        &self.alias
    }

    fn owner_of(&self, device: &Device) -> Owner {
        owner(&device.alias, Some(&self.saved.id))
    }

    /// Whether this instance owns the gateway device. `None` if the device does not exist.
    pub(crate) fn owns_gateway_device(&self, device: Option<&Device>) -> Result<bool> {
        let Some(device) = device else { return Ok(false) };
        let claimed = self.saved.link.as_deref() == Some(&device.name);
        match self.owner_of(device) {
            Owner::Us | Owner::Abandoned => Ok(true),
            Owner::Unknown if claimed || self.predates_marks => Ok(true),
            Owner::Unknown => Err(Error::LinkTaken { link: device.name.clone(), owner: None }),
            Owner::Other(owner) => {
                Err(Error::LinkTaken { link: device.name.clone(), owner: Some(owner) })
            }
        }
    }

    /// Whether this instance may use and remove a device that is named like one of its pod links. A device
    /// without a mark counts as ours: the process was killed before it set the mark, or an older version
    /// created the device.
    pub(crate) fn owns_pod_link(&self, device: &Device) -> bool {
        !matches!(self.owner_of(device), Owner::Other(_))
    }

    /// Fails if this instance may not use and remove the device with the name of its overlay device. A device
    /// without a mark is ours if it has our device address: the process was killed before it set the mark.
    pub(crate) fn check_overlay_device(&self, device: &Device, has_our_mac: bool) -> Result<()> {
        match self.owner_of(device) {
            Owner::Us | Owner::Abandoned => Ok(()),
            Owner::Unknown if has_our_mac => Ok(()),
            Owner::Unknown => Err(Error::LinkTaken { link: device.name.clone(), owner: None }),
            Owner::Other(owner) => {
                Err(Error::LinkTaken { link: device.name.clone(), owner: Some(owner) })
            }
        }
    }

    /// Whether the device has the mark of this instance. Its name does not matter.
    pub(crate) fn marked(&self, device: &Device) -> bool {
        self.owner_of(device) == Owner::Us
    }

    /// Records that this instance is about to create the gateway device.
    pub(crate) fn claim(&mut self, link: &str) -> Result<()> {
        self.saved.link = Some(link.to_owned());
        self.save()
    }

    /// Records that this instance has no gateway device any more. The instance keeps its identity.
    pub(crate) fn release(&self) -> Result<()> {
        self.write(&Saved { id: self.saved.id.clone(), link: None })
    }

    fn save(&self) -> Result<()> {
        self.write(&self.saved)
    }

    /// Does nothing if the file is up to date: on a full disk the write would fail.
    fn write(&self, saved: &Saved) -> Result<()> {
        let text = serde_json::to_vec(saved).unwrap_or_default();
        if fs::read(&self.path).is_ok_and(|found| found == text) {
            return Ok(());
        }
        let new = self.path.with_extension("new");
        fs::write(&new, text).map_err(Error::io("write", &new))?;
        fs::rename(&new, &self.path).map_err(Error::io("rename to", &self.path))
    }

    /// Fails if another instance has addresses in these ranges: the kernel has one route per range.
    pub(crate) fn check_ranges(
        &self,
        socket: &mut Socket,
        devices: &[Device],
        ranges: &[Cidr],
    ) -> Result<()> {
        for (index, address) in link::addresses(socket)? {
            let Some(device) = devices.iter().find(|device| device.index == index) else {
                continue;
            };
            let Owner::Other(owner) = self.owner_of(device) else { continue };
            if let Some(range) = ranges.iter().find(|range| range.contains(address)) {
                let (range, link) = (range.to_string(), device.name.clone());
                return Err(Error::RangeTaken { range, link, owner });
            }
        }
        Ok(())
    }
}

/// `landfall <id> <state directory>`, truncated to [`ALIAS_MAX`].
fn alias(id: &str, state_dir: &Path) -> String {
    let mut alias = format!("{MARK_PREFIX} {id} {}", state_dir.display());
    let end = (0..=ALIAS_MAX.min(alias.len())).rev().find(|at| alias.is_char_boundary(*at));
    alias.truncate(end.unwrap_or_default());
    alias
}

fn owner(alias: &str, us: Option<&str>) -> Owner {
    let mut words = alias.splitn(3, ' ');
    match (words.next(), words.next()) {
        (Some(MARK_PREFIX), Some(id)) if Some(id) == us => Owner::Us,
        (Some(MARK_PREFIX), Some(id)) => match words.next().unwrap_or_default() {
            records if alias.len() < ALIAS_MAX && is_abandoned(id, Path::new(records)) => {
                Owner::Abandoned
            }
            records => Owner::Other(records.to_owned()),
        },
        _ => Owner::Unknown,
    }
}

/// Whether the directory named in the mark of instance `id` has no records of that instance any more.
fn is_abandoned(id: &str, records: &Path) -> bool {
    match fs::read(records.join("instance.json")) {
        Ok(text) => serde_json::from_slice(&text).is_ok_and(|saved: Saved| saved.id != id),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// An early check, before an instance creates anything: fails if another instance owns the device of this name.
/// A device without a mark passes; [`crate::Pods::open`] decides about it.
pub fn check_link(link: &str, state_dir: &Path) -> Result<()> {
    let saved = fs::read(state_dir.join("instance.json")).ok();
    let saved: Option<Saved> = saved.and_then(|text| serde_json::from_slice(&text).ok());
    let Some(device) = link::find(&mut Socket::route()?, link)? else { return Ok(()) };
    match owner(&device.alias, saved.as_ref().map(|saved| saved.id.as_str())) {
        Owner::Other(owner) => Err(Error::LinkTaken { link: link.to_owned(), owner: Some(owner) }),
        Owner::Us | Owner::Abandoned | Owner::Unknown => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_that_is_opened_again_writes_nothing() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("instance.json");
        let opened = || {
            let mut instance = Instance::open(directory.path(), false).unwrap();
            instance.claim("lf0").unwrap();
            fs::metadata(&path).unwrap().ino()
        };
        let first = opened();
        // While it is open, its inode number is not used again.
        let _held = fs::File::open(&path).unwrap();
        assert_eq!(opened(), first);
        Instance::open(directory.path(), false).unwrap().release().unwrap();
        assert_ne!(fs::metadata(&path).unwrap().ino(), first);
    }

    #[test]
    fn marks_identify_instances_and_other_aliases_are_ignored() {
        let us = Some("a-b");
        let directory = tempfile::Builder::new().prefix("x y").tempdir().unwrap();
        let records = directory.path();
        let other = || Owner::Other(records.display().to_string());
        let save = |id: &str| {
            let saved = Saved { id: id.to_owned(), link: None };
            fs::write(records.join("instance.json"), serde_json::to_vec(&saved).unwrap()).unwrap();
        };
        assert_eq!(owner(&alias("a-b", records), us), Owner::Us);
        assert_eq!(owner(&alias("c", records), us), Owner::Abandoned, "no records");
        save("c");
        assert_eq!(owner(&alias("c", records), us), other());
        assert_eq!(
            owner(&alias("a-b", records), None),
            Owner::Abandoned,
            "records of another instance"
        );
        fs::write(records.join("instance.json"), "garbage").unwrap();
        assert_eq!(owner(&alias("c", records), us), other(), "unreadable records may belong to it");
        for other in ["", "landfall", "uplink to the landfall", "a-b"] {
            assert_eq!(owner(other, us), Owner::Unknown, "{other:?}");
        }
        let long = alias("a-b", Path::new(&format!("/{}", "\u{e9}".repeat(200))));
        assert!((250..=ALIAS_MAX).contains(&long.len()), "{}", long.len());
        assert_eq!(owner(&long, us), Owner::Us);
    }
}
