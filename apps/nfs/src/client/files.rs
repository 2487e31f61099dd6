use super::{Error, Found, Nfs, failed};
use crate::nfs3::{self, PLAIN_RESULT_BYTES_MAX, READLINK_RESULT_BYTES_MAX};
use crate::protocol::{
    self, Commit3args, Commit3resok, Create3args, Create3resok, Createhow3, Diropargs3, Fattr3,
    FileHandle, Fsinfo3args, Fsinfo3resok, Getattr3args, Getattr3resok, Lookup3args, Lookup3resok,
    PostOpAttr, ProcedureId, Readlink3args, Readlink3resok, Sattr3, Writeverf3,
};
use spinrpc::{CallError, CallSpec};
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

    /// Attributes of a file.
    ///
    /// # Errors
    /// [`Error::Status`], and errors of any call.
    pub fn attributes(&self, file: &FileHandle) -> Result<Fattr3, Error> {
        let args = Getattr3args { object: file.wire() };
        let results: Getattr3resok = self.plain_call(ProcedureId::Nfsproc3Getattr, &args)?;
        Ok(results.obj_attributes)
    }

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

    pub(super) fn look(&self, directory: &FileHandle, name: &[u8]) -> Result<Found, Error> {
        let (handle, attributes) = self.lookup(directory, name)?;
        let attributes = attributes.map_or_else(|| self.attributes(&handle), Ok)?;
        Ok(Found { handle, attributes })
    }

    /// Target of a symbolic link. The path is requested through a Reply chunk: a Write chunk would
    /// need a known length, too.
    ///
    /// # Errors
    /// [`Error::Status`], and errors of any call.
    pub fn link_target(&self, link: &FileHandle) -> Result<Vec<u8>, Error> {
        let args = Readlink3args { symlink: link.wire() };
        self.call(ProcedureId::Nfsproc3Readlink, READLINK_RESULT_BYTES_MAX, &args, |from| {
            Ok(nfs3::outcome::<Readlink3resok<'_>>(from)?.map(|found| found.data.to_vec()))
        })
    }

    pub(super) fn server_limits(&self, root: &FileHandle) -> Result<Fsinfo3resok, Error> {
        let args = Fsinfo3args { fsroot: root.wire() };
        self.plain_call(ProcedureId::Nfsproc3Fsinfo, &args)
    }

    /// Creates an empty file, or truncates an existing one (UNCHECKED, size 0).
    ///
    /// # Errors
    /// [`Error::Status`], and errors of any call.
    pub fn create(
        &self,
        directory: &FileHandle,
        name: &[u8],
        mode: u32,
    ) -> Result<FileHandle, Error> {
        let attributes = Sattr3 { mode: Some(mode), size: Some(0), ..Sattr3::default() };
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

    pub(super) fn commit(&self, file: &FileHandle) -> Result<Writeverf3, Error> {
        let args = Commit3args { file: file.wire(), offset: 0, count: 0 };
        let results: Commit3resok = self.plain_call(ProcedureId::Nfsproc3Commit, &args)?;
        Ok(results.verf)
    }
}

fn at<'a>(directory: &'a FileHandle, name: &'a [u8]) -> Result<Diropargs3<'a>, Error> {
    let sent = protocol::name(name);
    let name =
        sent.map_err(|error| Error::Path(format!("the name {}: {error}", name.escape_ascii())))?;
    Ok(Diropargs3 { dir: directory.wire(), name })
}
