//! Releases memory pages of the program that an idle shim does not need.
//!
//! The binary is large, and the kernel maps neighbouring pages of every page that is used. The kernel loads
//! pages again when they are needed; all shims share them.

/// Releases the pages of code and constants of all mapped files.
pub(super) fn release_unused() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for (start, end) in read_only_ranges(&maps) {
        release(start, end);
    }
}

/// Code and the data before it in the same file, which are never written to. Data after the code may contain
/// relocated addresses, which would be lost.
fn read_only_ranges(maps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut pending: Vec<(usize, usize, &str)> = Vec::new();
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
            "r--p" => pending.push((start, end, file)),
            "r-xp" => {
                let before = pending.drain(..).filter(|(_, _, of)| *of == file);
                found.extend(before.map(|(start, end, _)| (start, end)));
                found.push((start, end));
            }
            _ => pending.clear(),
        }
    }
    found
}

#[allow(unsafe_code, reason = "madvise has no safe wrapper")]
fn release(start: usize, end: usize) {
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
    fn only_code_and_the_data_before_it_are_released() {
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
        assert_eq!(read_only_ranges(maps), expected);
    }
}
