//! `serviceaccounts/{name}/token`: a token that is bound and expires.

use crate::admission;
use crate::answer::{self, Answer};
use crate::authn::tokens::{self, Account};
use crate::call::Call;
use crate::decode;
use crate::error::{ApiError, Result};
use crate::object::{Stored, store_name};
use http::StatusCode;

pub(crate) async fn create(call: &Call) -> Result<Answer> {
    let body = decode::other(call, "io.k8s.api.authentication.v1.TokenRequest")?;
    admission::check_token(call, &body)?;
    let account = call.stored()?;
    let lookup = |resource: &str, namespace: &str, name: &str| {
        call.store().get(resource, &store_name(namespace, name)).map(|object| object.value())
    };
    let account = Account {
        namespace: &call.target.namespace,
        name: &call.target.name,
        uid: &account.meta().uid,
    };
    let tokens = &call.server.authenticator().service_accounts;
    let answer =
        tokens::request(&body, account, tokens, clock::now(), &lookup).map_err(ApiError::Said)?;
    Ok(answer::json(StatusCode::CREATED, &answer))
}
