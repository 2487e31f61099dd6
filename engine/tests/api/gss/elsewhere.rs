//! Servers that deny contexts over the connection and offer another transport for them, and what that may answer.

use super::*;
use spinrpc_proto::ids::Instant;
use std::sync::mpsc::channel;

const HANDLE: &[u8] = b"from elsewhere";
const WINDOW: u32 = 64;
const DENIED: RejectStatus = RejectStatus::AuthError(AuthStat::RejectedCred);

struct Other {
    mechanism: GivenKeys,
    /// A context that takes more tokens.
    half: Mutex<Option<GoOn>>,
    contexts: Mutex<Vec<Context>>,
    calls: AtomicUsize,
}

impl Other {
    fn new(tokens: u8) -> Arc<Self> {
        let mechanism = GivenKeys { tokens, ..keys(ENCTYPE, "server") };
        let (half, contexts, calls) = Default::default();
        Arc::new(Self { mechanism, half, contexts, calls })
    }

    fn answer(&self, message: &[u8]) -> Vec<u8> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let (header, at) = CallHeader::parse(message).unwrap();
        assert_eq!(header.verifier, OpaqueAuth::NONE);
        let credential = GssCredential::parse(header.credential.body).unwrap();
        let half = lock(&self.half).take();
        let expected = match half {
            None => (GssProcedure::Init, &[][..]),
            Some(_) => (GssProcedure::ContinueInit, HANDLE),
        };
        assert_eq!((credential.procedure, credential.handle), expected);
        let token = spinrpc_proto::rpc::parse_init_arguments(&message[at..]).unwrap();
        let accepted = match half {
            None => self.mechanism.accept(token, Instant(0)),
            Some(go_on) => go_on(token, Instant(0)),
        };
        let (major, token, mic) = match accepted.unwrap() {
            Negotiation::Continue(go_on, token) => {
                *lock(&self.half) = Some(go_on);
                (GssInitResult::CONTINUE_NEEDED, token, None)
            }
            Negotiation::Complete(established, token) => {
                let context = Context::new(Role::Acceptor, established);
                let mic = context.sign_reply(WINDOW).as_slice().to_vec();
                lock(&self.contexts).push(context);
                (GssInitResult::COMPLETE, token, Some(mic))
            }
        };
        let results = init_results(HANDLE, major, WINDOW, &token);
        let verifier = mic
            .as_ref()
            .map_or(OpaqueAuth::NONE, |body| OpaqueAuth { flavor: AuthFlavor::Gss, body });
        let status = AcceptStatus::Success;
        let body = ReplyBody::Accepted { verifier, status };
        emit(&ReplyHeader { xid: header.xid, body }, &results)
    }
}

fn emit(header: &ReplyHeader<'_>, results: &[u8]) -> Vec<u8> {
    let mut message = vec![0; header.buffer_len()];
    header.emit(&mut message);
    [message, results.to_vec()].concat()
}

/// What the other transport does with a call.
type Exchange = Box<dyn Fn(&Peer, &[u8]) -> Result<Vec<u8>, String> + Send + Sync>;

fn options(service: GssService, tokens: u8, exchange: Exchange) -> ConnectOptions {
    let mechanism = GivenKeys { tokens, ..keys(ENCTYPE, "alice") };
    let initiator = GssInitiator::new(mechanism, "test@server").service(service);
    ConnectOptions::new().gss(initiator.fallback(move |peer, call, _| exchange(peer, call)))
}

/// A server that denies every token over the connection.
struct Denying {
    listener: RawListener,
    server: Option<FalseServer>,
    denied: usize,
    /// Denies the second token of a context, and not the first.
    asks_for_more: bool,
    status: RejectStatus,
}

impl Denying {
    fn meet(with: &ConnectOptions) -> (Caller<Vec<u8>>, Self) {
        let (address, listener) = RawListener::new();
        (
            asked(&address, with),
            Self { listener, server: None, denied: 0, asks_for_more: false, status: DENIED },
        )
    }

    fn serve(
        &mut self,
        client: &mut Caller<Vec<u8>>,
        mut done: impl FnMut(&mut Self, &Caller<Vec<u8>>) -> bool,
    ) {
        let end = std::time::Instant::now() + LIMIT;
        loop {
            client.core.poll_once();
            // Between the two: the server is to know a context before it hears a call under it.
            if done(self, client) {
                return;
            }
            assert!(std::time::Instant::now() < end, "waited {LIMIT:?}");
            match &mut self.server {
                None => self.server = self.listener.try_accept().map(FalseServer::of),
                Some(server) => match server.peer.poll() {
                    Some(Said::Message(message)) => self.answer(&message),
                    Some(Said::Down(_)) | None => {}
                },
            }
        }
    }

    fn answer(&mut self, message: &[u8]) {
        let server = self.server.as_mut().unwrap();
        let view = HeaderView::new_checked(message, &Limits::DEFAULT).unwrap();
        let stream = &message[view.header_bytes()..];
        let (call, arguments_at) = CallHeader::parse(stream).unwrap();
        if call.credential.flavor != AuthFlavor::Gss {
            return server.reply(call.xid, OpaqueAuth::NONE, &[]);
        }
        let credential = GssCredential::parse(call.credential.body).unwrap();
        match credential.procedure {
            GssProcedure::Init if self.asks_for_more => {
                self.ask_for_more(call.xid, &stream[arguments_at..]);
            }
            GssProcedure::Init | GssProcedure::ContinueInit => {
                self.denied += 1;
                server.deny(call.xid, self.status);
            }
            GssProcedure::Data => {
                assert_eq!(credential.handle, HANDLE);
                let (xid, service) = (call.xid, credential.service);
                server.answer_data(xid, credential.sequence, service, Spoils::Nothing);
            }
            GssProcedure::Destroy => {}
        }
    }

    fn ask_for_more(&mut self, xid: Xid, arguments: &[u8]) {
        let mechanism = GivenKeys { tokens: 3, ..keys(ENCTYPE, "server") };
        let token = spinrpc_proto::rpc::parse_init_arguments(arguments).unwrap();
        let Negotiation::Continue(_, token) = mechanism.accept(token, Instant(0)).unwrap() else {
            panic!("it takes three tokens");
        };
        let results = init_results(HANDLE, GssInitResult::CONTINUE_NEEDED, WINDOW, &token);
        self.server.as_mut().unwrap().reply(xid, OpaqueAuth::NONE, &results);
    }
}

fn start(client: &Caller<Vec<u8>>) {
    client.client.call(WHO, Token(1), &mut CallSpec::short(), |args| args.opaque(b"")).unwrap();
}

/// Waits until the client is up, and gives the server the newest context.
fn raise(client: &mut Caller<Vec<u8>>, server: &mut Denying, other: &Other) {
    server.serve(client, |_, client| client.client.is_up());
    server.server.as_mut().unwrap().context = lock(&other.contexts).pop();
}

#[test]
fn calls_go_over_the_connection_under_a_context_that_came_by_the_other_transport() {
    for (service, tokens) in SERVICES.into_iter().flat_map(|of| [(of, 1), (of, 3)]) {
        let other = Other::new(tokens);
        let by = Arc::clone(&other);
        let with = options(service, tokens, Box::new(move |_, call| Ok(by.answer(call))));
        let (mut client, mut server) = Denying::meet(&with);
        raise(&mut client, &mut server, &other);
        for _ in 0..3 {
            start(&client);
            server.serve(&mut client, |_, client| !client.heard.borrow().replies.is_empty());
            assert_eq!(client.reply().unwrap(), b"results");
        }
        let calls = other.calls.load(Ordering::Relaxed);
        assert_eq!((server.denied, calls), (1, tokens.into()), "{service:?}");
        assert_eq!(client.engine.gss_stats().contexts_established, 1);
    }
}

/// The server has said once that it does not want them over this connection.
#[test]
fn a_context_that_the_server_forgets_is_replaced_by_the_other_transport_at_once() {
    let other = Other::new(1);
    let by = Arc::clone(&other);
    let with = options(GssService::Privacy, 1, Box::new(move |_, call| Ok(by.answer(call))));
    let (mut client, mut server) = Denying::meet(&with);
    raise(&mut client, &mut server, &other);
    start(&client);
    client.core.poll_once();
    let connected = server.server.as_mut().unwrap();
    let (xid, ..) = connected.hear_call();
    connected.deny(xid, RejectStatus::AuthError(AuthStat::GssCredProblem));
    server.serve(&mut client, |server, client| {
        let newest = lock(&other.contexts).pop();
        let context = &mut server.server.as_mut().unwrap().context;
        *context = newest.or_else(|| context.take());
        !client.heard.borrow().replies.is_empty()
    });
    assert_eq!(client.reply().unwrap(), b"results");
    assert_eq!((server.denied, other.calls.load(Ordering::Relaxed)), (1, 2));
}

#[test]
fn a_server_that_takes_contexts_over_the_connection_is_not_asked_elsewhere() {
    let server = Server::with_keys(ENCTYPE);
    let with = options(GssService::Integrity, 1, Box::new(|_, _| panic!("asked elsewhere")));
    let mut client = connect(&server, &with);
    assert_eq!(call(&mut client, ECHO, b"data").unwrap(), b"data");
}

/// Reason why the client has no connection.
fn refusal(with: &ConnectOptions) -> String {
    let (mut client, mut server) = Denying::meet(with);
    server.serve(&mut client, |_, client| !client.heard.borrow().events.is_empty());
    assert_eq!(server.denied, 1, "it is not tried again over the connection");
    failure(client)
}

fn spoilt(spoil: impl Fn(&mut Vec<u8>) + Send + Sync + 'static) -> String {
    let other = Other::new(1);
    let exchange = move |_: &Peer, call: &[u8]| {
        let mut answer = other.answer(call);
        spoil(&mut answer);
        Ok(answer)
    };
    refusal(&options(GssService::Integrity, 1, Box::new(exchange)))
}

fn xid_of(message: &[u8]) -> Xid {
    Xid(u32::from_be_bytes(*message.first_chunk().unwrap()))
}

/// One that hears no call, such as one of a connection before, can hardly answer it.
#[test]
fn the_ids_of_calls_over_the_other_transport_begin_anywhere() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..2 {
        let by = Arc::clone(&seen);
        let exchange = move |_: &Peer, call: &[u8]| {
            lock(&by).push(xid_of(call).0);
            Err(String::new())
        };
        refusal(&options(GssService::Integrity, 1, Box::new(exchange)));
    }
    let seen = lock(&seen);
    assert!(seen.len() == 2 && seen[0].abs_diff(seen[1]) > 100, "{seen:?}");
}

/// Its thread is free again at once, and its socket closed.
#[test]
fn an_exchange_hears_that_its_client_no_longer_waits() {
    type End = fn(&mut Caller<Vec<u8>>, &mut Denying);
    let ends: [End; 3] = [
        |client, _| client.client.close(),
        |client, _| client.engine.shutdown(),
        |_, server| server.server = None,
    ];
    for end in ends {
        let ((asks, asked), (returns, returned)) = (channel(), channel());
        let (asks, returns) = (Mutex::new(asks), Mutex::new(returns));
        let exchange = move |_: &Peer, _: &[u8], awaited: Awaited<'_>| {
            assert!(awaited.is_awaited());
            lock(&asks).send(()).unwrap();
            while awaited.is_awaited() {
                pause();
            }
            lock(&returns).send(()).unwrap();
            Err("nothing waits".to_owned())
        };
        let initiator = GssInitiator::new(keys(ENCTYPE, "alice"), "test@server");
        let with = ConnectOptions::new().gss(initiator.fallback(exchange));
        let (mut client, mut server) = Denying::meet(&with);
        server.serve(&mut client, |_, _| asked.try_recv().is_ok());
        end(&mut client, &mut server);
        wait_until("the end of the exchange", || {
            client.core.poll_once();
            returned.try_recv().is_ok()
        });
    }
}

#[test]
fn the_reasons_of_both_transports_are_told() {
    let exchange = |_: &Peer, _: &[u8]| Err("nfs.example:2049: Connection refused".to_owned());
    let reason = refusal(&options(GssService::Integrity, 1, Box::new(exchange)));
    assert!(reason.contains("RejectedCred") && reason.ends_with("Connection refused"), "{reason}");
    let reason = refusal(&options(GssService::None, 1, Box::new(|_, _| panic!("asked for"))));
    assert!(reason.ends_with("exchange panicked"), "{reason}");
}

#[test]
fn what_the_other_transport_answers_falsely_makes_no_context() {
    assert!(spoilt(Vec::clear).contains("over the other transport"));
    assert!(spoilt(|answer| answer[3] ^= 1).contains("another call"));
    let denied = |answer: &mut Vec<u8>| {
        *answer = emit(&ReplyHeader::denied(xid_of(answer), DENIED), &[]);
    };
    assert!(spoilt(denied).contains("RejectedCred"));
    let status = AcceptStatus::ProcUnavail;
    let unavailable = move |answer: &mut Vec<u8>| {
        *answer = emit(&ReplyHeader::accepted(xid_of(answer), status), &[]);
    };
    assert!(spoilt(unavailable).contains("ProcUnavail"));
    let without = |answer: &mut Vec<u8>| {
        let (_, at) = ReplyHeader::parse(answer).unwrap();
        *answer = emit(&ReplyHeader::success(xid_of(answer)), &answer[at..]);
    };
    assert!(spoilt(without).contains("without a handle or a verifier"));
}

/// The handle is not covered by anything, as it is not in RFC 2203.
#[test]
fn an_answer_that_is_cut_off_or_has_a_flipped_bit_makes_no_context() {
    let other = Other::new(1);
    let (seen, heard) = std::sync::mpsc::channel();
    let by = Mutex::new(seen);
    let exchange = move |_: &Peer, call: &[u8]| {
        let answer = other.answer(call);
        lock(&by).send(answer).unwrap();
        Err(String::new())
    };
    refusal(&options(GssService::Integrity, 1, Box::new(exchange)));
    let message = heard.recv_timeout(LIMIT).unwrap();
    for length in (0..message.len()).step_by(5) {
        spoilt(move |answer| answer.truncate(length));
    }
    let mic = 20..48;
    let window = message.len() - 4 - opaque(b"test\0\0\0\0\0\0\0\0\0server").len();
    for at in mic.step_by(9).chain([window, window + 3]) {
        let reason = spoilt(move |answer| answer[at] ^= 1);
        assert!(reason.contains("does not have the key"), "{at}: {reason}");
    }
}

/// A context that was begun over the connection is not begun elsewhere: that would hide what is wrong with it.
#[test]
fn a_denial_of_the_second_token_is_final() {
    let with = options(GssService::Integrity, 3, Box::new(|_, _| panic!("asked elsewhere")));
    let (mut client, mut server) = Denying::meet(&with);
    server.asks_for_more = true;
    server.serve(&mut client, |_, client| !client.heard.borrow().events.is_empty());
    assert_eq!(server.denied, 1);
    assert_eq!(failure(client), CallError::Rejected(DENIED).to_string());
}

/// Other errors say nothing about contexts.
#[test]
fn a_server_of_another_version_of_rpc_is_not_asked_elsewhere() {
    let with = options(GssService::Integrity, 1, Box::new(|_, _| panic!("asked elsewhere")));
    let (mut client, mut server) = Denying::meet(&with);
    server.status = RejectStatus::RpcMismatch { low: 3, high: 3 };
    server.serve(&mut client, |_, client| !client.heard.borrow().events.is_empty());
    assert_eq!(failure(client), CallError::Rejected(server.status).to_string());
}

#[test]
fn the_other_transport_is_told_the_peer_of_the_connection() {
    let (seen, heard) = std::sync::mpsc::channel();
    let by = Mutex::new(seen);
    let exchange = move |peer: &Peer, _: &[u8]| {
        lock(&by).send(*peer).unwrap();
        Err(String::new())
    };
    refusal(&options(GssService::Integrity, 1, Box::new(exchange)));
    let pid = std::process::id();
    match heard.recv_timeout(LIMIT).unwrap() {
        Peer::Process { pid: found, .. } => assert_eq!(found, pid),
        other => panic!("{other}"),
    }
}

/// Without another transport a denial is what it was.
#[test]
fn a_denial_ends_the_client_where_there_is_no_other_transport() {
    let mechanism = keys(ENCTYPE, "alice");
    let with = ConnectOptions::new().gss(GssInitiator::new(mechanism, "test@server"));
    let reason = refusal(&with);
    assert_eq!(reason, CallError::Rejected(DENIED).to_string());
}
