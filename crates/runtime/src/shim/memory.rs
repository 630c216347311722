//! Giving back what starting up has read: the pages of the program itself.
//!
//! The binary is large and reading any of it maps its neighbours too. What a waiting shim needs comes
//! back by itself, a few pages at a time; all shims share them anyway.

/// Lets go of the pages of code and constants of every mapped file.
pub(super) fn give_back() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for (start, end) in untouched(&maps) {
        forget(start, end);
    }
}

/// Code, and what precedes code in its file: never written to. What follows may have been, when
/// addresses were filled in, and would be lost.
fn untouched(maps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut waiting: Vec<(usize, usize, &str)> = Vec::new();
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(mode), Some(file)) = (fields.next(), fields.next(), fields.nth(3))
        else {
            continue;
        };
        let Some((start, end)) = range.split_once('-') else { continue };
        let address = |text| usize::from_str_radix(text, 16).ok();
        let (Some(start), Some(end)) = (address(start), address(end)) else { continue };
        match mode {
            _ if !file.starts_with('/') => {}
            "r--p" => waiting.push((start, end, file)),
            "r-xp" => {
                let before = waiting.drain(..).filter(|(_, _, of)| *of == file);
                found.extend(before.map(|(start, end, _)| (start, end)));
                found.push((start, end));
            }
            _ => waiting.clear(),
        }
    }
    found
}

#[allow(unsafe_code, reason = "madvise has no safe wrapper")]
fn forget(start: usize, end: usize) {
    // SAFETY: the range is a private mapping of a file that was never written to: its pages are read
    // from the file again when they are needed.
    unsafe {
        libc::madvise(
            std::ptr::with_exposed_provenance_mut(start),
            end - start,
            libc::MADV_DONTNEED,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_and_what_precedes_it_is_given_back() {
        let maps = "\
1000-2000 r--p 00000000 fe:00 1 /bin/x
2000-3000 r-xp 00001000 fe:00 1 /bin/x
3000-4000 r--p 00002000 fe:00 1 /bin/x
4000-5000 rw-p 00003000 fe:00 1 /bin/x
5000-6000 rw-p 00000000 00:00 0 [heap]
6000-7000 r--p 00000000 fe:00 2 /lib/y
7000-8000 r-xp 00001000 fe:00 2 /lib/y
8000-9000 r-xp 00000000 00:00 0 [vdso]";
        let expected = [(0x1000, 0x2000), (0x2000, 0x3000), (0x6000, 0x7000), (0x7000, 0x8000)];
        assert_eq!(untouched(maps), expected);
    }
}
