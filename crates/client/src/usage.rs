//! `PodMetrics` of `metrics.k8s.io`: the resource usage of a pod. The generated types do not include it.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PodMetrics {
    pub metadata: ObjectMeta,
    /// The end of the measured window.
    pub timestamp: Time,
    /// The length of the window, as Go formats durations.
    pub window: String,
    #[serde(default)]
    pub containers: Vec<ContainerMetrics>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContainerMetrics {
    pub name: String,
    #[serde(default)]
    pub usage: BTreeMap<String, Quantity>,
}

impl PodMetrics {
    pub fn at(&self) -> Timestamp {
        self.timestamp.0
    }

    /// Zero if it cannot be parsed.
    pub fn window(&self) -> SignedDuration {
        duration(&self.window).unwrap_or_default()
    }
}

/// `1h2m3.5s`, `500ms`.
fn duration(mut text: &str) -> Option<SignedDuration> {
    const UNITS: [(&str, f64); 6] =
        [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];
    let mut seconds = 0.0;
    while !text.is_empty() {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, rest) = text.split_at(end);
        let (unit, factor) = UNITS.iter().find(|(unit, _)| rest.starts_with(unit))?;
        seconds += number.parse::<f64>().ok()? * factor;
        text = &rest[unit.len()..];
    }
    SignedDuration::try_from_secs_f64(seconds).ok()
}

typed::codec!(PodMetrics);

impl kube::Resource for PodMetrics {
    type DynamicType = ();
    type Scope = k8s_openapi::NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "PodMetrics".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "metrics.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1beta1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_parsed() {
        let read = |text| duration(text).map(|span| span.as_millis());
        assert_eq!(read("15.012s"), Some(15_012));
        assert_eq!(read("1m0.5s"), Some(60_500));
        assert_eq!(read("1h1m0s"), Some(3_660_000));
        assert_eq!(read("500ms"), Some(500));
        assert_eq!(read("0s"), Some(0));
        assert_eq!(read("15"), None);
        assert_eq!(read("x"), None);
    }
}
