//! Record marking (RFC 5531 section 11): an RPC message on a byte stream, in fragments.
//!
//! Pure but for the reader that is given. Called by the rpcbind client, and by programs that serve or
//! call by TCP.

use std::io::{self, Read, Write};

/// The longest message taken from a daemon, in bytes: ten thousand registrations or so.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The most fragments of one message. Daemons send one for every few kilobytes.
pub const FRAGMENTS_MAX: usize = 4096;

const LAST: u32 = 1 << 31;

/// Reason why a message could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The stream failed, timed out, or ended within a message.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// More bytes were announced than are taken.
    #[error("a message of more than {bytes_max} bytes")]
    TooLong {
        /// Most that are taken.
        bytes_max: usize,
    },
    /// More than [`FRAGMENTS_MAX`] fragments came.
    #[error("a message of more than {FRAGMENTS_MAX} fragments")]
    TooManyFragments,
}

/// Reads one message. Allocates its announced length, within [`MESSAGE_BYTES_MAX`]; blocks as
/// `stream` does.
///
/// # Errors
/// [`RecordError`]; then the stream is somewhere within a message, and cannot be used any more.
pub fn read(stream: &mut impl Read) -> Result<Vec<u8>, RecordError> {
    read_within(stream, MESSAGE_BYTES_MAX)
}

/// As [`read`], with another limit of a message.
///
/// # Errors
/// As [`read`].
pub fn read_within(stream: &mut impl Read, bytes_max: usize) -> Result<Vec<u8>, RecordError> {
    let mut message = Vec::new();
    for _ in 0..FRAGMENTS_MAX {
        let mut header = [0; 4];
        stream.read_exact(&mut header)?;
        let header = u32::from_be_bytes(header);
        read_fragment(stream, (header & !LAST) as usize, bytes_max, &mut message)?;
        if header & LAST != 0 {
            return Ok(message);
        }
    }
    Err(RecordError::TooManyFragments)
}

fn read_fragment(
    stream: &mut impl Read,
    length: usize,
    bytes_max: usize,
    message: &mut Vec<u8>,
) -> Result<(), RecordError> {
    let begin = message.len();
    let end = begin.saturating_add(length);
    if end > bytes_max {
        return Err(RecordError::TooLong { bytes_max });
    }
    message.resize(end, 0);
    Ok(stream.read_exact(&mut message[begin..])?)
}

/// `message` as one fragment, the last.
///
/// # Errors
/// [`RecordError::TooLong`] if it is longer than [`MESSAGE_BYTES_MAX`].
pub fn mark(message: &[u8]) -> Result<Vec<u8>, RecordError> {
    match u32::try_from(message.len()) {
        Ok(length) if message.len() <= MESSAGE_BYTES_MAX => {
            Ok([&(LAST | length).to_be_bytes()[..], message].concat())
        }
        _ => Err(RecordError::TooLong { bytes_max: MESSAGE_BYTES_MAX }),
    }
}

/// Sends a call, and reads one message of at most `bytes_max` bytes. Blocks as `stream` does.
///
/// # Errors
/// As [`mark`] and [`read`].
pub fn exchange(
    stream: &mut (impl Read + Write),
    call: &[u8],
    bytes_max: usize,
) -> Result<Vec<u8>, RecordError> {
    stream.write_all(&mark(call)?)?;
    read_within(stream, bytes_max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn receive_fragments_expect_their_bytes_in_a_row() {
        let mut stream = &b"\0\0\0\x02ab\0\0\0\0\x80\0\0\x01cNEXT"[..];
        assert_eq!(read(&mut stream).unwrap(), b"abc");
        assert_eq!(stream, b"NEXT");
    }

    #[test]
    fn receive_a_length_beyond_the_limit_expect_no_memory_for_it() {
        for header in [0xffff_ffff_u32, 0x7fff_ffff, 0x8010_0001] {
            let error = read(&mut &header.to_be_bytes()[..]).unwrap_err();
            assert!(matches!(error, RecordError::TooLong { .. }), "{error}");
        }
    }

    #[test]
    fn receive_fragments_that_add_up_beyond_the_limit_expect_refusal() {
        let half = [&(1_u32 << 19).to_be_bytes()[..], &vec![0; 1 << 19]].concat();
        let stream = [&half[..], &half, b"\0\0\0\x01x"].concat();
        assert!(matches!(read(&mut &stream[..]), Err(RecordError::TooLong { .. })));
    }

    #[test]
    fn receive_a_byte_more_than_is_taken_expect_refusal() {
        let stream = b"\0\0\0\x02ab\x80\0\0\x01c";
        assert_eq!(read_within(&mut &stream[..], 3).unwrap(), b"abc");
        assert!(matches!(read_within(&mut &stream[..], 2), Err(RecordError::TooLong { .. })));
    }

    #[test]
    fn receive_empty_fragments_without_end_expect_refusal() {
        assert!(matches!(read(&mut io::repeat(0)), Err(RecordError::TooManyFragments)));
    }

    #[test]
    fn receive_the_end_within_a_message_expect_an_error() {
        for stream in [&b""[..], b"\x80\0", b"\x80\0\0\x02a", b"\0\0\0\x01a"] {
            assert!(matches!(read(&mut &stream[..]), Err(RecordError::Io(_))), "{stream:?}");
        }
    }

    proptest! {
        #[test]
        fn a_message_survives(message: Vec<u8>) {
            let marked = mark(&message).unwrap();
            prop_assert_eq!(read(&mut &marked[..]).unwrap(), message);
        }
    }
}
