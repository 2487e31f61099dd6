//! Reading arguments and results.

use crate::error::{Failure, Status, guard};
use crate::memory::RpcMemory;
use crate::pointers::{Out, borrow_mut};
use spinrpc::{Data, DecodeError, Decoder};
use std::ptr::null_mut;

/// Reads XDR: the arguments of a request, or the results of a call. Items are read in order; after an error the place
/// is undefined. Whatever the peer sent, no function reads beyond it.
///
/// A decoder belongs to its request, answer or callback and ends with it; it is not freed. That of an answer may be
/// used by one thread at a time, any other one on the thread of its callback only. Bytes that it returns are valid as long
/// as the decoder, and must not be written.
pub struct RpcDecoder<'a>(pub(crate) Decoder<'a>);

/// # Safety
/// The exported functions' pointers.
unsafe fn read<T>(
    decoder: *mut RpcDecoder<'_>,
    out: *mut T,
    item: impl FnOnce(&mut Decoder<'_>) -> Result<T, DecodeError>,
) -> Status {
    guard(|| {
        // SAFETY: a decoder and memory for the item, as the header asks for.
        let (decoder, out) = unsafe { (borrow_mut(decoder, "decoder")?, Out::new(out, "value")?) };
        out.set(item(&mut decoder.0)?);
        Ok(())
    })
}

/// # Safety
/// The exported functions' pointers.
unsafe fn read_bytes(
    decoder: *mut RpcDecoder<'_>,
    data: *mut *const u8,
    length: *mut usize,
    item: impl for<'d> FnOnce(&mut Decoder<'d>) -> Result<&'d [u8], Failure>,
) -> Status {
    guard(|| {
        // SAFETY: a decoder and memory for pointer and length, as the header asks for.
        let (decoder, data, length) = unsafe {
            (borrow_mut(decoder, "decoder")?, Out::new(data, "data")?, Out::new(length, "length")?)
        };
        let bytes = item(&mut decoder.0)?;
        data.set(bytes.as_ptr());
        length.set(bytes.len());
        Ok(())
    })
}

/// Reads an `unsigned int`; cast it for an `int`, `bool` or `enum`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_decode_u32(
    decoder: *mut RpcDecoder<'_>,
    value: *mut u32,
) -> Status {
    // SAFETY: pointers as the header asks for.
    unsafe { read(decoder, value, |from| from.u32()) }
}

/// Reads an `unsigned hyper`; cast it for a `hyper`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_decode_u64(
    decoder: *mut RpcDecoder<'_>,
    value: *mut u64,
) -> Status {
    // SAFETY: pointers as the header asks for.
    unsafe { read(decoder, value, |from| from.u64()) }
}

/// Reads an `opaque<max_bytes>` or a `string<max_bytes>`, which has no zero byte at its end here. `*data` is not NULL,
/// not even if `*length` is 0.
///
/// Errors: SPINRPC_STATUS_DECODE if it is longer than `max_bytes`, or if the results were placed in memory given with
/// the call, which spinrpc_decode_data() reads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_decode_opaque(
    decoder: *mut RpcDecoder<'_>,
    max_bytes: usize,
    data: *mut *const u8,
    length: *mut usize,
) -> Status {
    // SAFETY: pointers as the header asks for.
    unsafe { read_bytes(decoder, data, length, |from| Ok(from.opaque(max_bytes)?)) }
}

/// Reads an `opaque<max_bytes>` whose bytes may have been placed directly. If they were, `*memory` is their block, which
/// is the caller's now: it is freed, or sent on, and `*data` points into it. If they came in the message, `*memory` is
/// NULL, and `*data` is valid as long as the decoder.
///
/// In a server these are arguments that the client sent as a data item; in a client, results for which the call had
/// memory (spinrpc_call_options). Errors: SPINRPC_STATUS_DECODE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_decode_data(
    decoder: *mut RpcDecoder<'_>,
    max_bytes: usize,
    data: *mut *const u8,
    length: *mut usize,
    memory: *mut *mut RpcMemory,
) -> Status {
    guard(|| {
        // SAFETY: a decoder and memory for two pointers and a length, as the header asks for.
        let (decoder, data, length, memory) = unsafe {
            (
                borrow_mut(decoder, "decoder")?,
                Out::new(data, "data")?,
                Out::new(length, "length")?,
                Out::new(memory, "memory")?,
            )
        };
        let found = decoder.0.data(max_bytes)?;
        data.set(found.bytes().as_ptr());
        length.set(found.bytes().len());
        match found {
            Data::Inline(_) => memory.set(null_mut()),
            Data::Bulk(bulk) => memory.give(RpcMemory(bulk)),
        }
        Ok(())
    })
}

/// Reads all that is left, as XDR for a codec of the application's: `*length` is a multiple of four.
///
/// Errors: SPINRPC_STATUS_DECODE if a data item that was placed directly is among it, or the message is padded
/// (RDMA_MSGP, which is never used unless rpc.protocol allows it); the functions above read it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_decode_rest(
    decoder: *mut RpcDecoder<'_>,
    data: *mut *const u8,
    length: *mut usize,
) -> Status {
    let why = "the rest is not plain XDR: read it item by item";
    // SAFETY: pointers as the header asks for.
    unsafe {
        read_bytes(decoder, data, length, |from| {
            from.pass_plain(|rest| Some(rest.len()))
                .ok_or_else(|| Failure::new(Status::Decode, why))
        })
    }
}

/// Checks that everything was read; the decoder is at its end then. For a server before it acts on arguments.
///
/// Errors: SPINRPC_STATUS_DECODE if there is more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spinrpc_decode_finish(decoder: *mut RpcDecoder<'_>) -> Status {
    guard(|| {
        // SAFETY: a decoder, as the header asks for.
        let decoder = unsafe { borrow_mut(decoder, "decoder") }?;
        Ok(std::mem::replace(&mut decoder.0, Decoder::plain(&[])).finish()?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: &[u8] = b"\0\0\0\x07\0\0\0\0\0\0\0\x09\0\0\0\x03abc\0\0\0\0\x01";

    /// Of the functions that return bytes.
    fn bytes(read: impl FnOnce(*mut *const u8, *mut usize) -> Status) -> Result<Vec<u8>, Status> {
        let (mut data, mut length) = (std::ptr::null(), 0);
        match read(&raw mut data, &raw mut length) {
            // SAFETY: a success has set both.
            Status::Ok => Ok(unsafe { std::slice::from_raw_parts(data, length) }.to_vec()),
            status => Err(status),
        }
    }

    #[test]
    fn items_are_read_in_order_and_the_end_is_checked() {
        let mut decoder = RpcDecoder(Decoder::plain(BYTES));
        let (mut word, mut long) = (0, 0);
        let it = &raw mut decoder;
        // SAFETY: the decoder and the places for results are there.
        unsafe {
            assert_eq!(spinrpc_decode_u32(it, &raw mut word), Status::Ok);
            assert_eq!(spinrpc_decode_u64(it, &raw mut long), Status::Ok);
            assert_eq!((word, long), (7, 9));
            let text = bytes(|data, length| spinrpc_decode_opaque(it, 3, data, length));
            assert_eq!(text.unwrap(), b"abc");
            assert_eq!(spinrpc_decode_finish(it), Status::Decode);
        }
    }

    #[test]
    fn the_rest_is_returned_at_once_and_lengths_are_bounded() {
        let mut decoder = RpcDecoder(Decoder::plain(&BYTES[12..]));
        let it = &raw mut decoder;
        // SAFETY: the decoder and the places for results are there.
        unsafe {
            let mut memory = std::ptr::dangling_mut();
            let read = |data, length| spinrpc_decode_data(it, 3, data, length, &raw mut memory);
            assert_eq!(bytes(read).unwrap(), b"abc");
            assert!(memory.is_null(), "it came in the message");
            let rest = bytes(|data, length| spinrpc_decode_rest(it, data, length));
            assert_eq!(rest.unwrap(), [0, 0, 0, 1]);
            assert_eq!(spinrpc_decode_finish(it), Status::Ok);
            decoder = RpcDecoder(Decoder::plain(&BYTES[12..]));
            let it = &raw mut decoder;
            let long = bytes(|data, length| spinrpc_decode_opaque(it, 2, data, length));
            assert_eq!(long, Err(Status::Decode));
        }
    }
}
