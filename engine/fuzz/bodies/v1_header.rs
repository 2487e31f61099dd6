//! The version-one transport header: what passes the check is within the limits, comes out of an
//! encoder as it came in, and can be answered.

use spinrpc_proto::limits::Limits;
use spinrpc_proto::rdma::v1::{self, HeaderError, HeaderView, MessageType};
use spinrpc_proto::rdma::{RdmaError, WriteChunk};
use spinrpc_proto::version::Versions;

use crate::script::Script;
use crate::wire::{self, OwnedLists};

/// One byte chooses the limits, two where to cut the header; the rest is the message.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let limits = limits(script.byte());
    let cut = usize::from(script.u16());
    let message = script.bytes(usize::MAX);
    match HeaderView::new_checked(message, &limits) {
        Ok(view) => {
            check_bounds(&view, message, &limits);
            check_emitted(&view, message, &limits);
            if !matches!(view.message_type(), MessageType::Done | MessageType::Error) {
                wire::check_answer(&view, &limits);
            }
            let cut = cut % view.header_bytes();
            assert!(HeaderView::new_checked(&message[..cut], &limits).is_err(), "cut at {cut}");
        }
        Err(error) => check_error(&error, message),
    }
}

fn limits(choice: u8) -> Limits {
    match choice {
        0 => Limits::DEFAULT,
        n => Limits {
            versions: Versions::One,
            answers_short: n & 16 != 0,
            segments_max: u16::from(n & 7),
            read_chunks_max: u16::from(n >> 1 & 3),
            write_chunks_max: u16::from(n >> 2 & 3),
            payload_bytes_max: u32::from(n) << 4,
        },
    }
}

fn check_bounds(view: &HeaderView<'_>, message: &[u8], limits: &Limits) {
    assert_eq!(view.header_bytes() + view.payload().len(), message.len());
    assert!(view.header_bytes() <= v1::HEADER_BYTES_MAX);
    let reads: Vec<_> = view.reads().collect();
    assert_eq!(reads.len(), view.reads().len());
    assert!(reads.len() <= usize::from(limits.segments_max));
    assert!(!reads.iter().any(|read| read.target.wraps()));
    let bytes: u64 = reads.iter().map(|read| u64::from(read.target.length)).sum();
    assert!(bytes <= u64::from(limits.payload_bytes_max));
    assert!(view.writes().len() <= usize::from(limits.write_chunks_max));
    let in_writes: u64 = view.writes().map(|chunk| check_chunk(&chunk, limits)).sum();
    assert!(in_writes <= u64::from(limits.payload_bytes_max));
    let in_reply = view.reply_chunk().map_or(0, |chunk| check_chunk(&chunk, limits));
    assert!(in_reply <= u64::from(limits.payload_bytes_max));
}

fn check_chunk(chunk: &WriteChunk<'_>, limits: &Limits) -> u64 {
    assert!(chunk.segment_count() <= usize::from(limits.segments_max));
    assert_eq!(chunk.segments().count(), chunk.segment_count());
    assert!(!chunk.segments().any(|segment| segment.wraps()));
    chunk.total_length()
}

/// The header read and written again is the same, byte for byte; only a credit word of zero is
/// never written.
fn check_emitted(view: &HeaderView<'_>, message: &[u8], limits: &Limits) {
    let credits = view.credits().max(1);
    let mut emitted = match view.error() {
        Some(error) => wire::error(view.xid(), view.version(), credits, error),
        None => {
            let kind = view.message_type();
            let padding = wire::word(message, 4).zip(wire::word(message, 5));
            OwnedLists::of(view).header(wire::ONE, kind, view.xid(), credits, padding)
        }
    };
    let again = HeaderView::new_checked(&emitted, limits).unwrap();
    assert_eq!(again.header_bytes(), view.header_bytes());
    assert_eq!((again.message_type(), again.error()), (view.message_type(), view.error()));
    // RFC 5666 section 4.3 puts words behind an error code that it does not define.
    if !matches!(view.error(), Some(RdmaError::Other(_))) {
        assert_eq!(emitted.len(), view.header_bytes());
    }
    emitted[8..12].copy_from_slice(&message[8..12]);
    assert_eq!(emitted[..view.header_bytes()], message[..view.header_bytes()]);
}

/// An error names the message it is about, and one that is dropped names none.
fn check_error(error: &HeaderError, message: &[u8]) {
    match *error {
        HeaderError::TooShort => {}
        HeaderError::Version { xid, version } => {
            assert_eq!(Some(xid.0), wire::word(message, 0));
            assert!(version != v1::VERSION && wire::word(message, 1) == Some(version));
        }
        HeaderError::Malformed { xid, credits, .. } => {
            assert_eq!(
                (Some(xid.0), credits),
                (wire::word(message, 0), wire::word(message, 2).unwrap_or(0))
            );
        }
    }
}
