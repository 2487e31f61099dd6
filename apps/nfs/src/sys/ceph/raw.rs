//! The functions of libcephfs that are used, and their types, from `cephfs/libcephfs.h` of Ceph 16.2.
//! `tests/ceph/header.c` is compiled against the installed header to check that it declares the same.

use libc::{c_char, c_int, c_uint, c_void, dev_t, dirent, gid_t, mode_t, statvfs, timespec, uid_t};

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

pub(super) const CEPH_STATX_ALL_STATS: c_uint = 0x1fff;
pub(crate) const CEPH_SETATTR_MODE: c_int = 1;
pub(crate) const CEPH_SETATTR_UID: c_int = 1 << 1;
pub(crate) const CEPH_SETATTR_GID: c_int = 1 << 2;
pub(crate) const CEPH_SETATTR_MTIME: c_int = 1 << 3;
pub(crate) const CEPH_SETATTR_ATIME: c_int = 1 << 4;
pub(crate) const CEPH_SETATTR_SIZE: c_int = 1 << 5;

macro_rules! opaque {
    ($($name:ident, $pointer:ident;)+) => {$(
        #[repr(C)]
        pub(super) struct $name {
            _opaque: [u8; 0],
        }
        pub(super) type $pointer = *mut $name;
    )+};
}

opaque! {
    Mount, Mnt;
    UserPerm, UserMut;
    Inode, Ino;
    Fh, File;
    Dir, List;
}
pub(super) type User = *const UserPerm;
type Text = *const c_char;
type Stat = *mut CephStatx;

#[link(name = "cephfs")]
unsafe extern "C" {
    pub(super) fn ceph_create(mount: *mut Mnt, id: Text) -> c_int;
    pub(super) fn ceph_conf_read_file(mount: Mnt, paths: Text) -> c_int;
    pub(super) fn ceph_conf_parse_env(mount: Mnt, variable: Text) -> c_int;
    pub(super) fn ceph_conf_set(mount: Mnt, option: Text, value: Text) -> c_int;
    pub(super) fn ceph_mount(mount: Mnt, root: Text) -> c_int;
    pub(super) fn ceph_unmount(mount: Mnt) -> c_int;
    pub(super) fn ceph_abort_conn(mount: Mnt) -> c_int;
    pub(super) fn ceph_release(mount: Mnt) -> c_int;
    pub(super) fn ceph_get_instance_id(mount: Mnt) -> u64;
    pub(super) fn ceph_userperm_new(
        uid: uid_t,
        gid: gid_t,
        count: c_int,
        groups: *mut gid_t,
    ) -> UserMut;
    pub(super) fn ceph_userperm_destroy(user: UserMut);
    pub(super) fn ceph_ll_lookup_root(mount: Mnt, root: *mut Ino) -> c_int;
    pub(super) fn ceph_ll_lookup_vino(mount: Mnt, vino: Vino, inode: *mut Ino) -> c_int;
    pub(super) fn ceph_ll_lookup(
        mount: Mnt,
        parent: Ino,
        name: Text,
        inode: *mut Ino,
        stat: Stat,
        want: c_uint,
        flags: c_uint,
        user: User,
    ) -> c_int;
    pub(super) fn ceph_ll_put(mount: Mnt, inode: Ino) -> c_int;
    pub(super) fn ceph_ll_getattr(
        mount: Mnt,
        inode: Ino,
        stat: Stat,
        want: c_uint,
        flags: c_uint,
        user: User,
    ) -> c_int;
    pub(super) fn ceph_ll_setattr(
        mount: Mnt,
        inode: Ino,
        stat: Stat,
        mask: c_int,
        user: User,
    ) -> c_int;
    pub(super) fn ceph_ll_getxattr(
        mount: Mnt,
        inode: Ino,
        name: Text,
        value: *mut c_void,
        length: usize,
        user: User,
    ) -> c_int;
    pub(super) fn ceph_ll_open(
        mount: Mnt,
        inode: Ino,
        flags: c_int,
        file: *mut File,
        user: User,
    ) -> c_int;
    pub(super) fn ceph_ll_read(
        mount: Mnt,
        file: File,
        offset: i64,
        length: u64,
        into: *mut c_char,
    ) -> c_int;
    pub(super) fn ceph_ll_write(
        mount: Mnt,
        file: File,
        offset: i64,
        length: u64,
        data: Text,
    ) -> c_int;
    pub(super) fn ceph_ll_fsync(mount: Mnt, file: File, only_data: c_int) -> c_int;
    pub(super) fn ceph_ll_sync_inode(mount: Mnt, inode: Ino, only_data: c_int) -> c_int;
    pub(super) fn ceph_ll_close(mount: Mnt, file: File) -> c_int;
    pub(super) fn ceph_ll_create(
        mount: Mnt,
        parent: Ino,
        name: Text,
        mode: mode_t,
        flags: c_int,
        inode: *mut Ino,
        file: *mut File,
        stat: Stat,
        want: c_uint,
        stat_flags: c_uint,
        user: User,
    ) -> c_int;
    pub(super) fn ceph_ll_mknod(
        mount: Mnt,
        parent: Ino,
        name: Text,
        mode: mode_t,
        device: dev_t,
        inode: *mut Ino,
        stat: Stat,
        want: c_uint,
        flags: c_uint,
        user: User,
    ) -> c_int;
    pub(super) fn ceph_ll_mkdir(
        mount: Mnt,
        parent: Ino,
        name: Text,
        mode: mode_t,
        inode: *mut Ino,
        stat: Stat,
        want: c_uint,
        flags: c_uint,
        user: User,
    ) -> c_int;
    pub(super) fn ceph_ll_symlink(
        mount: Mnt,
        parent: Ino,
        name: Text,
        text: Text,
        inode: *mut Ino,
        stat: Stat,
        want: c_uint,
        flags: c_uint,
        user: User,
    ) -> c_int;
    pub(super) fn ceph_ll_link(
        mount: Mnt,
        inode: Ino,
        parent: Ino,
        name: Text,
        user: User,
    ) -> c_int;
    pub(super) fn ceph_ll_unlink(mount: Mnt, parent: Ino, name: Text, user: User) -> c_int;
    pub(super) fn ceph_ll_rmdir(mount: Mnt, parent: Ino, name: Text, user: User) -> c_int;
    pub(super) fn ceph_ll_rename(
        mount: Mnt,
        from: Ino,
        name: Text,
        to: Ino,
        new_name: Text,
        user: User,
    ) -> c_int;
    pub(super) fn ceph_ll_readlink(
        mount: Mnt,
        link: Ino,
        into: *mut c_char,
        length: usize,
        user: User,
    ) -> c_int;
    pub(super) fn ceph_ll_statfs(mount: Mnt, root: Ino, space: *mut statvfs) -> c_int;
    pub(super) fn ceph_ll_opendir(
        mount: Mnt,
        inode: Ino,
        directory: *mut List,
        user: User,
    ) -> c_int;
    pub(super) fn ceph_ll_releasedir(mount: Mnt, directory: List) -> c_int;
    pub(super) fn ceph_seekdir(mount: Mnt, directory: List, offset: i64);
    pub(super) fn ceph_readdirplus_r(
        mount: Mnt,
        directory: List,
        entry: *mut dirent,
        stat: Stat,
        want: c_uint,
        flags: c_uint,
        inode: *mut Ino,
    ) -> c_int;
}
