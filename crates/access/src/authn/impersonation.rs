//! Impersonation: what the headers request, which rights it takes, and the resulting user.
//!
//! The server authorizes each of [`Impersonation::checks`] for the real user, and only then continues as
//! [`Impersonation::user`].

use super::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, User};
use crate::authz::Attributes;
use http::HeaderMap;
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA_PREFIX: &str = "impersonate-extra-";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Impersonation {
    pub user: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The headers contradict each other: 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadRequest(pub String);

impl BadRequest {
    pub fn status(&self) -> api::Status {
        api::Status::failure(400, "BadRequest", self.0.clone())
    }
}

/// What the headers request, if anything.
pub fn requested(headers: &HeaderMap) -> Result<Option<Impersonation>, BadRequest> {
    let mut requested = Impersonation::default();
    for (name, value) in headers {
        let name = name.as_str();
        if !name.starts_with("impersonate-") {
            continue;
        }
        let text = value
            .to_str()
            .map_err(|_| BadRequest(format!("header {name} is not plain text")))?
            .to_owned();
        match name {
            // Of a repeated header the first counts.
            USER if requested.user.is_empty() => requested.user = text,
            UID if requested.uid.is_empty() => requested.uid = text,
            GROUP => requested.groups.push(text),
            _ => {
                if let Some(key) = name.strip_prefix(EXTRA_PREFIX) {
                    requested.extra.entry(decode(key)).or_default().push(text);
                }
            }
        }
    }
    let only_user =
        requested.groups.is_empty() && requested.uid.is_empty() && requested.extra.is_empty();
    match (requested.user.is_empty(), only_user) {
        (true, true) => Ok(None),
        (true, false) => {
            let message = "requested groups, uid or extra without impersonating a user";
            Err(BadRequest(message.to_owned()))
        }
        (false, _) => Ok(Some(requested)),
    }
}

/// Removes the impersonation headers.
pub fn strip(headers: &mut HeaderMap) {
    let names: Vec<_> =
        headers.keys().filter(|name| name.as_str().starts_with("impersonate-")).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

impl Impersonation {
    /// All requests that `caller` must be allowed to make.
    pub fn checks<'a>(&'a self, caller: &'a User) -> Vec<Attributes<'a>> {
        let impersonate = |group, resource, name| Attributes {
            name,
            ..Attributes::resource(caller, "impersonate", group, resource)
        };
        let mut checks = vec![match service_account(&self.user) {
            Some((namespace, name)) => {
                Attributes { namespace, ..impersonate("", "serviceaccounts", name) }
            }
            None => impersonate("", "users", &self.user),
        }];
        checks.extend(self.groups.iter().map(|group| impersonate("", "groups", group)));
        let authentication = "authentication.k8s.io";
        for (key, values) in &self.extra {
            checks.extend(values.iter().map(|value| Attributes {
                version: "v1",
                subresource: key,
                ..impersonate(authentication, "userextras", value)
            }));
        }
        if !self.uid.is_empty() {
            let uid = impersonate(authentication, "uids", &self.uid);
            checks.push(Attributes { version: "v1", ..uid });
        }
        checks
    }

    /// The user that the request continues as.
    pub fn user(self) -> User {
        let mut groups = self.groups;
        if let (true, Some((namespace, _))) = (groups.is_empty(), service_account(&self.user)) {
            groups.push("system:serviceaccounts".to_owned());
            groups.push(format!("system:serviceaccounts:{namespace}"));
        }
        let implied = if self.user == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
        // An explicit `system:unauthenticated` suppresses `system:authenticated`.
        let mut user = User { name: self.user, uid: self.uid, groups, extra: self.extra };
        if !user.in_group(UNAUTHENTICATED) {
            user.add_group(implied);
        }
        user
    }
}

/// Namespace and name of `system:serviceaccount:<namespace>:<name>`.
pub fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

/// Header names arrive in lower case; a key that does not decode is kept as it is.
fn decode(key: &str) -> String {
    match percent_decode_str(key).decode_utf8() {
        Ok(decoded) => decoded.into_owned(),
        Err(_) => key.to_owned(),
    }
}
