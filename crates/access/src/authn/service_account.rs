//! Service account tokens: their claims, and when they are valid.
//!
//! A token is valid while its signature, dates and audience are right *and* the objects that it is bound to still
//! exist. The objects are read through a [`BoundLookup`].

use super::jwt::{BadKey, JwtError, SigningKey};
use super::static_tokens::hash;
use super::{CREDENTIAL_ID, User};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// How long a token stays valid after the deletionTimestamp of an object that it is bound to.
const DELETED_GRACE: SignedDuration = SignedDuration::from_secs(60);

/// How many verified signatures are remembered. The cache is cleared when it is full.
const VERIFIED_MAX: usize = 4096;

/// What the validity of a token depends on in an object that it is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    pub uid: String,
    /// The object's deletionTimestamp.
    pub deleted_since: Option<Timestamp>,
}

/// Finds an object by plural resource, namespace ("" for nodes) and name.
pub type BoundLookup<'a> = &'a dyn Fn(&str, &str, &str) -> Option<Bound>;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("invalid bearer token")]
    Invalid(#[from] JwtError),
    #[error("invalid bearer token, issued by another issuer")]
    Issuer,
    #[error("service account token has expired")]
    Expired,
    #[error("service account token is not valid yet")]
    NotYetValid,
    #[error("token audiences do not include the target audience")]
    Audience,
    #[error("service account token has been invalidated")]
    Invalidated,
    #[error(transparent)]
    Bootstrap(#[from] super::bootstrap_tokens::BootstrapError),
}

/// The claims of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    pub aud: Vec<String>,
    pub exp: i64,
    pub iat: i64,
    pub iss: String,
    pub jti: String,
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: Kubernetes,
    pub nbf: i64,
    pub sub: String,
}

/// The claim `kubernetes.io`: whose token it is and what it is bound to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kubernetes {
    pub namespace: String,
    pub serviceaccount: Reference,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    /// From this time on, use of the token is reported: the holder should have fetched a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    pub name: String,
    pub uid: String,
}

impl Claims {
    /// The user of the token.
    pub fn user(&self) -> User {
        let Kubernetes { namespace, serviceaccount, pod, node, .. } = &self.kubernetes;
        let name = format!("system:serviceaccount:{namespace}:{}", serviceaccount.name);
        let own = format!("system:serviceaccounts:{namespace}");
        let mut user = User::authenticated(name, &["system:serviceaccounts", &own]);
        user.uid = serviceaccount.uid.clone();
        if !self.jti.is_empty() {
            user.extra.insert(CREDENTIAL_ID.into(), vec![format!("JTI={}", self.jti)]);
        }
        for (kind, reference) in [("pod", pod), ("node", node)] {
            if let Some(Reference { name, uid }) = reference {
                let key = |field| format!("authentication.kubernetes.io/{kind}-{field}");
                user.extra.insert(key("name"), vec![name.clone()]);
                if !uid.is_empty() {
                    user.extra.insert(key("uid"), vec![uid.clone()]);
                }
            }
        }
        user
    }

    /// Whether the account and the objects that the token is bound to still exist.
    pub fn check_bound(&self, now: Timestamp, lookup: BoundLookup) -> Result<(), TokenError> {
        let Kubernetes { namespace, serviceaccount, pod, secret, node, .. } = &self.kubernetes;
        let alive = |resource, namespace: &str, reference: &Reference| {
            lookup(resource, namespace, &reference.name).is_some_and(|found| {
                let gone =
                    found.deleted_since.is_some_and(|at| now.duration_since(at) > DELETED_GRACE);
                found.uid == reference.uid && !gone
            })
        };
        let alive_if_bound = |resource, namespace: &str, reference: &Option<Reference>| {
            reference.as_ref().is_none_or(|reference| alive(resource, namespace, reference))
        };
        // With a bound pod, the node is only information about where the pod ran; it may be gone.
        let node = if pod.is_some() { &None } else { node };
        let valid = alive("serviceaccounts", namespace, serviceaccount)
            && alive_if_bound("pods", namespace, pod)
            && alive_if_bound("secrets", namespace, secret)
            && alive_if_bound("nodes", "", node);
        if valid { Ok(()) } else { Err(TokenError::Invalidated) }
    }
}

/// Signs and verifies tokens.
pub struct ServiceAccountTokens {
    key: SigningKey,
    issuer: String,
    audiences: Vec<String>,
    verified: Mutex<HashMap<[u8; 32], Arc<Claims>>>,
}

impl ServiceAccountTokens {
    /// Without audiences, the issuer's name is the audience, as upstream.
    pub fn new(key_pem: &str, issuer: &str, audiences: &[String]) -> Result<Self, BadKey> {
        Ok(Self::with_key(SigningKey::from_pem(key_pem)?, issuer, audiences))
    }

    pub fn with_key(key: SigningKey, issuer: &str, audiences: &[String]) -> Self {
        let audiences =
            if audiences.is_empty() { vec![issuer.to_owned()] } else { audiences.to_vec() };
        let verified = Mutex::new(HashMap::new());
        ServiceAccountTokens { key, issuer: issuer.to_owned(), audiences, verified }
    }

    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The values of a token's `aud` that mean this server.
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    pub fn sign(&self, claims: &Claims) -> String {
        self.key.sign(&json!(claims))
    }

    /// The claims of a token for this server. Does not check the objects that it is bound to.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Arc<Claims>, TokenError> {
        self.verify_for(token, &self.audiences, now)
    }

    pub fn verify_for(
        &self,
        token: &str,
        audiences: &[String],
        now: Timestamp,
    ) -> Result<Arc<Claims>, TokenError> {
        let claims = self.signed_claims(token)?;
        if claims.iss != self.issuer {
            return Err(TokenError::Issuer);
        }
        if claims.exp <= now.as_second() {
            return Err(TokenError::Expired);
        }
        if claims.nbf > now.as_second() {
            return Err(TokenError::NotYetValid);
        }
        if !claims.aud.iter().any(|audience| audiences.contains(audience)) {
            return Err(TokenError::Audience);
        }
        Ok(claims)
    }

    /// Caches verified signatures: checking one costs a hundred times as much as a hash, and clients send the same
    /// token with every request. Dates and bound objects are checked every time.
    fn signed_claims(&self, token: &str) -> Result<Arc<Claims>, TokenError> {
        let key = hash(token);
        if let Some(claims) = self.verified().get(&key) {
            return Ok(claims.clone());
        }
        let claims = self.key.verify(token)?;
        let claims = serde_json::from_value(claims).map_err(|_| JwtError::Malformed)?;
        let claims = Arc::new(claims);
        let mut verified = self.verified();
        if verified.len() >= VERIFIED_MAX {
            verified.clear();
        }
        verified.insert(key, Arc::clone(&claims));
        Ok(claims)
    }

    fn verified(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Arc<Claims>>> {
        self.verified.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// `GET /openid/v1/jwks`, as `application/jwk-set+json`.
    pub fn jwks(&self) -> Value {
        json!({"keys": [self.key.jwk()]})
    }

    /// `GET /.well-known/openid-configuration`, with our algorithm.
    pub fn openid_configuration(&self) -> Value {
        json!({
            "issuer": self.issuer,
            "jwks_uri": format!("{}/openid/v1/jwks", self.issuer),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        })
    }
}

impl std::fmt::Debug for ServiceAccountTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceAccountTokens")
            .field("issuer", &self.issuer)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}
