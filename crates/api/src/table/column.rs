//! A column of a table: its heading, and how an object fills it.

use super::subject::Subject;
use serde::Serialize;
use serde_json::Value;
use std::borrow::Cow;

/// A heading as clients see it: `metav1.TableColumnDefinition`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Column {
    pub name: Cow<'static, str>,
    pub r#type: Cow<'static, str>,
    pub format: Cow<'static, str>,
    pub description: Cow<'static, str>,
    /// Above 0: shown by kubectl only with `-o wide`.
    pub priority: i64,
}

/// A heading and the function that fills the cell below it.
pub(super) struct Printed {
    name: &'static str,
    r#type: &'static str,
    format: &'static str,
    description: &'static str,
    priority: i64,
    pub(super) cell: Cell,
}

pub(super) type Cell = fn(&Subject) -> Value;

impl Printed {
    pub(super) fn column(&self) -> Column {
        Column {
            name: self.name.into(),
            r#type: self.r#type.into(),
            format: self.format.into(),
            description: self.description.into(),
            priority: self.priority,
        }
    }

    /// Only for `-o wide`.
    pub(super) const fn wide(self) -> Printed {
        Printed { priority: 1, ..self }
    }
}

/// Upstream's declared type is not strict: some "string" cells contain numbers.
pub(super) const fn text(name: &'static str, description: &'static str, cell: Cell) -> Printed {
    Printed { name, r#type: "string", format: "", description, priority: 0, cell }
}

pub(super) const fn integer(name: &'static str, description: &'static str, cell: Cell) -> Printed {
    Printed { name, r#type: "integer", format: "", description, priority: 0, cell }
}

pub(super) const fn boolean(name: &'static str, description: &'static str, cell: Cell) -> Printed {
    Printed { name, r#type: "boolean", format: "", description, priority: 0, cell }
}

pub(super) const fn date(name: &'static str, description: &'static str, cell: Cell) -> Printed {
    Printed { name, r#type: "date", format: "", description, priority: 0, cell }
}

/// The column with the object's name; clients recognise it by its format.
pub(super) const fn name(cell: Cell) -> Printed {
    let description = "The object's name, unique among its kind in its namespace.";
    Printed { name: "Name", r#type: "string", format: "name", description, priority: 0, cell }
}

pub(super) const NAME: Printed = name(|o| o.text("metadata.name").into());

pub(super) const AGE: Printed = text("Age", "How long ago the object was created.", |o| {
    o.age("metadata.creationTimestamp").into()
});

pub(super) const NAME_AND_AGE: &[Printed] = &[NAME, AGE];
