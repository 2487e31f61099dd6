//! A bare ring with messages as long as an RPC call and its reply: an exchange without headers,
//! credits and dispatch.
//!
//! Every slot holds the number of its message, published last. There are no shared indices: a
//! closed loop of at most [`SLOTS`] exchanges never overwrites an unread message.

use super::{on_two_cores, timed};
use crate::cores::CorePair;
use crate::failure::Failure;
use crate::latency::Recorder;
use spinrpc::sys::clock::Clock;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Exchanges per second at `depth` (at most [`SLOTS`]) of messages of these lengths, a call and its reply.
pub(super) fn exchanges_per_second(
    cores: CorePair,
    duration: Duration,
    depth: usize,
    messages: [usize; 2],
) -> Result<f64, Failure> {
    let depth = depth.clamp(1, SLOTS) as u64;
    on_rings(cores, messages, |calls, replies| ask(calls, replies, depth, duration))
}

/// Median of the round trips of one exchange after the other, in nanoseconds. Each is timed.
pub(super) fn round_trip_ns(
    cores: CorePair,
    duration: Duration,
    messages: [usize; 2],
) -> Result<f64, Failure> {
    let recorder = Recorder::new()?;
    on_rings(cores, messages, |calls, replies| ask_each(calls, replies, recorder, duration))
}

fn on_rings(
    cores: CorePair,
    messages: [usize; 2],
    ask: impl FnOnce(&Ring, &Ring) -> f64 + Send,
) -> Result<f64, Failure> {
    let [calls, replies] = &messages.map(Ring::new);
    let answer = |stop: &AtomicBool| answer(calls, replies, stop);
    on_two_cores(cores, answer, || ask(calls, replies))
}

/// One direction. The first word of a slot is the number of its message, counted from 1.
struct Ring {
    lines: Vec<Line>,
    slot_lines: usize,
    payload_words: usize,
}

#[repr(align(64))]
#[derive(Default)]
struct Line([AtomicU64; LINE_WORDS]);

impl Ring {
    fn new(message_bytes: usize) -> Self {
        let payload_words = message_bytes.div_ceil(WORD_BYTES);
        let slot_lines = (1 + payload_words).div_ceil(LINE_WORDS);
        let lines = (0..SLOTS * slot_lines).map(|_| Line::default()).collect();
        Self { lines, slot_lines, payload_words }
    }

    fn slot(&self, number: u64) -> &[Line] {
        let first = number as usize % SLOTS * self.slot_lines;
        &self.lines[first..first + self.slot_lines]
    }

    /// A message in private memory, as source or destination of copies.
    fn message(&self) -> Vec<u64> {
        vec![0x5a; self.payload_words]
    }

    #[inline]
    fn send(&self, number: u64, message: &[u64]) {
        let slot = self.slot(number);
        for (index, &payload) in (1..).zip(black_box(message)) {
            word(slot, index).store(payload, Ordering::Relaxed);
        }
        // Release pairs with the acquire in `receive`: a thread that sees the number also sees the
        // payload.
        word(slot, 0).store(number, Ordering::Release);
    }

    #[inline]
    fn receive(&self, number: u64, message: &mut [u64]) -> bool {
        let slot = self.slot(number);
        if word(slot, 0).load(Ordering::Acquire) != number {
            return false;
        }
        for (index, payload) in (1..).zip(black_box(message)) {
            *payload = word(slot, index).load(Ordering::Relaxed);
        }
        true
    }
}

#[inline]
fn word(slot: &[Line], index: usize) -> &AtomicU64 {
    &slot[index / LINE_WORDS].0[index % LINE_WORDS]
}

fn answer(calls: &Ring, replies: &Ring, stop: &AtomicBool) {
    let (mut call, reply) = (calls.message(), replies.message());
    let mut next = 1;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..POLLS_PER_STOP_CHECK {
            if calls.receive(next, &mut call) {
                replies.send(next, &reply);
                next += 1;
            }
        }
    }
}

fn ask(calls: &Ring, replies: &Ring, depth: u64, duration: Duration) -> f64 {
    let (call, mut reply) = (calls.message(), replies.message());
    (1..=depth).for_each(|number| calls.send(number, &call));
    let mut next = 1;
    let (count, elapsed) = timed(duration, || {
        let end = next + BATCH;
        while next < end {
            if replies.receive(next, &mut reply) {
                calls.send(next + depth, &call);
                next += 1;
            }
        }
        BATCH
    });
    count / elapsed.as_secs_f64()
}

/// One look at the clock ends a round trip and starts the next, and recording is part of neither.
fn ask_each(calls: &Ring, replies: &Ring, mut recorder: Recorder, duration: Duration) -> f64 {
    let (call, mut reply) = (calls.message(), replies.message());
    let clock = Clock::shared();
    let mut sent = clock.now().0;
    let start = sent + clock.from_duration(duration / 4);
    let end = start + clock.from_duration(duration);
    calls.send(1, &call);
    for number in 1.. {
        while !replies.receive(number, &mut reply) {}
        let now = clock.now().0;
        calls.send(number + 1, &call);
        // One at least, however long it takes.
        let is_last = now >= end;
        if sent >= start || is_last {
            recorder.record(now - sent);
        }
        if is_last {
            break;
        }
        sent = now;
    }
    let ns_per_tick = 1e9 / clock.ticks_per_second() as f64;
    recorder.finish().summary(ns_per_tick, 0).p50_ns
}

/// Slots of one direction, and so the maximum depth.
const SLOTS: usize = 64;
/// Exchanges between two looks at the time: few, as each takes a slice of time where other programs have the CPUs.
const BATCH: u64 = 200;
const POLLS_PER_STOP_CHECK: u32 = 64;
const WORD_BYTES: usize = 8;
const LINE_WORDS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_seen_whole_once_published_and_not_before() {
        let ring = Ring::new(68);
        let mut received = vec![0; 9];
        assert!(!ring.receive(1, &mut received));
        ring.send(1, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(ring.receive(1, &mut received));
        assert_eq!(received, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(!ring.receive(2, &mut received));
    }

    #[test]
    fn a_slot_is_reused_after_a_lap() {
        let ring = Ring::new(8);
        let lap = SLOTS as u64;
        ring.send(1, &[7]);
        ring.send(1 + lap, &[8]);
        assert!(!ring.receive(1, &mut [0]) && ring.receive(1 + lap, &mut [0]));
    }

    #[test]
    fn a_deep_loop_comes_to_its_end() {
        let Ok(cores) = CorePair::choose(None) else { return };
        let messages = [68, 52];
        let rate = exchanges_per_second(cores, Duration::from_millis(5), 32, messages).unwrap();
        assert!(rate.is_finite() && rate > 0.0, "{rate}");
        let ns = round_trip_ns(cores, Duration::from_millis(5), messages).unwrap();
        assert!(ns > 1.0, "{ns}");
    }
}
