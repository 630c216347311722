//! Random numbers: from the kernel, or from a seeded sequence in a simulation.

use std::cell::Cell;

thread_local! {
    static SEEDED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The characters of generated names: no vowels and none that look alike.
const NAME_LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

pub(crate) fn seed(seed: u64) {
    SEEDED.set(Some(seed));
}

pub(crate) fn stop() {
    SEEDED.set(None);
}

pub fn random_u64() -> u64 {
    match SEEDED.get() {
        Some(mut state) => {
            let number = split_mix(&mut state);
            SEEDED.set(Some(state));
            number
        }
        None => getrandom::u64().expect("the kernel gives random numbers"),
    }
}

/// A random number of at least 0 and less than 1, for jitter.
pub fn random_fraction() -> f64 {
    (random_u64() >> 11) as f64 / (1u64 << 53) as f64
}

pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&random_u64().to_le_bytes()[..chunk.len()]);
    }
    bytes
}

/// A random (version 4) UUID.
pub fn uuid() -> String {
    uuid::Builder::from_random_bytes(random_bytes()).into_uuid().hyphenated().to_string()
}

/// The five characters that `generateName` and similar appends.
pub fn random_name_suffix() -> String {
    let bits = random_u64();
    (0..5u32)
        .map(|i| NAME_LETTERS[((bits >> (i * 12)) & 0xfff) as usize % NAME_LETTERS.len()] as char)
        .collect()
}

/// SplitMix64: small, and good enough for names and jitter in a simulation.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let draw = |mut seed| (0..4).map(|_| split_mix(&mut seed)).collect::<Vec<_>>();
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn a_61_suffixes_are_five_letters_of_the_safe_alphabet() {
        let suffix = random_name_suffix();
        assert_eq!(suffix.len(), 5);
        assert!(suffix.bytes().all(|letter| NAME_LETTERS.contains(&letter)), "{suffix}");
    }
}
