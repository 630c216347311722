//! Directories that a layer needed but did not describe get owner, mode and attributes from below.
//!
//! A layer that brings only `tmp/a` must not turn a `/tmp` everybody may write to into root's. The
//! layers are unpacked apart, so what an image means is settled when all of them are there.

use super::digest::Digest;
use super::shelf::{LayerNote, Shelf};
use crate::{Error, Result};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// `layers` are an image's, the lowest first. A layer adopts once: the first image decides.
pub(crate) fn adopt(shelf: &Shelf, layers: &[Digest]) -> Result<()> {
    for (height, layer) in layers.iter().enumerate() {
        let note = shelf.note(layer)?;
        if note.implied.is_empty() {
            continue;
        }
        for directory in &note.implied {
            for below in layers[..height].iter().rev() {
                if copy(&shelf.path(below), &shelf.path(layer), directory)? {
                    break;
                }
            }
        }
        shelf.set_note(layer, &LayerNote { implied: Vec::new(), ..note })?;
    }
    Ok(())
}

/// False if there is no such directory in `from`.
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
