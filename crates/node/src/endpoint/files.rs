//! `/logs/`: the node's own log directory, as lists and files. Nothing outside of it is shown,
//! whatever the path says and wherever links lead.

use super::answer::{self, Answer};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::io;
use std::path::{Path, PathBuf};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;

const PIECE: usize = 64 * 1024;
/// Names in one list.
const NAMES_MAX: usize = 10_000;

pub(super) async fn answer(root: &Path, segments: &[&str], asked: &str) -> Answer {
    let not_found = || answer::text(StatusCode::NOT_FOUND, "404 page not found\n");
    let Some(path) = resolve(root, segments).await else { return not_found() };
    let shown = async {
        if tokio::fs::metadata(&path).await?.is_dir() {
            return match asked.ends_with('/') {
                true => list(&path).await,
                false => Ok(with_slash(asked)),
            };
        }
        send(&path).await
    };
    shown.await.unwrap_or_else(|_| not_found())
}

/// The real path of what is asked for, if it lies below `root`.
async fn resolve(root: &Path, segments: &[&str]) -> Option<PathBuf> {
    let root = tokio::fs::canonicalize(root).await.ok()?;
    let mut path = root.clone();
    for segment in segments {
        let segment = percent_decode_str(segment).decode_utf8().ok()?;
        if segment == ".." || segment.contains(['/', '\0']) {
            return None;
        }
        path.push(segment.as_ref());
    }
    let path = tokio::fs::canonicalize(path).await.ok()?;
    path.starts_with(&root).then_some(path)
}

fn with_slash(asked: &str) -> Answer {
    let mut answer = answer::empty(StatusCode::MOVED_PERMANENTLY);
    let last = asked.rsplit('/').next().unwrap_or_default();
    if let Ok(location) = HeaderValue::from_str(&format!("{last}/")) {
        answer.headers_mut().insert(header::LOCATION, location);
    }
    answer
}

async fn list(path: &Path) -> io::Result<Answer> {
    let mut entries = tokio::fs::read_dir(path).await?;
    let mut names = Vec::new();
    while let Some(entry) = entries.next_entry().await?
        && names.len() < NAMES_MAX
    {
        let slash = if entry.file_type().await?.is_dir() { "/" } else { "" };
        names.push(format!("{}{slash}", entry.file_name().to_string_lossy()));
    }
    names.sort();
    let mut page = String::from(
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n",
    );
    for name in names {
        let bare = name.trim_end_matches('/');
        let slash = &name[bare.len()..];
        let link = utf8_percent_encode(bare, NON_ALPHANUMERIC);
        let text = bare.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        page.push_str(&format!("<a href=\"./{link}{slash}\">{text}{slash}</a>\n"));
    }
    page.push_str("</pre>\n");
    Ok(answer::of(StatusCode::OK, "text/html; charset=utf-8", page))
}

async fn send(path: &Path) -> io::Result<Answer> {
    if !tokio::fs::metadata(path).await?.is_file() {
        // Reading a pipe or a device could wait for ever.
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut file = tokio::fs::File::open(path).await?;
    let (pieces, read) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut piece = vec![0; PIECE];
        while let Ok(count @ 1..) = file.read(&mut piece).await {
            if pieces.send(Bytes::copy_from_slice(&piece[..count])).await.is_err() {
                return;
            }
        }
    });
    Ok(answer::stream("text/plain; charset=utf-8", read))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn n_168_only_what_lies_below_the_log_directory_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("log");
        std::fs::create_dir_all(root.join("pods")).unwrap();
        std::fs::write(root.join("pods/a.log"), "a").unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink("../../secret", root.join("pods/out")).unwrap();
        std::os::unix::fs::symlink("pods/a.log", root.join("in")).unwrap();
        assert!(resolve(&root, &["pods", "a.log"]).await.is_some());
        assert!(resolve(&root, &["in"]).await.is_some());
        for outside in
            [&["..", "secret"][..], &["pods", "out"], &["%2e%2e", "secret"], &["..%2fsecret"]]
        {
            assert_eq!(resolve(&root, outside).await, None, "{outside:?}");
        }
        let listed = answer(&root, &["pods"], "/logs/pods/").await;
        assert_eq!(listed.status(), StatusCode::OK);
        assert_eq!(
            answer(&root, &["pods"], "/logs/pods").await.status(),
            StatusCode::MOVED_PERMANENTLY
        );
    }
}
