//! blocks: a server of volumes in memory, and a client that checks them. The largest example of the guide.
//!
//! | procedure | arguments | results |
//! |---|---|---|
//! | INFO | – | `u64`: blocks of each volume |
//! | READ | `u32`: volume; `u64`: first block; `u32`: number of blocks | status; if it is 0, `opaque<>` for each block |
//! | WRITE | `u32`: volume; `u64`: first block; `opaque<>`: blocks, one after the other | status |
//! | FLUSH | – | status; 0 when all blocks written before are in the file |

#[cfg(test)]
mod tests;

use clap::Parser;
use signal_hook::{consts::SIGINT, consts::SIGTERM, iterator::Signals};
use spinrpc::{
    AcceptStatus, Call, CallSpec, ClientHandle, Config, ConnectOptions, DecodeError, Decoder,
    Deferred, Engine, ListenOptions, PendingCall, Procedure, Program, ReplyData, Service,
    SharedBulk, Slab, SlabLayout, Version, driver_of, spawn_helper,
};
use spinrpc_apps::command_line::{self, say};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant, UNIX_EPOCH};
use std::{fs::File, mem};

const PROGRAM: Program = Program(0x2000_b10c);
const VERSION: Version = Version(1);
const NULL: Procedure = Procedure(0);
const INFO: Procedure = Procedure(1);
const READ: Procedure = Procedure(2);
const WRITE: Procedure = Procedure(3);
const FLUSH: Procedure = Procedure(4);
const BLOCK_BYTES: usize = 16 << 10;
/// Blocks of one call. Each block of a READ is a data item of its own, and a call has at most four.
const BLOCKS_MAX: usize = 4;
const VOLUMES: usize = 4;
/// Blocks beyond those of the volumes, for new data while replies, or the flusher, still have the old.
const SPARE_BLOCKS: usize = 1024;
/// Calls of a client in flight.
const CALLS_MAX: usize = 32;
/// Time to connect, and for the last FLUSH and the last replies of a server.
const PATIENCE: Duration = Duration::from_secs(10);
type Failure = Box<dyn std::error::Error>;

/// Status of a reply that did not do what it was asked to; success is 0.
#[derive(Clone, Copy)]
enum Status {
    Invalid = 1,      // arguments of another form, or a part of a block
    NoSuchBlocks = 2, // none, more than four, or not all in the volume
    Busy = 3,         // no spare block is free, and only the first blocks may be written: try again
    Disk = 4,
}

impl From<DecodeError> for Status {
    fn from(_: DecodeError) -> Self {
        Self::Invalid
    }
}

fn check_status(status: u32) -> Result<(), Failure> {
    let meanings = "1 invalid arguments, 2 no such blocks, 3 busy, 4 disk error";
    let refused = || Err(format!("the server answers status {status} ({meanings})").into());
    if status == 0 { Ok(()) } else { refused() }
}

/// The server. One core has all blocks, so they need no locks.
#[derive(Clone)]
struct Volumes {
    volume_blocks: usize,
    slab: Slab,
    /// One volume after the other. Blocks are replaced, never changed: replies and the flusher share them.
    blocks: Vec<SharedBulk>,
    changed: Changed,
    flusher: mpsc::Sender<(Changed, Deferred)>,
}

/// Blocks written since the last FLUSH, by index.
type Changed = BTreeMap<usize, SharedBulk>;

impl Volumes {
    /// Makes `engine` serve volumes of zeros, of `volume_blocks` each, at an address. It has one core.
    fn serve(engine: &Engine, at: &str, volume_blocks: usize, file: File) -> Result<(), Failure> {
        let count = VOLUMES * volume_blocks;
        let layout = SlabLayout::new().block_bytes(BLOCK_BYTES).blocks(count + SPARE_BLOCKS);
        let slab = engine.slab(layout)?;
        let mut zeros = slab.take(BLOCK_BYTES).ok_or("no block for zeros")?;
        zeros.bytes_mut().fill(0);
        let (blocks, changed) = (vec![zeros.freeze(); count], Changed::new());
        // Each entry of the queue has a deferred call, whose number the engine limits.
        let (flusher, jobs) = mpsc::channel();
        spawn_helper("flusher", move || run_flusher(&file, &jobs))?;
        let volumes = Self { volume_blocks, slab: slab.clone(), blocks, changed, flusher };
        engine.serve(PROGRAM, VERSION, move |_core| volumes.clone())?;
        // Clients copy blocks out of this memory. They see all of it, and each may read all of it anyway.
        Ok(engine.listen_with(at, &ListenOptions::new().lend(&slab))?)
    }

    /// Indices of blocks that a client names: no number of a client goes further than this.
    fn range(&self, volume: u32, first: u64, count: usize) -> Result<Range<usize>, Status> {
        let (volume, first) = (volume as usize, first as usize);
        let end = first.checked_add(count).filter(|end| *end <= self.volume_blocks);
        let (Some(end), 0..VOLUMES, 1..=BLOCKS_MAX) = (end, volume, count) else {
            return Err(Status::NoSuchBlocks);
        };
        let start = volume * self.volume_blocks;
        Ok(start + first..start + end)
    }

    /// The blocks go out of the memory that they are in.
    fn read(&self, mut args: Decoder<'_>) -> Result<(ReplyData, usize), Status> {
        let (volume, first, count) = (args.u32()?, args.u64()?, args.u32()? as usize);
        args.finish()?;
        let blocks = &self.blocks[self.range(volume, first, count)?];
        let share = |data: ReplyData, block| data.shared(block, 0..BLOCK_BYTES);
        Ok((blocks.iter().fold(ReplyData::new(), share), count))
    }

    /// Blocks are copied once: the memory that arguments arrive in is for all calls of the core, and not lent.
    fn write(&mut self, mut args: Decoder<'_>) -> Result<(), Status> {
        let (volume, first) = (args.u32()?, args.u64()?);
        let data = args.data(BLOCKS_MAX * BLOCK_BYTES)?;
        args.finish()?;
        let blocks = data.bytes().chunks_exact(BLOCK_BYTES);
        if !blocks.remainder().is_empty() {
            return Err(Status::Invalid);
        }
        let range = self.range(volume, first, blocks.len())?;
        for (index, bytes) in range.zip(blocks) {
            let mut block = self.slab.take(BLOCK_BYTES).ok_or(Status::Busy)?;
            block.bytes_mut().copy_from_slice(bytes);
            self.blocks[index] = block.freeze();
            self.changed.insert(index, self.blocks[index].clone());
        }
        Ok(())
    }
}

impl Service for Volumes {
    fn call(&mut self, mut call: Call<'_>) {
        match call.procedure() {
            NULL => call.reply(|_results| {}),
            INFO => call.reply(|results| results.u64(self.volume_blocks as u64)),
            READ => match self.read(call.args()) {
                Ok((data, count)) => call.reply_with(data, |results| {
                    results.u32(0);
                    (0..count).for_each(|_| results.bulk());
                }),
                Err(status) => call.reply(|results| results.u32(status as u32)),
            },
            WRITE => {
                let status = self.write(call.args()).map_or_else(|status| status as u32, |()| 0);
                call.reply(|results| results.u32(status));
            }
            // A call that cannot be deferred, or finds no flusher, is answered with SYSTEM_ERR.
            FLUSH => {
                let send = |call| drop(self.flusher.send((mem::take(&mut self.changed), call)));
                call.defer().into_iter().for_each(send);
            }
            _ => call.reject(AcceptStatus::ProcUnavail),
        }
    }
}

/// Runs on a thread of its own: a disk must not hold up a core. Ends with the engine.
fn run_flusher(file: &File, jobs: &mpsc::Receiver<(Changed, Deferred)>) {
    // Blocks that a FLUSH could not write are written by the next one.
    let mut unwritten = Changed::new();
    for (mut changed, call) in jobs {
        unwritten.append(&mut changed);
        let write = |(index, block): (&usize, &SharedBulk)| {
            file.write_all_at(block.bytes(), (index * BLOCK_BYTES) as u64)
        };
        let written = unwritten.iter().try_for_each(write).and_then(|()| file.sync_data());
        let written = written.map(|()| unwritten.clear());
        let written = written.inspect_err(|error| eprintln!("blocks: flush: {error}"));
        call.reply(|results| results.u32(written.map_or(Status::Disk as u32, |()| 0)));
    }
}

/// The client of one volume.
struct Volume {
    client: ClientHandle,
    slab: Slab,
    number: u32,
    blocks: u64,
    seed: u64,
}

impl Volume {
    fn open(engine: &Engine, at: &str, number: u32, seed: u64) -> Result<Self, Failure> {
        // A block takes the argument of a WRITE, or one of the results of a READ.
        let layout = SlabLayout::new().block_bytes(BLOCKS_MAX * BLOCK_BYTES);
        let slab = engine.slab(layout.blocks(BLOCKS_MAX * CALLS_MAX))?;
        let client = engine.connect(0, at, PROGRAM, VERSION, &ConnectOptions::new().lend(&slab))?;
        client.wait_up(PATIENCE)?;
        let blocks = client.call(INFO, |_args| {}, |results| results.u64())?;
        Ok(Self { client, slab, number, blocks, seed })
    }

    /// Calls READ or WRITE for all blocks, with [`CALLS_MAX`] calls in flight. They are taken up in order.
    fn for_all(&self, procedure: Procedure) -> Result<(), Failure> {
        let mut calls = VecDeque::with_capacity(CALLS_MAX);
        for first in (0..self.blocks).step_by(BLOCKS_MAX) {
            if calls.len() == CALLS_MAX {
                calls.pop_front().map_or(Ok(()), |call| self.finish(call))?;
            }
            calls.push_back((procedure, first, self.start(procedure, first)?));
        }
        calls.into_iter().try_for_each(|call| self.finish(call))
    }

    fn start(&self, procedure: Procedure, first: u64) -> Result<PendingCall, Failure> {
        let mut spec = CallSpec::short();
        if procedure == WRITE {
            let mut data = self.slab.take(BLOCKS_MAX * BLOCK_BYTES).ok_or("no memory")?;
            let words = data.bytes_mut().chunks_exact_mut(8).zip(self.words(first));
            words.for_each(|(bytes, word)| bytes.copy_from_slice(&word));
            spec.add_argument(data);
        }
        for _ in (0..BLOCKS_MAX).filter(|_| procedure == READ) {
            spec.add_result_into(self.slab.take(BLOCK_BYTES).ok_or("no memory")?);
        }
        Ok(self.client.start(procedure, spec, |args| {
            args.u32(self.number);
            args.u64(first);
            if procedure == WRITE { args.bulk() } else { args.u32(BLOCKS_MAX as u32) }
        })?)
    }

    fn finish(&self, (procedure, at, call): (Procedure, u64, PendingCall)) -> Result<(), Failure> {
        let mut answer = call.wait()?;
        let mut results = answer.results();
        check_status(results.u32()?)?;
        for block in (at..at + BLOCKS_MAX as u64).filter(|_| procedure == READ) {
            let data = results.data(BLOCK_BYTES)?;
            if !data.bytes().chunks(8).eq(self.words(block).take(BLOCK_BYTES / 8)) {
                return Err(format!("block {block} is not as written").into());
            }
        }
        Ok(results.finish()?)
    }

    /// The content from a block on: no two words of a volume are alike, nor those of two clients.
    fn words(&self, block: u64) -> impl Iterator<Item = [u8; 8]> {
        (block * (BLOCK_BYTES as u64 / 8)..).map(|word| (word ^ self.seed).to_le_bytes())
    }
}

/// Serve four volumes of blocks of 16 KiB, or check such a server, as in `blocks check shm:blocks 3`.
#[derive(Parser)]
#[command(name = "blocks")]
enum Command {
    /// Serve volumes of zeros at ADDRESS (shm:NAME, rdma://HOST:PORT). A FLUSH writes to FILE, which is replaced.
    Serve {
        address: String,
        file: PathBuf,
        /// Memory of the volumes together, in MiB; 16 MiB more are for replaced blocks
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
        memory_mib: u32,
    },
    /// Write all blocks of VOLUME (0 to 3), read and compare them, and flush.
    Check { address: String, volume: u32 },
}

fn main() -> ExitCode {
    command_line::run(|command| match command {
        Command::Serve { address, file, memory_mib } => serve(&address, &file, memory_mib as usize),
        Command::Check { address, volume } => check(&address, volume),
    })
}

fn serve(address: &str, file: &Path, memory_mib: usize) -> Result<(), Failure> {
    let engine = Engine::new(Config::default().with_driver(driver_of(address)?)?)?;
    let volume_blocks = (memory_mib << 20) / BLOCK_BYTES / VOLUMES;
    let file = File::create(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Volumes::serve(&engine, address, volume_blocks, file)?;
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let running = engine.start()?;
    say(format_args!("listening on {address}"))?;
    spawn_helper("signals", move || signals.forever().next().map(|_| engine.drain(PATIENCE)))?;
    Ok(running.join()?)
}

fn check(address: &str, number: u32) -> Result<(), Failure> {
    let engine = Engine::new(Config::default().with_driver(driver_of(address)?)?)?;
    let running = engine.start()?;
    let volume = Volume::open(&engine, address, number, UNIX_EPOCH.elapsed()?.as_nanos() as u64)?;
    for (verb, procedure) in [("wrote", WRITE), ("read and compared", READ)] {
        let begin = Instant::now();
        volume.for_all(procedure)?;
        say(format_args!("{verb} {} blocks in {:?}", volume.blocks, begin.elapsed()))?;
    }
    check_status(volume.client.call(FLUSH, |_args| {}, |results| results.u32())?)?;
    engine.shutdown();
    Ok(running.join()?)
}
