//! Several calls in flight, handled in order of completion.

use super::connection::Connection;
use super::jukebox_retry::Patience;
use super::{Error, Files, Nfs, Root, failed};
use crate::nfs3;
use crate::protocol::{Nfsstat3, ProcedureId};
use spinrpc::{AnswerQueue, Bulk, CallSpec, DecodeError, Decoder, Encoder, Token};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) count: u32,
}

pub(super) struct Window<'a> {
    nfs: &'a Nfs,
    operation: ProcedureId,
    patience: Patience,
    answers: AnswerQueue,
    /// Counts of the pieces, by offset.
    in_flight: BTreeMap<u64, u32>,
}

impl<'a> Window<'a> {
    /// For as many pieces as the session has memory for, and one more.
    pub(super) fn new(nfs: &'a Nfs, operation: ProcedureId) -> Result<Self, Error> {
        let patience = Patience::new(nfs.options.timeout);
        let answers = AnswerQueue::new(nfs.options.depth + 1);
        let answers = answers.map_err(|error| Error::Local(error.to_string()))?;
        Ok(Self { nfs, operation, patience, answers, in_flight: BTreeMap::new() })
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub(super) fn memory(&self, bytes: u32) -> Result<Bulk, Error> {
        self.nfs.caller.client().bulk(bytes as usize).ok_or_else(|| {
            let name = nfs3::name(self.operation);
            Error::Local(format!("no memory for a {name} of {bytes} bytes"))
        })
    }

    pub(super) fn start(
        &mut self,
        Piece { offset, count }: Piece,
        spec: CallSpec,
        encode: impl Fn(&mut Encoder<'_>),
    ) -> Result<(), Error> {
        let (client, operation) = (self.nfs.caller.client(), self.operation);
        let spec = spec.resend(self.nfs.options.resend(operation));
        let (procedure, token) = (nfs3::procedure(operation), Token(offset));
        let started = client.start_to_queue(&self.answers, token, procedure, spec, encode);
        started.map_err(|refused| Error::call(operation, refused.into()))?;
        self.nfs.count(operation);
        self.in_flight.insert(offset, count);
        Ok(())
    }

    /// `None` if it is to be retried now: the server asked for more time. There must be a call in flight. `decode` gets the
    /// bytes that were asked for.
    pub(super) fn next<T>(
        &mut self,
        decode: impl FnOnce(&mut Decoder<'_>, usize) -> Result<Result<T, Nfsstat3>, DecodeError>,
    ) -> Result<(Piece, Option<T>), Error> {
        let operation = self.operation;
        let Some((Token(offset), answer)) = self.nfs.caller.next(&self.answers) else {
            return Err(Error::Local("no call is in flight".to_owned()));
        };
        let count = self.in_flight.remove(&offset).unwrap_or_default();
        let results =
            answer.and_then(|mut answer| Ok(decode(&mut answer.results(), count as usize)?));
        let piece = Piece { offset, count };
        match results.map_err(failed(operation))? {
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

    /// Number of pieces of `bytes` that fit in memory, up to the requested depth.
    pub(super) fn depth_for(&self, bytes: u32) -> Result<usize, Error> {
        let client = self.caller.client();
        let blocks = (0..self.options.depth).map_while(|_| client.bulk(bytes as usize));
        match blocks.collect::<Vec<_>>().len() {
            0 => Err(Error::Local(format!(
                "no memory for a piece of {bytes} bytes: use a smaller --block"
            ))),
            depth => Ok(depth),
        }
    }
}
