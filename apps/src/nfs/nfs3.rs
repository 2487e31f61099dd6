//! The types of RFC 1813 on the wire, and how they are bound to RPC-over-RDMA (RFC 8267).
//!
//! One line per type, fields in the order of the wire. Eligible for direct placement are the data of
//! READ and WRITE, the text of SYMLINK, and the path of READLINK; the first two are items of their
//! own here ([`ReadHead`], [`WriteHead`]), all else stands in the stream.

use crate::nfs::xdr::{Xdr, fields, opaque, words};
use nfs3_types::nfs3::{
    COMMIT3args, COMMIT3resok, CREATE3args, CREATE3resok, FSINFO3args, FSINFO3resok, GETATTR3args,
    GETATTR3resok, LOOKUP3args, LOOKUP3resok, NFS_PROGRAM, NFS3_FHSIZE, PROGRAM as PROGRAM_NUMBER,
    READ3args, READDIR3args, READDIR3resok, READDIRPLUS3args, READDIRPLUS3resok, READLINK3args,
    READLINK3resok, VERSION as VERSION_NUMBER, WRITE3resok, cookieverf3, createhow3, createverf3,
    dirlist3, dirlistplus3, diropargs3, entry3, entryplus3, fattr3, filename3, ftype3, nfs_fh3,
    nfspath3, nfsstat3, nfstime3, post_op_attr, sattr3, set_atime, set_mtime, specdata3,
    stable_how, wcc_attr, wcc_data, writeverf3,
};
use nfs3_types::xdr_codec::Opaque;
use spinrpc::{DecodeError, Decoder, Encoder, Procedure, Program, Version};

/// NFS.
pub const PROGRAM: Program = Program(PROGRAM_NUMBER);
/// Version 3.
pub const VERSION: Version = Version(VERSION_NUMBER);
/// Procedures of the version, NULL included.
pub const PROCEDURES: usize = NFS_PROGRAM::NFSPROC3_COMMIT as usize + 1;

/// Longest name, in bytes. RFC 1813 has no bound; file systems have 255.
pub const NAME_BYTES_MAX: usize = 1024;
/// Longest path in a symbolic link, in bytes. RFC 1813 has no bound; Linux has this.
pub const PATH_BYTES_MAX: usize = 4096;

/// Room for the results of a procedure with neither data nor a list: the longest are those of
/// CREATE, a status, a handle, attributes, and attributes before and after.
pub const PLAIN_RESULT_BYTES_MAX: usize = 512;
/// Results of READLINK: status, attributes, and the path.
pub const READLINK_RESULT_BYTES_MAX: usize = 96 + PATH_BYTES_MAX;
/// Results of READ without their data.
pub const READ_RESULT_HEAD_BYTES: usize = 128;

/// The number of a procedure.
pub const fn procedure(operation: NFS_PROGRAM) -> Procedure {
    Procedure(operation as u32)
}

/// Its name in RFC 1813, without the prefix that all have.
pub fn name(operation: NFS_PROGRAM) -> String {
    operation.to_string().trim_start_matches("NFSPROC3_").to_owned()
}

/// The arguments of WRITE but for the data, which follow as an item of their own.
#[derive(Clone, Debug)]
pub struct WriteHead {
    /// Which file.
    pub file: nfs_fh3,
    /// Where in it.
    pub offset: u64,
    /// How many bytes.
    pub count: u32,
    /// Whether they must survive a crash before the reply.
    pub stable: stable_how,
}

/// The results of READ but for the data, which follow as an item of their own.
#[derive(Clone, Debug)]
pub struct ReadHead {
    /// Of the file, behind the READ.
    pub file_attributes: post_op_attr,
    /// How many bytes were read.
    pub count: u32,
    /// They reach to the end of the file.
    pub eof: bool,
}

fields! {
    WriteHead { file, offset, count, stable }
    ReadHead { file_attributes, count, eof }
    nfstime3 { seconds, nseconds }
    specdata3 { specdata1, specdata2 }
    fattr3 {
        type_, mode, nlink, uid, gid, size, used, rdev, fsid, fileid, atime, mtime, ctime,
    }
    wcc_attr { size, mtime, ctime }
    wcc_data { before, after }
    sattr3 { mode, uid, gid, size, atime, mtime }
    cookieverf3 { 0 }
    createverf3 { 0 }
    writeverf3 { 0 }
    diropargs3<'a> { dir, name }
    GETATTR3args { object }
    GETATTR3resok { obj_attributes }
    LOOKUP3args<'a> { what }
    LOOKUP3resok { object, obj_attributes, dir_attributes }
    READLINK3args { symlink }
    READLINK3resok<'a> { symlink_attributes, data }
    READ3args { file, offset, count }
    WRITE3resok { file_wcc, count, committed, verf }
    CREATE3args<'a> { where_, how }
    CREATE3resok { obj, obj_attributes, dir_wcc }
    READDIR3args { dir, cookie, cookieverf, count }
    READDIR3resok<'a> { dir_attributes, cookieverf, reply }
    dirlist3<'a> { entries, eof }
    entry3<'a> { fileid, name, cookie }
    READDIRPLUS3args { dir, cookie, cookieverf, dircount, maxcount }
    READDIRPLUS3resok<'a> { dir_attributes, cookieverf, reply }
    dirlistplus3<'a> { entries, eof }
    entryplus3<'a> { fileid, name, cookie, name_attributes, name_handle }
    FSINFO3args { fsroot }
    FSINFO3resok {
        obj_attributes, rtmax, rtpref, rtmult, wtmax, wtpref, wtmult, dtpref, maxfilesize,
        time_delta, properties,
    }
    COMMIT3args { file, offset, count }
    COMMIT3resok { file_wcc, verf }
}

words!(nfsstat3, ftype3, stable_how);

opaque! {
    filename3<'a> [NAME_BYTES_MAX]
    nfspath3<'a> [PATH_BYTES_MAX]
}

/// Handles outlive the message they came in.
impl<'a> Xdr<'a> for nfs_fh3 {
    fn encode(&self, to: &mut Encoder<'_>) {
        to.opaque(&self.data);
    }

    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let data = Opaque::owned(from.opaque(NFS3_FHSIZE)?.to_vec());
        Ok(Self { data })
    }
}

impl<'a> Xdr<'a> for createhow3 {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::UNCHECKED(attributes) => (to.u32(0), attributes.encode(to)),
            Self::GUARDED(attributes) => (to.u32(1), attributes.encode(to)),
            Self::EXCLUSIVE(verifier) => (to.u32(2), verifier.encode(to)),
        };
    }

    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let at = from.position();
        match from.u32()? {
            0 => Xdr::decode(from).map(Self::UNCHECKED),
            1 => Xdr::decode(from).map(Self::GUARDED),
            2 => Xdr::decode(from).map(Self::EXCLUSIVE),
            value => Err(DecodeError::BadEnum { at, value }),
        }
    }
}

/// Implements [`Xdr`] for the two unions that say how a time is set.
macro_rules! set_times {
    ($($type:ty),+) => {$(
        impl<'a> Xdr<'a> for $type {
            fn encode(&self, to: &mut Encoder<'_>) {
                match self {
                    Self::DONT_CHANGE => to.u32(0),
                    Self::SET_TO_SERVER_TIME => to.u32(1),
                    Self::SET_TO_CLIENT_TIME(time) => {
                        to.u32(2);
                        time.encode(to);
                    }
                }
            }

            fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
                let at = from.position();
                match from.u32()? {
                    0 => Ok(Self::DONT_CHANGE),
                    1 => Ok(Self::SET_TO_SERVER_TIME),
                    2 => Xdr::decode(from).map(Self::SET_TO_CLIENT_TIME),
                    value => Err(DecodeError::BadEnum { at, value }),
                }
            }
        }
    )+};
}

set_times!(set_atime, set_mtime);

/// Reads the results of a procedure: a status, and what follows NFS3_OK. What follows any other
/// status is attributes at most, which nobody needs then.
///
/// # Errors
/// What is wrong with the bytes.
pub fn outcome<'a, T: Xdr<'a>>(from: &mut Decoder<'a>) -> Result<Result<T, nfsstat3>, DecodeError> {
    match nfsstat3::decode(from)? {
        nfsstat3::NFS3_OK => T::decode(from).map(Ok),
        status => Ok(Err(status)),
    }
}

/// As [`outcome`], for results that borrow nothing from the message.
///
/// # Errors
/// What is wrong with the bytes.
pub fn owned_outcome<T: for<'a> Xdr<'a>>(
    from: &mut Decoder<'_>,
) -> Result<Result<T, nfsstat3>, DecodeError> {
    outcome(from)
}
