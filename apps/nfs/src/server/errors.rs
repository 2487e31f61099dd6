//! Maps errors of the system to statuses of RFC 1813 section 2.6.

use super::file_system::Outcome;
use crate::protocol::Nfsstat3;
use rustix::io::Errno;
use std::io;

pub(super) fn status(error: Errno) -> Nfsstat3 {
    use Nfsstat3::*;
    match error {
        Errno::PERM => Nfs3errPerm,
        Errno::NOENT => Nfs3errNoent,
        Errno::NXIO => Nfs3errNxio,
        Errno::ACCESS | Errno::BUSY => Nfs3errAcces, // busy: a directory that something is mounted on
        Errno::EXIST => Nfs3errExist,
        Errno::XDEV => Nfs3errXdev,
        Errno::NODEV => Nfs3errNodev,
        Errno::NOTDIR => Nfs3errNotdir,
        Errno::ISDIR => Nfs3errIsdir,
        Errno::INVAL | Errno::LOOP | Errno::ILSEQ => Nfs3errInval,
        Errno::FBIG | Errno::OVERFLOW => Nfs3errFbig,
        Errno::NOSPC => Nfs3errNospc,
        Errno::ROFS => Nfs3errRofs,
        Errno::MLINK => Nfs3errMlink,
        Errno::NAMETOOLONG => Nfs3errNametoolong,
        Errno::NOTEMPTY => Nfs3errNotempty,
        Errno::DQUOT => Nfs3errDquot,
        Errno::STALE => Nfs3errStale,
        Errno::OPNOTSUPP | Errno::NOSYS => Nfs3errNotsupp,
        // May be available again later: memory, descriptors, a lease that is being broken.
        Errno::AGAIN | Errno::NOMEM | Errno::NFILE | Errno::MFILE | Errno::INTR => Nfs3errJukebox,
        _ => Nfs3errIo,
    }
}

pub(super) fn io_status(error: &io::Error) -> Nfsstat3 {
    Errno::from_io_error(error).map_or(Nfsstat3::Nfs3errIo, status)
}

pub(super) trait OrStatus<T> {
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
        use Nfsstat3::*;
        let table = [
            (Errno::XDEV, Nfs3errXdev),
            (Errno::MLINK, Nfs3errMlink),
            (Errno::DQUOT, Nfs3errDquot),
            (Errno::NOSPC, Nfs3errNospc),
            (Errno::ROFS, Nfs3errRofs),
            (Errno::NAMETOOLONG, Nfs3errNametoolong),
            (Errno::NOTEMPTY, Nfs3errNotempty),
            (Errno::STALE, Nfs3errStale),
            (Errno::LOOP, Nfs3errInval),
            (Errno::MFILE, Nfs3errJukebox),
            (Errno::PROTO, Nfs3errIo),
        ];
        for (error, expected) in table {
            assert_eq!(status(error), expected, "{error}");
            assert_eq!(io_status(&error.into()), expected, "{error}");
        }
    }

    #[test]
    fn an_error_without_a_number_is_an_error_of_io() {
        assert_eq!(io_status(&io::ErrorKind::WriteZero.into()), Nfsstat3::Nfs3errIo);
    }
}
