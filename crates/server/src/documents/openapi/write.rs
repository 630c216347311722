//! Writes a JSON document in pieces, so that only one piece at a time is a tree.

use serde_json::Value;
use std::io::{self, Write};

/// `{"first":…,"second":…}`, with each value serialised and dropped in turn.
pub(super) struct Members<'a, W> {
    out: &'a mut W,
    any: bool,
}

impl<'a, W: Write> Members<'a, W> {
    pub(super) fn begin(out: &'a mut W) -> io::Result<Self> {
        out.write_all(b"{")?;
        Ok(Members { out, any: false })
    }

    pub(super) fn value(&mut self, name: &str, value: &Value) -> io::Result<()> {
        let out = self.name(name)?;
        serde_json::to_writer(out, value).map_err(io::Error::from)
    }

    /// Writes the name; the caller writes the value.
    pub(super) fn name(&mut self, name: &str) -> io::Result<&mut W> {
        if self.any {
            self.out.write_all(b",")?;
        }
        self.any = true;
        serde_json::to_writer(&mut *self.out, name)?;
        self.out.write_all(b":")?;
        Ok(self.out)
    }

    pub(super) fn end(self) -> io::Result<()> {
        self.out.write_all(b"}")
    }
}
