//! Common code for NFS version 3: names of procedures, sizes of results, and partial decoding of
//! results.
//!
//! After a status other than NFS3_OK, all procedures return optional attributes: of one file
//! (`post_op_attr`), from before and after (`wcc_data`), or two of these. Results with the same
//! encoding share a type here: those of MKDIR, SYMLINK and MKNOD are a
//! [`Create3resok`](crate::protocol::Create3resok), those of SETATTR, REMOVE and RMDIR a
//! [`WccData`](crate::protocol::WccData), those of RENAME two, those of LINK a
//! [`PostOpAttr`](crate::protocol::PostOpAttr) and a `WccData`.

use crate::protocol::{Nfsstat3, PATH_BYTES_MAX, ProcedureId};
use spinrpc::{DecodeError, Decoder, Procedure};
use spinrpc_xdr::Decode;

pub use crate::protocol::nfs_v3::{PROGRAM, VERSION};

/// Number of procedures, including NULL.
pub const PROCEDURES: usize = ProcedureId::Nfsproc3Commit as usize + 1;

/// Maximum length of results without data or a list: the longest are those of CREATE, a status, a
/// handle, attributes, and attributes before and after.
pub const PLAIN_RESULT_BYTES_MAX: usize = 512;
/// Maximum length of the results of READLINK: status, attributes, and the path.
pub const READLINK_RESULT_BYTES_MAX: usize = 96 + PATH_BYTES_MAX as usize;
/// Maximum length of the results of READ without their data.
pub const READ_RESULT_HEAD_BYTES: usize = 128;

/// The number of a procedure.
pub const fn procedure(operation: ProcedureId) -> Procedure {
    Procedure(operation as u32)
}

/// Its name in RFC 1813, without the prefix that all have.
pub fn name(operation: ProcedureId) -> &'static str {
    operation.name().trim_start_matches("NFSPROC3_")
}

/// Decodes the results of a procedure: a status, and the rest after NFS3_OK. After any other status
/// there are only attributes, which the client does not use.
///
/// # Errors
/// [`DecodeError`] if the bytes are not such results.
pub fn outcome<'a, T: Decode<'a>>(
    from: &mut Decoder<'a>,
) -> Result<Result<T, Nfsstat3>, DecodeError> {
    match Nfsstat3::decode(from)? {
        Nfsstat3::Nfs3Ok => T::decode(from).map(Ok),
        status => Ok(Err(status)),
    }
}

/// Like [`outcome`], for results that do not borrow from the message.
///
/// # Errors
/// [`DecodeError`] if the bytes are not such results.
pub fn owned_outcome<T: for<'a> Decode<'a>>(
    from: &mut Decoder<'_>,
) -> Result<Result<T, Nfsstat3>, DecodeError> {
    outcome(from)
}
