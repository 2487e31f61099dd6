//! Options with several values: sizes, depths, rates, and operations with their weights.

use crate::load::Operation;
use crate::units::{parse_rate, parse_size};
use clap::ValueEnum;

/// Several numbers: `1,2,8`, or `1..64` for every power of two from the first to the second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List<T>(pub(crate) Vec<T>);

/// Operations by weight: `echo`, or `echo:70,read:20,write:10`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operations(pub(crate) Vec<(Operation, u32)>);

/// Payload sizes of all calls, to measure one after the other, or of each operation of a mix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sizes {
    /// `64`, `64,4KiB`, `64..1MiB`.
    Any(Vec<usize>),
    /// `read=1MiB,echo=64`.
    Each(Vec<(Operation, usize)>),
}

impl Sizes {
    pub(crate) fn of(&self, op: Operation) -> Option<usize> {
        match self {
            _ if op == Operation::Null => Some(0),
            Self::Any(sizes) => sizes.first().copied(),
            Self::Each(sizes) => sizes.iter().find(|(of, _)| *of == op).map(|(_, size)| *size),
        }
    }
}

pub(super) fn parse_payload(text: &str) -> Result<usize, String> {
    let bytes = parse_size(text)?;
    (bytes <= PAYLOAD_BYTES_MAX).then_some(bytes).ok_or_else(|| "at most 64MiB".to_owned())
}

pub(super) fn operations(text: &str) -> Result<Operations, String> {
    let mut operations: Vec<(Operation, u32)> = Vec::new();
    for part in text.split(',') {
        let (name, weight) = part.split_once(':').unwrap_or((part, "1"));
        let op = operation(name)?;
        let weight: u32 = weight.parse().map_err(|_| WEIGHTS.to_owned())?;
        if !(1..=WEIGHT_MAX).contains(&weight) || operations.iter().any(|(of, _)| *of == op) {
            return Err(WEIGHTS.to_owned());
        }
        operations.push((op, weight));
    }
    Ok(Operations(operations))
}

pub(super) fn sizes(text: &str) -> Result<Sizes, String> {
    if !text.contains('=') {
        let size = |text: &str| parse_payload(text).map(|bytes| bytes as u64);
        return list(text, size).map(|sizes| Sizes::Any(as_usize(sizes)));
    }
    let size = |part: &str| {
        let (name, size) = part.split_once('=').ok_or_else(|| SIZES.to_owned())?;
        Ok((operation(name)?, parse_payload(size)?))
    };
    text.split(',').map(size).collect::<Result<_, String>>().map(Sizes::Each)
}

pub(super) fn rates(text: &str) -> Result<List<u64>, String> {
    list(text, |rate| parse_rate(rate).map_err(str::to_owned)).map(List)
}

pub(super) fn counts(text: &str) -> Result<List<usize>, String> {
    let count = |text: &str| match text.trim().parse() {
        Ok(count @ 1..=COUNT_MAX) => Ok(count),
        _ => Err(format!("{text} is not in 1..={COUNT_MAX}")),
    };
    list(text, count).map(|counts| List(as_usize(counts)))
}

fn operation(name: &str) -> Result<Operation, String> {
    Operation::from_str(name.trim(), false)
        .map_err(|_| format!("unknown operation {name:?}; expected null, echo, read or write"))
}

fn as_usize(numbers: Vec<u64>) -> Vec<usize> {
    numbers.into_iter().map(|number| number as usize).collect()
}

fn list(text: &str, parse: impl Fn(&str) -> Result<u64, String>) -> Result<Vec<u64>, String> {
    let mut values = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            None => values.push(parse(part)?),
            Some((first, last)) => values.extend(doubling(parse(first)?, parse(last)?)?),
        }
    }
    match values.len() {
        1..=LIST_MAX => Ok(values),
        _ => Err(format!("too many values: {} given, at most {LIST_MAX} allowed", values.len())),
    }
}

/// From the first to the last by doubling; always includes the last.
fn doubling(first: u64, last: u64) -> Result<Vec<u64>, String> {
    if first == 0 || first >= last {
        return Err("a range goes from a positive number to a larger one: 64..1MiB".to_owned());
    }
    let next = |value: &u64| value.checked_mul(2).filter(|next| *next < last);
    let mut values: Vec<u64> = std::iter::successors(Some(first), next).collect();
    values.push(last);
    Ok(values)
}

const WEIGHTS: &str =
    "not a mix; list each operation once, with a weight: echo:70,read:20,write:10";
const SIZES: &str = "not sizes of operations; list each operation with its size: read=1MiB,echo=64";
const PAYLOAD_BYTES_MAX: usize = 64 << 20;
const WEIGHT_MAX: u32 = 1_000_000;
const COUNT_MAX: u64 = 4096;
const LIST_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_take_numbers_and_ranges_that_double() {
        assert_eq!(counts("1,2,8"), Ok(List(vec![1, 2, 8])));
        assert_eq!(counts("1..8"), Ok(List(vec![1, 2, 4, 8])));
        assert_eq!(counts("3..10,64"), Ok(List(vec![3, 6, 10, 64])));
        assert_eq!(rates("1k..3k"), Ok(List(vec![1000, 2000, 3000])));
        let sizes = sizes("64..1MiB").unwrap();
        assert!(matches!(&sizes, Sizes::Any(all) if all.len() == 15 && all[14] == 1 << 20));
    }

    #[test]
    fn a_wrong_list_says_what_is_right() {
        for (text, told) in
            [("8..1", "64..1MiB"), ("0", "1..=4096"), ("x", "1..=4096"), ("0..8", "1..")]
        {
            let error = counts(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
        let many = vec!["1"; 65].join(",");
        assert!(counts(&many).unwrap_err().contains("at most 64"));
    }

    #[test]
    fn operations_have_weights_and_sizes() {
        let mix = operations("echo:70,read:30").unwrap();
        assert_eq!(mix.0, [(Operation::Echo, 70), (Operation::Read, 30)]);
        assert_eq!(operations("null").unwrap().0, [(Operation::Null, 1)]);
        for text in ["echo:0", "echo,echo", "echo:x", "nil", ""] {
            assert!(operations(text).is_err(), "{text:?}");
        }
        let each = sizes("read=1MiB,echo=64").unwrap();
        assert_eq!(each.of(Operation::Read), Some(1 << 20));
        assert_eq!((each.of(Operation::Write), each.of(Operation::Null)), (None, Some(0)));
    }
}
