//! Contents of a call of the target `pair` and of its reply: items, where each of them goes,
//! and the streams that they make.

use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::chunking::{Encoded, Found, Item, Placement, StreamReader, StreamWriter};
use spinrpc_proto::dialect::Profile;
use spinrpc_proto::ids::{Procedure, Program, Version, Xid};
use spinrpc_proto::limits::ITEMS_MAX;
use spinrpc_proto::rdma::v1;
use spinrpc_proto::rpc::{CallHeader, OpaqueAuth, ReplyHeader};
use spinrpc_proto::xdr::{Padding, Reader};

use crate::script::Script;
use crate::wire;

/// Contents of a call and of its reply.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) arguments: Vec<Vec<u8>>,
    pub(crate) placement: Placement,
    pub(crate) long_call: bool,
    pub(crate) results: Vec<Vec<u8>>,
    /// Bytes offered for each result; zero offers nothing.
    pub(crate) offered: Vec<u32>,
    pub(crate) reply_bytes: u32,
    pub(crate) segment_bytes: u32,
    /// Padding of streams that stand in their message, the call's and the reply's.
    pub(crate) alignment: Alignment,
}

impl Plan {
    /// The call has room for that result.
    pub(crate) fn offers(&self, result: usize) -> bool {
        self.offered.get(result).is_some_and(|bytes| *bytes > 0)
    }

    pub(crate) fn encode_arguments(&self, xid: Xid, padding: Padding) -> (Vec<u8>, Encoded) {
        encode(
            &self.arguments,
            padding,
            |_| self.placement,
            |xdr| {
                call_header(xid).write(xdr.xdr());
            },
        )
    }

    pub(crate) fn encode_results(
        &self,
        xid: Xid,
        padding: Padding,
        placement: impl Fn(usize) -> Placement,
    ) -> (Vec<u8>, Encoded) {
        encode(&self.results, padding, placement, |xdr| {
            ReplyHeader::success(xid).write(xdr.xdr());
        })
    }

    pub(crate) fn new(script: &mut Script<'_>, profile: Profile) -> Self {
        let shape = script.byte();
        let segment_bytes = if shape & 1 != 0 { 300 } else { 0 };
        let items = |count: u8, script: &mut Script<'_>| -> Vec<Vec<u8>> {
            (0..count).map(|nth| pattern(script.byte(), script.byte(), nth)).collect()
        };
        let arguments = items(shape >> 1 & 3, script);
        let results = items(shape >> 3 & 3, script);
        let offers = script.byte();
        let offered = results.iter().enumerate().map(|(index, result)| {
            let wanted = offers >> index & 1 != 0;
            if wanted { result.len() as u32 + u32::from(offers >> 4) } else { 0 }
        });
        let padded = offers & 8 != 0 && profile.has_padded_messages();
        let align_bytes = 8 << (offers >> 4 & 7);
        Self {
            alignment: if padded { Alignment::new(align_bytes, 100) } else { Alignment::NONE },
            offered: offered.collect(),
            arguments,
            placement: if shape & 32 != 0 { Placement::Chunk } else { Placement::Inline },
            long_call: shape & 64 != 0,
            results,
            reply_bytes: if shape & 128 != 0 { u32::from(script.byte()) * 16 } else { 0 },
            segment_bytes,
        }
    }
}

/// Bytes that are not those of any other item.
fn pattern(length: u8, seed: u8, nth: u8) -> Vec<u8> {
    let length = usize::from(length) * 3;
    (0..length).map(|at| (at as u8).wrapping_mul(31) ^ seed ^ nth << 6).collect()
}

pub(crate) fn call_header(xid: Xid) -> CallHeader<'static> {
    CallHeader {
        xid,
        program: Program(100_003),
        version: Version(3),
        procedure: Procedure(7),
        credential: OpaqueAuth::NONE,
        verifier: OpaqueAuth::NONE,
    }
}

/// A header, then before each item its number.
fn encode(
    items: &[Vec<u8>],
    mut padding: Padding,
    placement: impl Fn(usize) -> Placement,
    header: impl Fn(&mut StreamWriter<'_>),
) -> (Vec<u8>, Encoded) {
    let mut stream = vec![0; 8192];
    let items: Vec<_> = items
        .iter()
        .enumerate()
        .map(|(index, bytes)| Item { bytes, placement: placement(index) })
        .collect();
    assert!(items.len() <= ITEMS_MAX);
    let mut writer = StreamWriter::aligned(&mut stream, &items, &mut padding);
    header(&mut writer);
    for index in 0..items.len() {
        writer.u32(index as u32);
        writer.bulk();
    }
    let encoded = writer.finish();
    assert!(encoded.fits && !encoded.items_missing);
    stream.truncate(encoded.stream_bytes);
    (stream, encoded)
}

/// A message with its stream behind its header, padded for where in the Send it stands.
pub(crate) fn with_stream(
    header: Vec<u8>,
    alignment: Alignment,
    encode: impl Fn(Padding) -> (Vec<u8>, Encoded),
) -> Vec<u8> {
    let mut message = wire::padded(header, alignment);
    let (stream, _) = encode(Padding::new(alignment, message.len()));
    message.extend(stream);
    message
}

/// The bytes after the RPC header of `at` bytes; a stream that is not in its message has no padding.
pub(crate) fn behind_header<'a>(
    message: &[u8],
    header_bytes: usize,
    stream: &'a [u8],
    at: usize,
) -> Reader<'a> {
    Reader::aligned(&stream[at..], v1::alignment_of(message), header_bytes + at)
}

pub(crate) fn check_items<'a>(
    mut reader: StreamReader<'a>,
    items: &[Vec<u8>],
    bytes_of: impl Fn(Found<'a>) -> &'a [u8],
) {
    for (index, item) in items.iter().enumerate() {
        assert_eq!(reader.xdr().u32(), Ok(index as u32));
        assert_eq!(bytes_of(reader.item(item.len()).unwrap()), item);
    }
    reader.finish().unwrap();
}
