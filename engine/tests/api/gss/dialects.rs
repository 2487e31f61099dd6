//! RPCSEC_GSS under RFC 5666 and its drafts: "This security mechanism will be unaffected by the RDMA transport" (section 11).
//! Bodies that are Read chunks, and messages with padding (RDMA_MSGP), from peers that are none of ours.

use super::*;
use spinrpc_proto::xdr::{Padding, Reader};

const PROFILES: [Profile; 3] = [Profile::Rfc5666, Profile::Draft03, Profile::Draft00Replies];
const PROTECTED: [GssService; 2] = [GssService::Integrity, GssService::Privacy];
const SUCCESS: Answer = Answer::Verified(AcceptStatus::Success);
const GARBAGE: Answer = Answer::Verified(AcceptStatus::GarbageArgs);
const MSGP: u32 = 2;
/// The words of an RDMA_MSGP before its RPC message.
const PADDED_HEADER_BYTES: usize = 36;

fn server_with(profile: Profile, change: impl FnOnce(&mut RawConfig)) -> Server {
    let raw = small_with(|raw| {
        (raw.rpc.protocol, raw.rpc.ccp) = (profile, ConfigRole::Off);
        change(raw);
    });
    Server::start_as(raw, Some(GssAcceptor::new(keys(ENCTYPE, "server"))))
}

fn server(profile: Profile) -> Server {
    server_with(profile, |_| {})
}

/// A call without lists as an RDMA_MSGP: behind its RPC header there is nothing but counted data.
fn padded(message: &[u8], alignment: Alignment) -> Vec<u8> {
    let (header, at) = CallHeader::parse(&message[HEADER_BYTES..]).unwrap();
    padded_message(header.xid, alignment, &[0; 3], |writer| {
        header.write(writer);
        write_counted(writer, &message[HEADER_BYTES + at..]);
    })
}

pub(crate) fn padded_message(
    xid: Xid,
    alignment: Alignment,
    lists: &[u32],
    write: impl FnOnce(&mut Writer<'_>),
) -> Vec<u8> {
    let words = [&[alignment.align_bytes(), alignment.threshold_bytes()], lists].concat();
    let transport = transport(xid.0, MSGP, &words);
    let mut padding = Padding::new(alignment, transport.len());
    let mut stream = vec![0; 1 << 14];
    let mut writer = Writer::aligned(&mut stream, &mut padding);
    write(&mut writer);
    let length = writer.len();
    [&transport, &stream[..length]].concat()
}

pub(crate) fn write_counted(writer: &mut Writer<'_>, data: &[u8]) {
    let mut reader = Reader::new(data);
    while reader.remaining() > 0 {
        writer.opaque(reader.opaque(usize::MAX).unwrap());
    }
}

impl FalseServer {
    /// One under these rules that pads its replies, and a client of it that is up.
    pub(crate) fn meet_under(
        profile: Profile,
        align_bytes: u64,
        service: GssService,
        alignment: Alignment,
    ) -> (Caller<Vec<u8>>, Self) {
        Self::meet_to_read((profile, align_bytes), service, alignment, one_opaque)
    }

    /// The same, with results that are read so.
    fn meet_to_read(
        (profile, align_bytes): (Profile, u64),
        service: GssService,
        alignment: Alignment,
        read: Read<Vec<u8>>,
    ) -> (Caller<Vec<u8>>, Self) {
        let mut raw = client_config();
        (raw.rpc.protocol, raw.rpc.ccp) = (profile, ConfigRole::Off);
        raw.rpc.msgp_align_bytes = align_bytes;
        let (address, listener) = RawListener::new();
        let with = options(keys(ENCTYPE, "alice"), service);
        let client = Caller::asked(engine(raw), &address, &with, read);
        Self::raise(&listener, client, (ENCTYPE, service, 64, alignment), Spoils::Nothing)
    }

    /// Answers under RPCSEC_GSS as [`FalseServer::reply`], in an RDMA_MSGP.
    pub(crate) fn reply_padded(
        &mut self,
        xid: Xid,
        verifier: OpaqueAuth<'_>,
        write: impl FnOnce(&mut Writer<'_>),
    ) {
        let status = AcceptStatus::Success;
        let header = ReplyHeader { xid, body: ReplyBody::Accepted { verifier, status } };
        let message = padded_message(xid, self.alignment, &[0; 3], |writer| {
            header.write(writer);
            write(writer);
        });
        self.peer.send(&message);
    }
}

/// The part of a body that is the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunked {
    /// The data of its first item: "the byte count that is encoded as part of the field remains in the XDR stream" (section
    /// 3.4).
    Data,
    /// All of it: "any object MAY be chosen for chunking".
    Whole,
}

/// A stream without the chunk, its position, and the chunk.
fn without_chunk(stream: &[u8], body_bytes: usize, chunked: Chunked) -> (Vec<u8>, u32, Vec<u8>) {
    let at = stream.len() - body_bytes;
    let (position, length, taken) = match chunked {
        Chunked::Whole => (at, body_bytes, body_bytes),
        Chunked::Data => {
            let count = u32::from_be_bytes(*stream[at..].first_chunk().unwrap()) as usize;
            (at + 4, count, count.next_multiple_of(4))
        }
    };
    let chunk = stream[position..][..length].to_vec();
    let rest = [&stream[..position], &stream[position + taken..]].concat();
    (rest, position as u32, chunk)
}

impl Foe {
    /// A call whose body is a Read chunk; `spoil` may change list and chunk. In a long message if `is_long`.
    fn ask_by_chunk(
        &mut self,
        (service, procedure): (GssService, Procedure),
        content: &[u8],
        (chunked, is_long): (Chunked, bool),
        spoil: impl FnOnce(&mut u32, &mut Vec<u8>),
    ) -> Answer {
        let with = self.credential(service);
        let message = self.message(with, procedure, content);
        let body_bytes = sealed_bytes(service, self.context.send_keys(), content.len());
        let (rest, mut position, mut chunk) =
            without_chunk(&message[HEADER_BYTES..], body_bytes, chunked);
        spoil(&mut position, &mut chunk);
        let mut lists = Vec::new();
        if is_long {
            lists.extend(read_segment(0, self.peer.expose_kept(&rest, Access::RemoteRead)));
        }
        lists.extend(read_segment(position, self.peer.expose_kept(&chunk, Access::RemoteRead)));
        lists.extend(NO_LISTS);
        match is_long {
            true => self.peer.send(&transport(self.xid, NOMSG, &lists)),
            false => self.peer.send(&[transport(self.xid, MSG, &lists), rest].concat()),
        }
        self.hear(with.0)
    }
}

/// "The data integrity and privacy features alter the body of the message, presenting it as a single chunk. For large messages
/// the chunk may be large enough to qualify for RDMA Read transfer."
#[test]
fn a_body_that_is_a_single_read_chunk_is_opened() {
    for profile in PROFILES {
        let server = server(profile);
        let mut foe = Foe::connect(&server);
        for service in PROTECTED {
            for bytes in [1, 3, 4, 600, 20_001] {
                for how in [Chunked::Data, Chunked::Whole] {
                    for is_long in [false, true] {
                        let executed = server.proved();
                        // Its reply is short.
                        let procedure = if bytes > 1000 { WHO } else { ECHO };
                        let call = (service, procedure);
                        let content = opaque(&pattern(5, bytes));
                        let answer = foe.ask_by_chunk(call, &content, (how, is_long), |_, _| {});
                        assert_eq!(answer, SUCCESS, "{profile:?} {service:?} {bytes} {how:?}");
                        assert_eq!(server.proved(), executed + 1);
                    }
                }
            }
        }
    }
}

/// RFC 8166 section 8.2.2.3: data outside of the message are not for protected bodies.
#[test]
fn under_rfc_8166_a_body_that_is_a_read_chunk_is_garbage() {
    let server = server(Profile::Rfc8166);
    let mut foe = Foe::connect(&server);
    for service in PROTECTED {
        let how = (Chunked::Data, false);
        let answer = foe.ask_by_chunk((service, ECHO), &opaque(b"data"), how, |_, _| {});
        assert_eq!(answer, GARBAGE, "{service:?}");
    }
    foe.is_served();
    assert_eq!(server.proved(), 1);
}

#[test]
fn a_chunk_that_is_not_what_was_protected_reaches_no_handler() {
    type Spoil = fn(&mut u32, &mut Vec<u8>);
    let spoils: [(&str, Spoil); 6] = [
        ("a bit", |_, chunk| chunk[40] ^= 1),
        ("a word more", |_, chunk| chunk.extend([0; 4])),
        ("a word less", |_, chunk| chunk.truncate(chunk.len() - 4)),
        ("a word before", |position, _| *position -= 4),
        ("in the credential", |position, _| *position = 40),
        ("at the XID", |position, _| *position = 4),
    ];
    let server = server(Profile::Rfc5666);
    let mut foe = Foe::connect(&server);
    for service in PROTECTED {
        for is_long in [false, true] {
            for (what, spoil) in spoils {
                let (call, content) = ((service, ECHO), opaque(&pattern(5, 600)));
                let answer = foe.ask_by_chunk(call, &content, (Chunked::Data, is_long), spoil);
                assert_eq!(answer, GARBAGE, "{service:?} {what} {is_long}");
            }
        }
    }
    foe.is_served();
    assert_eq!(server.proved(), 1, "none of them was executed");
}

/// Padding "is implemented completely within the RDMA transport encoding": what is signed and sealed has none (section 3.9).
#[test]
fn a_padded_call_is_served() {
    for profile in PROFILES {
        // The replies of the second are padded, too.
        for align_bytes in [0, 1024] {
            let server = server_with(profile, |raw| raw.rpc.msgp_align_bytes = align_bytes);
            let mut foe = Foe::connect(&server);
            for service in SERVICES {
                for (align, threshold) in [(64, 64), (8, 1), (512, 16), (1024, 512), (0, 0)] {
                    for bytes in [0, 3, 600, 2000] {
                        let executed = server.proved();
                        let with = foe.credential(service);
                        let message = foe.message(with, ECHO, &opaque(&pattern(5, bytes)));
                        let message = padded(&message, Alignment::new(align, threshold));
                        let answer = foe.ask(with.0, &message);
                        assert_eq!(answer, SUCCESS, "{service:?} {align} {threshold} {bytes}");
                        assert_eq!(server.proved(), executed + 1);
                    }
                }
            }
            foe.is_served();
        }
    }
}

#[test]
fn a_padded_call_with_any_flipped_byte_reaches_no_handler_as_the_clients() {
    let server = server(Profile::Rfc5666);
    let mut foe = Foe::connect(&server);
    for service in PROTECTED {
        let alignment = Alignment::new(32, 8);
        let with = foe.credential(service);
        let whole = padded(&foe.message(with, ECHO, &opaque(b"some data")), alignment);
        assert_eq!(foe.ask(with.0, &whole), SUCCESS);
        let executed = server.proved();
        // Behind the XID and the word that says CALL. Padding itself is nothing that anybody reads.
        for at in PADDED_HEADER_BYTES + 8..whole.len() {
            let with = foe.credential(service);
            let mut message = padded(&foe.message(with, ECHO, &opaque(b"some data")), alignment);
            let is_padding = message[at] == 0;
            message[at] ^= 0x41;
            let answer = foe.ask(with.0, &message);
            assert_ne!(answer, Answer::Down, "{service:?} {at}");
            if !is_padding {
                assert_ne!(answer, SUCCESS, "{service:?} {at}");
            }
        }
        let padding_only = server.proved() - executed;
        assert!(padding_only < 64, "{padding_only} were taken for whole");
    }
    foe.is_served();
}

#[test]
fn a_context_is_established_by_a_padded_token() {
    for align_bytes in [0, 512] {
        let server = server_with(Profile::Rfc5666, |raw| raw.rpc.msgp_align_bytes = align_bytes);
        let mut peer = RawPeer::connect(&server.address);
        let call = init_call(7, GssProcedure::Init, &[], &begin("mallory").1);
        let message = [transport(7, MSG, &[0; 3]), call].concat();
        peer.send(&padded(&message, Alignment::new(64, 8)));
        let Said::Message(message) = peer.hear() else { panic!("the connection ended") };
        let (_, at) = ReplyHeader::parse(&message[HEADER_BYTES..]).unwrap();
        let result = GssInitResult::parse(&message[HEADER_BYTES + at..]).unwrap();
        assert_eq!(result.major, GssInitResult::COMPLETE);
    }
}

#[test]
fn padded_replies_are_verified_and_opened() {
    for profile in PROFILES {
        for align_bytes in [0, 512] {
            for service in SERVICES {
                let alignment = Alignment::new(64, 4);
                let (mut client, mut server) =
                    FalseServer::meet_under(profile, align_bytes, service, alignment);
                for spoils in [Spoils::Nothing, Spoils::Number, Spoils::Nothing] {
                    let (xid, sequence, _) = server.called_by(&mut client, CallSpec::short());
                    server.answer_data(xid, sequence, service, spoils);
                    match (spoils, client.reply()) {
                        (Spoils::Nothing, Ok(data)) => assert_eq!(data, b"results"),
                        (Spoils::Number, Err(CallError::NotAuthentic)) => {}
                        (_, other) => panic!("{profile:?} {service:?} {spoils:?}: {other:?}"),
                    }
                }
            }
        }
    }
}

/// The position of a Read chunk is that in the XDR stream (section 3.4), to which padding does not belong (section 3.9): here
/// that before the verifier.
#[test]
fn a_padded_reply_has_its_chunk_at_its_position_in_the_stream() {
    let one_data = |mut reply: Reply<'_>| {
        let mut results = reply.results();
        let bytes = results.data(4096)?.bytes().to_vec();
        results.finish().map(|()| bytes)
    };
    for (profile, threshold) in
        PROFILES.into_iter().flat_map(|profile| [(profile, 512), (profile, 16)])
    {
        let (alignment, data) = (Alignment::new(64, threshold), pattern(5, 100));
        let (mut client, mut server) =
            FalseServer::meet_to_read((profile, 0), GssService::None, alignment, one_data);
        let (xid, sequence, _) = server.called_by(&mut client, CallSpec::short());
        let mic = server.context.as_ref().unwrap().sign_reply(sequence);
        let verifier = OpaqueAuth { flavor: AuthFlavor::Gss, body: mic.as_slice() };
        let body = ReplyBody::Accepted { verifier, status: AcceptStatus::Success };
        let header = ReplyHeader { xid, body };
        let slice = server.peer.expose_kept(&data, Access::RemoteRead);
        let position = header.emit(&mut [0; 600]) as u32 + 4;
        let lists = [&read_segment(position, slice)[..], &NO_LISTS].concat();
        let message = padded_message(xid, alignment, &lists, |writer| {
            header.write(writer);
            writer.u32(slice.length);
        });
        server.peer.send(&message);
        let answer = client.reply();
        assert!(
            matches!(&answer, Ok(bytes) if *bytes == data),
            "{profile:?} {threshold}: {answer:?}"
        );
        let done = server.peer.hear().words();
        assert_eq!(done[3], 3, "RDMA_DONE");
    }
}

#[test]
fn the_body_of_a_reply_that_is_a_single_read_chunk_is_opened() {
    for (profile, service) in PROFILES.into_iter().flat_map(|p| PROTECTED.map(|s| (p, s))) {
        let (mut client, mut server) =
            FalseServer::meet_under(profile, 0, service, Alignment::NONE);
        for (how, is_spoiled) in [
            (Chunked::Data, false),
            (Chunked::Data, true),
            (Chunked::Whole, false),
            (Chunked::Whole, true),
        ] {
            let (xid, sequence, _) = server.called_by(&mut client, CallSpec::short());
            let context = server.context.as_ref().unwrap();
            let sealed = seal(context, service, sequence, &opaque(b"results"));
            let stream = [server.reply_header(xid, sequence), sealed.clone()].concat();
            let (rest, position, mut chunk) = without_chunk(&stream, sealed.len(), how);
            chunk[8] ^= u8::from(is_spoiled);
            let slice = server.peer.expose_kept(&chunk, Access::RemoteRead);
            let lists = [&read_segment(position, slice)[..], &NO_LISTS].concat();
            server.peer.send(&[transport(xid.0, MSG, &lists), rest].concat());
            match (is_spoiled, client.reply()) {
                (false, Ok(data)) => assert_eq!(data, b"results"),
                (true, Err(CallError::NotAuthentic)) => {}
                (_, other) => panic!("{profile:?} {service:?} {how:?} {is_spoiled}: {other:?}"),
            }
            let done = server.peer.hear().words();
            assert_eq!(done[3], 3, "RDMA_DONE");
        }
        let stats = client.engine.gss_stats();
        assert_eq!(stats.replies_forged, 2);
    }
}
