//! Tokens that are configured at the start, such as the administrator's.
//!
//! Only hashes are kept in memory. Comparing full hashes takes the same time however much of a guess is right.

use super::User;
use arc_swap::ArcSwap;
use ring::digest;
use std::fmt;
use std::sync::Arc;

type Hash = [u8; 32];

#[derive(Default)]
pub struct StaticTokens(ArcSwap<Vec<(Hash, User)>>);

impl StaticTokens {
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty token is never accepted.
    pub fn add(&mut self, token: &str, user: User) {
        if !token.is_empty() {
            let mut all = self.0.load().to_vec();
            all.push((hash(token), user));
            self.0.store(Arc::new(all));
        }
    }

    /// Replaces all tokens of the user by this one.
    pub fn replace(&self, token: &str, user: User) {
        let mut all = self.0.load().to_vec();
        all.retain(|(_, known)| known.name != user.name);
        all.push((hash(token), user));
        self.0.store(Arc::new(all));
    }

    pub fn user(&self, token: &str) -> Option<User> {
        let presented = hash(token);
        // Every entry is compared, so the time does not depend on which one matches.
        self.0.load().iter().fold(None, |found, (known, user)| {
            if same(known, &presented) { Some(user.clone()) } else { found }
        })
    }
}

impl fmt::Debug for StaticTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.load().iter().map(|(_, user)| &user.name)).finish()
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
