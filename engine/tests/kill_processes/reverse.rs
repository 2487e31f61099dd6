//! One end of a connection with calls in both directions is killed (RFC 8167): the calls of the other
//! end, forward or in reverse, end once; those that it has to answer go nowhere; and its other
//! connection goes on in both directions.

use super::{
    Kept, Load, Moments, Other, PROGRAM, ROUNDS, SharedMemoryFiles, VERSION, alone, expect_noticed,
    say_ready, start,
};
use crate::common::prelude::*;

/// Role of the other process: it serves, and calls its clients ...
pub(super) const SERVER: &str = "server that calls back";
/// ... or it connects, and is called.
pub(super) const CLIENT: &str = "client that is called back";

/// Calls in reverse at a time.
const REVERSE: u64 = 6;
/// Calls of each direction that stay with the end that should answer them.
const OPEN: u64 = 2;

/// Configuration with memory for the calls of both directions of two connections.
fn two_way(mut raw: RawConfig) -> RawConfig {
    (raw.rpc.reverse_calls, raw.mem.arena_mib) = (REVERSE, 64);
    raw
}

pub(super) fn call_for_ever(address: &str) {
    let engine = Engine::new(valid(two_way(small()))).unwrap();
    let shared = serve(&engine);
    engine.listen(address).unwrap();
    let mut core = engine.core(0).unwrap();
    say_ready();
    let mut called = 0;
    loop {
        core.poll_once();
        if let Some(connection) = connections(&shared).get(called) {
            Load::in_reverse(&mut core, *connection);
            called += 1;
        }
        std::thread::yield_now();
    }
}

pub(super) fn be_called_for_ever(address: &str) {
    let engine = Engine::new(valid(two_way(client_config()))).unwrap();
    serve(&engine);
    let mut core = engine.core(0).unwrap();
    say_ready();
    Load::forward(&mut core, address);
    core.run_until(|| false);
}

impl Load {
    /// Calls over a connection that the other end may use as well; it is up, and has begun.
    #[track_caller]
    fn forward(core: &mut Core, address: &str) -> Self {
        let state = Rc::default();
        let options = ConnectOptions::new().take_reverse_calls();
        let make = |client| Self { client, state: Rc::clone(&state), open_calls: OPEN };
        let client = core.connect_with(address, PROGRAM, VERSION, &options, make).unwrap();
        run_core(core, "the connection", || client.is_up());
        Self { client, state, open_calls: OPEN }.begun()
    }

    fn in_reverse(core: &mut Core, connection: ConnectionId) -> Self {
        let (state, options) = (Rc::default(), ReverseOptions::new());
        let end = Instant::now() + LIMIT;
        let client = loop {
            assert!(Instant::now() < end, "not called for {LIMIT:?}");
            let make = |client| Self { client, state: Rc::clone(&state), open_calls: OPEN };
            match core.reverse_client(connection, PROGRAM, VERSION, &options, make) {
                Ok(client) => break client,
                // Its first call is on its way.
                Err(NoReverse::NotCalled) => core.poll_once(),
                Err(other) => panic!("{other}"),
            };
        };
        Self { client, state, open_calls: OPEN }.begun()
    }

    fn begun(self) -> Self {
        self.fill();
        self
    }

    /// The connection is gone: every call has ended, and nothing is left.
    #[track_caller]
    fn expect_ended(&self) {
        let (cause, in_flight) = self.state.borrow_mut().down.take().unwrap();
        crate::common::expect_killed(Some(&cause));
        let state = self.state.borrow();
        assert!(state.in_flight.is_empty(), "never ended: {:?}", state.in_flight);
        assert_eq!((state.disconnected, state.ended), (in_flight as u64, state.next));
        assert!(state.disconnected >= OPEN);
    }
}

/// The end of this process, which survives.
struct Survivor {
    engine: Engine,
    core: Core,
    shared: Arc<Shared>,
    moments: Moments,
}

impl Survivor {
    fn new(raw: RawConfig) -> Self {
        let engine = Engine::new(valid(two_way(raw))).unwrap();
        let shared = serve(&engine);
        let core = engine.core(0).unwrap();
        Self { engine, core, shared, moments: Moments::new() }
    }

    /// A connection that was accepted, and is called by.
    #[track_caller]
    fn call_next(&mut self, known: usize) -> Load {
        let shared = &self.shared;
        run_core(&mut self.core, "a connection", || connections(shared).len() > known);
        let connection = connections(shared)[known];
        Load::in_reverse(&mut self.core, connection)
    }

    /// Both directions have calls that are not answered, and many that are.
    #[track_caller]
    fn wait_for_load(&mut self, load: &Load, calls: u64) {
        let is_open = |token| load.state.borrow().in_flight.contains(&token);
        let (shared, has_open) = (&self.shared, || (1..=OPEN).all(is_open));
        let has_load = || load.ended() >= calls && shared.waiting() == OPEN as usize && has_open();
        run_core(&mut self.core, "calls in both directions", has_load);
    }

    /// Kills the end of `load`, with calls of both directions in flight. How long it took to notice.
    #[track_caller]
    fn kill(&mut self, mut victim: Other, load: &Load) -> Duration {
        let (calls, downs) = (self.moments.next() / 4, self.shared.downs());
        self.wait_for_load(load, calls);
        victim.child.kill().unwrap();
        let killed = Instant::now();
        let (shared, is_down) = (&self.shared, || load.state.borrow().down.is_some());
        run_core(&mut self.core, "the end", || is_down() && shared.downs() == downs + 1);
        let noticed = killed.elapsed();
        load.expect_ended();
        crate::common::expect_killed(self.shared.last_down().as_ref());
        self.answer_nobody();
        noticed
    }

    /// The calls of the peer that has gone are answered all the same.
    fn answer_nobody(&mut self) {
        let engine = &self.engine;
        let stale = engine.stats(0).unwrap().stale + OPEN;
        self.shared.answer_all_with_nothing();
        run_core(&mut self.core, "the answers", || engine.stats(0).unwrap().stale == stale);
    }

    /// The other connection serves and calls on.
    #[track_caller]
    fn expect_both_directions(&mut self, other: &Load) {
        let (engine, ended) = (&self.engine, other.ended());
        let received = engine.stats(0).unwrap().calls_received;
        run_core(&mut self.core, "calls of the other connection", || {
            let served = engine.stats(0).unwrap().calls_received - received;
            other.ended() >= ended + 200 && served >= 200
        });
    }
}

/// Kills one peer after the other; `next` makes each, and the survivor's calls to it.
fn kill_many(mut survivor: Survivor, mut next: impl FnMut(&mut Survivor, usize) -> (Other, Load)) {
    let files = SharedMemoryFiles::now();
    let (_other, other) = next(&mut survivor, 0);
    survivor.wait_for_load(&other, 0);
    let kept: Vec<_> = std::iter::from_fn(|| survivor.shared.pop()).collect();
    assert_eq!(kept.len() as u64, OPEN, "of the connection that stays");
    let (mut kept, mut noticed) = (Kept::default(), Vec::new());
    for round in 0..=ROUNDS {
        let (victim, load) = next(&mut survivor, round as usize + 1);
        noticed.push(survivor.kill(victim, &load));
        survivor.expect_both_directions(&other);
        kept.expect_back();
    }
    expect_noticed(noticed);
    files.expect_none_left_by_us();
}

#[test]
fn kill_a_server_that_calls_back_expect_the_calls_of_both_directions_to_end() {
    let _alone = alone();
    kill_many(Survivor::new(client_config()), |survivor, _| {
        let address = unique_address();
        let server = start(SERVER, &address);
        (server, Load::forward(&mut survivor.core, &address))
    });
}

#[test]
fn kill_a_client_that_is_called_back_expect_the_calls_of_both_directions_to_end() {
    let _alone = alone();
    let survivor = Survivor::new(small());
    let address = unique_address();
    survivor.engine.listen(&address).unwrap();
    kill_many(survivor, |survivor, known| {
        let client = start(CLIENT, &address);
        (client, survivor.call_next(known))
    });
}
