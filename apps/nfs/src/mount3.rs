//! The MOUNT protocol, version 3 (RFC 1813 appendix I), which returns the root handle of an export:
//! types and stubs of `mount.x`, generated when this package is built, and an owned reply to MNT.

include!(concat!(env!("OUT_DIR"), "/mount.rs"));

pub use mount_v3::{PROGRAM, VERSION};

use crate::protocol::FileHandle;
use spinrpc::Procedure;
use spinrpc_xdr::rpc::Procedure as Described;
use spinrpc_xdr::{Array, Decode, DecodeError, Decoder, Encode, Encoder, TooLong};

/// Does nothing.
pub const NULL: Procedure = number::<mount_v3::Mountproc3Null>();
/// Returns the handle of a directory.
pub const MNT: Procedure = number::<mount_v3::Mountproc3Mnt>();
/// Lists known mounts.
pub const DUMP: Procedure = number::<mount_v3::Mountproc3Dump>();
/// Ends the use of a handle.
pub const UMNT: Procedure = number::<mount_v3::Mountproc3Umnt>();
/// Ends the use of all handles by the client.
pub const UMNTALL: Procedure = number::<mount_v3::Mountproc3Umntall>();
/// Lists the exports and their clients.
pub const EXPORT: Procedure = number::<mount_v3::Mountproc3Export>();

const fn number<P: Described>() -> Procedure {
    Procedure(P::NUMBER)
}

/// Maximum number of credential flavors kept from a reply; few exist.
const FLAVORS_MAX: usize = 64;

/// A successful reply to MNT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The handle of the directory.
    pub handle: FileHandle,
    /// Credential flavors that the server accepts, preferred one first.
    pub flavors: Vec<u32>,
}

impl Mounted {
    /// Encodes it as the results of MNT without their status.
    pub fn encode(&self, to: &mut Encoder<'_>) {
        let flavors: Vec<i32> = self.flavors.iter().map(|flavor| flavor.cast_signed()).collect();
        let results = Mountres3Ok {
            fhandle: Fhandle3::new(self.handle.as_bytes()).unwrap_or_default(),
            auth_flavors: Array::new(&flavors).unwrap_or_default(),
        };
        results.encode(to);
    }
}

/// Decodes the results of MNT.
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

/// The path of a directory, in wire form.
///
/// # Errors
/// [`TooLong`] if it has more than [`MNTPATHLEN`] bytes.
pub const fn path(path: &str) -> Result<Dirpath<'_>, TooLong> {
    Dirpath::new(path.as_bytes())
}
