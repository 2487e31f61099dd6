//! A reply that outlives the turn it arrived in: for clients that read it on another thread, or later.

use super::client::{BesideReply, NOTHING_PLACED, Reply, take_any, take_private};
use super::codec::Decoder;
use super::errors::CallError;
use crate::mem::{Bulk, ExposedBulk};
use crate::reactor::types::rfc5666::Padded;
use crate::reactor::types::rfc5666::PulledChunks;

/// A reply, copied out of its turn into memory that is used again and grows to the longest. At first there is none.
#[derive(Default)]
pub(super) struct Arrived {
    error: Option<CallError>,
    stream: Vec<u8>,
    padded: Option<Padded>,
    placed: Vec<u32>,
    results: Vec<Option<Bulk>>,
    pulled: Option<ArrivedChunks>,
}

/// The Read chunks of a reply: where the results start, position and length of each, and its bytes.
struct ArrivedChunks {
    base: usize,
    chunks: Vec<(u32, u32)>,
    bulks: Vec<Option<Bulk>>,
}

impl Arrived {
    /// Keeps the results of a call, in the place of earlier ones.
    pub(super) fn keep(&mut self, reply: Result<Reply<'_>, CallError>) {
        self.clear();
        match reply {
            Ok(Reply { stream, beside }) => {
                self.stream.extend_from_slice(stream);
                match beside {
                    None => self.placed.extend_from_slice(&NOTHING_PLACED),
                    Some(beside) => self.keep_beside(beside),
                }
            }
            Err(error) => self.error = Some(error),
        }
    }

    fn keep_beside(&mut self, mut beside: BesideReply<'_>) {
        self.padded = beside.padded;
        self.placed.extend_from_slice(beside.placed);
        self.results.extend(beside.results.iter_mut().map(Option::take));
        // Their memory is free when the caller hears of the answer.
        beside.arguments.iter_mut().for_each(|argument| *argument = None);
        self.pulled = beside.pulled.as_deref_mut().map(|pulled| ArrivedChunks {
            base: pulled.base,
            chunks: pulled.chunks.to_vec(),
            bulks: pulled.bulks.iter_mut().map(Option::take).collect(),
        });
    }

    pub(super) fn clear(&mut self) {
        (self.error, self.padded, self.pulled) = (None, None, None);
        self.stream.clear();
        self.placed.clear();
        self.results.clear();
    }

    /// The error, if it is one; it can be taken once.
    pub(super) fn status(&mut self) -> Result<(), CallError> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// The next result buffer that the decoder has not been asked for.
    pub(super) fn take_result(&mut self) -> Option<Bulk> {
        take_private(&mut self.results)
    }

    /// The same, of either kind.
    pub(super) fn take_exposed_result(&mut self) -> Option<ExposedBulk> {
        take_any(&mut self.results)
    }

    pub(super) fn decoder(&mut self) -> Decoder<'_> {
        let Self { stream, padded, placed, results, pulled, .. } = self;
        match pulled {
            None => Decoder::results(stream, placed, results).padded(*padded),
            Some(ArrivedChunks { base, chunks, bulks }) => {
                let pulled = PulledChunks { chunks, bulks, base: *base };
                Decoder::pulled_results(stream, placed, results, pulled)
            }
        }
    }
}
