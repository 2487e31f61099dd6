//! Credits with RDMA_DONE between both machines (RFC 5666 sections 3.3, 3.8 and 11), for random
//! histories: neither end is ever stuck, no call of a requester that keeps to its credits is refused,
//! and no more messages are on their way than the responder has receives for.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;

use spinrpc_proto::ids::{Instant, Xid};
use spinrpc_proto::output::SlotId;
use spinrpc_proto::payload::CallChunks;
use spinrpc_proto::profile::Profile;
use spinrpc_proto::rdma::v1::MessageType;
use spinrpc_proto::rdma::{ReadSegment, ReplyRepr, set_credits};
use spinrpc_proto::responder::ReplyShape;

use crate::messages::{Caller, NEVER, READ_PROFILES, Server, rpc_call, rpc_reply, segment, view};
use crate::recorder::Event;

/// Something that happens on either end, or on the way.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The client calls, if it may.
    Call,
    /// The next message reaches the server.
    ToServer,
    /// The server answers one of its calls, inline or by Read list.
    Answer { which: u8, by_read: bool },
    /// The next message reaches the client.
    ToClient,
    /// One fetched reply of the client is whole.
    Fetch { which: u8 },
    /// The client gives a call up.
    Cancel { which: u8 },
    /// Time passes at the server.
    Wait { ticks: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<u8>;
    prop_oneof![
        6 => Just(Step::Call),
        6 => Just(Step::ToServer),
        4 => (which(), any::<bool>()).prop_map(|(which, by_read)| Step::Answer { which, by_read }),
        6 => Just(Step::ToClient),
        3 => which().prop_map(|which| Step::Fetch { which }),
        1 => which().prop_map(|which| Step::Cancel { which }),
        1 => (0..40_u8).prop_map(|ticks| Step::Wait { ticks }),
    ]
}

/// Ticks that an export lasts.
const WINDOW: u64 = 100;

struct Pair {
    client: Caller,
    server: Server,
    credits: usize,
    to_server: VecDeque<Vec<u8>>,
    to_client: VecDeque<Vec<u8>>,
    /// Calls in the hands of the server, with their messages.
    served: Vec<(SlotId, Vec<u8>)>,
    /// Replies that the server keeps back.
    kept: VecDeque<(SlotId, Vec<u8>)>,
    /// Replies that the client fetches.
    fetching: Vec<(SlotId, Vec<u8>)>,
    /// Calls that the application waits for.
    awaited: Vec<(SlotId, u64)>,
    owed_by_client: usize,
    ended: u64,
    started: u64,
    now: u64,
}

impl Pair {
    fn new(profile: Profile, credits: usize, exports_max: u32) -> Self {
        Self {
            client: Caller::under(profile, credits),
            server: Server::under(profile, credits, exports_max),
            credits,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            served: Vec::new(),
            kept: VecDeque::new(),
            fetching: Vec::new(),
            awaited: Vec::new(),
            owed_by_client: 0,
            ended: 0,
            started: 0,
            now: 0,
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Call => drop(self.call()),
            Step::ToServer => drop(self.arrive_at_server()),
            Step::Answer { which, by_read } => self.answer(which, by_read),
            Step::ToClient => drop(self.arrive_at_client()),
            Step::Fetch { which } => self.fetch(which),
            Step::Cancel { which } => self.cancel(which),
            Step::Wait { ticks } => self.wait(u64::from(ticks)),
        }
        self.check();
    }

    /// Checks that there is a receive for each credit, and one more for the call that may be sent
    /// in addition to RDMA_DONEs.
    fn check(&self) {
        let held = self.served.len();
        assert!(self.to_server.len() + held <= self.credits + 1, "more messages than receives");
        let credits = self.client.requester.credits();
        assert!(credits.granted() >= 1);
        assert!(self.server.responder.grant() as usize <= self.credits);
        let unanswered = credits.in_flight() - credits.dones();
        assert!(unanswered <= self.credits as u32);
    }

    fn call(&mut self) -> bool {
        if self.client.requester.check_room().is_err() {
            return false;
        }
        let token = self.started;
        self.started += 1;
        let (call, header) = self.client.call_with(token, NEVER, &CallChunks::EMPTY);
        self.to_server.push_back([header, rpc_call(call.xid)].concat());
        self.awaited.push((call.slot, token));
        true
    }

    fn arrive_at_server(&mut self) -> bool {
        let Some(message) = self.to_server.pop_front() else { return false };
        match self.server.receive(&message)[..] {
            [Event::Call(slot)] => self.served.push((slot, message)),
            [Event::FreeExports(_)] => self.send_kept(),
            [Event::Dropped(_)] if view(&message).message_type() == MessageType::Done => {}
            ref events => panic!("a call within its credits: {events:?}"),
        }
        true
    }

    fn send_kept(&mut self) {
        while let Some((slot, mut message)) = self.kept.pop_front() {
            let deadline = Instant(self.now + WINDOW);
            let Some(credits) = self.server.responder.send_kept(slot, deadline) else {
                return self.kept.push_front((slot, message));
            };
            set_credits(&mut message, credits);
            self.to_client.push_back(message);
        }
    }

    fn answer(&mut self, which: u8, by_read: bool) {
        if self.served.is_empty() {
            return;
        }
        let (slot, message) = self.served.swap_remove(usize::from(which) % self.served.len());
        let (call, shape) = (view(&message), ReplyShape { placed: &[], long_bytes: None });
        let Server { responder, out } = &mut self.server;
        let mut header = vec![0; ReplyRepr::bytes_of(&call, 1)];
        if !by_read || !responder.may_export() {
            let length = responder.reply(slot, &call, &shape, &mut header, out).unwrap();
            let header = header.split_off(header.len() - length);
            return self.to_client.push_back([header, rpc_reply(call.xid())].concat());
        }
        let reads = [ReadSegment { position: 24, target: segment(3, 100) }];
        let deadline = Instant(self.now + WINDOW);
        let reply =
            responder.reply_by_read(slot, &call, &shape, &reads, deadline, &mut header, out);
        let reply = reply.unwrap();
        let message = [header, rpc_reply(call.xid())].concat();
        match reply.kept {
            true => self.kept.push_back((slot, message)),
            false => self.to_client.push_back(message),
        }
    }

    fn arrive_at_client(&mut self) -> bool {
        let Some(message) = self.to_client.pop_front() else { return false };
        match self.client.receive(&message)[..] {
            [Event::Reply(reply)] => self.end(reply.token),
            [Event::Released(_)] => {}
            [Event::PullReply(reply)] => {
                self.owed_by_client += 1;
                self.fetching.push((reply.slot, message));
            }
            ref events => panic!("{events:?}"),
        }
        true
    }

    fn end(&mut self, token: u64) {
        self.ended += 1;
        let known = self.awaited.iter().position(|(_, awaited)| *awaited == token);
        self.awaited.swap_remove(known.unwrap_or_else(|| panic!("call {token} ended twice")));
    }

    fn fetch(&mut self, which: u8) {
        use spinrpc_proto::reply_pull::PullEnd;
        if self.fetching.is_empty() {
            return;
        }
        let at = usize::from(which) % self.fetching.len();
        let (slot, message) = self.fetching.swap_remove(at);
        let Caller { requester, out } = &mut self.client;
        let asked = requester.pull(slot, &view(&message), 4, out);
        out.take();
        for _ in 0..asked {
            requester.on_read_done(slot);
        }
        let mut done = vec![0; 16];
        match requester.end_pull(slot, &mut done).unwrap() {
            PullEnd::Deliver { token } => self.end(token),
            PullEnd::Release => {}
        }
        self.owed_by_client -= 1;
        self.to_server.push_back(done);
    }

    fn cancel(&mut self, which: u8) {
        if self.awaited.is_empty() {
            return;
        }
        let (slot, token) = self.awaited[usize::from(which) % self.awaited.len()];
        let Caller { requester, out } = &mut self.client;
        assert!(requester.cancel(slot, out));
        out.take();
        self.end(token);
    }

    fn wait(&mut self, ticks: u64) {
        self.now += ticks;
        while self.server.responder.overdue_export(Instant(self.now)).is_some() {}
        self.send_kept();
    }

    /// Lets everything arrive and be answered, without any window running out: nothing may be left,
    /// and a call can be made.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            let (answers, fetches) = (!self.served.is_empty(), !self.fetching.is_empty());
            self.answer(0, true);
            self.fetch(0);
            if !self.arrive_at_server() && !self.arrive_at_client() && !answers && !fetches {
                break;
            }
            self.check();
        }
        assert!(self.kept.is_empty(), "a reply is kept back for ever");
        assert!(self.awaited.is_empty() && self.owed_by_client == 0);
        assert_eq!(self.ended, self.started);
        assert_eq!(self.server.responder.dones_owed(), 0);
        assert_eq!(self.server.responder.grant() as usize, self.credits);
    }
}

proptest! {
    #[test]
    fn neither_end_is_ever_stuck(
        profile in prop::sample::select(&READ_PROFILES),
        credits in 1..9_usize,
        exports_max in 1..12_u32,
        steps in vec(step(), 0..300),
    ) {
        let mut pair = Pair::new(profile, credits, exports_max);
        for step in steps {
            pair.take(step);
        }
        pair.settle();
        // The whole window opens again, however many credits RDMA_DONEs took.
        for _ in 0..3 {
            prop_assert!(pair.call(), "no call may be made any more");
            pair.settle();
        }
        prop_assert!(pair.client.requester.credits().in_flight() <= 1, "one RDMA_DONE at the most");
    }
}

#[test]
fn receive_rdma_done_of_another_peer_expect_nothing_freed() {
    let mut pair = Pair::new(Profile::Rfc5666, 4, 4);
    pair.take(Step::Call);
    pair.take(Step::ToServer);
    pair.take(Step::Answer { which: 0, by_read: true });
    let foreign = crate::messages::rdma_done(Xid(0xdead));
    assert!(matches!(pair.server.receive(&foreign)[..], [Event::Dropped(_)]));
    assert_eq!(pair.server.responder.dones_owed(), 1);
}
