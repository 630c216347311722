//! ConfigMaps and Secrets.

use super::checks;
use crate::Rules;
use api::field::{At, Errors, Wrong};
use api::metadata;
use api::names;
use api::value::ValueExt;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// Total size of all values.
const SIZE_MAX: usize = 1024 * 1024;
const IMMUTABLE_SET: &str = "field is immutable when `immutable` is set";

pub(super) const CONFIG_MAP: Rules = Rules {
    validate: validate_config_map,
    validate_update: |new, old, errors| {
        validate_immutable(new, old, &["data", "binaryData"], errors)
    },
    ..Rules::NONE
};

pub(super) const SECRET: Rules = Rules {
    default: default_secret,
    validate: validate_secret,
    validate_update: |new, old, errors| {
        metadata::immutable(&new.field("type"), &old.field("type"), errors);
        validate_immutable(new, old, &["data"], errors);
    },
    fields: &[("type", |secret| secret.text(&["type"]).into())],
    ..Rules::NONE
};

fn validate_config_map(map: &At, errors: &mut Errors) {
    let (data, binary) = (map.field("data"), map.field("binaryData"));
    let mut size = 0;
    for (key, value) in data.entries() {
        check_key(&value, key, errors);
        if binary.key(key).value().is_some() {
            errors.invalid_value(&value, key, "duplicate of key present in binaryData");
        }
        size += value.text().len();
    }
    for (key, value) in binary.entries() {
        check_key(&value, key, errors);
        size += decoded_size(value.text());
    }
    if size > SIZE_MAX {
        // The error is about the whole object, so it has no path.
        let detail = format!("may not be more than {SIZE_MAX} bytes");
        errors.push(Wrong::TooLong, String::new(), None, &detail);
    }
}

fn check_key(at: &At, key: &str, errors: &mut Errors) {
    for wrong in names::config_map_key(key) {
        errors.invalid_value(at, key, &wrong);
    }
}

fn decoded_size(text: &str) -> usize {
    text.trim_end_matches('=').len() * 3 / 4
}

fn validate_immutable(new: &At, old: &At, fields: &[&str], errors: &mut Errors) {
    if !old.field("immutable").is_true() {
        return;
    }
    if !new.field("immutable").is_true() {
        errors.forbidden(&new.field("immutable"), IMMUTABLE_SET);
    }
    for field in fields {
        let (now, before) = (new.field(field), old.field(field));
        let alike = now.len() == before.len()
            && now.entries().all(|(key, value)| before.key(key).value() == value.value());
        if !alike {
            errors.forbidden(&now, IMMUTABLE_SET);
        }
    }
}

/// Merges `stringData` into `data`; it is never stored.
fn default_secret(secret: &mut Value) {
    if secret.text(&["type"]).is_empty() {
        secret.map().insert("type".into(), "Opaque".into());
    }
    let Some(Value::Object(plain)) = secret.remove("stringData") else {
        return;
    };
    for (key, value) in plain {
        let text = STANDARD.encode(value.as_str().unwrap_or_default());
        secret.object("data").map().insert(key, text.into());
    }
}

fn validate_secret(secret: &At, errors: &mut Errors) {
    let data = secret.field("data");
    let mut size = 0;
    for (key, value) in data.entries() {
        check_key(&value, key, errors);
        size += decoded_size(value.text());
    }
    if size > SIZE_MAX {
        errors.too_long(&data, SIZE_MAX);
    }
    let need = |key: &str, errors: &mut Errors| {
        let value = data.key(key);
        if value.value().is_none() {
            errors.required(&value, "");
        }
    };
    match secret.field("type").text() {
        "kubernetes.io/service-account-token" => {
            let metadata = secret.field("metadata");
            let annotations = metadata.field("annotations");
            checks::required(&annotations.key("kubernetes.io/service-account.name"), errors);
        }
        "kubernetes.io/dockercfg" => json_object(&data.key(".dockercfg"), errors),
        "kubernetes.io/dockerconfigjson" => json_object(&data.key(".dockerconfigjson"), errors),
        "kubernetes.io/basic-auth" => {
            let keys = ["username", "password"];
            if keys.iter().all(|key| data.key(key).value().is_none()) {
                keys.iter().for_each(|key| errors.required(&data.key(key), ""));
            }
        }
        "kubernetes.io/ssh-auth" => {
            checks::required(&data.key("ssh-privatekey"), errors);
        }
        "kubernetes.io/tls" => {
            need("tls.crt", errors);
            need("tls.key", errors);
        }
        _ => {}
    }
}

fn json_object(at: &At, errors: &mut Errors) {
    if at.value().is_none() {
        errors.required(at, "");
        return;
    }
    let bytes = STANDARD.decode(at.text()).unwrap_or_default();
    let parsed = serde_json::from_slice::<serde_json::Map<String, Value>>(&bytes);
    if let Err(error) = parsed {
        let detail = match bytes.is_empty() {
            true => "unexpected end of JSON input".to_owned(),
            false => error.to_string(),
        };
        errors.invalid_value(at, "<secret contents redacted>", &detail);
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{NOTHING, create, defaulted, update};
    use serde_json::{Value, json};

    #[test]
    fn a_147_string_data_overrides_data() {
        let secret =
            defaulted("Secret", json!({"data": {"a": "eA=="}, "stringData": {"a": "me", "b": ""}}));
        assert_eq!(secret, json!({"type": "Opaque", "data": {"a": "bWU=", "b": ""}}));
    }

    #[test]
    fn a_92_typed_secrets_need_their_keys() {
        let typed = |kind: &str, data: Value| {
            create("Secret", json!({"type": format!("kubernetes.io/{kind}"), "data": data}))
        };
        assert_eq!(typed("tls", json!({"tls.crt": ""})), ["data[tls.key]: Required value"]);
        assert_eq!(
            typed("basic-auth", json!({})),
            ["data[username]: Required value", "data[password]: Required value"]
        );
        assert_eq!(typed("ssh-auth", json!({"ssh-privatekey": ""})).len(), 1);
        assert_eq!(
            typed("dockerconfigjson", json!({".dockerconfigjson": ""})),
            [
                "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": unexpected end of JSON input"
            ]
        );
        assert_eq!(typed("dockerconfigjson", json!({".dockerconfigjson": "e30="})), NOTHING);
        assert_eq!(
            typed("service-account-token", json!({})),
            ["metadata.annotations[kubernetes.io/service-account.name]: Required value"]
        );
    }

    #[test]
    fn a_94_sizes_are_limited() {
        let large = "x".repeat(1024 * 1024 + 1);
        assert_eq!(
            create("ConfigMap", json!({"data": {"a": large}})),
            [": Too long: may not be more than 1048576 bytes"]
        );
        assert_eq!(
            create("Secret", json!({"stringData": {"a": large}})),
            ["data: Too long: may not be more than 1048576 bytes"]
        );
    }

    #[test]
    fn a_77_immutable_config_maps_and_secrets_cannot_change() {
        let frozen = json!({"immutable": true, "data": {"a": "b"}, "metadata": {}});
        assert_eq!(
            update("ConfigMap", &frozen, json!({"metadata": {"labels": {"x": "y"}}})),
            NOTHING
        );
        assert_eq!(
            update("ConfigMap", &frozen, json!({"immutable": false, "data": {"a": ""}})),
            [
                "immutable: Forbidden: field is immutable when `immutable` is set",
                "data: Forbidden: field is immutable when `immutable` is set",
            ]
        );
        let secret = json!({"type": "Opaque", "metadata": {}});
        assert_eq!(
            update("Secret", &secret, json!({"type": "other"})),
            ["type: Invalid value: \"other\": field is immutable"]
        );
    }
}
