//! Finds what a drill works on: the workload, the container that serves, and an address that answers.

use crate::connection::{Address, Requester};
use crate::error::{Error, Result};
use crate::hook::Hook;
use crate::load::Paths;
use crate::options::Options;
use crate::outcome::{ConnectionKind, Failure};
use crate::rollout;
use crate::service::{self, Candidate};
use crate::workload::{Strategy, Workload};
use client::{Client, Selection};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use std::time::Duration;
use tokio::time::Instant;

/// How long an address is tried.
const TRY_MAX: Duration = Duration::from_secs(3);

/// How long addresses are tried altogether: proxies may be slow to learn of new endpoints.
const ANSWER_MAX: Duration = Duration::from_secs(5);
const ANSWER_POLL: Duration = Duration::from_millis(300);

/// What a drill works on.
#[derive(Debug, Clone)]
pub struct Target {
    pub workload: Workload,
    pub strategy: Strategy,
    /// The container that serves the requests.
    pub container: String,
    pub(crate) hook: Hook,
    /// None if --url was given and no Service was found.
    pub service: Option<String>,
    pub address: Address,
    /// What the address is: `cluster IP of Service web`.
    pub via: String,
    pub(crate) paths: Paths,
    /// How long one slow request took.
    pub(crate) slow_seconds: Option<f64>,
}

impl Target {
    pub async fn find(client: &Client, options: &Options) -> Result<Target> {
        let workload = Workload::load(client, &options.workload).await?;
        let refused = |why: String| Error::NotRestartable { what: workload.id.to_string(), why };
        let strategy = workload.strategy.clone().map_err(refused)?;
        if workload.replicas == 0 {
            return Err(refused("it has no replicas".to_owned()));
        }
        if let rollout::State::Waiting(state) | rollout::State::Failed(state) =
            rollout::state(&workload, workload.generation)
        {
            return Err(Error::Busy { workload: workload.id.to_string(), state });
        }
        let paths = paths(options)?;
        let found = find_service(client, &workload, options).await?;
        let container = match &found {
            Some(found) => service::serving_container(&workload, &found.port),
            None => workload.containers().first(),
        };
        let container =
            container.ok_or_else(|| refused("its pods have no container".to_owned()))?;
        let (name, hook) = (container.name.clone(), Hook::of(container));
        let (address, via) = match &options.url {
            Some(url) => parse_url(url)?,
            None => first_that_answers(client, found.as_ref(), &workload, &paths).await?,
        };
        let slow_seconds = check_paths(&address, &paths, options).await?;
        Ok(Target {
            strategy,
            container: name,
            hook,
            service: found.map(|found| found.name),
            address,
            via,
            paths,
            slow_seconds,
            workload,
        })
    }
}

struct FoundService {
    name: String,
    service: Service,
    port: k8s_openapi::api::core::v1::ServicePort,
}

/// With --url a Service is optional: it only helps to explain failures.
async fn find_service(
    client: &Client,
    workload: &Workload,
    options: &Options,
) -> Result<Option<FoundService>> {
    let namespace = Selection::namespace(workload.id.key.namespace());
    let services = client.list::<Service>(&namespace).await?;
    let found = service::choose(workload, services, options.service.as_deref());
    let found = found.and_then(|service| {
        let port = service::choose_port(&service, options.port.as_deref())?;
        let name = service.metadata.name.clone().unwrap_or_default();
        Ok(FoundService { name, service, port })
    });
    match found {
        Err(_) if options.url.is_some() => Ok(None),
        found => found.map(Some),
    }
}

fn paths(options: &Options) -> Result<Paths> {
    let slow = match (&options.slow_path, options.connections.contains(&ConnectionKind::Slow)) {
        (Some(path), _) => path.clone(),
        (None, false) => options.path.clone(),
        (None, true) => {
            return Err(Error::Unsupported(
                "`slow` connections need a path whose answer takes long: name it with --slow-path"
                    .to_owned(),
            ));
        }
    };
    let usual = options.path.clone();
    for path in [&usual, &slow] {
        if !path.starts_with('/') || path.contains(char::is_whitespace) {
            return Err(Error::Unsupported(format!("{path:?} is not a path: begin it with `/`")));
        }
    }
    Ok(Paths { usual, slow })
}

/// `http://HOST[:PORT]`.
fn parse_url(url: &str) -> Result<(Address, String)> {
    let bad = |why: &str| Error::Url { url: url.to_owned(), why: why.to_owned() };
    let uri: http::Uri = url.parse().map_err(|_| bad("it is not a URL"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err(bad("https is not supported yet; use the Service behind it")),
        _ => return Err(bad("begin it with http://")),
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(bad("give the path with --path"));
    }
    let host = uri.host().ok_or_else(|| bad("it names no host"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let address = Address { host, port: uri.port_u16().unwrap_or(80) };
    Ok((address, "--url".to_owned()))
}

async fn first_that_answers(
    client: &Client,
    found: Option<&FoundService>,
    workload: &Workload,
    paths: &Paths,
) -> Result<(Address, String)> {
    let Some(FoundService { name, service, port }) = found else {
        return Err(Error::NoService {
            namespace: workload.id.key.namespace().to_owned(),
            workload: workload.id.to_string(),
        });
    };
    if ready_endpoints(client, workload, name).await? == Some(0) {
        return Err(Error::NoEndpoints { service: name.clone() });
    }
    // Without the right to list nodes, node ports are not tried.
    let nodes = client.list::<Node>(&Selection::default()).await.unwrap_or_default();
    let candidates = service::candidates(service, port, &nodes);
    let end = Instant::now() + ANSWER_MAX;
    loop {
        let mut tried = Vec::new();
        for Candidate { host, port, what } in &candidates {
            let address = Address { host: host.clone(), port: *port };
            match probe(&address, &paths.usual, TRY_MAX).await.0 {
                Ok(_) | Err(Failure::ServerError) => {
                    return Ok((address, format!("{what} of Service {name}")));
                }
                Err(failure) => tried.push(format!("{what} {address} ({})", failure.phrase())),
            }
        }
        if tried.is_empty() {
            tried.push("none, because it has no address".to_owned());
        }
        if candidates.is_empty() || Instant::now() >= end {
            return Err(Error::Unreachable { service: name.clone(), tried: tried.join(", ") });
        }
        tokio::time::sleep(ANSWER_POLL).await;
    }
}

/// None: the server shows no EndpointSlices to us.
async fn ready_endpoints(
    client: &Client,
    workload: &Workload,
    service: &str,
) -> Result<Option<usize>> {
    let which = Selection::namespace(workload.id.key.namespace())
        .labels(&format!("kubernetes.io/service-name={service}"));
    match client.list::<EndpointSlice>(&which).await {
        Ok(slices) => Ok(Some(slices.iter().map(crate::observer::ready_in).sum())),
        Err(error) if error.is_forbidden() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The result of one request, and how long it took.
async fn probe(address: &Address, path: &str, limit: Duration) -> (Result<u16, Failure>, f64) {
    let requester = Requester::new(address.clone(), limit);
    let start = Instant::now();
    let finished = requester.get(ConnectionKind::New, path, start + limit).await;
    (finished.result, start.elapsed().as_secs_f64())
}

/// Both paths must answer before any pod is restarted. Returns how long a slow request took.
async fn check_paths(address: &Address, paths: &Paths, options: &Options) -> Result<Option<f64>> {
    let slow = options.connections.contains(&ConnectionKind::Slow);
    let all = [(&paths.usual, true), (&paths.slow, slow)];
    let mut slow_seconds = None;
    for (path, _) in all.into_iter().filter(|(_, used)| *used) {
        let (result, seconds) = probe(address, path, options.timeout).await;
        let bad = |why: String| Error::BadAnswer { path: path.clone(), why };
        match result {
            Err(Failure::Timeout) => {
                let limit = options.timeout.as_secs_f64();
                return Err(bad(format!("no answer within {limit} s (--timeout)")));
            }
            Err(failure) => return Err(bad(failure.phrase().to_owned())),
            Ok(404) => return Err(bad("404 Not Found".to_owned())),
            Ok(_) => slow_seconds = slow.then_some(seconds),
        }
    }
    Ok(slow_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_host_and_nothing_else() {
        let address = |url| parse_url(url).map(|(address, _)| address.to_string());
        assert_eq!(address("http://example.org").unwrap(), "example.org:80");
        assert_eq!(address("http://10.0.0.1:8080/").unwrap(), "10.0.0.1:8080");
        assert_eq!(address("http://[fd00::1]:81").unwrap(), "[fd00::1]:81");
        for (url, words) in [
            ("https://example.org", "not supported"),
            ("example.org", "http://"),
            ("http://example.org/shop", "--path"),
            ("http://", "not a URL"),
        ] {
            let message = address(url).unwrap_err().to_string();
            assert!(message.contains(words), "{url}: {message}");
        }
    }
}
