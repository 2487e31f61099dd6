//! Converts the kernel's attributes to the types of RFC 1813 section 2.6.

use crate::protocol::{Fattr3, Nfstime3, Specdata3, WccAttr};
use crate::server::unix::{BLOCK_BYTES, RIGHTS, wire_time, wire_type};
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, FileType, Mode, Statx, StatxFlags, StatxTimestamp, statx};
use rustix::io;

/// Queries the attributes of an open file; on a local file system the answer comes from memory.
pub(super) fn stat(file: impl AsFd) -> io::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
    statx(file, c"", AtFlags::EMPTY_PATH, wanted)
}

pub(super) fn kind(stat: &Statx) -> FileType {
    FileType::from_raw_mode(u32::from(stat.stx_mode))
}

pub(super) fn rights(stat: &Statx) -> u32 {
    u32::from(stat.stx_mode) & RIGHTS
}

pub(super) fn mode(wire: u32) -> Mode {
    Mode::from_raw_mode(wire & RIGHTS)
}

/// Linux clears these bits at a write by anyone but root.
pub(super) fn lends_identity(stat: &Statx) -> bool {
    let is_group_id = stat.stx_mode & 0o2010 == 0o2010;
    is_group_id || stat.stx_mode & 0o4000 != 0
}

pub(super) fn attributes(stat: &Statx, fsid: u64) -> Fattr3 {
    Fattr3 {
        r#type: wire_type(kind(stat)),
        mode: rights(stat),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size: stat.stx_size,
        used: stat.stx_blocks.saturating_mul(BLOCK_BYTES),
        rdev: Specdata3 { specdata1: stat.stx_rdev_major, specdata2: stat.stx_rdev_minor },
        fsid,
        fileid: stat.stx_ino,
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
    }
}

/// Attributes by which a client checks whether its cache is valid.
pub(super) fn before(stat: &Statx) -> WccAttr {
    WccAttr { size: stat.stx_size, mtime: time(stat.stx_mtime), ctime: time(stat.stx_ctime) }
}

pub(super) fn time(of_file: StatxTimestamp) -> Nfstime3 {
    wire_time(of_file.tv_sec, of_file.tv_nsec)
}
