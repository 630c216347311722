//! Header blocks of SPDY/3: name-value pairs, compressed with zlib and a dictionary that the
//! protocol defines.

use crate::frame::bad;
use bytes::{BufMut as _, Bytes};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use std::collections::BTreeMap;
use std::io;
use std::sync::LazyLock;

/// Limit of a decompressed block.
const BLOCK_MAX: usize = 64 * 1024;

/// The words of the dictionary. In it, each follows its length.
const WORDS: &[&str] = &[
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];

/// The rest of the dictionary, without lengths.
const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416\
    417502504505203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request\
    401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 \
    Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, \
    Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,\
    application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=\
    utf-8charset=iso-8859-1,utf-,*,enq=0.";

static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut dictionary = Vec::new();
    for word in WORDS {
        dictionary.put_u32(word.len() as u32);
        dictionary.extend_from_slice(word.as_bytes());
    }
    dictionary.extend_from_slice(TAIL.as_bytes());
    dictionary
});

pub(crate) type Headers = BTreeMap<String, String>;

/// Decompresses the blocks of one connection, in order.
pub(crate) struct HeadersReader(Decompress);

impl HeadersReader {
    pub(crate) fn new() -> HeadersReader {
        HeadersReader(Decompress::new(true))
    }

    /// Returns names in lower case.
    pub(crate) fn read(&mut self, block: &[u8]) -> io::Result<Headers> {
        let mut plain = Vec::with_capacity(4096);
        let mut left = block;
        loop {
            if plain.len() == plain.capacity() {
                if plain.len() >= BLOCK_MAX {
                    return Err(bad("the header block is too long"));
                }
                plain.reserve(plain.len());
            }
            let before = (self.0.total_in(), plain.len());
            let read = self.0.decompress_vec(left, &mut plain, FlushDecompress::Sync);
            left = &left[(self.0.total_in() - before.0) as usize..];
            match read {
                Ok(Status::StreamEnd) => break,
                Ok(_) if plain.len() == plain.capacity() => {}
                Ok(_) if left.is_empty() => break,
                Ok(_) if before == (self.0.total_in(), plain.len()) => {
                    return Err(bad("the header block cannot be decompressed"));
                }
                Ok(_) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    let set = self.0.set_dictionary(&DICTIONARY);
                    set.map_err(|_| bad("the header block uses another dictionary"))?;
                }
                Err(_) => return Err(bad("the header block cannot be decompressed")),
            }
        }
        pairs(&plain).ok_or_else(|| bad("the header block is malformed"))
    }
}

fn pairs(mut plain: &[u8]) -> Option<Headers> {
    fn word<'a>(plain: &mut &'a [u8]) -> Option<&'a [u8]> {
        let (length, rest) = plain.split_first_chunk::<4>()?;
        let (word, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        *plain = rest;
        Some(word)
    }
    let (count, rest) = plain.split_first_chunk::<4>()?;
    plain = rest;
    let mut headers = Headers::new();
    for _ in 0..u32::from_be_bytes(*count) {
        let name = String::from_utf8_lossy(word(&mut plain)?).to_ascii_lowercase();
        // Zero bytes separate several values; our callers only use one.
        let value = word(&mut plain)?.split(|byte| *byte == 0).next().unwrap_or_default();
        headers.insert(name, String::from_utf8_lossy(value).into_owned());
    }
    Some(headers)
}

/// Compresses the blocks of one connection, in order.
pub(crate) struct HeadersWriter(Compress);

impl HeadersWriter {
    pub(crate) fn new() -> HeadersWriter {
        let mut compress = Compress::new(Compression::default(), true);
        // Fails only in the middle of a stream.
        let _ = compress.set_dictionary(&DICTIONARY);
        HeadersWriter(compress)
    }

    pub(crate) fn write(&mut self, headers: &Headers) -> io::Result<Bytes> {
        let mut plain = Vec::new();
        plain.put_u32(headers.len() as u32);
        for word in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.put_u32(word.len() as u32);
            plain.extend_from_slice(word.as_bytes());
        }
        // Room for headers that cannot be compressed and for the flush marker.
        let mut block = Vec::with_capacity(plain.len() * 2 + 128);
        let written = self.0.compress_vec(&plain, &mut block, FlushCompress::Sync);
        written.map_err(|_| bad("the headers cannot be compressed"))?;
        Ok(block.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_237_the_dictionary_has_the_checksum_of_the_protocol() {
        let (mut low, mut high) = (1u32, 0u32);
        for byte in DICTIONARY.iter() {
            low = (low + u32::from(*byte)) % 65521;
            high = (high + low) % 65521;
        }
        assert_eq!(high << 16 | low, 0xe3c6_a7c2);
    }

    #[test]
    fn a_reader_returns_what_a_writer_wrote_block_by_block() {
        let (mut writer, mut reader) = (HeadersWriter::new(), HeadersReader::new());
        for round in 0..50 {
            let headers = Headers::from([
                ("streamtype".to_owned(), "stdin".to_owned()),
                ("round".to_owned(), "x".repeat(round * 200)),
            ]);
            let block = writer.write(&headers).unwrap();
            assert_eq!(reader.read(&block).unwrap(), headers, "{round}");
        }
    }

    #[test]
    fn malformed_blocks_and_compression_bombs_are_errors() {
        assert!(HeadersReader::new().read(b"nonsense").is_err());
        let bomb = Headers::from([("a".to_owned(), "a".repeat(1 << 20))]);
        assert!(HeadersReader::new().read(&HeadersWriter::new().write(&bomb).unwrap()).is_err());
        assert_eq!(pairs(b"\xff\xff\xff\xff"), None);
        assert_eq!(pairs(b"\0\0\0\x01\0\0\0\x09a"), None);
    }
}
