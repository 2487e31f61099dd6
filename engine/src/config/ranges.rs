//! Numbers that a key accepts.

use std::fmt;

/// Limits of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Smallest value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
    /// Allowed values between the limits.
    pub step: Step,
}

/// Allowed values between two limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// All.
    Any,
    /// Multiples of this.
    MultipleOf(u64),
    /// Powers of two.
    PowerOfTwo,
    /// Powers of two, or zero, whatever the least of them.
    PowerOfTwoOrZero,
}

impl Limits {
    pub(super) const fn between(min: u64, max: u64) -> Self {
        Self { min, max, step: Step::Any }
    }

    pub(super) fn allow(self, number: u64) -> bool {
        let on_step = match self.step {
            Step::PowerOfTwoOrZero if number == 0 => return true,
            Step::PowerOfTwoOrZero => number.is_power_of_two(),
            Step::Any => true,
            Step::MultipleOf(unit) => number.is_multiple_of(unit),
            Step::PowerOfTwo => number.is_power_of_two(),
        };
        on_step && (self.min..=self.max).contains(&number)
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, max, step } = self;
        match step {
            Step::Any => write!(out, "an integer from {min} to {max}"),
            Step::MultipleOf(unit) => write!(out, "a multiple of {unit} from {min} to {max}"),
            Step::PowerOfTwo => write!(out, "a power of two from {min} to {max}"),
            Step::PowerOfTwoOrZero => write!(out, "0, or a power of two from {min} to {max}"),
        }
    }
}
