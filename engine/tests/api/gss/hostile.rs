//! A client that has keys and breaks the rules, and a server that does.

use super::dialects::write_counted;
use super::*;
use spinrpc_gss::random::AesConfounders;
use spinrpc_gss::{content_at, seal_body};
use spinrpc_proto::ids::Instant;
use std::net::IpAddr;

pub(crate) const ENCTYPE: Enctype = Enctype::Aes256Sha1;
pub(crate) const HEADER_BYTES: usize = 28;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Denied(RejectStatus),
    /// Accepted; the verifier checks for the sequence number.
    Verified(AcceptStatus),
    /// Accepted, and it does not.
    Unverified(AcceptStatus),
    Rdma,
    Down,
}

const fn denied(why: AuthStat) -> Answer {
    Answer::Denied(RejectStatus::AuthError(why))
}

/// A client with a context that writes its messages by hand.
pub(crate) struct Foe {
    pub(crate) peer: RawPeer,
    pub(crate) context: Context,
    handle: Vec<u8>,
    pub(crate) xid: u32,
    sequence: u32,
}

pub(crate) fn transport(xid: u32, kind: u32, lists: &[u32]) -> Vec<u8> {
    bytes_of(&[&[xid, 1, 32, kind], lists].concat())
}

/// A call with a credential, and with a verifier if it is under a context.
pub(crate) fn rpc_call(
    xid: u32,
    procedure: Procedure,
    credential: &GssCredential<'_>,
    signer: Option<&Context>,
) -> Vec<u8> {
    let mut body = [0; 400];
    let length = credential.emit(&mut body).unwrap();
    let credential = OpaqueAuth { flavor: AuthFlavor::Gss, body: &body[..length] };
    let (xid, verifier) = (Xid(xid), OpaqueAuth::NONE);
    let (program, version) = (PROGRAM, VERSION);
    let header = CallHeader { xid, program, version, procedure, credential, verifier };
    let mut bytes = [0; 1000];
    let plain = header.emit(&mut bytes);
    let Some(context) = signer else { return bytes[..plain].to_vec() };
    let mic = context.sign_call(&bytes[..plain - 8]);
    let verifier = OpaqueAuth { flavor: AuthFlavor::Gss, body: mic.as_slice() };
    let length = CallHeader { verifier, ..header }.emit(&mut bytes);
    bytes[..length].to_vec()
}

pub(crate) fn seal(
    context: &Context,
    service: GssService,
    sequence: u32,
    content: &[u8],
) -> Vec<u8> {
    let keys = context.send_keys();
    let mut body = vec![0; sealed_bytes(service, keys, content.len())];
    body[content_at(service)..][..content.len()].copy_from_slice(content);
    let (mut confounders, counter) = (AesConfounders::new(&[7; 32]), context.next_counter());
    seal_body(service, keys, &mut body, sequence, counter, &mut confounders).unwrap();
    body
}

pub(crate) fn opaque(data: &[u8]) -> Vec<u8> {
    let mut bytes = (data.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

impl Foe {
    pub(crate) fn connect(server: &Server) -> Self {
        Self::connect_as(server, "mallory")
    }

    fn connect_as(server: &Server, user: &str) -> Self {
        let mut peer = RawPeer::connect(&server.address);
        let (go_on, token) = begin(user);
        let result = init(&mut peer, GssProcedure::Init, &[], &token);
        let (result, _) = result.unwrap();
        let answer = GssInitResult::parse(&result).unwrap();
        assert_eq!((answer.major, answer.window), (GssInitResult::COMPLETE, 2048));
        let context = complete(go_on, answer.token);
        Self { peer, context, handle: answer.handle.to_vec(), xid: 1000, sequence: 0 }
    }

    pub(crate) fn credential(&mut self, service: GssService) -> (u32, GssService) {
        self.sequence += 1;
        (self.sequence, service)
    }

    /// A call with that sequence number, whose arguments are `content`.
    pub(crate) fn message(
        &mut self,
        (sequence, service): (u32, GssService),
        procedure: Procedure,
        content: &[u8],
    ) -> Vec<u8> {
        self.xid += 1;
        let handle = &self.handle;
        let data = GssProcedure::Data;
        let credential = GssCredential { procedure: data, sequence, service, handle };
        let call = rpc_call(self.xid, procedure, &credential, Some(&self.context));
        let body = match service {
            GssService::Other(_) => content.to_vec(),
            service => seal(&self.context, service, sequence, content),
        };
        [transport(self.xid, MSG, &[0; 3]), call, body].concat()
    }

    pub(crate) fn ask(&mut self, sequence: u32, message: &[u8]) -> Answer {
        self.peer.send(message);
        self.hear(sequence)
    }

    /// A call like [`Foe::message`], in memory from which it is fetched; returns that.
    pub(crate) fn send_long(
        &mut self,
        with: (u32, GssService),
        procedure: Procedure,
        content: &[u8],
    ) -> RemoteSlice {
        let message = self.message(with, procedure, content);
        let slice = self.peer.expose_kept(&message[HEADER_BYTES..], Access::RemoteRead);
        let lists = [&read_segment(0, slice)[..], &NO_LISTS].concat();
        self.peer.send(&transport(self.xid, NOMSG, &lists));
        slice
    }

    pub(crate) fn hear(&mut self, sequence: u32) -> Answer {
        let message = match self.peer.hear() {
            Said::Down(_) => return Answer::Down,
            Said::Message(message) => message,
        };
        if message.len() < HEADER_BYTES {
            return Answer::Rdma;
        }
        let (header, _) = ReplyHeader::parse(&message[HEADER_BYTES..]).unwrap();
        match header.body {
            ReplyBody::Denied(status) => Answer::Denied(status),
            ReplyBody::Accepted { verifier, status } => {
                match self.context.verify_reply(sequence, verifier.body) {
                    Ok(()) => Answer::Verified(status),
                    Err(_) => Answer::Unverified(status),
                }
            }
        }
    }

    #[track_caller]
    pub(crate) fn is_served(&mut self) {
        let with = self.credential(GssService::Integrity);
        let message = self.message(with, ECHO, &opaque(b"alive"));
        assert_eq!(self.ask(with.0, &message), Answer::Verified(AcceptStatus::Success));
    }
}

/// The call that brings a token.
pub(crate) fn init_call(xid: u32, procedure: GssProcedure, handle: &[u8], token: &[u8]) -> Vec<u8> {
    let credential = GssCredential { procedure, sequence: 0, service: GssService::None, handle };
    [rpc_call(xid, Procedure(0), &credential, None), opaque(token)].concat()
}

/// Results of a call that brought a token.
pub(crate) fn init_results(handle: &[u8], major: u32, window: u32, token: &[u8]) -> Vec<u8> {
    let result = GssInitResult { handle, major, minor: 0, window, token };
    let mut bytes = vec![0; result.buffer_len()];
    result.write(&mut Writer::new(&mut bytes));
    bytes
}

/// A context that is begun, and its first token.
pub(crate) fn begin(user: &str) -> (GoOn, Vec<u8>) {
    match keys(ENCTYPE, user).begin("", Instant(0)).unwrap() {
        Negotiation::Continue(go_on, token) => (go_on, token),
        Negotiation::Complete(..) => panic!("no token"),
    }
}

/// The context that the last token completes.
fn complete(go_on: GoOn, token: &[u8]) -> Context {
    let Negotiation::Complete(established, _) = go_on(token, Instant(0)).unwrap() else {
        panic!("one more token")
    };
    Context::new(Role::Initiator, established)
}

pub(crate) fn send_init(peer: &mut RawPeer, xid: u32, token: &[u8]) {
    let call = init_call(xid, GssProcedure::Init, &[], token);
    peer.send(&[transport(xid, MSG, &[0; 3]), call].concat());
}

/// The results of a token, and the flavor of their verifier; the answer if there are none.
fn init(
    peer: &mut RawPeer,
    procedure: GssProcedure,
    handle: &[u8],
    token: &[u8],
) -> Result<(Vec<u8>, AuthFlavor), RejectStatus> {
    let call = init_call(7, procedure, handle, token);
    peer.send(&[transport(7, MSG, &[0; 3]), call].concat());
    let Said::Message(message) = peer.hear() else { panic!("the connection ended") };
    let stream = &message[HEADER_BYTES..];
    let (header, at) = ReplyHeader::parse(stream).unwrap();
    match header.body {
        ReplyBody::Denied(status) => Err(status),
        ReplyBody::Accepted { verifier, .. } => Ok((stream[at..].to_vec(), verifier.flavor)),
    }
}

#[test]
fn a_call_with_any_flipped_bit_reaches_no_handler_as_the_clients() {
    let server = Server::with_keys(ENCTYPE);
    let mut foe = Foe::connect(&server);
    for service in [GssService::Integrity, GssService::Privacy] {
        let whole = foe.message((1, service), ECHO, &opaque(b"data")).len();
        // Behind the XID and the word that says CALL.
        for bit in (HEADER_BYTES + 8) * 8..whole * 8 {
            let with = foe.credential(service);
            let mut message = foe.message(with, ECHO, &opaque(b"data"));
            message[bit / 8] ^= 0x80 >> (bit % 8);
            let answer = foe.ask(with.0, &message);
            // A verifier that checks is there for a header that does: then it was the body.
            let garbage = Answer::Verified(AcceptStatus::GarbageArgs);
            assert_ne!(answer, Answer::Verified(AcceptStatus::Success), "{service:?} bit {bit}");
            assert!(server.proved() == 0 && answer != Answer::Down, "{service:?} bit {bit}");
            if let Answer::Verified(_) = answer {
                assert_eq!(answer, garbage, "{service:?} bit {bit}");
            }
        }
    }
    foe.is_served();
    assert_eq!(server.proved(), 1);
}

#[test]
fn a_call_that_is_repeated_closes_its_connection_and_is_not_executed() {
    let server = Server::with_keys(ENCTYPE);
    for service in [GssService::None, GssService::Integrity, GssService::Privacy] {
        let mut foe = Foe::connect(&server);
        let before = server.calls();
        let with = foe.credential(service);
        let message = foe.message(with, ECHO, &opaque(b"data"));
        assert_eq!(foe.ask(with.0, &message), Answer::Verified(AcceptStatus::Success));
        // By another connection, and then by the same.
        let mut thief = RawPeer::connect(&server.address);
        thief.send(&message);
        assert!(matches!(thief.hear(), Said::Down(_)));
        foe.is_served();
        assert_eq!(foe.ask(with.0, &message), Answer::Down);
        assert_eq!(server.calls() - before, 2);
    }
}

#[test]
fn flaws_of_calls_have_the_answers_of_rfc_2203() {
    let server = Server::with_keys(ENCTYPE);
    let mut foe = Foe::connect(&server);
    let garbage = Answer::Verified(AcceptStatus::GarbageArgs);
    // An unknown handle.
    let (service, content) = (GssService::Integrity, opaque(b"data"));
    let with = foe.credential(service);
    foe.handle[15] ^= 1;
    let message = foe.message(with, ECHO, &content);
    assert_eq!(foe.ask(with.0, &message), denied(AuthStat::GssCredProblem));
    foe.handle[15] ^= 1;
    // An unknown service.
    let with = foe.credential(GssService::Other(9));
    let message = foe.message(with, ECHO, &content);
    assert_eq!(foe.ask(with.0, &message), denied(AuthStat::BadCred));
    // A body without its frame, and one of another call.
    for foreign in [false, true] {
        for service in [GssService::Integrity, GssService::Privacy] {
            let with = foe.credential(service);
            let message = foe.message(with, ECHO, &content);
            let own = sealed_bytes(service, foe.context.send_keys(), content.len());
            let body = match foreign {
                true => seal(&foe.context, service, with.0 + 1, &content),
                false => content.clone(),
            };
            let message = [&message[..message.len() - own], &body].concat();
            assert_eq!(foe.ask(with.0, &message), garbage, "{service:?} {foreign}");
        }
    }
    // The body of the other service.
    let with = foe.credential(GssService::Privacy);
    let message = foe.message(with, ECHO, &content);
    let own = sealed_bytes(GssService::Privacy, foe.context.send_keys(), content.len());
    let body = seal(&foe.context, GssService::Integrity, with.0, &content);
    let message = [&message[..message.len() - own], &body].concat();
    assert_eq!(foe.ask(with.0, &message), garbage);
    assert_eq!(server.calls(), 0);
    foe.is_served();
}

#[test]
fn data_beside_a_protected_message_are_refused() {
    let server = Server::with_keys(ENCTYPE);
    let mut foe = Foe::connect(&server);
    let slice = foe.peer.expose(&[9; 4096], Access::RemoteRead);
    for service in [GssService::None, GssService::Integrity, GssService::Privacy] {
        let with = foe.credential(service);
        // The count of the item; its data are in the chunk.
        let message = foe.message(with, ECHO, &4096_u32.to_be_bytes());
        let position = (message.len() - HEADER_BYTES) as u32;
        let lists = [&read_segment(position, slice)[..], &NO_LISTS].concat();
        let header = transport(foe.xid, MSG, &lists);
        let message = [&header, &message[HEADER_BYTES..]].concat();
        let expected = match service {
            // It was executed; its reply is too long to be inline, and no chunk is offered for it.
            GssService::None => Answer::Rdma,
            _ => Answer::Verified(AcceptStatus::GarbageArgs),
        };
        assert_eq!(foe.ask(with.0, &message), expected, "{service:?}");
    }
    assert_eq!(server.calls(), 1);
}

#[test]
fn a_context_is_destroyed_by_its_client_only() {
    let server = Server::with_keys(ENCTYPE);
    let mut foe = Foe::connect(&server);
    for is_forged in [true, false] {
        let (sequence, service) = foe.credential(GssService::None);
        foe.xid += 1;
        let (procedure, handle) = (GssProcedure::Destroy, &foe.handle);
        let credential = GssCredential { procedure, sequence, service, handle };
        let mut call = rpc_call(foe.xid, Procedure(0), &credential, Some(&foe.context));
        *call.last_mut().unwrap() ^= u8::from(is_forged);
        let message = [transport(foe.xid, MSG, &[0; 3]), call].concat();
        let expected = match is_forged {
            true => denied(AuthStat::GssCredProblem),
            false => Answer::Verified(AcceptStatus::Success),
        };
        assert_eq!(foe.ask(sequence, &message), expected);
        if is_forged {
            foe.is_served();
        }
    }
    let with = foe.credential(GssService::Integrity);
    let message = foe.message(with, ECHO, &opaque(b"data"));
    assert_eq!(foe.ask(with.0, &message), denied(AuthStat::GssCredProblem));
}

#[test]
fn tokens_that_are_none_leave_nothing_behind() {
    // One context of this host: any other would take the place of the client's, which no call has used yet.
    let acceptor = GssAcceptor::new(keys(ENCTYPE, "server")).contexts_max(8);
    let server = Server::start(Some(acceptor));
    let mut client = caller(&server, ENCTYPE, GssService::Privacy);
    let mut peer = RawPeer::connect(&server.address);
    for round in 0..500 {
        let (result, flavor) = init(&mut peer, GssProcedure::Init, &[], b"noise").unwrap();
        let result = GssInitResult::parse(&result).unwrap();
        assert_eq!((result.major, result.handle.len()), (9 << 16, 0), "{round}");
        assert_eq!(flavor, AuthFlavor::None);
        let unknown = init(&mut peer, GssProcedure::ContinueInit, &[round as u8; 12], b"test");
        assert_eq!(GssInitResult::parse(&unknown.unwrap().0).unwrap().major, 8 << 16);
    }
    assert_eq!(call(&mut client, ECHO, b"data").unwrap(), b"data");
}

/// The server keeps replies for a peer by XID, program, arguments and user.
#[test]
fn a_reply_that_is_kept_of_a_call_is_not_given_to_another_user() {
    let server = Server::start_once(GssAcceptor::new(keys(ENCTYPE, "server")));
    for service in [GssService::None, GssService::Privacy] {
        let mut foe = Foe::connect(&server);
        foe.xid += 100 * service.to_wire();
        let with = foe.credential(service);
        let message = foe.message(with, WHO, &[]);
        assert_eq!(foe.ask(with.0, &message), Answer::Verified(AcceptStatus::Success));
        let executed = server.calls();
        // The same call again is not executed again, and has another sequence number.
        let with = foe.credential(service);
        foe.xid -= 1;
        let message = foe.message(with, WHO, &[]);
        assert_eq!(foe.ask(with.0, &message), Answer::Verified(AcceptStatus::Success));
        assert_eq!(server.calls(), executed);
        // Nor is it that of who calls without a context, whatever the credential.
        for body in [&[][..], b"mallory\0", b"\0\0\0\x01mallory\0"] {
            let credential = match body {
                [] => OpaqueAuth::NONE,
                body => OpaqueAuth { flavor: AuthFlavor::Short, body },
            };
            let (xid, verifier) = (Xid(foe.xid), OpaqueAuth::NONE);
            let (program, version, procedure) = (PROGRAM, VERSION, WHO);
            let call = CallHeader { xid, program, version, procedure, credential, verifier };
            let mut bytes = vec![0; call.buffer_len()];
            call.emit(&mut bytes);
            foe.peer.send(&[transport(foe.xid, MSG, &[0; 3]), bytes].concat());
            let Said::Message(message) = foe.peer.hear() else { panic!("the connection ended") };
            assert_eq!(message[HEADER_BYTES + 24..], opaque(b"None"), "{service:?}");
        }
        assert_eq!(server.calls(), executed + 3);
    }
}

/// All calls come over one connection, with one XID.
#[test]
fn a_reply_that_is_kept_is_that_of_its_user_and_its_service() {
    let server = Server::start_once(GssAcceptor::new(keys(ENCTYPE, "server")));
    let mut foe = Foe::connect(&server);
    let mut other = Foe::connect_as(&server, "alice");
    let xid = foe.xid;
    for service in [GssService::Privacy, GssService::Integrity, GssService::None] {
        for name in ["mallory", "alice"] {
            let executed = server.calls();
            let with = foe.credential(service);
            foe.xid = xid;
            let message = foe.message(with, WHO, &[]);
            assert_eq!(foe.ask(with.0, &message), Answer::Verified(AcceptStatus::Success));
            assert_eq!(server.calls(), executed + 1, "{name} was given the reply of another call");
            std::mem::swap(&mut foe.context, &mut other.context);
            std::mem::swap(&mut foe.handle, &mut other.handle);
            std::mem::swap(&mut foe.sequence, &mut other.sequence);
        }
    }
}

/// Way in which a server spoils a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spoils {
    Nothing,
    /// There is no verifier.
    Verifier,
    /// The verifier is of another call.
    Number,
    /// A bit of the verifier.
    VerifierBit,
    /// A bit of the body.
    BodyBit,
    /// The body is not protected.
    Frame,
    /// The body is of another call.
    Body,
}

/// A server that accepts contexts, and spoils replies.
pub(crate) struct FalseServer {
    pub(crate) peer: RawPeer,
    pub(crate) context: Option<Context>,
    enctype: Enctype,
    /// The window that it tells.
    pub(crate) window: u32,
    destroyed: usize,
    /// Padding of its replies under RPCSEC_GSS, if they have any.
    pub(crate) alignment: Alignment,
}

/// Runs the client until `next` finds something.
pub(crate) fn follow<T>(client: &mut Caller<Vec<u8>>, mut next: impl FnMut() -> Option<T>) -> T {
    let began = std::time::Instant::now();
    loop {
        if let Some(found) = next() {
            return found;
        }
        assert!(began.elapsed() < LIMIT, "the client does not go on");
        pause_after(client.core.poll_once().events);
    }
}

impl FalseServer {
    /// One, and a client of it that is up.
    pub(crate) fn meet(service: GssService, window: u32) -> (Caller<Vec<u8>>, Self) {
        Self::meet_with(ENCTYPE, service, window)
    }

    /// The same with keys of this encryption type.
    pub(crate) fn meet_with(
        enctype: Enctype,
        service: GssService,
        window: u32,
    ) -> (Caller<Vec<u8>>, Self) {
        let (address, listener) = RawListener::new();
        let client = asked(&address, &options(keys(enctype, "alice"), service));
        let alignment = Alignment::NONE;
        Self::raise(&listener, client, (enctype, service, window, alignment), Spoils::Nothing)
    }

    /// A client that is up, and was answered so when it asked for configuration: by three words.
    pub(crate) fn configure(
        raw: RawConfig,
        service: GssService,
        spoils: Spoils,
    ) -> Caller<Vec<u8>> {
        let (address, listener) = RawListener::new();
        let with = options(keys(ENCTYPE, "alice"), service);
        let client = Caller::asked(engine(raw), &address, &with, one_opaque);
        Self::raise(&listener, client, (ENCTYPE, service, 64, Alignment::NONE), spoils).0
    }

    pub(crate) const fn of(peer: RawPeer) -> Self {
        let alignment = Alignment::NONE;
        Self { peer, context: None, enctype: ENCTYPE, window: 64, destroyed: 0, alignment }
    }

    pub(crate) fn raise(
        listener: &RawListener,
        mut client: Caller<Vec<u8>>,
        (enctype, service, window, alignment): (Enctype, GssService, u32, Alignment),
        spoils: Spoils,
    ) -> (Caller<Vec<u8>>, Self) {
        let peer = follow(&mut client, || listener.try_accept());
        let mut server = Self { enctype, window, alignment, ..Self::of(peer) };
        let began = std::time::Instant::now();
        while !client.client.is_up() {
            assert!(began.elapsed() < LIMIT, "the client does not come up");
            pause_after(client.core.poll_once().events);
            if let Some(Said::Message(message)) = server.peer.poll() {
                server.peer.unhear(message);
                server.answer(service, spoils);
            }
        }
        (client, server)
    }

    /// The next call: its XID, its number and the words of its transport header.
    pub(crate) fn hear_call(&mut self) -> (Xid, u32, Vec<u32>) {
        let said = self.peer.hear();
        let words = said.words();
        let Said::Message(message) = said else { panic!("the client has gone") };
        let view = HeaderView::new_checked(&message, &Limits::DEFAULT).unwrap();
        let (call, _) = CallHeader::parse(&message[view.header_bytes()..]).unwrap();
        let credential = GssCredential::parse(call.credential.body).unwrap();
        (call.xid, credential.sequence, words[..view.header_bytes() / 4].to_vec())
    }

    /// The client calls: as [`FalseServer::hear_call`].
    pub(crate) fn called_by(
        &mut self,
        client: &mut Caller<Vec<u8>>,
        mut spec: CallSpec,
    ) -> (Xid, u32, Vec<u32>) {
        client.client.call(WHO, Token(3), &mut spec, |args| args.opaque(b"")).unwrap();
        client.core.poll_once();
        self.hear_call()
    }

    /// The RPC header of a reply that its client believes.
    pub(crate) fn reply_header(&self, xid: Xid, sequence: u32) -> Vec<u8> {
        accepted(xid, self.context.as_ref().unwrap().sign_reply(sequence).as_slice())
    }

    /// Answers a call, the words of whose transport header end with its Reply chunk, by that.
    pub(crate) fn reply_in_chunk(&mut self, call: &[u32], reply: &[u8], claimed_bytes: u32) {
        let chunk = slice_of(&call[call.len() - 4..]);
        self.peer.write(reply, chunk);
        let claimed = write_chunk(&[RemoteSlice { length: claimed_bytes, ..chunk }]);
        self.peer.send(&transport(call[0], NOMSG, &[&[0, 0], &claimed[..]].concat()));
    }

    pub(crate) fn answer(&mut self, service: GssService, spoils: Spoils) {
        let Said::Message(message) = self.peer.hear() else { panic!("the client has gone") };
        let view = HeaderView::new_checked(&message, &Limits::DEFAULT).unwrap();
        let stream = &message[view.header_bytes()..];
        let (call, at) = CallHeader::parse(stream).unwrap();
        let arguments = &stream[at..];
        let none = OpaqueAuth::NONE;
        if call.credential.flavor != AuthFlavor::Gss {
            return self.reply(call.xid, none, &[]);
        }
        let credential = GssCredential::parse(call.credential.body).unwrap();
        if credential.procedure == GssProcedure::Init {
            let token = spinrpc_proto::rpc::parse_init_arguments(arguments).unwrap();
            let mechanism = keys(self.enctype, "server");
            let accepted = mechanism.accept(token, Instant(0)).unwrap();
            let Negotiation::Complete(established, token) = accepted else { panic!("more tokens") };
            let context = Context::new(Role::Acceptor, established);
            let mic = context.sign_reply(self.window);
            let results = init_results(b"name", GssInitResult::COMPLETE, self.window, &token);
            self.context = Some(context);
            let verifier = OpaqueAuth { flavor: AuthFlavor::Gss, body: mic.as_slice() };
            if self.alignment != Alignment::NONE {
                let result = GssInitResult::parse(&results).unwrap();
                return self.reply_padded(call.xid, verifier, |writer| result.write(writer));
            }
            return self.reply(call.xid, verifier, &results);
        }
        if credential.procedure == GssProcedure::Destroy {
            let context = self.context.as_ref().unwrap();
            let (sequence, now) = (credential.sequence, Instant(0));
            context.admit_call(now, stream, (&call, at), sequence).unwrap();
            self.destroyed += 1;
            return;
        }
        self.answer_data(call.xid, credential.sequence, service, spoils);
    }

    pub(crate) fn answer_data(
        &mut self,
        xid: Xid,
        sequence: u32,
        service: GssService,
        spoils: Spoils,
    ) {
        let context = self.context.as_ref().unwrap();
        let is = |other| spoils == other;
        let mut mic =
            context.sign_reply(sequence + u32::from(is(Spoils::Number))).as_slice().to_vec();
        let content = opaque(b"results");
        let of = sequence + u32::from(is(Spoils::Body));
        let mut body = match is(Spoils::Frame) {
            true => content,
            false => seal(context, service, of, &content),
        };
        if is(Spoils::VerifierBit) {
            mic[20] ^= 4;
        }
        if is(Spoils::BodyBit) {
            let middle = body.len() / 2;
            body[middle] ^= 1;
        }
        let verifier = match is(Spoils::Verifier) {
            true => OpaqueAuth::NONE,
            false => OpaqueAuth { flavor: AuthFlavor::Gss, body: &mic },
        };
        if self.alignment != Alignment::NONE {
            return self.reply_padded(xid, verifier, |writer| write_counted(writer, &body));
        }
        self.reply(xid, verifier, &body);
    }

    pub(crate) fn reply(&mut self, xid: Xid, verifier: OpaqueAuth<'_>, body: &[u8]) {
        let status = AcceptStatus::Success;
        let header = ReplyHeader { xid, body: ReplyBody::Accepted { verifier, status } };
        let mut bytes = [0; 600];
        let length = header.emit(&mut bytes);
        self.peer.send(&[&transport(xid.0, MSG, &[0; 3]), &bytes[..length], body].concat());
    }

    pub(crate) fn deny(&mut self, xid: Xid, status: RejectStatus) {
        let mut bytes = [0; 100];
        let length = ReplyHeader::denied(xid, status).emit(&mut bytes);
        self.peer.send(&[&transport(xid.0, MSG, &[0; 3]), &bytes[..length]].concat());
    }
}

/// MSG_ACCEPTED, SUCCESS, with this verifier.
pub(crate) fn accepted(xid: Xid, mic: &[u8]) -> Vec<u8> {
    let verifier = OpaqueAuth { flavor: AuthFlavor::Gss, body: mic };
    let status = AcceptStatus::Success;
    let header = ReplyHeader { xid, body: ReplyBody::Accepted { verifier, status } };
    let mut bytes = vec![0; header.buffer_len()];
    header.emit(&mut bytes);
    bytes
}

#[test]
fn a_reply_that_is_not_the_servers_reaches_no_handler() {
    use GssService::{Integrity, Privacy};
    use Spoils::{Body, BodyBit, Frame, Nothing, Number, Verifier, VerifierBit};
    let cases = [
        (GssService::None, &[Nothing, Verifier, Number, VerifierBit][..]),
        (Integrity, &[Nothing, Verifier, Number, VerifierBit, BodyBit, Frame, Body]),
        (Privacy, &[Nothing, Verifier, Number, VerifierBit, BodyBit, Frame, Body]),
    ];
    for (service, all) in cases {
        let (mut client, mut server) = FalseServer::meet(service, 64);
        for spoils in all.iter().copied().chain([Nothing]) {
            let mut spec = CallSpec::short();
            client.client.call(WHO, Token(1), &mut spec, |args| args.opaque(b"")).unwrap();
            for _ in 0..3 {
                client.core.poll_once();
            }
            server.answer(service, spoils);
            match (spoils, client.reply()) {
                (Nothing, Ok(data)) => assert_eq!(data, b"results"),
                (Nothing, Err(error)) => panic!("{service:?}: {error}"),
                (_, Err(CallError::NotAuthentic)) => {}
                (_, other) => panic!("{service:?} {spoils:?}: {other:?}"),
            }
        }
        // At its end the client says that it is one.
        client.client.close();
        client.core.poll_once();
        server.answer(service, Nothing);
        assert_eq!(server.destroyed, 1);
        let heard = std::rc::Rc::clone(&client.heard);
        run_core(&mut client.core, "the end", || {
            matches!(heard.borrow().events[..], [_, ConnectionEvent::Down { in_flight: 0, .. }])
        });
        assert!(heard.borrow().replies.is_empty());
    }
}

/// Establishes a context by another transport, as Linux does by TCP, for calls of this connection.
pub(crate) fn connect_beside(engine: &Engine, address: &str, host: IpAddr) -> Foe {
    let (go_on, token) = begin("mallory");
    let call = init_call(7, GssProcedure::Init, &[], &token);
    let reply = engine.answer_gss_call(&call, host).unwrap();
    let (header, at) = ReplyHeader::parse(&reply).unwrap();
    let result = GssInitResult::parse(&reply[at..]).unwrap();
    let context = complete(go_on, result.token);
    let ReplyBody::Accepted { verifier, status: AcceptStatus::Success } = header.body else {
        panic!("{header:?}")
    };
    context.verify_reply(result.window, verifier.body).unwrap();
    let (peer, handle) = (RawPeer::connect(address), result.handle.to_vec());
    Foe { peer, context, handle, xid: 1000, sequence: 0 }
}

#[test]
fn a_context_that_came_by_another_transport_is_one_of_every_connection() {
    let (server, host) = (Server::with_keys(ENCTYPE), IpAddr::from([192, 0, 2, 1]));
    let mut foe = connect_beside(&server.engine, &server.address, host);
    let first = foe.credential(GssService::None);
    let message = foe.message(first, ECHO, &opaque(b"data"));
    assert_eq!(foe.ask(first.0, &message), Answer::Verified(AcceptStatus::Success));
    let beside = |foe: &Foe, procedure, (sequence, service), of: Procedure| {
        let credential = GssCredential { procedure, sequence, service, handle: &foe.handle };
        let call = rpc_call(9, of, &credential, Some(&foe.context));
        let reply = server.engine.answer_gss_call(&call, host)?;
        let (header, _) = ReplyHeader::parse(&reply).unwrap();
        Some(match header.body {
            ReplyBody::Denied(status) => Answer::Denied(status),
            ReplyBody::Accepted { verifier, status } => {
                foe.context.verify_reply(sequence, verifier.body).unwrap();
                Answer::Verified(status)
            }
        })
    };
    let data = GssProcedure::Data;
    assert_eq!(beside(&foe, data, first, Procedure(0)), None, "its window is that of the calls");
    let second = foe.credential(GssService::None);
    let null = beside(&foe, data, second, Procedure(0));
    assert_eq!(null, Some(Answer::Verified(AcceptStatus::Success)));
    for service in [GssService::None, GssService::Integrity] {
        let next = foe.credential(service);
        let of = if service == GssService::None { ECHO } else { Procedure(0) };
        let refused = beside(&foe, data, next, of);
        assert_eq!(refused, Some(Answer::Verified(AcceptStatus::ProcUnavail)), "{service:?}");
    }
    let last = foe.credential(GssService::None);
    let elsewhere = beside(&foe, GssProcedure::Destroy, last, ECHO);
    assert_eq!(elsewhere, Some(denied(AuthStat::BadCred)), "not by another procedure than 0");
    let destroyed = beside(&foe, GssProcedure::Destroy, last, Procedure(0));
    assert_eq!(destroyed, Some(Answer::Verified(AcceptStatus::Success)));
    let gone = foe.credential(GssService::None);
    let message = foe.message(gone, ECHO, &opaque(b"data"));
    assert_eq!(foe.ask(gone.0, &message), denied(AuthStat::GssCredProblem));
    assert_eq!(server.calls(), 1);
}
