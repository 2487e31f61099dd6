//! What an error of the system is in the words of RFC 1813 section 2.6: the one table.

use crate::nfs::server::file_system::Outcome;
use nfs3_types::nfs3::nfsstat3;
use rustix::io::Errno;
use std::io;

/// The status for an error of a system call.
pub(super) fn status(error: Errno) -> nfsstat3 {
    use nfsstat3::*;
    match error {
        Errno::PERM => NFS3ERR_PERM,
        Errno::NOENT => NFS3ERR_NOENT,
        Errno::NXIO => NFS3ERR_NXIO,
        Errno::ACCESS | Errno::BUSY => NFS3ERR_ACCES, // busy: a directory that something is mounted on
        Errno::EXIST => NFS3ERR_EXIST,
        Errno::XDEV => NFS3ERR_XDEV,
        Errno::NODEV => NFS3ERR_NODEV,
        Errno::NOTDIR => NFS3ERR_NOTDIR,
        Errno::ISDIR => NFS3ERR_ISDIR,
        Errno::INVAL | Errno::LOOP | Errno::ILSEQ => NFS3ERR_INVAL,
        Errno::FBIG | Errno::OVERFLOW => NFS3ERR_FBIG,
        Errno::NOSPC => NFS3ERR_NOSPC,
        Errno::ROFS => NFS3ERR_ROFS,
        Errno::MLINK => NFS3ERR_MLINK,
        Errno::NAMETOOLONG => NFS3ERR_NAMETOOLONG,
        Errno::NOTEMPTY => NFS3ERR_NOTEMPTY,
        Errno::DQUOT => NFS3ERR_DQUOT,
        Errno::STALE => NFS3ERR_STALE,
        Errno::OPNOTSUPP | Errno::NOSYS => NFS3ERR_NOTSUPP,
        // What may be there again in a while: memory, descriptors, a lease that is being broken.
        Errno::AGAIN | Errno::NOMEM | Errno::NFILE | Errno::MFILE | Errno::INTR => NFS3ERR_JUKEBOX,
        _ => NFS3ERR_IO,
    }
}

/// The same for an error of the standard library's.
pub(super) fn io_status(error: &io::Error) -> nfsstat3 {
    Errno::from_io_error(error).map_or(nfsstat3::NFS3ERR_IO, status)
}

/// The same for the outcome of a system call.
pub(super) trait OrStatus<T> {
    /// Its value, or the status for its error.
    fn or_status(self) -> Outcome<T>;
}

impl<T> OrStatus<T> for rustix::io::Result<T> {
    fn or_status(self) -> Outcome<T> {
        self.map_err(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_are_those_of_the_rfc() {
        use nfsstat3::*;
        let table = [
            (Errno::XDEV, NFS3ERR_XDEV),
            (Errno::MLINK, NFS3ERR_MLINK),
            (Errno::DQUOT, NFS3ERR_DQUOT),
            (Errno::NOSPC, NFS3ERR_NOSPC),
            (Errno::ROFS, NFS3ERR_ROFS),
            (Errno::NAMETOOLONG, NFS3ERR_NAMETOOLONG),
            (Errno::NOTEMPTY, NFS3ERR_NOTEMPTY),
            (Errno::STALE, NFS3ERR_STALE),
            (Errno::LOOP, NFS3ERR_INVAL),
            (Errno::MFILE, NFS3ERR_JUKEBOX),
            (Errno::PROTO, NFS3ERR_IO),
        ];
        for (error, expected) in table {
            assert_eq!(status(error), expected, "{error}");
            assert_eq!(io_status(&error.into()), expected, "{error}");
        }
    }

    #[test]
    fn an_error_without_a_number_is_an_error_of_io() {
        assert_eq!(io_status(&io::ErrorKind::WriteZero.into()), nfsstat3::NFS3ERR_IO);
    }
}
