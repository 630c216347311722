//! `/metrics`: the server's own metrics in Prometheus text format.

use crate::object::Store;
use crate::request::summary::RequestSummary;
use crate::response::{self, ApiResponse};
use ::metrics::{Page, Registry};
use http::StatusCode;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Upper bounds of the latency buckets, in seconds.
const BUCKETS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

#[derive(Default)]
pub(crate) struct Metrics {
    /// By verb, resource and code. Only existing resources are counted by name, so there are few.
    requests: Mutex<BTreeMap<(&'static str, String, u16), u64>>,
    latency: [AtomicU64; BUCKETS.len() + 1],
    latency_micros: AtomicU64,
    /// Metrics of other components of this process, shown on the same page.
    others: Mutex<Vec<Arc<Registry>>>,
}

impl Metrics {
    /// Adds the metrics of another component.
    pub(crate) fn also(&self, registry: Arc<Registry>) {
        self.others.lock().unwrap_or_else(|p| p.into_inner()).push(registry);
    }

    pub(crate) fn request(&self, summary: &RequestSummary, code: StatusCode, took: Duration) {
        // Unknown resources count as one: otherwise a scanner could fill the memory with names.
        let resource = if summary.served { summary.resource.clone() } else { String::new() };
        let key = (summary.verb, resource, code.as_u16());
        *self.requests.lock().unwrap_or_else(|p| p.into_inner()).entry(key).or_insert(0) += 1;
        if summary.verb == "watch" {
            return;
        }
        let seconds = took.as_secs_f64();
        let bucket = BUCKETS.iter().position(|bound| seconds <= *bound).unwrap_or(BUCKETS.len());
        self.latency[bucket].fetch_add(1, Ordering::Relaxed);
        self.latency_micros.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
    }

    pub(crate) fn expose(&self, store: &Store) -> ApiResponse {
        let mut text = String::new();
        let _ = self.write(&mut text, store);
        let mut page = Page::default();
        for registry in &*self.others.lock().unwrap_or_else(|p| p.into_inner()) {
            registry.write(&mut page, |_| true);
        }
        text.push_str(&page.into_text());
        response::build(StatusCode::OK, ::metrics::CONTENT_TYPE, text.into_bytes())
    }

    fn write(&self, text: &mut String, store: &Store) -> std::fmt::Result {
        writeln!(
            text,
            "# HELP apiserver_request_total Requests answered, by verb, resource and code."
        )?;
        writeln!(text, "# TYPE apiserver_request_total counter")?;
        for ((verb, resource, code), count) in
            &*self.requests.lock().unwrap_or_else(|p| p.into_inner())
        {
            writeln!(
                text,
                "apiserver_request_total{{verb=\"{verb}\",resource=\"{resource}\",code=\"{code}\"}} {count}"
            )?;
        }
        writeln!(
            text,
            "# HELP apiserver_request_duration_seconds Time to answer, watches not counted."
        )?;
        writeln!(text, "# TYPE apiserver_request_duration_seconds histogram")?;
        let mut total = 0;
        for (place, count) in self.latency.iter().enumerate() {
            total += count.load(Ordering::Relaxed);
            let bound = BUCKETS.get(place).map_or("+Inf".to_owned(), f64::to_string);
            writeln!(text, "apiserver_request_duration_seconds_bucket{{le=\"{bound}\"}} {total}")?;
        }
        let sum = self.latency_micros.load(Ordering::Relaxed) as f64 / 1e6;
        writeln!(text, "apiserver_request_duration_seconds_sum {sum}")?;
        writeln!(text, "apiserver_request_duration_seconds_count {total}")?;
        writeln!(text, "# HELP apiserver_storage_objects Objects stored, by resource.")?;
        writeln!(text, "# TYPE apiserver_storage_objects gauge")?;
        for (collection, count) in store.counts() {
            writeln!(text, "apiserver_storage_objects{{resource=\"{collection}\"}} {count}")?;
        }
        writeln!(text, "# HELP landfall_store_revision The newest resource version.")?;
        writeln!(text, "# TYPE landfall_store_revision gauge")?;
        writeln!(text, "landfall_store_revision {}", store.revision())
    }
}
