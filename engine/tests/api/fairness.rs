//! Shares of connections in the calls of a saturated core: "no client gets less than half of its share". Counted in calls,
//! not in time.

use crate::common::prelude::*;

const CONNECTIONS: u64 = 64;
/// Calls that each connection makes, if all have their share.
const SHARE: u64 = 300;
/// Messages that the server handles in a turn: fewer than one of each connection.
const BUDGET: u64 = 32;

#[derive(Clone, Default)]
struct Count(Rc<Cell<u64>>);

impl ReplyHandler for Count {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        reply.unwrap();
        self.0.set(self.0.get() + 1);
    }
}

struct Ends {
    cores: Cores,
    clients: Vec<(Client, Count)>,
}

impl Ends {
    fn connect() -> Self {
        // No call has data: over a device, little memory for them.
        let of = |budget| {
            engine(small_with(|raw| (raw.poll.budget, raw.mem.conn_arena_mib) = (budget, 2)))
        };
        // The client never is what calls wait for.
        let mut cores = Cores::new(of(1024), of(BUDGET), |there| {
            there.serve(PROGRAM, VERSION, |_| |call: Call<'_>| call.reply(|_| {})).unwrap();
        });
        let mut connect = || {
            let count = Count::default();
            (cores.connect(&ConnectOptions::new(), |_| count.clone()), count)
        };
        let clients = (0..CONNECTIONS).map(|_| connect()).collect();
        Self { cores, clients }
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
            self.cores.near.poll_once();
            self.cores.far.poll_once();
        }
    }
}

#[test]
fn busy_connections_expect_equal_shares() {
    let mut ends = Ends::connect();
    ends.saturate();
    let replies = ends.replies();
    let least = *replies.iter().min().unwrap();
    let share = replies.iter().sum::<u64>() / CONNECTIONS;
    assert!(2 * least >= share, "{least} calls of one, {share} on average, of {replies:?}");
}
