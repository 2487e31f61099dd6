//! Numbers that are different each time, or with a seed the same each time.

use rustix::rand::{GetRandomFlags, getrandom};
use std::io;

/// SplitMix64 (Steele, Lea, Flood 2014). Good for spreading things out, not for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers that follow from `seed`, for tests and simulation.
    pub fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// Seeded by the operating system (may block early at boot).
    ///
    /// # Errors
    /// The error of getrandom(2).
    pub fn from_system() -> io::Result<Self> {
        let mut seed = [0; 8];
        match getrandom(&mut seed, GetRandomFlags::empty())? {
            8 => Ok(Self(u64::from_ne_bytes(seed))),
            _ => Err(io::Error::other("getrandom gave fewer bytes than asked for")),
        }
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next number, at most `largest`, each about as likely.
    pub fn at_most(&mut self, largest: u64) -> u64 {
        ((u128::from(self.next_u64()) * (u128::from(largest) + 1)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_and_another_seed_others() {
        let numbers = |seed| {
            let mut random = Random::seeded(seed);
            [(); 4].map(|()| random.next_u64())
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
    }

    #[test]
    fn bounded_numbers_reach_both_bounds_and_nothing_beyond() {
        let mut random = Random::seeded(3);
        let seen: Vec<u64> = (0..200).map(|_| random.at_most(3)).collect();
        assert!((0..=3).all(|number| seen.contains(&number)));
        assert!(seen.iter().all(|number| *number <= 3));
        assert_eq!(random.at_most(0), 0);
        random.at_most(u64::MAX);
    }
}
