//! A client for one repository of a registry or mirror: manifests, blobs and authentication.
//!
//! Not here: which registry to use (`pull`), what the documents mean (`manifest`).

use super::challenge::Challenge;
use super::digest::Digest;
use super::limits::DOCUMENT_BYTES_MAX;
use super::registries::{Endpoint, Registries};
use crate::{Credentials, Error, Result};
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, RANGE, WWW_AUTHENTICATE};
use reqwest::{Response, StatusCode, Url};
use std::sync::Mutex;
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time without data. A pull has no other deadline (N-69).
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const REDIRECTS_MAX: usize = 10;
/// Limits for a registry's error message: bytes to read and characters to show.
const ERROR_BYTES_MAX: u64 = 64 << 10;
const ERROR_CHARS_MAX: usize = 512;

const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, */*;q=0.1";

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Unreachable, access denied, or not found. Another registry or other credentials may succeed.
    Refused(String),
    /// The answer is invalid and must not be used.
    Bad(Error),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Refused(message) => f.write_str(message),
            Failure::Bad(error) => error.fmt(f),
        }
    }
}

/// A repository at an endpoint, with credentials or anonymous.
pub(crate) struct Repository {
    http: reqwest::Client,
    endpoint: Endpoint,
    repository: String,
    credentials: Option<Credentials>,
    /// The `Authorization` header for the next request.
    authorization: Mutex<Option<HeaderValue>>,
}

impl Repository {
    pub(crate) fn new(
        registries: &Registries,
        endpoint: &Endpoint,
        repository: &str,
        credentials: Option<&Credentials>,
    ) -> Result<Repository> {
        let token = credentials.filter(|known| !known.token.is_empty());
        let authorization = token.and_then(|known| secret(format!("Bearer {}", known.token)));
        Ok(Repository {
            http: client(registries, endpoint)?,
            endpoint: endpoint.clone(),
            repository: repository.to_owned(),
            credentials: credentials.cloned(),
            authorization: Mutex::new(authorization),
        })
    }

    /// A manifest or index by tag or digest, without checking its digest.
    pub(crate) async fn manifest(&self, reference: &str) -> Result<Vec<u8>, Failure> {
        let response = self.get(&format!("manifests/{reference}"), None).await?;
        body(response, DOCUMENT_BYTES_MAX).await
    }

    /// A small blob, with its digest checked.
    pub(crate) async fn document(&self, digest: &Digest) -> Result<Vec<u8>, Failure> {
        let response = self.get(&format!("blobs/{digest}"), None).await?;
        let bytes = body(response, DOCUMENT_BYTES_MAX).await?;
        let mut context = digest.context();
        context.update(&bytes);
        digest.matches(context).map_err(Failure::Bad)?;
        Ok(bytes)
    }

    /// A blob from byte `from` on. The registry may ignore that and send everything (status 200).
    pub(crate) async fn blob(&self, digest: &Digest, from: u64) -> Result<Response, Failure> {
        self.get(&format!("blobs/{digest}"), Some(from).filter(|from| *from > 0)).await
    }

    async fn get(&self, path: &str, from: Option<u64>) -> Result<Response, Failure> {
        let url = self.endpoint.url(&self.repository, path);
        let response = self.send(&url, from).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return accept(response).await;
        }
        let headers = response.headers().get_all(WWW_AUTHENTICATE);
        let challenge = Challenge::read(headers.iter().filter_map(|value| value.to_str().ok()));
        let Some(authorization) = self.authorize(challenge).await? else {
            return accept(response).await; // Returns the registry's error.
        };
        *self.authorization.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
            Some(authorization);
        accept(self.send(&url, from).await?).await
    }

    async fn send(&self, url: &str, from: Option<u64>) -> Result<Response, Failure> {
        let mut request = self.http.get(url).header(ACCEPT, MANIFESTS);
        if let Some(from) = from {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        let authorization =
            self.authorization.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.send().await.map_err(|error| failed_request("failed to do request", error))
    }

    /// The header for a challenge. `None` if there are no suitable credentials.
    async fn authorize(
        &self,
        challenge: Option<Challenge>,
    ) -> Result<Option<HeaderValue>, Failure> {
        let named = self.credentials.as_ref().filter(|known| known.token.is_empty());
        match (challenge, named) {
            (Some(Challenge::Basic), Some(known)) => Ok(basic(known)),
            (Some(Challenge::Bearer { realm, service, scope }), named) => {
                let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.repository));
                self.token(&realm, service, &scope, named).await.map(Some)
            }
            (Some(Challenge::Basic) | None, _) => Ok(None),
        }
    }

    async fn token(
        &self,
        realm: &str,
        service: Option<String>,
        scope: &str,
        known: Option<&Credentials>,
    ) -> Result<HeaderValue, Failure> {
        #[derive(serde::Deserialize)]
        struct Answer {
            #[serde(default)]
            token: String,
            #[serde(default)]
            access_token: String,
        }
        let mut url: Url = realm.parse().map_err(|_| {
            Failure::Refused(format!("the registry's token server has an invalid URL: {realm:?}"))
        })?;
        // Do not send a password without TLS if the registry itself uses TLS.
        if known.is_some() && url.scheme() != "https" && self.endpoint.is_secure() {
            return Err(Failure::Refused(format!(
                "the registry's token server does not use TLS: {realm:?}"
            )));
        }
        url.query_pairs_mut().append_pair("scope", scope);
        if let Some(service) = service {
            url.query_pairs_mut().append_pair("service", &service);
        }
        let mut request = self.http.get(url);
        if let Some(header) = known.and_then(basic) {
            request = request.header(AUTHORIZATION, header);
        }
        let failed = |error| failed_request("failed to fetch a token", error);
        let response = accept(request.send().await.map_err(failed)?).await?;
        let bytes = body(response, ERROR_BYTES_MAX).await?;
        let answer: Answer = serde_json::from_slice(&bytes).map_err(|e| {
            Failure::Refused(format!("cannot parse the token server's answer: {e}"))
        })?;
        let token = if answer.token.is_empty() { answer.access_token } else { answer.token };
        secret(format!("Bearer {token}"))
            .filter(|_| !token.is_empty())
            .ok_or_else(|| Failure::Refused("the token server returned no valid token".to_owned()))
    }
}

fn client(registries: &Registries, endpoint: &Endpoint) -> Result<reqwest::Client> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails if another thread has just installed it, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let certificates = registries.certificates()?;
    let builder = || {
        let builder = reqwest::Client::builder()
            .user_agent(concat!("landfall/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .redirect(reqwest::redirect::Policy::custom(follow));
        // A proxy cannot reach this machine's loopback.
        if endpoint.is_loopback() { builder.no_proxy() } else { builder }
    };
    builder()
        .tls_certs_merge(certificates.clone())
        .build()
        // A machine without system certificates can still use these and plain HTTP.
        .or_else(|_| builder().tls_certs_only(certificates).build())
        .map_err(|e| Error::Refused(format!("cannot set up TLS: {}", causes(&e))))
}

fn follow(attempt: reqwest::redirect::Attempt<'_>) -> reqwest::redirect::Action {
    let secure = |url: &Url| url.scheme() == "https";
    if attempt.previous().len() > REDIRECTS_MAX {
        return attempt.error("too many redirects");
    }
    if attempt.previous().last().is_some_and(secure) && !secure(attempt.url()) {
        return attempt.error("the registry redirects from https to http");
    }
    attempt.follow()
}

fn basic(known: &Credentials) -> Option<HeaderValue> {
    use base64::Engine;
    let pair = format!("{}:{}", known.username, known.password);
    secret(format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair)))
}

/// A header that is not shown in debug output.
fn secret(text: String) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

async fn accept(response: Response) -> Result<Response, Failure> {
    let status = response.status();
    if matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
        return Ok(response);
    }
    let url = response.url().path().to_owned();
    let message = server_message(&body(response, ERROR_BYTES_MAX).await.unwrap_or_default());
    Err(Failure::Refused(match status {
        StatusCode::NOT_FOUND => format!("not found{message}"),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => format!(
            "pull access denied, repository does not exist or may require authorization{message}"
        ),
        StatusCode::TOO_MANY_REQUESTS => format!("429 Too Many Requests{message}"),
        other => format!("unexpected status from GET request to {url}: {other}{message}"),
    }))
}

/// The registry's own error message: `: server message: …`.
fn server_message(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Envelope {
        errors: Vec<ServerError>,
    }
    #[derive(serde::Deserialize)]
    struct ServerError {
        #[serde(default)]
        message: String,
    }
    let Ok(envelope) = serde_json::from_slice::<Envelope>(body) else { return String::new() };
    let messages: Vec<String> = envelope.errors.into_iter().map(|error| error.message).collect();
    let text: String = messages.join("; ").chars().take(ERROR_CHARS_MAX).collect();
    if text.is_empty() { text } else { format!(": server message: {text}") }
}

async fn body(mut response: Response, max: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|e| failed_request("failed to read", e))?
    {
        if bytes.len() as u64 + chunk.len() as u64 > max {
            let message = format!("the registry's answer is longer than {max} bytes");
            return Err(Failure::Bad(Error::Refused(message)));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

pub(crate) fn failed_request(doing: &str, error: reqwest::Error) -> Failure {
    Failure::Refused(format!("{doing}: {}", causes(&error)))
}

/// An error of reqwest with its sources, which contain the reason.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
