//! Shares of connections in the calls of a saturated core: "no client gets less than half of its share". Counted in calls,
//! not in time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::program::NULL;
use common::two_way::poll_until;
use common::{LIMIT, PROGRAM, VERSION, small_with, unique_address, valid};
use spinrpc::{
    Call, CallError, CallSpec, Client, Core, CoreContext, Engine, Reply, ReplyHandler, Service,
    Token,
};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

const CONNECTIONS: u64 = 64;
/// Calls that each connection makes, if all have their share.
const SHARE: u64 = 300;
/// Messages that the server handles in a turn: fewer than one of each connection.
const BUDGET: u64 = 32;

struct Null;

impl Service for Null {
    fn call(&mut self, call: Call<'_>) {
        call.reply(|_| {});
    }
}

#[derive(Clone, Default)]
struct Count(Rc<Cell<u64>>);

impl ReplyHandler for Count {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        reply.unwrap();
        self.0.set(self.0.get() + 1);
    }
}

struct Ends {
    near: Core,
    far: Core,
    clients: Vec<(Client, Count)>,
}

impl Ends {
    fn connect() -> Self {
        // No call has data: over a device, little memory for them.
        let of = |budget| {
            valid(small_with(|raw| (raw.poll.budget, raw.mem.conn_arena_mib) = (budget, 2)))
        };
        // The client never is what calls wait for.
        let here = Engine::new(of(1024)).unwrap();
        let there = Engine::new(of(BUDGET)).unwrap();
        there.serve(PROGRAM, VERSION, |_: &CoreContext| Null).unwrap();
        let address = unique_address();
        there.listen(&address).unwrap();
        let (near, far) = (here.core(0).unwrap(), there.core(0).unwrap());
        let mut ends = Self { near, far, clients: Vec::new() };
        (0..CONNECTIONS).for_each(|_| ends.connect_one(&address));
        ends
    }

    fn connect_one(&mut self, address: &str) {
        let count = Count::default();
        let handler = count.clone();
        let client = self.near.connect(address, PROGRAM, VERSION, |_| handler).unwrap();
        poll_until(&mut self.near, &mut self.far, "a connection", || client.is_up());
        self.clients.push((client, count));
    }

    fn replies(&self) -> Vec<u64> {
        self.clients.iter().map(|(_, count)| count.0.get()).collect()
    }

    /// Calls with all credits of each connection until the server has handled a number of calls.
    fn saturate(&mut self) {
        let end = Instant::now() + LIMIT;
        while self.replies().iter().sum::<u64>() < CONNECTIONS * SHARE {
            assert!(Instant::now() < end, "too few calls in {LIMIT:?}: {:?}", self.replies());
            for (client, _) in &self.clients {
                while client.call(NULL, Token(0), &mut CallSpec::short(), |_| {}).is_ok() {}
            }
            self.near.poll_once();
            self.far.poll_once();
        }
    }
}

#[track_caller]
fn expect_shares(replies: &[u64]) {
    let least = *replies.iter().min().unwrap();
    let share = replies.iter().sum::<u64>() / replies.len() as u64;
    assert!(2 * least >= share, "{least} calls of one, {share} on average, of {replies:?}");
}

#[test]
fn busy_connections_expect_equal_shares() {
    let mut ends = Ends::connect();
    ends.saturate();
    expect_shares(&ends.replies());
}
