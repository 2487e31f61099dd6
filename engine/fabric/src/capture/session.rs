//! One capture: where it goes, the ring of each core, and the thread that writes.

use super::super::FabricError;
use super::record::{PATH_MTU_BYTES, RECORD_BYTES, Record};
use super::wire::Payload;
use super::writer::Writer;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::lock;
use crate::sync::ring::{CONTROL_WORDS, Consumer, Producer, RING_SLOTS_MAX, RingPlace, SLOT_WORDS};
use crate::sync::words::{HeapWords, WORD_BYTES};
use crate::sys::clock::Clock;
use crate::sys::journal::event;
use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

const SNAP_BYTES: usize = 64 << 10;

const RING_BYTES: usize = 4 << 20;

/// Slots of the smallest ring: it holds a few packets of full length.
const RING_SLOTS_MIN: usize = 128;

const SLOT_BYTES: usize = SLOT_WORDS * WORD_BYTES;

// Half of a ring holds a record with the payload of a full packet.
const _: () = assert!(RING_SLOTS_MIN / 2 * (SLOT_BYTES - WORD_BYTES) > 2 * PATH_MTU_BYTES);

/// Destination of a capture, and the amount of traffic to keep.
///
/// The output gets one section of pcapng, in pieces and from a dedicated thread. It is flushed
/// whenever all records are written, so that a file can be read while it grows. All that a core
/// noted is written when the core, with the clients it made, is dropped: that waits for it.
pub struct CaptureSink {
    output: Box<dyn Write + Send>,
    snap_bytes: usize,
    ring_bytes: usize,
    counts: Arc<Counts>,
}

impl CaptureSink {
    /// A capture to this file, which only its owner can read, as it has the data of all calls. An
    /// earlier capture of the same user is overwritten, and gets the mode 0600 as well. Blocks while the
    /// file is opened.
    ///
    /// # Errors
    /// It cannot be opened, or it is there and is a symbolic link, has several names, belongs to another
    /// user, or is not a regular file: then someone else has chosen where the capture would go.
    pub fn create(path: &std::path::Path) -> std::io::Result<Self> {
        super::file::create(path).map(Self::new)
    }

    /// A capture into `output`, in large pieces. It may block, as only the capture's own thread
    /// calls it; but the end of a core waits until its records are written.
    pub fn new(output: impl Write + Send + 'static) -> Self {
        Self {
            output: Box::new(output),
            snap_bytes: SNAP_BYTES,
            ring_bytes: RING_BYTES,
            counts: Arc::default(),
        }
    }

    /// Keeps at most `bytes` of the data of one RDMA Read or Write (64 KiB by default). Wireshark
    /// shows the data whole only if all of them are kept. Messages are always kept whole; the
    /// inline threshold bounds them.
    #[must_use]
    pub fn snap_bytes(mut self, bytes: usize) -> Self {
        self.snap_bytes = bytes;
        self
    }

    /// Memory of each core's ring, which holds records not written yet: rounded up to a power of
    /// two from 32 KiB to 16 MiB (4 MiB by default).
    #[must_use]
    pub fn ring_bytes(mut self, bytes: usize) -> Self {
        self.ring_bytes = bytes;
        self
    }

    /// Counters of the capture. They can be read at any time, also after its end.
    pub fn counters(&self) -> CaptureCounters {
        CaptureCounters(Arc::clone(&self.counts))
    }
}

impl fmt::Debug for CaptureSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureSink")
            .field("snap_bytes", &self.snap_bytes)
            .field("ring_bytes", &self.ring_bytes)
            .finish_non_exhaustive()
    }
}

/// Counts of one capture. Clones are the same ones.
#[derive(Clone, Debug)]
pub struct CaptureCounters(Arc<Counts>);

impl CaptureCounters {
    /// Packets written, with those that stand for the making and the end of connections.
    pub fn written(&self) -> u64 {
        self.0.written.load(Ordering::Relaxed)
    }

    /// Packets that are missing because a core's ring was full.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Error of the output, if writing has stopped.
    pub fn failure(&self) -> Option<String> {
        lock(&self.0.failure).clone()
    }
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) written: AtomicU64,
    dropped: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl Counts {
    pub(super) fn fail(&self, why: String) {
        event!(ERROR, ?why, "the capture ends early");
        *lock(&self.failure) = Some(why);
    }
}

/// The connector and every core own it. The last one ends the writer.
pub(super) struct Session {
    snap_bytes: usize,
    ring_slots: u32,
    counts: Arc<Counts>,
    connections: AtomicU32,
    tracks: Mutex<Option<Sender<Track>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Session {
    pub(super) fn new(sink: CaptureSink) -> Result<Self, FabricError> {
        let CaptureSink { output, snap_bytes, ring_bytes, counts } = sink;
        let (tracks, arriving) = channel();
        let for_writer = Arc::clone(&counts);
        let thread = std::thread::Builder::new()
            .name("spinrpc-capture".into())
            .spawn(move || Writer::new(output, arriving, for_writer).run())
            .map_err(|error| failed("no thread to write it", Some(error)))?;
        let slots = ring_bytes.div_ceil(SLOT_BYTES).clamp(RING_SLOTS_MIN, RING_SLOTS_MAX as usize);
        Ok(Self {
            snap_bytes,
            ring_slots: slots.next_power_of_two() as u32,
            counts,
            connections: AtomicU32::new(0),
            tracks: Mutex::new(Some(tracks)),
            thread: Mutex::new(Some(thread)),
        })
    }

    pub(super) fn tape(session: &Arc<Self>, core: usize) -> Result<Tape, FabricError> {
        let (slots, slots_at) = (session.ring_slots, CONTROL_WORDS);
        let place = RingPlace { control: 0, slots_at, slots };
        let words = HeapWords::new(slots_at + slots as usize * SLOT_WORDS);
        let ends = Producer::new(words.clone(), place).zip(Consumer::new(words, place));
        let (ring, consumer) = ends.ok_or_else(|| failed("no ring of that size", None))?;
        let dropped = Arc::new(AtomicU64::new(0));
        let (done, written) = channel();
        let track = Track { core, ring: consumer, dropped: Arc::clone(&dropped), _done: done };
        // A writer that failed has gone and wants no more; it has said so.
        if let Some(tracks) = lock(&session.tracks).as_ref() {
            let _ = tracks.send(track);
        }
        Ok(Tape {
            ring,
            scratch: Box::new([0; RECORD_BYTES + PATH_MTU_BYTES]),
            clock: Clock::shared(),
            untold: 0,
            dropped,
            written,
            session: Arc::clone(session),
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The end of the channel is the signal: no core is left to note anything.
        drop(lock(&self.tracks).take());
        let joined = lock(&self.thread).take().map(JoinHandle::join);
        if let Some(Err(_)) = joined {
            self.counts.fail("the output panicked".to_owned());
        }
    }
}

pub(super) struct Track {
    pub(super) core: usize,
    pub(super) ring: Consumer<HeapWords>,
    pub(super) dropped: Arc<AtomicU64>,
    /// Dropped when all is written, or never will be: the core waits for that.
    pub(super) _done: Sender<()>,
}

impl Track {
    /// The core has ended: its last records are in the ring.
    pub(super) fn is_closed(&self) -> bool {
        self.ring.closed() != 0
    }
}

pub(super) struct Tape {
    ring: Producer<HeapWords>,
    scratch: Box<[u8; RECORD_BYTES + PATH_MTU_BYTES]>,
    clock: Clock,
    /// Packets dropped since the last record.
    untold: u32,
    dropped: Arc<AtomicU64>,
    /// Ends when the writer has written everything.
    written: Receiver<()>,
    session: Arc<Session>,
}

/// Blocks until the core's records are written.
impl Drop for Tape {
    fn drop(&mut self) {
        const ENDED: u64 = 1;
        self.ring.close(ENDED);
        // Nothing is ever sent: the answer is the end of the channel.
        let _ = self.written.recv();
    }
}

impl Tape {
    pub(super) fn snap_bytes(&self) -> usize {
        self.session.snap_bytes
    }

    pub(super) fn next_connection(&self) -> u32 {
        // Relaxed: only that it is unique matters.
        self.session.connections.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn put<P: Payload + ?Sized>(
        &mut self,
        record: Record,
        payload: &P,
        part: Range<usize>,
    ) -> bool {
        let record = Record { ticks: self.clock.now().0, dropped: self.untold, ..record };
        let (head, rest) = self.scratch.split_at_mut(RECORD_BYTES);
        head.copy_from_slice(&record.encode());
        payload.copy_to(part.start, &mut rest[..part.len()]);
        let noted = self.ring.push(None, &self.scratch[..RECORD_BYTES + part.len()]).is_ok();
        if noted {
            self.untold = 0;
        } else {
            self.drop_one();
        }
        noted
    }

    #[cold]
    fn drop_one(&mut self) {
        self.untold = self.untold.saturating_add(1);
        // Relaxed: counts, for people.
        self.dropped.fetch_add(1, Ordering::Relaxed);
        self.session.counts.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

fn failed(reason: &str, source: Option<std::io::Error>) -> FabricError {
    FabricError { op: "start a capture".into(), reason: reason.into(), source }
}
