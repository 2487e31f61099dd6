//! Calls of a thread that waits for each, by a connection of its own core or by one of an engine that runs on others.

use spinrpc::{
    Answer, CallError, CallSpec, ClientHandle, DecodeError, Decoder, Encoder, PendingCall,
    Procedure,
};
use std::thread;
use std::time::Duration;

/// Decodes the results of a call.
pub type Decode<T> = fn(&mut Decoder<'_>) -> Result<T, DecodeError>;

/// A connection to one program, for one call at a time.
pub trait Connection {
    /// The connection itself.
    fn client(&self) -> &ClientHandle;

    /// Waits for the answer.
    ///
    /// # Errors
    /// [`CallError`] is the reason for a missing answer.
    fn wait(&self, pending: PendingCall) -> Result<Answer, CallError>;

    /// Waits.
    fn pause(&self, time: Duration);

    /// Calls, and waits for the reply.
    ///
    /// # Errors
    /// [`CallError`] is the reason for missing results.
    fn call<T>(
        &self,
        procedure: Procedure,
        spec: CallSpec,
        encode: impl Fn(&mut Encoder<'_>),
        decode: Decode<T>,
    ) -> Result<T, CallError> {
        let pending = self.client().start(procedure, spec, encode)?;
        Ok(decode(&mut self.wait(pending)?.results())?)
    }
}

impl Connection for ClientHandle {
    fn client(&self) -> &ClientHandle {
        self
    }

    fn wait(&self, pending: PendingCall) -> Result<Answer, CallError> {
        pending.wait()
    }

    fn pause(&self, time: Duration) {
        thread::sleep(time);
    }
}
