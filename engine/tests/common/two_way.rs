//! Both ends of a connection with calls in reverse, on the test's own thread: each end has an engine
//! that serves the test program, and a client.

use super::prelude::*;

/// Cores of two engines that take turns on the test's thread: the far one listens.
pub(crate) struct Cores {
    pub(crate) here: Engine,
    pub(crate) there: Engine,
    pub(crate) near: Core,
    pub(crate) far: Core,
    pub(crate) address: String,
}

impl Cores {
    pub(crate) fn of(raw: RawConfig, serve: impl FnOnce(&Engine)) -> Self {
        let config = valid(raw);
        let (here, there) = (Engine::new(config.clone()).unwrap(), Engine::new(config).unwrap());
        Self::new(here, there, serve)
    }

    /// Engines that have not started; `serve` gives the far one its services.
    pub(crate) fn new(here: Engine, there: Engine, serve: impl FnOnce(&Engine)) -> Self {
        serve(&there);
        let address = listening(&there);
        let (near, far) = (here.core(0).unwrap(), there.core(0).unwrap());
        Self { here, there, near, far, address }
    }

    /// A client that is up.
    #[track_caller]
    pub(crate) fn connect<H: ReplyHandler + 'static>(
        &mut self,
        options: &ConnectOptions,
        make: impl FnOnce(Client) -> H,
    ) -> Client {
        let address = &self.address;
        let client = self.near.connect_with(address, PROGRAM, VERSION, options, make).unwrap();
        self.until("the connection", || client.is_up());
        client
    }

    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, done: impl FnMut() -> bool) {
        poll_until(&mut self.near, &mut self.far, what, done);
    }
}

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
        let mut cores = Cores::new(here, there, |_| {});
        let (heard, heard_back) = (SharedHeard::default(), SharedHeard::default());
        let client = cores.connect(options, |_| recorder(&heard, read));
        let connection = *connections(&of_far).last().unwrap();
        let made = recorder(&heard_back, read);
        let Cores { here, there, near, mut far, .. } = cores;
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
