//! The wire format: numbered fields, each a number or a run of bytes.

use crate::decode::DecodeError;

/// The encoded value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Wire<'b> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'b [u8]),
}

/// Walks the fields of one message. Ends after the first error.
pub(super) struct Reader<'b> {
    rest: &'b [u8],
}

impl<'b> Reader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Reader { rest: bytes }
    }

    fn field(&mut self) -> Result<(u32, Wire<'b>), DecodeError> {
        let tag = varint(&mut self.rest)?;
        let number = u32::try_from(tag >> 3).map_err(|_| illegal_tag(tag))?;
        if number == 0 {
            return Err(illegal_tag(tag));
        }
        let wire = match tag & 7 {
            0 => Wire::Varint(varint(&mut self.rest)?),
            1 => Wire::Fixed64(u64::from_le_bytes(self.fixed()?)),
            2 => {
                let len = varint(&mut self.rest)?;
                let len = usize::try_from(len).map_err(|_| truncated())?;
                let (bytes, rest) = self.rest.split_at_checked(len).ok_or_else(truncated)?;
                self.rest = rest;
                Wire::Bytes(bytes)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.fixed()?)),
            other => {
                return Err(DecodeError::malformed(format!("proto: illegal wireType {other}")));
            }
        };
        Ok((number, wire))
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }
}

impl<'b> Iterator for Reader<'b> {
    type Item = Result<(u32, Wire<'b>), DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Takes one variable-length number from the front.
pub(super) fn varint(bytes: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or_else(truncated)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(DecodeError::malformed("proto: integer overflow"))
}

pub(super) fn text(bytes: &[u8]) -> Result<&str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|_| DecodeError::malformed("proto: invalid UTF-8"))
}

fn truncated() -> DecodeError {
    DecodeError::malformed("unexpected EOF")
}

fn illegal_tag(tag: u64) -> DecodeError {
    DecodeError::malformed(format!("proto: illegal tag {tag}"))
}
