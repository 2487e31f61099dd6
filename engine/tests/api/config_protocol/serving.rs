//! An engine that serves the protocol, asked by a raw peer.

use super::*;
use crate::common::prelude::*;
use crate::common::raw::RawPeer;

fn serving_with(change: impl FnOnce(&mut RawConfig)) -> Server {
    Server::with(small_with(|raw| {
        (raw.rpc.ccp, raw.rpc.ccp_auth) = (ConfigRole::Serve, Some(Protection::Sys));
        change(raw);
    }))
}

fn serving() -> Server {
    serving_with(|_| {})
}

struct Asker {
    peer: RawPeer,
    xid: u32,
}

impl Asker {
    #[track_caller]
    fn of(server: &Server) -> Self {
        Self { peer: RawPeer::connect(&server.address), xid: 0x0c0f_0000 }
    }

    fn send(&mut self, lists: &[u32], target: [u32; 3], credential: &[u32], args: &[u32]) -> u32 {
        self.xid += 1;
        let call = [&[self.xid, 0, 2], &target[..], credential, NOBODY, args].concat();
        self.peer.send_words(&message(self.xid, MSG, lists, &call));
        self.xid
    }

    /// Calls the protocol's program; returns the words behind the XID.
    #[track_caller]
    fn ask(&mut self, procedure: u32, credential: &[u32], args: &[u32]) -> Vec<u32> {
        let target = [CONFIG_RDMA_PROG, VERS1, procedure];
        let xid = self.send(&NO_LISTS, target, credential, args);
        self.answer(xid)
    }

    #[track_caller]
    fn answer(&mut self, xid: u32) -> Vec<u32> {
        match body(&self.peer.hear()) {
            Body::Rpc(words) => {
                assert_eq!(words[..2], [xid, 1]);
                words[2..].to_vec()
            }
            Body::Error(code) => panic!("RDMA_ERROR {code}"),
        }
    }

    /// Says these limits: maxcall_sendsize, maxreply_sendsize, maxrdmaread.
    #[track_caller]
    fn configure(&mut self, limits: [u32; 3]) {
        let answer = self.ask(CONF_RDMA, SOMEBODY, &limits);
        assert_eq!(answer[..4], [0, 0, 0, SUCCESS]);
    }

    /// True if an echo of so many bytes comes back inline; otherwise ERR_CHUNK does, because the
    /// call has no Reply chunk.
    #[track_caller]
    fn echoes_inline(&mut self, bytes: u32) -> bool {
        let args = [vec![bytes], vec![0x5a5a_5a5a; bytes as usize / 4]].concat();
        self.send(&NO_LISTS, [PROGRAM.0, VERSION.0, ECHO.0], NOBODY, &args);
        self.comes_inline()
    }

    #[track_caller]
    fn comes_inline(&mut self) -> bool {
        match body(&self.peer.hear()) {
            Body::Rpc(words) => {
                assert_eq!(words[2..6], [0, 0, 0, SUCCESS]);
                true
            }
            Body::Error(code) => {
                assert_eq!(code, ERR_CHUNK);
                false
            }
        }
    }

    /// Sends an echo whose bytes come as a Read chunk of so many segments.
    #[track_caller]
    fn send_read_chunk(&mut self, segments: usize) -> u32 {
        let bytes = pattern(3, SEGMENT_BYTES * segments);
        let whole = self.peer.expose(&bytes, Access::RemoteRead);
        let lists: Vec<u32> =
            (0..segments).flat_map(|k| read_segment(&whole, k)).chain(NO_LISTS).collect();
        let args = [bytes.len() as u32];
        self.send(&lists, [PROGRAM.0, VERSION.0, ECHO.0], NOBODY, &args)
    }

    #[track_caller]
    fn echoes_read_chunk(&mut self, segments: usize) -> bool {
        self.send_read_chunk(segments);
        self.comes_inline()
    }
}

const SEGMENT_BYTES: usize = 64;

/// Segment number `k` of a chunk for the item behind ten words of RPC header and its count.
fn read_segment(whole: &RemoteSlice, k: usize) -> [u32; 6] {
    let offset = whole.offset + (SEGMENT_BYTES * k) as u64;
    let (high, low) = ((offset >> 32) as u32, offset as u32);
    [1, 44, whole.handle, SEGMENT_BYTES as u32, high, low]
}

#[test]
fn an_engine_that_does_not_serve_it_says_that_the_program_is_unavailable() {
    for role in [ConfigRole::Off, ConfigRole::Ask] {
        let server = Server::with(small_with(|raw| raw.rpc.ccp = role));
        let answer = Asker::of(&server).ask(CONF_RDMA, SOMEBODY, &[4096, 4096, 16]);
        assert_eq!(answer, [0, 0, 0, PROG_UNAVAIL]);
    }
}

/// R5666-52: "a valid reply from the server carrying the actual number of available receive
/// messages"; R5666-54: its own maxcall_sendsize, whatever the client asked for.
#[test]
fn receive_a_request_expect_the_servers_limits_and_the_whole_grant() {
    let server = serving_with(|raw| {
        raw.rpc.inline_recv_bytes = 8192;
        raw.rpc.max_rdma_reads = 5;
        raw.rpc.credits = 48;
    });
    let mut asker = Asker::of(&server);
    for asked in [[1024, 1024, 1], [0, 64, 0], [u32::MAX; 3]] {
        let target = [CONFIG_RDMA_PROG, VERS1, CONF_RDMA];
        let xid = asker.send(&NO_LISTS, target, SOMEBODY, &asked);
        let words = asker.peer.hear().words();
        let expected = [&[xid, 1, 48, MSG, 0, 0, 0], &[xid, 1, 0, 0, 0, SUCCESS][..]].concat();
        assert_eq!(words[..13], expected);
        assert_eq!(words[13..], [8192, 64, 5], "asked for {asked:?}");
    }
}

#[test]
fn the_program_answers_as_every_program_does() {
    let server = serving();
    let mut asker = Asker::of(&server);
    assert_eq!(asker.ask(0, NOBODY, &[]), [0, 0, 0, SUCCESS]);
    assert_eq!(asker.ask(2, SOMEBODY, &[]), [0, 0, 0, PROC_UNAVAIL]);
    for args in [&[][..], &[4096, 4096], &[4096, 4096, 16, 0]] {
        assert_eq!(asker.ask(CONF_RDMA, SOMEBODY, args), [0, 0, 0, GARBAGE_ARGS], "{args:?}");
    }
    let xid = asker.send(&NO_LISTS, [CONFIG_RDMA_PROG, 2, CONF_RDMA], SOMEBODY, &[1024, 1024, 1]);
    assert_eq!(asker.answer(xid), [0, 0, 0, PROG_MISMATCH, 1, 1]);
    assert!(asker.echoes_inline(3000), "none of these has configured anything");
}

/// R5666-70: "MUST be protected by an appropriate RPC security flavor".
#[test]
fn receive_a_weaker_flavor_expect_auth_tooweak_and_nothing_configured() {
    let server = serving();
    let mut asker = Asker::of(&server);
    let denied = |why| [1, 1, why];
    let limits = [1024, 1024, 0];
    // RFC 2203 section 5.3.3.3, where the flavor is known.
    let of_gss = if cfg!(feature = "gss") { AUTH_BADCRED } else { AUTH_REJECTEDCRED };
    for (what, credential, why) in [
        ("AUTH_NONE", NOBODY, AUTH_TOOWEAK),
        ("AUTH_SYS cut short", &[1, 8, 7, 0], AUTH_BADCRED),
        ("AUTH_SHORT", &[2, 4, 7], AUTH_REJECTEDCRED),
        ("RPCSEC_GSS cut short", &[6, 4, 7], of_gss),
        ("an unknown flavor", &[300_000, 0], AUTH_REJECTEDCRED),
    ] {
        assert_eq!(asker.ask(CONF_RDMA, credential, &limits), denied(why), "{what}");
        assert!(asker.echoes_inline(3000), "{what} has configured the connection");
    }
    asker.configure(limits);
    assert!(!asker.echoes_inline(3000));
}

/// AUTH_SYS is what any peer may state: by itself, it protects nothing. The drafts ask for no protection.
#[test]
fn without_a_choice_the_protocol_is_protected_where_the_document_asks_for_it() {
    for (protocol, why) in [
        (Profile::Rfc8166, Some(AUTH_TOOWEAK)),
        (Profile::Rfc5666, Some(AUTH_TOOWEAK)),
        (Profile::Draft03, None),
        (Profile::Draft00, None),
    ] {
        let server = serving_with(|raw| (raw.rpc.protocol, raw.rpc.ccp_auth) = (protocol, None));
        let answer = Asker::of(&server).ask(CONF_RDMA, SOMEBODY, &[4096, 4096, 16]);
        match why {
            Some(why) => assert_eq!(answer, [1, 1, why], "{protocol:?}"),
            None => assert_eq!(answer[..4], [0, 0, 0, SUCCESS], "{protocol:?}"),
        }
    }
}

#[test]
fn a_server_that_demands_no_flavor_takes_auth_none() {
    let server = serving_with(|raw| raw.rpc.ccp_auth = Some(Protection::None));
    let answer = Asker::of(&server).ask(CONF_RDMA, NOBODY, &[4096, 4096, 16]);
    assert_eq!(answer[..4], [0, 0, 0, SUCCESS]);
}

/// RFC 5666 section 6.2: maxreply_sendsize is "the maximum size of an inline RPC message that the
/// client will accept". A connection may be configured again, which raises nothing above what the
/// server is configured for.
#[test]
fn receive_another_request_expect_its_size_from_the_next_reply_on() {
    let server = serving_with(|raw| raw.rpc.inline_send_bytes = 2048);
    let mut asker = Asker::of(&server);
    assert!(asker.echoes_inline(1500) && !asker.echoes_inline(2048));
    asker.configure([4096, 1024, 16]);
    assert!(!asker.echoes_inline(1500) && asker.echoes_inline(900));
    asker.configure([4096, 200, 16]);
    assert!(!asker.echoes_inline(900) && asker.echoes_inline(144), "28 + 24 + 4 + 144 bytes");
    assert!(!asker.echoes_inline(148));
    for large in [4096, u32::MAX] {
        asker.configure([large, large, large]);
        assert!(asker.echoes_inline(1500) && !asker.echoes_inline(2048));
    }
}

/// maxreply_sendsize holds for every inline RPC message: answers without results as well, and that of the protocol
/// itself.
#[test]
fn receive_a_size_that_no_answer_keeps_to_expect_err_chunk_instead() {
    let server = serving();
    let mut asker = Asker::of(&server);
    let program = [PROGRAM.0, VERSION.0, ECHO.0];
    // A header of 28 bytes, and 24 of an RPC error, or 24 and 12 of limits.
    for (said, configured, refused) in
        [(64, true, true), (52, false, true), (51, false, false), (0, false, false)]
    {
        let target = [CONFIG_RDMA_PROG, VERS1, CONF_RDMA];
        asker.send(&NO_LISTS, target, SOMEBODY, &[4096, said, 16]);
        assert_eq!(asker.comes_inline(), configured, "the protocol's own reply, {said}");
        asker.send(&NO_LISTS, [program[0], program[1], 9999], NOBODY, &[]);
        let answer = body(&asker.peer.hear());
        match refused {
            true => assert!(matches!(answer, Body::Rpc(words) if words[5] == PROC_UNAVAIL)),
            false => assert_eq!(answer, Body::Error(ERR_CHUNK), "{said}"),
        }
    }
}

/// A reply is built to the limits of the moment, not to those of its call.
#[test]
fn receive_a_request_before_a_deferred_reply_expect_the_reply_within_the_new_size() {
    let server = serving();
    let mut asker = Asker::of(&server);
    for (reply_bytes, inline) in [(4096, true), (1024, false)] {
        asker.send(&NO_LISTS, [PROGRAM.0, VERSION.0, LATER.0], NOBODY, &[1]);
        wait_until("a deferred call", || server.shared.waiting() == 1);
        asker.configure([4096, reply_bytes, 16]);
        let (_, deferred) = server.shared.pop().unwrap();
        deferred.reply(|results| results.opaque(&[7; 2000]));
        assert_eq!(asker.comes_inline(), inline, "maxreply_sendsize {reply_bytes}");
    }
}

/// R5666-56: "the value SHOULD be observed at all times"; R5666-57: "If zero, the peer MUST NOT issue
/// requests that require RDMA Read to satisfy, as no transfer will be possible."
#[test]
fn receive_maxrdmaread_expect_read_chunks_fetched_unless_it_is_zero() {
    let server = serving();
    let mut asker = Asker::of(&server);
    assert!(asker.echoes_read_chunk(8));
    for (reads, fetched) in [(0, false), (1, true), (0, false), (u32::MAX, true)] {
        asker.configure([4096, 4096, reads]);
        assert_eq!(asker.echoes_read_chunk(8), fetched, "maxrdmaread {reads}");
        assert!(asker.echoes_inline(100), "the connection lives");
    }
}

/// An application's own program under this number takes the place of the engine's.
#[test]
fn an_application_may_serve_the_number_itself() {
    let raw = small_with(|raw| raw.rpc.ccp = ConfigRole::Serve);
    let engine = Engine::new(valid(raw)).unwrap();
    let (program, version) = (spinrpc::Program(CONFIG_RDMA_PROG), spinrpc::Version(VERS1));
    engine
        .serve(program, version, |_| {
            |call: spinrpc::Call<'_>| call.reply(|results| results.u32(99))
        })
        .unwrap();
    let server = Server::started(engine, Default::default());
    let mut asker = Asker { peer: RawPeer::connect(&server.address), xid: 1 };
    assert_eq!(asker.ask(CONF_RDMA, NOBODY, &[1, 2, 3]), [0, 0, 0, SUCCESS, 99]);
}

/// All three messages are there before the server's turn: zero is said while the first RDMA Read of
/// one call is active and another call waits for its turn. Neither is left hanging.
#[test]
fn receive_zero_while_chunks_are_fetched_expect_err_chunk_for_what_is_left() {
    let serve_it = |raw: &mut RawConfig| {
        (raw.rpc.ccp, raw.rpc.ccp_auth) = (ConfigRole::Serve, Some(Protection::Sys));
    };
    let engine = Engine::new(valid(small_with(serve_it))).unwrap();
    let shared = serve(&engine);
    let address = listening(&engine);
    let mut core = engine.core(0).unwrap();
    let mut asker = Asker { peer: RawPeer::connect(&address), xid: 1 };
    let config = [CONFIG_RDMA_PROG, VERS1, CONF_RDMA];
    for reads in [1, 1, 2, 3] {
        let one = asker.send(&NO_LISTS, config, SOMEBODY, &[4096, 4096, reads]);
        let fetched = [asker.send_read_chunk(8), asker.send_read_chunk(8)];
        let none = asker.send(&NO_LISTS, config, SOMEBODY, &[4096, 4096, 0]);
        let mut answers = Vec::new();
        wait_until("four answers", || {
            core.poll_once();
            answers.extend(asker.peer.poll().map(|said| (said.words()[0], said.words()[3])));
            answers.len() == 4
        });
        assert_eq!(answers[..2], [(one, MSG), (none, MSG)], "maxrdmaread {reads}");
        answers[2..].sort_unstable();
        assert_eq!(answers[2..], fetched.map(|xid| (xid, ERROR)), "maxrdmaread {reads}");
    }
    assert_eq!(shared.calls.load(Ordering::Relaxed), 0, "no call reached the program");
}
