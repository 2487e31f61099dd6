//! The types of RFC 1813 on the wire, and how they are bound to RPC-over-RDMA (RFC 8267).
//!
//! One line per type, fields in the order of the wire. Eligible for direct placement are the data of
//! READ and WRITE, the text of SYMLINK, and the path of READLINK; the first two are items of their
//! own here ([`ReadHead`], [`WriteHead`]), all else stands in the stream.
//!
//! What stands behind a status that is not NFS3_OK is, for all procedures, attributes that may be
//! missing: of one file (`post_op_attr`), from before and after (`wcc_data`), or two of these. Results
//! that are the same are one type: those of MKDIR, SYMLINK and MKNOD are a `CREATE3resok`, those of
//! SETATTR, REMOVE and RMDIR a `wcc_data`, those of RENAME two, those of LINK a `post_op_attr` and a
//! `wcc_data`.

use crate::nfs::xdr::{Xdr, fields, opaque, words};
use nfs3_types::nfs3::{
    ACCESS3args, ACCESS3resok, COMMIT3args, COMMIT3resok, CREATE3args, CREATE3resok, FSINFO3args,
    FSINFO3resok, FSSTAT3args, FSSTAT3resok, GETATTR3args, GETATTR3resok, LINK3args, LOOKUP3args,
    LOOKUP3resok, MKDIR3args, MKNOD3args, NFS_PROGRAM, NFS3_FHSIZE, PATHCONF3args, PATHCONF3resok,
    PROGRAM as PROGRAM_NUMBER, READ3args, READDIR3args, READDIR3resok, READDIRPLUS3args,
    READDIRPLUS3resok, READLINK3args, READLINK3resok, REMOVE3args, RENAME3args, RMDIR3args,
    SETATTR3args, SYMLINK3args, VERSION as VERSION_NUMBER, WRITE3resok, cookieverf3, createhow3,
    createverf3, devicedata3, dirlist3, dirlistplus3, diropargs3, entry3, entryplus3, fattr3,
    filename3, ftype3, mknoddata3, nfs_fh3, nfspath3, nfsstat3, nfstime3, post_op_attr, sattr3,
    set_atime, set_mtime, specdata3, stable_how, symlinkdata3, wcc_attr, wcc_data, writeverf3,
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
    SETATTR3args { object, new_attributes, guard }
    LOOKUP3args<'a> { what }
    LOOKUP3resok { object, obj_attributes, dir_attributes }
    ACCESS3args { object, access }
    ACCESS3resok { obj_attributes, access }
    READLINK3args { symlink }
    READLINK3resok<'a> { symlink_attributes, data }
    READ3args { file, offset, count }
    WRITE3resok { file_wcc, count, committed, verf }
    CREATE3args<'a> { where_, how }
    CREATE3resok { obj, obj_attributes, dir_wcc }
    MKDIR3args<'a> { where_, attributes }
    SYMLINK3args<'a> { where_, symlink }
    symlinkdata3<'a> { symlink_attributes, symlink_data }
    MKNOD3args<'a> { where_, what }
    devicedata3 { dev_attributes, spec }
    REMOVE3args<'a> { object }
    RMDIR3args<'a> { object }
    RENAME3args<'a, 'a> { from, to }
    LINK3args<'a> { file, link }
    READDIR3args { dir, cookie, cookieverf, count }
    READDIR3resok<'a> { dir_attributes, cookieverf, reply }
    dirlist3<'a> { entries, eof }
    entry3<'a> { fileid, name, cookie }
    READDIRPLUS3args { dir, cookie, cookieverf, dircount, maxcount }
    READDIRPLUS3resok<'a> { dir_attributes, cookieverf, reply }
    dirlistplus3<'a> { entries, eof }
    entryplus3<'a> { fileid, name, cookie, name_attributes, name_handle }
    FSSTAT3args { fsroot }
    FSSTAT3resok { obj_attributes, tbytes, fbytes, abytes, tfiles, ffiles, afiles, invarsec }
    FSINFO3args { fsroot }
    FSINFO3resok {
        obj_attributes, rtmax, rtpref, rtmult, wtmax, wtpref, wtmult, dtpref, maxfilesize,
        time_delta, properties,
    }
    PATHCONF3args { object }
    PATHCONF3resok {
        obj_attributes, linkmax, name_max, no_trunc, chown_restricted, case_insensitive,
        case_preserving,
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

/// Other types of files have nothing behind the type: their creation is refused by name, not as garbage
/// (NFS3ERR_BADTYPE). Which of them it was is not kept.
impl<'a> Xdr<'a> for mknoddata3 {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::NF3CHR(device) => (ftype3::NF3CHR.encode(to), device.encode(to)),
            Self::NF3BLK(device) => (ftype3::NF3BLK.encode(to), device.encode(to)),
            Self::NF3SOCK(attributes) => (ftype3::NF3SOCK.encode(to), attributes.encode(to)),
            Self::NF3FIFO(attributes) => (ftype3::NF3FIFO.encode(to), attributes.encode(to)),
            Self::default => (ftype3::NF3REG.encode(to), ()),
        };
    }

    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        match ftype3::decode(from)? {
            ftype3::NF3CHR => Xdr::decode(from).map(Self::NF3CHR),
            ftype3::NF3BLK => Xdr::decode(from).map(Self::NF3BLK),
            ftype3::NF3SOCK => Xdr::decode(from).map(Self::NF3SOCK),
            ftype3::NF3FIFO => Xdr::decode(from).map(Self::NF3FIFO),
            ftype3::NF3REG | ftype3::NF3DIR | ftype3::NF3LNK => Ok(Self::default),
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
