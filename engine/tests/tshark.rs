//! A capture is read by another program: Wireshark's dissectors find in it all messages, without
//! further options, and nothing malformed. Needs tshark (Debian package tshark), so that it runs on
//! request only: `cargo test -p spinrpc --test tshark`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

mod common;

use common::prelude::*;
use common::raw::{RawPeer, bytes_of};
use spinrpc_proto::rdma::{Body, HeaderRepr, Lists, ReadSegment, Segment};
use spinrpc_proto::rpc::Direction;
use spinrpc_proto::version::TransportVersion;
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

/// A program that Wireshark knows, unlike that of the tests.
const NFS: Program = Program(100_003);
const CREDITS: u32 = 32;

/// Fields of a header, as tshark prints them: one column per field, occurrences joined by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Header {
    inbound: bool,
    xid: u32,
    version: u32,
    credits: u32,
    kind: u32,
    counts: Vec<u32>,
    positions: Vec<u32>,
    segments: Vec<(u32, u32, u64)>,
    align_and_threshold: Vec<u32>,
    error: Vec<u32>,
}

impl Header {
    /// Reads the words of a message (RFC 5666 section 4.3).
    fn of(inbound: bool, words: &[u32]) -> Self {
        let (start, mut rest) = words.split_at(4);
        let mut header = Self {
            inbound,
            xid: start[0],
            version: start[1],
            credits: start[2],
            kind: start[3],
            ..Self::default()
        };
        match header.kind {
            3 => return header,
            4 => {
                header.error = rest.to_vec();
                return header;
            }
            2 => {
                header.align_and_threshold = rest[..2].to_vec();
                rest = &rest[2..];
            }
            _ => {}
        }
        let mut next = || {
            let (word, behind) = rest.split_first().unwrap();
            rest = behind;
            *word
        };
        header.lists(&mut next);
        header
    }

    fn lists(&mut self, next: &mut impl FnMut() -> u32) {
        self.counts = vec![0; 3];
        while next() == 1 {
            self.counts[0] += 1;
            self.positions.push(next());
            self.segment(next);
        }
        while next() == 1 {
            self.counts[1] += 1;
            (0..next()).for_each(|_| self.segment(next));
        }
        if next() == 1 {
            self.counts[2] += 1;
            (0..next()).for_each(|_| self.segment(next));
        }
    }

    fn segment(&mut self, next: &mut impl FnMut() -> u32) {
        let (handle, length) = (next(), next());
        self.segments.push((handle, length, u64::from(next()) << 32 | u64::from(next())));
    }

    const FIELDS: [&str; 17] = [
        "frame.packet_flags_direction",
        "rpcordma.xid",
        "rpcordma.version",
        "rpcordma.flow_control",
        "rpcordma.msg_type",
        "rpcordma.reads_count",
        "rpcordma.writes_count",
        "rpcordma.reply_count",
        "rpcordma.position",
        "rpcordma.rdma_handle",
        "rpcordma.rdma_length",
        "rpcordma.rdma_offset",
        "rpcordma.rdma_align",
        "rpcordma.rdma_thresh",
        "rpcordma.errcode",
        "rpcordma.vers_low",
        "rpcordma.vers_high",
    ];

    /// Reads a line of [`Self::FIELDS`].
    fn printed(columns: &[Vec<u64>]) -> Self {
        let words = |column: usize| columns[column].iter().map(|value| *value as u32);
        let one = |column: usize| words(column).next().unwrap();
        let segments = words(9).zip(words(10)).zip(&columns[11]);
        Self {
            inbound: one(0) == 1,
            xid: one(1),
            version: one(2),
            credits: one(3),
            kind: one(4),
            counts: (5..8).flat_map(words).collect(),
            positions: words(8).collect(),
            segments: segments
                .map(|((handle, length), offset)| (handle, length, *offset))
                .collect(),
            align_and_threshold: (12..14).flat_map(words).collect(),
            error: (14..17).flat_map(words).collect(),
        }
    }
}

/// Runs tshark without user preferences.
fn tshark(capture: &Recorded, arguments: &[&str]) -> String {
    let output = Command::new("tshark")
        .env("HOME", &capture.dir)
        .env("XDG_CONFIG_HOME", &capture.dir)
        .args(["-n", "-r"])
        .arg(&capture.file)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| {
            panic!("tshark cannot be run ({error}): install it, on Debian by apt install tshark")
        });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The fields of the frames that `filter` lets through; numbers, in base ten or sixteen.
fn fields(capture: &Recorded, filter: &str, names: &[&str], more: &[&str]) -> Vec<Vec<Vec<u64>>> {
    let mut arguments = vec!["-Y", filter, "-T", "fields", "-E", "occurrence=a"];
    names.iter().for_each(|name| arguments.extend(["-e", name]));
    arguments.extend(more);
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap_or_else(|_| panic!("{text:?} is not a number")),
    };
    let column =
        |text: &str| text.split(',').filter(|one| !one.is_empty()).map(number).collect::<Vec<_>>();
    let lines = tshark(capture, &arguments);
    lines.lines().map(|line| line.split('\t').map(column).collect()).collect()
}

struct Recorded {
    dir: PathBuf,
    file: PathBuf,
    /// The headers that went both ways, in their order.
    headers: Vec<Header>,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            std::fs::remove_dir_all(&self.dir).unwrap();
        }
    }
}

struct Studio {
    server: Server,
    recorded: Recorded,
}

impl Studio {
    fn open(name: &str) -> Self {
        let dir =
            std::env::temp_dir().join(format!("spinrpc-tshark-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("capture.pcapng");
        let sink = CaptureSink::new(File::create(&file).unwrap());
        let server = Server::on(Engine::with_capture(valid(small()), sink).unwrap());
        Self { server, recorded: Recorded { dir, file, headers: Vec::new() } }
    }

    /// Sends a message that gets no answer.
    fn send(&mut self, peer: &mut RawPeer, words: &[u32]) {
        self.recorded.headers.push(Header::of(true, words));
        peer.send_words(words);
    }

    #[track_caller]
    fn exchange(&mut self, peer: &mut RawPeer, words: &[u32]) -> Vec<u32> {
        self.send(peer, words);
        let answer = peer.hear().words();
        self.recorded.headers.push(Header::of(false, &answer));
        answer
    }

    fn close(self) -> Recorded {
        self.server.stop();
        println!("captured to {}", self.recorded.file.display());
        self.recorded
    }
}

fn rpc_call(xid: u32, program: Program, procedure: Procedure, args: &[u32]) -> Vec<u32> {
    let header = [xid, 0, 2, program.0, VERSION.0, procedure.0, 0, 0, 0, 0];
    [&header, args].concat()
}

/// A message made by the protocol core's own emitter.
fn message(xid: u32, body: Body<'_>, rpc: &[u32]) -> Vec<u32> {
    let (version, direction) = (TransportVersion::One, Direction::Call);
    let header = HeaderRepr::new(version, direction, Xid(xid), CREDITS, body);
    let mut bytes = vec![0; header.buffer_len()];
    header.emit(&mut bytes);
    words_of(&bytes).into_iter().chain(rpc.iter().copied()).collect()
}

fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|w| u32::from_be_bytes(w.try_into().unwrap())).collect()
}

fn segment(slice: RemoteSlice) -> Segment {
    Segment { handle: slice.handle, length: slice.length, offset: slice.offset }
}

fn read_at(position: u32, slice: RemoteSlice) -> ReadSegment {
    ReadSegment { position, target: segment(slice) }
}

/// Wireshark reassembles by these: key, address, length of a Read or Write.
fn remote(slice: RemoteSlice) -> Vec<u64> {
    vec![slice.handle.into(), slice.offset, slice.length.into()]
}

/// Expect no frame marked malformed and no expert's remark, in one pass and in two, whatever
/// Wireshark is told about programs it does not know.
fn nothing_is_wrong(capture: &Recorded) {
    let unknown_programs = ["-o", "rpc.dissect_unknown_programs:TRUE"];
    for more in [&[][..], &["-2"], &unknown_programs] {
        let text = tshark(capture, &[&["-V"], more].concat());
        assert!(text.contains("RPC over RDMA"), "{more:?}: {text}");
        for complaint in ["Malformed", "Expert Info"] {
            let found = text.find(complaint);
            assert!(found.is_none(), "{more:?}: {complaint} in {text}");
        }
    }
}

/// Expect tshark to print the headers that were sent and received, in their order.
fn headers_match(capture: &Recorded) {
    let printed = fields(capture, "rpcordma", &Header::FIELDS, &[]);
    let found: Vec<_> = printed.iter().map(|columns| Header::printed(columns)).collect();
    for (found, sent) in found.iter().zip(&capture.headers) {
        assert_eq!(found, sent);
    }
    assert_eq!(found.len(), capture.headers.len(), "frames with a header of RPC-over-RDMA");
}

/// Every form of a call and its reply under today's rules, and both refusals. Expect every header
/// in tshark's output as it was sent, the transfers under the keys of the chunk lists, and the
/// calls whole where their chunks were put back in.
#[test]
fn calls_replies_and_errors_decode_as_they_were_sent() {
    let mut studio = Studio::open("calls");
    let mut peer = RawPeer::connect(&studio.server.address);
    let call = |xid, procedure, args: &[u32]| rpc_call(xid, PROGRAM, procedure, args);

    // Inline.
    let text = words_of(&pattern(1, 64));
    let echo = call(0x101, ECHO, &[&[64], &text[..]].concat());
    studio.exchange(&mut peer, &message(0x101, Body::Msg(Lists::EMPTY), &echo));

    // A result by Write chunk of two segments.
    let into = [8192, 12_000].map(|length| peer.expose(&vec![0; length], Access::RemoteWrite));
    let chunk = into.map(segment);
    let lists = Lists { writes: &[&chunk], ..Lists::EMPTY };
    studio.exchange(&mut peer, &message(0x102, Body::Msg(lists), &call(0x102, SHARED, &[20_000])));

    // An argument by Read chunk of two segments; it comes back by Write chunk.
    let item = pattern(3, 20_000);
    let from = [0..4096, 4096..20_000].map(|part| peer.expose(&item[part], Access::RemoteRead));
    let back = peer.expose(&vec![0; 20_000], Access::RemoteWrite);
    let reads = from.map(|slice| read_at(44, slice));
    let lists = Lists { reads: &reads, writes: &[&[segment(back)]], reply: None };
    studio.exchange(&mut peer, &message(0x103, Body::Msg(lists), &call(0x103, BOUNCE, &[20_000])));

    // A long call by Position-Zero Read chunk, and a long reply by Reply chunk.
    let long = call(0x104, ECHO, &[&[9000], &words_of(&pattern(4, 9000))[..]].concat());
    let body = peer.expose(&bytes_of(&long), Access::RemoteRead);
    let answer = peer.expose(&vec![0; 10_000], Access::RemoteWrite);
    let lists = Lists { reads: &[read_at(0, body)], writes: &[], reply: Some(&[segment(answer)]) };
    studio.exchange(&mut peer, &message(0x104, Body::Nomsg(lists), &[]));

    // ERR_CHUNK: a chunk in the middle of a word.
    let lists = Lists { reads: &[read_at(46, body)], ..Lists::EMPTY };
    let echo = call(0x105, ECHO, &[&[64], &text[..]].concat());
    let refused = studio.exchange(&mut peer, &message(0x105, Body::Msg(lists), &echo));
    assert_eq!(refused[3..], [4, 2], "the server refuses it");

    // A program that Wireshark knows, and the server does not.
    let null = rpc_call(0x106, NFS, NULL, &[]);
    studio.exchange(&mut peer, &message(0x106, Body::Msg(Lists::EMPTY), &null));

    let capture = studio.close();
    nothing_is_wrong(&capture);
    headers_match(&capture);
    transfers_match(&capture, &[from[0], from[1], body], &[into[0], into[1], back, answer]);
    let numbers =
        |filter: &str, names: &[&str], more: &[&str]| fields(&capture, filter, names, more);
    let known = numbers("rpc.program && rpc.msgtyp == 0", &["rpc.xid", "rpc.program"], &[]);
    assert_eq!(known, [[vec![0x106], vec![NFS.0.into()]]], "without any preference");
    let told = ["-o", "rpc.dissect_unknown_programs:TRUE"];
    let calls = numbers("rpc.msgtyp == 0", &["rpc.xid", "rpc.program", "rpc.procedure"], &told);
    let calls: Vec<_> = calls.iter().map(|line| [line[0][0], line[1][0], line[2][0]]).collect();
    let of_test = [(0x101, ECHO), (0x102, SHARED), (0x103, BOUNCE), (0x104, ECHO)];
    let expected = of_test.map(|(xid, procedure)| [xid, PROGRAM.0.into(), procedure.0.into()]);
    assert_eq!(calls[..4], expected, "chunked calls are put together");
    let replies = numbers("rpc.msgtyp == 1", &["rpc.xid"], &told);
    let xids: Vec<_> = replies.iter().map(|columns| columns[0][0]).collect();
    assert_eq!(xids, [0x101, 0x102, 0x103, 0x104, 0x106]);
    let whole = ["rpcordma.reassembled.length"];
    let lengths = numbers("rpcordma.reassembled.length", &whole, &told);
    let long_bytes = long.len() as u64 * 4;
    assert!(lengths.contains(&vec![vec![long_bytes]]), "the long call, whole: {lengths:?}");
}

/// Expect RDMA Reads and Writes of these slices, in this order.
fn transfers_match(capture: &Recorded, reads: &[RemoteSlice], writes: &[RemoteSlice]) {
    let names = ["infiniband.reth.r_key", "infiniband.reth.va", "infiniband.reth.dmalen"];
    let found = |filter: &str| -> Vec<Vec<u64>> {
        fields(capture, filter, &names, &[]).into_iter().map(|line| line.concat()).collect()
    };
    let reads: Vec<_> = reads.iter().map(|slice| remote(*slice)).collect();
    assert_eq!(found("infiniband.bth.opcode == 12"), reads);
    let written = found("infiniband.bth.opcode == 6 || infiniband.bth.opcode == 10");
    assert_eq!(written.len(), writes.len(), "{written:x?}");
    for (found, slice) in written.iter().zip(writes) {
        assert_eq!(found[..2], remote(*slice)[..2]);
        assert!(found[2] <= slice.length.into(), "{found:x?}");
    }
}

/// A client and its server, both captured, call after call. Expect every call with its reply, in
/// both files, and the private data of RFC 8797 in the messages that made the connection.
#[test]
fn a_conversation_decodes_at_both_ends() {
    const CALLS: u64 = 20;
    let studio = Studio::open("conversation");
    let client = studio.recorded.dir.join("client.pcapng");
    let sink = CaptureSink::new(File::create(&client).unwrap());
    let engine = Engine::with_capture(valid(common::caller::client_config()), sink).unwrap();
    let mut caller = Caller::on(engine, &studio.server.address, one_opaque);
    for number in 0..CALLS {
        let sent = pattern(number as u32, 1 + 37 * number as usize);
        assert_eq!(caller.call(ECHO, |args| args.opaque(&sent)).unwrap(), sent);
    }
    drop(caller);
    let mut capture = studio.close();
    for file in [capture.file.clone(), client] {
        capture.file = file;
        nothing_is_wrong(&capture);
        let told = ["-o", "rpc.dissect_unknown_programs:TRUE"];
        let replies = fields(
            &capture,
            "rpc.time && rpc.msgtyp == 1 && rpc.procedure == 1",
            &["rpc.xid"],
            &told,
        );
        assert_eq!(replies.len() as u64, CALLS, "calls that found their replies");
        let services =
            fields(&capture, "infiniband.cm.req", &["infiniband.cm.req.serviceid.dport"], &[]);
        assert!(!services.is_empty() && services.iter().all(|line| line[0] == [20049]));
        let text = tshark(
            &capture,
            &["-Y", "infiniband.cm.req", "-T", "fields", "-e", "infiniband.cm.req.ip_cm.private"],
        );
        assert!(text.contains("f6ab0e18"), "the magic of RFC 8797: {text}");
    }
}
