//! A raw server in the test's hands, and the client of an engine that connects to it. The test turns both.

use super::prelude::*;
use super::raw::{RawListener, RawPeer, Said};

/// Credits that the server grants.
const GRANT: u32 = 64;

pub(crate) struct RawServer<T> {
    listener: RawListener,
    pub(crate) peer: RawPeer,
    pub(crate) caller: Caller<T>,
}

impl<T: 'static> RawServer<T> {
    /// The client has a connection, and its first call no answer.
    #[track_caller]
    pub(crate) fn asked(engine: Engine, options: &ConnectOptions, read: Read<T>) -> Self {
        Self::asked_by(|address| Caller::asked(engine, address, options, read))
    }

    /// The same with a client that the test makes.
    #[track_caller]
    pub(crate) fn asked_by(connect: impl FnOnce(&str) -> Caller<T>) -> Self {
        let (address, listener) = RawListener::new();
        let caller = connect(&address);
        Self { peer: listener.accept(), listener, caller }
    }

    /// The client is up.
    #[track_caller]
    pub(crate) fn up(raw: RawConfig, read: Read<T>) -> Self {
        let engine = Engine::new(valid(raw)).unwrap();
        let mut server = Self::asked(engine, &ConnectOptions::new(), read);
        server.open();
        server
    }

    /// Answers the call that opens the connection.
    #[track_caller]
    pub(crate) fn open(&mut self) {
        let call = self.hear();
        self.peer.send_words(&success(&call, GRANT));
        self.caller.come_up();
    }

    /// Lets the client take turns until there is a value.
    #[track_caller]
    pub(crate) fn until<V>(
        &mut self,
        what: &str,
        mut ready: impl FnMut(&mut Self) -> Option<V>,
    ) -> V {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(value) = ready(self) {
                return value;
            }
            assert!(Instant::now() < end, "waited {LIMIT:?} for {what}");
            pause_after(self.caller.core.poll_once().events);
        }
    }

    /// The client's next message.
    #[track_caller]
    pub(crate) fn hear(&mut self) -> Vec<u32> {
        self.until("a message", |server| server.peer.poll()).words()
    }

    /// The client's next connection, when this one has ended.
    #[track_caller]
    pub(crate) fn next(&mut self) {
        let is_end = |said: &Said| matches!(said, Said::Down(_));
        self.until("the end of a connection", |server| server.peer.poll().filter(is_end));
        self.take_next();
    }

    #[track_caller]
    pub(crate) fn take_next(&mut self) {
        self.until("another connection", |server| {
            server.peer.take_next(&server.listener).then_some(())
        });
    }

    /// Turns in which everything that can be sent is sent.
    #[track_caller]
    pub(crate) fn expect_silence(&mut self) {
        for _ in 0..200 {
            self.caller.core.poll_once();
            assert_eq!(self.peer.poll(), None);
        }
    }
}

/// MSG_ACCEPTED, SUCCESS, in the version of the call.
pub(crate) fn success(call: &[u32], grant: u32) -> Vec<u32> {
    let (xid, version) = (call[0], call[1]);
    // "rdma_direction" REPLY before the lists of version two.
    let direction: &[u32] = if version == 2 { &[1] } else { &[] };
    [&[xid, version, grant, 0], direction, &[0; 3], &[xid, 1, 0, 0, 0, 0]].concat()
}
