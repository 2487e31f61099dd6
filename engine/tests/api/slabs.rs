//! Memory of the application's own: in place for calls of connections that it is lent to, copied for others.

use crate::common::prelude::*;

const BLOCK_BYTES: usize = 256 << 10;

type Buffers = (Option<Bulk>, Option<Bulk>);

fn take_buffers(mut reply: Reply<'_>) -> Result<Buffers, DecodeError> {
    Ok((reply.take_argument(), reply.take_result()))
}

struct Lender {
    caller: Caller<Buffers>,
    slab: Slab,
}

impl Lender {
    #[track_caller]
    fn connect(raw: RawConfig, address: &str, is_lent: bool) -> Self {
        let engine = Engine::new(valid(raw)).unwrap();
        let slab = engine.slab(SlabLayout::new().block_bytes(BLOCK_BYTES).blocks(4)).unwrap();
        let options = ConnectOptions::new();
        let options = if is_lent { options.lend(&slab) } else { options };
        let mut caller = Caller::asked(engine, address, &options, take_buffers);
        caller.come_up();
        Self { caller, slab }
    }

    /// Lets the server send the content of a block back, into another block.
    #[track_caller]
    fn bounce(&mut self, seed: u32, length: usize) {
        let mut argument = self.slab.take(length).unwrap();
        argument.bytes_mut().copy_from_slice(&pattern(seed, length));
        let result = self.slab.take(length).unwrap();
        let mut spec = CallSpec::short().argument(argument).result_into(result);
        self.caller.client.call(BOUNCE, Token(1), &mut spec, |args| args.bulk()).unwrap();
        assert_eq!(self.slab.free(), 2, "the call has two of four");
        let (argument, result) = self.caller.reply().unwrap();
        let (argument, result) = (argument.unwrap(), result.unwrap());
        assert!(is_pattern(seed, argument.bytes()) && is_pattern(seed, result.bytes()));
    }

    /// The engine has made this number of copies, and no more. Statistics are a few turns late, so another call ends
    /// first.
    #[track_caller]
    fn expect_copies(&mut self, copies: u64) {
        let engine = self.caller.engine.clone();
        run_core(&mut self.caller.core, "copies", || engine.stats(0).unwrap().copies >= copies);
        let replies = engine.stats(0).unwrap().replies_received;
        self.caller.call(NULL, |_| ()).unwrap();
        let is_told = || engine.stats(0).unwrap().replies_received > replies;
        run_core(&mut self.caller.core, "statistics", is_told);
        assert_eq!(engine.stats(0).unwrap().copies, copies);
    }
}

/// Reason why a connection that lends `slabs` of one block of `bytes` each is refused.
#[track_caller]
fn refusal(address: &str, slabs: usize, bytes: usize) -> String {
    let engine = Engine::new(valid(client_config())).unwrap();
    let lend = |options: ConnectOptions, slab: &Slab| options.lend(slab);
    let slabs: Vec<_> = (0..slabs)
        .map(|_| engine.slab(SlabLayout::new().block_bytes(bytes).blocks(1)).unwrap())
        .collect();
    let options = slabs.iter().fold(ConnectOptions::new(), lend);
    let mut caller = Caller::asked(engine, address, &options, take_buffers);
    let failed = |heard: &Heard<Buffers>| {
        heard.events.iter().find_map(|event| match event {
            ConnectionEvent::ConnectFailed { error } => Some(error.to_string()),
            _ => None,
        })
    };
    caller.run_until("the refusal", |heard| failed(heard).is_some());
    failed(&caller.heard.borrow()).unwrap()
}

#[test]
fn arguments_of_a_slab_that_is_lent_are_not_copied() {
    let server = Server::start();
    let mut lender = Lender::connect(client_config(), &server.address, true);
    for (seed, length) in [(1, 5000), (2, 70_001), (3, 4099), (4, BLOCK_BYTES)] {
        lender.bounce(seed, length);
    }
    if server.address.starts_with("shm:") {
        // Of each call the result alone.
        lender.expect_copies(4);
    }
    assert_eq!(lender.slab.free(), 4);
}

#[test]
fn a_connection_in_the_place_of_a_lost_one_is_lent_the_slab_too() {
    let server = Server::start();
    let address = server.address.clone();
    let engine = Engine::new(valid(client_config())).unwrap();
    let slab = engine.slab(SlabLayout::new().block_bytes(BLOCK_BYTES).blocks(4)).unwrap();
    let options = ConnectOptions::new().lend(&slab).reconnect(Reconnect::default());
    let caller = Caller::asked(engine, &address, &options, take_buffers);
    let (client, mut lender) = (caller.client.clone(), Lender { caller, slab });
    lender.caller.come_up();
    lender.bounce(1, 70_001);
    server.stop();
    let is_lost = |event: &ConnectionEvent| matches!(event, ConnectionEvent::Reconnecting { .. });
    lender.caller.run_until("the loss", |heard| heard.events.iter().any(is_lost));
    let _next = Server::at(&address);
    lender.caller.run_until("the next connection", |_| client.is_up());
    lender.bounce(2, 70_001);
    if address.starts_with("shm:") {
        lender.expect_copies(2);
    }
}

#[test]
fn a_slab_that_is_not_lent_or_may_not_be_is_memory_as_any_other() {
    let server = Server::start();
    for (bulk, is_lent) in [(BulkView::Lent, false), (BulkView::Copy, true)] {
        let raw = client_with(|raw| raw.mem.bulk = bulk);
        let mut lender = Lender::connect(raw, &server.address, is_lent);
        (1..=4).for_each(|seed| lender.bounce(seed, 70_001));
        lender.expect_copies(8);
    }
}

#[test]
fn a_slab_that_is_dropped_while_a_call_has_a_block_of_it_stays_until_the_end() {
    let server = Server::start();
    let lender = Lender::connect(client_config(), &server.address, true);
    let mut argument = lender.slab.take(70_001).unwrap();
    argument.bytes_mut().copy_from_slice(&pattern(7, 70_001));
    let mut spec = CallSpec::short().argument(argument).reply_bytes_max(80_000);
    lender.caller.client.call(BOUNCE, Token(1), &mut spec, |args| args.bulk()).unwrap();
    let Lender { mut caller, slab } = lender;
    drop(slab);
    let argument = caller.reply().unwrap().0.unwrap();
    let Caller { client, core, engine, .. } = caller;
    client.close();
    drop((client, core, engine));
    assert!(is_pattern(7, argument.bytes()), "the block outlives slab, connection and engine");
}

#[test]
fn blocks_of_calls_that_end_without_an_answer_come_back() {
    let server = Server::start();
    let mut lender = Lender::connect(client_config(), &server.address, true);
    for token in 0..2 {
        let (first, second) = (lender.slab.take(9000).unwrap(), lender.slab.take(9000).unwrap());
        let mut spec = CallSpec::short().result_into(first).result_into(second).no_deadline();
        lender.caller.client.call(LATER, Token(token), &mut spec, |args| args.u32(0)).unwrap();
    }
    assert_eq!(lender.slab.free(), 0);
    assert!(lender.slab.take(1).is_none(), "all are taken");
    drop(server);
    let ended = lender.caller.replies(2);
    assert!(ended.iter().all(|(_, end)| matches!(end, Err(CallError::Disconnected(_)))));
    assert_eq!(lender.slab.free(), 4);
}

#[test]
fn more_bytes_of_slabs_than_the_server_accepts_are_refused_with_its_key() {
    let server = Server::with(small_with(|raw| {
        raw.limits.peer_slab_mib = 1;
    }));
    if !server.address.starts_with("shm:") {
        return crate::common::not_tested("limits of slabs: they are of shared memory");
    }
    for (slabs, bytes) in [(1, (1 << 20) + 4096), (2, 600 << 10)] {
        let reason = refusal(&server.address, slabs, bytes);
        assert!(reason.contains("limits.peer_slab_mib"), "{slabs} of {bytes}: {reason}");
    }
    let mut lender = Lender::connect(client_config(), &server.address, true);
    lender.bounce(1, 70_001);
    let none = Server::with(small_with(|raw| raw.limits.peer_slab_mib = 0));
    assert!(refusal(&none.address, 1, 4096).contains("limits.peer_slab_mib"));
}

#[test]
fn more_slabs_than_a_connection_can_have_are_refused_at_once() {
    let engine = Engine::new(valid(client_config())).unwrap();
    let slab = engine.slab(SlabLayout::new().block_bytes(4096).blocks(1)).unwrap();
    let options = (0..5).fold(ConnectOptions::new(), |options, _| options.lend(&slab));
    let mut core = engine.core(0).unwrap();
    let handler = recorder(&SharedHeard::default(), take_buffers);
    let refused = core.connect_with("shm:no-listener", PROGRAM, VERSION, &options, |_| handler);
    assert!(matches!(refused, Err(ConnectError::TooManySlabs)), "{refused:?}");
}

#[test]
fn blocks_are_pages_for_files_whatever_size_is_asked_for() {
    let engine = Engine::new(valid(client_config())).unwrap();
    let slab = engine.slab(SlabLayout::new().block_bytes(5000).blocks(3)).unwrap();
    assert_eq!((slab.block_bytes(), slab.free(), slab.bytes()), (8192, 3, 3 * 8192));
    let mut blocks: Vec<Bulk> = std::iter::from_fn(|| slab.take(8192)).collect();
    assert_eq!(blocks.len(), 3);
    for (seed, block) in (0..).zip(&mut blocks) {
        assert!(block.bytes().as_ptr().addr().is_multiple_of(4096));
        block.bytes_mut().copy_from_slice(&pattern(seed, 8192));
    }
    assert!((0..).zip(&blocks).all(|(seed, block)| is_pattern(seed, block.bytes())));
    assert!(slab.take(0).is_none());
    drop(blocks);
    assert!(slab.take(8193).is_none() && slab.free() == 3);
    for (bytes, count) in [(0, 1), (1, 0), (usize::MAX, 1), (1 << 40, 1 << 40)] {
        let error = engine
            .slab(SlabLayout::new().block_bytes(bytes).blocks(count))
            .unwrap_err()
            .to_string();
        assert!(error.contains("map a slab"), "{error}");
    }
}

/// Answers with a block of the slab, a block of private memory, or one of each: the seed is the length.
const OF_SLAB: Procedure = Procedure(100);
const PRIVATE: Procedure = Procedure(101);
const BOTH: Procedure = Procedure(102);

fn answer(mut call: Call<'_>, slab: &Slab, context: &CoreContext) {
    if call.procedure() == NULL {
        return call.reply(|_| ());
    }
    let length = call.args().u32().unwrap();
    let fill = |block: Option<Bulk>| {
        let mut block = block.unwrap();
        block.bytes_mut().copy_from_slice(&pattern(length, length as usize));
        block
    };
    let of_slab = || fill(slab.take(length as usize));
    let private = || fill(context.bulk(length as usize));
    let data = match call.procedure() {
        OF_SLAB => ReplyData::new().bulk(of_slab()),
        // Shared, and not all of the block.
        PRIVATE => ReplyData::new().shared(&private().freeze(), 0..length as usize),
        BOTH => ReplyData::new().bulk(of_slab()).bulk(private()),
        _ => return call.reject(AcceptStatus::ProcUnavail),
    };
    let is_two = call.procedure() == BOTH;
    call.reply_with(data, |results| {
        results.bulk();
        if is_two {
            results.bulk();
        }
    });
}

struct LendingServer {
    address: String,
    _engine: Started,
    slab: Slab,
}

impl LendingServer {
    fn start(raw: RawConfig) -> Self {
        let engine = Engine::new(valid(raw)).unwrap();
        let slab = engine.slab(SlabLayout::new().block_bytes(ANSWER_BYTES).blocks(4)).unwrap();
        let blocks = slab.clone();
        engine
            .serve(PROGRAM, VERSION, move |context: &CoreContext| {
                let (blocks, context) = (blocks.clone(), context.clone());
                move |call: Call<'_>| answer(call, &blocks, &context)
            })
            .unwrap();
        let address = crate::common::unique_address();
        engine.listen_with(&address, &ListenOptions::new().lend(&slab)).unwrap();
        Self { address, _engine: Started::new(engine), slab }
    }

    fn is_shm(&self) -> bool {
        self.address.starts_with("shm:")
    }
}

/// More than one turn copies.
const ANSWER_BYTES: usize = 1 << 20;

type Results = Vec<Bulk>;

fn take_results(mut reply: Reply<'_>) -> Result<Results, DecodeError> {
    Ok(std::iter::from_fn(|| reply.take_result()).collect())
}

/// Calls for `results` of `length`, into a slab of the client's own.
#[track_caller]
fn read(
    caller: &mut Caller<Results>,
    own: &Slab,
    procedure: Procedure,
    (results, length): (usize, usize),
) {
    let mut spec = (0..results).fold(CallSpec::short(), |spec, _| {
        let mut block = own.take(length).unwrap();
        block.bytes_mut().fill(0xee);
        spec.result_into(block)
    });
    let encode = |args: &mut spinrpc::Encoder<'_>| args.u32(length as u32);
    caller.client.call(procedure, Token(1), &mut spec, encode).unwrap();
    let results = caller.reply().unwrap();
    assert_eq!(own.free() + results.len(), 4);
    for result in results {
        assert!(is_pattern(length as u32, result.bytes()), "{length} bytes");
        assert_eq!(result.len(), length);
    }
}

fn reader(raw: RawConfig, address: &str) -> (Caller<Results>, Slab) {
    let caller = Caller::connect_with(raw, address, take_results);
    let own = caller.engine.slab(SlabLayout::new().block_bytes(ANSWER_BYTES).blocks(4)).unwrap();
    (caller, own)
}

/// The client's core has made this number of copies, after one more call. The counts are a few turns late, and all of a
/// turn come together.
#[track_caller]
fn expect_client_copies(caller: &mut Caller<Results>, own: &Slab, copies: u64) {
    let engine = caller.engine.clone();
    read(caller, own, OF_SLAB, (1, 4096));
    let replies = engine.stats(0).unwrap().replies_received;
    caller.start(NULL, 0, |_| ()).unwrap();
    caller.reply().unwrap();
    let is_told = || engine.stats(0).unwrap().replies_received > replies;
    run_core(&mut caller.core, "statistics", is_told);
    assert_eq!(engine.stats(0).unwrap().copies, copies);
}

#[test]
fn results_out_of_a_slab_that_the_server_lends_go_where_the_client_wants_them() {
    let server = LendingServer::start(small_with(|raw| raw.mem.arena_mib = 32));
    let (mut caller, own) = reader(client_config(), &server.address);
    for length in [4096, 70_001, 256 << 10, ANSWER_BYTES] {
        read(&mut caller, &own, OF_SLAB, (1, length));
    }
    if server.is_shm() {
        expect_client_copies(&mut caller, &own, 0);
    }
    // Out of other memory they come another way, and in one answer both can be.
    for length in [4096, 70_001, 256 << 10] {
        read(&mut caller, &own, PRIVATE, (1, length));
        read(&mut caller, &own, BOTH, (2, length));
    }
    if server.is_shm() {
        expect_client_copies(&mut caller, &own, 6);
    }
    crate::common::wait_until("the blocks of the server", || server.slab.free() == 4);
}
