//! Random operations on a file, and a model of its expected content. Pure except for its
//! [`Storage`].

use crate::random::Random;
use std::collections::VecDeque;
use std::fmt;
use std::io;

/// Number of operations kept for a report.
const REMEMBERED: usize = 50;

/// The file under test, with random access.
pub(crate) trait Storage {
    fn size(&self) -> io::Result<u64>;
    /// Reads until the bytes are full or the file ends.
    fn read(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    fn resize(&mut self, bytes: u64) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
    /// Makes the next read bypass caches.
    fn forget(&mut self) -> io::Result<()>;
    fn reopen(&mut self) -> io::Result<()>;
}

/// Size limits, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) file_bytes: usize,
    pub(crate) block_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read { offset: usize, bytes: usize },
    Write { offset: usize, bytes: usize },
    Resize { bytes: usize, before: usize },
    Sync,
    Forget,
    Reopen,
}

impl Operation {
    /// Returns whether the operation changed the byte, or may have.
    fn changed(self, at: usize) -> bool {
        match self {
            Self::Write { offset, bytes } => (offset..offset + bytes).contains(&at),
            Self::Resize { bytes, before } => (bytes.min(before)..bytes.max(before)).contains(&at),
            _ => false,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Read { offset, bytes } => write!(f, "read   {offset:#8x} {bytes:#8x} bytes"),
            Self::Write { offset, bytes } => write!(f, "write  {offset:#8x} {bytes:#8x} bytes"),
            Self::Resize { bytes, before } => write!(f, "resize {before:#8x} -> {bytes:#x}"),
            Self::Sync => f.write_str("sync"),
            Self::Forget => f.write_str("drop caches"),
            Self::Reopen => f.write_str("close and reopen"),
        }
    }
}

/// The kind of failure.
#[derive(Debug)]
enum Problem {
    Failed(io::Error),
    Size { is: u64, expected: usize },
    Short { is: usize, expected: usize },
    Bytes { at: usize, is: u8, expected: u8, last: usize },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "{error}"),
            Self::Size { is, expected } => write!(f, "the size is {is:#x}, not {expected:#x}"),
            Self::Short { is, expected } => write!(f, "{is:#x} bytes read, not {expected:#x}"),
            Self::Bytes { at, is, expected, last } => write!(
                f,
                "the byte at {at:#x} is {is:#04x}, not {expected:#04x}; the last wrong one is at \
                 {last:#x}"
            ),
        }
    }
}

/// A difference, with the operations that led to it.
#[derive(Debug)]
pub(crate) struct Found {
    problem: Problem,
    /// Number of operations, the last of which showed it.
    pub(crate) operations: u64,
    history: VecDeque<(u64, Operation)>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "operation {}: {}", self.operations, self.problem)?;
        write!(f, "the last {} operations (* changed that byte):", self.history.len())?;
        for (number, operation) in &self.history {
            let is_marked = match self.problem {
                Problem::Bytes { at, .. } => operation.changed(at),
                _ => false,
            };
            write!(f, "\n{} {number:8} {operation}", if is_marked { '*' } else { ' ' })?;
        }
        Ok(())
    }
}

/// A file under test.
pub(crate) struct Exercise<S> {
    storage: S,
    random: Random,
    limits: Limits,
    /// Expected content of the file.
    model: Vec<u8>,
    buffer: Vec<u8>,
    done: u64,
    history: VecDeque<(u64, Operation)>,
}

impl<S: Storage> Exercise<S> {
    /// An empty file.
    pub(crate) fn new(storage: S, seed: u64, limits: Limits) -> Self {
        Self {
            storage,
            random: Random::new(seed),
            limits,
            model: Vec::with_capacity(limits.file_bytes),
            buffer: vec![0; limits.file_bytes],
            done: 0,
            history: VecDeque::with_capacity(REMEMBERED),
        }
    }

    /// Runs until `is_over`, which gets the number of operations so far, or until there is a
    /// difference. Returns the number of operations.
    pub(crate) fn run(&mut self, is_over: impl Fn(u64) -> bool) -> Result<u64, Found> {
        while !is_over(self.done) {
            let operation = self.choose();
            self.remember(operation);
            self.perform(operation).map_err(|problem| self.found(problem))?;
        }
        self.check_all().map_err(|problem| self.found(problem))?;
        Ok(self.done)
    }

    fn choose(&mut self) -> Operation {
        let (size, limits) = (self.model.len(), self.limits);
        match self.random.below(100) {
            0..36 => {
                let offset = self.random.below(size + 1);
                let bytes = self.random.below(limits.block_bytes.min(size - offset) + 1);
                Operation::Read { offset, bytes }
            }
            36..80 => {
                let offset = self.random.below(limits.file_bytes);
                let most = limits.block_bytes.min(limits.file_bytes - offset);
                Operation::Write { offset, bytes: 1 + self.random.below(most) }
            }
            80..90 => {
                let bytes = self.random.below(limits.file_bytes + 1);
                Operation::Resize { bytes, before: size }
            }
            90..94 => Operation::Sync,
            94..98 => Operation::Forget,
            _ => Operation::Reopen,
        }
    }

    fn remember(&mut self, operation: Operation) {
        self.done += 1;
        if self.history.len() == REMEMBERED {
            self.history.pop_front();
        }
        self.history.push_back((self.done, operation));
    }

    fn perform(&mut self, operation: Operation) -> Result<(), Problem> {
        let done = match operation {
            Operation::Read { offset, bytes } => return self.check(offset, bytes),
            Operation::Write { offset, bytes } => self.write(offset, bytes),
            Operation::Resize { bytes, .. } => {
                self.model.resize(bytes, 0);
                self.storage.resize(bytes as u64)
            }
            Operation::Sync => self.storage.sync(),
            Operation::Forget => self.storage.forget(),
            Operation::Reopen => self.storage.reopen(),
        };
        done.map_err(Problem::Failed)?;
        match operation {
            Operation::Forget | Operation::Reopen => self.check_all(),
            _ => self.check_size(),
        }
    }

    fn write(&mut self, offset: usize, bytes: usize) -> io::Result<()> {
        let end = offset + bytes;
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        let fresh = &mut self.model[offset..end];
        self.random.fill(fresh);
        self.storage.write(fresh, offset as u64)
    }

    fn check_all(&mut self) -> Result<(), Problem> {
        self.check_size()?;
        self.check(0, self.model.len())
    }

    fn check_size(&self) -> Result<(), Problem> {
        let (is, expected) = (self.storage.size().map_err(Problem::Failed)?, self.model.len());
        if is == expected as u64 { Ok(()) } else { Err(Problem::Size { is, expected }) }
    }

    fn check(&mut self, offset: usize, bytes: usize) -> Result<(), Problem> {
        let buffer = &mut self.buffer[..bytes];
        // Bytes that are not read must not look as if they were.
        buffer.fill(0xee);
        let is = self.storage.read(buffer, offset as u64).map_err(Problem::Failed)?;
        if is != bytes {
            return Err(Problem::Short { is, expected: bytes });
        }
        let expected = &self.model[offset..offset + bytes];
        let differs = |at: &usize| buffer[*at] != expected[*at];
        match ((0..bytes).find(differs), (0..bytes).rfind(differs)) {
            (Some(first), Some(last)) => Err(Problem::Bytes {
                at: offset + first,
                is: buffer[first],
                expected: expected[first],
                last: offset + last,
            }),
            _ => Ok(()),
        }
    }

    fn found(&mut self, problem: Problem) -> Found {
        let history = std::mem::take(&mut self.history);
        Found { problem, operations: self.done, history }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { file_bytes: 10_000, block_bytes: 3_000 };

    /// A file in memory with a single fault after a number of writes and resizes.
    #[derive(Default)]
    struct Memory {
        bytes: Vec<u8>,
        wrong: Option<Wrong>,
        changes_left: usize,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Wrong {
        LosesAWrite,
        LosesTheLastByte,
        KeepsWhatWasCut,
        DoesNotGrow,
        FailsToWrite,
        ForgetsWithTheCache,
    }

    impl Memory {
        /// Returns whether this fault occurs now.
        fn is(&mut self, wrong: Wrong) -> bool {
            if self.wrong != Some(wrong) {
                return false;
            }
            self.changes_left = self.changes_left.saturating_sub(1);
            self.changes_left == 0
        }
    }

    impl Storage for Memory {
        fn size(&self) -> io::Result<u64> {
            Ok(self.bytes.len() as u64)
        }

        fn read(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
            let rest = &self.bytes[offset as usize..];
            let count = rest.len().min(bytes.len());
            bytes[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        }

        fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
            if self.is(Wrong::FailsToWrite) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let (offset, end) = (offset as usize, offset as usize + bytes.len());
            self.bytes.resize(self.bytes.len().max(end), 0);
            if self.is(Wrong::LosesAWrite) {
                return Ok(());
            }
            let lost = usize::from(self.is(Wrong::LosesTheLastByte));
            let kept = &bytes[..bytes.len() - lost];
            self.bytes[offset..end - lost].copy_from_slice(kept);
            Ok(())
        }

        fn resize(&mut self, bytes: u64) -> io::Result<()> {
            let grows = bytes as usize > self.bytes.len();
            if grows && self.is(Wrong::DoesNotGrow) {
                return Ok(());
            }
            let fill = if grows && self.is(Wrong::KeepsWhatWasCut) { 0x55 } else { 0 };
            self.bytes.resize(bytes as usize, fill);
            Ok(())
        }

        fn sync(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn forget(&mut self) -> io::Result<()> {
            if self.is(Wrong::ForgetsWithTheCache) {
                self.bytes.iter_mut().for_each(|byte| *byte = !*byte);
            }
            Ok(())
        }

        fn reopen(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_file_without_fault_shows_no_difference() {
        for seed in 0..20 {
            let mut exercise = Exercise::new(Memory::default(), seed, LIMITS);
            assert_eq!(exercise.run(|done| done == 1000).unwrap(), 1000, "seed {seed}");
        }
    }

    #[test]
    fn whatever_is_wrong_is_found_and_said() {
        for (wrong, said) in [
            (Wrong::LosesAWrite, "the byte at"),
            (Wrong::LosesTheLastByte, "the byte at"),
            (Wrong::KeepsWhatWasCut, "is 0x55, not 0x00"),
            (Wrong::DoesNotGrow, "the size is"),
            (Wrong::FailsToWrite, "operation"),
            (Wrong::ForgetsWithTheCache, "the byte at"),
        ] {
            for seed in 0..20 {
                let storage = Memory { wrong: Some(wrong), changes_left: 5, ..Memory::default() };
                let mut exercise = Exercise::new(storage, seed, LIMITS);
                let found = exercise.run(|done| done == 2000).unwrap_err().to_string();
                assert!(found.contains(said), "{wrong:?}, seed {seed}: {found}");
                assert!(found.lines().count() <= 2 + REMEMBERED, "{found}");
            }
        }
    }
}
