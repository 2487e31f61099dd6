//! One procedure called repeatedly at a given depth: every reply starts the next call.

use super::pipeline::{Piece, Window};
use super::round_trips::RoundTrips;
use super::{Error, Nfs, Root, add, failed};
use crate::nfs3::{PLAIN_RESULT_BYTES_MAX, READ_RESULT_HEAD_BYTES, outcome};
use crate::protocol::{
    FileHandle, Getattr3args, Getattr3resok, Nfsstat3, ProcedureId, Read3args, Read3resok,
    StableHow, Write3args, Write3resok,
};
use spinrpc::sys::clock::Clock;
use spinrpc::{CallSpec, DecodeError, Decoder, Encoder};
use spinrpc_xdr::{Encode, Placed};
use std::time::{Duration, Instant};

/// Operation of every call of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// GETATTR.
    Getattr,
    /// READ; the server places the data.
    Read,
    /// WRITE with this stability; the server fetches the data.
    Write(StableHow),
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Operation of each call.
    pub work: Work,
    /// Bytes of each READ or WRITE.
    pub block_bytes: u32,
    /// Blocks are read or written in order up to this offset in the file, in bytes, then from its
    /// beginning again.
    pub span_bytes: u64,
    /// Calls in flight.
    pub depth: usize,
    /// Time at the beginning that is not measured.
    pub warmup: Duration,
    /// Measured time.
    pub duration: Duration,
    /// Ends the load early after this many measured calls.
    pub calls: Option<u64>,
}

/// Result of a load.
#[derive(Debug)]
pub struct Loaded {
    /// Round trips of all measured calls.
    pub round_trips: RoundTrips,
    /// Time in which they were answered.
    pub elapsed: Duration,
    /// Duration of the final COMMIT, if one was needed; not part of the above.
    pub commit: Option<Duration>,
}

impl Work {
    /// The procedure.
    pub fn operation(self) -> ProcedureId {
        match self {
            Self::Getattr => ProcedureId::Nfsproc3Getattr,
            Self::Read => ProcedureId::Nfsproc3Read,
            Self::Write(_) => ProcedureId::Nfsproc3Write,
        }
    }
}

impl Nfs {
    /// Loads the server with calls on one file, until `load` or `stop` says that it is enough. The
    /// session must have been created for this many calls of this size
    /// ([`Options`](super::Options)). A READ must return a full block, and a WRITE must be accepted
    /// whole. Blocks this thread.
    ///
    /// # Errors
    /// That of the first call without the expected reply.
    pub fn load(
        &self,
        root: &Root,
        file: &FileHandle,
        load: &Load,
        mut stop: impl FnMut() -> bool,
    ) -> Result<Loaded, Error> {
        self.check_size(root, load)?;
        let mut loading = Loading::new(self, file, load)?;
        loading.run(&mut stop)?;
        let ticks = loading.end.saturating_sub(loading.start);
        let elapsed = Duration::from_nanos(loading.clock.to_ns(ticks));
        let commit =
            (load.work == Work::Write(StableHow::Unstable)).then(|| self.timed_commit(file));
        Ok(Loaded { round_trips: loading.round_trips, elapsed, commit: commit.transpose()? })
    }

    /// Rejects blocks that the server would split, because other sizes would be measured.
    fn check_size(&self, root: &Root, load: &Load) -> Result<(), Error> {
        let limits = match load.work {
            Work::Getattr => return Ok(()),
            Work::Read | Work::Write(_) => self.server_limits(&root.handle)?,
        };
        let (most, name) = match load.work {
            Work::Write(_) => (limits.wtmax, "wtmax"),
            _ => (limits.rtmax, "rtmax"),
        };
        match load.block_bytes <= most {
            true => Ok(()),
            false => Err(Error::Path(format!(
                "the server accepts at most {most} bytes at a time ({name}), not {}",
                load.block_bytes
            ))),
        }
    }

    fn timed_commit(&self, file: &FileHandle) -> Result<Duration, Error> {
        let began = Instant::now();
        self.commit(file)?;
        Ok(began.elapsed())
    }
}

struct Loading<'a> {
    nfs: &'a Nfs,
    file: &'a FileHandle,
    load: &'a Load,
    window: Window<'a, Answer>,
    clock: Clock,
    /// Replies count from here until `end`, in clock ticks.
    start: u64,
    end: u64,
    calls_left: u64,
    span_bytes: u64,
    next_offset: u64,
    round_trips: RoundTrips,
}

struct Answer {
    began: u64,
    ended: u64,
    /// Number of bytes of data that arrived in the message instead of the chunk, or what is wrong with the results.
    inline_bytes: Result<u64, String>,
}

impl<'a> Loading<'a> {
    fn new(nfs: &'a Nfs, file: &'a FileHandle, load: &'a Load) -> Result<Self, Error> {
        let block = u64::from(load.block_bytes);
        Ok(Self {
            nfs,
            file,
            load,
            window: Window::new(nfs, load.work.operation()),
            clock: Clock::shared(),
            start: 0,
            end: 0,
            calls_left: load.calls.unwrap_or(u64::MAX),
            // Whole blocks; at least one.
            span_bytes: (load.span_bytes / block * block).max(block),
            next_offset: 0,
            round_trips: RoundTrips::new()?,
        })
    }

    fn run(&mut self, stop: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        let now = self.clock.now().0;
        self.start = now.saturating_add(self.clock.from_duration(self.load.warmup));
        self.end = self.start.saturating_add(self.clock.from_duration(self.load.duration));
        for _ in 0..self.load.depth {
            self.issue(now)?;
        }
        while self.window.in_flight() > 0 {
            let (_, answer) = self.window.next()?;
            if stop() {
                self.end = self.end.min(self.clock.now().0);
            }
            let busy = Error::Status(self.load.work.operation(), Nfsstat3::Nfs3errJukebox);
            self.take(answer.ok_or(busy)?)?;
        }
        Ok(())
    }

    /// The end of one call is the beginning of the next, so that the clock is read once.
    fn take(&mut self, answer: Answer) -> Result<(), Error> {
        let Answer { began, ended, inline_bytes } = answer;
        let wrong = |problem| Error::misbehaved(self.load.work.operation(), problem);
        self.count(inline_bytes.map_err(wrong)?);
        if ended >= self.end {
            return Ok(());
        }
        let counts = ended >= self.start;
        self.calls_left -= u64::from(counts);
        if self.calls_left == 0 {
            self.end = ended;
        } else {
            self.issue(ended)?;
        }
        // After the next call has left: recording is not part of the round trip.
        if counts {
            self.round_trips.record(self.clock.to_ns(ended - began));
        }
        Ok(())
    }

    fn count(&self, inline_bytes: u64) {
        let (counts, bytes) = (&self.nfs.counts, u64::from(self.load.block_bytes));
        match self.load.work {
            Work::Getattr => {}
            Work::Read => {
                add(&counts.inline_bytes, inline_bytes);
                add(&counts.placed_bytes, bytes - inline_bytes);
            }
            Work::Write(_) => add(&counts.written_bytes, bytes),
        }
    }

    fn issue(&mut self, began: u64) -> Result<(), Error> {
        let (work, clock, count) = (self.load.work, self.clock.clone(), self.load.block_bytes);
        let piece = Piece { offset: self.next_offset, count };
        self.next_offset = (piece.offset + u64::from(count)) % self.span_bytes;
        let (spec, file) = (self.spec()?, self.file);
        let encode = |to: &mut Encoder<'_>| encode(work, file, piece, to);
        let decode = move |from: &mut Decoder<'_>| {
            let ended = clock.now().0;
            let checked = checked(work, count, from)?;
            Ok(checked.map(|inline_bytes| Answer { began, ended, inline_bytes }))
        };
        self.window.start(piece, spec, encode, decode)
    }

    fn spec(&self) -> Result<CallSpec, Error> {
        let Load { work, block_bytes, .. } = *self.load;
        let spec = CallSpec::new().reply_bytes_max(PLAIN_RESULT_BYTES_MAX);
        if work == Work::Getattr {
            return Ok(spec);
        }
        let memory = self.nfs.caller.memory_for_call(block_bytes as usize);
        let memory = memory.map_err(failed(work.operation()))?.ok_or_else(|| {
            Error::Local(format!(
                "no memory for another {block_bytes} bytes: use a smaller --size or --depth"
            ))
        })?;
        Ok(match work {
            Work::Write(_) => spec.argument(memory),
            _ => spec.reply_bytes_max(READ_RESULT_HEAD_BYTES).result_into(memory),
        })
    }
}

fn encode(work: Work, file: &FileHandle, Piece { offset, count }: Piece, to: &mut Encoder<'_>) {
    let file = file.wire();
    match work {
        Work::Getattr => Getattr3args { object: file }.encode(to),
        Work::Read => Read3args { file, offset, count }.encode(to),
        Work::Write(stable) => {
            Write3args { file, offset, count, stable, data: Placed::Beside }.encode(to);
        }
    }
}

type Checked = Result<u64, String>;

fn checked(
    work: Work,
    count: u32,
    from: &mut Decoder<'_>,
) -> Result<Result<Checked, Nfsstat3>, DecodeError> {
    Ok(match work {
        Work::Getattr => outcome::<Getattr3resok>(from)?.map(|_| Ok(0)),
        Work::Read => outcome(from)?.map(|results| check_read(count, &results)),
        Work::Write(stable) => outcome(from)?.map(|results| check_written(count, stable, &results)),
    })
}

fn check_read(wanted: u32, results: &Read3resok<'_>) -> Checked {
    let Read3resok { count, data, .. } = results;
    let length = data.bytes().len();
    if *count != wanted || length != wanted as usize {
        return Err(format!(
            "a count of {count} and {length} bytes of data, of {wanted} requested"
        ));
    }
    Ok(if matches!(data, Placed::Bulk(_)) { 0 } else { wanted.into() })
}

/// Checks that all data were accepted, at least as safely as requested (RFC 1813 section 3.3.7).
fn check_written(asked: u32, stable: StableHow, results: &Write3resok) -> Checked {
    let Write3resok { count, committed, .. } = results;
    let is_safe = *committed as u32 >= stable as u32;
    match *count == asked && is_safe {
        true => Ok(0),
        false => {
            Err(format!("a count of {count} bytes {committed}, of {asked} {stable} requested"))
        }
    }
}
