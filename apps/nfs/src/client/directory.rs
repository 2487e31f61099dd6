//! Listings: READDIRPLUS page by page, or READDIR if the server does not support it.

use super::{Error, Files, Nfs};
use crate::nfs3;
use crate::protocol::{
    Cookieverf3, Fattr3, FileHandle, Nfsstat3, ProcedureId, Readdir3args, Readdir3resok,
    Readdirplus3args, Readdirplus3resok,
};
use spinrpc::{DecodeError, Decoder};

/// Initial size limit of a page, in bytes of results.
const PAGE_BYTES: u32 = 32 << 10;
/// Maximum size limit of a page, for a server that finds the initial one too small.
const PAGE_BYTES_MAX: u32 = 1 << 19;
/// The status before the page, and differences in how a server counts.
const PAGE_SLACK_BYTES: usize = 512;
/// Maximum number of entries of one directory: a longer listing is treated as an error.
const ENTRIES_MAX: u64 = 100_000_000;

/// One name in a directory.
#[derive(Clone, Debug)]
pub struct Entry {
    /// As the server sent it: any bytes.
    pub name: Vec<u8>,
    /// The file's number.
    pub fileid: u64,
    /// Its attributes; only unknown for a file that was removed meanwhile, or that the caller may
    /// not access.
    pub attributes: Option<Fattr3>,
    /// Its handle, if the server sent it.
    pub handle: Option<FileHandle>,
}

struct Page {
    entries: Vec<Entry>,
    last_cookie: Option<u64>,
    verifier: Cookieverf3,
    eof: bool,
}

struct Listing<'a> {
    nfs: &'a Nfs,
    directory: &'a FileHandle,
    cookie: u64,
    verifier: Cookieverf3,
    circle: Circle,
    page_bytes: u32,
    has_plus: bool,
    entries: u64,
}

/// Finds cycles of cookies by remembering only one (Brent's algorithm): a server may never repeat one.
#[derive(Default)]
struct Circle {
    /// The cookie that would be repeated; the first page is requested with 0.
    remembered: u64,
    /// Number of cookies so far. At each power of two another one is remembered, so that it lies in
    /// the cycle sooner or later, and long enough for a cycle of any length.
    pages: u64,
}

impl Circle {
    fn closes(&mut self, cookie: u64) -> bool {
        if cookie == self.remembered {
            return true;
        }
        self.pages += 1;
        if self.pages.is_power_of_two() {
            self.remembered = cookie;
        }
        false
    }
}

impl Nfs {
    /// Passes the entries of a directory to `each`, a page at a time, in the server's order.
    ///
    /// # Errors
    /// Those of `each`, and [`Error::Misbehaved`] for an endless listing.
    pub fn list(
        &self,
        directory: &FileHandle,
        mut each: impl FnMut(Vec<Entry>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut listing = Listing {
            nfs: self,
            directory,
            cookie: 0,
            verifier: Cookieverf3::default(),
            circle: Circle::default(),
            page_bytes: PAGE_BYTES,
            has_plus: true,
            entries: 0,
        };
        loop {
            let mut page = listing.page()?;
            listing.advance(&page)?;
            for entry in &mut page.entries {
                self.complete(directory, entry)?;
            }
            each(page.entries)?;
            if page.eof {
                return Ok(());
            }
        }
    }

    fn complete(&self, directory: &FileHandle, entry: &mut Entry) -> Result<(), Error> {
        if entry.attributes.is_some() {
            return Ok(());
        }
        match self.look(directory, &entry.name) {
            Ok(found) => {
                entry.handle = Some(found.handle);
                entry.attributes = Some(found.attributes);
                Ok(())
            }
            // Removed since, or not accessible for this user: only the name is known.
            Err(error) if error.status().is_some() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Listing<'_> {
    fn operation(&self) -> ProcedureId {
        match self.has_plus {
            true => ProcedureId::Nfsproc3Readdirplus,
            false => ProcedureId::Nfsproc3Readdir,
        }
    }

    fn page(&mut self) -> Result<Page, Error> {
        loop {
            let page = self.ask();
            match page.as_ref().err().and_then(Error::status) {
                Some(Nfsstat3::Nfs3errNotsupp) if self.has_plus => self.has_plus = false,
                Some(Nfsstat3::Nfs3errToosmall) if self.page_bytes < PAGE_BYTES_MAX => {
                    self.page_bytes *= 2;
                }
                _ => return page,
            }
        }
    }

    fn advance(&mut self, page: &Page) -> Result<(), Error> {
        self.entries += page.entries.len() as u64;
        self.verifier = page.verifier;
        let operation = self.operation();
        let wrong = |problem| Err(Error::misbehaved(operation, problem));
        match page.last_cookie {
            _ if self.entries > ENTRIES_MAX => wrong(format!("more than {ENTRIES_MAX} entries")),
            _ if page.eof => Ok(()),
            None => wrong("neither an entry nor the end of the directory".to_owned()),
            Some(cookie) => {
                if self.circle.closes(cookie) {
                    return wrong(format!("cookie {cookie} repeated: the list would never end"));
                }
                self.cookie = cookie;
                Ok(())
            }
        }
    }

    fn ask(&self) -> Result<Page, Error> {
        let (dir, bytes) = (self.directory.wire(), self.page_bytes);
        let (cookie, cookieverf) = (self.cookie, self.verifier);
        let (operation, reply_bytes_max) = (self.operation(), bytes as usize + PAGE_SLACK_BYTES);
        if !self.has_plus {
            let args = Readdir3args { dir, cookie, cookieverf, count: bytes };
            return self.nfs.call(operation, reply_bytes_max, &args, page);
        }
        let args = Readdirplus3args { dir, cookie, cookieverf, dircount: bytes, maxcount: bytes };
        self.nfs.call(operation, reply_bytes_max, &args, page_plus)
    }
}

impl Page {
    fn new(entries: impl Iterator<Item = (u64, Entry)>, verifier: Cookieverf3, eof: bool) -> Self {
        let (cookies, entries): (Vec<u64>, Vec<Entry>) = entries.unzip();
        Self { entries, last_cookie: cookies.last().copied(), verifier, eof }
    }
}

fn page_plus(from: &mut Decoder<'_>) -> Result<Result<Page, Nfsstat3>, DecodeError> {
    Ok(nfs3::outcome::<Readdirplus3resok<'_>>(from)?.map(|page| {
        let entries = page.reply.entries.iter().map(|entry| {
            let (name, attributes) = (entry.name.to_vec(), entry.name_attributes);
            let handle = entry.name_handle.map(FileHandle::from);
            (entry.cookie, Entry { name, fileid: entry.fileid, attributes, handle })
        });
        Page::new(entries, page.cookieverf, page.reply.eof)
    }))
}

fn page(from: &mut Decoder<'_>) -> Result<Result<Page, Nfsstat3>, DecodeError> {
    Ok(nfs3::outcome::<Readdir3resok<'_>>(from)?.map(|page| {
        let entries = page.reply.entries.iter().map(|entry| {
            let (name, fileid) = (entry.name.to_vec(), entry.fileid);
            (entry.cookie, Entry { name, fileid, attributes: None, handle: None })
        });
        Page::new(entries, page.cookieverf, page.reply.eof)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of requested pages, for a list that goes from cookie `last` back to cookie `back`.
    fn pages(last: u64, back: u64) -> u64 {
        let (mut circle, mut cookie, mut pages) = (Circle::default(), 0, 0);
        loop {
            cookie = if cookie == last { back } else { cookie + 1 };
            pages += 1;
            if circle.closes(cookie) {
                return pages;
            }
        }
    }

    #[test]
    fn receive_cookies_in_a_circle_expect_its_end_soon() {
        for last in 0..70 {
            for back in 0..=last {
                let asked = pages(last, back);
                assert!(asked <= 3 * (last + 1), "{last} to {back}: {asked} pages");
            }
        }
    }

    #[test]
    fn receive_cookies_that_are_all_different_expect_no_complaint() {
        let mut circle = Circle::default();
        assert!(!(1..100_000).any(|cookie| circle.closes(cookie)));
    }
}
