//! How the values of options are read.

use anyhow::{Context, bail};
use clap::builder::{PathBufValueParser, TypedValueParser};
use server::StoreChoice;
use std::path::PathBuf;
use std::time::Duration;

/// A data directory as an absolute path: processes that landfall starts have other working directories,
/// and so may the reader of the kubeconfig's path.
pub(super) fn data_dir() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

/// `90s`, `1m30s`, `2m`; a number without a unit is seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let parsed = match text.parse::<u32>() {
        Ok(seconds) => return Ok(Duration::from_secs(seconds.into())),
        Err(_) => text.parse::<jiff::SignedDuration>().map_err(|error| error.to_string())?,
    };
    // Grace periods are whole seconds in Kubernetes too.
    Duration::try_from(parsed)
        .ok()
        .filter(|duration| duration.subsec_nanos() == 0)
        .ok_or_else(|| "write whole seconds, such as 30s or 2m".to_owned())
}

/// `300ms`, `2s`; a number without a unit is seconds.
pub(super) fn exact_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    let parsed = text.parse::<jiff::SignedDuration>().map_err(|error| error.to_string())?;
    Duration::try_from(parsed).map_err(|_| "write a time such as 300ms or 2s".to_owned())
}

pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("write at least 1s".to_owned()),
        duration => Ok(duration),
    }
}

/// The value of `--store`.
pub(super) fn store_choice(store: &str) -> anyhow::Result<StoreChoice> {
    if store == "embedded" {
        return Ok(StoreChoice::Embedded);
    }
    let hosts = store.strip_prefix("etcd://").with_context(|| {
        format!("--store {store:?} is neither `embedded` nor `etcd://HOST:PORT`")
    })?;
    let endpoints: Vec<String> = hosts
        .split(',')
        .map(str::trim)
        .filter(|host| !host.is_empty())
        .map(|host| format!("http://{host}"))
        .collect();
    if endpoints.is_empty() {
        bail!("--store {store:?} names no host: write etcd://HOST:PORT");
    }
    Ok(StoreChoice::Etcd(endpoints))
}
