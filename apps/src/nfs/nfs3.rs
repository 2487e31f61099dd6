//! NFS version 3 as client and server have it in common: names of procedures, room for results, and results that
//! are read as far as they are of use.
//!
//! Behind a status that is not NFS3_OK there are, for all procedures, attributes that may be missing: of one file
//! (`post_op_attr`), from before and after (`wcc_data`), or two of these. Results that are the same on the wire
//! are one type here: those of MKDIR, SYMLINK and MKNOD are a [`Create3resok`](crate::nfs::protocol::Create3resok),
//! those of SETATTR, REMOVE and RMDIR a [`WccData`](crate::nfs::protocol::WccData), those of RENAME two, those of
//! LINK a [`PostOpAttr`](crate::nfs::protocol::PostOpAttr) and a `WccData`.

use crate::nfs::protocol::{Nfsstat3, PATH_BYTES_MAX, ProcedureId};
use spinrpc::{DecodeError, Decoder, Procedure};
use spinrpc_xdr::Decode;

pub use crate::nfs::protocol::nfs_v3::{PROGRAM, VERSION};

/// Procedures of the version, NULL included.
pub const PROCEDURES: usize = ProcedureId::Nfsproc3Commit as usize + 1;

/// Room for the results of a procedure with neither data nor a list: the longest are those of
/// CREATE, a status, a handle, attributes, and attributes before and after.
pub const PLAIN_RESULT_BYTES_MAX: usize = 512;
/// Results of READLINK: status, attributes, and the path.
pub const READLINK_RESULT_BYTES_MAX: usize = 96 + PATH_BYTES_MAX as usize;
/// Results of READ without their data.
pub const READ_RESULT_HEAD_BYTES: usize = 128;

/// The number of a procedure.
pub const fn procedure(operation: ProcedureId) -> Procedure {
    Procedure(operation as u32)
}

/// Its name in RFC 1813, without the prefix that all have.
pub fn name(operation: ProcedureId) -> &'static str {
    operation.name().trim_start_matches("NFSPROC3_")
}

/// Reads the results of a procedure: a status, and what follows NFS3_OK. What follows any other
/// status is attributes at most, which a client has no use for.
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

/// As [`outcome`], for results that borrow nothing from the message.
///
/// # Errors
/// [`DecodeError`] if the bytes are not such results.
pub fn owned_outcome<T: for<'a> Decode<'a>>(
    from: &mut Decoder<'_>,
) -> Result<Result<T, Nfsstat3>, DecodeError> {
    outcome(from)
}
