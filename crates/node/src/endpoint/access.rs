//! Who calls, and whether they may: asked of the API server, and remembered for a while (N-168).

use crate::digest::sha256;
use client::Client;
use http::{HeaderMap, Method, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use x509_parser::prelude::{FromDer as _, X509Certificate};

const KNOWN_FOR: Duration = Duration::from_secs(120);
const ALLOWED_FOR: Duration = Duration::from_secs(300);
const DENIED_FOR: Duration = Duration::from_secs(30);
/// A node has few callers; a scanner with many tokens must not fill its memory.
const REMEMBERED_MAX: usize = 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

/// CN is the user, each O a group. The TLS layer has checked who signed it.
pub(super) fn user_of_certificate(der: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = certificate.subject();
    let mut names = subject.iter_common_name().filter_map(|name| name.as_str().ok());
    let name = names.find(|name| !name.is_empty())?.to_owned();
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
    let groups = groups.chain(["system:authenticated"]).map(str::to_owned).collect();
    Some(User { name, groups, ..User::default() })
}

pub(super) enum Refusal {
    /// 401
    Unknown,
    /// 403, with the whole text.
    Forbidden(String),
    /// 500: nobody could be asked.
    Unanswered(String),
}

pub(super) struct Access {
    node: String,
    client: Client,
    /// By hash of the token; None: nobody.
    users: Memory<[u8; 32], Option<Arc<User>>>,
    decisions: Memory<(Arc<User>, &'static str, &'static str), bool>,
}

impl Access {
    pub(super) fn new(node: String, client: Client) -> Access {
        Access { node, client, users: Memory::default(), decisions: Memory::default() }
    }

    /// The caller, if they may do this to one of these subresources of the Node.
    pub(super) async fn check(
        &self,
        certificate: Option<Arc<User>>,
        headers: &HeaderMap,
        method: &Method,
        subresources: &[&'static str],
    ) -> Result<(), Refusal> {
        let user = match certificate {
            Some(user) => user,
            None => self.who(headers).await.ok_or(Refusal::Unknown)?,
        };
        let verb = verb(method);
        let what = || {
            format!(
                "(user={}, verb={verb}, resource=nodes, subresource(s)=[{}])",
                user.name,
                subresources.join(" ")
            )
        };
        for subresource in subresources {
            match self.may(&user, verb, subresource).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "whether a caller of the node may is not known");
                    return Err(Refusal::Unanswered(format!("Authorization error {}", what())));
                }
            }
        }
        Err(Refusal::Forbidden(format!("Forbidden {}", what())))
    }

    async fn who(&self, headers: &HeaderMap) -> Option<Arc<User>> {
        let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let (scheme, token) = value.trim().split_once(' ')?;
        let token = token.trim();
        if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
            return None;
        }
        let key = sha256(token);
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
                tracing::warn!(%error, "who calls the node is not known");
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
        self.users.put(key, user.clone(), KNOWN_FOR);
        user
    }

    async fn may(
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
        let answer: SubjectAccessReview = self.client.create(&review).await?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        self.decisions.put(key, allowed, if allowed { ALLOWED_FOR } else { DENIED_FOR });
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

/// Answers that hold for a while.
struct Memory<K, V>(Mutex<HashMap<K, (Instant, V)>>);

impl<K, V> Default for Memory<K, V> {
    fn default() -> Self {
        Memory(Mutex::default())
    }
}

impl<K: Hash + Eq, V: Clone> Memory<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let known = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.get(key).filter(|(until, _)| Instant::now() < *until).map(|(_, value)| value.clone())
    }

    fn put(&self, key: K, value: V, holds: Duration) {
        let mut known = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let now = Instant::now();
        if known.len() >= REMEMBERED_MAX {
            known.retain(|_, (until, _)| now < *until);
        }
        if known.len() >= REMEMBERED_MAX {
            known.clear();
        }
        known.insert(key, (now + holds, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn n_168_answers_are_remembered_for_their_time_and_in_bounds() {
        let memory: Memory<usize, bool> = Memory::default();
        memory.put(0, true, ALLOWED_FOR);
        memory.put(1, false, DENIED_FOR);
        tokio::time::advance(DENIED_FOR).await;
        assert_eq!((memory.get(&0), memory.get(&1)), (Some(true), None));
        tokio::time::advance(ALLOWED_FOR).await;
        assert_eq!(memory.get(&0), None);
        for key in 0..3 * REMEMBERED_MAX {
            memory.put(key, true, ALLOWED_FOR);
        }
        assert!(memory.0.lock().unwrap().len() <= REMEMBERED_MAX);
    }
}
