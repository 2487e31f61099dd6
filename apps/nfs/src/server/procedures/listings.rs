//! READDIR and READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17): pages of a directory, filled up
//! to the client's limit.

use super::Results;
use crate::protocol::{
    Entry3, Entryplus3, Fattr3, FileHandle, Nfsstat3, PostOpAttr, Readdir3args, Readdirplus3args,
};
use crate::server::file_system::{DirectoryEntry, ListFrom, Listed, Outcome};
use crate::server::site::RequestContext;
use spinrpc::Encoder;
use spinrpc_xdr::{Encode, Opaque};

/// After the entries: end of the list, and the end-of-directory flag.
const TAIL_BYTES: usize = 8;

/// Byte limits that the client set.
#[derive(Clone, Copy)]
struct Room {
    page: u32,
    /// The part that READDIR would return as well: numbers, names and cookies.
    names: u32,
}

impl RequestContext<'_> {
    pub(super) fn readdir(
        &self,
        args: &Readdir3args<'_>,
        failed: &mut PostOpAttr,
    ) -> Outcome<Page> {
        let (directory, cookie, verifier) = (self.visit.file, args.cookie, args.cookieverf);
        let from = ListFrom { directory, cookie, verifier, with_files: false };
        self.list(&from, Room { page: args.count, names: u32::MAX }, failed)
    }

    pub(super) fn readdirplus(
        &self,
        args: &Readdirplus3args<'_>,
        failed: &mut PostOpAttr,
    ) -> Outcome<Page> {
        let (directory, cookie, verifier) = (self.visit.file, args.cookie, args.cookieverf);
        let from = ListFrom { directory, cookie, verifier, with_files: true };
        self.list(&from, Room { page: args.maxcount, names: args.dircount }, failed)
    }

    /// The attributes of the directory are those from before. If it changes meanwhile, a client that
    /// takes the page for older than it is asks again, and one that takes it for newer would not.
    fn list(&self, from: &ListFrom, room: Room, failed: &mut PostOpAttr) -> Outcome<Page> {
        *failed = self.attributes().ok();
        let room = Room { page: room.page.min(self.site.options.list_bytes_max), ..room };
        let mut page = Page::new(*failed, room)?;
        let listed = self.file_system().list(&self.visit.caller, from, &mut |entry| {
            let file = entry.found.map(|found| (&found.attributes, self.handle(&found.key)));
            page.push(entry, from.with_files.then_some(file))
        })?;
        page.end(listed)
    }
}

pub(super) struct Page {
    attributes: PostOpAttr,
    listed: Listed,
    entries: Vec<u8>,
    used: usize,
    names_left: usize,
}

/// Additional data of READDIRPLUS; `None` for an entry whose file was deleted.
type Plus<'a> = Option<(&'a Fattr3, FileHandle)>;

impl Page {
    fn new(attributes: PostOpAttr, room: Room) -> Outcome<Self> {
        let verifier = [0; 8];
        let mut head = Encoder::new(&mut [], &[]);
        (attributes, verifier).encode(&mut head);
        let taken = head.finish().stream_bytes + TAIL_BYTES;
        let left = (room.page as usize).checked_sub(taken).ok_or(Nfsstat3::Nfs3errToosmall)?;
        let listed = Listed { verifier, is_end: false };
        Ok(Self {
            attributes,
            listed,
            entries: vec![0; left],
            used: 0,
            names_left: room.names as usize,
        })
    }

    fn push(&mut self, entry: &DirectoryEntry<'_>, plus: Option<Plus<'_>>) -> bool {
        let DirectoryEntry { fileid, name, cookie, .. } = *entry;
        // No file system has names as long as the protocol allows.
        let name = Opaque::new(name).unwrap_or_default();
        let room = self.entries.get_mut(self.used..).unwrap_or_default();
        let names = node(room, &Entry3 { fileid, name, cookie });
        // One name is returned whatever the client's limit for names: the reply has room for it,
        // and a client with too low a limit would get no further.
        if names.bytes > self.names_left && self.used > 0 {
            return false;
        }
        let written = match &plus {
            None => names,
            Some(plus) => {
                let name_attributes = plus.as_ref().map(|(attributes, _)| **attributes);
                let name_handle = plus.as_ref().map(|(_, handle)| handle.wire());
                node(room, &Entryplus3 { fileid, name, cookie, name_attributes, name_handle })
            }
        };
        if written.fits {
            self.used += written.bytes;
            self.names_left = self.names_left.saturating_sub(names.bytes);
        }
        written.fits
    }

    /// Ends the page. An empty page that is not the end would keep a client from getting further.
    fn end(mut self, listed: Listed) -> Outcome<Self> {
        if self.used == 0 && !listed.is_end {
            return Err(Nfsstat3::Nfs3errToosmall);
        }
        self.entries.truncate(self.used);
        Ok(Self { listed, ..self })
    }
}

#[derive(Clone, Copy)]
struct Node {
    bytes: usize,
    fits: bool,
}

/// Encodes a node of a list, after the link to it.
fn node(room: &mut [u8], entry: &impl Encode) -> Node {
    let mut to = Encoder::new(room, &[]);
    true.encode(&mut to);
    entry.encode(&mut to);
    let written = to.finish();
    Node { bytes: written.stream_bytes, fits: written.fits }
}

impl Results for Page {
    fn write(&self, to: &mut Encoder<'_>) {
        (self.attributes, self.listed.verifier).encode(to);
        to.fixed(&self.entries);
        (false, self.listed.is_end).encode(to);
    }
}
