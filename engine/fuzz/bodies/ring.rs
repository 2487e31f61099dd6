//! A ring of the shared-memory fabric whose other side writes where and what it likes: the honest
//! side gets messages that fit the ring or finds the ring corrupt, and does not panic. As long as
//! both ends are honest, messages arrive as they were sent.

use std::collections::VecDeque;

use spinrpc::sync::atomic::Ordering;
use spinrpc::sync::ring::{CONTROL_WORDS, Consumer, Producer, PushError, RingPlace, SLOT_WORDS};
use spinrpc::sync::words::{HeapWords, Words};

use crate::script::Script;

const SLOTS: u32 = 16;
const PLACE: RingPlace = RingPlace { control: 0, slots_at: CONTROL_WORDS, slots: SLOTS };
const WORDS: usize = CONTROL_WORDS + SLOTS as usize * SLOT_WORDS;

/// A message and what goes before it.
type Message = (Option<u32>, Vec<u8>);

struct Ring {
    words: HeapWords,
    producer: Producer<HeapWords>,
    consumer: Consumer<HeapWords>,
    /// Messages sent and not arrived; unknown once one side cheats.
    sent: Option<VecDeque<Message>>,
}

/// The script of what both sides do.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let words = HeapWords::new(WORDS);
    let producer = Producer::new(words.clone(), PLACE).unwrap();
    let consumer = Consumer::new(words.clone(), PLACE).unwrap();
    let mut ring = Ring { words, producer, consumer, sent: Some(VecDeque::new()) };
    while !script.is_over() {
        ring.step(&mut script);
    }
}

impl Ring {
    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 6 {
            0 | 1 => self.push(script),
            2 | 3 => self.take(),
            4 => self.cheat(script),
            _ => self.signal(script),
        }
    }

    fn push(&mut self, script: &mut Script<'_>) {
        let length = usize::from(script.u16()) % (PLACE.message_bytes_max() + 100);
        let lead = script.flag().then_some(length as u32 ^ 0x5a5a);
        let message: Vec<u8> = (0..length).map(|at| (at ^ length) as u8).collect();
        match self.producer.push(lead, &message) {
            Ok(()) => {
                if let Some(sent) = &mut self.sent {
                    sent.push_back((lead, message));
                }
            }
            Err(PushError::TooLong) => assert!(length > PLACE.message_bytes_max()),
            Err(PushError::Full) => {
                assert!(self.sent.as_ref().is_none_or(|sent| !sent.is_empty()));
            }
            Err(PushError::Corrupt(_)) => assert!(self.sent.is_none(), "both ends are honest"),
        }
    }

    fn take(&mut self) {
        let arrival = self.consumer.arrival();
        let Ok(Some(arrival)) = arrival else {
            let empty = self.sent.as_ref().is_none_or(|sent| arrival.is_ok() && sent.is_empty());
            assert!(empty, "{arrival:?}");
            return;
        };
        assert!(arrival.length <= PLACE.message_bytes_max());
        let mut message = vec![0; arrival.length];
        let taken = self.consumer.take(arrival, &mut message);
        if let Some(sent) = &mut self.sent {
            assert_eq!(taken, Ok(()));
            assert_eq!(sent.pop_front(), Some((arrival.lead, message)));
        }
    }

    /// Any word of the shared memory, or a header of a slot that looks right.
    fn cheat(&mut self, script: &mut Script<'_>) {
        self.sent = None;
        let slot = CONTROL_WORDS + script.below(SLOTS as usize) * SLOT_WORDS;
        let (at, value) = match script.byte() % 4 {
            0 => (0, u64::from(script.u16())),
            1 => (usize::from(script.u16()) % WORDS, u64::MAX - u64::from(script.byte())),
            2 => (slot, u64::from(script.u16()) << 32 | u64::from(script.u16())),
            _ => {
                let bytes = script.bytes(8);
                (slot, bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)))
            }
        };
        self.words.store(at, value, Ordering::Relaxed);
    }

    fn signal(&mut self, script: &mut Script<'_>) {
        match script.byte() % 4 {
            0 => {
                let idle = self.consumer.go_idle();
                assert!(!idle || self.producer.wants_bell());
            }
            1 => self.consumer.go_busy(),
            2 => self.producer.end_run(),
            _ => self.consumer.fetch_ahead(),
        }
        assert!(self.sent.is_none() || self.consumer.closed() == 0);
    }
}
