//! A requester and responders old and new, over connections that are cut anywhere: every call is
//! answered once, whatever versions meet (draft-cel-nfsv4-rpcrdma-version-two-01 section 5).

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;

use spinrpc_proto::chunking::CallChunks;
use spinrpc_proto::connection::Side;
use spinrpc_proto::events::SlotId;
use spinrpc_proto::ids::Xid;
use spinrpc_proto::rdma::emit_error;
use spinrpc_proto::version::{Negotiation, Stage, TransportVersion, Verdict, Versions};

use crate::messages::{NEVER, rpc_call, rpc_reply};
use crate::recorder::{Event, Recorder};
use crate::two::{Proto, end, view};

const SLOTS: usize = 4;

/// Possible steps; messages of a connection arrive in order, or not at all.
#[derive(Clone, Debug)]
enum Step {
    Call,
    ServerReceives,
    ServerAnswers(u8),
    ClientReceives,
    Cut,
    /// The responder is replaced, on the next connection, by one of another kind.
    Upgrade(Versions),
}

fn versions() -> impl Strategy<Value = Versions> {
    prop_oneof![Just(Versions::One), Just(Versions::Both)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Call),
        4 => Just(Step::ServerReceives),
        4 => any::<u8>().prop_map(Step::ServerAnswers),
        4 => Just(Step::ClientReceives),
        1 => Just(Step::Cut),
        1 => versions().prop_map(Step::Upgrade),
    ]
}

struct Fleet {
    client: Proto,
    server: Proto,
    speaks: Versions,
    next_speaks: Versions,
    remembered: Verdict,
    to_server: VecDeque<Vec<u8>>,
    to_client: VecDeque<Vec<u8>>,
    /// Calls that the server has not answered.
    served: Vec<(SlotId, Xid)>,
    answers: Vec<u32>,
}

impl Fleet {
    fn new(server: Versions) -> Self {
        Self {
            client: end(Side::Client, Versions::Both, SLOTS),
            server: end(Side::Server, server, SLOTS),
            speaks: server,
            next_speaks: server,
            remembered: Verdict::Unknown,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            served: Vec::new(),
            answers: Vec::new(),
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Call => self.call(),
            Step::ServerReceives => self.server_receives(),
            Step::ServerAnswers(nth) => self.server_answers(usize::from(*nth)),
            Step::ClientReceives => self.client_receives(),
            Step::Cut => self.cut(),
            Step::Upgrade(versions) => self.next_speaks = *versions,
        }
        self.resend();
        self.check();
    }

    fn check(&self) {
        let requester = &self.client.requester;
        let stage = requester.negotiation().stage();
        if matches!(stage, Stage::Offered | Stage::FellBack) {
            assert!(requester.credits().in_flight() <= 1, "one at a time");
        }
        assert!(stage != Stage::NoneInCommon, "there is a version in common");
        if stage == Stage::Settled {
            assert!(self.speaks.speaks(requester.negotiation().version()));
        }
    }

    fn call(&mut self) {
        let token = self.answers.len() as u64;
        let mut header = [0; 32];
        let requester = &mut self.client.requester;
        let chunks = &CallChunks::EMPTY;
        if requester.held().count() > 0 || requester.check_room().is_err() {
            return;
        }
        let (call, length) = requester.start_call(token, NEVER, chunks, &mut header).unwrap();
        self.answers.push(0);
        self.to_server.push_back([&header[32 - length..], &rpc_call(call.xid)].concat());
    }

    /// Sends held calls as soon as there is a credit.
    fn resend(&mut self) {
        let held: Vec<_> = self.client.requester.held().collect();
        for slot in held {
            let mut header = [0; 32];
            let chunks = &CallChunks::EMPTY;
            if let Ok((call, length)) = self.client.requester.resend(slot, chunks, &mut header) {
                self.to_server.push_back([&header[32 - length..], &rpc_call(call.xid)].concat());
            }
        }
    }

    fn server_receives(&mut self) {
        let Some(message) = self.to_server.pop_front() else { return };
        let mut out = Recorder::default();
        self.server.on_receive(&message, &mut out);
        match out.take()[..] {
            [Event::Call(slot)] => self.served.push((slot, view(&message).xid())),
            [Event::Error(xid, version, error)] => {
                let mut answer = [0; 28];
                let length = emit_error(&mut answer, xid, version, 4, error);
                self.to_client.push_back(answer[..length].to_vec());
            }
            ref other => panic!("{other:?}"),
        }
    }

    fn server_answers(&mut self, nth: usize) {
        if self.served.is_empty() {
            return;
        }
        let (slot, xid) = self.served.swap_remove(nth % self.served.len());
        let mut header = [0; 32];
        let length = self.server.responder.reply_plain(slot, xid, &mut header).unwrap();
        self.to_client.push_back([&header[32 - length..], &rpc_reply(xid)].concat());
    }

    fn client_receives(&mut self) {
        let Some(message) = self.to_client.pop_front() else { return };
        let mut out = Recorder::default();
        self.client.on_receive(&message, &mut out);
        match out.take()[..] {
            [Event::Reply(reply)] => self.answers[reply.token as usize] += 1,
            [Event::Resend(_)] => {}
            ref other => panic!("{other:?}"),
        }
    }

    /// The connection goes, and another one comes: calls are held, and the client has learnt.
    fn cut(&mut self) {
        self.to_server.clear();
        self.to_client.clear();
        self.served.clear();
        self.speaks = self.next_speaks;
        self.server = end(Side::Server, self.speaks, SLOTS);
        match self.client.requester.verdict() {
            Verdict::Unknown => {}
            known => self.remembered = known,
        }
        let requester = &mut self.client.requester;
        requester.suspend(|_, _| true);
        requester.negotiate(match self.remembered {
            Verdict::NoVersionTwo => Negotiation::settled(TransportVersion::One),
            _ => Negotiation::new(Versions::Both),
        });
    }

    fn finish(mut self) {
        for _ in 0..1000 {
            self.server_receives();
            self.server_answers(0);
            self.client_receives();
            self.resend();
        }
        assert!(self.answers.iter().all(|count| *count == 1), "{:?}", self.answers);
        assert_eq!(self.client.requester.credits().in_flight(), 0);
    }
}

proptest! {
    #[test]
    fn every_call_is_answered_once_whatever_versions_meet(
        server in versions(), steps in vec(step(), 0..150),
    ) {
        let mut fleet = Fleet::new(server);
        for step in &steps {
            fleet.take(step);
        }
        fleet.finish();
    }
}

#[test]
fn a_connection_cut_at_each_step_of_the_negotiation() {
    let walk = [Step::Call, Step::ServerReceives, Step::ServerAnswers(0), Step::ClientReceives];
    for server in [Versions::One, Versions::Both] {
        for next in [Versions::One, Versions::Both] {
            for at in 0..3 * walk.len() {
                let mut fleet = Fleet::new(server);
                fleet.take(&Step::Call);
                fleet.take(&Step::Upgrade(next));
                walk.iter().cycle().take(at).for_each(|step| fleet.take(step));
                fleet.take(&Step::Cut);
                walk.iter().for_each(|step| fleet.take(step));
                fleet.finish();
            }
        }
    }
}

#[test]
fn an_old_responder_is_asked_once() {
    let mut fleet = Fleet::new(Versions::One);
    fleet.take(&Step::Call);
    fleet.take(&Step::ServerReceives);
    fleet.take(&Step::ClientReceives);
    fleet.take(&Step::Cut);
    assert_eq!(fleet.client.requester.negotiation().stage(), Stage::Settled);
    assert_eq!(view(&fleet.to_server[0]).version(), 1, "no negotiation loop");
    fleet.finish();
}
