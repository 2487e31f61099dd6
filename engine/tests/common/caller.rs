//! A client on the test's own thread: it records every reply and event, and waits with a deadline.

use super::prelude::*;

pub(crate) struct Heard<T> {
    pub(crate) replies: Vec<(u64, Result<T, CallError>)>,
    pub(crate) events: Vec<ConnectionEvent>,
}

impl<T> Default for Heard<T> {
    fn default() -> Self {
        Self { replies: Vec::new(), events: Vec::new() }
    }
}

/// Reads a reply while its bytes are there.
pub(crate) type Read<T> = fn(Reply<'_>) -> Result<T, DecodeError>;

pub(crate) struct Recorder<T> {
    heard: Rc<RefCell<Heard<T>>>,
    read: Read<T>,
}

impl<T> ReplyHandler for Recorder<T> {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        let result = reply.and_then(|reply| Ok((self.read)(reply)?));
        self.heard.borrow_mut().replies.push((token.0, result));
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        self.heard.borrow_mut().events.push(event.clone());
    }
}

pub(crate) fn recorder<T>(heard: &Rc<RefCell<Heard<T>>>, read: Read<T>) -> Recorder<T> {
    Recorder { heard: Rc::clone(heard), read }
}

pub(crate) struct Caller<T> {
    pub(crate) client: Client,
    pub(crate) heard: Rc<RefCell<Heard<T>>>,
    pub(crate) core: Core,
    pub(crate) engine: Engine,
}

pub(crate) fn all_words(mut reply: Reply<'_>) -> Result<Vec<u32>, DecodeError> {
    let mut results = reply.results();
    Ok(std::iter::from_fn(|| results.u32().ok()).collect())
}

pub(crate) fn one_opaque(mut reply: Reply<'_>) -> Result<Vec<u8>, DecodeError> {
    let mut results = reply.results();
    let bytes = results.opaque(ITEM_MAX)?.to_vec();
    results.finish().map(|()| bytes)
}

/// The buffers of arguments and of results, back again.
pub(crate) fn take_buffers(mut reply: Reply<'_>) -> Result<(Vec<Bulk>, Vec<Bulk>), DecodeError> {
    let arguments = std::iter::from_fn(|| reply.take_argument()).collect();
    let results = std::iter::from_fn(|| reply.take_result()).collect();
    Ok((arguments, results))
}

pub(crate) fn client_config() -> RawConfig {
    small_with(|raw| raw.mem.arena_mib = 32)
}

pub(crate) fn client_with(change: impl FnOnce(&mut RawConfig)) -> RawConfig {
    let mut raw = client_config();
    change(&mut raw);
    raw
}

/// An engine that has not started, and its core.
#[track_caller]
pub(crate) fn with_core(raw: RawConfig) -> (Engine, Core) {
    let engine = engine(raw);
    let core = engine.core(0).unwrap();
    (engine, core)
}

/// A server with the test program, and a client of it.
#[track_caller]
pub(crate) fn served<T: 'static>(read: Read<T>) -> (Server, Caller<T>) {
    let server = Server::start();
    let caller = Caller::connect(&server.address, read);
    (server, caller)
}

impl<T: 'static> Caller<T> {
    #[track_caller]
    pub(crate) fn connect(address: &str, read: Read<T>) -> Self {
        Self::connect_with(client_config(), address, read)
    }

    #[track_caller]
    pub(crate) fn connect_with(raw: RawConfig, address: &str, read: Read<T>) -> Self {
        Self::on(Engine::new(valid(raw)).unwrap(), address, read)
    }

    /// Connects an engine that has not started.
    #[track_caller]
    pub(crate) fn on(engine: Engine, address: &str, read: Read<T>) -> Self {
        let mut core = engine.core(0).unwrap();
        let (client, heard) = open(&mut core, address, read).unwrap();
        Self { client, heard, core, engine }
    }

    /// Has an engine that has not started ask for a connection.
    #[track_caller]
    pub(crate) fn asked(
        engine: Engine,
        address: &str,
        options: &ConnectOptions,
        read: Read<T>,
    ) -> Self {
        let mut core = engine.core(0).unwrap();
        let heard = SharedHeard::default();
        let made = recorder(&heard, read);
        let client = core.connect_with(address, PROGRAM, VERSION, options, |_| made).unwrap();
        Self { client, heard, core, engine }
    }

    /// Runs the core until the client is up. Fails at once, with the reason, if it cannot be.
    #[track_caller]
    pub(crate) fn come_up(&mut self) {
        let (client, heard) = (self.client.clone(), Rc::clone(&self.heard));
        let is_failed = || {
            let failed = |event: &_| matches!(event, ConnectionEvent::ConnectFailed { .. });
            heard.borrow().events.iter().any(failed)
        };
        run_core(&mut self.core, "the connection", || client.is_up() || is_failed());
        assert!(client.is_up(), "{:?}", heard.borrow().events);
    }

    pub(crate) fn start(
        &self,
        procedure: Procedure,
        token: u64,
        encode: impl FnOnce(&mut Encoder<'_>),
    ) -> Result<CallId, Backpressure> {
        self.client.call(procedure, Token(token), &mut CallSpec::short(), encode)
    }

    /// Starts a call with each token that the server answers later.
    pub(crate) fn start_later(&self, tokens: std::ops::Range<u64>, number: impl Fn(u64) -> u32) {
        for token in tokens {
            self.start(super::program::LATER, token, |args| args.u32(number(token))).unwrap();
        }
    }

    /// Runs the core until `done` accepts the events, or fails.
    #[track_caller]
    pub(crate) fn run_until(&mut self, what: &str, done: impl Fn(&Heard<T>) -> bool) {
        let heard = Rc::clone(&self.heard);
        run_core(&mut self.core, what, || done(&heard.borrow()));
    }

    /// Runs the core until this number of replies was heard, and takes them.
    #[track_caller]
    pub(crate) fn replies(&mut self, count: usize) -> Vec<(u64, Result<T, CallError>)> {
        self.run_until(&format!("{count} replies"), |heard| heard.replies.len() >= count);
        let replies = std::mem::take(&mut self.heard.borrow_mut().replies);
        assert_eq!(replies.len(), count, "more replies than calls");
        replies
    }

    #[track_caller]
    pub(crate) fn reply(&mut self) -> Result<T, CallError> {
        self.replies(1).pop().unwrap().1
    }

    #[track_caller]
    pub(crate) fn call(
        &mut self,
        procedure: Procedure,
        encode: impl FnOnce(&mut Encoder<'_>),
    ) -> Result<T, CallError> {
        self.start(procedure, 0, encode).unwrap();
        self.reply()
    }

    /// Runs the core until the connection is down, and says how many calls were in flight.
    #[track_caller]
    pub(crate) fn down(&mut self) -> (spinrpc::DownCause, usize) {
        let down = |heard: &Heard<T>| {
            heard.events.iter().find_map(|event| match event {
                ConnectionEvent::Down { cause, in_flight, .. } => Some((cause.clone(), *in_flight)),
                _ => None,
            })
        };
        self.run_until("the end of the connection", |heard| down(heard).is_some());
        down(&self.heard.borrow()).unwrap()
    }

    /// Blocks of `bytes` that the connection has left.
    pub(crate) fn free_blocks(&self, bytes: usize) -> usize {
        let blocks: Vec<_> = std::iter::from_fn(|| self.client.exposed_bulk(bytes)).collect();
        blocks.len()
    }
}

pub(crate) type SharedHeard<T> = Rc<RefCell<Heard<T>>>;

pub(crate) fn open<T: 'static>(
    core: &mut Core,
    address: &str,
    read: Read<T>,
) -> Result<(Client, SharedHeard<T>), ConnectError> {
    let heard = Rc::new(RefCell::new(Heard::default()));
    let made = recorder(&heard, read);
    let client = core.connect_wait(address, PROGRAM, VERSION, |_| made, LIMIT)?;
    Ok((client, heard))
}

#[track_caller]
pub(crate) fn run_core(core: &mut Core, what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    core.run_until(|| done() || Instant::now() > end);
    assert!(done(), "waited {LIMIT:?} for {what}");
}

#[derive(Clone, Debug, Default)]
pub(crate) struct MixCall {
    pub(crate) seed: u32,
    pub(crate) arguments: Vec<usize>,
    pub(crate) results: Vec<usize>,
    /// Room offered for each of them.
    pub(crate) offers: Vec<usize>,
    /// Bytes of the results that are never placed.
    pub(crate) tail: usize,
    /// Room announced for the results that are not placed.
    pub(crate) reply_bytes_max: usize,
}

#[derive(Debug)]
pub(crate) struct MixAnswer {
    /// Bit i: argument i arrived in the server's registered memory.
    pub(crate) in_memory: u32,
    /// Bit i: result i was placed in our memory.
    pub(crate) placed: u32,
    pub(crate) items: Vec<Vec<u8>>,
    pub(crate) tail: Vec<u8>,
    pub(crate) arguments: Vec<Bulk>,
}

#[track_caller]
pub(crate) fn run(caller: &mut Caller<MixAnswer>, call: &MixCall) -> MixAnswer {
    call.start(&caller.client, 1).unwrap();
    let answer = caller.reply().unwrap_or_else(|error| panic!("{call:?}: {error}"));
    call.check(&answer);
    answer
}

impl MixCall {
    pub(crate) fn start(&self, client: &Client, token: u64) -> Result<CallId, Backpressure> {
        self.start_as(client, token, Resend::Never)
    }

    /// Starts it, to be sent again or not.
    pub(crate) fn start_as(
        &self,
        client: &Client,
        token: u64,
        resend: Resend,
    ) -> Result<CallId, Backpressure> {
        let mut spec = self.spec(client).ok_or(Backpressure::NoBuffer)?.resend(resend);
        let (seed, count) = (self.seed, self.arguments.len() as u32);
        client.call(MIX, Token(token), &mut spec, |args| {
            args.u32(seed);
            args.u32(count);
            (0..count).for_each(|_| args.bulk());
            args.u32(self.results.len() as u32);
            self.results.iter().for_each(|length| args.u32(*length as u32));
            args.u32(self.tail as u32);
        })
    }

    fn spec(&self, client: &Client) -> Option<CallSpec> {
        let mut spec = CallSpec::new().reply_bytes_max(self.reply_bytes_max);
        for (index, length) in self.arguments.iter().enumerate() {
            let mut bulk = client.bulk(*length)?;
            fill_pattern(self.seed + index as u32, bulk.bytes_mut());
            spec = spec.argument(bulk);
        }
        for length in &self.offers {
            spec = spec.result_into(client.bulk(*length)?);
        }
        Some(spec)
    }

    pub(crate) fn read(mut reply: Reply<'_>) -> Result<MixAnswer, DecodeError> {
        let arguments = std::iter::from_fn(|| reply.take_argument()).collect();
        let mut results = reply.results();
        let in_memory = results.u32()?;
        let (mut placed, mut items) = (0, Vec::new());
        for index in 0..results.u32()? {
            let item = results.data(ITEM_MAX)?;
            placed |= u32::from(matches!(item, Data::Bulk(_))) << index;
            items.push(item.bytes().to_vec());
        }
        let tail = results.opaque(ITEM_MAX)?.to_vec();
        results.finish()?;
        Ok(MixAnswer { in_memory, placed, items, tail, arguments })
    }

    #[track_caller]
    pub(crate) fn check(&self, answer: &MixAnswer) {
        let lengths: Vec<usize> = answer.items.iter().map(Vec::len).collect();
        assert_eq!(lengths, self.results, "{self:?}");
        for (index, item) in answer.items.iter().enumerate() {
            let seed = self.seed + 100 + index as u32;
            assert!(super::is_pattern(seed, item), "result {index} of {self:?}");
        }
        assert_eq!(answer.tail.len(), self.tail, "{self:?}");
        assert!(super::is_pattern(self.seed + 200, &answer.tail), "tail of {self:?}");
        assert_eq!(answer.arguments.len(), self.arguments.len(), "{self:?}");
    }
}
