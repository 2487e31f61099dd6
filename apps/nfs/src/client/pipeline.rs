//! Several calls in flight, handled in order of completion.

use super::jukebox_retry::Patience;
use super::{Error, Files, Nfs, Root, caller, failed};
use crate::nfs3;
use crate::protocol::{Nfsstat3, ProcedureId};
use spinrpc::{Bulk, CallError, CallSpec, DecodeError, Decoder, Encoder};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) count: u32,
}

type Ended<T> = (Piece, Result<Result<T, Nfsstat3>, CallError>);

pub(super) struct Window<'a, T> {
    nfs: &'a Nfs,
    operation: ProcedureId,
    patience: Patience,
    ended: Rc<RefCell<VecDeque<Ended<T>>>>,
    in_flight: usize,
}

impl<'a, T: 'static> Window<'a, T> {
    pub(super) fn new(nfs: &'a Nfs, operation: ProcedureId) -> Self {
        let patience = Patience::new(nfs.options.timeout);
        Self { nfs, operation, patience, ended: Rc::default(), in_flight: 0 }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn memory(&self, bytes: u32) -> Result<Bulk, Error> {
        let memory = self.nfs.caller.memory_for_call(bytes as usize);
        memory.map_err(failed(self.operation))?.ok_or_else(|| {
            let name = nfs3::name(self.operation);
            Error::Local(format!("no memory for a {name} of {bytes} bytes"))
        })
    }

    pub(super) fn start(
        &mut self,
        piece: Piece,
        spec: CallSpec,
        encode: impl Fn(&mut Encoder<'_>),
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<Result<T, Nfsstat3>, DecodeError> + 'static,
    ) -> Result<(), Error> {
        let ended = Rc::clone(&self.ended);
        let keep = move |reply: Result<spinrpc::Reply<'_>, CallError>| {
            ended.borrow_mut().push_back((piece, caller::decoded(reply, decode)));
        };
        let procedure = nfs3::procedure(self.operation);
        let mut spec = spec.resend(self.nfs.options.resend(self.operation));
        let started = self.nfs.caller.start(procedure, &mut spec, encode, keep);
        started.map_err(failed(self.operation))?;
        self.nfs.count(self.operation);
        self.in_flight += 1;
        Ok(())
    }

    /// `None` if it is to be retried now: the server asked for more time. There must be a call in flight.
    pub(super) fn next(&mut self) -> Result<(Piece, Option<T>), Error> {
        self.nfs.caller.run_until(|| !self.ended.borrow().is_empty());
        let operation = self.operation;
        let Some((piece, ended)) = self.ended.borrow_mut().pop_front() else {
            return Err(Error::Local("no call is in flight".to_owned()));
        };
        self.in_flight -= 1;
        match ended.map_err(failed(operation))? {
            Ok(results) => Ok((piece, Some(results))),
            Err(Nfsstat3::Nfs3errJukebox) if self.patience.pause(&self.nfs.caller) => {
                Ok((piece, None))
            }
            Err(status) => Err(Error::Status(operation, status)),
        }
    }
}

impl Nfs {
    /// Bytes of one READ or WRITE: as requested, or the server's limit.
    pub(super) fn block_bytes(&self, root: &Root, operation: ProcedureId) -> Result<u32, Error> {
        let limits = self.server_limits(&root.handle)?;
        let (most, name) = match operation {
            ProcedureId::Nfsproc3Read => (limits.rtmax, "an rtmax"),
            _ => (limits.wtmax, "a wtmax"),
        };
        match most {
            0 => Err(Error::misbehaved(operation, format!("{name} of 0 bytes"))),
            most => Ok(self.options.block_bytes.min(most)),
        }
    }

    /// Number of pieces of `bytes` that fit in memory, up to the requested depth; for calls of `operation`.
    pub(super) fn depth_for(&self, operation: ProcedureId, bytes: u32) -> Result<usize, Error> {
        let first = self.caller.memory_for_call(bytes as usize).map_err(failed(operation))?;
        let client = self.caller.client();
        let more = (1..self.options.depth).map_while(|_| client.bulk(bytes as usize));
        match first.into_iter().chain(more).collect::<Vec<_>>().len() {
            0 => Err(Error::Local(format!(
                "no memory for a piece of {bytes} bytes: use a smaller --block"
            ))),
            depth => Ok(depth),
        }
    }
}
