//! RPCSEC_GSS between two engines, by the mechanism of tests: services, long calls and replies, deferred ones, renewal.

mod configuring;
mod contexts;
mod dialects;
mod elsewhere;
mod ends;
mod false_server;
mod hostile;
mod long_bodies;
mod mechanisms;
mod memory;
mod rewriting;
mod sealing;
mod wire;

use crate::common::prelude::*;
use crate::common::raw::*;
use hostile::{
    Answer, ENCTYPE, FalseServer, Foe, HEADER_BYTES, Spoils, begin, init_call, init_results,
    opaque, seal, transport,
};
use spinrpc::gss::mechanism::{GivenKeys, GoOn, Mechanism, MechanismError, Negotiation};
use spinrpc::gss::{Awaited, Enctype, GssAcceptor, GssInitiator, GssService};
use spinrpc_gss::context::Context;
use spinrpc_gss::{Role, sealed_bytes};
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::limits::Limits;
use spinrpc_proto::rdma::v1::HeaderView;
use spinrpc_proto::rpc::{
    CallHeader, GssCredential, GssInitResult, GssProcedure, ReplyBody, ReplyHeader,
};
use spinrpc_proto::xdr::Writer;

/// `opaque` in, the same out.
const ECHO: Procedure = Procedure(1);
/// `opaque` in, the same out as a data item.
const DATA: Procedure = Procedure(2);
/// The principal and the service, as text.
const WHO: Procedure = Procedure(3);
const LATER: Procedure = Procedure(4);
const DROP: Procedure = Procedure(5);
const PANIC: Procedure = Procedure(6);

/// `opaque` in, its length out.
const LENGTH: Procedure = Procedure(7);
/// A length in, that number of bytes out.
const FILL: Procedure = Procedure(8);

/// The same, and then it panics.
const FILL_AND_PANIC: Procedure = Procedure(9);
/// How many blocks of a mebibyte are free.
const FREE: Procedure = Procedure(10);
/// Takes all memory.
const HOLD: Procedure = Procedure(11);
const RELEASE: Procedure = Procedure(12);

const LONGEST: usize = 2 << 20;
const SERVICES: [GssService; 3] = [GssService::None, GssService::Integrity, GssService::Privacy];
const HOUR: u64 = 3_600_000_000_000;

#[derive(Default)]
struct Seen {
    calls: AtomicU64,
    /// Those that came under a context.
    proved: AtomicU64,
    deferred: Mutex<Vec<(Vec<u8>, Deferred)>>,
    held: Mutex<Vec<Bulk>>,
}

struct Program {
    context: CoreContext,
    seen: Arc<Seen>,
}

type Factory = Box<dyn Fn(&CoreContext) -> Program + Send + Sync>;

impl Program {
    fn blocks(&self, bytes: usize) -> Vec<Bulk> {
        std::iter::from_fn(|| self.context.bulk(bytes)).collect()
    }
}

impl Service for Program {
    fn call(&mut self, mut call: Call<'_>) {
        if call.procedure() == Procedure(0) {
            return call.reply(|_| {});
        }
        self.seen.calls.fetch_add(1, Ordering::Relaxed);
        let who = match call.identity() {
            Identity::Gss { principal, service } => {
                self.seen.proved.fetch_add(1, Ordering::Relaxed);
                format!("{principal} {service:?}")
            }
            other => format!("{other:?}"),
        };
        if call.procedure() == WHO {
            return call.reply(|results| results.opaque(who.as_bytes()));
        }
        let mut arguments = call.args();
        let Ok(data) = arguments.data(LONGEST).map(|data| data.bytes().to_vec()) else {
            return call.reject(AcceptStatus::GarbageArgs);
        };
        match call.procedure() {
            ECHO => call.reply(|results| results.opaque(&data)),
            DATA => {
                let mut bulk = self.context.bulk(data.len()).unwrap();
                bulk.bytes_mut().copy_from_slice(&data);
                bulk.set_len(data.len());
                call.reply_with(ReplyData::new().bulk(bulk), |results| results.bulk());
            }
            LATER => {
                let deferred = call.defer().unwrap();
                lock(&self.seen.deferred).push((data, deferred));
            }
            FREE => {
                let all = self.blocks(1 << 20);
                call.reply(|results| results.opaque(&all.len().to_be_bytes()));
            }
            HOLD => {
                let all = [1 << 20, 1 << 18, 1 << 16, 1 << 14, 1 << 12, 1].map(|n| self.blocks(n));
                lock(&self.seen.held).extend(all.into_iter().flatten());
                call.reply(|_| {});
            }
            RELEASE => {
                lock(&self.seen.held).clear();
                call.reply(|_| {});
            }
            LENGTH => call.reply(|results| results.opaque(&data.len().to_be_bytes())),
            FILL | FILL_AND_PANIC => {
                let bytes = data.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
                let filled = vec![0x77; bytes as usize];
                let panics = call.procedure() == FILL_AND_PANIC;
                call.reply(|results| results.opaque(&filled));
                assert!(!panics, "asked for");
            }
            DROP => drop(call),
            PANIC => panic!("asked for"),
            _ => call.reject(AcceptStatus::ProcUnavail),
        }
    }
}

fn keys(enctype: Enctype, name: &str) -> GivenKeys {
    let bytes = match enctype {
        Enctype::Aes128Sha1 | Enctype::Aes128Sha256 => 16,
        _ => 32,
    };
    let (key, name) = (vec![0x5a; bytes], name.to_owned());
    GivenKeys { enctype, key, name, tokens: 1, lifetime: HOUR }
}

struct Server {
    address: String,
    seen: Arc<Seen>,
    engine: Engine,
    _running: Running,
}

impl Server {
    fn start(acceptor: Option<GssAcceptor>) -> Self {
        Self::start_as(small(), acceptor)
    }

    fn start_as(raw: RawConfig, acceptor: Option<GssAcceptor>) -> Self {
        Self::start_serving(raw, acceptor, |engine, service| {
            engine.serve(PROGRAM, VERSION, service).unwrap();
        })
    }

    /// Each call is executed once.
    fn start_once(acceptor: GssAcceptor) -> Self {
        let raw = small_with(|raw| {
            // An eighth of them for this process.
            raw.rpc.reply_cache_mib = 1;
        });
        Self::start_serving(raw, Some(acceptor), |engine, service| {
            engine.serve_once(PROGRAM, VERSION, service).unwrap();
        })
    }

    fn start_serving(
        mut raw: RawConfig,
        acceptor: Option<GssAcceptor>,
        serve: impl FnOnce(&Engine, Factory),
    ) -> Self {
        raw.rpc.on_panic = spinrpc::config::OnPanic::Answer;
        raw.mem.arena_mib = 64;
        let engine = Engine::new(valid(raw)).unwrap();
        let (address, seen) = (unique_address(), Arc::<Seen>::default());
        let of_service = Arc::clone(&seen);
        let factory = move |context: &CoreContext| Program {
            context: context.clone(),
            seen: Arc::clone(&of_service),
        };
        serve(&engine, Box::new(factory));
        if let Some(acceptor) = acceptor {
            engine.gss(acceptor).unwrap();
        }
        engine.listen(&address).unwrap();
        let _running = engine.start().unwrap();
        Self { address, seen, engine, _running }
    }

    fn with_keys(enctype: Enctype) -> Self {
        Self::start(Some(GssAcceptor::new(keys(enctype, "server"))))
    }

    fn calls(&self) -> u64 {
        self.seen.calls.load(Ordering::Relaxed)
    }

    fn proved(&self) -> u64 {
        self.seen.proved.load(Ordering::Relaxed)
    }
}

fn options(mechanism: GivenKeys, service: GssService) -> ConnectOptions {
    ConnectOptions::new().gss(GssInitiator::new(mechanism, "test@server").service(service))
}

/// The one data item of the results, wherever it lies.
fn one_item(mut reply: Reply<'_>) -> Result<Vec<u8>, DecodeError> {
    Ok(reply.results().data(LONGEST)?.bytes().to_vec())
}

fn asked(address: &str, options: &ConnectOptions) -> Caller<Vec<u8>> {
    asked_to_read(address, options, one_opaque)
}

fn asked_to_read(address: &str, options: &ConnectOptions, read: Read<Vec<u8>>) -> Caller<Vec<u8>> {
    let raw = client_with(|raw| raw.mem.arena_mib = 64);
    Caller::asked(engine(raw), address, options, read)
}

fn connect(server: &Server, options: &ConnectOptions) -> Caller<Vec<u8>> {
    connect_to_read(server, options, one_opaque)
}

fn connect_to_read(
    server: &Server,
    options: &ConnectOptions,
    read: Read<Vec<u8>>,
) -> Caller<Vec<u8>> {
    let mut caller = asked_to_read(&server.address, options, read);
    caller.come_up();
    caller
}

fn caller(server: &Server, enctype: Enctype, service: GssService) -> Caller<Vec<u8>> {
    connect(server, &options(keys(enctype, "alice"), service))
}

fn call(
    caller: &mut Caller<Vec<u8>>,
    procedure: Procedure,
    data: &[u8],
) -> Result<Vec<u8>, CallError> {
    let mut spec = CallSpec::new().reply_bytes_max(data.len() + 64);
    caller.client.call(procedure, Token(7), &mut spec, |args| args.opaque(data)).unwrap();
    caller.reply()
}

#[test]
fn every_service_of_every_encryption_type_carries_calls_and_says_who_calls() {
    for enctype in
        [Enctype::Aes128Sha1, Enctype::Aes256Sha1, Enctype::Aes128Sha256, Enctype::Aes256Sha384]
    {
        let server = Server::with_keys(enctype);
        for service in SERVICES {
            let mut caller = caller(&server, enctype, service);
            let who = call(&mut caller, WHO, b"").unwrap();
            assert_eq!(String::from_utf8(who).unwrap(), format!("alice {service:?}"));
            let lengths = (0..40).chain([100, 244, 700, 1000, 4096, 4100, 60_001, 1 << 20]);
            for length in lengths {
                let data = pattern(length as u32, length);
                assert_eq!(call(&mut caller, ECHO, &data).unwrap(), data, "{service:?} {length}");
                if length > 1000 {
                    let item = call(&mut caller, DATA, &data).unwrap();
                    assert_eq!(item, data, "{service:?} {length}");
                }
            }
        }
    }
}

/// Direct placement stays with svc_none; with the others the data come in the message, and the buffers come back.
#[test]
fn buffers_for_data_items_come_back_with_every_service() {
    for service in SERVICES {
        let server = Server::with_keys(Enctype::Aes256Sha1);
        let with = options(keys(Enctype::Aes256Sha1, "alice"), service);
        let mut caller = connect_to_read(&server, &with, one_item);
        let data = pattern(3, 100_000);
        for _ in 0..50 {
            let mut argument = caller.client.bulk(data.len()).unwrap();
            argument.bytes_mut().copy_from_slice(&data);
            let result = caller.client.bulk(data.len()).unwrap();
            let mut spec = CallSpec::short().argument(argument).result_into(result);
            caller.client.call(DATA, Token(1), &mut spec, |args| args.bulk()).unwrap();
            let heard = std::rc::Rc::clone(&caller.heard);
            run_core(&mut caller.core, "a reply", || !heard.borrow().replies.is_empty());
            let (_, reply) = heard.borrow_mut().replies.pop().unwrap();
            assert_eq!(reply.unwrap(), data);
        }
        // The last ones are published a little later, and not all at once.
        let published = || server.engine.stats(0).unwrap();
        let items = 50 * 100_000;
        wait_until("the statistics", || {
            let published = published();
            let all_written = service != GssService::None || published.bytes_written == items;
            published.replies_sent >= 50 && all_written
        });
        let written = published().bytes_written;
        assert_eq!(service == GssService::None, written == items, "{service:?} {written}");
    }
}

#[test]
fn errors_of_a_verified_call_have_a_verifier() {
    let server = Server::with_keys(Enctype::Aes256Sha384);
    for service in SERVICES {
        let mut caller = caller(&server, Enctype::Aes256Sha384, service);
        let errors = [DROP, PANIC, Procedure(99)].map(|procedure| {
            match call(&mut caller, procedure, b"data").unwrap_err() {
                CallError::Accepted(status) => status,
                other => panic!("{other}"),
            }
        });
        let system_err = AcceptStatus::SystemErr;
        assert_eq!(errors, [system_err, system_err, AcceptStatus::ProcUnavail]);
        assert_eq!(call(&mut caller, ECHO, b"on").unwrap(), b"on");
    }
}

/// A thread seals its reply, which is not there yet when the handler panics.
#[test]
fn a_handler_that_panics_after_a_long_reply_has_answered() {
    let server = Server::with_keys(Enctype::Aes256Sha1);
    for service in SERVICES {
        let mut caller = caller(&server, Enctype::Aes256Sha1, service);
        let mut spec = CallSpec::new().reply_bytes_max(100_064);
        let asked = 100_000_u64.to_be_bytes();
        let client = caller.client.clone();
        client.call(FILL_AND_PANIC, Token(7), &mut spec, |args| args.opaque(&asked)).unwrap();
        assert_eq!(caller.reply().unwrap(), vec![0x77; 100_000], "{service:?}");
    }
}

#[test]
fn a_context_may_take_several_tokens() {
    let several = |name| GivenKeys { tokens: 4, ..keys(Enctype::Aes128Sha256, name) };
    let server = Server::start(Some(GssAcceptor::new(several("server"))));
    let mut caller = connect(&server, &options(several("alice"), GssService::Privacy));
    assert_eq!(call(&mut caller, ECHO, b"data").unwrap(), b"data");
}

fn failure(mut caller: Caller<Vec<u8>>) -> String {
    let heard = std::rc::Rc::clone(&caller.heard);
    run_core(&mut caller.core, "an end", || !heard.borrow().events.is_empty());
    let heard = heard.borrow();
    match &heard.events[..] {
        [ConnectionEvent::ConnectFailed { error: ConnectError::Security(reason) }] => {
            reason.clone()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_without_the_servers_key_is_told_so_and_never_up() {
    let server = Server::with_keys(Enctype::Aes256Sha1);
    let mut other = keys(Enctype::Aes256Sha1, "mallory");
    other.key[0] ^= 1;
    let reason = failure(asked(&server.address, &options(other, GssService::Privacy)));
    assert_eq!(reason, "the server does not have the key of the context");
    assert_eq!(server.calls(), 0);
}

#[test]
fn calls_with_less_protection_than_is_required_reach_no_handler() {
    let acceptor = GssAcceptor::new(keys(Enctype::Aes256Sha1, "server"));
    let server = Server::start(Some(acceptor.require(GssService::Integrity)));
    let denied = |error| {
        let weak = RejectStatus::AuthError(AuthStat::TooWeak);
        assert!(matches!(error, CallError::Rejected(why) if why == weak), "{error}");
    };
    let mut plain = connect(&server, &ConnectOptions::new());
    // One that is short, one that is long, and one with a credential.
    denied(call(&mut plain, ECHO, b"data").unwrap_err());
    denied(call(&mut plain, ECHO, &pattern(1, 50_000)).unwrap_err());
    let mut stated = connect(&server, &ConnectOptions::new());
    let user =
        AuthSys { stamp: 0, machine_name: b"host", uid: 1, gid: 1, groups: Default::default() };
    stated.client.set_auth_sys(Some(&user)).unwrap();
    denied(call(&mut stated, ECHO, b"data").unwrap_err());
    let mut weak = caller(&server, Enctype::Aes256Sha1, GssService::None);
    denied(call(&mut weak, ECHO, b"data").unwrap_err());
    assert_eq!(server.calls(), 0);
    for service in [GssService::Integrity, GssService::Privacy] {
        let mut strong = caller(&server, Enctype::Aes256Sha1, service);
        assert_eq!(call(&mut strong, ECHO, b"data").unwrap(), b"data");
    }
}

/// Calls until one is answered, as an application would: each denied one makes the client establish a context.
fn call_until_up(caller: &mut Caller<Vec<u8>>, data: &[u8]) -> (usize, Vec<u8>) {
    let mut denied = 0;
    loop {
        let mut spec = CallSpec::short();
        match caller.client.call(ECHO, Token(1), &mut spec, |args| args.opaque(data)) {
            Ok(_) => match caller.reply() {
                Ok(echoed) => return (denied, echoed),
                Err(CallError::Rejected(_)) => denied += 1,
                Err(other) => panic!("{other}"),
            },
            Err(refused) => {
                assert_eq!(refused, Backpressure::Connecting);
                caller.core.poll_once();
            }
        }
    }
}

#[test]
fn a_context_that_ends_is_made_anew_before_or_after_a_denial() {
    let brief =
        |name, ms: u64| GivenKeys { lifetime: ms * 1_000_000, ..keys(Enctype::Aes256Sha1, name) };
    let server = Server::start(Some(GssAcceptor::new(brief("server", 200))));
    let began = std::time::Instant::now();
    let mut caller = connect(&server, &options(brief("alice", 3_600_000), GssService::Integrity));
    let denials = |caller: &Caller<Vec<u8>>| caller.engine.gss_stats().calls_denied;
    while denials(&caller) < 2 && began.elapsed() < crate::common::LIMIT {
        let (_, echoed) = call_until_up(&mut caller, b"data");
        assert_eq!(echoed, b"data");
    }
    assert!(denials(&caller) >= 2);
    assert!(began.elapsed() >= Duration::from_millis(380), "contexts ended early");
}

/// The reply of a call whose connection is lost while it is executed, and the number of its executions.
fn lose_a_connection(
    server: &Server,
    service: GssService,
    (resend, data): (Resend, &[u8]),
) -> (Vec<u8>, u64) {
    let with = options(keys(Enctype::Aes256Sha1, "alice"), service);
    let mut caller = connect(server, &with.reconnect(Reconnect::default()));
    let (seen, before) = (Arc::clone(&server.seen), server.calls());
    let mut spec = CallSpec::new().reply_bytes_max(10_000).resend(resend);
    caller.client.call(LATER, Token(1), &mut spec, |args| args.opaque(data)).unwrap();
    run_core(&mut caller.core, "the call", || !lock(&seen.deferred).is_empty());
    caller.client.reconnect();
    let client = caller.client.clone();
    run_core(&mut caller.core, "another connection", || client.is_up());
    if resend == Resend::AtLeastOnce {
        run_core(&mut caller.core, "the call again", || lock(&seen.deferred).len() == 2);
    }
    for (data, deferred) in lock(&seen.deferred).drain(..) {
        deferred.reply(|results| results.opaque(&data));
    }
    (caller.reply().unwrap(), server.calls() - before)
}

#[test]
fn calls_go_on_by_another_connection_under_another_context() {
    let data = pattern(9, 9000);
    let acceptor = || GssAcceptor::new(keys(Enctype::Aes256Sha1, "server"));
    let (server, once) = (Server::start(Some(acceptor())), Server::start_once(acceptor()));
    for service in SERVICES {
        let heard = lose_a_connection(&server, service, (Resend::AtLeastOnce, &data));
        assert_eq!(heard, (data.clone(), 2), "{service:?}");
        let heard = lose_a_connection(&once, service, (Resend::AtMostOnce, &data));
        assert_eq!(heard, (data.clone(), 1), "{service:?}");
    }
}

#[test]
fn either_version_carries_protected_calls() {
    for versions in [Versions::Two, Versions::Both] {
        let raw = small_with(|raw| raw.rpc.version = versions);
        let acceptor = GssAcceptor::new(keys(Enctype::Aes128Sha1, "server"));
        let server = Server::start_as(raw, Some(acceptor));
        for service in SERVICES {
            let raw = client_with(|raw| raw.rpc.version = versions);
            let with = options(keys(Enctype::Aes128Sha1, "alice"), service);
            let mut caller = Caller::asked(engine(raw), &server.address, &with, one_opaque);
            caller.come_up();
            for length in [0, 300, 3000, 70_000] {
                let data = pattern(2, length);
                assert_eq!(call(&mut caller, ECHO, &data).unwrap(), data, "{service:?} {length}");
            }
        }
    }
}
