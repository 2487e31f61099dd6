//! The functions of libcephfs that are used, and their types, from `cephfs/libcephfs.h` of Ceph 16.2.
//! `tests/ceph/header.c` is compiled against the installed header to check that it declares the same.

use libc::{c_char, c_int, c_uint, c_void, dev_t, dirent, gid_t, mode_t, statvfs, timespec, uid_t};

/// `struct ceph_statx`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CephStatx {
    pub(crate) stx_mask: u32,
    pub(crate) stx_blksize: u32,
    pub(crate) stx_nlink: u32,
    pub(crate) stx_uid: u32,
    pub(crate) stx_gid: u32,
    pub(crate) stx_mode: u16,
    pub(crate) stx_ino: u64,
    pub(crate) stx_size: u64,
    pub(crate) stx_blocks: u64,
    /// Number of the snapshot.
    pub(crate) stx_dev: dev_t,
    pub(crate) stx_rdev: dev_t,
    pub(crate) stx_atime: timespec,
    pub(crate) stx_ctime: timespec,
    pub(crate) stx_mtime: timespec,
    pub(crate) stx_btime: timespec,
    /// Grows by one with each change of the file.
    pub(crate) stx_version: u64,
}

// As in tests/ceph/header.c.
const _: () = {
    assert!(size_of::<CephStatx>() == 136);
    assert!(std::mem::offset_of!(CephStatx, stx_mode) == 20);
    assert!(std::mem::offset_of!(CephStatx, stx_ino) == 24);
    assert!(std::mem::offset_of!(CephStatx, stx_atime) == 64);
    assert!(std::mem::offset_of!(CephStatx, stx_version) == 128);
};

/// `vinodeno_t`: number of a file, and of its snapshot.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Vino {
    pub(crate) ino: u64,
    pub(crate) snapid: u64,
}

/// All attributes.
pub(super) const CEPH_STATX_ALL_STATS: c_uint = 0x1fff;
pub(crate) const CEPH_SETATTR_MODE: c_int = 1;
pub(crate) const CEPH_SETATTR_UID: c_int = 1 << 1;
pub(crate) const CEPH_SETATTR_GID: c_int = 1 << 2;
pub(crate) const CEPH_SETATTR_MTIME: c_int = 1 << 3;
pub(crate) const CEPH_SETATTR_ATIME: c_int = 1 << 4;
pub(crate) const CEPH_SETATTR_SIZE: c_int = 1 << 5;

macro_rules! opaque {
    ($($name:ident),+) => {$(
        #[repr(C)]
        pub(super) struct $name {
            _opaque: [u8; 0],
        }
    )+};
}

opaque!(Mount, UserPerm, Inode, Fh, Dir);

#[link(name = "cephfs")]
unsafe extern "C" {
    pub(super) fn ceph_create(mount: *mut *mut Mount, id: *const c_char) -> c_int;
    pub(super) fn ceph_conf_read_file(mount: *mut Mount, paths: *const c_char) -> c_int;
    pub(super) fn ceph_conf_parse_env(mount: *mut Mount, variable: *const c_char) -> c_int;
    pub(super) fn ceph_conf_set(
        mount: *mut Mount,
        option: *const c_char,
        value: *const c_char,
    ) -> c_int;
    pub(super) fn ceph_mount(mount: *mut Mount, root: *const c_char) -> c_int;
    pub(super) fn ceph_unmount(mount: *mut Mount) -> c_int;
    pub(super) fn ceph_abort_conn(mount: *mut Mount) -> c_int;
    pub(super) fn ceph_release(mount: *mut Mount) -> c_int;
    pub(super) fn ceph_get_instance_id(mount: *mut Mount) -> u64;
    pub(super) fn ceph_userperm_new(
        uid: uid_t,
        gid: gid_t,
        count: c_int,
        groups: *mut gid_t,
    ) -> *mut UserPerm;
    pub(super) fn ceph_userperm_destroy(user: *mut UserPerm);
    pub(super) fn ceph_ll_lookup_root(mount: *mut Mount, root: *mut *mut Inode) -> c_int;
    pub(super) fn ceph_ll_lookup_vino(
        mount: *mut Mount,
        vino: Vino,
        inode: *mut *mut Inode,
    ) -> c_int;
    pub(super) fn ceph_ll_lookup(
        mount: *mut Mount,
        parent: *mut Inode,
        name: *const c_char,
        inode: *mut *mut Inode,
        stat: *mut CephStatx,
        want: c_uint,
        flags: c_uint,
        user: *const UserPerm,
    ) -> c_int;
    pub(super) fn ceph_ll_put(mount: *mut Mount, inode: *mut Inode) -> c_int;
    pub(super) fn ceph_ll_getattr(
        mount: *mut Mount,
        inode: *mut Inode,
        stat: *mut CephStatx,
        want: c_uint,
        flags: c_uint,
        user: *const UserPerm,
    ) -> c_int;
    pub(super) fn ceph_ll_setattr(
        mount: *mut Mount,
        inode: *mut Inode,
        stat: *mut CephStatx,
        mask: c_int,
        user: *const UserPerm,
    ) -> c_int;
    pub(super) fn ceph_ll_getxattr(
        mount: *mut Mount,
        inode: *mut Inode,
        name: *const c_char,
        value: *mut c_void,
        length: usize,
        user: *const UserPerm,
    ) -> c_int;
    pub(super) fn ceph_ll_open(
        mount: *mut Mount,
        inode: *mut Inode,
        flags: c_int,
        file: *mut *mut Fh,
        user: *const UserPerm,
    ) -> c_int;
    pub(super) fn ceph_ll_read(
        mount: *mut Mount,
        file: *mut Fh,
        offset: i64,
        length: u64,
        into: *mut c_char,
    ) -> c_int;
    pub(super) fn ceph_ll_write(
        mount: *mut Mount,
        file: *mut Fh,
        offset: i64,
        length: u64,
        data: *const c_char,
    ) -> c_int;
    pub(super) fn ceph_ll_fsync(mount: *mut Mount, file: *mut Fh, only_data: c_int) -> c_int;
    pub(super) fn ceph_ll_sync_inode(
        mount: *mut Mount,
        inode: *mut Inode,
        only_data: c_int,
    ) -> c_int;
    pub(super) fn ceph_ll_close(mount: *mut Mount, file: *mut Fh) -> c_int;
    pub(super) fn ceph_ll_create(
        mount: *mut Mount,
        parent: *mut Inode,
        name: *const c_char,
        mode: mode_t,
        flags: c_int,
        inode: *mut *mut Inode,
        file: *mut *mut Fh,
        stat: *mut CephStatx,
        want: c_uint,
        stat_flags: c_uint,
        user: *const UserPerm,
    ) -> c_int;
    pub(super) fn ceph_ll_mknod(
        mount: *mut Mount,
        parent: *mut Inode,
        name: *const c_char,
        mode: mode_t,
        device: dev_t,
        inode: *mut *mut Inode,
        stat: *mut CephStatx,
        want: c_uint,
        flags: c_uint,
        user: *const UserPerm,
    ) -> c_int;
    pub(super) fn ceph_ll_mkdir(
        mount: *mut Mount,
        parent: *mut Inode,
        name: *const c_char,
        mode: mode_t,
        inode: *mut *mut Inode,
        stat: *mut CephStatx,
        want: c_uint,
        flags: c_uint,
        user: *const UserPerm,
    ) -> c_int;
    pub(super) fn ceph_ll_symlink(
        mount: *mut Mount,
        parent: *mut Inode,
        name: *const c_char,
        text: *const c_char,
        inode: *mut *mut Inode,
        stat: *mut CephStatx,
        want: c_uint,
        flags: c_uint,
        user: *const UserPerm,
    ) -> c_int;
    pub(super) fn ceph_ll_link(
        mount: *mut Mount,
        inode: *mut Inode,
        parent: *mut Inode,
        name: *const c_char,
        user: *const UserPerm,
    ) -> c_int;
    pub(super) fn ceph_ll_unlink(
        mount: *mut Mount,
        parent: *mut Inode,
        name: *const c_char,
        user: *const UserPerm,
    ) -> c_int;
    pub(super) fn ceph_ll_rmdir(
        mount: *mut Mount,
        parent: *mut Inode,
        name: *const c_char,
        user: *const UserPerm,
    ) -> c_int;
    pub(super) fn ceph_ll_rename(
        mount: *mut Mount,
        from: *mut Inode,
        name: *const c_char,
        to: *mut Inode,
        new_name: *const c_char,
        user: *const UserPerm,
    ) -> c_int;
    pub(super) fn ceph_ll_readlink(
        mount: *mut Mount,
        link: *mut Inode,
        into: *mut c_char,
        length: usize,
        user: *const UserPerm,
    ) -> c_int;
    pub(super) fn ceph_ll_statfs(mount: *mut Mount, root: *mut Inode, space: *mut statvfs)
    -> c_int;
    pub(super) fn ceph_ll_opendir(
        mount: *mut Mount,
        inode: *mut Inode,
        directory: *mut *mut Dir,
        user: *const UserPerm,
    ) -> c_int;
    pub(super) fn ceph_ll_releasedir(mount: *mut Mount, directory: *mut Dir) -> c_int;
    pub(super) fn ceph_seekdir(mount: *mut Mount, directory: *mut Dir, offset: i64);
    pub(super) fn ceph_readdirplus_r(
        mount: *mut Mount,
        directory: *mut Dir,
        entry: *mut dirent,
        stat: *mut CephStatx,
        want: c_uint,
        flags: c_uint,
        inode: *mut *mut Inode,
    ) -> c_int;
}
