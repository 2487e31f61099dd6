//! A directory listing, page by page: only one page is in memory at a time.

use crate::{Opened, show, written};
use spinrpc_nfs::client::{Entry, Error, Files, Nfs};
use spinrpc_nfs::protocol::Ftype3;
use std::io::{self, Write};

pub(crate) fn run(nfs: &Nfs, opened: &Opened<'_>, all: bool, json: bool) -> Result<(), Error> {
    let found = nfs.find(&opened.root, &opened.below, true)?;
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    let shown = if json { show::json_entry } else { show::entry };
    if found.attributes.r#type != Ftype3::Nf3dir {
        let name = opened.path.rsplit('/').next().unwrap_or_default().as_bytes().to_vec();
        let fileid = found.attributes.fileid;
        let (attributes, handle) = (Some(found.attributes), Some(found.handle));
        let entry = Entry { name, fileid, attributes, handle };
        return written(writeln!(stdout, "{}", shown(&entry, None)));
    }
    let each = |entries: Vec<Entry>| {
        for entry in entries.iter().filter(|entry| all || !matches!(&entry.name[..], b"." | b".."))
        {
            let target = link_target(nfs, entry)?;
            written(writeln!(stdout, "{}", shown(entry, target.as_deref())))?;
        }
        written(stdout.flush())
    };
    nfs.list(&found.handle, each).map_err(|error| error.at(opened.path))
}

fn link_target(nfs: &Nfs, entry: &Entry) -> Result<Option<Vec<u8>>, Error> {
    let is_link = |entry: &&Entry| {
        entry.attributes.as_ref().is_some_and(|found| found.r#type == Ftype3::Nf3lnk)
    };
    let Some(handle) = Some(entry).filter(is_link).and_then(|entry| entry.handle.as_ref()) else {
        return Ok(None);
    };
    match nfs.link_target(handle) {
        Ok(target) => Ok(Some(target)),
        Err(error) if error.status().is_some() => Ok(None),
        Err(error) => Err(error),
    }
}
