//! `metav1.Status`: how the API says what went wrong.

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

/// List metadata; only an expired continue token fills it.
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

    /// 422: `kind` is the Kind, `group` empty for core.
    pub fn invalid(kind: &str, group: &str, name: &str, errors: Errors) -> Self {
        // The message says a thing once, even where two checks found it (upstream's aggregate).
        let mut said: Vec<String> = Vec::new();
        for error in errors.iter().map(ToString::to_string) {
            if !said.contains(&error) {
                said.push(error);
            }
        }
        let said = match said.as_slice() {
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
        Status::failure(422, "Invalid", format!("{kind_group} \"{name}\" is invalid: {said}"))
            .with_details(Details {
                name: name.into(),
                group: group.into(),
                kind: kind.into(),
                causes,
                ..Details::default()
            })
    }

    /// The JSON a client sees, with kind and apiVersion.
    pub fn to_json(&self) -> serde_json::Value {
        let mut json = serde_json::to_value(self).expect("a Status is plain data");
        json["kind"] = "Status".into();
        json["apiVersion"] = "v1".into();
        json
    }
}
