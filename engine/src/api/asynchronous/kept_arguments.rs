//! Arguments that outlive the call's turn.

use crate::api::call::{Arguments, Call};
use crate::api::codec::Decoder;
use crate::mem::Bulk;
use crate::reactor::types::rfc5666::Padded;

/// Arguments as received: the stream, and the data items that came with it. They outlive the call's turn, for a handler
/// that goes on later; see [`Call::keep_args`].
#[derive(Default)]
pub struct KeptArguments {
    stream: Vec<u8>,
    base: usize,
    padded: Option<Padded>,
    chunks: Vec<(u32, u32)>,
    bulks: Vec<Option<Bulk>>,
}

impl KeptArguments {
    fn keep(&mut self, arguments: Option<Arguments<'_>>) {
        let Some(Arguments { stream, base, beside }) = arguments else { return };
        self.base = base;
        self.stream.extend_from_slice(stream);
        if let Some(beside) = beside {
            self.padded = beside.padded;
            self.chunks.extend_from_slice(beside.chunks);
            self.bulks.extend(beside.bulks.iter_mut().map(Option::take));
        }
    }

    /// The arguments, from the beginning. Data items that [`Decoder::data`] has taken are there for the first reader.
    pub fn args(&mut self) -> Decoder<'_> {
        let (chunks, bulks) = (&self.chunks, &mut self.bulks);
        Decoder::arguments(&self.stream, self.base, chunks, bulks).padded(self.padded)
    }
}

impl std::fmt::Debug for KeptArguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptArguments").field("bytes", &self.stream.len()).finish_non_exhaustive()
    }
}

impl Call<'_> {
    /// Takes the arguments out of the call, for a handler that reads them later: a copy of the message, which it allocates,
    /// and the registered memory of data items. [`Call::args`] is a reader at its end after that.
    pub fn keep_args(&mut self) -> KeptArguments {
        let mut kept = KeptArguments::default();
        kept.keep(self.0.arguments.take());
        kept
    }
}
