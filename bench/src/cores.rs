//! Which cores a measurement runs on, and pinning to them.
//!
//! Reads the affinity mask of the process; `cli` parses lists with it, the commands choose with it.

use crate::failure::Failure;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::str::FromStr;

/// Cores by number, in the order given: `0,2` or `4-7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CoreList(Vec<usize>);

impl CoreList {
    /// The numbers, at least one, each once.
    pub(crate) fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// As the command line takes it.
    pub(crate) fn show(&self) -> String {
        let numbers: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        numbers.join(",")
    }
}

impl From<usize> for CoreList {
    fn from(core: usize) -> Self {
        Self(vec![core])
    }
}

impl From<CorePair> for CoreList {
    fn from(pair: CorePair) -> Self {
        Self(vec![pair.client, pair.server])
    }
}

impl FromStr for CoreList {
    type Err = CoreListError;

    fn from_str(text: &str) -> Result<Self, CoreListError> {
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let parse = |number: &str| number.trim().parse().map_err(|_| CoreListError);
            let (first, last): (usize, usize) = (parse(first)?, parse(last)?);
            if last >= CpuSet::MAX_CPU || first > last {
                return Err(CoreListError);
            }
            cores.extend(first..=last);
        }
        let count = cores.len();
        let mut unique = cores.clone();
        unique.sort_unstable();
        unique.dedup();
        if unique.len() == count { Ok(Self(cores)) } else { Err(CoreListError) }
    }
}

/// A core list that could not be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a list of cores; give numbers, each once, with commas and ranges: 1 or 0,2 or 4-7")]
pub(crate) struct CoreListError;

/// The two cores of a measurement between two processes or threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct CorePair {
    /// Where calls are made.
    pub(crate) client: usize,
    /// Where they are answered.
    pub(crate) server: usize,
}

impl CorePair {
    /// The wanted pair, or the last two cores this process may use: the first is where kernels
    /// like to put their own work.
    pub(crate) fn choose(wanted: Option<&CoreList>) -> Result<Self, Failure> {
        let allowed = allowed_cores()?;
        let (client, server) = match (wanted.map(CoreList::as_slice), allowed.as_slice()) {
            (Some(&[client, server]), _) => (client, server),
            (Some(_), _) => return Err(Failure::Usage(PAIR_WANTED.to_owned())),
            (None, &[.., client, server]) => (client, server),
            (None, _) => return Err(Failure::Measurement(TWO_NEEDED.to_owned())),
        };
        check_allowed(&[client, server])?;
        Ok(Self { client, server })
    }
}

/// Refuses cores this process may not run on, naming those it may.
pub(crate) fn check_allowed(wanted: &[usize]) -> Result<(), Failure> {
    let allowed = allowed_cores()?;
    match wanted.iter().find(|core| !allowed.contains(core)) {
        None => Ok(()),
        Some(core) => Err(Failure::Usage(format!(
            "core {core} is not available to this process; it may use {}",
            CoreList(allowed).show()
        ))),
    }
}

/// Cores in the affinity mask of the calling thread, ascending.
pub(crate) fn allowed_cores() -> Result<Vec<usize>, Failure> {
    let set = sched_getaffinity(None)
        .map_err(|error| Failure::system("reading the affinity mask", error))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Binds the calling thread to one core.
pub(crate) fn pin(core: usize) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set)
        .map_err(|error| Failure::system(format!("pinning a thread to core {core}"), error))
}

const PAIR_WANTED: &str = "--cores takes two cores here: CLIENT,SERVER, such as 0,1";
const TWO_NEEDED: &str = "this process may use one core only; client and server need one each";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<usize>, CoreListError> {
        text.parse::<CoreList>().map(|list| list.0)
    }

    #[test]
    fn lists_and_ranges_keep_their_order() {
        assert_eq!(parse("3"), Ok(vec![3]));
        assert_eq!(parse("1,0"), Ok(vec![1, 0]));
        assert_eq!(parse("4-6,2"), Ok(vec![4, 5, 6, 2]));
    }

    #[test]
    fn gaps_repeats_and_nonsense_are_refused() {
        for text in ["", "a", "1,", "3-1", "1,1", "0-4000", "-1"] {
            assert_eq!(parse(text), Err(CoreListError), "{text:?}");
        }
    }

    #[test]
    fn a_pair_is_two_cores() {
        let one = "0".parse::<CoreList>().unwrap();
        assert!(matches!(CorePair::choose(Some(&one)), Err(Failure::Usage(_))));
    }

    #[test]
    fn a_core_outside_the_mask_is_named_with_those_inside() {
        let message = check_allowed(&[CpuSet::MAX_CPU - 1]).unwrap_err().to_string();
        assert!(message.contains("may use"), "{message}");
    }
}
