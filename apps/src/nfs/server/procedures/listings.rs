//! READDIR and READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17): pages of a directory, filled up to
//! the byte that the client allows.

use super::{Operation, Results};
use crate::nfs::server::file_system::{DirectoryEntry, ListFrom, Listed, Outcome};
use crate::nfs::server::handle::Handle;
use crate::nfs::server::site::Scene;
use crate::nfs::xdr::Xdr;
use nfs3_types::nfs3::{READDIR3args, READDIRPLUS3args, fattr3, nfs_fh3, nfsstat3, post_op_attr};
use spinrpc::Encoder;

/// Behind the entries: that there is no further one, and whether this is the end.
const TAIL_BYTES: usize = 8;

impl Operation for READDIR3args {
    type Done = Page;
    type Failed = post_op_attr;

    fn handle(&self) -> &nfs_fh3 {
        &self.dir
    }

    fn run(&self, scene: &Scene<'_>, failed: &mut post_op_attr) -> Outcome<Page> {
        let from = ListFrom { cookie: self.cookie, verifier: self.cookieverf.0, with_files: false };
        list(scene, &from, Room { page: self.count, names: u32::MAX }, failed)
    }
}

impl Operation for READDIRPLUS3args {
    type Done = Page;
    type Failed = post_op_attr;

    fn handle(&self) -> &nfs_fh3 {
        &self.dir
    }

    fn run(&self, scene: &Scene<'_>, failed: &mut post_op_attr) -> Outcome<Page> {
        let from = ListFrom { cookie: self.cookie, verifier: self.cookieverf.0, with_files: true };
        list(scene, &from, Room { page: self.maxcount, names: self.dircount }, failed)
    }
}

/// How many bytes the client takes.
#[derive(Clone, Copy)]
struct Room {
    /// All results together.
    page: u32,
    /// Of that, what READDIR would give as well: numbers, names and cookies.
    names: u32,
}

/// The attributes of the directory are those from before: were it changed meanwhile, a client that
/// thinks the page older than it is asks again, and one that thinks it newer would not.
fn list(
    scene: &Scene<'_>,
    from: &ListFrom,
    room: Room,
    failed: &mut post_op_attr,
) -> Outcome<Page> {
    let visit = &scene.visit;
    *failed = scene.post_op(&visit.file);
    let room = Room { page: room.page.min(scene.site.options.list_bytes_max), ..room };
    let mut page = Page::new(failed.clone(), room)?;
    let file_system = &visit.export.file_system;
    let listed = file_system.list(&visit.caller, &visit.file, from, &mut |entry| {
        let file = entry.found.map(|found| (&found.attributes, scene.handle(&found.key)));
        page.push(entry, from.with_files.then_some(file))
    })?;
    page.end(listed)
}

/// Results of either procedure.
pub(super) struct Page {
    attributes: post_op_attr,
    listed: Listed,
    /// The entries as they go out, and room for more.
    entries: Vec<u8>,
    used: usize,
    names_left: usize,
}

/// What READDIRPLUS has besides, or nothing for an entry whose file is gone.
type Plus<'a> = Option<(&'a fattr3, Handle)>;

impl Page {
    fn new(attributes: post_op_attr, room: Room) -> Outcome<Self> {
        let verifier = [0; 8];
        let mut head = Encoder::new(&mut [], &[]);
        attributes.encode(&mut head);
        verifier.encode(&mut head);
        let taken = head.finish().stream_bytes + TAIL_BYTES;
        let left = (room.page as usize).checked_sub(taken).ok_or(nfsstat3::NFS3ERR_TOOSMALL)?;
        let listed = Listed { verifier, is_end: false };
        Ok(Self {
            attributes,
            listed,
            entries: vec![0; left],
            used: 0,
            names_left: room.names as usize,
        })
    }

    /// Adds an entry, if there is room.
    fn push(&mut self, entry: &DirectoryEntry<'_>, plus: Option<Plus<'_>>) -> bool {
        let room = self.entries.get_mut(self.used..).unwrap_or_default();
        let mut names = Encoder::new(room, &[]);
        write_entry(entry, &mut names);
        let names_bytes = names.finish().stream_bytes;
        // One name is given whatever the client allows for names: there is room for it in the reply, and
        // clients that allow too little would get no further.
        if names_bytes > self.names_left && self.used > 0 {
            return false;
        }
        let mut whole = Encoder::new(room, &[]);
        write_entry(entry, &mut whole);
        if let Some(plus) = plus {
            write_plus(plus, &mut whole);
        }
        let written = whole.finish();
        if written.fits {
            self.used += written.stream_bytes;
            self.names_left = self.names_left.saturating_sub(names_bytes);
        }
        written.fits
    }

    /// That is all. A page without entries that is not the end would never get a client further.
    fn end(mut self, listed: Listed) -> Outcome<Self> {
        if self.used == 0 && !listed.is_end {
            return Err(nfsstat3::NFS3ERR_TOOSMALL);
        }
        self.entries.truncate(self.used);
        Ok(Self { listed, ..self })
    }
}

fn write_entry(entry: &DirectoryEntry<'_>, to: &mut Encoder<'_>) {
    to.bool(true);
    to.u64(entry.fileid);
    to.opaque(entry.name);
    to.u64(entry.cookie);
}

fn write_plus(plus: Plus<'_>, to: &mut Encoder<'_>) {
    to.bool(plus.is_some());
    if let Some((attributes, _)) = plus {
        attributes.encode(to);
    }
    to.bool(plus.is_some());
    if let Some((_, handle)) = plus {
        to.opaque(handle.as_bytes());
    }
}

impl Results for Page {
    fn write(&self, to: &mut Encoder<'_>) {
        self.attributes.encode(to);
        self.listed.verifier.encode(to);
        to.fixed(&self.entries);
        to.bool(false);
        to.bool(self.listed.is_end);
    }
}
