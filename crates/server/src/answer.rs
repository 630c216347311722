//! Building answers: codes, content types, warnings and the headers that every answer has.

use crate::body::Body;
use crate::error::ApiError;
use api::status::Status;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

pub type Answer = Response<Body>;

/// Exactly this, without a charset: some kubectl versions compare it letter by letter.
pub(crate) const JSON: &str = "application/json";
pub(crate) const YAML: &str = "application/yaml";
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

pub(crate) fn answer(
    code: StatusCode,
    content_type: &'static str,
    body: impl Into<Body>,
) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = code;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

pub(crate) fn text(code: StatusCode, text: impl Into<String>) -> Answer {
    let mut answer = answer(code, TEXT, text.into().into_bytes());
    answer
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

pub(crate) fn json(code: StatusCode, value: &serde_json::Value) -> Answer {
    answer(code, JSON, serde_json::to_vec(value).unwrap_or_default())
}

pub(crate) fn bytes(code: StatusCode, form: crate::negotiate::Form, bytes: Bytes) -> Answer {
    let content_type = match form.encoding {
        crate::negotiate::Encoding::Json => JSON,
        crate::negotiate::Encoding::Yaml => YAML,
    };
    answer(code, content_type, bytes)
}

pub(crate) fn status(status: &Status, code: StatusCode) -> Answer {
    let mut answer = json(code, &status.to_json());
    let retry = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if retry > 0 {
        answer.headers_mut().insert(header::RETRY_AFTER, retry.into());
    }
    answer
}

impl From<ApiError> for Answer {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::NoSuchPath => text(StatusCode::NOT_FOUND, "404 page not found\n"),
            ApiError::Overloaded => crate::server::overloaded(),
            error => {
                let said = error.status();
                let code =
                    StatusCode::from_u16(said.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                status(&said, code)
            }
        }
    }
}

/// All warnings together may be this long; beyond it each is cut.
const WARNINGS_MAX: usize = 4096;
const WARNING_CUT: usize = 256;

/// `Warning: 299 - "text"` for each.
pub(crate) fn add_warnings(answer: &mut Answer, warnings: &[String]) {
    let total: usize = warnings.iter().map(String::len).sum();
    for warning in warnings {
        let cut = if total > WARNINGS_MAX { WARNING_CUT } else { usize::MAX };
        let mut quoted = String::with_capacity(warning.len() + 16);
        for c in warning.chars().filter(|c| !c.is_control()).take(cut) {
            if matches!(c, '"' | '\\') {
                quoted.push('\\');
            }
            quoted.push(c);
        }
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            answer.headers_mut().append(header::WARNING, value);
        }
    }
}
