//! What a flush posts, and in which order, on a device that only takes notes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use super::super::super::Completion;
use super::super::control::Control;
use super::super::link::{LinkLimits, LinkState};
use super::super::memory::LinkMemory;
use super::super::objects::fake;
use super::*;
use crate::mem::BufPool;
use Posted::{Receives, Sends};
use proptest::prelude::*;
use rdma_sys::{ibv_context, ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::iter::successors;
use std::mem::{ManuallyDrop, take, zeroed};
use std::sync::Arc;

/// Longest message that is copied into its work request.
const INLINE_BYTES: u32 = 64;

/// One call of the driver, with as many requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Posted {
    Sends { count: usize, inline: usize },
    Receives(usize),
}

/// A device without an adapter, and the peer behind it.
#[derive(Debug, Default)]
struct Device {
    log: Vec<Posted>,
    /// Places of receives, in the order of posting.
    receives: VecDeque<u32>,
    /// Receives it takes before it says that it is full.
    receives_max: usize,
    /// Sends that it has to report.
    signalled: Vec<u32>,
    /// Messages that the peer may send. Each Send lets it send one more.
    peer_may: usize,
    /// A Send let the peer send more messages than there were receives.
    has_overgranted: bool,
}

thread_local! {
    static DEVICE: RefCell<Device> = RefCell::default();
}

fn device<T>(look: impl FnOnce(&mut Device) -> T) -> T {
    DEVICE.with_borrow_mut(look)
}

impl Device {
    fn take_sends(&mut self, sends: &[(u64, u32)]) {
        let with = |flag: ibv_send_flags| sends.iter().filter(move |send| send.1 & flag.0 != 0);
        let inline = with(ibv_send_flags::IBV_SEND_INLINE).count();
        let signalled =
            with(ibv_send_flags::IBV_SEND_SIGNALED).map(|send| WorkId(send.0).position());
        self.signalled.extend(signalled);
        self.log.push(Sends { count: sends.len(), inline });
        self.peer_may += sends.len();
    }

    /// Takes as many as it has room for, and returns their number.
    fn take_receives(&mut self, receives: &[u64]) -> usize {
        let count = receives.len().min(self.receives_max.saturating_sub(self.receives.len()));
        self.receives.extend(receives[..count].iter().map(|id| WorkId(*id).position()));
        self.log.push(Receives(count));
        count
    }

    /// The peer uses nothing but posted receives, whatever it does with what it was granted.
    fn backs_all_grants(&self) -> bool {
        self.receives.len() >= self.peer_may
    }
}

/// # Safety
/// `first` leads to a chain of live requests that ends with null.
unsafe extern "C" fn post_send(
    _: *mut ibv_qp,
    first: *mut ibv_send_wr,
    _: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller vouches for the chain.
    let chain = successors(unsafe { first.as_ref() }, |wr| unsafe { wr.next.as_ref() });
    let sends: Vec<_> = chain.map(|wr| (wr.wr_id, wr.send_flags)).collect();
    device(|device| {
        device.take_sends(&sends);
        // The peer may answer at once, before this side does anything else. No panic may leave here.
        device.has_overgranted |= !device.backs_all_grants();
    });
    0
}

/// # Safety
/// As for sends, and `bad` has room for a pointer.
unsafe extern "C" fn post_recv(
    _: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller vouches for the chain.
    let chain = successors(unsafe { first.as_ref() }, |wr| unsafe { wr.next.as_ref() });
    let requests: Vec<_> = chain.map(std::ptr::from_ref).collect();
    // SAFETY: as above.
    let ids: Vec<_> = requests.iter().map(|wr| unsafe { (**wr).wr_id }).collect();
    let taken = device(|device| device.take_receives(&ids));
    let Some(refused) = requests.get(taken) else { return 0 };
    // SAFETY: the caller has a place for it.
    unsafe { *bad = refused.cast_mut() };
    libc::ENOMEM
}

/// A queue pair on the device, and the application behind it.
struct Bed {
    /// Not dropped: what it is made of is nothing that the library could free.
    pair: ManuallyDrop<QueuePair>,
    pool: BufPool,
    /// Messages that arrived, and were not answered.
    held: VecDeque<Buf>,
    _device: (Box<ibv_qp>, Box<ibv_context>),
}

impl Bed {
    /// A connection with `depth` receives, `batch` of which are in reserve.
    fn new(side: Side, depth: u32, batch: u32) -> Self {
        device(|device| *device = Device { receives_max: depth as usize, ..Device::default() });
        let buffers = 2 * depth as usize + 64;
        let bytes = BufPool::region_bytes(128, buffers).unwrap();
        // A box may begin anywhere in a cache line.
        let region = Region::from_boxed(vec![0; bytes + 128].into());
        let pool = BufPool::new(region, 128, buffers).unwrap();
        // SAFETY: both are structures of integers, null pointers and missing functions.
        let (mut context, mut qp) = unsafe { (zeroed::<ibv_context>(), zeroed::<ibv_qp>()) };
        context.ops.post_send = Some(post_send);
        context.ops.post_recv = Some(post_recv);
        let mut context = Box::new(context);
        qp.context = &raw mut *context;
        let mut qp = Box::new(qp);
        let domain = fake::domain();
        let memory = LinkMemory::fake(&domain, pool.region_id(), 7).unwrap();
        let state = Arc::new(LinkState::default());
        state.set_established();
        let link = Link {
            qp: NonNull::from(&mut *qp),
            number: 1,
            side,
            queue: ManuallyDrop::new(fake::queue()),
            domain: ManuallyDrop::new(domain),
            memory: ManuallyDrop::new(memory),
            limits: limits(depth, batch),
            state,
            control: Control::idle().unwrap(),
        };
        let pair = QueuePair::new(QpId::new(0, 0), link, 64, 4).unwrap();
        let pair = ManuallyDrop::new(pair);
        Self { pair, pool, held: VecDeque::new(), _device: (qp, context) }
    }

    /// A connection all of whose receives are posted. The peer may use those that are not in reserve.
    fn ready(depth: u32, batch: u32) -> Self {
        let mut bed = Self::new(Side::Connecting, depth, batch);
        bed.post_receives(depth);
        assert_eq!(bed.flush(), [Receives(depth as usize)]);
        device(|device| device.peer_may = (depth - batch) as usize);
        bed
    }

    fn post_receives(&mut self, count: u32) {
        for _ in 0..count {
            let buf = self.pool.take().unwrap();
            assert_eq!(self.pair.post_recv(buf).unwrap(), Ok(()));
        }
    }

    fn send(&mut self, bytes: usize) {
        let mut message = self.pool.take().unwrap();
        message.set_range(0..bytes);
        let posted = self.pair.post(SendWr::Send { message, invalidate: None });
        assert_eq!(posted.unwrap(), Ok(()));
    }

    /// The peer sends so many messages, if it may.
    fn arrive(&mut self, count: usize) {
        for _ in 0..count {
            let place = device(|device| {
                device.peer_may = device.peer_may.checked_sub(1)?;
                Some(device.receives.pop_front().expect("a receive for each granted message"))
            });
            let Some(place) = place else { return };
            let mut late = VecDeque::new();
            let arrived = Arrived { place, bytes: 4, flags: 0, key: 0 };
            let mut out = Outbox { batch: None, late: &mut late };
            self.pair.on_arrived(arrived, &mut out).unwrap();
            let Some(Completion { kind: CompletionKind::Received { message, .. }, .. }) =
                late.pop_front()
            else {
                unreachable!("a message was reported")
            };
            self.held.push_back(message);
        }
    }

    /// Answers so many messages, as a service does: the receive is posted, then the reply.
    fn answer(&mut self, count: usize) {
        for _ in 0..count {
            let Some(message) = self.held.pop_front() else { return };
            assert_eq!(self.pair.post_recv(message).unwrap(), Ok(()));
            self.send(4);
        }
    }

    /// Flushes, and returns what the driver was called for.
    fn flush(&mut self) -> Vec<Posted> {
        assert_eq!(self.pair.flush(), Ok(false));
        assert!(!device(|device| device.has_overgranted), "a receive is missing");
        let (log, signalled) =
            device(|device| (take(&mut device.log), take(&mut device.signalled)));
        let mut late = VecDeque::new();
        for position in signalled {
            let mut out = Outbox { batch: None, late: &mut late };
            assert_eq!(self.pair.on_sent(position, Outcome::Done, &mut out), Outcome::Done);
        }
        log
    }
}

fn limits(recv_depth: u32, recv_batch: u32) -> LinkLimits {
    LinkLimits {
        send_depth: 64 + MARKS,
        recv_depth,
        recv_batch,
        inline_bytes: INLINE_BYTES,
        send_sge: 1,
        reads_out: 1,
        signal_from_bytes: u32::MAX,
        invalidated_flags: 0,
        is_iwarp: false,
    }
}

fn sends(count: usize) -> Posted {
    Sends { count, inline: count }
}

/// Answer one message in each turn. Expect each reply alone, and the receives behind the fourth.
#[test]
fn sends_go_first_and_receives_follow_as_a_batch() {
    let mut bed = Bed::ready(12, 4);
    for _ in 0..3 {
        for _ in 0..3 {
            bed.arrive(1);
            bed.answer(1);
            assert_eq!(bed.flush(), [sends(1)]);
        }
        bed.arrive(1);
        bed.answer(1);
        assert_eq!(bed.flush(), [sends(1), Receives(4)]);
    }
    assert_eq!(bed.flush(), []);
}

/// Answer a batch, and more than that, in one turn. Expect the receives behind the sends, then before them.
#[test]
fn more_receives_than_are_in_reserve_go_before_the_sends() {
    let mut bed = Bed::ready(12, 4);
    bed.arrive(4);
    bed.answer(4);
    assert_eq!(bed.flush(), [sends(4), Receives(4)]);
    bed.arrive(5);
    bed.answer(5);
    assert_eq!(bed.flush(), [Receives(5), sends(5)]);
    bed.arrive(3);
    bed.answer(3);
    assert_eq!(bed.flush(), [sends(3)]);
    bed.arrive(2);
    bed.answer(2);
    assert_eq!(bed.flush(), [Receives(5), sends(2)]);
}

#[test]
fn without_a_batch_every_receive_goes_before_the_sends() {
    let mut bed = Bed::ready(4, 0);
    for _ in 0..6 {
        bed.arrive(1);
        bed.answer(1);
        assert_eq!(bed.flush(), [Receives(1), sends(1)]);
    }
}

#[test]
fn a_batch_of_one_goes_in_each_flush_after_the_sends() {
    let mut bed = Bed::ready(4, 1);
    for _ in 0..6 {
        bed.arrive(1);
        bed.answer(1);
        assert_eq!(bed.flush(), [sends(1), Receives(1)]);
    }
}

/// RFC 5666 section 3.3: the peer sends as soon as the connection is there.
#[test]
fn receives_are_posted_before_the_request_of_the_peer_is_answered() {
    let mut bed = Bed::new(Side::Accepting, 12, 4);
    bed.post_receives(2);
    assert_eq!(bed.flush(), [Receives(2)]);
    bed.post_receives(2);
    assert_eq!(bed.flush(), [], "from now on in batches");
}

/// The device has no room for the receives, of which too many wait. Expect the Send to wait, too.
#[test]
fn sends_do_not_overtake_receives_that_the_device_refuses() {
    let mut bed = Bed::ready(12, 4);
    bed.arrive(6);
    bed.answer(6);
    device(|device| device.receives_max = 7);
    assert_eq!(bed.pair.flush(), Ok(true));
    assert_eq!(device(|device| take(&mut device.log)), [Receives(1), Receives(0)]);
    device(|device| device.receives_max = 12);
    assert_eq!(bed.flush(), [Receives(5), sends(6)]);
}

#[test]
fn a_message_up_to_the_limit_is_copied_into_its_work_request() {
    let mut bed = Bed::ready(12, 4);
    device(|device| device.peer_may = 0);
    let free = bed.pool.available();
    for (bytes, inline) in [(1, 1), (INLINE_BYTES as usize, 1), (INLINE_BYTES as usize + 1, 0)] {
        bed.send(bytes);
        assert_eq!(bed.pair.flush(), Ok(false));
        let log = device(|device| take(&mut device.log));
        assert_eq!(log, [Sends { count: 1, inline }], "{bytes} bytes");
        assert_eq!(
            free - bed.pool.available(),
            1 - inline,
            "a copied message gives its buffer back"
        );
    }
}

proptest! {
    /// RFC 8166 section 3.3.1: whatever the peer sends within its grant, and however late this side answers,
    /// it finds a receive. The fake driver checks that at each Send.
    #[test]
    fn a_posted_receive_backs_each_grant(
        credits in 1_u32..20,
        batch in 0_u32..10,
        turns in prop::collection::vec((0_usize..24, 0_usize..24), 0..60),
    ) {
        let mut bed = Bed::ready(credits + batch, batch);
        for (messages, answers) in turns {
            bed.arrive(messages);
            bed.answer(answers);
            bed.flush();
            prop_assert!(device(|device| device.backs_all_grants()));
            prop_assert!(bed.pair.recvs.waiting().len() < batch.max(1) as usize);
        }
    }
}
