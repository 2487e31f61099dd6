//! Single calls: one procedure each.

use super::{Error, Nfs, failed};
use crate::nfs::nfs3::{self, READLINK_RESULT_BYTES_MAX};
use crate::nfs::xdr::Xdr;
use nfs3_types::nfs3::{
    COMMIT3args, COMMIT3resok, CREATE3args, CREATE3resok, FSINFO3args, FSINFO3resok, GETATTR3args,
    GETATTR3resok, LOOKUP3args, LOOKUP3resok, NFS_PROGRAM, Nfs3Option, READLINK3args,
    READLINK3resok, createhow3, diropargs3, fattr3, nfs_fh3, sattr3, writeverf3,
};
use spinrpc::{CallError, CallSpec};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A file's handle, and its attributes where the server gave them unasked.
pub(super) struct Node {
    pub(super) handle: nfs_fh3,
    pub(super) attributes: Option<fattr3>,
}

/// Optional attributes as the language has them.
pub(super) fn option<T: nfs3_types::xdr_codec::Pack + nfs3_types::xdr_codec::Unpack>(
    value: Nfs3Option<T>,
) -> Option<T> {
    match value {
        Nfs3Option::Some(value) => Some(value),
        Nfs3Option::None => None,
    }
}

impl Nfs {
    /// Does nothing, there and back; how long that took. `None` if `stop` said so meanwhile.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn null(&self, mut stop: impl FnMut() -> bool) -> Result<Option<Duration>, Error> {
        let operation = NFS_PROGRAM::NFSPROC3_NULL;
        let place = Rc::new(RefCell::new(None));
        let arrived = Rc::clone(&place);
        let began = Instant::now();
        let ended = move |reply: Result<spinrpc::Reply<'_>, CallError>| {
            *arrived.borrow_mut() = Some(reply.map(|_| began.elapsed()));
        };
        let procedure = nfs3::procedure(operation);
        let started = self.caller.start(procedure, &mut CallSpec::new(), |_| {}, ended);
        let token = started.map_err(failed(operation))?;
        self.count(operation);
        self.caller.run_until(|| place.borrow().is_some() || stop());
        let Some(ended) = place.take() else {
            self.caller.client().cancel(token);
            return Ok(None);
        };
        ended.map(Some).map_err(failed(operation))
    }

    /// Attributes of a file.
    ///
    /// # Errors
    /// [`Error::Status`], and what can go wrong with any call.
    pub fn attributes(&self, file: &nfs_fh3) -> Result<fattr3, Error> {
        let args = GETATTR3args { object: file.clone() };
        let results: GETATTR3resok = self.plain_call(NFS_PROGRAM::NFSPROC3_GETATTR, &args)?;
        Ok(results.obj_attributes)
    }

    /// The file of this name in a directory.
    pub(super) fn lookup(&self, directory: &nfs_fh3, name: &[u8]) -> Result<Node, Error> {
        let encode = |to: &mut spinrpc::Encoder<'_>| {
            let what = diropargs3 { dir: directory.clone(), name: name.into() };
            LOOKUP3args { what }.encode(to);
        };
        let results: LOOKUP3resok =
            self.call(NFS_PROGRAM::NFSPROC3_LOOKUP, plain, encode, nfs3::owned_outcome)?;
        Ok(Node { handle: results.object, attributes: option(results.obj_attributes) })
    }

    /// Where a symbolic link points. The path is asked for by a Reply chunk: as an item of its own
    /// it would need one too, since nobody knows its length.
    ///
    /// # Errors
    /// [`Error::Status`], and what can go wrong with any call.
    pub fn link_target(&self, link: &nfs_fh3) -> Result<Vec<u8>, Error> {
        let args = READLINK3args { symlink: link.clone() };
        self.call(
            NFS_PROGRAM::NFSPROC3_READLINK,
            || CallSpec::new().reply_bytes_max(READLINK_RESULT_BYTES_MAX),
            |to| args.encode(to),
            |from| Ok(nfs3::outcome::<READLINK3resok<'_>>(from)?.map(|found| found.data.0.to_vec())),
        )
    }

    /// What the server can do.
    pub(super) fn server_limits(&self, root: &nfs_fh3) -> Result<FSINFO3resok, Error> {
        let args = FSINFO3args { fsroot: root.clone() };
        self.plain_call(NFS_PROGRAM::NFSPROC3_FSINFO, &args)
    }

    /// An empty file of this name, whatever was there (UNCHECKED, size 0).
    ///
    /// # Errors
    /// [`Error::Status`], and what can go wrong with any call.
    pub fn create(&self, directory: &nfs_fh3, name: &[u8], mode: u32) -> Result<nfs_fh3, Error> {
        let encode = |to: &mut spinrpc::Encoder<'_>| {
            let attributes = sattr3 {
                mode: Nfs3Option::Some(mode),
                size: Nfs3Option::Some(0),
                ..sattr3::default()
            };
            let where_ = diropargs3 { dir: directory.clone(), name: name.into() };
            CREATE3args { where_, how: createhow3::UNCHECKED(attributes) }.encode(to);
        };
        let results: CREATE3resok =
            self.call(NFS_PROGRAM::NFSPROC3_CREATE, plain, encode, nfs3::owned_outcome)?;
        // A server need not give the handle.
        match option(results.obj) {
            Some(handle) => Ok(handle),
            None => Ok(self.lookup(directory, name)?.handle),
        }
    }

    /// Has the server put all of a file on stable storage.
    pub(super) fn commit(&self, file: &nfs_fh3) -> Result<writeverf3, Error> {
        let args = COMMIT3args { file: file.clone(), offset: 0, count: 0 };
        let results: COMMIT3resok = self.plain_call(NFS_PROGRAM::NFSPROC3_COMMIT, &args)?;
        Ok(results.verf)
    }
}

fn plain() -> CallSpec {
    CallSpec::new().reply_bytes_max(nfs3::PLAIN_RESULT_BYTES_MAX)
}
