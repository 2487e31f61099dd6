//! The program under test: one procedure for each kind of answer.

use super::prelude::*;
use std::collections::VecDeque;

pub(crate) const NULL: Procedure = Procedure(0);
/// `opaque` in, the same out.
pub(crate) const ECHO: Procedure = Procedure(1);
pub(crate) const MIX: Procedure = Procedure(2);
/// Dropped without an answer.
pub(crate) const DROP: Procedure = Procedure(3);
/// Answered with SYSTEM_ERR.
pub(crate) const FAIL: Procedure = Procedure(4);
/// Identity of the caller: flavor and body of the credential.
pub(crate) const WHO: Procedure = Procedure(5);
/// `u32` bytes in; how many such blocks the core's memory has left out.
pub(crate) const FREE_BLOCKS: Procedure = Procedure(6);
/// Deferred: goes to [`Shared::deferred`] with its first argument.
pub(crate) const LATER: Procedure = Procedure(7);
/// `u32` length in; that much of the memory that all replies share out.
pub(crate) const SHARED: Procedure = Procedure(8);
/// A data item in; it comes back as a data item from the memory it was received in.
pub(crate) const BOUNCE: Procedure = Procedure(9);

/// A data item in; its registered memory stays in [`Shared::kept`].
pub(crate) const KEEP: Procedure = Procedure(10);

/// Longest item of any procedure.
pub(crate) const ITEM_MAX: usize = 4 << 20;
/// Bytes of the memory that [`SHARED`] sends from, and the seed of its pattern.
pub(crate) const SHARED_BYTES: usize = 1 << 20;
pub(crate) const SHARED_SEED: u32 = 77;

/// State of the program that the test can see.
#[derive(Default)]
pub(crate) struct Shared {
    /// Deferred calls with their first argument, in the order of arrival.
    pub(crate) deferred: Mutex<VecDeque<(u32, Deferred)>>,
    /// Calls that could not be deferred.
    pub(crate) defer_refused: AtomicU64,
    /// True if clients may be left to fetch replies.
    pub(crate) read_chunks: AtomicBool,
    pub(crate) calls: AtomicU64,
    /// Memory of arguments that the program has not given back.
    pub(crate) kept: Mutex<Vec<Bulk>>,
    /// Run once on the core's thread, with the next event of a connection.
    pub(crate) on_core: Mutex<Option<fn()>>,
    pub(crate) events: Mutex<Vec<ConnectionEvent>>,
}

impl Shared {
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.deferred).len()
    }

    pub(crate) fn pop(&self) -> Option<(u32, Deferred)> {
        lock(&self.deferred).pop_front()
    }

    /// Answers every deferred call with its number.
    pub(crate) fn answer_all(&self) {
        while let Some((number, deferred)) = self.pop() {
            deferred.reply(|results| results.u32(number));
        }
    }

    pub(crate) fn answer_all_with_nothing(&self) {
        while let Some((_, deferred)) = self.pop() {
            deferred.reply(|_| {});
        }
    }

    pub(crate) fn last_down(&self) -> Option<DownCause> {
        let events = lock(&self.events);
        events.iter().rev().find_map(|event| match event {
            ConnectionEvent::Down { cause, .. } => Some(cause.clone()),
            _ => None,
        })
    }

    pub(crate) fn downs(&self) -> usize {
        let events = lock(&self.events);
        events.iter().filter(|event| matches!(event, ConnectionEvent::Down { .. })).count()
    }
}

pub(crate) struct TestProgram {
    context: CoreContext,
    shared: Arc<Shared>,
    block: Option<SharedBulk>,
}

impl TestProgram {
    pub(crate) fn new(context: CoreContext, shared: Arc<Shared>) -> Self {
        Self { context, shared, block: None }
    }

    fn free_blocks(&self, call: Call<'_>, bytes: usize) {
        let blocks: Vec<_> = std::iter::from_fn(|| self.context.bulk(bytes)).collect();
        call.reply(|results| results.u32(blocks.len() as u32));
    }

    fn defer(&self, call: Call<'_>, number: u32) {
        match call.defer() {
            Some(deferred) => lock(&self.shared.deferred).push_back((number, deferred)),
            None => drop(self.shared.defer_refused.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn share(&mut self, call: Call<'_>, length: usize) {
        let block = self.block.get_or_insert_with(|| {
            let mut bulk = self.context.bulk(SHARED_BYTES).unwrap();
            fill_pattern(SHARED_SEED, bulk.bytes_mut());
            bulk.freeze()
        });
        let mut data = ReplyData::new().shared(block, 0..length.min(SHARED_BYTES));
        if self.shared.read_chunks.load(Ordering::Relaxed) {
            data = data.allow_read_chunks();
        }
        call.reply_with(data, |results| results.bulk());
    }

    fn bounce(call: Call<'_>, item: Data<'_>) {
        match item {
            Data::Bulk(bulk) => {
                call.reply_with(ReplyData::new().bulk(bulk), |results| results.bulk());
            }
            Data::Inline(bytes) => call.reply(|results| results.opaque(bytes)),
        }
    }

    fn echo(&self, call: Call<'_>, bytes: &[u8]) {
        if self.shared.read_chunks.load(Ordering::Relaxed) {
            let data = ReplyData::new().allow_read_chunks();
            return call.reply_with(data, |results| results.opaque(bytes));
        }
        call.reply(|results| results.opaque(bytes));
    }

    fn answer(&mut self, call: Call<'_>, ask: Ask<'_>) {
        match ask {
            Ask::Null => call.reply(|_| {}),
            Ask::Echo(bytes) => self.echo(call, bytes),
            Ask::Mix(mix) => {
                let read_chunks = self.shared.read_chunks.load(Ordering::Relaxed);
                mix.answer(call, &self.context, read_chunks);
            }
            Ask::Drop => drop(call),
            Ask::Fail => call.reject(AcceptStatus::SystemErr),
            Ask::Who => tell_who(call),
            Ask::FreeBlocks(bytes) => self.free_blocks(call, bytes),
            Ask::Later(number) => self.defer(call, number),
            Ask::Shared(length) => self.share(call, length),
            Ask::Bounce(item) => Self::bounce(call, item),
            Ask::Keep(bulk) => {
                lock(&self.shared.kept).push(bulk);
                call.reply(|_| {});
            }
            Ask::Unknown => call.reject(AcceptStatus::ProcUnavail),
        }
    }
}

fn tell_who(call: Call<'_>) {
    let credential = call.credential();
    call.reply(|results| {
        results.u32(credential.flavor.to_wire());
        results.opaque(credential.body);
    });
}

enum Ask<'a> {
    Null,
    Echo(&'a [u8]),
    Mix(Mix),
    Drop,
    Fail,
    Who,
    FreeBlocks(usize),
    Later(u32),
    Shared(usize),
    Bounce(Data<'a>),
    Keep(Bulk),
    Unknown,
}

impl<'a> Ask<'a> {
    fn read(call: &mut Call<'a>) -> Result<Self, DecodeError> {
        let mut args = call.args();
        let ask = match call.procedure() {
            NULL => Self::Null,
            ECHO => Self::Echo(args.opaque(ITEM_MAX)?),
            MIX => Self::Mix(Mix::read(&mut args)?),
            DROP => Self::Drop,
            FAIL => Self::Fail,
            WHO => Self::Who,
            FREE_BLOCKS => Self::FreeBlocks(args.u32()? as usize),
            LATER => Self::Later(args.u32()?),
            SHARED => Self::Shared(args.u32()? as usize),
            BOUNCE => Self::Bounce(args.data(ITEM_MAX)?),
            KEEP => match args.data(ITEM_MAX)? {
                Data::Bulk(bulk) => Self::Keep(bulk),
                Data::Inline(_) => return Err(DecodeError::LimitExceeded { what: "too short" }),
            },
            _ => return Ok(Self::Unknown),
        };
        args.finish().map(|()| ask)
    }
}

impl Service for TestProgram {
    fn call(&mut self, mut call: Call<'_>) {
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        match Ask::read(&mut call) {
            Ok(ask) => self.answer(call, ask),
            Err(_) => call.reject(AcceptStatus::GarbageArgs),
        }
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        if let Some(run) = lock(&self.shared.on_core).take() {
            run();
        }
        lock(&self.shared.events).push(event.clone());
    }
}

/// A call with any number of data items each way.
///
/// Arguments: `seed, n, n data items, m, m lengths, length of the tail`. Item `i` of the arguments
/// is the pattern of `seed + i`, that of the results of `seed + 100 + i`, the tail, an opaque that
/// is never placed, of `seed + 200`. Results: bits of the arguments that came in registered memory,
/// `m, m data items`, tail.
pub(crate) struct Mix {
    pub(crate) seed: u32,
    pub(crate) in_memory: u32,
    pub(crate) lengths: Vec<usize>,
    pub(crate) tail: usize,
}

impl Mix {
    pub(crate) fn read(args: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let seed = args.u32()?;
        let mut in_memory = 0;
        for index in 0..args.u32()? {
            let item = args.data(ITEM_MAX)?;
            in_memory |= u32::from(matches!(item, Data::Bulk(_))) << index;
            if !is_pattern(seed + index, item.bytes()) {
                return Err(DecodeError::LimitExceeded { what: "wrong bytes" });
            }
        }
        let lengths =
            (0..args.u32()?).map(|_| args.u32().map(|n| n as usize)).collect::<Result<_, _>>()?;
        Ok(Self { seed, in_memory, lengths, tail: args.u32()? as usize })
    }

    fn answer(self, call: Call<'_>, context: &CoreContext, read_chunks: bool) {
        let Some(mut data) = self.items(context) else {
            return call.reject(AcceptStatus::SystemErr);
        };
        if read_chunks {
            data = data.allow_read_chunks();
        }
        call.reply_with(data, |results| self.encode(results));
    }

    pub(crate) fn encode(&self, results: &mut Encoder<'_>) {
        results.u32(self.in_memory);
        results.u32(self.lengths.len() as u32);
        self.lengths.iter().for_each(|_| results.bulk());
        results.opaque(&super::pattern(self.seed + 200, self.tail));
    }

    /// The items of the results; `None` if one did not get memory.
    pub(crate) fn items(&self, context: &CoreContext) -> Option<ReplyData> {
        let mut data = ReplyData::new();
        for (index, length) in self.lengths.iter().enumerate() {
            let mut bulk = context.bulk(*length)?;
            fill_pattern(self.seed + 100 + index as u32, bulk.bytes_mut());
            data = data.bulk(bulk);
        }
        Some(data)
    }
}
