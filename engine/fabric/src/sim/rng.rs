//! Random numbers that a seed decides, the same on every machine.

use crate::sys::random::Random;

/// A stream of numbers. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(Random);

impl Rng {
    /// The stream of this seed; streams of neighbouring seeds have nothing in common.
    pub fn new(seed: u64) -> Self {
        Self(Random::seeded(seed))
    }

    /// Any number.
    #[inline]
    pub fn any(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; zero if that is zero.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.any()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `range.0` to `range.1`, both included.
    #[inline]
    pub fn within(&mut self, range: (u64, u64)) -> u64 {
        range.0 + self.below(range.1.saturating_sub(range.0) + 1)
    }

    /// True in `per_mille` of a thousand cases.
    #[inline]
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// One of `options`; the first if there is only one.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.below(options.len() as u64) as usize]
    }

    /// A separate stream, for a part that may draw more or fewer numbers without changing the
    /// numbers of others.
    pub fn fork(&mut self) -> Self {
        Self::new(self.any())
    }
}
