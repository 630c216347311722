//! A registry with a custom kind in it, for tests.

use api::crd::Custom;
use api::{Kind, Registry};
use serde_json::{Value, json};
use std::sync::Arc;

/// `crontabs.stable.example.com`, version v1, with this schema.
pub(super) fn with_cron_tab(open_api: Value) -> Registry {
    let registry = Registry::built_in();
    let mut kind = Kind::clone(registry.resource("apps", "v1", "deployments").unwrap());
    kind.group = "stable.example.com".into();
    kind.version = "v1".into();
    kind.kind = "CronTab".into();
    kind.plural = "crontabs".into();
    kind.singular = "crontab".into();
    let mut custom = Custom::new(open_api);
    custom.definition = "crontabs.stable.example.com".into();
    custom.list_kind = "CronTabList".into();
    custom.has_status = true;
    kind.custom = Some(Arc::new(custom));
    registry.with_custom([Arc::new(kind)])
}

pub(super) fn schema() -> Value {
    json!({
        "type": "object",
        "description": "Runs things now and then.",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["cron", "since"],
                "properties": {
                    "cron": {"type": "string", "pattern": "^\\d", "description": "When.", "default": "1"},
                    "since": {"type": "string", "nullable": true},
                    "bars": {
                        "type": "array",
                        "description": "List of Bars.",
                        "items": {"type": "object", "properties": {"age": {"type": "integer"}}},
                        "x-kubernetes-list-type": "atomic",
                    },
                    "open": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": true,
                        "properties": {"a": {"type": "string"}},
                    },
                    "template": {"type": "object", "x-kubernetes-embedded-resource": true},
                    "port": {
                        "x-kubernetes-int-or-string": true,
                        "anyOf": [{"type": "integer"}, {"type": "string"}],
                    },
                },
            },
        },
    })
}
