//! Objects with valid types and random values, generated from the server's own OpenAPI.
//!
//! The decoder refuses wrong types, so validation sees random values only in objects with the right types. Every
//! object is generated from one number, so that it can be generated again.

use serde_json::{Map, Number, Value, json};

/// Largest depth of nested objects; some types are recursive.
const DEPTH_MAX: usize = 9;

const TEXTS: &[&str] = &[
    "",
    "a",
    "web",
    "web.example.com",
    "A_b",
    "-",
    ".",
    "..",
    "a/b",
    "a/b/c",
    "/",
    "/var/run",
    "../../etc/passwd",
    "1",
    "0",
    "-1",
    "100%",
    "-5%",
    "999999999999999999999999%",
    "%",
    "1Gi",
    "1e999",
    "-9223372036854775809",
    "0.000000000000000001",
    "1Ki1",
    "10m",
    "1e-2000000000",
    "9999999999999999999E",
    "10.96.0.7",
    "10.0.0.0/8",
    "::1",
    "fe80::/64",
    "300.1.1.1",
    "2026-01-01T00:00:00Z",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "2026-13-45T99:99:99Z",
    "* * * * *",
    "TZ=UTC * * * * *",
    "*/0 99 * * 8",
    "nginx:1.27",
    "registry:99999/a@sha256:00",
    "true",
    "null",
    "ClusterIP",
    "LoadBalancer",
    "ExternalName",
    "Always",
    "OnFailure",
    "RollingUpdate",
    "Recreate",
    "TCP",
    "UDP",
    "Opaque",
    "kubernetes.io/tls",
    "kubernetes.io/dockerconfigjson",
    "kubernetes.io/hostname",
    "In",
    "Exists",
    "NotIn",
    "Gt",
    "v1",
    "apps/v1",
    "apps/v1/v2",
    "Deployment",
    "Pod",
    "pods",
    "object.spec.replicas > 3",
    "self.",
    "[",
    "(?P<",
    "{{}}",
    "€😀\u{202e}",
    "\u{0}",
    "\n\t\r",
    "bm90IGJhc2U2NA==",
    "not base64!",
    "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----",
    "-----BEGIN CERTIFICATE-----",
];

const NUMBERS: &[i64] = &[
    0,
    1,
    2,
    3,
    -1,
    80,
    443,
    65535,
    65536,
    30000,
    100,
    i32::MAX as i64,
    i32::MIN as i64,
    i32::MAX as i64 + 1,
    i64::MAX,
    i64::MIN,
    1_000_000_000_000,
];

/// Random numbers from a seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize) % sides.max(1)
    }

    pub(crate) fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.roll(choices.len())]
    }

    pub(crate) fn text(&mut self) -> String {
        match self.roll(12) {
            0 => "x".repeat(1 + self.roll(300)),
            1 => format!("{}{}", self.of(TEXTS), self.of(TEXTS)),
            _ => (*self.of(TEXTS)).to_owned(),
        }
    }
}

/// An object of the schema of that name.
pub(crate) fn object(dice: &mut Dice, schemas: &Value, name: &str) -> Value {
    // The share of optional fields that are present differs from object to object.
    let there = 2 + dice.roll(9);
    value(dice, schemas, &schemas[name], there, 0)
}

fn value(dice: &mut Dice, schemas: &Value, schema: &Value, there: usize, depth: usize) -> Value {
    if let Some(target) = reference(schema) {
        return value(dice, schemas, &schemas[target], there, depth + 1);
    }
    if schema["x-kubernetes-int-or-string"] == true || schema["format"] == "int-or-string" {
        return if dice.roll(2) == 0 { number(dice) } else { dice.text().into() };
    }
    match schema["type"].as_str() {
        Some("object") => fields(dice, schemas, schema, there, depth),
        Some("array") => {
            let len = if depth > DEPTH_MAX { 0 } else { dice.roll(3) };
            let items = &schema["items"];
            (0..len).map(|_| value(dice, schemas, items, there, depth + 1)).collect()
        }
        Some("string") => match schema["format"].as_str() {
            Some("byte") => dice.of(&["", "AA==", "e30=", "bm90IGJhc2U2NA=="]).to_string().into(),
            Some("date-time") => (*dice.of(&[
                "2026-01-01T00:00:00Z",
                "0001-01-01T00:00:00Z",
                "9999-12-31T23:59:59Z",
            ]))
            .into(),
            _ => dice.text().into(),
        },
        Some("integer") => number(dice),
        Some("number") => Number::from_f64(1.5e300).map_or(Value::Null, Value::Number),
        Some("boolean") => (dice.roll(2) == 0).into(),
        _ => anything(dice, depth),
    }
}

fn reference(schema: &Value) -> Option<&str> {
    let direct = schema["$ref"].as_str();
    let within = || schema["allOf"][0]["$ref"].as_str();
    direct.or_else(within)?.rsplit('/').next()
}

fn fields(dice: &mut Dice, schemas: &Value, schema: &Value, there: usize, depth: usize) -> Value {
    let mut object = Map::new();
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let needed = required.contains(&name.as_str()) || name == "spec" || name == "template";
        let wanted = if needed { dice.roll(12) != 0 } else { dice.roll(there + depth) < 2 };
        if wanted && (depth <= DEPTH_MAX || needed && depth <= 2 * DEPTH_MAX) {
            object.insert(name.clone(), value(dice, schemas, property, there, depth + 1));
        }
    }
    let additional = &schema["additionalProperties"];
    if additional.is_object() && depth <= DEPTH_MAX {
        for _ in 0..dice.roll(3) {
            let key = if dice.roll(3) == 0 { "app".to_owned() } else { dice.text() };
            object.insert(key, value(dice, schemas, additional, there, depth + 1));
        }
    }
    object.into()
}

fn number(dice: &mut Dice) -> Value {
    (*dice.of(NUMBERS)).into()
}

/// Any JSON at all.
pub(crate) fn anything(dice: &mut Dice, depth: usize) -> Value {
    match dice.roll(if depth > DEPTH_MAX { 5 } else { 8 }) {
        0 => Value::Null,
        1 => true.into(),
        2 => number(dice),
        3 | 4 => dice.text().into(),
        5 => (0..dice.roll(3)).map(|_| anything(dice, depth + 1)).collect(),
        6 => json!({ dice.text(): anything(dice, depth + 1) }),
        _ => json!({ "metadata": anything(dice, depth + 1), "spec": anything(dice, depth + 1) }),
    }
}

/// Changes one place of a value into something else.
pub(crate) fn spoil(dice: &mut Dice, value: &mut Value) {
    let deeper = dice.roll(4) != 0;
    match value {
        Value::Object(fields) if deeper && !fields.is_empty() => {
            let at = dice.roll(fields.len());
            if let Some(field) = fields.values_mut().nth(at) {
                spoil(dice, field);
            }
        }
        Value::Array(items) if deeper && !items.is_empty() => {
            let at = dice.roll(items.len());
            spoil(dice, &mut items[at]);
        }
        other => *other = anything(dice, 0),
    }
}
