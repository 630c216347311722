//! Bootstrap tokens, with which nodes join: `id.secret`, each stored as a Secret in kube-system (C-152).
//!
//! The Secret is read for every request, so deleting it revokes the token. Not here: what the bearer may do
//! (`default_roles`, the bindings named after kubeadm), and which certificates it gets (`signing`).

use super::User;
use super::static_tokens::{hash, same};
use api::value::ValueExt as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde_json::Value;
use std::fmt;

pub const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";
const BOOTSTRAPPERS: &str = "system:bootstrappers";
const ID_LEN: usize = 6;
const SECRET_LEN: usize = 16;
/// The longest name of a group. Upstream has the same limit.
const GROUP_MAX: usize = 256;

/// Reads a Secret in [`NAMESPACE`] by its name.
type SecretLookup = Box<dyn Fn(&str) -> Option<Value> + Send + Sync>;

pub struct BootstrapTokens(SecretLookup);

/// Why a well-formed bootstrap token is refused. An unknown ID and a wrong secret give the same error, so that a
/// caller cannot find out which IDs exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BootstrapError {
    #[error("invalid bootstrap token")]
    Unknown,
    #[error("bootstrap token has expired")]
    Expired,
    #[error("bootstrap token is not for authentication")]
    OtherUse,
    #[error("bootstrap token names a group outside system:bootstrappers")]
    Group,
}

impl BootstrapTokens {
    pub fn new(secret: impl Fn(&str) -> Option<Value> + Send + Sync + 'static) -> Self {
        BootstrapTokens(Box::new(secret))
    }

    /// The token's user; none if the token does not have the form of a bootstrap token.
    pub fn user(&self, token: &str, now: Timestamp) -> Option<Result<User, BootstrapError>> {
        let (id, secret) = token.split_once('.')?;
        if !is_word(id, ID_LEN) || !is_word(secret, SECRET_LEN) {
            return None;
        }
        let known = (self.0)(&format!("bootstrap-token-{id}"));
        Some(known.ok_or(BootstrapError::Unknown).and_then(|known| check(&known, id, secret, now)))
    }
}

impl fmt::Debug for BootstrapTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BootstrapTokens")
    }
}

fn is_word(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

fn check(known: &Value, id: &str, secret: &str, now: Timestamp) -> Result<User, BootstrapError> {
    let data = |key: &str| {
        let bytes = BASE64_STANDARD.decode(known.text(&["data", key])).unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_default()
    };
    let own = data("token-secret");
    // Comparing full hashes takes the same time however much of the secret is right.
    let matches = same(&hash(&own), &hash(secret)) && !own.is_empty();
    let deleted = known.at(&["metadata", "deletionTimestamp"]).is_some();
    if !matches || deleted || known.text(&["type"]) != TYPE || data("token-id") != id {
        return Err(BootstrapError::Unknown);
    }
    let expiration = data("expiration");
    let expired = |at: &str| at.parse::<Timestamp>().map_or(true, |at| at <= now);
    if !expiration.is_empty() && expired(&expiration) {
        return Err(BootstrapError::Expired);
    }
    if data("usage-bootstrap-authentication") != "true" {
        return Err(BootstrapError::OtherUse);
    }
    let extra = data("auth-extra-groups");
    let mut groups: Vec<&str> = vec![BOOTSTRAPPERS];
    groups.extend(extra.split(',').filter(|group| !group.is_empty()));
    if !groups[1..].iter().all(|group| is_bootstrap_group(group)) {
        return Err(BootstrapError::Group);
    }
    Ok(User::authenticated(format!("system:bootstrap:{id}"), &groups))
}

/// A token may only add groups below `system:bootstrappers`.
fn is_bootstrap_group(group: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let Some(rest) = group.strip_prefix("system:bootstrappers:") else { return false };
    rest.len() <= GROUP_MAX
        && rest.bytes().all(|byte| plain(byte) || byte == b':' || byte == b'-')
        && rest.bytes().last().is_some_and(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: &str = "2027-01-15T08:00:00Z";
    const TOKEN: &str = "abcdef.0123456789abcdef";

    fn secret(changed: &[(&str, &str)]) -> Value {
        let mut data = serde_json::Map::new();
        let whole = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("expiration", "2027-01-15T09:00:00Z"),
            ("usage-bootstrap-authentication", "true"),
            ("auth-extra-groups", "system:bootstrappers:kubeadm:default-node-token"),
        ];
        for (key, value) in whole.iter().chain(changed) {
            data.insert((*key).to_owned(), BASE64_STANDARD.encode(value).into());
        }
        json!({"type": TYPE, "data": data})
    }

    fn user(known: Value, token: &str) -> Option<Result<User, BootstrapError>> {
        let tokens = BootstrapTokens::new(move |name| {
            (name == "bootstrap-token-abcdef").then(|| known.clone())
        });
        tokens.user(token, NOW.parse().unwrap())
    }

    #[test]
    fn c_152_a_valid_token_authenticates_as_a_bootstrapper() {
        let user = user(secret(&[]), TOKEN).unwrap().unwrap();
        assert_eq!(user.name, "system:bootstrap:abcdef");
        assert_eq!(
            user.groups,
            [
                "system:bootstrappers",
                "system:bootstrappers:kubeadm:default-node-token",
                "system:authenticated"
            ]
        );
    }

    #[test]
    fn c_152_wrong_secret_unknown_id_and_other_secret_type_give_the_same_error() {
        let unknown = Some(Err(BootstrapError::Unknown));
        assert_eq!(user(secret(&[]), "abcdef.0123456789abcdee"), unknown);
        assert_eq!(user(secret(&[]), "ghijkl.0123456789abcdef"), unknown);
        assert_eq!(user(secret(&[("token-id", "ghijkl")]), TOKEN), unknown);
        let mut other = secret(&[]);
        other["type"] = "Opaque".into();
        assert_eq!(user(other, TOKEN), unknown);
        let mut deleted = secret(&[]);
        deleted["metadata"] = json!({"deletionTimestamp": NOW});
        assert_eq!(user(deleted, TOKEN), unknown);
        let mut empty = secret(&[]);
        empty["data"].remove("token-secret");
        assert_eq!(user(empty, TOKEN), unknown);
    }

    #[test]
    fn c_152_a_token_expires_and_an_unreadable_expiration_counts_as_expired() {
        let expired = Some(Err(BootstrapError::Expired));
        assert_eq!(user(secret(&[("expiration", NOW)]), TOKEN), expired);
        assert_eq!(user(secret(&[("expiration", "tomorrow")]), TOKEN), expired);
        assert!(user(secret(&[("expiration", "")]), TOKEN).unwrap().is_ok());
    }

    #[test]
    fn c_152_a_token_without_authentication_usage_or_with_foreign_groups_is_refused() {
        let other = user(secret(&[("usage-bootstrap-authentication", "no")]), TOKEN);
        assert_eq!(other, Some(Err(BootstrapError::OtherUse)));
        for group in ["system:masters", "system:bootstrappers:", "system:bootstrappers:A"] {
            let user = user(secret(&[("auth-extra-groups", group)]), TOKEN);
            assert_eq!(user, Some(Err(BootstrapError::Group)), "{group}");
        }
    }

    #[test]
    fn tokens_of_another_form_are_left_to_other_authenticators() {
        for token in ["", "abcdef", "abcde.0123456789abcdef", "ABCDEF.0123456789abcdef", "a.b.c"] {
            assert_eq!(user(secret(&[]), token), None, "{token}");
        }
    }
}
