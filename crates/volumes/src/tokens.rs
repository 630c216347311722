//! Service account tokens of pods: requested, cached, renewed before they expire (N-142, N-143).

use client::Client;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{Api, PostParams};
use podconfig::{name, namespace, uid};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The API server's default if a volume does not set expirationSeconds.
const LIFETIME_DEFAULT: i64 = 3600;
/// Every token is renewed after this time, however long it is valid.
const AGE_MAX: SignedDuration = SignedDuration::from_hours(24);
/// Spreads renewals over time.
const JITTER_SECONDS: u64 = 10;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    pod: String,
    namespace: String,
    account: String,
    audience: Option<String>,
    seconds: i64,
}

#[derive(Clone)]
struct Token {
    text: String,
    renew_at: Timestamp,
    expires_at: Timestamp,
}

/// Caches the tokens of the pods of this node. Bounded by their volumes, because a token goes with its pod.
pub(crate) struct Tokens {
    client: Client,
    tokens: Mutex<HashMap<Key, Token>>,
}

impl Tokens {
    pub(crate) fn new(client: &Client) -> Tokens {
        Tokens { client: client.clone(), tokens: Mutex::default() }
    }

    /// Returns the cached token, or a new one if it is time to renew. If renewal fails, returns the
    /// old token as long as it is valid.
    pub(crate) async fn get(
        &self,
        pod: &Pod,
        audience: Option<&str>,
        seconds: Option<i64>,
    ) -> Result<String, String> {
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
        let key = Key {
            pod: uid(pod).to_owned(),
            namespace: namespace(pod).to_owned(),
            account: account.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".into()),
            audience: audience.filter(|it| !it.is_empty()).map(str::to_owned),
            seconds: seconds.unwrap_or(LIFETIME_DEFAULT),
        };
        let old = self.tokens().get(&key).cloned();
        let now = clock::now();
        if let Some(token) = old.as_ref().filter(|token| now < token.renew_at) {
            return Ok(token.text.clone());
        }
        match (self.request(pod, &key).await, old) {
            (Ok(token), _) => {
                let text = token.text.clone();
                self.tokens().insert(key, token);
                Ok(text)
            }
            (Err(error), Some(token)) if clock::now() < token.expires_at => {
                tracing::warn!(
                    error,
                    account = key.account,
                    "renewing a service account token failed; the old one is still valid"
                );
                Ok(token.text)
            }
            (Err(error), _) => Err(error),
        }
    }

    pub(crate) fn forget(&self, pod: &str) {
        self.tokens().retain(|key, _| key.pod != pod);
    }

    async fn request(&self, pod: &Pod, key: &Key) -> Result<Token, String> {
        let request = serde_json::from_value(serde_json::json!({
            "metadata": {},
            "spec": {
                "audiences": key.audience.iter().collect::<Vec<_>>(),
                "expirationSeconds": key.seconds,
                "boundObjectRef": {
                    "apiVersion": "v1", "kind": "Pod", "name": name(pod), "uid": key.pod,
                },
            },
        }));
        let request: TokenRequest = request.map_err(|error| error.to_string())?;
        let accounts: Api<ServiceAccount> =
            Api::namespaced(self.client.kube().clone(), &key.namespace);
        let params = PostParams::default();
        let response = accounts.create_token_request(&key.account, &params, &request);
        let response = tokio::time::timeout(REQUEST_TIMEOUT, response).await;
        let response = response.map_err(|_| "timed out waiting for the condition".to_owned())?;
        let status = response.map_err(message)?.status.unwrap_or_default();
        match (status.token.filter(|token| !token.is_empty()), status.expiration_timestamp) {
            (Some(token), Some(expires)) => {
                Ok(Token::new(token, expires.0, key.seconds, clock::now()))
            }
            _ => Err("the API server returned no token".into()),
        }
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<Key, Token>> {
        self.tokens.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The server's message, without the text that kube adds.
fn message(error: kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message,
        error => error.to_string(),
    }
}

impl Token {
    /// Renewed after four fifths of its lifetime, or after a day.
    fn new(text: String, expires_at: Timestamp, seconds: i64, now: Timestamp) -> Token {
        let lifetime = SignedDuration::from_secs(seconds.clamp(0, i64::from(i32::MAX)));
        let last_fifth = expires_at.checked_sub(lifetime / 5).unwrap_or(expires_at);
        let day_old = now.checked_add(AGE_MAX).unwrap_or(last_fifth);
        let jitter = SignedDuration::from_secs((clock::random_u64() % JITTER_SECONDS) as i64);
        let due = last_fifth.min(day_old);
        Token { text, renew_at: due.checked_sub(jitter).unwrap_or(due), expires_at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_143_a_token_is_renewed_after_four_fifths_of_its_lifetime_or_a_day() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (seconds, expected) in [(3607, 2885), (600, 480), (10 * 86_400, 86_400)] {
            let expires = now + SignedDuration::from_secs(seconds);
            let token = Token::new(String::new(), expires, seconds, now);
            let after = token.renew_at.as_second() - now.as_second();
            assert!((expected - 10..=expected + 1).contains(&after), "{seconds}: {after}");
        }
    }
}
