//! One procedure called repeatedly at a given depth: every reply starts the next call. It has its
//! own connection, so that replies bypass the bookkeeping of [`Caller`].
//!
//! [`Caller`]: super::Caller

use super::round_trips::RoundTrips;
use super::{Error, Files, Nfs, Root, add, connect};
use crate::nfs3::{self, PLAIN_RESULT_BYTES_MAX, READ_RESULT_HEAD_BYTES};
use crate::protocol::{
    FileHandle, Getattr3args, Getattr3resok, ProcedureId, Read3args, Read3resok, StableHow,
    Write3args, Write3resok,
};
use spinrpc::sys::clock::Clock;
use spinrpc::{
    Backpressure, Bulk, CallError, CallSpec, Client, DecodeError, Decoder, Encoder, Reply,
    ReplyHandler, Resend, Token,
};
use spinrpc_xdr::{Decode, Encode, Placed};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

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
        let resend = self.options.resend(load.work.operation());
        let driver = Driver::new(file, load, resend)?;
        let (program, handler) = ((nfs3::PROGRAM, nfs3::VERSION), Handler(Rc::clone(&driver)));
        let client = connect(&self.core, &self.server, program, &self.options, handler)?;
        driver.borrow_mut().start(client.clone());
        self.caller.run_until(|| driver.borrow_mut().turn(stop()));
        client.close();
        self.caller.pause(CLOSE_TIMEOUT, || !client.is_up());
        let mut driver = driver.borrow_mut();
        self.count_load(&driver);
        let loaded = driver.finish()?;
        let began = Instant::now();
        let is_committed = load.work == Work::Write(StableHow::Unstable);
        let commit = is_committed.then(|| self.commit(file)).transpose()?;
        Ok(Loaded { commit: commit.map(|_| began.elapsed()), ..loaded })
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

    fn count_load(&self, driver: &Driver) {
        let Driver { work, replies, block_bytes, .. } = *driver;
        add(&self.counts.calls[work.operation() as usize], replies);
        let bytes = replies * u64::from(block_bytes);
        match work {
            Work::Getattr => {}
            Work::Read => {
                add(&self.counts.inline_bytes, driver.inline_bytes);
                add(&self.counts.placed_bytes, bytes - driver.inline_bytes);
            }
            Work::Write(_) => add(&self.counts.written_bytes, bytes),
        }
    }
}

struct Driver {
    work: Work,
    file: FileHandle,
    block_bytes: u32,
    span_bytes: u64,
    clock: Clock,
    window: Window,
    client: Option<Client>,
    slots: Vec<Slot>,
    /// Slots whose calls could not start for lack of credits or room, oldest first.
    stalled: VecDeque<usize>,
    in_flight: usize,
    next_offset: u64,
    replies: u64,
    inline_bytes: u64,
    round_trips: RoundTrips,
    failure: Option<Error>,
}

/// Replies count from `start` until `end`, in clock ticks.
#[derive(Clone, Copy)]
struct Window {
    start: u64,
    end: u64,
    warmup_ticks: u64,
    ticks: u64,
    calls_left: u64,
}

struct Slot {
    offset: u64,
    spec: CallSpec,
    /// Buffer that a WRITE sends or a READ fills, while no call uses it.
    memory: Option<Bulk>,
    started: u64,
}

impl Driver {
    fn new(file: &FileHandle, load: &Load, resend: Resend) -> Result<Rc<RefCell<Self>>, Error> {
        let clock = Clock::shared();
        let block = u64::from(load.block_bytes);
        let window = Window {
            start: 0,
            end: 0,
            warmup_ticks: clock.from_duration(load.warmup),
            ticks: clock.from_duration(load.duration),
            calls_left: load.calls.unwrap_or(u64::MAX),
        };
        Ok(Rc::new(RefCell::new(Self {
            work: load.work,
            file: *file,
            block_bytes: load.block_bytes,
            // Whole blocks; at least one.
            span_bytes: (load.span_bytes / block * block).max(block),
            clock,
            window,
            client: None,
            slots: (0..load.depth).map(|_| Slot::new(load.work, resend)).collect(),
            stalled: VecDeque::with_capacity(load.depth),
            in_flight: 0,
            next_offset: 0,
            replies: 0,
            inline_bytes: 0,
            round_trips: RoundTrips::new()?,
            failure: None,
        })))
    }

    fn start(&mut self, client: Client) {
        let now = self.clock.now().0;
        self.window.start = now.saturating_add(self.window.warmup_ticks);
        self.window.end = self.window.start.saturating_add(self.window.ticks);
        self.client = Some(client);
        for index in 0..self.slots.len() {
            self.slots[index].started = now;
            self.issue(index);
        }
    }

    fn turn(&mut self, is_stopped: bool) -> bool {
        if is_stopped {
            self.window.end = self.window.end.min(self.clock.now().0);
            self.stalled.clear();
        }
        while let Some(index) = self.stalled.pop_front() {
            if !self.attempt(index) {
                break;
            }
        }
        self.failure.is_some() || (self.in_flight == 0 && self.stalled.is_empty())
    }

    fn finish(&mut self) -> Result<Loaded, Error> {
        // The client is part of what its handler holds.
        self.client = None;
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let round_trips = std::mem::replace(&mut self.round_trips, RoundTrips::new()?);
        let ticks = self.window.end.saturating_sub(self.window.start);
        let elapsed = Duration::from_nanos(self.clock.to_ns(ticks));
        Ok(Loaded { round_trips, elapsed, commit: None })
    }

    #[inline]
    fn issue(&mut self, index: usize) {
        let offset = self.next_offset;
        self.next_offset = (offset + u64::from(self.block_bytes)) % self.span_bytes;
        let Some(client) = &self.client else { return };
        match self.slots[index].prepare(client, self.work, offset, self.block_bytes) {
            Ok(()) => drop(self.attempt(index)),
            Err(error) => self.fail(error),
        }
    }

    #[inline]
    fn attempt(&mut self, index: usize) -> bool {
        let Self { work, ref file, block_bytes, .. } = *self;
        let Some(client) = &self.client else { return false };
        let procedure = nfs3::procedure(work.operation());
        let Slot { offset, spec, .. } = &mut self.slots[index];
        let encode = |to: &mut Encoder<'_>| encode(work, file, *offset, block_bytes, to);
        match client.call(procedure, Token(index as u64), spec, encode) {
            Ok(_) => {
                self.in_flight += 1;
                true
            }
            Err(refused) => {
                self.put_off(index, refused);
                false
            }
        }
    }

    #[cold]
    fn put_off(&mut self, index: usize, refused: Backpressure) {
        match refused.is_transient() {
            true => self.stalled.push_back(index),
            false => self.fail(Error::call(self.work.operation(), refused.into())),
        }
    }

    /// The end of one call is the start of the next, so that the clock is read once.
    #[inline]
    fn on_reply(&mut self, index: usize, reply: Result<Reply<'_>, CallError>) {
        let now = self.clock.now().0;
        self.in_flight -= 1;
        let taken = reply
            .map_err(|source| Error::call(self.work.operation(), source))
            .and_then(|reply| self.slots[index].take(reply, self.work, self.block_bytes));
        match taken {
            Ok(inline_bytes) => self.inline_bytes += inline_bytes,
            Err(error) => return self.fail(error),
        }
        self.replies += 1;
        let started = std::mem::replace(&mut self.slots[index].started, now);
        let Window { start, end, .. } = self.window;
        if now >= end {
            return;
        }
        let counts = now >= start;
        self.window.calls_left -= u64::from(counts);
        if self.window.calls_left == 0 {
            self.window.end = now;
        } else {
            self.issue(index);
        }
        // After the next call has left: recording is not part of the round trip.
        if counts {
            self.round_trips.record(self.clock.to_ns(now - started));
        }
    }

    #[cold]
    fn fail(&mut self, failure: Error) {
        self.failure.get_or_insert(failure);
        self.stalled.clear();
        self.window.end = 0;
    }
}

impl Slot {
    fn new(work: Work, resend: Resend) -> Self {
        let reply_bytes_max = match work {
            Work::Getattr | Work::Write(_) => PLAIN_RESULT_BYTES_MAX,
            Work::Read => READ_RESULT_HEAD_BYTES,
        };
        let spec = CallSpec::new().reply_bytes_max(reply_bytes_max).resend(resend);
        Self { offset: 0, spec, memory: None, started: 0 }
    }

    #[inline]
    fn prepare(&mut self, client: &Client, work: Work, at: u64, count: u32) -> Result<(), Error> {
        if work == Work::Getattr {
            return Ok(());
        }
        self.offset = at;
        let count = count as usize;
        let memory = self.memory.take().or_else(|| client.bulk(count));
        let Some(mut memory) = memory else {
            return Err(Error::Local(format!(
                "no memory for another {count} bytes: use a smaller --size or --depth"
            )));
        };
        memory.set_len(count);
        match work {
            Work::Write(_) => self.spec.add_argument(memory),
            _ => self.spec.add_result_into(memory),
        };
        Ok(())
    }

    /// Returns the bytes of data that arrived in the message instead of the chunk.
    #[inline]
    fn take(&mut self, mut reply: Reply<'_>, work: Work, count: u32) -> Result<u64, Error> {
        match work {
            Work::Getattr => {
                let from = &mut reply.results();
                results::<Getattr3resok>(work.operation(), from).map(|_| 0)
            }
            Work::Read => take_read(&mut self.memory, count, &mut reply.results()),
            Work::Write(stable) => {
                self.memory = reply.take_argument();
                check_written(count, stable, &mut reply.results()).map(|()| 0)
            }
        }
    }
}

fn encode(work: Work, file: &FileHandle, offset: u64, count: u32, to: &mut Encoder<'_>) {
    let file = file.wire();
    match work {
        Work::Getattr => Getattr3args { object: file }.encode(to),
        Work::Read => Read3args { file, offset, count }.encode(to),
        Work::Write(stable) => {
            Write3args { file, offset, count, stable, data: Placed::Beside }.encode(to);
        }
    }
}

fn take_read(memory: &mut Option<Bulk>, wanted: u32, from: &mut Decoder<'_>) -> Result<u64, Error> {
    let operation = ProcedureId::Nfsproc3Read;
    let Read3resok { count, data, .. } = results(operation, from)?;
    let length = data.bytes().len();
    if count != wanted || length != wanted as usize {
        let problem = format!(
            "a count of {count} and {length} bytes of data, of {wanted} \
                               requested"
        );
        return Err(Error::misbehaved(operation, problem));
    }
    match data {
        Placed::Bulk(placed) => {
            *memory = Some(placed);
            Ok(0)
        }
        _ => Ok(wanted.into()),
    }
}

/// Checks that all data were accepted, at least as safely as requested (RFC 1813 section 3.3.7).
fn check_written(asked: u32, stable: StableHow, from: &mut Decoder<'_>) -> Result<(), Error> {
    let operation = ProcedureId::Nfsproc3Write;
    let Write3resok { count, committed, .. } = results(operation, from)?;
    let is_safe = committed as u32 >= stable as u32;
    if count == asked && is_safe {
        return Ok(());
    }
    let problem = format!("a count of {count} bytes {committed}, of {asked} {stable} requested");
    Err(Error::misbehaved(operation, problem))
}

fn results<'a, T: Decode<'a>>(operation: ProcedureId, from: &mut Decoder<'a>) -> Result<T, Error> {
    let outcome = nfs3::outcome(from).map_err(|error| undecodable(operation, error))?;
    outcome.map_err(|status| Error::Status(operation, status))
}

#[cold]
fn undecodable(operation: ProcedureId, error: DecodeError) -> Error {
    Error::call(operation, error.into())
}

/// The engine never runs two handlers of a core at a time, and none within [`Client::call`].
struct Handler(Rc<RefCell<Driver>>);

impl ReplyHandler for Handler {
    #[inline]
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        self.0.borrow_mut().on_reply(token.0 as usize, reply);
    }
}
