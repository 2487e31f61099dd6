//! Confounders: the unpredictable first block of every sealed message (RFC 4121 section 4.2.4).
//!
//! A core has a generator of its own, which makes no system call. Its seeds come from the system, and
//! to get them is the caller's part.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::cipher::{BLOCK_BYTES, EncryptKey};
use crate::enctype::{Enctype, KEY_MAX_BYTES};

/// Length of a seed.
pub const SEED_BYTES: usize = KEY_MAX_BYTES;

/// Blocks made at a time; two of them become the next key.
const POOL_BLOCKS: usize = 32;
const KEY_BLOCKS: usize = SEED_BYTES / BLOCK_BYTES;

/// A source of confounders of cryptographic strength.
pub trait Confounders {
    /// The next confounder.
    fn next(&mut self) -> [u8; BLOCK_BYTES];
}

/// AES-256 in counter mode. Every pool of blocks contains the key of the next pool, so that this
/// memory says nothing about confounders that were handed out before.
pub struct AesConfounders {
    key: EncryptKey,
    pool: Pool,
    left: usize,
    /// Confounders since the last seed.
    used: u64,
}

#[derive(Zeroize, ZeroizeOnDrop)]
struct Pool([[u8; BLOCK_BYTES]; POOL_BLOCKS]);

impl AesConfounders {
    /// A generator with a seed of the system. The caller clears its own copy.
    pub fn new(seed: &[u8; SEED_BYTES]) -> Self {
        let mut own =
            Self { key: key(seed), pool: Pool([[0; BLOCK_BYTES]; POOL_BLOCKS]), left: 0, used: 0 };
        own.refill();
        own
    }

    /// Mixes in another seed of the system. A bad one does no harm.
    pub fn reseed(&mut self, seed: &[u8; SEED_BYTES]) {
        self.refill();
        let mut mixed = *seed;
        for part in mixed.as_chunks_mut::<BLOCK_BYTES>().0 {
            let own = self.take();
            part.iter_mut().zip(own).for_each(|(byte, own)| *byte ^= own);
        }
        self.key = key(&mixed);
        mixed.zeroize();
        self.refill();
        self.used = 0;
    }

    /// Confounders since the last seed, by which the caller knows when the next is due.
    pub const fn used(&self) -> u64 {
        self.used
    }

    fn refill(&mut self) {
        for (block, counter) in self.pool.0.iter_mut().zip(0_u128..) {
            *block = counter.to_be_bytes();
            self.key.encrypt_block(block);
        }
        let mut next = [0; SEED_BYTES];
        let blocks = &mut self.pool.0[POOL_BLOCKS - KEY_BLOCKS..];
        for (part, block) in next.as_chunks_mut::<BLOCK_BYTES>().0.iter_mut().zip(blocks) {
            *part = core::mem::take(block);
        }
        self.key = key(&next);
        next.zeroize();
        self.left = POOL_BLOCKS - KEY_BLOCKS;
    }

    fn take(&mut self) -> [u8; BLOCK_BYTES] {
        if self.left == 0 {
            self.refill();
        }
        self.left -= 1;
        core::mem::take(&mut self.pool.0[self.left])
    }
}

impl Confounders for AesConfounders {
    fn next(&mut self) -> [u8; BLOCK_BYTES] {
        self.used = self.used.saturating_add(1);
        self.take()
    }
}

shown!(AesConfounders: used);

fn key(seed: &[u8; SEED_BYTES]) -> EncryptKey {
    EncryptKey::new(Enctype::Aes256Sha1, seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn many(generator: &mut AesConfounders) -> Vec<[u8; BLOCK_BYTES]> {
        (0..1000).map(|_| generator.next()).collect()
    }

    #[test]
    fn no_confounder_comes_twice_and_equal_seeds_give_equal_ones() {
        let (mut one, mut two) = (AesConfounders::new(&[1; 32]), AesConfounders::new(&[1; 32]));
        let confounders = many(&mut one);
        assert_eq!(confounders, many(&mut two));
        assert_eq!(confounders.iter().collect::<HashSet<_>>().len(), 1000);
        assert_eq!(one.used(), 1000);
        assert!(many(&mut AesConfounders::new(&[2; 32])) != confounders);
    }

    #[test]
    fn a_seed_changes_what_follows_and_keeps_what_was_there() {
        let mut unchanged = AesConfounders::new(&[1; 32]);
        let mut seeded = AesConfounders::new(&[1; 32]);
        let mut other = AesConfounders::new(&[2; 32]);
        many(&mut unchanged);
        many(&mut seeded);
        many(&mut other);
        seeded.reseed(&[9; 32]);
        other.reseed(&[9; 32]);
        assert_eq!(seeded.used(), 0);
        let after = many(&mut seeded);
        assert!(after != many(&mut unchanged));
        assert!(after != many(&mut other), "a known seed makes confounders known");
    }

    #[test]
    fn what_was_handed_out_is_not_kept() {
        let mut generator = AesConfounders::new(&[1; 32]);
        let confounder = generator.next();
        assert!(!generator.pool.0.contains(&confounder));
    }
}
