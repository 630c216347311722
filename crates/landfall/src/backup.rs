//! `landfall backup` and `landfall restore`: a cluster as one file.
//!
//! The format and the restore are in `server::backup`. This module writes the file: under a temporary
//! name, readable by its owner only, synced, read back and verified, and only then renamed.

use crate::command::RestoreOptions;
use crate::up::prepare;
use crate::{block_on, control, data_dir};
use anyhow::{Context, ensure};
use server::backup::{self, Contents};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use tokio::io::AsyncWriteExt as _;

const PRIVATE: u32 = 0o600;

pub(crate) fn take(file: &Path, data_dir: &Path) -> anyhow::Result<()> {
    data_dir::must_exist(data_dir)?;
    ensure!(
        file.symlink_metadata().is_err(),
        "{} exists already; give the backup another name",
        file.display()
    );
    let partial = Partial::beside(file)?;
    block_on(partial.fetch(data_dir))?;
    let contents = backup::read(&partial.0).context("the backup was not written correctly")?;
    partial.rename_to(file).with_context(|| format!("cannot write {}", file.display()))?;
    println!("wrote {}: {}", file.display(), summary(&contents));
    println!(
        "It contains all Secrets and the cluster's private keys: keep it as safe as {}",
        data_dir.display()
    );
    Ok(())
}

pub(crate) fn restore(options: &RestoreOptions) -> anyhow::Result<()> {
    let store = options.store_choice()?;
    prepare()?;
    let contents = backup::read(&options.file)?;
    if options.check {
        println!("{} is complete: {}", options.file.display(), summary(&contents));
        return Ok(());
    }
    let data_dir = &options.data_dir;
    block_on(async {
        let restored = backup::restore(contents, data_dir, &store).await?;
        println!("restored {} objects into {}", restored.objects, data_dir.display());
        match options.store.as_str() {
            "embedded" => println!("start it with: landfall up --data-dir {}", data_dir.display()),
            store => println!(
                "start it with: landfall up --data-dir {} --store {store}",
                data_dir.display()
            ),
        }
        Ok(())
    })
}

fn summary(contents: &Contents) -> String {
    let header = &contents.header;
    format!(
        "{} objects at revision {}, taken at {} by landfall {}",
        contents.objects(),
        header.revision,
        header.taken_at,
        header.version
    )
}

/// A file that is not complete yet. It is removed on drop.
struct Partial(PathBuf);

impl Partial {
    fn beside(file: &Path) -> anyhow::Result<Partial> {
        let name = file.file_name().with_context(|| format!("{} names no file", file.display()))?;
        let name = format!(".{}.{:08x}.partial", name.to_string_lossy(), clock::random_u64());
        Ok(Partial(file.with_file_name(name)))
    }

    async fn fetch(&self, data_dir: &Path) -> anyhow::Result<()> {
        let path = self.0.display();
        let mut options = OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(PRIVATE).open(&self.0);
        let mut file =
            tokio::fs::File::from_std(opened.with_context(|| format!("cannot write {path}"))?);
        let fetched = control::fetch_backup(data_dir, &mut file).await?;
        ensure!(
            fetched.is_some(),
            "no landfall is running on {0}. Start it and run this command again, or copy {0}: no process \
             writes to it now",
            data_dir.display()
        );
        file.flush().await?;
        file.sync_all().await.with_context(|| format!("cannot write {path}"))
    }

    fn rename_to(&self, file: &Path) -> std::io::Result<()> {
        fs::rename(&self.0, file)?;
        let parent = match file.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        fs::File::open(parent)?.sync_all()
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
