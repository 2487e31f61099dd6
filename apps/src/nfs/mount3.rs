//! The MOUNT protocol, version 3 (RFC 1813 appendix I), which names the root of an export.

use crate::nfs::xdr::{Xdr, fields, opaque, words};
use nfs3_types::mount::{
    FHSIZE3, MNTNAMLEN, MNTPATHLEN, PROGRAM as PROGRAM_NUMBER, VERSION as VERSION_NUMBER, dirpath,
    export_node, fhandle3, mountbody, mountstat3, name,
};
use nfs3_types::xdr_codec::Opaque;
use spinrpc::{DecodeError, Decoder, Encoder, Procedure, Program, Version};

/// MOUNT.
pub const PROGRAM: Program = Program(PROGRAM_NUMBER);
/// The version that goes with NFS version 3.
pub const VERSION: Version = Version(VERSION_NUMBER);

/// Does nothing.
pub const NULL: Procedure = Procedure(0);
/// Gives the handle of a directory.
pub const MNT: Procedure = Procedure(1);
/// Lists what clients have mounted, as far as that is known.
pub const DUMP: Procedure = Procedure(2);
/// Says that the handle is not used any more.
pub const UMNT: Procedure = Procedure(3);
/// The same of all that the client has mounted.
pub const UMNTALL: Procedure = Procedure(4);
/// Lists what is exported, and to whom.
pub const EXPORT: Procedure = Procedure(5);

/// Most flavors of credentials that are taken from an answer; a few exist.
const FLAVORS_MAX: usize = 64;

fields! {
    export_node<'a, 'a> { ex_dir, ex_groups }
    mountbody<'a, 'a> { ml_hostname, ml_directory }
}

words!(mountstat3);

opaque! {
    dirpath<'a> [MNTPATHLEN]
    name<'a> [MNTNAMLEN]
    fhandle3<'a> [FHSIZE3]
}

/// The answer to MNT where it is no error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The handle of the directory.
    pub handle: Vec<u8>,
    /// Flavors of credentials that the server takes, its favourite first.
    pub flavors: Vec<u32>,
}

impl<'a> Xdr<'a> for Mounted {
    fn encode(&self, to: &mut Encoder<'_>) {
        to.opaque(&self.handle);
        to.u32(self.flavors.len() as u32);
        for flavor in &self.flavors {
            to.u32(*flavor);
        }
    }

    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        let handle = from.opaque(FHSIZE3)?.to_vec();
        let (at, length) = (from.position(), from.u32()? as usize);
        if length > FLAVORS_MAX {
            return Err(DecodeError::TooLong { at, length, max: FLAVORS_MAX });
        }
        let flavors = (0..length).map(|_| from.u32()).collect::<Result<_, _>>()?;
        Ok(Self { handle, flavors })
    }
}

/// Reads the results of MNT.
///
/// # Errors
/// What is wrong with the bytes.
pub fn outcome(from: &mut Decoder<'_>) -> Result<Result<Mounted, mountstat3>, DecodeError> {
    match mountstat3::decode(from)? {
        mountstat3::MNT3_OK => Mounted::decode(from).map(Ok),
        status => Ok(Err(status)),
    }
}
