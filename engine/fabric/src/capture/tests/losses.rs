//! A writer that cannot keep up, or cannot write: the cores go on, and the loss is told.

use super::super::CaptureSink;
use super::{CapturedPair, Memory, captured};
use crate::tests::conformance::Event;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, channel};

/// An output that takes nothing until it is let go.
struct Held {
    go: Option<Receiver<()>>,
    memory: Memory,
}

impl Write for Held {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(go) = self.go.take() {
            // An error is the test's end, which lets go as well.
            let _ = go.recv();
        }
        self.memory.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An output that is full.
struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other("no space left"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn exchange(pair: &mut CapturedPair, number: usize) {
    let message = [number as u8; 1000];
    pair.far.post_recvs(pair.at_far, 1);
    pair.near.send(pair.at_near, &message);
    assert_eq!(pair.next_far(pair.at_far), Event::Message(message.to_vec(), None));
}

/// More messages than the ring holds while the output hangs, and some when it goes on. Expect all of
/// them to arrive at the peer, and every one of the two ends' packets in the file or in its counts.
#[test]
fn what_finds_no_room_is_dropped_counted_and_marked() {
    const MESSAGES: usize = 200;
    let memory = Memory::default();
    let (let_go, go) = channel();
    let output = Held { go: Some(go), memory: memory.clone() };
    let sink = CaptureSink::new(output).ring_bytes(0);
    let counters = sink.counters();
    let mut pair = captured(sink);
    (0..MESSAGES).for_each(|number| exchange(&mut pair, number));
    assert!(counters.dropped() > 0, "the smallest ring held {MESSAGES} messages");
    let_go.send(()).unwrap();
    while counters.written() == 0 {
        std::thread::yield_now();
    }
    // The rings get room again over time; then the file reports the earlier losses.
    let mut rounds = 0;
    loop {
        let before = counters.dropped();
        exchange(&mut pair, rounds);
        rounds += 1;
        if counters.dropped() == before {
            break;
        }
    }
    drop(pair);
    let capture = memory.read();
    let marked: u64 = capture.packets.iter().map(|packet| packet.dropped).sum();
    assert_eq!(marked, counters.dropped(), "every loss is marked before the next packet");
    let counted: u64 = capture.statistics.iter().map(|(.., dropped)| dropped).sum();
    assert_eq!(counted, counters.dropped());
    assert_eq!(counters.written(), capture.packets.len() as u64);
    // Each connection is opened by three packets at both ends.
    let noted = capture.packets.len() as u64 - 6 + counters.dropped();
    assert_eq!(noted, 2 * (MESSAGES + rounds) as u64);
}

/// Expect the traffic to go on, and the counters to say why the capture does not.
#[test]
fn an_output_that_fails_ends_the_capture_and_nothing_else() {
    let sink = CaptureSink::new(Full);
    let counters = sink.counters();
    let mut pair = captured(sink);
    while counters.failure().is_none() {
        exchange(&mut pair, 1);
    }
    exchange(&mut pair, 2);
    drop(pair);
    assert!(counters.failure().unwrap().contains("no space left"));
}
