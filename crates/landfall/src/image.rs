//! `landfall image`: import, pull, list and remove images, with or without a running landfall.

use crate::command::ImageCommand;
use anyhow::Context;
use runtime::{Image, ImageReference, ImageStore, Images as _, PullProgress};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Images in a data directory.
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

/// For commands that add images, which may come before the first `landfall up`.
fn open_or_create(data_dir: &Path) -> anyhow::Result<ImageStore> {
    let directory = directory(data_dir);
    if !data_dir.exists() {
        eprintln!("landfall: creating the data directory {}", data_dir.display());
    }
    crate::data_dir::prepare(data_dir)?;
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(ImageStore::open(&directory)?)
}

/// For other commands, which must not create anything. None: there are no images yet.
fn open_existing(data_dir: &Path) -> anyhow::Result<Option<ImageStore>> {
    crate::data_dir::must_exist(data_dir)?;
    let directory = directory(data_dir);
    let exists =
        directory.try_exists().with_context(|| format!("cannot read {}", directory.display()))?;
    if !exists {
        return Ok(None);
    }
    Ok(Some(ImageStore::open(&directory)?))
}

fn import(file: &Path, data_dir: &Path) -> anyhow::Result<()> {
    std::fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?;
    let store = open_or_create(data_dir)?;
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

/// Without credentials: images that need a password are pulled by pods, whose secrets have it.
fn pull(image: &str, data_dir: &Path) -> anyhow::Result<()> {
    let store = open_or_create(data_dir)?;
    let progress = Progress::new(image.to_owned());
    let reference = ImageReference(image.to_owned());
    let show = |done| progress.show(done);
    let pulled = wait(store.pull(&reference, &[], &show));
    progress.clear();
    let pulled = pulled?.with_context(|| format!("{image} was not pulled"))?;
    // The name that was asked for: the same image may be stored under other names too.
    println!("pulled {image} ({}), {}", short(&pulled.id), size(pulled.size));
    Ok(())
}

fn list(data_dir: &Path) -> anyhow::Result<()> {
    let images = match open_existing(data_dir)? {
        Some(store) => wait(store.list())??,
        None => Vec::new(),
    };
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
    let missing = || format!("there is no image {image:?}; `landfall image list` shows all images");
    let store = open_existing(data_dir)?.with_context(missing)?;
    let found = wait(store.find(&ImageReference(image.to_owned())))??.with_context(missing)?;
    let id = short(&found.id);
    if let Some(others) = store.untag(image)? {
        println!(
            "removed the name {image}; the image ({id}) is still there as {}",
            others.join(", ")
        );
        return Ok(());
    }
    wait(store.remove(&found.id))??;
    match found.tags.len() {
        0 | 1 => println!("removed {image} ({id})"),
        _ => println!("removed {image} ({id}) with all its names: {}", found.tags.join(", ")),
    }
    Ok(())
}

fn wait<T>(work: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the threads")?;
    Ok(runtime.block_on(work))
}

fn names(image: &Image) -> Vec<String> {
    match (image.tags.is_empty(), image.digests.first()) {
        (false, _) => image.tags.clone(),
        (true, Some(digest)) => vec![digest.clone()],
        (true, None) => vec!["<none>".into()],
    }
}

/// The first digits of a digest: enough to tell images apart.
fn short(id: &str) -> String {
    id.strip_prefix("sha256:").unwrap_or(id).chars().take(12).collect()
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB", bytes.div_ceil(1000)),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

/// One line that is overwritten. It is shown on a terminal only.
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
