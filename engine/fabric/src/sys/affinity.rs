//! CPUs that this process may run on, and pinning a thread to one.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A set of CPU numbers; reads and prints as the kernel's lists do: `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<usize>);

/// One more than the highest CPU number that a kernel can be built for (`NR_CPUS`).
pub const CPUS_MAX: usize = 8192;

const WORD_BITS: usize = u64::BITS as usize;
/// Size of the mask of the first try: 1,024 CPUs.
const MASK_WORDS: usize = 16;

impl CpuSet {
    /// The CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, run) in runs(&self.0).into_iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            match (*run.start(), *run.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

fn runs(cpus: &BTreeSet<usize>) -> Vec<RangeInclusive<usize>> {
    let mut runs: Vec<RangeInclusive<usize>> = Vec::new();
    for &cpu in cpus {
        match runs.last_mut() {
            Some(run) if run.end() + 1 == cpu => *run = *run.start()..=cpu,
            _ => runs.push(cpu..=cpu),
        }
    }
    runs
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    /// An empty list is an empty set, as in sysfs.
    fn from_str(list: &str) -> Result<Self, Self::Err> {
        let parts = list.trim().split(',').filter(|_| !list.trim().is_empty());
        let mut cpus = BTreeSet::new();
        for part in parts {
            let run = parse_run(part).ok_or_else(|| ParseCpuSetError(part.to_owned()))?;
            cpus.extend(run);
        }
        Ok(Self(cpus))
    }
}

fn parse_run(part: &str) -> Option<RangeInclusive<usize>> {
    let number = |text: &str| text.trim().parse().ok().filter(|cpu| *cpu < CPUS_MAX);
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then_some(first..=last)
}

/// A part of a CPU list that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a CPU number below {CPUS_MAX} or a range of them, such as 0-3")]
pub struct ParseCpuSetError(String);

/// The CPUs the calling thread may run on.
///
/// # Errors
/// The error of sched_getaffinity(2).
pub fn allowed() -> io::Result<CpuSet> {
    read_mask(|mask| {
        // SAFETY: the kernel writes at most the given number of bytes, which `mask` has.
        let status =
            unsafe { libc::sched_getaffinity(0, size_of_val(mask), mask.as_mut_ptr().cast()) };
        outcome(status)
    })
}

/// Asks with a mask that grows: the kernel refuses one that its CPUs may not fit into, whether they exist or not
/// (sched_getaffinity(2), EINVAL).
fn read_mask(ask: impl Fn(&mut [u64]) -> io::Result<()>) -> io::Result<CpuSet> {
    let mut mask = vec![0; MASK_WORDS];
    loop {
        match ask(&mut mask) {
            Ok(()) => {
                return Ok((0..mask.len() * WORD_BITS).filter(|cpu| has(&mask, *cpu)).collect());
            }
            Err(error)
                if error.raw_os_error() == Some(libc::EINVAL)
                    && mask.len() * WORD_BITS < CPUS_MAX =>
            {
                mask = vec![0; mask.len() * 2];
            }
            Err(error) => return Err(error),
        }
    }
}

fn has(mask: &[u64], cpu: usize) -> bool {
    mask[cpu / WORD_BITS] >> (cpu % WORD_BITS) & 1 == 1
}

fn outcome(status: libc::c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ties the calling thread to `cpu`.
///
/// # Errors
/// `InvalidInput` if the CPU does not exist or this process may not use it.
pub fn pin_current_thread(cpu: usize) -> io::Result<()> {
    run_current_thread_on(&CpuSet::from_iter([cpu]))
}

/// Lets the calling thread run on `cpus`.
///
/// # Errors
/// The error of sched_setaffinity(2): `InvalidInput` if this process may use none of them.
pub fn run_current_thread_on(cpus: &CpuSet) -> io::Result<()> {
    if let Some(cpu) = cpus.iter().find(|cpu| *cpu >= CPUS_MAX) {
        let says = format!("CPU {cpu} does not exist");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, says));
    }
    let words = cpus.iter().max().map_or(0, |cpu| cpu / WORD_BITS + 1).max(MASK_WORDS);
    let mut mask = vec![0_u64; words];
    cpus.iter().for_each(|cpu| mask[cpu / WORD_BITS] |= 1 << (cpu % WORD_BITS));
    // SAFETY: the kernel reads the given number of bytes, which `mask` has. What its own masks have no room for it ignores.
    outcome(unsafe { libc::sched_setaffinity(0, size_of_val(&mask[..]), mask.as_ptr().cast()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn parse(list: &str) -> Result<Vec<usize>, ParseCpuSetError> {
        list.parse::<CpuSet>().map(|set| set.iter().collect())
    }

    #[test]
    fn lists_read_as_the_kernel_writes_them() {
        assert_eq!(parse("0-3,8\n"), Ok(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse("7"), Ok(vec![7]));
        assert_eq!(parse("3,1-2,2"), Ok(vec![1, 2, 3]));
        assert_eq!(parse("\n"), Ok(vec![]));
        assert_eq!(parse("1023-1025"), Ok(vec![1023, 1024, 1025]));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for bad in ["x", "1,", ",", "-1", "1-", "3-1", "8192", "0-99999999999", "1 2", "1-2-3"] {
            assert!(parse(bad).is_err(), "{bad:?} was taken for a list");
        }
        let message = parse("0,9-x").unwrap_err().to_string();
        assert!(message.starts_with("\"9-x\" is not a CPU number below 8192"), "{message}");
    }

    #[test]
    fn sets_print_as_the_lists_they_read() {
        for list in ["", "0", "0-3,8", "1,3,5-6", "0-1024"] {
            assert_eq!(list.parse::<CpuSet>().unwrap().to_string(), list);
        }
    }

    /// sched_getaffinity(2): EINVAL if the mask is smaller than the one that the kernel uses.
    #[test]
    fn a_kernel_for_more_than_1024_cpus_is_asked_with_a_larger_mask() {
        for cpus in [1, 64, 1024, 1025, CPUS_MAX] {
            let last = cpus - 1;
            let kernel = |mask: &mut [u64]| {
                if mask.len() * 64 < cpus {
                    return Err(io::Error::from_raw_os_error(libc::EINVAL));
                }
                mask[0] |= 1;
                mask[last / 64] |= 1 << (last % 64);
                Ok(())
            };
            assert_eq!(read_mask(kernel).unwrap(), CpuSet::from_iter([0, last]), "{cpus}");
        }
        let error = read_mask(|_| Err(io::Error::from_raw_os_error(libc::EINVAL))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "asks for ever");
        let error = read_mask(|_| Err(io::Error::from_raw_os_error(libc::ESRCH))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn a_pinned_thread_may_run_on_one_cpu_only() {
        for cpu in allowed().unwrap().iter() {
            let pinned = thread::spawn(move || pin_current_thread(cpu).and_then(|()| allowed()));
            assert_eq!(pinned.join().unwrap().unwrap(), CpuSet::from_iter([cpu]));
        }
    }

    #[test]
    fn pinning_to_a_cpu_that_is_not_there_says_so() {
        let absent = (0..CPUS_MAX).rev().find(|cpu| !allowed().unwrap().contains(*cpu));
        for cpu in [absent.unwrap(), 1024, CPUS_MAX, usize::MAX] {
            let before = allowed().unwrap();
            let error = pin_current_thread(cpu).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "CPU {cpu}: {error}");
            assert_eq!(allowed().unwrap(), before);
        }
    }
}
