//! Finds where the last records of a file start. Reads backwards, so that the tail of a large file
//! is cheap.

use std::io::SeekFrom;
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

/// Bytes per read.
const BLOCK: u64 = 64 * 1024;

/// The offset of the last `records` records before `end` (N-162); 0 if there are fewer.
pub(super) async fn start(file: &mut File, end: u64, records: u64) -> std::io::Result<u64> {
    let mut end = end;
    let mut left = records;
    let mut block = vec![0; BLOCK as usize];
    while end > 0 {
        let begin = end.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(begin)).await?;
        let block = &mut block[..(end - begin) as usize];
        file.read_exact(block).await?;
        for (index, byte) in block.iter().enumerate().rev() {
            if *byte != b'\n' {
                continue;
            }
            if left == 0 {
                return Ok(begin + index as u64 + 1);
            }
            left -= 1;
        }
        end = begin;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn tail(content: &[u8], records: u64) -> u64 {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        start(&mut File::open(file.path()).await.unwrap(), content.len() as u64, records)
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn n_162_the_last_records_are_found_from_the_end() {
        assert_eq!(tail(b"", 3).await, 0);
        assert_eq!(tail(b"a\nb\nc\n", 0).await, 6);
        assert_eq!(tail(b"a\nb\nc\n", 1).await, 4);
        assert_eq!(tail(b"a\nb\nc\n", 3).await, 0);
        assert_eq!(tail(b"a\nb\nc\n", 9).await, 0);
        let long = [vec![b'x'; 200_000], b"\nlast\n".to_vec()].concat();
        assert_eq!(tail(&long, 1).await, 200_001);
        assert_eq!(tail(&long, 2).await, 0);
    }
}
