//! Converts the attributes of libcephfs to the types of RFC 1813 section 2.6.

use crate::protocol::{Fattr3, Ftype3, Nfsstat3, Nfstime3, Specdata3, WccAttr};
use crate::server::file_system::{FileKey, Outcome};
use crate::server::unix::{BLOCK_BYTES, RIGHTS, wire_time, wire_type};
use crate::sys::ceph::{CephStatx, Vino};
use libc::timespec;
use rustix::fs::{FileType, major, makedev, minor};

const KEY_BYTES: usize = 16;
/// Number of the "snapshot" that is the present (CEPH_NOSNAP).
const PRESENT: u64 = u64::MAX - 1;

#[derive(Clone, Copy)]
pub(super) struct Stat {
    pub(super) vino: Vino,
    pub(super) attributes: Fattr3,
    /// Grows by one with each change.
    version: u64,
    pub(super) born: (u64, u64),
}

impl Stat {
    pub(super) fn new(raw: &CephStatx, fsid: u64) -> Self {
        let mode = u32::from(raw.stx_mode);
        let attributes = Fattr3 {
            r#type: wire_type(FileType::from_raw_mode(mode)),
            mode: mode & RIGHTS,
            nlink: raw.stx_nlink,
            uid: raw.stx_uid,
            gid: raw.stx_gid,
            size: raw.stx_size,
            used: raw.stx_blocks.saturating_mul(BLOCK_BYTES),
            rdev: Specdata3 { specdata1: major(raw.stx_rdev), specdata2: minor(raw.stx_rdev) },
            fsid,
            fileid: raw.stx_ino,
            atime: time(&raw.stx_atime),
            mtime: time(&raw.stx_mtime),
            ctime: time(&raw.stx_ctime),
        };
        let born = (raw.stx_btime.tv_sec.cast_unsigned(), raw.stx_btime.tv_nsec.cast_unsigned());
        let vino = Vino { ino: raw.stx_ino, snapid: raw.stx_dev };
        Self { vino, attributes, version: raw.stx_version, born }
    }

    pub(super) fn key(&self) -> FileKey {
        let mut bytes = [0_u8; KEY_BYTES];
        bytes[..8].copy_from_slice(&self.vino.ino.to_be_bytes());
        bytes[8..].copy_from_slice(&self.vino.snapid.to_be_bytes());
        FileKey::of(&bytes)
    }

    /// Attributes by which a client checks whether its cache is valid, if nothing happened until `after` but
    /// this number of changes, or none: another gateway or a client of Ceph may have come in between.
    pub(super) fn before(&self, after: &Self, changes: u64) -> Option<WccAttr> {
        let Fattr3 { size, mtime, ctime, .. } = self.attributes;
        let all = after.version.wrapping_sub(self.version);
        (all == changes || all == 0).then_some(WccAttr { size, mtime, ctime })
    }

    /// A change of a snapshot would be taken for one of the present, or abort libcephfs.
    pub(super) fn demand_present(&self) -> Outcome<()> {
        if self.vino.snapid == PRESENT { Ok(()) } else { Err(Nfsstat3::Nfs3errStale) }
    }

    pub(super) fn is_directory(&self) -> bool {
        self.attributes.r#type == Ftype3::Nf3dir
    }
}

/// Number of the file of a key. `None` for snapshots, which are not served.
pub(super) fn vino(key: &FileKey) -> Option<Vino> {
    let bytes: &[u8; KEY_BYTES] = key.as_bytes().try_into().ok()?;
    let number = |half: &[u8]| half.try_into().map(u64::from_be_bytes).ok();
    let vino = Vino { ino: number(&bytes[..8])?, snapid: number(&bytes[8..])? };
    (vino.snapid == PRESENT).then_some(vino)
}

pub(super) fn device(wire: &Specdata3) -> u64 {
    makedev(wire.specdata1, wire.specdata2)
}

fn time(of_file: &timespec) -> Nfstime3 {
    wire_time(of_file.tv_sec, u32::try_from(of_file.tv_nsec).unwrap_or_default())
}
