//! `landfall image`: import, pull, list and remove images, beside a running landfall or without one.

use crate::command::ImageCommand;
use anyhow::Context;
use runtime::{Image, ImageReference, ImageStore, Images as _, PullProgress};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Where a data directory keeps its images.
pub(crate) fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("images")
}

pub(crate) fn run(command: &ImageCommand) -> anyhow::Result<()> {
    match command {
        ImageCommand::Import { file, data_dir } => import(file, data_dir),
        ImageCommand::Pull { image, data_dir } => pull(image, data_dir),
        ImageCommand::List { data_dir } => list(data_dir),
        ImageCommand::Rm { image, data_dir } => remove(image, data_dir),
    }
}

fn open(data_dir: &Path) -> anyhow::Result<ImageStore> {
    let directory = directory(data_dir);
    server::pki::make_private_dir(data_dir)
        .and_then(|()| std::fs::create_dir_all(&directory))
        .with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(ImageStore::open(&directory)?)
}

fn import(file: &Path, data_dir: &Path) -> anyhow::Result<()> {
    let store = open(data_dir)?;
    let progress = Progress::new(file.display().to_string());
    let images = store
        .import(file, &|done| progress.show(done))
        .with_context(|| format!("{} was not imported", file.display()))?;
    progress.clear();
    for image in &images {
        let names = if image.tags.is_empty() { vec![image.id.clone()] } else { image.tags.clone() };
        for name in names {
            println!("imported {name} ({}), {}", short(&image.id), size(image.size));
        }
    }
    Ok(())
}

/// As nobody: what needs a password is pulled by pods, whose secrets have it.
fn pull(image: &str, data_dir: &Path) -> anyhow::Result<()> {
    let store = open(data_dir)?;
    let progress = Progress::new(image.to_owned());
    let reference = ImageReference(image.to_owned());
    let told = |how_far| progress.show(how_far);
    let pulled = wait(store.pull(&reference, &[], &told));
    progress.clear();
    let pulled = pulled?.with_context(|| format!("{image} was not pulled"))?;
    let name = pulled.tags.first().unwrap_or(&pulled.id);
    println!("pulled {name} ({}), {}", short(&pulled.id), size(pulled.size));
    Ok(())
}

fn list(data_dir: &Path) -> anyhow::Result<()> {
    let images = wait(open(data_dir)?.list())??;
    let mut rows = vec![["IMAGE".to_owned(), "ID".to_owned(), "SIZE".to_owned()]];
    for image in &images {
        for name in names(image) {
            rows.push([name, short(&image.id), size(image.size)]);
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (name, id) = (width(0), width(1));
    for [a, b, c] in &rows {
        println!("{a:name$}   {b:id$}   {c}");
    }
    Ok(())
}

fn remove(image: &str, data_dir: &Path) -> anyhow::Result<()> {
    let store = open(data_dir)?;
    let found = wait(store.find(&ImageReference(image.to_owned())))??;
    let found = found.with_context(|| {
        format!("there is no image {image:?} here; `landfall image list` shows those that are")
    })?;
    let id = short(&found.id);
    if let Some(others) = store.untag(image)? {
        println!("removed the name {image}; the image ({id}) is still here: {}", others.join(", "));
        return Ok(());
    }
    wait(store.remove(&found.id))??;
    let more = found.tags.get(1..).is_some_and(|more| !more.is_empty());
    match more {
        true => println!("removed {image} ({id}), all its names: {}", found.tags.join(", ")),
        false => println!("removed {image} ({id})"),
    }
    Ok(())
}

fn wait<T>(work: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime could not be started")?;
    Ok(runtime.block_on(work))
}

fn names(image: &Image) -> Vec<String> {
    match (image.tags.is_empty(), image.digests.first()) {
        (false, _) => image.tags.clone(),
        (true, Some(digest)) => vec![digest.clone()],
        (true, None) => vec!["<none>".into()],
    }
}

/// Enough of a digest to tell images apart.
fn short(id: &str) -> String {
    id.strip_prefix("sha256:").unwrap_or(id).chars().take(12).collect()
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB", bytes.div_ceil(1000)),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

/// One line that is written over, on a terminal only.
struct Progress {
    what: String,
    terminal: bool,
}

impl Progress {
    fn new(what: String) -> Progress {
        Progress { what, terminal: std::io::stderr().is_terminal() }
    }

    fn show(&self, progress: PullProgress) {
        if !self.terminal {
            return;
        }
        let of = progress.total.map(|total| format!(" of {}", size(total))).unwrap_or_default();
        eprint!("\r\x1b[K{}: {}{of}", self.what, size(progress.done));
        let _ = std::io::stderr().flush();
    }

    fn clear(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}
