//! GET of one object. The common case sends the stored bytes as they are.

use crate::answer::{self, Answer};
use crate::call::Call;
use crate::error::Result;
use crate::negotiate::Offer;
use crate::views::{self, IncludeObject};
use http::StatusCode;

pub(crate) async fn get(call: &Call) -> Result<Answer> {
    let form = call.form(Offer::Object)?;
    // `resourceVersion=0` and `N` are both served by the newest state.
    if call.query.text("resourceVersion").is_none() {
        call.server.barrier().await?;
    }
    let stored = call.stored()?;
    if form.is_plain() {
        let bytes = views::bytes(&call.kind, &stored);
        return Ok(answer::bytes(StatusCode::OK, form, bytes));
    }
    let include = IncludeObject::parse(call.query.text("includeObject"))?;
    let object = views::value(&call.kind, &stored);
    Ok(answer::bytes(StatusCode::OK, form, views::single(&call.kind, object, form, include)))
}
