//! Messages of contexts on the wire: long tokens, the first message, padded messages, calls in
//! reverse.

use super::hostile::rpc_call;
use super::*;
use spinrpc_proto::ids::Instant;
use spinrpc_proto::rdma::v1::MessageType;

/// A mechanism with tokens of this length, as those of Kerberos are with a PAC.
struct Bulky {
    inner: GivenKeys,
    bytes: usize,
}

impl Bulky {
    fn new(name: &str, bytes: usize) -> Self {
        Self { inner: keys(ENCTYPE, name), bytes }
    }
}

fn fill(token: &[u8], bytes: usize) -> Vec<u8> {
    let mut filled = opaque(token);
    filled.resize(bytes.max(filled.len()), 0xf1);
    filled
}

fn inner_token(token: &[u8]) -> &[u8] {
    let (length, rest) = token.split_first_chunk().unwrap();
    let (inner, filler) = rest.split_at(u32::from_be_bytes(*length) as usize);
    assert!(filler.iter().skip(3).all(|byte| *byte == 0xf1), "the token is another one");
    inner
}

impl Mechanism for Bulky {
    fn begin(&self, target: &str, now: Instant) -> Result<Negotiation, MechanismError> {
        Ok(filled(self.inner.begin(target, now)?, self.bytes))
    }

    fn accept(&self, token: &[u8], now: Instant) -> Result<Negotiation, MechanismError> {
        Ok(filled(self.inner.accept(inner_token(token), now)?, self.bytes))
    }
}

fn filled(negotiation: Negotiation, bytes: usize) -> Negotiation {
    match negotiation {
        Negotiation::Continue(go_on, token) => {
            let go_on = move |token: &[u8], now| Ok(filled(go_on(inner_token(token), now)?, bytes));
            Negotiation::Continue(Box::new(go_on), fill(&token, bytes))
        }
        Negotiation::Complete(established, token) => {
            Negotiation::Complete(established, fill(&token, bytes))
        }
    }
}

fn bulky(bytes: usize) -> ConnectOptions {
    let initiator = GssInitiator::new(Bulky::new("alice", bytes), "test@server");
    ConnectOptions::new().gss(initiator.service(GssService::Integrity))
}

/// "Tickets with a PAC have 2 to 60 KB": both ways, up to what a client takes from a server.
#[test]
fn tokens_longer_than_a_message_make_contexts() {
    for (sent, answered) in [(900, 900), (5000, 5000), (65_536, 12_000)] {
        let acceptor = GssAcceptor::new(Bulky::new("server", answered));
        let server = Server::start(Some(acceptor));
        let mut caller = connect(&server, &bulky(sent));
        assert_eq!(call(&mut caller, ECHO, b"data").unwrap(), b"data", "{sent}");
    }
}

fn hear(client: &mut Caller<Vec<u8>>, server: &mut FalseServer) -> Vec<u8> {
    let mut heard = None;
    wait_until("a message", || {
        client.core.poll_once();
        heard = server.peer.poll();
        heard.is_some()
    });
    let Some(Said::Message(message)) = heard else { panic!("the client has gone") };
    message
}

/// A first message has to be short (RFC 5666 section 6.1), and a server that does not speak the version answers nothing of a context.
/// A token that is too long for a message is one long call (RFC 8166 section 8.2.2): nothing of it is a chunk of its own.
#[test]
fn a_short_call_goes_before_a_context_and_a_long_token_in_a_whole_call() {
    for versions in [Versions::One, Versions::Two, Versions::Both] {
        let raw = client_with(|raw| raw.rpc.version = versions);
        let (address, listener) = RawListener::new();
        let mut client = Caller::asked(engine(raw), &address, &bulky(60_000), one_opaque);
        let mut server = FalseServer::of(listener.accept());
        let first = hear(&mut client, &mut server);
        assert!(first.len() <= 1024, "{versions:?}: {} bytes", first.len());
        // XID, call, version 2 of RPC, program, version, procedure 0, no credential and no verifier.
        let words: Vec<_> =
            first.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
        let call = [words[0], 0, 2, PROGRAM.0, VERSION.0, 0, 0, 0, 0, 0];
        assert!(words.ends_with(&call), "{versions:?}: {words:x?}");
        if versions != Versions::One {
            continue;
        }
        server.reply(spinrpc::Xid(words[0]), OpaqueAuth::NONE, &[]);
        let second = hear(&mut client, &mut server);
        let view = HeaderView::new_checked(&second, &Limits::DEFAULT).unwrap();
        assert_eq!((view.message_type(), view.payload()), (MessageType::Nomsg, &[][..]));
        let words = Said::Message(second.clone()).words();
        let mut list = &words[4..];
        let mut bytes = 0;
        while let [1, 0, _, length, _, _, rest @ ..] = list {
            bytes += length;
            list = rest;
        }
        assert!(bytes >= 60_000, "{words:x?}");
        assert_eq!(
            list[..2],
            [0, 0],
            "only chunks at position zero, and no Write list: {words:x?}"
        );
    }
}

/// Pads data of 512 bytes or more, for calls and replies without a context.
fn padding(mut raw: RawConfig) -> RawConfig {
    raw.rpc.protocol = Profile::Rfc5666;
    raw.rpc.msgp_align_bytes = 1024;
    raw.fixed.msgp_threshold_bytes = 512;
    raw.mem.arena_mib = 64;
    raw
}

/// RFC 5666 section 3.9: a receiver cannot tell which bytes of a padded message are signed. Neither end takes one under a context,
/// so that neither may send one.
#[test]
fn calls_and_replies_under_a_context_are_never_padded() {
    let acceptor = GssAcceptor::new(keys(ENCTYPE, "server"));
    let server = Server::start_as(padding(small()), Some(acceptor));
    for service in crate::gss::SERVICES {
        let with = options(keys(ENCTYPE, "alice"), service);
        let engine = engine(padding(client_config()));
        let mut caller = Caller::asked(engine, &server.address, &with, one_item);
        caller.come_up();
        for length in [600, 700, 1500, 2500] {
            let data = pattern(1, length);
            let mut argument = caller.client.bulk(length).unwrap();
            argument.bytes_mut().copy_from_slice(&data);
            let mut spec = CallSpec::new().reply_bytes_max(2600).argument(argument);
            caller.client.call(DATA, Token(1), &mut spec, |args| args.bulk()).unwrap();
            assert_eq!(caller.reply().unwrap(), data, "{service:?} {length}");
            assert_eq!(call(&mut caller, ECHO, &data).unwrap(), data, "{service:?} {length}");
        }
    }
}

/// GSS in reverse has no user (RFC 8167): a client denies it, although its engine accepts contexts over its own listeners.
#[test]
fn contexts_in_reverse_are_denied() {
    let (address, listener) = RawListener::new();
    let engine = engine(small_with(|raw| raw.rpc.reverse_calls = 3));
    engine.serve(PROGRAM, VERSION, |_| |call: spinrpc::Call<'_>| call.reply(|_| {})).unwrap();
    engine.gss(GssAcceptor::new(keys(ENCTYPE, "server"))).unwrap();
    let with = ConnectOptions::new().take_reverse_calls();
    let mut client = Caller::asked(engine, &address, &with, one_opaque);
    let mut server = FalseServer::of(listener.accept());
    let opening = Said::Message(hear(&mut client, &mut server)).words()[0];
    server.reply(spinrpc::Xid(opening), OpaqueAuth::NONE, &[]);
    client.come_up();
    let token = begin("mallory").1;
    for (xid, procedure, handle) in
        [(7, GssProcedure::Init, &b""[..]), (8, GssProcedure::Data, b"12345678")]
    {
        let service = GssService::None;
        let credential = GssCredential { procedure, sequence: 1, service, handle };
        let call = rpc_call(xid, Procedure(0), &credential, None);
        server.peer.send(&[transport(xid, MSG, &[0; 3]), call, opaque(&token)].concat());
        let answer = hear(&mut client, &mut server);
        let (header, _) = ReplyHeader::parse(&answer[HEADER_BYTES..]).unwrap();
        let denied = RejectStatus::AuthError(AuthStat::BadCred);
        assert_eq!(header.body, ReplyBody::Denied(denied), "{procedure:?}");
    }
    let none = CallHeader {
        xid: spinrpc::Xid(9),
        program: PROGRAM,
        version: VERSION,
        procedure: Procedure(1),
        credential: OpaqueAuth::NONE,
        verifier: OpaqueAuth::NONE,
    };
    let mut call = vec![0; none.buffer_len()];
    none.emit(&mut call);
    server.peer.send(&[transport(9, MSG, &[0; 3]), call].concat());
    let answer = hear(&mut client, &mut server);
    let (header, _) = ReplyHeader::parse(&answer[HEADER_BYTES..]).unwrap();
    assert!(
        matches!(header.body, ReplyBody::Accepted { verifier, .. } if verifier.flavor == AuthFlavor::None)
    );
    assert_eq!(client.engine.gss_stats().contexts_accepted, 0);
}
