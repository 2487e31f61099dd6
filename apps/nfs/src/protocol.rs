//! Types and stubs of `nfs_prot.x`, NFS version 3 (RFC 1813), generated when this package is built,
//! with additions: owned handles, and defaults. The codec borrows from the message; client and
//! server use it.
#![allow(clippy::too_many_lines, reason = "generated functions have a branch for each procedure")]

include!(concat!(env!("OUT_DIR"), "/nfs_prot.rs"));

pub use nfs_v3::ProcedureId;

use spinrpc_xdr::{Encode, Encoder, Opaque, TooLong};
use std::fmt;
use std::time::SystemTime;

/// Maximum length of a file handle, in bytes.
pub const HANDLE_BYTES_MAX: usize = NFS3_FHSIZE as usize;

/// An owned file handle: an [`NfsFh3`] borrows from its message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FileHandle {
    /// Zeros behind the length.
    bytes: [u8; HANDLE_BYTES_MAX],
    length: u8,
}

impl FileHandle {
    /// The handle with these bytes.
    ///
    /// # Errors
    /// [`TooLong`] if there are more than [`NFS3_FHSIZE`].
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        Opaque::new(bytes).map(|data| Self::from(NfsFh3 { data }))
    }

    pub(super) const fn empty() -> Self {
        Self { bytes: [0; HANDLE_BYTES_MAX], length: 0 }
    }

    /// Appends as many of `bytes` as fit.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let places = self.bytes.iter_mut().skip(self.length.into());
        for (place, byte) in places.zip(bytes) {
            *place = *byte;
            self.length += 1;
        }
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or(&self.bytes)
    }

    /// The handle in wire form.
    pub fn wire(&self) -> NfsFh3<'_> {
        NfsFh3 { data: Opaque::new(self.as_bytes()).unwrap_or_default() }
    }
}

impl From<NfsFh3<'_>> for FileHandle {
    fn from(handle: NfsFh3<'_>) -> Self {
        let mut kept = Self::empty();
        kept.push(&handle.data);
        kept
    }
}

impl Encode for FileHandle {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.wire().encode(to);
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.wire().data, f)
    }
}

impl Default for Sattr3 {
    fn default() -> Self {
        let (atime, mtime) = (SetAtime::DontChange, SetMtime::DontChange);
        Self { mode: None, uid: None, gid: None, size: None, atime, mtime }
    }
}

/// Both say the same.
impl From<SetMtime> for SetAtime {
    fn from(new: SetMtime) -> Self {
        match new {
            SetMtime::DontChange => Self::DontChange,
            SetMtime::SetToServerTime => Self::SetToServerTime,
            SetMtime::SetToClientTime(time) => Self::SetToClientTime(time),
        }
    }
}

/// Clamps times before 1970 or after 2106.
impl From<SystemTime> for Nfstime3 {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seconds = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
        Self { seconds, nseconds: since.subsec_nanos() }
    }
}

/// The name of a file, in wire form.
///
/// # Errors
/// [`TooLong`] if it has more than [`NAME_BYTES_MAX`] bytes.
pub const fn name(bytes: &[u8]) -> Result<Filename3<'_>, TooLong> {
    Filename3::new(bytes)
}
