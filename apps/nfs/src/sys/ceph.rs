//! A mount of CephFS through libcephfs, for the back end `cephfs`.
//!
//! All calls may wait for the cluster, so none is for a core. They take the number of the user and of
//! the group that own new files; permissions are not checked here.
//!
//! libcephfs may be called from any number of threads at a time once it is mounted: it takes its own
//! lock. It never calls back, and keeps none of the memory that it is passed, with one exception: lists
//! of groups (`ceph_userperm_new`), which it refers to until the metadata server has journaled a change.
//! For that reason no list is passed.

mod raw;

use libc::{c_char, c_int, dirent, statvfs};
pub(crate) use raw::{
    CEPH_SETATTR_ATIME, CEPH_SETATTR_GID, CEPH_SETATTR_MODE, CEPH_SETATTR_MTIME, CEPH_SETATTR_SIZE,
    CEPH_SETATTR_UID, CephStatx, Vino,
};
use raw::{CEPH_STATX_ALL_STATS as ALL, Ino, Mnt};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::mem::{MaybeUninit, zeroed};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum length of the target of a symbolic link, as in the Linux kernel.
const LINK_BYTES_MAX: usize = 4096;

/// Length of a number in decimal digits.
const COUNT_BYTES_MAX: usize = 24;

const MOUNT_SECONDS: &CStr = c"30";

pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// A mount, which ends with the last of the files that were found in it.
pub(crate) struct Mount {
    raw: NonNull<raw::Mount>,
    /// For all calls that make no file.
    root: User,
    is_mounted: bool,
    is_abandoned: AtomicBool,
}

// SAFETY: libcephfs locks (see the module); what is not locked, its configuration and its start, happens
// before the value is shared, and its end when it is not shared any more. The user is only read.
unsafe impl Send for Mount {}
// SAFETY: as above.
unsafe impl Sync for Mount {}

/// A file that was found: its number is not used for another meanwhile.
pub(crate) struct Inode {
    mount: Arc<Mount>,
    raw: NonNull<raw::Inode>,
}

// SAFETY: only passed to libcephfs, which locks; it is released once, by `drop`.
unsafe impl Send for Inode {}
// SAFETY: as above.
unsafe impl Sync for Inode {}

pub(crate) struct OpenFile {
    mount: Arc<Mount>,
    raw: NonNull<raw::Fh>,
}

// SAFETY: only passed to libcephfs, which locks; it is closed once, by `drop`.
unsafe impl Send for OpenFile {}
// SAFETY: as above.
unsafe impl Sync for OpenFile {}

struct User(NonNull<raw::UserPerm>);

struct Listing<'a> {
    directory: &'a Inode,
    raw: NonNull<raw::Dir>,
}

/// Owner of new files: a user and a group.
pub(crate) type Owner = (u32, u32);

pub(crate) struct Entry<'a> {
    pub(crate) name: &'a CStr,
    pub(crate) fileid: u64,
    /// Position after it.
    pub(crate) cookie: u64,
    /// If requested. That of `..` may be wrong.
    pub(crate) stat: Option<CephStatx>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Configure,
    Mount,
}

impl Mount {
    /// Mounts a directory of CephFS. The cluster, the client's name and its key are those of
    /// `ceph.conf` (or the file named by the environment variable `CEPH_CONF`) and of `CEPH_ARGS`.
    /// Waits for the cluster for 30 seconds at most.
    pub(crate) fn open(root: &CStr) -> std::result::Result<Arc<Self>, (Step, Errno)> {
        let mut mount = Self::create().map_err(|error| (Step::Configure, error))?;
        mount.configure().map_err(|error| (Step::Configure, error))?;
        // SAFETY: it was created, and is not mounted; the path ends with a zero.
        let mounted = unsafe { raw::ceph_mount(mount.raw.as_ptr(), root.as_ptr()) };
        checked(mounted).map_err(|error| (Step::Mount, error))?;
        mount.is_mounted = true;
        Ok(Arc::new(mount))
    }

    fn create() -> Result<Self> {
        let mut raw = ptr::null_mut();
        let id = id_of(&std::env::var("CEPH_ARGS").unwrap_or_default()).map(text).transpose()?;
        let id = id.as_ref().map_or(ptr::null(), |id| id.as_ptr());
        let root = User::new((0, 0))?;
        // SAFETY: writes a pointer to `raw` if it succeeds; the id, if not null, ends with a zero, and is
        // copied.
        checked(unsafe { raw::ceph_create(&raw mut raw, id) })?;
        let raw = NonNull::new(raw).ok_or(Errno::NOMEM)?;
        Ok(Self { raw, root, is_mounted: false, is_abandoned: AtomicBool::new(false) })
    }

    fn configure(&mut self) -> Result<()> {
        let raw = self.raw.as_ptr();
        // SAFETY: it was created, and is not mounted. Null stands for the usual files and variable.
        checked(unsafe { raw::ceph_conf_read_file(raw, ptr::null()) })?;
        // SAFETY: as above.
        checked(unsafe { raw::ceph_conf_parse_env(raw, ptr::null()) })?;
        let settings = [
            // Permissions are checked by the caller, as by the kernel before a FUSE client is called.
            (c"fuse_default_permissions", c"true"),
            (c"client_permissions", c"false"),
            (c"client_mount_timeout", MOUNT_SECONDS),
            // The name of the directory of snapshots: one that is never looked up, so that there are none.
            (c"client_snapdir", c"/"),
        ];
        for (option, value) in settings {
            // SAFETY: as above; both end with a zero, and are copied.
            checked(unsafe { raw::ceph_conf_set(raw, option.as_ptr(), value.as_ptr()) })?;
        }
        Ok(())
    }

    /// Number of this client of Ceph, as in `ceph tell mds.* client ls`.
    pub(crate) fn client(&self) -> u64 {
        // SAFETY: it is mounted.
        unsafe { raw::ceph_get_instance_id(self.raw.as_ptr()) }
    }

    /// Does not wait for the cluster, which rejects the mount: data that were not written are dropped.
    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }

    pub(crate) fn root(self: &Arc<Self>) -> Result<Inode> {
        self.inode(|raw, inode| {
            // SAFETY: `raw` is mounted; writes a pointer to `inode`, with a reference for us.
            unsafe { raw::ceph_ll_lookup_root(raw, inode) }
        })
    }

    /// The file with a number. ESTALE if there is none.
    pub(crate) fn find(self: &Arc<Self>, vino: Vino) -> Result<Inode> {
        self.inode(|raw, inode| {
            // SAFETY: as above.
            unsafe { raw::ceph_ll_lookup_vino(raw, vino, inode) }
        })
    }

    fn inode(self: &Arc<Self>, find: impl FnOnce(Mnt, *mut Ino) -> c_int) -> Result<Inode> {
        let mut inode = ptr::null_mut();
        checked(find(self.raw.as_ptr(), &raw mut inode))?;
        let raw = NonNull::new(inode).ok_or(Errno::STALE)?;
        Ok(Inode { mount: Arc::clone(self), raw })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let raw = self.raw.as_ptr();
        // SAFETY: the last reference: no file of it is left, and no thread uses it. It is unmounted once
        // and then released, as libcephfs demands.
        unsafe {
            if self.is_mounted && *self.is_abandoned.get_mut() {
                raw::ceph_abort_conn(raw);
            } else if self.is_mounted {
                raw::ceph_unmount(raw);
            }
            raw::ceph_release(raw);
        }
    }
}

impl User {
    fn new((uid, gid): Owner) -> Result<Self> {
        // SAFETY: no list is passed, so nothing must outlive it.
        let raw = unsafe { raw::ceph_userperm_new(uid, gid, 0, ptr::null_mut()) };
        NonNull::new(raw).map(Self).ok_or(Errno::NOMEM)
    }

    fn raw(&self) -> raw::User {
        self.0.as_ptr()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // SAFETY: made by `ceph_userperm_new`; calls that got it have returned, and copied it.
        unsafe { raw::ceph_userperm_destroy(self.0.as_ptr()) }
    }
}

impl Inode {
    fn mount(&self) -> Mnt {
        self.mount.raw.as_ptr()
    }

    fn same_mount(&self, other: &Self) -> Result<Mnt> {
        match Arc::ptr_eq(&self.mount, &other.mount) {
            true => Ok(self.mount()),
            false => Err(Errno::XDEV),
        }
    }

    fn raw(&self) -> Ino {
        self.raw.as_ptr()
    }

    fn root(&self) -> raw::User {
        self.mount.root.raw()
    }

    /// From memory if the metadata server has granted the right to cache all attributes, else by that server.
    pub(crate) fn stat(&self) -> Result<CephStatx> {
        filled(|stat| {
            // SAFETY: mount, file and user are alive; fills `stat`.
            unsafe { raw::ceph_ll_getattr(self.mount(), self.raw(), stat, ALL, 0, self.root()) }
        })
    }

    /// Asks the metadata server for the attributes of this directory, whatever capabilities say.
    pub(crate) fn refresh(&self) -> Result<()> {
        let name = c"ceph.dir.entries".as_ptr();
        let mut value = [0_u8; COUNT_BYTES_MAX];
        let into = value.as_mut_ptr().cast();
        // SAFETY: mount, file and user are alive; the name ends with a zero; writes at most so many bytes.
        counted(unsafe {
            let bytes = COUNT_BYTES_MAX;
            raw::ceph_ll_getxattr(self.mount(), self.raw(), name, into, bytes, self.root())
        })
        .map(drop)
    }

    /// Sets attributes, those of `mask`. After an error some of them may be set.
    pub(crate) fn set(&self, mut new: CephStatx, mask: c_int) -> Result<()> {
        // SAFETY: as above; `new` is read, and may be written.
        checked(unsafe {
            raw::ceph_ll_setattr(self.mount(), self.raw(), &raw mut new, mask, self.root())
        })
    }

    /// Looks up a name in this directory; does not follow symbolic links.
    pub(crate) fn lookup(&self, name: &CStr) -> Result<(Self, CephStatx)> {
        let name = name.as_ptr();
        self.found(|mount, found, stat| {
            // SAFETY: as above; the name ends with a zero; writes a pointer, with a reference for us.
            unsafe {
                raw::ceph_ll_lookup(mount, self.raw(), name, found, stat, ALL, 0, self.root())
            }
        })
    }

    pub(crate) fn create(&self, name: &CStr, mode: u32, owner: Owner) -> Result<(Self, CephStatx)> {
        let (user, name, mut opened) = (User::new(owner)?, name.as_ptr(), ptr::null_mut());
        let how = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
        let made = self.found(|mount, found, stat| {
            let (parent, opened, user) = (self.raw(), &raw mut opened, user.raw());
            // SAFETY: as above; also writes a pointer to an open file, which is ours.
            unsafe {
                raw::ceph_ll_create(
                    mount, parent, name, mode, how, found, opened, stat, ALL, 0, user,
                )
            }
        });
        if let (Ok(_), Some(raw)) = (&made, NonNull::new(opened)) {
            drop(OpenFile { mount: Arc::clone(&self.mount), raw });
        }
        made
    }

    /// Creates a device, a socket or a FIFO; the type is in the mode.
    pub(crate) fn make_special(
        &self,
        name: &CStr,
        mode: u32,
        device: u64,
        owner: Owner,
    ) -> Result<(Self, CephStatx)> {
        let (user, name) = (User::new(owner)?, name.as_ptr());
        self.found(|mount, found, stat| {
            let (parent, user) = (self.raw(), user.raw());
            // SAFETY: as in `lookup`.
            unsafe {
                raw::ceph_ll_mknod(mount, parent, name, mode, device, found, stat, ALL, 0, user)
            }
        })
    }

    pub(crate) fn make_directory(
        &self,
        name: &CStr,
        mode: u32,
        owner: Owner,
    ) -> Result<(Self, CephStatx)> {
        let (user, name) = (User::new(owner)?, name.as_ptr());
        self.found(|mount, found, stat| {
            let (parent, user) = (self.raw(), user.raw());
            // SAFETY: as in `lookup`.
            unsafe { raw::ceph_ll_mkdir(mount, parent, name, mode, found, stat, ALL, 0, user) }
        })
    }

    pub(crate) fn make_link(
        &self,
        name: &CStr,
        text: &CStr,
        owner: Owner,
    ) -> Result<(Self, CephStatx)> {
        let (user, name, text) = (User::new(owner)?, name.as_ptr(), text.as_ptr());
        self.found(|mount, found, stat| {
            let (parent, user) = (self.raw(), user.raw());
            // SAFETY: as in `lookup`; the text ends with a zero as well.
            unsafe { raw::ceph_ll_symlink(mount, parent, name, text, found, stat, ALL, 0, user) }
        })
    }

    pub(crate) fn link(&self, directory: &Self, name: &CStr) -> Result<()> {
        let (mount, name) = (self.same_mount(directory)?, name.as_ptr());
        // SAFETY: as in `lookup`; both files are of this mount.
        checked(unsafe { raw::ceph_ll_link(mount, self.raw(), directory.raw(), name, self.root()) })
    }

    pub(crate) fn unlink(&self, name: &CStr) -> Result<()> {
        // SAFETY: as in `lookup`.
        checked(unsafe {
            raw::ceph_ll_unlink(self.mount(), self.raw(), name.as_ptr(), self.root())
        })
    }

    pub(crate) fn remove_directory(&self, name: &CStr) -> Result<()> {
        // SAFETY: as in `lookup`.
        checked(unsafe { raw::ceph_ll_rmdir(self.mount(), self.raw(), name.as_ptr(), self.root()) })
    }

    pub(crate) fn rename(&self, name: &CStr, to: &Self, new_name: &CStr) -> Result<()> {
        let (mount, name, new_name) = (self.same_mount(to)?, name.as_ptr(), new_name.as_ptr());
        // SAFETY: as in `link`.
        checked(unsafe {
            raw::ceph_ll_rename(mount, self.raw(), name, to.raw(), new_name, self.root())
        })
    }

    pub(crate) fn read_link(&self) -> Result<Vec<u8>> {
        let mut text = vec![0_u8; LINK_BYTES_MAX];
        let into = text.as_mut_ptr().cast::<c_char>();
        // SAFETY: as above; writes at most so many bytes to `text`.
        let bytes = unsafe {
            raw::ceph_ll_readlink(self.mount(), self.raw(), into, LINK_BYTES_MAX, self.root())
        };
        text.truncate(counted(bytes)?);
        Ok(text)
    }

    pub(crate) fn space(&self) -> Result<statvfs> {
        // SAFETY: numbers, of which zero is a value.
        let mut space: statvfs = unsafe { zeroed() };
        // SAFETY: as above; fills `space`.
        checked(unsafe { raw::ceph_ll_statfs(self.mount(), self.raw(), &raw mut space) })?;
        Ok(space)
    }

    /// Waits until changes of this file, or of the names in this directory, are on stable storage.
    pub(crate) fn sync(&self) -> Result<()> {
        // SAFETY: mount and file are alive.
        checked(unsafe { raw::ceph_ll_sync_inode(self.mount(), self.raw(), 0) })
    }

    pub(crate) fn open_to_read(&self) -> Result<OpenFile> {
        self.open(libc::O_RDONLY)
    }

    /// Not in a snapshot: libcephfs aborts when one is written to.
    pub(crate) fn open_to_write(&self) -> Result<OpenFile> {
        self.open(libc::O_RDWR)
    }

    fn open(&self, flags: libc::c_int) -> Result<OpenFile> {
        let mut file = ptr::null_mut();
        // SAFETY: as above; writes a pointer to an open file, which is ours.
        checked(unsafe {
            raw::ceph_ll_open(self.mount(), self.raw(), flags, &raw mut file, self.root())
        })?;
        let raw = NonNull::new(file).ok_or(Errno::IO)?;
        Ok(OpenFile { mount: Arc::clone(&self.mount), raw })
    }

    /// `.` and `..` included, until `take` returns `false`. Returns whether the end was reached.
    pub(crate) fn list(
        &self,
        cookie: u64,
        with_stat: bool,
        take: &mut dyn FnMut(&Entry<'_>) -> bool,
    ) -> Result<bool> {
        let listing = Listing::open(self, cookie)?;
        // SAFETY: numbers and bytes, of which zero is a value.
        let mut raw: dirent = unsafe { zeroed() };
        while let Some(stat) = listing.next(&mut raw, with_stat)? {
            // SAFETY: libcephfs ends the name with a zero within the entry, which lives for the loop.
            let name = unsafe { CStr::from_ptr(raw.d_name.as_ptr()) };
            let cookie = raw.d_off.cast_unsigned();
            if !take(&Entry { name, fileid: raw.d_ino, cookie, stat: with_stat.then_some(stat) }) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn found(
        &self,
        find: impl FnOnce(Mnt, *mut Ino, *mut CephStatx) -> c_int,
    ) -> Result<(Self, CephStatx)> {
        let mut inode = ptr::null_mut();
        let stat = filled(|stat| find(self.mount(), &raw mut inode, stat))?;
        let raw = NonNull::new(inode).ok_or(Errno::IO)?;
        Ok((Self { mount: Arc::clone(&self.mount), raw }, stat))
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        // SAFETY: gives back the reference that a call of libcephfs gave us, once.
        unsafe { raw::ceph_ll_put(self.mount(), self.raw()) };
    }
}

impl<'a> Listing<'a> {
    fn open(directory: &'a Inode, cookie: u64) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: as above; writes a pointer to a listing, which is ours.
        checked(unsafe {
            raw::ceph_ll_opendir(directory.mount(), directory.raw(), &raw mut raw, directory.root())
        })?;
        let listing = Self { directory, raw: NonNull::new(raw).ok_or(Errno::IO)? };
        if cookie != 0 {
            // SAFETY: the listing is open, and used by this thread only.
            unsafe { raw::ceph_seekdir(directory.mount(), raw, cookie.cast_signed()) };
        }
        Ok(listing)
    }

    fn next(&self, entry: &mut dirent, with_stat: bool) -> Result<Option<CephStatx>> {
        let (want, flags) = match with_stat {
            true => (ALL, 0),
            false => (0, libc::AT_STATX_DONT_SYNC.cast_unsigned()),
        };
        let (mount, listing, mut found) = (self.directory.mount(), self.raw.as_ptr(), 0);
        let stat = filled(|stat| {
            // SAFETY: as above; fills the entry and the attributes, which it gives zeros if there are none.
            found = unsafe {
                let inode = ptr::null_mut();
                raw::ceph_readdirplus_r(mount, listing, entry, stat, want, flags, inode)
            };
            found.min(0)
        })?;
        Ok((found > 0).then_some(stat))
    }
}

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        // SAFETY: opened by `ceph_ll_opendir`, closed once.
        unsafe { raw::ceph_ll_releasedir(self.directory.mount(), self.raw.as_ptr()) };
    }
}

impl OpenFile {
    /// Reads; fewer bytes than requested only at the end of the file.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let offset = i64::try_from(offset).map_err(|_| Errno::FBIG)?;
        let (bytes, into) = (into.len() as u64, into.as_mut_ptr().cast());
        // SAFETY: mount and file are alive; writes at most so many bytes.
        counted(unsafe {
            raw::ceph_ll_read(self.mount.raw.as_ptr(), self.raw.as_ptr(), offset, bytes, into)
        })
    }

    /// Writes, to memory of libcephfs or to the cluster; returns the number of bytes.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<usize> {
        let offset = i64::try_from(offset).map_err(|_| Errno::FBIG)?;
        let (bytes, data) = (data.len() as u64, data.as_ptr().cast());
        // SAFETY: mount and file are alive; reads so many bytes, and copies them.
        counted(unsafe {
            raw::ceph_ll_write(self.mount.raw.as_ptr(), self.raw.as_ptr(), offset, bytes, data)
        })
    }

    /// An error of earlier write-back is reported once per open file.
    pub(crate) fn sync(&self) -> Result<()> {
        // SAFETY: mount and file are alive.
        checked(unsafe { raw::ceph_ll_fsync(self.mount.raw.as_ptr(), self.raw.as_ptr(), 0) })
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // SAFETY: opened by libcephfs for us, closed once.
        unsafe { raw::ceph_ll_close(self.mount.raw.as_ptr(), self.raw.as_ptr()) };
    }
}

/// The id in the arguments of `CEPH_ARGS`, as programs of Ceph find it: the last of `--id ID`, `--user ID`,
/// `--name client.ID` and `-n client.ID`. libcephfs ignores these arguments.
fn id_of(arguments: &str) -> Option<&[u8]> {
    let mut words = arguments.split_ascii_whitespace();
    let mut id = None;
    while let Some(word) = words.next() {
        let (key, value) = match word.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (word, None),
        };
        let is_name = matches!(key, "--name" | "-n");
        if is_name || matches!(key, "--id" | "--user") {
            let value = value.or_else(|| words.next())?;
            id = Some(if is_name { value.strip_prefix("client.").unwrap_or(value) } else { value });
        }
    }
    id.map(str::as_bytes)
}

pub(crate) fn no_attributes() -> CephStatx {
    // SAFETY: numbers, of which zero is a value.
    unsafe { zeroed() }
}

pub(crate) fn text(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Errno::INVAL)
}

fn filled(fill: impl FnOnce(*mut CephStatx) -> c_int) -> Result<CephStatx> {
    let mut stat = MaybeUninit::<CephStatx>::zeroed();
    checked(fill(stat.as_mut_ptr()))?;
    // SAFETY: numbers, which were zero or have been written.
    Ok(unsafe { stat.assume_init() })
}

fn checked(result: c_int) -> Result<()> {
    counted(result).map(drop)
}

fn counted(result: c_int) -> Result<usize> {
    usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result))
}

#[cfg(test)]
mod tests {
    use super::id_of;

    #[test]
    fn the_id_is_found_among_the_arguments() {
        let none: [&str; 3] = ["", "--log-file=x --debug-ms 1", "--id"];
        assert!(none.iter().all(|arguments| id_of(arguments).is_none()));
        let one = [
            "--id=nfs",
            "--id nfs",
            "--conf x -n client.nfs",
            "--id=x --name=client.nfs",
            "--user nfs",
        ];
        assert!(one.iter().all(|arguments| id_of(arguments) == Some(b"nfs".as_slice())));
    }
}
