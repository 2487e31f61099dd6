//! One call at a time, repeated: the data it sends, the memory it lends, and the expected reply.

use super::program::{
    Check, ECHO, NONE_WRONG, NULL, READ, READ_OFFSETS, READ_STRIDE_BYTES, SERVED_SEED, WRITE,
};
use super::workload::{Operation, Share, Workload};
use crate::failure::Failure;
use crate::pattern::{Mismatch, Verify, check, fill};
use spinrpc::{
    Backpressure, Bulk, CallError, CallSpec, Client, Data, ExposedBulk, ExposedData, Reply, Slab,
    Token,
};

#[derive(Default)]
pub(super) struct Slot {
    parts: Vec<Part>,
    /// Index of the part, which is that of the share in the workload, of the next call.
    pub(super) part: usize,
    is_prepared: bool,
    /// Intended start of the call in flight, in ticks. In a closed loop this is the end of the one before.
    pub(super) started: u64,
    /// Actual start, in an open loop.
    pub(super) sent: u64,
    /// The call counts: it started in the measured time, or in an open loop was to.
    pub(super) counts: bool,
    /// The call has started, and has neither ended nor been given up.
    pub(super) is_pending: bool,
}

struct Part {
    share: Share,
    verify: Verify,
    spec: CallSpec,
    /// Payload of an echo. For a read or write, the data copied to or from exposed memory.
    payload: Vec<u8>,
    /// Source of a write or destination of a read, while no call uses it.
    memory: Option<Memory>,
    keeps_memory: bool,
    /// A call lends memory, or has data of its own.
    needs_preparing: bool,
    /// Source of the memory, if it is not the connection's.
    slab: Option<Slab>,
    seed: u64,
}

enum Memory {
    /// The server cannot write it; its bytes are copied to or from the connection's memory.
    Private(Bulk),
    /// Memory of the connection, with `mem.bulk = lent`.
    Exposed(ExposedBulk),
}

impl Memory {
    fn take(client: &Client, slab: Option<&Slab>, bytes: usize) -> Option<Self> {
        if let Some(slab) = slab {
            return slab.take(bytes).map(Self::Private);
        }
        let exposed = client.exposed_bulk(bytes).map(Self::Exposed);
        exposed.or_else(|| client.bulk(bytes).map(Self::Private))
    }

    fn fill(&mut self, seed: u64, scratch: &mut Vec<u8>) {
        match self {
            Self::Private(bulk) => fill(bulk.bytes_mut(), seed, 0),
            Self::Exposed(bulk) => {
                scratch.resize(bulk.len(), 0);
                fill(scratch, seed, 0);
                bulk.copy_from(0, scratch);
            }
        }
    }
}

impl Slot {
    pub(super) fn new(
        workload: &Workload,
        client: Option<&Client>,
        slab: Option<&Slab>,
    ) -> Result<Self, Failure> {
        let shares = workload.shares();
        // Operations of a mix allocate their memory in turns: there may not be enough for all at
        // once.
        let keeps_memory = shares.len() == 1;
        let part = |share| Part::new(share, workload.verify, keeps_memory, client, slab.cloned());
        let parts = shares.into_iter().map(part).collect::<Result<_, _>>()?;
        Ok(Self { parts, ..Self::default() })
    }

    #[inline]
    pub(super) fn renew(&mut self, seed: u64) {
        let part = &mut self.parts[self.part];
        if part.needs_preparing {
            part.seed = seed;
            self.is_prepared = false;
        }
    }

    /// A call that is rejected is retried unchanged.
    #[inline(always)]
    pub(super) fn call(&mut self, client: &Client, token: Token) -> Result<(), Backpressure> {
        let part = &mut self.parts[self.part];
        // The others in functions of their own: a call without data does not pay for their stack.
        match part.share.op {
            Operation::Null => client.call(NULL, token, &mut part.spec, |_| {}).map(drop),
            Operation::Echo => self.call_echo(client, token),
            Operation::Read | Operation::Write => self.call_bulk(client, token),
        }
    }

    #[inline(never)]
    fn call_echo(&mut self, client: &Client, token: Token) -> Result<(), Backpressure> {
        self.prepare(client)?.echo(client, token)
    }

    #[inline(never)]
    fn call_bulk(&mut self, client: &Client, token: Token) -> Result<(), Backpressure> {
        self.prepare(client)?.call(client, token)
    }

    #[inline]
    fn prepare(&mut self, client: &Client) -> Result<&mut Part, Backpressure> {
        let part = &mut self.parts[self.part];
        if !self.is_prepared {
            part.prepare(client)?;
            self.is_prepared = true;
        }
        Ok(part)
    }

    #[inline]
    pub(super) fn take_reply(
        &mut self,
        reply: &mut Result<Reply<'_>, CallError>,
    ) -> Result<(), Failure> {
        match reply {
            Ok(reply) => self.parts[self.part].take_reply(reply),
            Err(error) => Err(call_failed(self.parts[self.part].share.op, error)),
        }
    }

    #[inline]
    pub(super) fn ended<T>(&self, reply: Result<T, CallError>) -> Result<T, Failure> {
        reply.map_err(|error| call_failed(self.parts[self.part].share.op, &error))
    }

    #[cold]
    pub(super) fn no_memory(&self) -> Failure {
        let Share { op, call_bytes, reply_bytes, .. } = self.parts[self.part].share;
        Failure::Measurement(format!(
            "a connection has too little memory for one {} call of {call_bytes} bytes with a reply \
             of {reply_bytes}: lower --size, or raise mem.conn_arena_mib and mem.arena_mib in the \
             profile",
            op.name()
        ))
    }
}

impl Part {
    fn new(
        share: Share,
        verify: Verify,
        keeps_memory: bool,
        client: Option<&Client>,
        slab: Option<Slab>,
    ) -> Result<Self, Failure> {
        let Share { op, call_bytes, reply_bytes, .. } = share;
        let (mut spec, mut payload, mut memory) = (CallSpec::short(), Vec::new(), None);
        match op {
            Operation::Null => {}
            Operation::Echo => {
                payload = vec![0; call_bytes];
                fill(&mut payload, 0, 0);
                spec = CallSpec::new().reply_bytes_max(ECHO_RESULT_BYTES + reply_bytes);
            }
            Operation::Read | Operation::Write if !keeps_memory => {}
            Operation::Read | Operation::Write => {
                let take = |client| Memory::take(client, slab.as_ref(), call_bytes);
                let taken = client.and_then(take);
                let mut taken = taken.ok_or_else(|| too_little(call_bytes))?;
                taken.fill(0, &mut payload);
                memory = Some(taken);
            }
        }
        let needs_preparing = op.is_bulk() || verify != Verify::Off;
        Ok(Self {
            share,
            verify,
            spec,
            payload,
            memory,
            keeps_memory,
            needs_preparing,
            slab,
            seed: 0,
        })
    }

    #[inline]
    fn prepare(&mut self, client: &Client) -> Result<(), Backpressure> {
        if self.share.op != Operation::Null {
            self.seed = Check::new(self.verify, self.seed).seed;
        }
        match self.share.op {
            Operation::Null => {}
            Operation::Echo => fill(&mut self.payload, self.seed, 0),
            Operation::Read => match self.take_memory(client)? {
                Memory::Private(mut bulk) => {
                    bulk.set_len(self.share.call_bytes);
                    self.spec.add_result_into(bulk);
                }
                Memory::Exposed(mut bulk) => {
                    bulk.set_len(self.share.call_bytes);
                    self.spec.add_exposed_result_into(bulk);
                }
            },
            Operation::Write => {
                let mut memory = self.take_memory(client)?;
                if self.verify != Verify::Off {
                    memory.fill(self.seed, &mut self.payload);
                }
                match memory {
                    Memory::Private(bulk) => self.spec.add_argument(bulk),
                    Memory::Exposed(bulk) => self.spec.add_exposed_argument(bulk),
                };
            }
        }
        Ok(())
    }

    fn take_memory(&mut self, client: &Client) -> Result<Memory, Backpressure> {
        let (bytes, slab) = (self.share.call_bytes, self.slab.as_ref());
        let other = || Memory::take(client, slab, bytes).ok_or(Backpressure::NoBuffer);
        self.memory.take().map_or_else(other, Ok)
    }

    #[inline]
    fn keep(&mut self, memory: Option<Memory>) {
        self.memory = memory.filter(|_| self.keeps_memory);
    }

    #[inline]
    fn echo(&mut self, client: &Client, token: Token) -> Result<(), Backpressure> {
        let check = Check::new(self.verify, self.seed);
        let started = client.call(ECHO, token, &mut self.spec, |args| {
            args.u32(self.share.reply_bytes as u32);
            args.u32(check.to_wire());
            args.opaque(&self.payload);
        });
        started.map(drop)
    }

    fn call(&mut self, client: &Client, token: Token) -> Result<(), Backpressure> {
        let Share { op, call_bytes, .. } = self.share;
        let check = Check::new(self.verify, self.seed);
        let started = match op {
            Operation::Read => client.call(READ, token, &mut self.spec, |args| {
                args.u32(read_offset(self.seed) as u32);
                args.u32(call_bytes as u32);
            }),
            _ => client.call(WRITE, token, &mut self.spec, |args| {
                args.u32(check.to_wire());
                args.bulk();
            }),
        };
        started.map(drop)
    }

    #[inline]
    fn take_reply(&mut self, reply: &mut Reply<'_>) -> Result<(), Failure> {
        match self.share.op {
            Operation::Null => Ok(()),
            Operation::Echo => self.take_echo(reply),
            Operation::Read => self.take_read(reply),
            Operation::Write => self.take_write(reply),
        }
    }

    fn take_echo(&mut self, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let Share { op, call_bytes, reply_bytes, .. } = self.share;
        let mut results = reply.results();
        let wrong_at = results.u32().map_err(|error| garbled(op, &error))?;
        let data = results.opaque(reply_bytes).map_err(|error| garbled(op, &error))?;
        self.check_sent(wrong_at)?;
        let seed = if reply_bytes <= call_bytes { self.seed } else { SERVED_SEED };
        Ok(check(data, reply_bytes, seed, 0, self.verify)?)
    }

    fn take_read(&mut self, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let Share { op, call_bytes, .. } = self.share;
        let data = reply.results().exposed_data(call_bytes).map_err(|error| garbled(op, &error))?;
        let at = read_offset(self.seed);
        let bulk = match data {
            ExposedData::Exposed(bulk) => return self.take_exposed(bulk, at),
            ExposedData::Private(data) => data,
        };
        let checked = check(bulk.bytes(), call_bytes, SERVED_SEED, at, self.verify);
        if let Data::Bulk(memory) = bulk {
            self.keep(Some(Memory::Private(memory)));
        }
        Ok(checked?)
    }

    /// Checks data read into exposed memory, in a copy if its bytes are to be verified.
    fn take_exposed(&mut self, bulk: ExposedBulk, at: u64) -> Result<(), Failure> {
        let call_bytes = self.share.call_bytes;
        let checked = if self.verify == Verify::Off {
            let (index, length) = (bulk.len() as u64, call_bytes as u64);
            let is_whole = index == length;
            is_whole.then_some(()).ok_or(Mismatch { index, length, seed: SERVED_SEED })
        } else {
            self.payload.resize(bulk.len(), 0);
            bulk.copy_to(0, &mut self.payload);
            check(&self.payload, call_bytes, SERVED_SEED, at, self.verify)
        };
        self.keep(Some(Memory::Exposed(bulk)));
        Ok(checked?)
    }

    fn take_write(&mut self, reply: &mut Reply<'_>) -> Result<(), Failure> {
        let Share { op, call_bytes, .. } = self.share;
        let mut results = reply.results();
        let wrong_at = results.u32().map_err(|error| garbled(op, &error))?;
        let count = results.u32().map_err(|error| garbled(op, &error))?;
        let private = reply.take_argument().map(Memory::Private);
        let memory = private.or_else(|| reply.take_exposed_argument().map(Memory::Exposed));
        self.keep(memory);
        if count as usize != call_bytes {
            let (index, length) = (u64::from(count), call_bytes as u64);
            return Err(Mismatch { index, length, seed: self.seed }.into());
        }
        self.check_sent(wrong_at)
    }

    fn check_sent(&self, wrong_at: u32) -> Result<(), Failure> {
        if wrong_at == NONE_WRONG {
            return Ok(());
        }
        let length = self.share.call_bytes as u64;
        Err(Mismatch { index: u64::from(wrong_at), length, seed: self.seed }.into())
    }
}

/// Start of the data of a verified read; unverified reads have seed 0 and start at 0.
fn read_offset(seed: u64) -> u64 {
    seed % READ_OFFSETS * READ_STRIDE_BYTES
}

fn too_little(bytes: usize) -> Failure {
    Failure::Measurement(format!(
        "the connection has less than {bytes} bytes left for bulk data: lower --size or --depth, or \
         raise mem.conn_arena_mib and mem.arena_mib in the profile"
    ))
}

fn call_failed(op: Operation, error: &CallError) -> Failure {
    Failure::Measurement(format!("{} call failed: {error}", op.name()))
}

fn garbled(op: Operation, error: &spinrpc::DecodeError) -> Failure {
    Failure::Measurement(format!("malformed results of {}: {error}", op.name()))
}

/// `wrong_at`, the count of the data, and padding.
const ECHO_RESULT_BYTES: usize = 12;
