//! A file of any type: attributes and content.

use super::content::Content;
use crate::protocol::{Fattr3, Ftype3, Nfsstat3, Nfstime3, Sattr3, SetAtime, Specdata3, WccAttr};
use crate::server::caller::Caller;
use crate::server::file_system::Outcome;
use crate::server::rights::{ModeBits, Ownership};
use crate::server::unix::RIGHTS;
use std::collections::BTreeMap;
use std::time::SystemTime;

pub(super) type Number = u64;

/// Cost of a directory entry, besides its name.
const ENTRY_BYTES: u64 = 64;

#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: Nfstime3,
    pub(super) mtime: Nfstime3,
    pub(super) ctime: Nfstime3,
}

#[derive(Debug)]
pub(super) enum Kind {
    File(Content),
    Directory(Entries),
    Link(Vec<u8>),
    Special(Ftype3, Specdata3),
}

/// A cookie is used only once: a listing continues where it was, whatever changed meanwhile.
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

pub(super) fn entry_bytes(name: &[u8]) -> u64 {
    ENTRY_BYTES + name.len() as u64
}

pub(super) fn now() -> Nfstime3 {
    SystemTime::now().into()
}

impl Node {
    pub(super) fn new(kind: Kind, mode: u32, caller: &Caller) -> Self {
        let (time, links) = (now(), if matches!(kind, Kind::Directory(_)) { 2 } else { 1 });
        let (uid, gid, mode) = (caller.uid, caller.gid, mode & RIGHTS);
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
            Kind::File(content) => Ok(content),
            _ => Err(Nfsstat3::Nfs3errInval),
        }
    }

    pub(super) fn content_mut(&mut self) -> Outcome<&mut Content> {
        match &mut self.kind {
            Kind::File(content) => Ok(content),
            _ => Err(Nfsstat3::Nfs3errInval),
        }
    }

    pub(super) fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory(_))
    }

    pub(super) fn stored_bytes(&self) -> u64 {
        match &self.kind {
            Kind::File(content) => content.stored_bytes(),
            Kind::Directory(entries) => entries.cookies.keys().map(|name| entry_bytes(name)).sum(),
            Kind::Link(text) => text.len() as u64,
            Kind::Special(..) => 0,
        }
    }

    fn size(&self) -> u64 {
        match &self.kind {
            Kind::File(content) => content.size(),
            Kind::Directory(entries) => (entries.cookies.len() as u64 + 2) * ENTRY_BYTES,
            Kind::Link(text) => text.len() as u64,
            Kind::Special(..) => 0,
        }
    }

    pub(super) fn attributes(&self, fsid: u64, fileid: Number) -> Fattr3 {
        let (r#type, rdev) = match &self.kind {
            Kind::File(_) => (Ftype3::Nf3reg, Specdata3::default()),
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

    pub(super) fn check_change(&self, caller: &Caller, new: &Sattr3) -> Outcome<()> {
        if new.size.is_some() {
            self.content()?;
        }
        self.demand_change(caller, new)
    }

    /// Makes the changes of `new`; permissions were checked before.
    pub(super) fn change(&mut self, caller: &Caller, new: &Sattr3) {
        self.mode = self.mode_after(caller, new);
        (self.uid, self.gid) = (new.uid.unwrap_or(self.uid), new.gid.unwrap_or(self.gid));
        if let (Some(size), Ok(content)) = (new.size, self.content_mut()) {
            content.set_size(size);
            self.mtime = now();
        }
        self.change_times(new);
        self.mark();
    }

    fn change_times(&mut self, new: &Sattr3) {
        for (time, new) in [(&mut self.atime, new.atime), (&mut self.mtime, new.mtime.into())] {
            match new {
                SetAtime::DontChange => {}
                SetAtime::SetToServerTime => *time = now(),
                SetAtime::SetToClientTime(Nfstime3 { seconds, nseconds }) => {
                    *time = Nfstime3 { seconds, nseconds: nseconds.min(999_999_999) };
                }
            }
        }
    }
}

impl ModeBits for Node {
    fn ownership(&self) -> Ownership {
        let Self { mode, uid, gid, .. } = *self;
        Ownership { mode, uid, gid, is_directory: self.is_directory() }
    }
}
