//! `serviceaccounts/{name}/token`: issues a token.

use crate::admission;
use crate::object::{Stored, store_name};
use crate::request::call::Call;
use crate::request::decode;
use crate::response::error::{ApiError, Result};
use crate::response::{self, ApiResponse};
use access::authn::tokens::{self, Account};
use http::StatusCode;

pub(crate) async fn create(call: &Call) -> Result<ApiResponse> {
    let body = decode::other(call, "io.k8s.api.authentication.v1.TokenRequest")?;
    admission::check_token(call, &body)?;
    let account = call.find().await?;
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
        tokens::request(&body, account, tokens, clock::now(), &lookup).map_err(ApiError::Status)?;
    Ok(response::json(StatusCode::CREATED, &answer))
}
