//! GET of one object. The common case sends the stored bytes as they are.

use crate::request::call::Call;
use crate::request::negotiate::Offer;
use crate::response::error::Result;
use crate::response::views::{self, IncludeObject};
use crate::response::{self, ApiResponse};
use http::StatusCode;

pub(crate) async fn get(call: &Call) -> Result<ApiResponse> {
    let form = call.form(Offer::Object)?;
    // `resourceVersion=0` and `N` are both served by the newest state.
    if call.query.text("resourceVersion").is_none() {
        call.server.barrier().await?;
    }
    let stored = call.stored()?;
    if form.is_plain() {
        let bytes = views::bytes(&call.kind, &stored);
        return Ok(response::bytes(StatusCode::OK, form, bytes));
    }
    let include = IncludeObject::parse(call.query.text("includeObject"))?;
    let object = views::value(&call.kind, &stored);
    Ok(response::bytes(StatusCode::OK, form, views::single(&call.kind, object, form, include)))
}
