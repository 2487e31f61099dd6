//! The thread that writes the records of the cores to a file, in the order of time.

use super::frame::{self, Ends};
use super::management;
use super::pcapng::{self, Packet};
use super::record::{Kind, PATH_MTU_BYTES, RECORD_BYTES, Record};
use super::session::{Counts, Track};
use crate::sync::atomic::Ordering;
use crate::sys::clock::Clock;
use crate::sys::journal::event;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, SystemTime};

/// Time that the writer rests when all is written. The cores do not wake it, because that would
/// take a system call on a core.
const REST: Duration = Duration::from_millis(1);

/// Records between two checks for cores that start and end, which must not wait for a pause.
const ROUND_RECORDS: usize = 4096;

const OUTPUT_BYTES: usize = 256 << 10;

pub(super) struct Writer {
    output: BufWriter<Box<dyn Write + Send>>,
    arriving: Receiver<Track>,
    interfaces: Vec<Interface>,
    time: TimeBase,
    counts: Arc<Counts>,
    warned: bool,
    block: Vec<u8>,
    frame: Vec<u8>,
}

struct Interface {
    core: usize,
    /// Until the core has ended.
    track: Option<Track>,
    /// The core had ended when this round began: its last records are in the ring.
    closing: bool,
    /// The next record, out of the ring, and the bytes of its payload.
    next: Option<(Record, usize)>,
    payload: Box<[u8; RECORD_BYTES + PATH_MTU_BYTES]>,
    written: u64,
}

impl Writer {
    pub(super) fn new(
        output: Box<dyn Write + Send>,
        arriving: Receiver<Track>,
        counts: Arc<Counts>,
    ) -> Self {
        Self {
            output: BufWriter::with_capacity(OUTPUT_BYTES, output),
            arriving,
            interfaces: Vec::new(),
            time: TimeBase::now(),
            counts,
            warned: false,
            block: Vec::new(),
            frame: Vec::new(),
        }
    }

    pub(super) fn run(mut self) {
        if let Err(error) = self.write_all() {
            self.counts.fail(error.to_string());
        }
    }

    fn write_all(&mut self) -> io::Result<()> {
        self.write_block(pcapng::section_header)?;
        let mut rest = REST;
        loop {
            let ended = self.meet_core(rest)?;
            for interface in &mut self.interfaces {
                interface.closing = interface.track.as_ref().is_some_and(Track::is_closed);
            }
            let all = self.write_round()?;
            for index in 0..self.interfaces.len() {
                self.end_if_closed(index)?;
            }
            rest = if all { REST } else { Duration::ZERO };
            if all {
                self.output.flush()?;
            }
            if ended && all {
                return Ok(());
            }
        }
    }

    /// True at the end.
    fn meet_core(&mut self, rest: Duration) -> io::Result<bool> {
        match self.arriving.recv_timeout(rest) {
            Ok(track) => self.add_interface(track).map(|()| false),
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => Ok(true),
        }
    }

    /// Writes for a limited time only; true when those were all.
    fn write_round(&mut self) -> io::Result<bool> {
        for _ in 0..ROUND_RECORDS {
            if !self.write_next()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn add_interface(&mut self, track: Track) -> io::Result<()> {
        let name = format!("core {}", track.core);
        self.write_block(|block| pcapng::interface(block, &name))?;
        let payload = Box::new([0; RECORD_BYTES + PATH_MTU_BYTES]);
        self.interfaces.push(Interface {
            core: track.core,
            track: Some(track),
            closing: false,
            next: None,
            payload,
            written: 0,
        });
        Ok(())
    }

    fn write_next(&mut self) -> io::Result<bool> {
        let interfaces = self.interfaces.iter_mut().enumerate();
        let times = interfaces.filter_map(|(index, one)| Some((one.look()?, index)));
        let Some((_, index)) = times.min() else { return Ok(false) };
        let interface = &mut self.interfaces[index];
        let Some((record, bytes)) = interface.next.take() else { return Ok(false) };
        let ends = Ends::of(interface.core, record.connection);
        if record.dropped > 0 && !std::mem::replace(&mut self.warned, true) {
            event!(WARN, "the capture cannot keep up: packets are missing from it");
        }
        match record.kind {
            Kind::CONNECTED | Kind::ACCEPTED => self.write_opening(index, record, &ends, bytes)?,
            Kind::CLOSED => {
                let message = management::disconnect_request(&ends);
                self.write_management(index, record, &ends, &message)?;
            }
            _ => {
                self.frame.clear();
                let payload = &self.interfaces[index].payload[RECORD_BYTES..][..bytes];
                frame::transport(&mut self.frame, &ends, &record, payload);
                self.write_packet(index, &record)?;
            }
        }
        Ok(true)
    }

    fn write_opening(
        &mut self,
        index: usize,
        record: Record,
        ends: &Ends,
        bytes: usize,
    ) -> io::Result<()> {
        let private_data = &self.interfaces[index].payload[RECORD_BYTES..][..bytes];
        let (own, peers) = private_data.split_at(bytes / 2);
        let asked = record.kind == Kind::CONNECTED;
        let (asking, answering) = if asked { (own, peers) } else { (peers, own) };
        let messages = management::opening(ends, asked, asking, answering);
        for (turn, message) in messages.iter().enumerate() {
            let outbound = asked == turn.is_multiple_of(2);
            let dropped = if turn == 0 { record.dropped } else { 0 };
            self.write_management(index, Record { outbound, dropped, ..record }, ends, message)?;
        }
        Ok(())
    }

    fn write_management(
        &mut self,
        index: usize,
        record: Record,
        ends: &Ends,
        message: &management::Message,
    ) -> io::Result<()> {
        self.frame.clear();
        frame::management(&mut self.frame, ends, record.outbound, message);
        self.write_packet(index, &record)
    }

    fn write_packet(&mut self, index: usize, record: &Record) -> io::Result<()> {
        self.interfaces[index].written += 1;
        // Relaxed: a count, for people.
        self.counts.written.fetch_add(1, Ordering::Relaxed);
        let packet = Packet {
            interface: index as u32,
            time_ns: self.time.ns(record.ticks),
            outbound: record.outbound,
            dropped: record.dropped.into(),
            frame: &self.frame,
        };
        self.block.clear();
        pcapng::packet(&mut self.block, &packet);
        self.output.write_all(&self.block)
    }

    /// After all else of the core is written.
    fn end_if_closed(&mut self, index: usize) -> io::Result<()> {
        let interface = &mut self.interfaces[index];
        let over = interface.closing && interface.look().is_none();
        let Some(track) = interface.track.take_if(|_| over) else { return Ok(()) };
        let dropped = track.dropped.load(Ordering::Relaxed);
        let counts = (interface.written + dropped, dropped);
        if dropped > 0 {
            event!(WARN, core = track.core, dropped, "packets are missing from the capture");
        }
        let time_ns = self.time.ns(self.time.clock.now().0);
        self.write_block(|block| pcapng::statistics(block, index as u32, time_ns, counts))?;
        self.output.flush()
    }

    fn write_block(&mut self, make: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.block.clear();
        make(&mut self.block);
        self.output.write_all(&self.block)
    }
}

impl Interface {
    fn look(&mut self) -> Option<u64> {
        if self.next.is_none() {
            self.next = self.take();
        }
        self.next.as_ref().map(|(record, _)| record.ticks)
    }

    /// Both ends of the ring are this program's, so nothing in it is corrupt.
    fn take(&mut self) -> Option<(Record, usize)> {
        let ring = &mut self.track.as_mut()?.ring;
        let arrival = ring.arrival().ok().flatten()?;
        let into = self.payload.get_mut(..arrival.length)?;
        ring.take(arrival, into).ok()?;
        let record = Record::decode(into.first_chunk()?);
        Some((record, arrival.length - RECORD_BYTES))
    }
}

/// From one comparison at the start: in the order of the ticks, and as exact as the clock is calibrated.
struct TimeBase {
    clock: Clock,
    ticks: u64,
    ns: u64,
}

impl TimeBase {
    fn now() -> Self {
        let clock = Clock::shared();
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { clock, ticks: clock.now().0, ns: since.as_nanos() as u64 }
    }

    fn ns(&self, ticks: u64) -> u64 {
        match ticks.checked_sub(self.ticks) {
            Some(later) => self.ns + self.clock.to_ns(later),
            None => self.ns.saturating_sub(self.clock.to_ns(self.ticks - ticks)),
        }
    }
}
