//! Converts attributes of the kernel to the types of RFC 1813 section 2.6.

use crate::nfs::protocol::{Fattr3, Ftype3, Nfstime3, Specdata3, WccAttr};
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, FileType, Mode, Statx, StatxFlags, StatxTimestamp, statx};
use rustix::io;

/// Bytes of the blocks in which the kernel counts what a file takes.
const BLOCK_BYTES: u64 = 512;
/// Mask of the permission bits of a mode.
const RIGHTS: u32 = 0o7777;

/// Asks the kernel for an open file: of a local file system an answer from memory.
pub(super) fn stat(file: impl AsFd) -> io::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
    statx(file, c"", AtFlags::EMPTY_PATH, wanted)
}

/// Type of the file.
pub(super) fn kind(stat: &Statx) -> FileType {
    FileType::from_raw_mode(u32::from(stat.stx_mode))
}

/// The rights, with set-user-id, set-group-id and sticky bits.
pub(super) fn rights(stat: &Statx) -> u32 {
    u32::from(stat.stx_mode) & RIGHTS
}

/// A mode of the wire, without what is no right.
pub(super) fn mode(wire: u32) -> Mode {
    Mode::from_raw_mode(wire & RIGHTS)
}

/// Returns whether the mode lends its identity to users who execute the file; Linux takes them away with a
/// write by anybody but root.
pub(super) fn lends_identity(stat: &Statx) -> bool {
    let is_group_id = stat.stx_mode & 0o2010 == 0o2010;
    is_group_id || stat.stx_mode & 0o4000 != 0
}

/// All attributes.
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

/// Those by which a client finds out whether its cache is still good.
pub(super) fn before(stat: &Statx) -> WccAttr {
    WccAttr { size: stat.stx_size, mtime: time(stat.stx_mtime), ctime: time(stat.stx_ctime) }
}

/// A time on the wire, which reaches from 1970 to 2106: others are the nearest of these.
pub(super) fn time(of_file: StatxTimestamp) -> Nfstime3 {
    match u32::try_from(of_file.tv_sec) {
        Ok(seconds) => Nfstime3 { seconds, nseconds: of_file.tv_nsec },
        Err(_) if of_file.tv_sec < 0 => Nfstime3::default(),
        Err(_) => Nfstime3 { seconds: u32::MAX, nseconds: of_file.tv_nsec },
    }
}

fn wire_type(kind: FileType) -> Ftype3 {
    match kind {
        FileType::Directory => Ftype3::Nf3dir,
        FileType::Symlink => Ftype3::Nf3lnk,
        FileType::BlockDevice => Ftype3::Nf3blk,
        FileType::CharacterDevice => Ftype3::Nf3chr,
        FileType::Socket => Ftype3::Nf3sock,
        FileType::Fifo => Ftype3::Nf3fifo,
        FileType::RegularFile | FileType::Unknown => Ftype3::Nf3reg,
    }
}
