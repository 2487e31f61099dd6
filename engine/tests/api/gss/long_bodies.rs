//! Threads seal and open long bodies, while their cores do other work. The test turns the cores.

use super::*;

/// Bodies up to this length are sealed and opened at once.
pub(crate) const AT_ONCE: usize = 4096;
pub(crate) const LONG: usize = 256 * 1024;

/// A server and its clients, all turned by hand.
pub(crate) struct Turned {
    pub(crate) server: Core,
    pub(crate) seen: Arc<Seen>,
    pub(crate) address: String,
    pub(crate) callers: Vec<Caller<Vec<u8>>>,
    pub(crate) engine: Engine,
}

impl Turned {
    pub(crate) fn start() -> Self {
        Self::start_as(|raw| {
            raw.fixed.gss_at_once_bytes = AT_ONCE as u64;
            raw.mem.arena_mib = 64;
        })
    }

    /// The memory of the defaults, and 64 credits, but for this.
    pub(crate) fn start_as(change: impl FnOnce(&mut RawConfig)) -> Self {
        let config = valid(small_with(|raw| {
            raw.mem.arena_mib = RawConfig::default().mem.arena_mib;
            change(raw);
        }));
        let (engine, address) = (Engine::new(config).unwrap(), unique_address());
        let seen = Arc::<Seen>::default();
        let of_service = Arc::clone(&seen);
        engine
            .serve(PROGRAM, VERSION, move |context: &CoreContext| Program {
                context: context.clone(),
                seen: Arc::clone(&of_service),
            })
            .unwrap();
        engine.gss(GssAcceptor::new(keys(ENCTYPE, "server"))).unwrap();
        engine.listen(&address).unwrap();
        let server = engine.core(0).unwrap();
        Self { server, seen, address, callers: Vec::new(), engine }
    }

    /// Another client, on a core of its own, that seals and opens bodies up to this length itself.
    pub(crate) fn connect(&mut self, service: GssService, at_once_bytes: u64) -> usize {
        self.connect_as(service, |raw| {
            raw.fixed.gss_at_once_bytes = at_once_bytes;
            raw.mem.arena_mib = 64;
        })
    }

    pub(crate) fn connect_as(
        &mut self,
        service: GssService,
        change: impl FnOnce(&mut RawConfig),
    ) -> usize {
        let with = options(keys(ENCTYPE, "alice"), service);
        self.join(engine(small_with(change)), &with)
    }

    /// Another client, of this engine.
    pub(crate) fn join(&mut self, engine: Engine, with: &ConnectOptions) -> usize {
        self.callers.push(Caller::asked(engine, &self.address, with, one_item));
        let index = self.callers.len() - 1;
        self.wait_until("a context", |all| all.callers[index].client.is_up());
        index
    }

    /// Turns all cores; how many events they had.
    fn turn(&mut self) -> usize {
        let mut events = self.server.poll_once().events;
        for caller in &mut self.callers {
            events += caller.core.poll_once().events;
        }
        events
    }

    /// Turns all cores until other threads have done something, for which they need the CPU.
    pub(crate) fn wait_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let began = Instant::now();
        while !done(self) {
            assert!(began.elapsed() < LIMIT, "waited {LIMIT:?} for {what}");
            pause_after(self.turn());
        }
    }

    /// Turns all cores; how often, until it is so. Does not sleep between turns, which would be time for timers.
    pub(crate) fn turn_until(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> usize {
        let began = Instant::now();
        for turns in 0.. {
            if done(self) {
                return turns;
            }
            assert!(began.elapsed() < LIMIT, "no {what}");
            self.turn();
            std::thread::yield_now();
        }
        unreachable!("a test of {what} goes on for ever")
    }

    pub(crate) fn call(&mut self, index: usize, procedure: spinrpc::Procedure, data: &[u8]) {
        let mut spec = CallSpec::new().reply_bytes_max(data.len() + 64);
        let client = &self.callers[index].client;
        client.call(procedure, Token(7), &mut spec, |args| args.opaque(data)).unwrap();
    }

    /// A call that waits, with all cores turned, until its core has room for it.
    fn call_when_there_is_room(
        &mut self,
        index: usize,
        procedure: spinrpc::Procedure,
        data: &[u8],
        reply_bytes: usize,
    ) {
        let client = self.callers[index].client.clone();
        self.turn_until("room for a call", |_| {
            let mut spec = CallSpec::new().reply_bytes_max(reply_bytes);
            let started = client.call(procedure, Token(7), &mut spec, |args| args.opaque(data));
            match started {
                Ok(_) => true,
                Err(Backpressure::NoBuffer | Backpressure::NoCredit) => false,
                Err(refused) => panic!("{refused}"),
            }
        });
    }

    /// Answers in the order in which they came; an error as its text.
    pub(crate) fn heard(&self, index: usize) -> Vec<Result<Vec<u8>, String>> {
        let heard = self.callers[index].heard.borrow();
        let texts = |result: &Result<_, CallError>| result.clone().map_err(|why| why.to_string());
        heard.replies.iter().map(|(_, result)| texts(result)).collect()
    }

    pub(crate) fn answered(&self, index: usize) -> usize {
        self.callers[index].heard.borrow().replies.len()
    }

    pub(crate) fn calls(&self) -> u64 {
        self.seen.calls.load(Ordering::Relaxed)
    }
}

#[test]
fn threads_seal_and_open_a_long_call_and_its_reply_at_both_ends() {
    let data = pattern(3, LONG);
    for service in [GssService::Integrity, GssService::Privacy] {
        let mut all = Turned::start();
        let long = all.connect(service, AT_ONCE as u64);
        let short = all.connect(service, AT_ONCE as u64);
        all.call(long, ECHO, &data);
        all.call(short, ECHO, b"short");
        all.turn_until("both replies", |all| all.answered(long) + all.answered(short) == 2);
        assert_eq!(all.heard(long), [Ok(data.clone())], "{service:?}");
        assert_eq!(all.heard(short), [Ok(b"short".to_vec())], "{service:?}");
        assert_eq!(all.engine.gss_stats().long_bodies, 2, "{service:?}");
        assert_eq!(all.callers[long].engine.gss_stats().long_bodies, 2, "{service:?}");
        assert_eq!(all.callers[short].engine.gss_stats().long_bodies, 0, "{service:?}");
    }
}

/// A handler that answers later, on its core or on another thread.
#[test]
fn a_thread_seals_a_long_deferred_reply() {
    let data = pattern(5, LONG);
    let mut all = Turned::start();
    let index = all.connect(GssService::Privacy, 16 << 20);
    for (is_elsewhere, bodies) in [(false, 2), (true, 4)] {
        let before = all.answered(index);
        all.call(index, LATER, &data);
        all.turn_until("the call", |all| !lock(&all.seen.deferred).is_empty());
        let (data_back, deferred) = lock(&all.seen.deferred).pop().unwrap();
        let reply = move || deferred.reply(|results| results.opaque(&data_back));
        match is_elsewhere {
            true => std::thread::spawn(reply).join().unwrap(),
            false => reply(),
        }
        all.turn_until("the reply", |all| all.answered(index) > before);
        assert_eq!(all.heard(index).pop(), Some(Ok(data.clone())));
        assert_eq!(all.engine.gss_stats().long_bodies, bodies);
    }
}

/// A client may offer more memory than the results need, or less. Results are written to memory as long as what it offers.
#[test]
fn results_of_any_length_fit_the_memory_that_their_call_offers_or_end_it() {
    const OFFERED: usize = 4 * AT_ONCE;
    for service in [GssService::Integrity, GssService::Privacy] {
        let mut all = Turned::start();
        let index = all.connect(service, AT_ONCE as u64);
        for bytes in (0..AT_ONCE).step_by(509).chain(OFFERED - 80..OFFERED + 16).chain([LONG]) {
            let before = all.answered(index);
            all.call_when_there_is_room(index, FILL, &(bytes as u64).to_be_bytes(), OFFERED);
            all.turn_until("a reply", |all| all.answered(index) > before);
            match all.heard(index).pop().unwrap() {
                Ok(heard) => assert_eq!(heard, vec![0x77; bytes], "{service:?}, {bytes} bytes"),
                Err(_) => assert!(bytes + 4 > OFFERED, "{service:?}: {bytes} bytes did not fit"),
            }
        }
        let last = all.heard(index).pop().unwrap();
        assert!(last.is_err(), "{service:?}: more than was offered");
    }
}

/// At the defaults a core has 48 blocks of a mebibyte: bodies that wait take a part of them, and the rest is done at once.
#[test]
fn as_many_long_calls_and_replies_as_there_are_credits_find_memory() {
    const MIB: usize = 1 << 20;
    let data = pattern(3, MIB);
    let mut all = Turned::start_as(|_| {});
    let index = all.connect_as(GssService::Privacy, |raw| raw.mem.arena_mib = 256);
    for _ in 0..30 {
        all.call_when_there_is_room(index, LENGTH, &data, 64);
    }
    all.turn_until("all writes", |all| all.answered(index) == 30);
    let length = || Ok(MIB.to_be_bytes().to_vec());
    assert!(all.heard(index).iter().all(|heard| *heard == length()), "a write found no memory");
    for _ in 0..64 {
        all.call_when_there_is_room(index, FILL, &(MIB as u64).to_be_bytes(), MIB + 64);
    }
    all.turn_until("all reads", |all| all.answered(index) == 94);
    let filled = vec![0x77; MIB];
    for heard in &all.heard(index)[30..] {
        assert_eq!(heard.as_deref(), Ok(&filled[..]));
    }
}
