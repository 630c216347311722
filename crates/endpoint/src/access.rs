//! Authenticates and authorizes callers: asks the API server and caches its answers for a while (N-168).

use client::Client;
use http::{HeaderMap, Method, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use ring::digest::{SHA256, digest};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use x509_parser::prelude::{FromDer as _, X509Certificate};

const TOKEN_CACHED_FOR: Duration = Duration::from_secs(120);
const ALLOW_CACHED_FOR: Duration = Duration::from_secs(300);
const DENY_CACHED_FOR: Duration = Duration::from_secs(30);
/// Entries per cache. A node has few callers, and one with many tokens must not use up memory.
const CACHE_MAX: usize = 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

/// CN is the user name, each O a group. The TLS layer has verified the signature.
pub(crate) fn user_of_certificate(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let mut names = subject.iter_common_name().filter_map(|name| name.as_str().ok());
    let name = names.find(|name| !name.is_empty())?.to_owned();
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
    let groups = groups.chain(["system:authenticated"]).map(str::to_owned).collect();
    Some(User { name, groups, ..User::default() })
}

/// The cache keeps only the hash of a token, because tokens are secret.
fn hash(token: &str) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    hash
}

/// Why a request is refused. The text is the body of the response.
pub(crate) enum AccessError {
    /// 401
    Unauthenticated,
    /// 403
    Forbidden(String),
    /// 500: the API server did not answer.
    ReviewFailed(String),
}

pub(crate) struct Access {
    node: String,
    client: Client,
    /// By hash of the token. None means that the token is not valid.
    users: ExpiringCache<[u8; 32], Option<Arc<User>>>,
    decisions: ExpiringCache<(Arc<User>, &'static str, &'static str), bool>,
}

impl Access {
    pub(crate) fn new(node: String, client: Client) -> Access {
        Access {
            node,
            client,
            users: ExpiringCache::default(),
            decisions: ExpiringCache::default(),
        }
    }

    /// Succeeds if the caller may do this to one of these subresources of the Node.
    pub(crate) async fn check(
        &self,
        certificate: Option<Arc<User>>,
        headers: &HeaderMap,
        method: &Method,
        subresources: &[&'static str],
    ) -> Result<(), AccessError> {
        let user = match certificate {
            Some(user) => user,
            None => self.authenticate(headers).await.ok_or(AccessError::Unauthenticated)?,
        };
        let verb = verb(method);
        let attributes = || {
            format!(
                "(user={}, verb={verb}, resource=nodes, subresource(s)=[{}])",
                user.name,
                subresources.join(" ")
            )
        };
        for subresource in subresources {
            match self.authorize(&user, verb, subresource).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "authorizing a caller of the node's endpoint failed");
                    return Err(AccessError::ReviewFailed(format!(
                        "Authorization error {}",
                        attributes()
                    )));
                }
            }
        }
        Err(AccessError::Forbidden(format!("Forbidden {}", attributes())))
    }

    async fn authenticate(&self, headers: &HeaderMap) -> Option<Arc<User>> {
        let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let (scheme, token) = value.trim().split_once(' ')?;
        let token = token.trim();
        if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
            return None;
        }
        let key = hash(token);
        if let Some(known) = self.users.get(&key) {
            return known;
        }
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            ..TokenReview::default()
        };
        let status = match self.client.create(&review).await {
            Ok(TokenReview { status, .. }) => status.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "authenticating a caller of the node's endpoint failed");
                return None;
            }
        };
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(|user| {
            Arc::new(User {
                name: user.username.unwrap_or_default(),
                uid: user.uid.unwrap_or_default(),
                groups: user.groups.unwrap_or_default(),
                extra: user.extra.unwrap_or_default(),
            })
        });
        self.users.put(key, user.clone(), TOKEN_CACHED_FOR);
        user
    }

    async fn authorize(
        &self,
        user: &Arc<User>,
        verb: &'static str,
        subresource: &'static str,
    ) -> client::Result<bool> {
        let key = (user.clone(), verb, subresource);
        if let Some(decided) = self.decisions.get(&key) {
            return Ok(decided);
        }
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.to_owned()),
                    version: Some("v1".to_owned()),
                    resource: Some("nodes".to_owned()),
                    subresource: Some(subresource.to_owned()),
                    name: Some(self.node.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviewed: SubjectAccessReview = self.client.create(&review).await?;
        let allowed = reviewed.status.is_some_and(|status| status.allowed);
        self.decisions.put(key, allowed, if allowed { ALLOW_CACHED_FOR } else { DENY_CACHED_FOR });
        Ok(allowed)
    }
}

fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

/// Values that are valid for a limited time.
struct ExpiringCache<K, V>(Mutex<HashMap<K, (Instant, V)>>);

impl<K, V> Default for ExpiringCache<K, V> {
    fn default() -> Self {
        ExpiringCache(Mutex::default())
    }
}

impl<K: Hash + Eq, V: Clone> ExpiringCache<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let entries = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        entries
            .get(key)
            .filter(|(until, _)| Instant::now() < *until)
            .map(|(_, value)| value.clone())
    }

    fn put(&self, key: K, value: V, valid_for: Duration) {
        let mut entries = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let now = Instant::now();
        if entries.len() >= CACHE_MAX {
            entries.retain(|_, (until, _)| now < *until);
        }
        if entries.len() >= CACHE_MAX {
            entries.clear();
        }
        entries.insert(key, (now + valid_for, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn n_168_cached_reviews_expire_and_their_number_is_bounded() {
        let cache: ExpiringCache<usize, bool> = ExpiringCache::default();
        cache.put(0, true, ALLOW_CACHED_FOR);
        cache.put(1, false, DENY_CACHED_FOR);
        tokio::time::advance(DENY_CACHED_FOR).await;
        assert_eq!((cache.get(&0), cache.get(&1)), (Some(true), None));
        tokio::time::advance(ALLOW_CACHED_FOR).await;
        assert_eq!(cache.get(&0), None);
        for key in 0..3 * CACHE_MAX {
            cache.put(key, true, ALLOW_CACHED_FOR);
        }
        assert!(cache.0.lock().unwrap().len() <= CACHE_MAX);
    }
}
