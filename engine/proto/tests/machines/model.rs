//! Random histories of a requester compared with a model of it: every call ends exactly once, no
//! more are in flight than granted, and no slot is lost.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::output::{CallFailure, Dropped, PeerMisbehaved};
use spinrpc_proto::payload::{CallChunks, ChunkOffer};
use spinrpc_proto::rdma::RdmaError;
use spinrpc_proto::requester::StartedCall;

use crate::messages::{
    Caller, Chunks, NEVER, plain_reply, rdma_error, rpc_call, rpc_reply, segment,
};
use crate::recorder::Event;

const SLOTS: usize = 6;

/// Something that happens to a requester.
#[derive(Clone, Debug)]
enum Step {
    Call { deadline_after: Option<u16>, with_chunk: bool },
    Reply { to: u16, grant: u32 },
    BadReply { to: u16, grant: u32 },
    Error { to: u16 },
    ReverseCall { of: u16 },
    Stale { to: u16 },
    Cancel { call: u16 },
    Wait { ticks: u16 },
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<u16>;
    let grant = || prop_oneof![0..8_u32, any::<u32>()];
    prop_oneof![
        8 => (prop::option::of(0..50_u16), any::<bool>())
            .prop_map(|(deadline_after, with_chunk)| Step::Call { deadline_after, with_chunk }),
        5 => (index(), grant()).prop_map(|(to, grant)| Step::Reply { to, grant }),
        1 => (index(), grant()).prop_map(|(to, grant)| Step::BadReply { to, grant }),
        1 => index().prop_map(|to| Step::Error { to }),
        1 => index().prop_map(|of| Step::ReverseCall { of }),
        1 => index().prop_map(|to| Step::Stale { to }),
        2 => index().prop_map(|call| Step::Cancel { call }),
        2 => (0..30_u16).prop_map(|ticks| Step::Wait { ticks }),
    ]
}

/// A call that the responder has not answered.
#[derive(Clone, Debug)]
struct Live {
    call: StartedCall,
    token: u64,
    deadline: Instant,
    with_chunk: bool,
    /// The application has not been told of its end.
    awaited: bool,
}

/// The requester, and the expected state.
struct Model {
    caller: Caller,
    live: Vec<Live>,
    answered: Vec<Xid>,
    /// Number of ends of each call.
    ends: HashMap<u64, u32>,
    granted: u32,
    now: u64,
    next_token: u64,
}

impl Model {
    fn new() -> Self {
        Self {
            caller: Caller::new(SLOTS),
            live: Vec::new(),
            answered: Vec::new(),
            ends: HashMap::new(),
            granted: 1,
            now: 1000,
            next_token: 0,
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Call { deadline_after, with_chunk } => self.call(*deadline_after, *with_chunk),
            Step::Reply { to, grant } => self.reply(*to, *grant),
            Step::BadReply { to, grant } => self.bad_reply(*to, *grant),
            Step::Error { to } => self.error(*to),
            Step::ReverseCall { of } => self.reverse_call(*of),
            Step::Stale { to } => self.stale(*to),
            Step::Cancel { call } => self.cancel(*call),
            Step::Wait { ticks } => self.wait(*ticks),
        }
        self.check();
    }

    /// Compares the observable state of the requester with the model.
    fn check(&self) {
        let credits = self.caller.requester.credits();
        assert_eq!(credits.in_flight() as usize, self.live.len());
        assert_eq!(credits.granted(), self.granted);
        assert!(self.live.len() <= SLOTS);
        assert_eq!(self.caller.requester.check_room().is_ok(), self.has_room());
        let awaited = self.live.iter().filter(|live| live.awaited);
        let earliest = awaited.map(|live| live.deadline).min().unwrap_or(NEVER);
        assert!(self.caller.requester.next_deadline() <= earliest);
    }

    fn has_room(&self) -> bool {
        self.live.len() < self.granted as usize
    }

    fn call(&mut self, deadline_after: Option<u16>, with_chunk: bool) {
        if !self.has_room() {
            return;
        }
        let deadline = deadline_after.map_or(NEVER, |ticks| Instant(self.now + u64::from(ticks)));
        let mut chunks = CallChunks::EMPTY;
        let offset = segment(7, 0).offset;
        let offer = ChunkOffer { handle: 7, length: 64, offset, segment_bytes: 0 };
        assert!(!with_chunk || chunks.push_write(offer));
        let token = self.next_token;
        self.next_token += 1;
        let (call, _) = self.caller.call_with(token, deadline, &chunks);
        assert!(self.live.iter().all(|live| live.call.xid != call.xid), "XID in flight twice");
        assert!(self.live.iter().all(|live| live.call.slot.index != call.slot.index));
        self.live.push(Live { call, token, deadline, with_chunk, awaited: true });
    }

    /// Takes the call that the responder answers now; `None` if nothing is in flight.
    fn answer(&mut self, to: u16) -> Option<Live> {
        (!self.live.is_empty()).then(|| {
            let live = self.live.swap_remove(usize::from(to) % self.live.len());
            self.answered.push(live.call.xid);
            live
        })
    }

    fn end(&mut self, token: u64) {
        *self.ends.entry(token).or_default() += 1;
    }

    fn reply(&mut self, to: u16, grant: u32) {
        let Some(live) = self.answer(to) else { return };
        let xid = live.call.xid;
        let echo =
            if live.with_chunk { Chunks::none().write(&[segment(7, 10)]) } else { Chunks::none() };
        let events = self.caller.receive(&echo.msg(xid, grant, &rpc_reply(xid)));
        self.granted = grant.clamp(1, SLOTS as u32);
        match events[..] {
            [Event::Reply(reply)] if live.awaited => {
                assert_eq!((reply.token, reply.slot), (live.token, live.call.slot));
                assert_eq!(reply.placed[0], if live.with_chunk { 10 } else { 0 });
                self.end(live.token);
            }
            [Event::Released(slot)] if !live.awaited => assert_eq!(slot, live.call.slot),
            ref other => panic!("{other:?} of {live:?}"),
        }
    }

    fn bad_reply(&mut self, to: u16, grant: u32) {
        let Some(live) = self.answer(to) else { return };
        let events = self.caller.receive(&Chunks::none().nomsg(live.call.xid, grant));
        self.granted = grant.clamp(1, SLOTS as u32);
        let why = PeerMisbehaved::NoReplyStream;
        let [first, Event::Closed(closed)] = events[..] else { panic!("{events:?}") };
        assert_eq!(closed, why);
        self.expect_end(&live, first, CallFailure::Misbehaved(why));
    }

    fn error(&mut self, to: u16) {
        let Some(live) = self.answer(to) else { return };
        let events = self.caller.receive(&rdma_error(live.call.xid, 1, &[2]));
        let [only] = events[..] else { panic!("{events:?}") };
        self.expect_end(&live, only, CallFailure::Rdma(RdmaError::Chunk));
    }

    fn expect_end(&mut self, live: &Live, event: Event, failure: CallFailure) {
        let (slot, token) = (live.call.slot, live.token);
        if live.awaited {
            assert_eq!(event, Event::Failed { slot, token, failure, fenced: false });
            self.end(token);
        } else {
            assert_eq!(event, Event::Released(slot));
        }
    }

    fn reverse_call(&mut self, of: u16) {
        if self.live.is_empty() {
            return;
        }
        let xid = self.live[usize::from(of) % self.live.len()].call.xid;
        let events = self.caller.receive(&Chunks::none().msg(xid, 1000, &rpc_call(xid)));
        assert_eq!(events, [Event::Dropped(Dropped::WrongDirection)]);
    }

    fn stale(&mut self, to: u16) {
        if self.answered.is_empty() {
            return;
        }
        let xid = self.answered[usize::from(to) % self.answered.len()];
        let events = self.caller.receive(&plain_reply(xid, 1000));
        assert_eq!(events, [Event::Dropped(Dropped::UnmatchedReply)]);
    }

    fn cancel(&mut self, call: u16) {
        if self.live.is_empty() {
            return;
        }
        let at = usize::from(call) % self.live.len();
        let live = self.live[at].clone();
        let Caller { requester, out } = &mut self.caller;
        let found = requester.find(live.token);
        assert_eq!(found, live.awaited.then_some(live.call.slot));
        assert_eq!(requester.cancel(live.call.slot, out), live.awaited);
        if live.awaited {
            self.expect_given_up(at, CallFailure::Cancelled);
        }
        assert_eq!(self.caller.out.take(), []);
    }

    /// The application is told of the end of a call that may still be answered.
    fn expect_given_up(&mut self, at: usize, failure: CallFailure) {
        let Live { call, token, .. } = self.live[at];
        let events = self.caller.out.take();
        assert_eq!(events, [Event::Failed { slot: call.slot, token, failure, fenced: true }]);
        self.live[at].awaited = false;
        self.end(token);
    }

    fn wait(&mut self, ticks: u16) {
        self.now += u64::from(ticks);
        let mut events = self.caller.at(self.now);
        for live in self.live.iter_mut().filter(|live| live.awaited && live.deadline.0 <= self.now)
        {
            let (slot, token, failure) = (live.call.slot, live.token, CallFailure::TimedOut);
            let expired = Event::Failed { slot, token, failure, fenced: true };
            let at = events.iter().position(|event| *event == expired);
            events.swap_remove(at.unwrap_or_else(|| panic!("{live:?} has not expired")));
            live.awaited = false;
            *self.ends.entry(token).or_default() += 1;
        }
        assert_eq!(events, [], "nothing else expired");
    }

    /// The connection goes; now every call has ended exactly once.
    fn go_down(mut self) {
        let mut gone = Vec::new();
        self.caller.requester.on_down(|slot, token| gone.push((slot, token)));
        let mut expected: Vec<_> = self
            .live
            .iter()
            .map(|live| (live.call.slot, live.awaited.then_some(live.token)))
            .collect();
        expected.sort_by_key(|(slot, _)| slot.index);
        assert_eq!(gone, expected);
        for token in gone.into_iter().filter_map(|(_, token)| token) {
            self.end(token);
        }
        for token in 0..self.next_token {
            assert_eq!(self.ends.get(&token), Some(&1), "ends of call {token}");
        }
    }
}

proptest! {
    #[test]
    fn every_call_ends_exactly_once(steps in vec(step(), 0..200)) {
        let mut model = Model::new();
        for step in &steps {
            model.take(step);
        }
        model.go_down();
    }

    #[test]
    fn no_slot_is_lost(steps in vec(step(), 0..200)) {
        let mut model = Model::new();
        for step in &steps {
            model.take(step);
        }
        while !model.live.is_empty() {
            model.take(&Step::Reply { to: 0, grant: SLOTS as u32 });
        }
        if model.granted < SLOTS as u32 {
            model.take(&Step::Call { deadline_after: None, with_chunk: false });
            model.take(&Step::Reply { to: 0, grant: SLOTS as u32 });
        }
        for _ in 0..SLOTS {
            model.take(&Step::Call { deadline_after: None, with_chunk: false });
        }
        prop_assert_eq!(model.live.len(), SLOTS);
    }
}
