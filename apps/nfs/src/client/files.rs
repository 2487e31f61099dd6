//! Operations on files that both kinds of sessions have.

use super::caller::Caller;
use super::connection::Connection;
use super::jukebox_retry::Patience;
use super::walk::Walk;
use super::{Error, Found, Nfs, Outcome, Root, add, failed};
use crate::nfs3::{self, PLAIN_RESULT_BYTES_MAX, READLINK_RESULT_BYTES_MAX};
use crate::protocol::{
    self, Commit3args, Commit3resok, Create3args, Create3resok, Createhow3, Diropargs3, Fattr3,
    FileHandle, Fsinfo3args, Fsinfo3resok, Getattr3args, Getattr3resok, Lookup3args, Lookup3resok,
    Nfsstat3, PostOpAttr, ProcedureId, Readlink3args, Readlink3resok, Sattr3, Writeverf3,
};
use spinrpc::{CallError, CallSpec, Encoder, Resend};
use spinrpc_xdr::{Decode, Encode};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

impl Nfs {
    /// Calls NULL and returns the round-trip time. `None` if `stop` returned true meanwhile.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn null(&self, mut stop: impl FnMut() -> bool) -> Result<Option<Duration>, Error> {
        let operation = ProcedureId::Nfsproc3Null;
        let place = Rc::new(RefCell::new(None));
        let arrived = Rc::clone(&place);
        let began = Instant::now();
        let ended = move |reply: Result<spinrpc::Reply<'_>, CallError>| {
            *arrived.borrow_mut() = Some(reply.map(|_| began.elapsed()));
        };
        let procedure = nfs3::procedure(operation);
        let started = self.caller.start(procedure, &mut CallSpec::short(), |_| {}, ended);
        let call = started.map_err(failed(operation))?;
        self.count(operation);
        self.caller.run_until(|| place.borrow().is_some() || stop());
        let Some(ended) = place.take() else {
            // One that has just ended need not be.
            let _ = self.caller.client().cancel(call);
            return Ok(None);
        };
        ended.map(Some).map_err(failed(operation))
    }
}

impl Files for Nfs {
    type Connection = Caller;

    fn connection(&self) -> &Caller {
        &self.caller
    }

    fn patience(&self) -> Duration {
        self.options.timeout
    }

    fn resend(&self, operation: ProcedureId) -> Resend {
        self.options.resend(operation)
    }

    fn count(&self, operation: ProcedureId) {
        add(&self.counts.calls[operation as usize], 1);
    }
}

/// Operations on files, by handle and by path: one call after the other.
///
/// # Errors
/// [`Error::Status`], and errors of any call.
pub trait Files: Sized {
    /// What they are called by.
    type Connection: Connection;

    /// The connection to the server.
    fn connection(&self) -> &Self::Connection;

    /// Time for retries with a server that needs longer.
    fn patience(&self) -> Duration;

    /// If a call goes over from a lost connection to another one. By default none does.
    fn resend(&self, operation: ProcedureId) -> Resend {
        let _ = operation;
        Resend::Never
    }

    /// Counts a call that is about to be made.
    fn count(&self, operation: ProcedureId) {
        let _ = operation;
    }

    /// Calls, again as long as the server asks for more time.
    fn call<T: 'static>(
        &self,
        operation: ProcedureId,
        reply_bytes_max: usize,
        args: &impl Encode,
        outcome: Outcome<T>,
    ) -> Result<T, Error> {
        let mut patience = Patience::new(self.patience());
        loop {
            self.count(operation);
            let (procedure, encode) =
                (nfs3::procedure(operation), |to: &mut Encoder<'_>| args.encode(to));
            let spec = CallSpec::new().reply_bytes_max(reply_bytes_max);
            let spec = spec.resend(self.resend(operation));
            let called = self.connection().call(procedure, spec, encode, outcome);
            match called.map_err(|source| Error::call(operation, source))? {
                Ok(results) => return Ok(results),
                Err(Nfsstat3::Nfs3errJukebox) if patience.pause(self.connection()) => {}
                Err(status) => return Err(Error::Status(operation, status)),
            }
        }
    }

    /// Calls a procedure whose results are short, and do not borrow from the message.
    fn plain_call<T>(&self, operation: ProcedureId, args: &impl Encode) -> Result<T, Error>
    where
        T: for<'a> Decode<'a> + 'static,
    {
        self.call(operation, nfs3::PLAIN_RESULT_BYTES_MAX, args, nfs3::owned_outcome)
    }

    /// Attributes of a file.
    fn attributes(&self, file: &FileHandle) -> Result<Fattr3, Error> {
        let args = Getattr3args { object: file.wire() };
        let results: Getattr3resok = self.plain_call(ProcedureId::Nfsproc3Getattr, &args)?;
        Ok(results.obj_attributes)
    }

    /// Handle of a name in a directory, and its attributes if the server returns them.
    fn lookup(
        &self,
        directory: &FileHandle,
        name: &[u8],
    ) -> Result<(FileHandle, PostOpAttr), Error> {
        let args = Lookup3args { what: at(directory, name)? };
        self.call(ProcedureId::Nfsproc3Lookup, PLAIN_RESULT_BYTES_MAX, &args, |from| {
            let found = nfs3::outcome::<Lookup3resok<'_>>(from)?;
            Ok(found.map(|found| (found.object.into(), found.obj_attributes)))
        })
    }

    /// As [`Files::lookup`], with the attributes in any case.
    fn look(&self, directory: &FileHandle, name: &[u8]) -> Result<Found, Error> {
        let (handle, attributes) = self.lookup(directory, name)?;
        let attributes = attributes.map_or_else(|| self.attributes(&handle), Ok)?;
        Ok(Found { handle, attributes })
    }

    /// Target of a symbolic link. The path is requested through a Reply chunk: a Write chunk would
    /// need a known length, too.
    fn link_target(&self, link: &FileHandle) -> Result<Vec<u8>, Error> {
        let args = Readlink3args { symlink: link.wire() };
        self.call(ProcedureId::Nfsproc3Readlink, READLINK_RESULT_BYTES_MAX, &args, |from| {
            Ok(nfs3::outcome::<Readlink3resok<'_>>(from)?.map(|found| found.data.to_vec()))
        })
    }

    /// Limits of the server (FSINFO).
    fn server_limits(&self, root: &FileHandle) -> Result<Fsinfo3resok, Error> {
        let args = Fsinfo3args { fsroot: root.wire() };
        self.plain_call(ProcedureId::Nfsproc3Fsinfo, &args)
    }

    /// Creates an empty file, or sets attributes of an existing one, such as a size of 0 (UNCHECKED).
    fn create(
        &self,
        directory: &FileHandle,
        name: &[u8],
        mode: u32,
        size: Option<u64>,
    ) -> Result<FileHandle, Error> {
        let attributes = Sattr3 { mode: Some(mode), size, ..Sattr3::default() };
        let how = Createhow3::Unchecked(attributes);
        let args = Create3args { r#where: at(directory, name)?, how };
        let operation = ProcedureId::Nfsproc3Create;
        let made = self.call(operation, PLAIN_RESULT_BYTES_MAX, &args, |from| {
            let made = nfs3::outcome::<Create3resok<'_>>(from)?;
            Ok(made.map(|made| made.obj.map(FileHandle::from)))
        })?;
        // A server need not return the handle.
        match made {
            Some(handle) => Ok(handle),
            None => Ok(self.lookup(directory, name)?.0),
        }
    }

    /// Has the server put all data of a file on stable storage. Returns its write verifier.
    fn commit(&self, file: &FileHandle) -> Result<Writeverf3, Error> {
        let args = Commit3args { file: file.wire(), offset: 0, count: 0 };
        let results: Commit3resok = self.plain_call(ProcedureId::Nfsproc3Commit, &args)?;
        Ok(results.verf)
    }

    /// Finds the file at `path` below `root`; follows a symbolic link at the end only with
    /// `follow`.
    ///
    /// # Errors
    /// [`Error::Status`] for the name that is not found, with the path up to it.
    fn find(&self, root: &Root, path: &str, follow: bool) -> Result<Found, Error> {
        Walk::new(self, root, path).run(follow)
    }

    /// Finds the directory that contains `path`, and returns the last name.
    ///
    /// # Errors
    /// [`Error::Path`] if the path does not end with a name, and those of [`Files::find`].
    fn find_parent<'p>(&self, root: &Root, path: &'p str) -> Result<(Found, &'p [u8]), Error> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if matches!(name, "" | "." | "..") {
            return Err(Error::Path(format!("\"{path}\" does not end with the name of a file")));
        }
        Ok((self.find(root, parent, true)?, name.as_bytes()))
    }
}

fn at<'a>(directory: &'a FileHandle, name: &'a [u8]) -> Result<Diropargs3<'a>, Error> {
    let sent = protocol::name(name);
    let name =
        sent.map_err(|error| Error::Path(format!("the name {}: {error}", name.escape_ascii())))?;
    Ok(Diropargs3 { dir: directory.wire(), name })
}
