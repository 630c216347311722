//! `/logs/`: lists and files of the node's log directory. Serves nothing outside of it, whatever
//! the path and links.

use crate::response::{self, Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::io;
use std::path::{Path, PathBuf};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;

/// Bytes per chunk.
const CHUNK: usize = 64 * 1024;
/// Names per directory listing.
const NAMES_MAX: usize = 10_000;

pub(crate) async fn serve(root: &Path, segments: &[&str], request_path: &str) -> Response {
    let not_found = || response::text(StatusCode::NOT_FOUND, "404 page not found\n");
    let Some(path) = resolve(root, segments).await else { return not_found() };
    let served = async {
        if tokio::fs::metadata(&path).await?.is_dir() {
            return match request_path.ends_with('/') {
                true => list(&path).await,
                false => Ok(redirect_to_slash(request_path)),
            };
        }
        send(&path).await
    };
    served.await.unwrap_or_else(|_| not_found())
}

/// The canonical path of the request, if it is below `root`.
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

fn redirect_to_slash(request_path: &str) -> Response {
    let mut response = response::empty(StatusCode::MOVED_PERMANENTLY);
    let last = request_path.rsplit('/').next().unwrap_or_default();
    if let Ok(location) = HeaderValue::from_str(&format!("{last}/")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

async fn list(path: &Path) -> io::Result<Response> {
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
    Ok(response::full(StatusCode::OK, "text/html; charset=utf-8", page))
}

async fn send(path: &Path) -> io::Result<Response> {
    if !tokio::fs::metadata(path).await?.is_file() {
        // Reading a pipe or a device could block forever.
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut file = tokio::fs::File::open(path).await?;
    let (chunks, read) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut chunk = vec![0; CHUNK];
        while let Ok(count @ 1..) = file.read(&mut chunk).await {
            if chunks.send(Bytes::copy_from_slice(&chunk[..count])).await.is_err() {
                return;
            }
        }
    });
    Ok(response::stream("text/plain; charset=utf-8", read))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn n_168_only_files_below_the_log_directory_are_served() {
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
        let listed = serve(&root, &["pods"], "/logs/pods/").await;
        assert_eq!(listed.status(), StatusCode::OK);
        assert_eq!(
            serve(&root, &["pods"], "/logs/pods").await.status(),
            StatusCode::MOVED_PERMANENTLY
        );
    }
}
