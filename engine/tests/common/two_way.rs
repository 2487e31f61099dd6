//! Both ends of a connection with calls in reverse, on the test's own thread: each end has an engine
//! that serves the test program, and a client.

use super::caller::{Read, SharedHeard, recorder};
use super::program::Shared;
use super::{LIMIT, PROGRAM, VERSION, pause_after, serve, unique_address, valid};
use spinrpc::config::RawConfig;
use spinrpc::sync::lock;
use spinrpc::{
    CallError, CallSpec, Client, ConnectOptions, ConnectionEvent, ConnectionId, Core, Engine,
    ReverseOptions, Token,
};
use std::sync::Arc;
use std::time::Instant;

pub(crate) struct End<T> {
    pub(crate) engine: Engine,
    pub(crate) core: Core,
    /// Inside of the program that this end serves.
    pub(crate) shared: Arc<Shared>,
    pub(crate) client: Client,
    pub(crate) heard: SharedHeard<T>,
}

impl<T> End<T> {
    pub(crate) fn take(&self) -> Vec<(u64, Result<T, CallError>)> {
        std::mem::take(&mut self.heard.borrow_mut().replies)
    }

    pub(crate) fn reply_count(&self) -> usize {
        self.heard.borrow().replies.len()
    }

    pub(crate) fn downs(&self) -> usize {
        let heard = self.heard.borrow();
        let is_down = |event: &&ConnectionEvent| matches!(event, ConnectionEvent::Down { .. });
        heard.events.iter().filter(is_down).count()
    }
}

pub(crate) struct Pair<T> {
    pub(crate) near: End<T>,
    /// The end that accepted, and calls in reverse.
    pub(crate) far: End<T>,
}

/// The connections that the program of an engine has heard of.
pub(crate) fn connections(shared: &Shared) -> Vec<ConnectionId> {
    let up = |event: &ConnectionEvent| match event {
        ConnectionEvent::Up { connection, .. } => Some(*connection),
        _ => None,
    };
    lock(&shared.events).iter().filter_map(up).collect()
}

impl<T: 'static> Pair<T> {
    /// Connects as `options` say, and gives both ends their clients.
    #[track_caller]
    pub(crate) fn connect(
        raw: RawConfig,
        options: &ConnectOptions,
        reverse: ReverseOptions,
        read: Read<T>,
    ) -> Self {
        let config = valid(raw);
        let (here, there) = (Engine::new(config.clone()).unwrap(), Engine::new(config).unwrap());
        let (of_near, of_far) = (serve(&here), serve(&there));
        let address = unique_address();
        there.listen(&address).unwrap();
        let (mut near, mut far) = (here.core(0).unwrap(), there.core(0).unwrap());
        let heard = SharedHeard::default();
        let made = recorder(&heard, read);
        let client = near.connect_with(&address, PROGRAM, VERSION, options, |_| made).unwrap();
        poll_until(&mut near, &mut far, "the connection", || client.is_up());
        let connection = *connections(&of_far).last().unwrap();
        let heard_back = SharedHeard::default();
        let made = recorder(&heard_back, read);
        let back = far.reverse_client(connection, PROGRAM, VERSION, &reverse, |_| made).unwrap();
        Self {
            near: End { engine: here, core: near, shared: of_near, client, heard },
            far: End { engine: there, core: far, shared: of_far, client: back, heard: heard_back },
        }
    }

    pub(crate) fn turn(&mut self) {
        self.events_of_turn();
    }

    fn events_of_turn(&mut self) -> usize {
        self.near.core.poll_once().events + self.far.core.poll_once().events
    }

    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = Instant::now() + LIMIT;
        while !done(self) {
            assert!(Instant::now() < end, "waited {LIMIT:?} for {what}");
            pause_after(self.events_of_turn());
        }
    }

    /// Waits for the answer to a first call in reverse, so that all credits are there.
    #[track_caller]
    pub(crate) fn open_window(&mut self) {
        let client = &self.far.client;
        client.call(super::program::NULL, Token(0), &mut CallSpec::short(), |_| {}).unwrap();
        self.until("the first reply in reverse", |pair| pair.far.reply_count() == 1);
        self.far.take();
    }
}

#[track_caller]
pub(crate) fn poll_until(
    near: &mut Core,
    far: &mut Core,
    what: &str,
    mut done: impl FnMut() -> bool,
) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "waited {LIMIT:?} for {what}");
        pause_after(near.poll_once().events + far.poll_once().events);
    }
}
