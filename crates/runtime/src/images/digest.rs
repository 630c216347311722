//! Digests of content: `sha256:…`. All content of the store is read through [`Checked`] first.

use crate::{Error, Result};
use ring::digest::{Algorithm, Context, SHA256, SHA512};
use std::fmt;
use std::io::Read;

/// Hexadecimal digits of a fixed length, so it is safe as a file name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Digest {
    algorithm: Kind,
    hex: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    Sha256,
    Sha512,
}

impl Kind {
    fn algorithm(self) -> &'static Algorithm {
        match self {
            Kind::Sha256 => &SHA256,
            Kind::Sha512 => &SHA512,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Sha256 => "sha256",
            Kind::Sha512 => "sha512",
        }
    }
}

impl Digest {
    pub(crate) fn parse(text: &str) -> Option<Digest> {
        let (name, hex) = text.split_once(':')?;
        let algorithm =
            [Kind::Sha256, Kind::Sha512].into_iter().find(|kind| kind.name() == name)?;
        let long = hex.len() == algorithm.algorithm().output_len() * 2;
        let plain = hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (long && plain).then(|| Digest { algorithm, hex: hex.to_owned() })
    }

    pub(crate) fn of(bytes: &[u8]) -> Digest {
        Digest { algorithm: Kind::Sha256, hex: hex(ring::digest::digest(&SHA256, bytes).as_ref()) }
    }

    pub(crate) fn algorithm(&self) -> &'static str {
        self.algorithm.name()
    }

    pub(crate) fn hex(&self) -> &str {
        &self.hex
    }

    /// As the name of a file: `sha256-…`.
    pub(crate) fn file_name(&self) -> String {
        format!("{}-{}", self.algorithm(), self.hex)
    }

    pub(crate) fn from_file_name(name: &str) -> Option<Digest> {
        Digest::parse(&name.replacen('-', ":", 1))
    }

    /// The context to hash content with, before [`Digest::matches`].
    pub(crate) fn context(&self) -> Context {
        Context::new(self.algorithm.algorithm())
    }

    pub(crate) fn matches(&self, context: Context) -> Result<()> {
        let found = hex(context.finish().as_ref());
        if found == self.hex {
            return Ok(());
        }
        let name = self.algorithm();
        Err(Error::Refused(format!(
            "content does not match its digest: expected {self}, got {name}:{found}"
        )))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Digest, String> {
        Digest::parse(&text).ok_or_else(|| format!("{text:?} is not a digest"))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A reader that hashes and counts the bytes.
pub(crate) struct Checked<R> {
    inner: R,
    context: Context,
    expected: Digest,
    read: u64,
}

impl<R: Read> Checked<R> {
    pub(crate) fn new(inner: R, expected: &Digest) -> Checked<R> {
        Checked { inner, context: expected.context(), expected: expected.clone(), read: 0 }
    }

    /// Reads to the end and checks the digest. Returns the number of bytes.
    pub(crate) fn finish(mut self) -> Result<u64> {
        std::io::copy(&mut self, &mut std::io::sink())
            .map_err(|e| Error::Refused(format!("cannot read {}: {e}", self.expected)))?;
        self.expected.matches(self.context)?;
        Ok(self.read)
    }
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.context.update(&buffer[..read]);
        self.read += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_that_contain_a_path_are_rejected() {
        let good = format!("sha256:{}", "0a".repeat(32));
        assert_eq!(Digest::parse(&good).unwrap().to_string(), good);
        for bad in ["", "sha256:", "sha256:../../etc", "md5:00", &good[..70], &good.to_uppercase()]
        {
            assert!(Digest::parse(bad).is_none(), "{bad:?}");
        }
        assert!(Digest::parse(&format!("sha256:{}", "0A".repeat(32))).is_none());
    }

    #[test]
    fn content_with_another_digest_is_rejected() {
        let digest = Digest::of(b"right");
        assert_eq!(Checked::new(&b"right"[..], &digest).finish().unwrap(), 5);
        assert!(Checked::new(&b"wrong"[..], &digest).finish().is_err());
    }
}
