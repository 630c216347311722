//! One change in the log.
//!
//!     checksum u32 · kind u8 · created u64 · revision_at u32 · collection u16+text · name u16+text · bytes
//!
//! Numbers are little-endian. The key beside it is the revision; the checksum covers key and record,
//! so a record under a wrong key is detected. The bytes do not contain the revision; a deletion has no bytes.

use crate::{EventKind, Object};

pub(super) struct Record<'a> {
    pub(super) kind: EventKind,
    pub(super) created: u64,
    pub(super) collection: &'a str,
    pub(super) name: &'a str,
    /// The object's bytes on both sides of its revision; empty for a deletion.
    pub(super) before: &'a [u8],
    pub(super) after: &'a [u8],
}

const CHECKSUM_LEN: usize = 4;
const FIXED_LEN: usize = CHECKSUM_LEN + 1 + 8 + 4 + 2 + 2;

impl<'a> Record<'a> {
    pub(super) fn of<I>(collection: &'a str, object: &'a Object<I>) -> Self {
        let (before, after) = match object.kind() {
            EventKind::Created | EventKind::Updated => object.around_revision(),
            EventKind::Deleted => (&[][..], &[][..]),
        };
        let (kind, created, name) = (object.kind(), object.created(), object.name());
        Record { kind, created, collection, name, before, after }
    }

    pub(super) fn len(&self) -> usize {
        let text = self.collection.len() + self.name.len();
        FIXED_LEN + text + self.before.len() + self.after.len()
    }

    /// Fills `out`, which is exactly [`Record::len`] long.
    pub(super) fn encode(&self, revision: u64, out: &mut [u8]) {
        let mut rest = &mut out[CHECKSUM_LEN..];
        let mut put = |part: &[u8]| {
            let (here, next) = std::mem::take(&mut rest).split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = next;
        };
        put(&[kind_code(self.kind)]);
        put(&self.created.to_le_bytes());
        put(&(self.before.len() as u32).to_le_bytes());
        put(&(self.collection.len() as u16).to_le_bytes());
        put(self.collection.as_bytes());
        put(&(self.name.len() as u16).to_le_bytes());
        put(self.name.as_bytes());
        put(self.before);
        put(self.after);
        let sum = sum(revision, &out[CHECKSUM_LEN..]);
        out[..CHECKSUM_LEN].copy_from_slice(&sum);
    }

    pub(super) fn decode(revision: u64, bytes: &'a [u8]) -> Result<Self, &'static str> {
        let (checksum, content) =
            bytes.split_first_chunk::<CHECKSUM_LEN>().ok_or("it is cut short")?;
        if *checksum != sum(revision, content) {
            return Err("its checksum is wrong");
        }
        Self::parse(content).ok_or("it cannot be read")
    }

    fn parse(content: &'a [u8]) -> Option<Self> {
        let (&[kind], rest) = content.split_first_chunk::<1>()?;
        let (created, rest) = rest.split_first_chunk::<8>()?;
        let (revision_at, rest) = rest.split_first_chunk::<4>()?;
        let (collection, rest) = text(rest)?;
        let (name, rest) = text(rest)?;
        let (before, after) = rest.split_at_checked(u32::from_le_bytes(*revision_at) as usize)?;
        let (kind, created) = (kind_of(kind)?, u64::from_le_bytes(*created));
        Some(Record { kind, created, collection, name, before, after })
    }
}

fn text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<2>()?;
    let (text, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

fn sum(revision: u64, content: &[u8]) -> [u8; CHECKSUM_LEN] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&revision.to_le_bytes());
    hasher.update(content);
    hasher.finalize().to_le_bytes()
}

fn kind_code(kind: EventKind) -> u8 {
    match kind {
        EventKind::Created => 1,
        EventKind::Updated => 2,
        EventKind::Deleted => 3,
    }
}

fn kind_of(code: u8) -> Option<EventKind> {
    match code {
        1 => Some(EventKind::Created),
        2 => Some(EventKind::Updated),
        3 => Some(EventKind::Deleted),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let record = Record {
            kind: EventKind::Updated,
            created: 7,
            collection: "apps/deployments",
            name: "default/web",
            before: b"{\"rv\":\"",
            after: b"\"}",
        };
        let mut bytes = vec![0; record.len()];
        record.encode(9, &mut bytes);
        bytes
    }

    #[test]
    fn a_record_is_read_back_as_it_was_written() {
        let bytes = sample();
        let record = Record::decode(9, &bytes).unwrap();
        assert_eq!((record.kind, record.created), (EventKind::Updated, 7));
        assert_eq!((record.collection, record.name), ("apps/deployments", "default/web"));
        assert_eq!((record.before, record.after), (&b"{\"rv\":\""[..], &b"\"}"[..]));
    }

    #[test]
    fn every_flipped_bit_wrong_key_and_cut_is_noticed() {
        let good = sample();
        assert!(Record::decode(8, &good).is_err());
        for at in 0..good.len() {
            assert!(Record::decode(9, &good[..at]).is_err());
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(Record::decode(9, &bad).is_err());
            }
        }
    }
}
