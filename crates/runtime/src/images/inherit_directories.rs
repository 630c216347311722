//! Copies owner, mode and time of directories from lower layers to layers that contain the directory implicitly.
//!
//! A layer may contain `tmp/a` without an entry for `tmp`. It must not turn the `/tmp` of a lower layer, which is
//! writable for all users, into a directory of root. Layers are unpacked independently, so this happens when all
//! layers of an image are present.

use super::digest::Digest;
use super::layer_store::{LayerRecord, LayerStore};
use crate::{Error, Result};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// `layers` are those of an image, the lowest first. A layer inherits only once, from the first image that has it.
pub(crate) fn inherit(layer_store: &LayerStore, layers: &[Digest]) -> Result<()> {
    for (height, layer) in layers.iter().enumerate() {
        let record = layer_store.record(layer)?;
        if record.implied.is_empty() {
            continue;
        }
        for directory in &record.implied {
            for below in layers[..height].iter().rev() {
                if copy(&layer_store.path(below), &layer_store.path(layer), directory)? {
                    break;
                }
            }
        }
        layer_store.set_record(layer, &LayerRecord { implied: Vec::new(), ..record })?;
    }
    Ok(())
}

/// Returns false if `from` does not have the directory.
fn copy(from: &Path, to: &Path, directory: &Path) -> Result<bool> {
    let Some(from) = open(from, directory)? else { return Ok(false) };
    let Some(to) = open(to, directory)? else { return Ok(true) };
    let path = format!("/proc/self/fd/{}", to.as_raw_fd());
    let set = || -> std::io::Result<()> {
        let model = from.metadata()?;
        let owner = (Some(Uid::from_raw(model.uid())), Some(Gid::from_raw(model.gid())));
        rustix::fs::fchown(&to, owner.0, owner.1)?;
        rustix::fs::fchmod(&to, Mode::from_raw_mode(model.mode() & 0o7777))?;
        let time = Timespec { tv_sec: model.mtime(), tv_nsec: model.mtime_nsec() };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty())?;
        Ok(())
    };
    set().map_err(Error::io("set the owner of", directory))?;
    Ok(true)
}

fn open(root: &Path, directory: &Path) -> Result<Option<std::fs::File>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let within = std::fs::File::open(root).map_err(Error::io("open", root))?;
    let plain = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(within, directory, flags, Mode::empty(), plain) {
        Ok(fd) => Ok(Some(fd.into())),
        Err(_) => Ok(None),
    }
}
