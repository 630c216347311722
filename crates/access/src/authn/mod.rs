//! Authentication: from the credentials of a request to a [`User`].
//!
//!     TLS peer certificate ──▶ certificate ─┐
//!     Authorization: Bearer ──▶ bearer ──▶ static_tokens, bootstrap_tokens, service_account ─┤──▶ User
//!     WebSocket subprotocol ──▶ bearer ─────┘          nothing at all ──▶ anonymous
//!
//! Everything here is pure: time is an argument, and the objects that a token is bound to are read through a
//! closure. Not here: what the user may do (`authz`), where keys are stored (`pki`).

pub mod bearer;
pub mod bootstrap_tokens;
pub mod certificate;
pub mod impersonation;
pub mod jwt;
pub mod service_account;
pub mod static_tokens;
pub mod tokens;

pub use bootstrap_tokens::BootstrapTokens;
pub use certificate::user_of_certificate;
pub use service_account::{Bound, BoundLookup, Claims, ServiceAccountTokens, TokenError};
pub use static_tokens::StaticTokens;

use http::HeaderMap;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

pub const ANONYMOUS: &str = "system:anonymous";
pub const AUTHENTICATED: &str = "system:authenticated";
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
pub const MASTERS: &str = "system:masters";
pub const NODES: &str = "system:nodes";
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The caller of a request, as authorization and the review APIs see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// The user of a controller: its service account in `kube-system`. Controllers that do what upstream's
    /// API server does itself act as the API server.
    pub fn of_controller(account: &str) -> User {
        match account {
            "apiserver" => User::authenticated("system:apiserver", &[MASTERS]),
            account => User::authenticated(
                format!("system:serviceaccount:kube-system:{account}"),
                &["system:serviceaccounts", "system:serviceaccounts:kube-system"],
            ),
        }
    }

    /// A user with these groups and `system:authenticated`.
    pub fn authenticated(name: impl Into<String>, groups: &[&str]) -> User {
        let mut user = User {
            name: name.into(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            ..User::default()
        };
        user.add_group(AUTHENTICATED);
        user
    }

    pub fn anonymous() -> User {
        let groups = vec![UNAUTHENTICATED.to_owned()];
        User { name: ANONYMOUS.to_owned(), groups, ..User::default() }
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    pub fn add_group(&mut self, group: &str) {
        if !self.in_group(group) {
            self.groups.push(group.to_owned());
        }
    }

    /// The node's name, if this user is a node.
    pub fn node_name(&self) -> Option<&str> {
        let name = self.name.strip_prefix("system:node:")?;
        (!name.is_empty() && self.in_group(NODES)).then_some(name)
    }

    /// As `authentication.k8s.io/v1` UserInfo, without empty fields.
    pub fn to_json(&self) -> Value {
        let mut info = Map::new();
        for (field, text) in [("username", &self.name), ("uid", &self.uid)] {
            if !text.is_empty() {
                info.insert(field.into(), text.as_str().into());
            }
        }
        if !self.groups.is_empty() {
            info.insert("groups".into(), json!(self.groups));
        }
        if !self.extra.is_empty() {
            info.insert("extra".into(), json!(self.extra));
        }
        Value::Object(info)
    }
}

/// The request has an invalid credential: 401, never anonymous.
///
/// The reason is for our log; the client gets only `Unauthorized`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Unauthorized")]
pub struct Unauthorized {
    pub reason: String,
}

impl Unauthorized {
    pub fn status(&self) -> api::Status {
        api::Status::failure(401, "Unauthorized", "Unauthorized")
    }
}

/// All kinds of credentials other than client certificates.
#[derive(Debug)]
pub struct Authenticator {
    pub static_tokens: StaticTokens,
    pub bootstrap_tokens: BootstrapTokens,
    pub service_accounts: ServiceAccountTokens,
}

impl Authenticator {
    /// Tries certificate, bearer token and WebSocket subprotocol in this order; without any the user is
    /// anonymous.
    ///
    /// `peer` is the user of the connection's verified client certificate, read once per connection with
    /// [`user_of_certificate`].
    pub fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: Option<&User>,
        now: Timestamp,
        bound: BoundLookup,
    ) -> Result<User, Unauthorized> {
        if let Some(user) = peer {
            return Ok(user.clone());
        }
        match bearer::token(headers) {
            Ok(None) => Ok(User::anonymous()),
            Ok(Some(token)) => self
                .user_of_token(&token, now, bound)
                .map_err(|error| Unauthorized { reason: error.to_string() }),
            Err(reason) => Err(Unauthorized { reason: reason.to_owned() }),
        }
    }

    /// The user of a token that is meant for this server.
    pub fn user_of_token(
        &self,
        token: &str,
        now: Timestamp,
        bound: BoundLookup,
    ) -> Result<User, TokenError> {
        if let Some(user) = self.static_tokens.user(token) {
            return Ok(user);
        }
        if let Some(user) = self.bootstrap_tokens.user(token, now) {
            return Ok(user?);
        }
        let claims = self.service_accounts.verify(token, now)?;
        claims.check_bound(now, bound)?;
        Ok(claims.user())
    }

    /// As [`Self::user_of_token`], for the given audiences, and which of them the token is valid for. An empty
    /// list means this server's own audiences (TokenReview, A-180).
    pub fn review_token(
        &self,
        token: &str,
        audiences: &[String],
        now: Timestamp,
        bound: BoundLookup,
    ) -> Result<(User, Vec<String>), TokenError> {
        let accepted = self.service_accounts.audiences();
        let wanted = if audiences.is_empty() { accepted } else { audiences };
        let known = match self.static_tokens.user(token) {
            Some(user) => Some(user),
            None => self.bootstrap_tokens.user(token, now).transpose()?,
        };
        if let Some(user) = known {
            // Such a token has no audiences: it is valid for this server only.
            let matching = intersection(wanted, accepted);
            if matching.is_empty() {
                return Err(TokenError::Audience);
            }
            return Ok((user, matching));
        }
        let claims = self.service_accounts.verify_for(token, wanted, now)?;
        claims.check_bound(now, bound)?;
        Ok((claims.user(), intersection(wanted, &claims.aud)))
    }
}

fn intersection(wanted: &[String], offered: &[String]) -> Vec<String> {
    wanted.iter().filter(|audience| offered.contains(audience)).cloned().collect()
}

#[cfg(test)]
mod tests;
