//! Custom resources: the columns in their definition (`additionalPrinterColumns`).

use super::column::{AGE, Column, NAME};
use super::jsonpath;
use super::subject::{Subject, UNKNOWN, plain};
use crate::value::ValueExt as _;
use serde_json::Value;

/// The age of custom resources has the type date; that of built-in kinds has the type string.
fn age() -> Column {
    Column { r#type: "date".into(), ..AGE.column() }
}

/// The name, then the additional columns, or the age if there are none.
pub(super) fn columns(additional: &[Value]) -> Vec<Column> {
    let text = |column: &Value, field: &str| column.text(&[field]).to_owned().into();
    let additional_columns = additional.iter().map(|column| Column {
        name: text(column, "name"),
        r#type: text(column, "type"),
        format: text(column, "format"),
        description: match column.text(&["description"]) {
            "" => format!(
                "Custom resource definition column (in JSONPath format): {}",
                column.text(&["jsonPath"])
            ),
            given => given.to_owned(),
        }
        .into(),
        priority: column["priority"].as_i64().unwrap_or_default(),
    });
    let default = additional.is_empty().then(age);
    std::iter::once(NAME.column()).chain(additional_columns).chain(default).collect()
}

pub(super) fn cells(additional: &[Value], o: &Subject) -> Vec<Value> {
    let mut cells = vec![(NAME.cell)(o)];
    cells.extend(additional.iter().map(|column| {
        let found = jsonpath::find(column.text(&["jsonPath"]), o.object);
        cell(column.text(&["type"]), &found, o)
    }));
    if additional.is_empty() {
        cells.push((AGE.cell)(o));
    }
    cells
}

/// Null if the value is missing or does not have the declared type. Of several values the first is
/// printed, as in upstream.
fn cell(r#type: &str, found: &[&Value], o: &Subject) -> Value {
    let Some(&value) = found.first() else {
        return Value::Null;
    };
    match r#type {
        "string" => plain(value).into(),
        "integer" => match (value.as_i64(), value.as_f64()) {
            (Some(whole), _) => whole.into(),
            (None, Some(fraction)) => (fraction as i64).into(),
            (None, None) => Value::Null,
        },
        "number" if value.is_number() => value.clone(),
        "boolean" if value.is_boolean() => value.clone(),
        "date" => match value.as_str() {
            Some("") => UNKNOWN.into(),
            Some(time) if time.parse::<jiff::Timestamp>().is_ok() => o.age_of(time).into(),
            Some(_) => "<invalid>".into(),
            None => Value::Null,
        },
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(columns: Value, object: Value) -> Vec<Value> {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        cells(columns.as_array().unwrap(), &Subject { object: &object, now })
    }

    #[test]
    fn a_196_without_columns_a_custom_resource_shows_its_age() {
        let shown = columns(&[]);
        assert_eq!((&*shown[0].name, &*shown[0].format), ("Name", "name"));
        assert_eq!((&*shown[1].name, &*shown[1].r#type), ("Age", "date"));
        let created =
            json!({"metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:55:00Z"}});
        assert_eq!(row(json!([]), created), ["x", "5m"]);
    }

    #[test]
    fn a_196_cells_have_the_declared_type_or_are_null() {
        let object = json!({
            "metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"n": 3, "f": 1.5, "b": true, "s": "text", "l": ["a", "b"], "z": null},
        });
        let column = |r#type: &str, path: &str| json!({"type": r#type, "jsonPath": path});
        let columns = json!([
            column("integer", ".spec.n"),
            column("integer", ".spec.f"),
            column("integer", ".spec.s"),
            column("number", ".spec.f"),
            column("boolean", ".spec.b"),
            column("boolean", ".spec.s"),
            column("string", ".spec.s"),
            column("string", ".spec.n"),
            column("string", ".spec.l"),
            column("string", ".spec.l[*]"),
            column("string", ".spec.none"),
            column("date", ".metadata.creationTimestamp"),
            column("date", ".spec.s"),
            column("date", ".spec.none"),
        ]);
        let cells = json!([
            "x",
            3,
            1,
            null,
            1.5,
            true,
            null,
            "text",
            "3",
            "[\"a\",\"b\"]",
            "a",
            null,
            "60m",
            "<invalid>",
            null,
        ]);
        assert_eq!(Value::from(row(columns, object)), cells);
    }
}
