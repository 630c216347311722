//! Tokens known from the start, such as the administrator's.
//!
//! Only their hashes are kept: comparing hashes to the end tells nothing about how much of a
//! guess was right, and there is nothing to leak.

use super::User;
use ring::digest;
use std::fmt;

type Hash = [u8; 32];

#[derive(Default)]
pub struct StaticTokens(Vec<(Hash, User)>);

impl StaticTokens {
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty token is never accepted.
    pub fn add(&mut self, token: &str, user: User) {
        if !token.is_empty() {
            self.0.push((hash(token), user));
        }
    }

    pub fn user(&self, token: &str) -> Option<&User> {
        let presented = hash(token);
        // Every entry is compared in full, whichever matches.
        self.0.iter().fold(
            None,
            |found, (known, user)| {
                if same(known, &presented) { Some(user) } else { found }
            },
        )
    }
}

impl fmt::Debug for StaticTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(_, user)| &user.name)).finish()
    }
}

pub(crate) fn hash(token: &str) -> Hash {
    let mut hash = Hash::default();
    hash.copy_from_slice(digest::digest(&digest::SHA256, token.as_bytes()).as_ref());
    hash
}

pub(super) fn same(left: &Hash, right: &Hash) -> bool {
    left.iter().zip(right).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}
