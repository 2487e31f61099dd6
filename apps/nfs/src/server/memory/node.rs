//! A file of any type: attributes and content. Called by `tree`.

use super::content::Content;
use crate::protocol::{
    Fattr3, Ftype3, Nfsstat3, Nfstime3, Sattr3, SetAtime, SetMtime, Specdata3, WccAttr,
};
use crate::server::caller::Caller;
use crate::server::file_system::Outcome;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// Number of a file.
pub(super) type Number = u64;

pub(super) const SET_UID: u32 = 0o4000;
pub(super) const SET_GID: u32 = 0o2000;
pub(super) const STICKY: u32 = 0o1000;
const MODE_BITS: u32 = 0o7777;
/// Cost of a directory entry, besides its name.
const ENTRY_BYTES: u64 = 64;

/// A permission in the mode bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    Execute = 1,
    Write = 2,
    Read = 4,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    atime: Nfstime3,
    mtime: Nfstime3,
    pub(super) ctime: Nfstime3,
}

/// Content of a file, by its type.
#[derive(Debug)]
pub(super) enum Kind {
    File {
        content: Content,
        /// Of the EXCLUSIVE CREATE that created it.
        verifier: Option<[u8; 8]>,
    },
    Directory(Entries),
    Link(Vec<u8>),
    Special(Ftype3, Specdata3),
}

/// The names in a directory. A cookie is used only once: a listing continues where it was, whatever
/// was created and removed meanwhile.
#[derive(Debug)]
pub(super) struct Entries {
    pub(super) parent: Number,
    cookies: BTreeMap<Vec<u8>, u64>,
    by_cookie: BTreeMap<u64, (Vec<u8>, Number)>,
    next_cookie: u64,
}

/// Cookies 1 and 2 are those of `.` and `..`.
pub(super) const COOKIE_OF_PARENT: u64 = 2;

impl Entries {
    pub(super) fn new(parent: Number) -> Self {
        let (cookies, by_cookie) = (BTreeMap::new(), BTreeMap::new());
        Self { parent, cookies, by_cookie, next_cookie: COOKIE_OF_PARENT + 1 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cookies.is_empty()
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<Number> {
        let cookie = self.cookies.get(name)?;
        self.by_cookie.get(cookie).map(|(_, number)| *number)
    }

    pub(super) fn insert(&mut self, name: &[u8], number: Number) {
        self.remove(name);
        self.cookies.insert(name.to_vec(), self.next_cookie);
        self.by_cookie.insert(self.next_cookie, (name.to_vec(), number));
        self.next_cookie += 1;
    }

    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some(cookie) = self.cookies.remove(name) {
            self.by_cookie.remove(&cookie);
        }
    }

    /// Returns whether a listing may have returned this cookie.
    pub(super) fn knows(&self, cookie: u64) -> bool {
        cookie < self.next_cookie
    }

    /// Cookie, name and number of each entry after a cookie, without `.` and `..`.
    pub(super) fn behind(&self, cookie: u64) -> impl Iterator<Item = (u64, &[u8], Number)> {
        let entries = self.by_cookie.range(cookie.saturating_add(1)..);
        entries.map(|(cookie, (name, number))| (*cookie, name.as_slice(), *number))
    }
}

/// Cost of an entry with this name.
pub(super) fn entry_bytes(name: &[u8]) -> u64 {
    ENTRY_BYTES + name.len() as u64
}

pub(super) fn now() -> Nfstime3 {
    SystemTime::now().into()
}

impl Node {
    pub(super) fn new(kind: Kind, mode: u32, caller: &Caller) -> Self {
        let (time, links) = (now(), if matches!(kind, Kind::Directory(_)) { 2 } else { 1 });
        let (uid, gid, mode) = (caller.uid, caller.gid, mode & MODE_BITS);
        Self { kind, mode, links, uid, gid, atime: time, mtime: time, ctime: time }
    }

    pub(super) fn entries(&self) -> Outcome<&Entries> {
        match &self.kind {
            Kind::Directory(entries) => Ok(entries),
            _ => Err(Nfsstat3::Nfs3errNotdir),
        }
    }

    pub(super) fn entries_mut(&mut self) -> Outcome<&mut Entries> {
        match &mut self.kind {
            Kind::Directory(entries) => Ok(entries),
            _ => Err(Nfsstat3::Nfs3errNotdir),
        }
    }

    /// "NFS3ERR_INVAL" for anything but a regular file (RFC 1813 sections 3.3.6 and 3.3.7).
    pub(super) fn content(&self) -> Outcome<&Content> {
        match &self.kind {
            Kind::File { content, .. } => Ok(content),
            _ => Err(Nfsstat3::Nfs3errInval),
        }
    }

    pub(super) fn content_mut(&mut self) -> Outcome<&mut Content> {
        match &mut self.kind {
            Kind::File { content, .. } => Ok(content),
            _ => Err(Nfsstat3::Nfs3errInval),
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory(_))
    }

    /// Bytes stored for it.
    pub(super) fn stored_bytes(&self) -> u64 {
        match &self.kind {
            Kind::File { content, .. } => content.stored_bytes(),
            Kind::Directory(entries) => entries.cookies.keys().map(|name| entry_bytes(name)).sum(),
            Kind::Link(text) => text.len() as u64,
            Kind::Special(..) => 0,
        }
    }

    fn size(&self) -> u64 {
        match &self.kind {
            Kind::File { content, .. } => content.size(),
            Kind::Directory(entries) => (entries.cookies.len() as u64 + 2) * ENTRY_BYTES,
            Kind::Link(text) => text.len() as u64,
            Kind::Special(..) => 0,
        }
    }

    pub(super) fn attributes(&self, fsid: u64, fileid: Number) -> Fattr3 {
        let (r#type, rdev) = match &self.kind {
            Kind::File { .. } => (Ftype3::Nf3reg, Specdata3::default()),
            Kind::Directory(_) => (Ftype3::Nf3dir, Specdata3::default()),
            Kind::Link(_) => (Ftype3::Nf3lnk, Specdata3::default()),
            Kind::Special(kind, device) => (*kind, *device),
        };
        Fattr3 {
            r#type,
            mode: self.mode,
            nlink: self.links,
            uid: self.uid,
            gid: self.gid,
            size: self.size(),
            // That of a directory is not summed up for each call.
            used: if self.is_directory() { self.size() } else { self.stored_bytes() },
            rdev,
            fsid,
            fileid,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
        }
    }

    pub(super) fn wcc(&self) -> WccAttr {
        WccAttr { size: self.size(), mtime: self.mtime, ctime: self.ctime }
    }

    /// Updates the times after a change of its content.
    pub(super) fn touch(&mut self) {
        (self.mtime, self.ctime) = (now(), now());
    }

    /// Updates the times after a change of its attributes.
    pub(super) fn mark(&mut self) {
        self.ctime = now();
    }

    /// Returns whether the mode bits grant the caller a right, by the rules of the Linux kernel.
    pub(super) fn grants(&self, caller: &Caller, right: Right) -> bool {
        let right_bit = right as u32;
        if caller.uid == 0 {
            return right != Right::Execute || self.is_directory() || self.mode & 0o111 != 0;
        }
        let shift = match () {
            () if caller.uid == self.uid => 6,
            () if is_member(caller, self.gid) => 3,
            () => 0,
        };
        self.mode >> shift & right_bit != 0
    }

    pub(super) fn demand(&self, caller: &Caller, right: Right) -> Outcome<()> {
        allow(self.grants(caller, right), Nfsstat3::Nfs3errAcces)
    }

    /// Like [`Node::demand`], except that a client checks the mode when it opens a file, and it may
    /// have changed since: "the server's permission checking algorithm should allow the owner of a
    /// file to access it regardless of the permission setting" (RFC 1813 section 4.4).
    pub(super) fn demand_data(&self, caller: &Caller, right: Right) -> Outcome<()> {
        // A caller who may execute a program must be able to read it here, for the same reason.
        let runs = right == Right::Read && self.grants(caller, Right::Execute);
        let may = caller.uid == self.uid || runs || self.grants(caller, right);
        allow(may, Nfsstat3::Nfs3errAcces)
    }

    fn is_owned(&self, caller: &Caller) -> bool {
        caller.uid == 0 || caller.uid == self.uid
    }

    /// Checks that the caller may make all changes of `new`.
    pub(super) fn check_change(&self, caller: &Caller, new: &Sattr3) -> Outcome<()> {
        let perm = Nfsstat3::Nfs3errPerm;
        if new.mode.is_some() {
            allow(self.is_owned(caller), perm)?;
        }
        if let Some(uid) = new.uid {
            allow(caller.uid == 0 || (caller.uid == self.uid && uid == self.uid), perm)?;
        }
        if let Some(gid) = new.gid {
            let is_own = self.is_owned(caller) && (is_member(caller, gid) || gid == self.gid);
            allow(caller.uid == 0 || is_own, perm)?;
        }
        if new.size.is_some() {
            self.content()?;
            self.demand_data(caller, Right::Write)?;
        }
        self.check_times(caller, new)
    }

    /// The owner may set any time; a caller with write permission may set the current one.
    fn check_times(&self, caller: &Caller, new: &Sattr3) -> Outcome<()> {
        let sets = matches!(new.atime, SetAtime::SetToClientTime(_))
            || matches!(new.mtime, SetMtime::SetToClientTime(_));
        let touches = matches!(new.atime, SetAtime::SetToServerTime)
            || matches!(new.mtime, SetMtime::SetToServerTime);
        if self.is_owned(caller) {
            return Ok(());
        }
        allow(!sets, Nfsstat3::Nfs3errPerm)?;
        if touches { self.demand(caller, Right::Write) } else { Ok(()) }
    }

    /// Makes the changes of `new`; permissions were checked before.
    pub(super) fn change(&mut self, caller: &Caller, new: &Sattr3) {
        self.change_owner(caller, new);
        if let Some(mode) = new.mode {
            self.mode = mode & MODE_BITS;
            if caller.uid != 0 && !is_member(caller, self.gid) {
                self.mode &= !SET_GID;
            }
        }
        if let (Some(size), Ok(content)) = (new.size, self.content_mut()) {
            content.set_size(size);
            self.mtime = now();
            self.drop_privileges(caller);
        }
        self.change_times(new);
        self.mark();
    }

    fn change_owner(&mut self, caller: &Caller, new: &Sattr3) {
        let before = (self.uid, self.gid);
        if let Some(uid) = new.uid {
            self.uid = uid;
        }
        if let Some(gid) = new.gid {
            self.gid = gid;
        }
        if before != (self.uid, self.gid) && !self.is_directory() {
            self.drop_privileges(caller);
        }
    }

    fn change_times(&mut self, new: &Sattr3) {
        match new.atime {
            SetAtime::DontChange => {}
            SetAtime::SetToServerTime => self.atime = now(),
            SetAtime::SetToClientTime(time) => self.atime = time,
        }
        match new.mtime {
            SetMtime::DontChange => {}
            SetMtime::SetToServerTime => self.mtime = now(),
            SetMtime::SetToClientTime(time) => self.mtime = time,
        }
    }

    /// A program changed by another user no longer runs as its owner.
    pub(super) fn drop_privileges(&mut self, caller: &Caller) {
        if caller.uid != 0 {
            self.mode &= !SET_UID;
            // Without execute permission, the bit has another meaning.
            if self.mode & 0o010 != 0 {
                self.mode &= !SET_GID;
            }
        }
    }
}

/// NFS3ERR_PERM for a device that the caller may not make: only root makes them.
pub(super) fn demand_device(caller: &Caller, kind: Ftype3) -> Outcome<()> {
    let is_device = matches!(kind, Ftype3::Nf3chr | Ftype3::Nf3blk);
    allow(caller.uid == 0 || !is_device, Nfsstat3::Nfs3errPerm)
}

fn is_member(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid || caller.groups.as_slice().contains(&gid)
}

fn allow(may: bool, status: Nfsstat3) -> Outcome<()> {
    if may { Ok(()) } else { Err(status) }
}
