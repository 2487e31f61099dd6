//! Keys for exposed memory that a peer cannot guess and that are not soon used again.

use crate::sys::random::Random;
use std::io;

/// Makes the 32-bit keys (R_key, STag) of one connection. A key names its place in the owner's table
/// with its low bits; the bits above are a tag that changes with each key of the place.
///
/// The tags of a place go through a secret permutation of all tags: none is repeated before all
/// were used, and the next one cannot be told from those before by counting on. It is not a cipher:
/// memory is protected because a key is alive only as long as a call needs it.
#[derive(Debug)]
pub struct KeyGenerator {
    secrets: [u64; ROUNDS],
    index_bits: u32,
    places: usize,
    /// Number of tags that each place has used, as far as the places that have used any.
    used: Vec<u32>,
}

/// Places that a table remembers from the first key on.
const USED_MIN: usize = 64;

/// Enough for every bit of a counter to reach every bit of the tag.
const ROUNDS: usize = 3;

/// Places a table may have; more would leave too few bits for the tag.
const PLACES_MAX: usize = 1 << PLACES_BITS_MAX;

const PLACES_BITS_MAX: u32 = 20;

const _: () = assert!(
    1 << (u32::BITS - PLACES_BITS_MAX) > KeyGenerator::DISTINCT_KEYS,
    "all tags but one, the one of key 0, are used before one is repeated"
);

impl KeyGenerator {
    /// Least number of keys of one place in a row that all differ.
    pub const DISTINCT_KEYS: usize = 4000;

    /// A generator for a table of `places`, seeded by the operating system (may block early at boot).
    ///
    /// # Errors
    /// `InvalidInput` if `places` is 0 or more than 2^20; the error of getrandom(2).
    pub fn new(places: usize) -> io::Result<Self> {
        Self::with_seed(places, Random::from_system()?.next_u64())
    }

    /// A generator whose keys are known in advance, for tests and simulation.
    ///
    /// # Errors
    /// `InvalidInput` if `places` is 0 or more than 2^20.
    pub fn with_seed(places: usize, seed: u64) -> io::Result<Self> {
        if places == 0 || places > PLACES_MAX {
            let message = format!("a key table has 1 to {PLACES_MAX} places, not {places}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let index_bits = places.next_power_of_two().trailing_zeros();
        let mut random = Random::seeded(seed);
        let secrets = std::array::from_fn(|_| random.next_u64());
        Ok(Self { secrets, index_bits, places, used: Vec::new() })
    }

    /// The next key of place `index`: never 0, and none of the last [`Self::DISTINCT_KEYS`].
    ///
    /// # Panics
    /// If `index` is not below the number of places.
    #[inline]
    pub fn next(&mut self, index: usize) -> u32 {
        if index >= self.used.len() {
            self.grow(index);
        }
        loop {
            let counter = self.used[index];
            self.used[index] = counter.wrapping_add(1);
            let key = (self.tag(index, counter) << self.index_bits) | index as u64;
            if key != 0 {
                return key as u32;
            }
        }
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        assert!(index < self.places, "place {index} of {}", self.places);
        let used = (index + 1).next_power_of_two().max(USED_MIN).min(self.places);
        self.used.reserve_exact(used - self.used.len());
        self.used.resize(used, 0);
    }

    /// The place that `key` names. It may be none of the table's.
    #[inline]
    pub fn index_of(&self, key: u32) -> usize {
        (u64::from(key) & mask(self.index_bits)) as usize
    }

    /// Permutes the counters of a place: each step can be undone, modulo the size of a tag.
    fn tag(&self, index: usize, counter: u32) -> u64 {
        let tag_bits = u32::BITS - self.index_bits;
        let mask = mask(tag_bits);
        let mut place = index as u64;
        let mut tag = u64::from(counter) & mask;
        for secret in self.secrets {
            place = Random::seeded(place ^ secret).next_u64();
            tag = (tag ^ place) & mask;
            tag = tag.wrapping_mul((place >> 32) | 1) & mask;
            tag ^= tag >> tag_bits.div_ceil(2);
        }
        tag
    }
}

/// `bits` is at most 32.
fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn a_table_without_places_or_with_too_many_is_refused() {
        for places in [0, PLACES_MAX + 1, usize::MAX] {
            assert_eq!(KeyGenerator::new(places).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        assert!(KeyGenerator::new(PLACES_MAX).is_ok());
    }

    #[test]
    fn connections_get_different_keys() {
        let keys = |mut keys: KeyGenerator| [(); 4].map(|()| keys.next(0));
        assert_ne!(keys(KeyGenerator::new(16).unwrap()), keys(KeyGenerator::new(16).unwrap()));
        let seeded = |seed| keys(KeyGenerator::with_seed(16, seed).unwrap());
        assert_eq!(seeded(1), seeded(1));
        assert_ne!(seeded(1), seeded(2));
    }

    #[test]
    fn every_tag_is_used_before_one_is_repeated() {
        let mut keys = KeyGenerator::with_seed(PLACES_MAX, 5).unwrap();
        for index in [0, 1, PLACES_MAX - 1] {
            let of_index: Vec<u32> = (0..4095).map(|_| keys.next(index)).collect();
            assert_eq!(of_index.iter().collect::<HashSet<_>>().len(), 4095);
        }
    }

    #[test]
    fn a_key_does_not_tell_the_next_one() {
        let mut keys = KeyGenerator::with_seed(64, 5).unwrap();
        let mut steps = HashSet::new();
        let mut before = keys.next(9);
        for _ in 0..1000 {
            let key = keys.next(9);
            steps.insert(key.wrapping_sub(before));
            before = key;
        }
        assert!(steps.len() > 990, "the same steps come again and again: {}", steps.len());
    }

    proptest! {
        #[test]
        fn keys_name_their_place_and_are_never_zero_or_soon_repeated(
            seed: u64, places in 1..2000_usize, which: usize,
        ) {
            let mut keys = KeyGenerator::with_seed(places, seed).unwrap();
            let index = which % places;
            let mut seen = HashSet::new();
            for _ in 0..KeyGenerator::DISTINCT_KEYS {
                let key = keys.next(index);
                prop_assert_ne!(key, 0);
                prop_assert_eq!(keys.index_of(key), index);
                prop_assert!(seen.insert(key));
            }
        }
    }
}
