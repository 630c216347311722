//! `metav1.Status`: the form of the API's error answers (A-91).

use crate::field::Errors;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    #[serde(default)]
    pub metadata: StatusMetadata,
    /// `Success` or `Failure`
    pub status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub code: u16,
}

/// List metadata; only an expired continue token fills it (A-101).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusMetadata {
    #[serde(default, rename = "continue", skip_serializing_if = "String::is_empty")]
    pub continue_token: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The plural resource, except for `Invalid`, which names the Kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub retry_after_seconds: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
}

fn is_zero(code: &u16) -> bool {
    *code == 0
}

fn is_zero_u32(seconds: &u32) -> bool {
    *seconds == 0
}

impl Status {
    pub fn failure(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Status {
            metadata: StatusMetadata::default(),
            status: "Failure".into(),
            message: message.into(),
            reason: reason.into(),
            details: None,
            code,
        }
    }

    pub fn success() -> Self {
        Status {
            metadata: StatusMetadata::default(),
            status: "Success".into(),
            message: String::new(),
            reason: String::new(),
            details: None,
            code: 0,
        }
    }

    pub fn with_details(mut self, details: Details) -> Self {
        self.details = Some(details);
        self
    }

    /// 422: `kind` is the Kind, `group` empty for core (A-92).
    pub fn invalid(kind: &str, group: &str, name: &str, errors: Errors) -> Self {
        // The message lists each error once, even if two checks found it (upstream's aggregate).
        let mut messages: Vec<String> = Vec::new();
        for error in errors.iter().map(ToString::to_string) {
            if !messages.contains(&error) {
                messages.push(error);
            }
        }
        let message = match messages.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let kind_group = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let causes = errors
            .into_iter()
            .map(|error| Cause {
                reason: error.wrong.reason().into(),
                message: error.message,
                field: error.field,
            })
            .collect();
        Status::failure(422, "Invalid", format!("{kind_group} \"{name}\" is invalid: {message}"))
            .with_details(Details {
                name: name.into(),
                group: group.into(),
                kind: kind.into(),
                causes,
                ..Details::default()
            })
    }

    /// The JSON for clients. Some clients compare it byte for byte, so the fields are in upstream's order.
    pub fn to_bytes(&self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Whole<'a> {
            kind: &'static str,
            api_version: &'static str,
            #[serde(flatten)]
            status: &'a Status,
        }
        let whole = Whole { kind: "Status", api_version: "v1", status: self };
        serde_json::to_vec(&whole).expect("a Status is plain data")
    }

    /// The JSON for clients, with kind and apiVersion.
    pub fn to_json(&self) -> serde_json::Value {
        let mut json = serde_json::to_value(self).expect("a Status is plain data");
        json["kind"] = "Status".into();
        json["apiVersion"] = "v1".into();
        json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_91_the_fields_of_a_status_are_in_upstreams_order() {
        let status = Status::failure(404, "NotFound", "pods \"a\" not found")
            .with_details(Details { name: "a".into(), kind: "pods".into(), ..Details::default() });
        let text = String::from_utf8(status.to_bytes()).unwrap();
        let expected = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"pods \"a\" not found","reason":"NotFound","details":{"name":"a","kind":"pods"},"code":404}"#;
        assert_eq!(text, expected);
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, status.to_json());
    }
}
