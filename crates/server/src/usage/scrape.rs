//! Scrapes the resource usage of every node and its containers, as often as metrics-server (N-171).
//!
//! The server pulls, because the authenticated connection to agents already exists for logs and exec, a silent agent is
//! noticed, and an agent cannot report usage of another node: samples are stored under the name of the scraped node.

use super::samples::NodeSamples;
use crate::object::Stored as _;
use crate::server::Server;
use crate::subresource::backend::Backend;
use crate::subresource::node;
use bytes::Bytes;
use futures::StreamExt as _;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

/// Upstream: `--metric-resolution=15s`.
pub(super) const EVERY: Duration = STEP.saturating_mul(STEPS);
/// A new node is scraped sooner and twice, because two samples are needed.
const STEP: Duration = Duration::from_secs(5);
const STEPS: u32 = 3;
/// The timeout of one scrape.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How many nodes are scraped at the same time.
const CONCURRENT_MAX: usize = 16;
/// The maximum size of a page. A thousand containers need less than half of it.
const PAGE_BYTES_MAX: usize = 4 << 20;

const PATH: &str = "/metrics/resource";

pub(crate) async fn run(server: Server) {
    let mut ticks = tokio::time::interval(STEP);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut waited = HashMap::new();
    loop {
        ticks.tick().await;
        sweep(&server, &mut waited).await;
    }
}

/// `waited`: the number of steps since each node was scraped.
async fn sweep(server: &Server, waited: &mut HashMap<String, u32>) {
    let (_, mut nodes) = server.store().list("nodes", "", None);
    let names: BTreeSet<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    server.usage().keep_only(&names);
    waited.retain(|name, _| names.contains(name));
    nodes.retain(|node| {
        let measured = server.usage().nodes().get(node.name()).map(|known| known.node().is_some());
        let waits = waited.entry(node.name().to_owned()).or_insert(STEPS);
        *waits += 1;
        // One sample is not enough.
        let due = *waits >= STEPS || measured == Some(false);
        if due {
            *waits = 0;
        }
        due
    });
    let asking = futures::stream::iter(nodes);
    let asking = asking.for_each_concurrent(CONCURRENT_MAX, |node| async move {
        let Some(agent) = node::agent(server, &node.value()) else { return };
        let name = node.name().to_owned();
        let answered = tokio::time::timeout(ANSWER_MAX, ask(&agent)).await;
        let answered = answered.unwrap_or_else(|_| Err("it took too long".to_owned()));
        let mut known = server.usage().nodes();
        match answered {
            Ok(page) => {
                let after = known.get(&name).unwrap_or(&NodeSamples::default()).after(&page);
                known.insert(name, after);
            }
            Err(why) => {
                tracing::debug!(node = name, why, "scraping a node failed");
                // Old samples would look like new ones.
                known.remove(&name);
            }
        }
    });
    asking.await;
}

async fn ask(agent: &Backend) -> Result<Vec<metrics::ParsedSample>, String> {
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.uri_mut() = http::Uri::from_static(PATH);
    let response = agent.send(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), PAGE_BYTES_MAX).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    let text = std::str::from_utf8(&body).map_err(|error| error.to_string())?;
    if status != StatusCode::OK {
        return Err(format!("{status}: {text}"));
    }
    metrics::parse(text)
}
