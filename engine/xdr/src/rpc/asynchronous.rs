//! Typed handlers that are futures, over [`AsyncService`](spinrpc::AsyncService). Called by generated code; may use the
//! codec traits and the engine's async services only.

use super::{Procedure, Typed};
use crate::codec::{Encode, encoding, whole};
use spinrpc::{AcceptStatus, Call, Encoder, KeptArguments, ReplyData, Results};

/// A call of any procedure of a program, which a handler keeps.
#[derive(Debug)]
pub struct KeptCall {
    /// Number of the procedure.
    pub procedure: u32,
    arguments: KeptArguments,
}

impl KeptCall {
    /// Copies the arguments of `call`. Data items in registered memory are taken along.
    pub fn new(call: &mut Call<'_>) -> Self {
        Self { procedure: call.procedure().0, arguments: call.keep_args() }
    }

    /// Its arguments, as those of procedure `P`.
    pub fn args<P: Procedure>(self) -> TypedArgs<P> {
        Typed::of(self.arguments)
    }
}

/// The arguments of a call of procedure `P`, which a handler keeps.
pub type TypedArgs<P> = Typed<KeptArguments, P>;

impl<P: Procedure> TypedArgs<P> {
    /// Decodes the arguments, which borrow from this. Data that were placed in registered memory come with the first call.
    ///
    /// # Errors
    /// GARBAGE_ARGS if they are not those of the procedure, to the last byte: the answer for such a call.
    pub fn decode(&mut self) -> Result<P::Args<'_>, AcceptStatus> {
        whole(self.args()).map_err(|_| AcceptStatus::GarbageArgs)
    }
}

/// Results of a call of procedure `P`, for a handler that is a future.
pub type TypedResults<P> = Typed<AnyResults, P>;

/// What a handler for procedure `P` ends with.
pub type Answered<P> = Result<TypedResults<P>, AcceptStatus>;

impl<P: Procedure> TypedResults<P> {
    /// Encodes these results now, so that they may borrow from the handler. If they have items for direct placement
    /// ([`Placed::Beside`](crate::Placed)), which come with [`TypedResults::with_data`], the answer is SYSTEM_ERR.
    pub fn new(results: &P::Results<'_>) -> Self {
        let (bytes, items_missing) = encoding(|to| results.encode(to));
        Self::written(None, move |to| match items_missing {
            // The engine rejects results that lack an item.
            true => to.bulk(),
            // Items of XDR are padded already.
            false => to.fixed(&bytes),
        })
    }

    /// Results whose items for direct placement ([`Placed::Beside`](crate::Placed)) are in `data`, in the same order.
    pub fn with_data(data: ReplyData, results: P::Results<'static>) -> Self
    where
        P: 'static,
    {
        Self::written(Some(data), move |to| results.encode(to))
    }

    fn written(data: Option<ReplyData>, write: impl FnOnce(&mut Encoder<'_>) + 'static) -> Self {
        Self::of(AnyResults { data, write: Box::new(write) })
    }
}

/// Results of a call of any procedure of a program.
pub struct AnyResults {
    data: Option<ReplyData>,
    write: Box<dyn FnOnce(&mut Encoder<'_>)>,
}

impl Results for AnyResults {
    fn data(&mut self) -> Option<ReplyData> {
        self.data.take()
    }

    fn encode(self, results: &mut Encoder<'_>) {
        (self.write)(results);
    }
}

impl std::fmt::Debug for AnyResults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnyResults").finish_non_exhaustive()
    }
}
