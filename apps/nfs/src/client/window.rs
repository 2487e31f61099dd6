//! Several calls in flight, handled in order of completion. For `read` and `write`.

use super::{Error, Nfs, caller, failed};
use crate::nfs3;
use crate::protocol::{Nfsstat3, ProcedureId};
use spinrpc::{CallError, CallSpec, DecodeError, Decoder, Encoder};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) count: u32,
}

/// A piece, and the result of its call.
type Ended<T> = (Piece, Result<Result<T, Nfsstat3>, CallError>);

/// Calls of one operation in flight.
pub(super) struct Window<T> {
    operation: ProcedureId,
    ended: Rc<RefCell<VecDeque<Ended<T>>>>,
    in_flight: usize,
}

impl<T: 'static> Window<T> {
    pub(super) fn new(operation: ProcedureId) -> Self {
        Self { operation, ended: Rc::default(), in_flight: 0 }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn start(
        &mut self,
        nfs: &Nfs,
        piece: Piece,
        mut spec: CallSpec,
        encode: impl Fn(&mut Encoder<'_>),
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<Result<T, Nfsstat3>, DecodeError> + 'static,
    ) -> Result<(), Error> {
        let ended = Rc::clone(&self.ended);
        let keep = move |reply: Result<spinrpc::Reply<'_>, CallError>| {
            ended.borrow_mut().push_back((piece, caller::decoded(reply, decode)));
        };
        let procedure = nfs3::procedure(self.operation);
        let started = nfs.caller.start(procedure, &mut spec, encode, keep);
        started.map_err(failed(self.operation))?;
        nfs.count(self.operation);
        self.in_flight += 1;
        Ok(())
    }

    /// Waits for the next call to end: its piece, and the results, or `None` if the server asks for
    /// a retry. There must be a call in flight.
    pub(super) fn next(&mut self, nfs: &Nfs) -> Result<(Piece, Option<T>), Error> {
        nfs.caller.run_until(|| !self.ended.borrow().is_empty());
        let operation = self.operation;
        let Some((piece, ended)) = self.ended.borrow_mut().pop_front() else {
            return Err(Error::Local("no call is in flight".to_owned()));
        };
        self.in_flight -= 1;
        match ended.map_err(failed(operation))? {
            Ok(results) => Ok((piece, Some(results))),
            Err(Nfsstat3::Nfs3errJukebox) => Ok((piece, None)),
            Err(status) => Err(Error::Status { operation, status }),
        }
    }
}

impl Nfs {
    /// Number of pieces of `bytes` that fit in memory, up to the requested depth; for calls of `operation`.
    pub(super) fn depth_for(&self, operation: ProcedureId, bytes: u32) -> Result<usize, Error> {
        let first = self.caller.memory_for_call(bytes as usize).map_err(failed(operation))?;
        let more = (1..self.options.depth).map_while(|_| self.caller.bulk(bytes as usize));
        match first.into_iter().chain(more).collect::<Vec<_>>().len() {
            0 => Err(Error::Local(format!(
                "no memory for a piece of {bytes} bytes: use a smaller --block"
            ))),
            depth => Ok(depth),
        }
    }
}
