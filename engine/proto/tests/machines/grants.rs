//! Grants that rise and fall while calls and replies are on their way (RFC 5666 section 3.3).

use crate::messages::{Server, plain_call};
use crate::recorder::Event;
use proptest::prelude::*;
use spinrpc_proto::credit::Credits;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::output::SlotId;
use std::collections::VecDeque;

const SLOTS: u32 = 16;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The client sends as many calls as it may, at most this number.
    Call { most: u32 },
    /// The oldest call on its way arrives.
    Arrive,
    /// The server answers one of its calls.
    Answer { which: usize },
    /// The oldest reply on its way arrives.
    Reply,
    /// The server has another grant from now on.
    Grant { credits: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..=SLOTS).prop_map(|most| Step::Call { most }),
        6 => Just(Step::Arrive),
        5 => any::<usize>().prop_map(|which| Step::Answer { which }),
        6 => Just(Step::Reply),
        2 => (0..SLOTS + 2).prop_map(|credits| Step::Grant { credits }),
    ]
}

/// A client that keeps the rules, and a server with as many receives as it is told to have.
struct Model {
    client: Credits,
    server: Server,
    calls: u32,
    replies: VecDeque<u32>,
    in_progress: Vec<SlotId>,
    /// Receives that are posted.
    posted: u32,
    next_xid: u32,
}

impl Model {
    fn new(first: u32) -> Self {
        let mut server = Server::new(SLOTS as usize);
        server.responder = server.responder.granting(first);
        let posted = server.responder.receives();
        let client = Credits::new(SLOTS);
        let in_progress = Vec::new();
        Self {
            client,
            server,
            calls: 0,
            replies: VecDeque::new(),
            in_progress,
            posted,
            next_xid: 1,
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Call { most } => self.call(most),
            Step::Arrive => self.arrive(),
            Step::Answer { which } => self.answer(which),
            Step::Reply => {
                if let Some(granted) = self.replies.pop_front() {
                    self.client.replied(granted);
                }
            }
            Step::Grant { credits } => self.grant(credits),
        }
        self.check();
    }

    fn call(&mut self, most: u32) {
        for _ in 0..most {
            if !self.client.available() {
                return;
            }
            self.client.spend();
            self.calls += 1;
        }
    }

    fn arrive(&mut self) {
        if self.calls == 0 {
            return;
        }
        self.calls -= 1;
        assert!(self.posted > 0, "more is granted than posted");
        self.posted -= 1;
        let xid = Xid(self.next_xid);
        self.next_xid += 1;
        match self.server.receive(&plain_call(xid))[..] {
            [Event::Call(slot)] => self.in_progress.push(slot),
            ref other => panic!("a call within the grant: {other:?}"),
        }
    }

    /// The reply leaves, and its receive is posted again unless it is one too many.
    fn answer(&mut self, which: usize) {
        if self.in_progress.is_empty() {
            return;
        }
        let slot = self.in_progress.swap_remove(which % self.in_progress.len());
        self.server.responder.end_plain(slot);
        let granted = self.server.responder.grant();
        assert!(granted > 0, "granted no credit");
        self.replies.push_back(granted);
        let needed = self.server.responder.receives() - self.in_progress.len() as u32;
        self.posted = (self.posted + 1).min(needed);
    }

    /// Receives for a larger grant are posted before it is sent.
    fn grant(&mut self, credits: u32) {
        self.server.responder.set_grant(credits);
        let needed = self.server.responder.receives() - self.in_progress.len() as u32;
        self.posted = self.posted.max(needed);
    }

    /// As many receives as calls on their way, and as may follow them before anything else arrives.
    fn check(&self) {
        let may_send = self.client.granted().saturating_sub(self.client.in_flight());
        assert!(self.calls + may_send <= self.posted, "more is granted than posted");
        let held = self.in_progress.len() as u32;
        assert_eq!(self.server.responder.in_progress(), held);
        assert!(self.posted + held >= self.server.responder.grant());
    }
}

proptest! {
    /// "The RPC client MUST NOT send unacknowledged requests in excess of this granted RPC server
    /// credit limit": as long as it keeps to this, each call finds a receive.
    #[test]
    fn never_more_granted_than_posted(
        first in 1..=SLOTS,
        steps in prop::collection::vec(step(), 0..400),
    ) {
        let mut model = Model::new(first);
        steps.into_iter().for_each(|step| model.take(step));
        // "The client would deadlock otherwise, unable to send another request."
        for _ in 0..2 * SLOTS {
            [Step::Arrive, Step::Answer { which: 0 }, Step::Reply].into_iter().for_each(|step| model.take(step));
        }
        prop_assert!(model.client.available());
    }
}

/// Calls and answers one after the other.
fn answer_calls(server: &mut Server, calls: u32) {
    for xid in 0..calls {
        let [Event::Call(slot)] = server.receive(&plain_call(Xid(xid)))[..] else {
            panic!("no call")
        };
        server.responder.end_plain(slot);
    }
}

#[test]
fn a_smaller_grant_frees_a_receive_with_each_reply() {
    let mut server = Server::new(8);
    assert_eq!(server.responder.receives(), 8);
    server.responder.set_grant(2);
    assert_eq!((server.responder.grant(), server.responder.receives()), (2, 8));
    for left in [7, 6, 5, 4, 3, 2, 2] {
        answer_calls(&mut server, 1);
        assert_eq!(server.responder.receives(), left);
    }
    server.responder.set_grant(4);
    assert_eq!(server.responder.receives(), 4);
}

#[test]
fn a_requester_that_is_silent_keeps_what_it_was_granted() {
    let mut server = Server::new(8);
    answer_calls(&mut server, 3);
    (0..10).for_each(|_| server.responder.set_grant(1));
    assert_eq!(server.responder.receives(), 8);
}

#[test]
fn a_call_in_progress_holds_its_receive() {
    let mut server = Server::new(4);
    server.responder = server.responder.granting(2);
    server.receive(&plain_call(Xid(1)));
    assert_eq!(server.responder.receives(), 2);
    server.responder.set_grant(1);
    assert_eq!(server.responder.receives(), 2);
}

/// Answers the calls in `slots`.
fn answer(server: &mut Server, slots: &mut Vec<SlotId>) {
    slots.drain(..).for_each(|slot| server.responder.end_plain(slot));
}

/// Takes this number of calls at most; returns those that were not refused.
fn take_calls(server: &mut Server, calls: u32) -> Vec<SlotId> {
    let taken = (0..calls).map(|xid| match server.receive(&plain_call(Xid(xid)))[..] {
        [Event::Call(slot)] => Some(slot),
        [Event::Refused(..)] => None,
        ref other => panic!("neither taken nor refused: {other:?}"),
    });
    taken.collect::<Vec<_>>().into_iter().flatten().collect()
}

#[test]
fn a_call_that_no_grant_lets_the_requester_send_is_refused() {
    let mut server = Server::new(8);
    server.responder = server.responder.granting(2);
    let mut taken = take_calls(&mut server, 8);
    assert_eq!((taken.len(), server.responder.has_slot()), (2, false));
    answer(&mut server, &mut taken);
    assert!(server.responder.has_slot());
    // A larger grant holds from its reply on, and a smaller one when as many replies have been sent.
    server.responder.set_grant(6);
    answer_calls(&mut server, 1);
    server.responder.set_grant(2);
    for allowed in [6, 2, 2] {
        let mut taken = take_calls(&mut server, 8);
        assert_eq!(taken.len(), allowed);
        answer(&mut server, &mut taken);
    }
}

/// Those that an earlier grant lets it send are counted one by one. Plain calls without a slot are counted late.
#[test]
fn plain_calls_by_an_earlier_grant_do_not_go_uncounted() {
    let mut server = Server::new(8);
    server.responder = server.responder.granting(8);
    assert_eq!(take_calls(&mut server, 3).len(), 3);
    server.responder.set_grant(2);
    assert!(!server.responder.has_slot(), "three calls are in progress");
    assert_eq!(take_calls(&mut server, 8).len(), 5, "eight were granted");
    assert_eq!(server.responder.receives(), 8);
    // Whatever is counted, calls in progress hold their receives.
    server.responder.count_plain(20);
    assert_eq!(server.responder.receives(), 8);
}

#[test]
fn a_grant_is_between_one_and_the_number_of_slots() {
    // RFC 5666 section 3.3: "it MUST NOT be zero when no in-progress operations are present".
    let mut server = Server::new(4);
    for (wanted, grant) in [(0, 1), (3, 3), (5, 4), (u32::MAX, 4)] {
        server.responder.set_grant(wanted);
        assert_eq!(server.responder.grant(), grant);
    }
    assert_eq!(Server::new(4).responder.granting(0).grant(), 1);
    assert_eq!(Server::new(4).responder.granting(9).grant(), 4);
}

#[test]
fn a_look_is_due_after_calls_or_when_all_of_the_grant_is_in_progress() {
    let mut server = Server::new(4);
    server.responder = server.responder.granting(2);
    assert!(!server.responder.is_look_due());
    server.responder.look_after(Some(3), false);
    answer_calls(&mut server, 2);
    assert!(!server.responder.is_look_due());
    answer_calls(&mut server, 1);
    assert!(server.responder.is_look_due());
    server.responder.look_after(None, true);
    answer_calls(&mut server, 100);
    server.receive(&plain_call(Xid(1)));
    assert!(!server.responder.is_look_due());
    server.receive(&plain_call(Xid(2)));
    assert!(server.responder.is_look_due());
    server.responder.look_after(None, false);
    server.receive(&plain_call(Xid(3)));
    assert!(!server.responder.is_look_due());
}

/// Plain calls without a slot are counted late, so that there are none before a look.
#[test]
fn before_a_look_each_call_is_counted() {
    let mut server = Server::new(4);
    assert!(server.responder.has_slot());
    server.responder = server.responder.granting(2);
    assert!(server.responder.has_slot(), "no look was asked for");
    for (calls, may_rise, has_slot) in
        [(Some(3), false, false), (None, true, false), (Some(1), true, false), (None, false, true)]
    {
        server.responder.look_after(calls, may_rise);
        assert_eq!(server.responder.has_slot(), has_slot, "{calls:?} {may_rise}");
    }
}
