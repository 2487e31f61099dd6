//! Seeded random numbers for the next operation and its time.

use super::workload::Share;
use spinrpc::sys::random::Random;

/// A positive number, exponentially distributed with mean 1.
#[inline]
pub(super) fn exponential(random: &mut Random) -> f64 {
    // In (0, 1]: 53 bits, and never zero.
    let uniform = ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    -uniform.ln()
}

pub(crate) fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.at_most(last as u64) as usize);
    }
}

#[derive(Clone, Debug)]
pub(super) struct Mixer {
    random: Random,
    /// Cumulative weights: upper bound of the numbers that select each share.
    ends: Vec<u64>,
}

impl Mixer {
    /// Creates a mixer of these shares; `None` for a single one, which needs no choice. Its
    /// sequence differs from that of the arrivals with the same seed: no operation may prefer the
    /// longer gaps.
    pub(super) fn new(shares: &[Share], seed: u64) -> Option<Self> {
        let sum = |end: &mut u64, share: &Share| {
            *end += u64::from(share.weight);
            Some(*end)
        };
        let ends = shares.iter().scan(0, sum).collect();
        (shares.len() > 1).then(|| Self { random: Random::seeded(seed ^ MIX_SEED), ends })
    }

    #[inline]
    pub(super) fn pick(&mut self) -> usize {
        let number = self.random.at_most(self.ends.last().map_or(0, |end| end - 1));
        self.ends.iter().position(|&end| number < end).unwrap_or(0)
    }
}

/// Separates the seeds of mixes from those of arrivals.
const MIX_SEED: u64 = 0x6d69_785f_7365_6564;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Operation;

    #[test]
    fn exponential_numbers_are_positive_with_a_mean_of_one() {
        let mut random = Random::seeded(1);
        let numbers: Vec<f64> = (0..100_000).map(|_| exponential(&mut random)).collect();
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert!(numbers.iter().all(|number| number.is_finite() && *number >= 0.0));
    }

    #[test]
    fn shares_are_picked_by_weight() {
        let share = |op, weight| Share { op, weight, call_bytes: 0, reply_bytes: 0 };
        let shares = [share(Operation::Echo, 70), share(Operation::Read, 30)];
        let mut mixer = Mixer::new(&shares, 3).unwrap();
        let reads = (0..10_000).filter(|_| mixer.pick() == 1).count();
        assert!((2800..3200).contains(&reads), "{reads}");
        assert!(Mixer::new(&shares[..1], 3).is_none());
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..50).collect();
        shuffle(&mut items, &mut Random::seeded(5));
        assert_ne!(items, (0..50).collect::<Vec<u32>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<u32>>());
    }
}
