//! The MOUNT protocol, version 3 (RFC 1813 appendix I), which names the root of an export: types and stubs of
//! `mount.x`, generated when this package is built, and the answer to MNT as this host keeps it.

include!(concat!(env!("OUT_DIR"), "/mount.rs"));

pub use mount_v3::{PROGRAM, VERSION};

use crate::nfs::protocol::FileHandle;
use spinrpc::Procedure;
use spinrpc_xdr::rpc::Procedure as Described;
use spinrpc_xdr::{Decode, DecodeError, Decoder, Encode, Encoder, TooLong};

/// Does nothing.
pub const NULL: Procedure = number::<mount_v3::Mountproc3Null>();
/// Gives the handle of a directory.
pub const MNT: Procedure = number::<mount_v3::Mountproc3Mnt>();
/// Lists what clients have mounted, as far as that is known.
pub const DUMP: Procedure = number::<mount_v3::Mountproc3Dump>();
/// Says that the handle is not used any more.
pub const UMNT: Procedure = number::<mount_v3::Mountproc3Umnt>();
/// The same of all that the client has mounted.
pub const UMNTALL: Procedure = number::<mount_v3::Mountproc3Umntall>();
/// Lists what is exported, and to whom.
pub const EXPORT: Procedure = number::<mount_v3::Mountproc3Export>();

const fn number<P: Described>() -> Procedure {
    Procedure(P::NUMBER)
}

/// Most flavors of credentials that are taken from an answer; a few exist.
const FLAVORS_MAX: usize = 64;

/// The answer to MNT where it is no error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The handle of the directory.
    pub handle: FileHandle,
    /// Flavors of credentials that the server takes, its favourite first.
    pub flavors: Vec<u32>,
}

impl Mounted {
    /// Writes it as the results of MNT without their status.
    pub fn encode(&self, to: &mut Encoder<'_>) {
        let flavors: Vec<i32> = self.flavors.iter().map(|flavor| flavor.cast_signed()).collect();
        let results = Mountres3Ok {
            fhandle: Fhandle3::new(self.handle.as_bytes()).unwrap_or_default(),
            auth_flavors: Array::new(&flavors).unwrap_or_default(),
        };
        results.encode(to);
    }
}

/// Reads the results of MNT.
///
/// # Errors
/// [`DecodeError`] if the bytes are not an encoding of the type.
pub fn outcome(from: &mut Decoder<'_>) -> Result<Result<Mounted, Mountstat3>, DecodeError> {
    let at = from.position();
    let results = match Mountres3::decode(from)? {
        Mountres3::Mnt3Ok(results) => results,
        Mountres3::Default(status) => return Ok(Err(status)),
    };
    let length = results.auth_flavors.len();
    if length > FLAVORS_MAX {
        return Err(DecodeError::TooLong { at, length, max: FLAVORS_MAX });
    }
    let flavors = results.auth_flavors.iter().map(i32::cast_unsigned).collect();
    let handle = FileHandle::new(&results.fhandle);
    let handle =
        handle.map_err(|TooLong { length, max }| DecodeError::TooLong { at, length, max })?;
    Ok(Ok(Mounted { handle, flavors }))
}

/// The path of a directory, as it is sent.
///
/// # Errors
/// [`TooLong`] if it has more than [`MNTPATHLEN`] bytes.
pub const fn path(path: &str) -> Result<Dirpath<'_>, TooLong> {
    Dirpath::new(path.as_bytes())
}
