//! FSSTAT, FSINFO, PATHCONF, and other properties of file system types.

use super::tree::Tree;
use crate::protocol::Fsstat3resok;
use crate::server::errors::OrStatus;
use crate::server::file_system::{Abilities, Outcome};
use rustix::fd::OwnedFd;
use rustix::fs::{fstatfs, fstatvfs};
use rustix::io;
use rustix::system::sysinfo;

/// Number of links that any unknown file system supports.
const LINKS_MAX: u32 = 255;

/// By the magic number of statfs(2), with the maximum number of links of their files.
const LOCAL: [(u32, u32); 9] = [
    (0x0000_ef53, 65_000),          // ext2, ext3, ext4
    (0x5846_5342, i32::MAX as u32), // xfs
    (0x9123_683e, 65_535),          // btrfs
    (TMPFS, i32::MAX as u32),       // tmpfs
    (0xf2f5_2010, 65_535),          // f2fs
    (0xca45_1a4e, 65_535),          // bcachefs
    (0x2fc1_2fc1, LINKS_MAX),       // zfs
    (OVERLAYFS, LINKS_MAX),         // overlayfs
    (RAMFS, LINKS_MAX),             // ramfs
];
pub(super) const OVERLAYFS: u32 = 0x794c_7630;
const TMPFS: u32 = 0x0102_1994;
const RAMFS: u32 = 0x8584_58f6;

#[derive(Clone, Copy, Debug)]
pub(super) struct FileSystemKind {
    /// Attributes of an open file come from memory. Others (NFS, FUSE, ...) may ask a slow server.
    pub(super) answers_at_once: bool,
    /// The same holds for its data: tmpfs on a host that has no swap space now, and ramfs.
    pub(super) is_in_memory: bool,
    pub(super) abilities: Abilities,
}

impl FileSystemKind {
    pub(super) fn of(root: &OwnedFd) -> io::Result<Self> {
        let magic = fstatfs(root)?.f_type as u32;
        let local = LOCAL.iter().find(|(number, _)| *number == magic);
        let abilities = Abilities {
            name_bytes_max: u32::try_from(fstatvfs(root)?.f_namemax).unwrap_or(u32::MAX),
            links_max: local.map_or(LINKS_MAX, |(_, links)| *links),
        };
        Ok(Self {
            answers_at_once: local.is_some(),
            is_in_memory: magic == RAMFS || magic == TMPFS && sysinfo().totalswap == 0,
            abilities,
        })
    }
}

impl Tree {
    pub(super) fn space(&self) -> Outcome<Fsstat3resok> {
        let room = fstatvfs(&self.root_directory).or_status()?;
        let bytes = |blocks: u64| blocks.saturating_mul(room.f_frsize);
        Ok(Fsstat3resok {
            tbytes: bytes(room.f_blocks),
            fbytes: bytes(room.f_bfree),
            abytes: bytes(room.f_bavail),
            tfiles: room.f_files,
            ffiles: room.f_ffree,
            afiles: room.f_favail,
            ..Fsstat3resok::default()
        })
    }
}
