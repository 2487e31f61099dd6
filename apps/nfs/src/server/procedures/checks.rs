//! Checks of names and sizes from clients, before a back end gets them.

use crate::protocol::{Diropargs3, Nfsstat3, Sattr3};
use crate::server::file_system::{FileKey, Outcome, Place};
use crate::server::site::RequestContext;
use crate::server::unix::FILE_BYTES_MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameUse {
    Find,
    Make,
    /// To remove it, or to replace it.
    Remove,
    RemoveDirectory,
}

impl RequestContext<'_> {
    /// Checks a name in a directory.
    ///
    /// "." and ".." always exist, and cannot be removed ("NFS3ERR_INVAL" and "NFS3ERR_EXIST" in RFC
    /// 1813 section 3.3.13). Names that are empty, or contain a slash or a zero byte, are invalid: with
    /// them a file system might leave the directory.
    pub(super) fn place<'a>(
        &self,
        directory: &'a FileKey,
        at: &'a Diropargs3<'_>,
        name_use: NameUse,
    ) -> Outcome<Place<'a>> {
        let name = at.name.bytes();
        if name.len() > self.file_system().abilities().name_bytes_max as usize {
            return Err(Nfsstat3::Nfs3errNametoolong);
        }
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
            return Err(Nfsstat3::Nfs3errInval);
        }
        match (name_use, name) {
            (NameUse::Make, b"." | b"..") | (NameUse::RemoveDirectory, b"..") => {
                Err(Nfsstat3::Nfs3errExist)
            }
            (NameUse::Remove, b"." | b"..") | (NameUse::RemoveDirectory, b".") => {
                Err(Nfsstat3::Nfs3errInval)
            }
            _ => Ok(Place { directory, name }),
        }
    }
}

/// The status of SETATTR and CREATE, which do not have NFS3ERR_FBIG, for a size beyond the maximum of the file system.
pub(super) fn without_fbig(status: Nfsstat3) -> Nfsstat3 {
    if status == Nfsstat3::Nfs3errFbig { Nfsstat3::Nfs3errInval } else { status }
}

/// NFS3ERR_INVAL for a size beyond the maximum of FSINFO.
pub(super) fn check_size(new: &Sattr3) -> Outcome<()> {
    match new.size {
        Some(size) if size > FILE_BYTES_MAX => Err(Nfsstat3::Nfs3errInval),
        _ => Ok(()),
    }
}
