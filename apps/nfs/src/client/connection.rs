//! Calls of a thread that waits for each, by a connection of its own core or by one of an engine that runs on others.

use super::caller::{Caller, Decode, decoded};
use spinrpc::{CallError, CallSpec, ClientHandle, Encoder, Procedure};
use std::cell::RefCell;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

/// A connection to one program, for one call at a time.
pub trait Connection {
    /// Calls, and waits for the reply.
    ///
    /// # Errors
    /// [`CallError`] is the reason for missing results.
    fn call<T: 'static>(
        &self,
        procedure: Procedure,
        spec: CallSpec,
        encode: impl Fn(&mut Encoder<'_>),
        decode: Decode<T>,
    ) -> Result<T, CallError>;

    /// Waits.
    fn pause(&self, time: Duration);
}

impl Connection for Caller {
    fn call<T: 'static>(
        &self,
        procedure: Procedure,
        mut spec: CallSpec,
        encode: impl Fn(&mut Encoder<'_>),
        decode: Decode<T>,
    ) -> Result<T, CallError> {
        let place = Rc::new(RefCell::new(None));
        let arrived = Rc::clone(&place);
        self.start(procedure, &mut spec, encode, move |reply| {
            *arrived.borrow_mut() = Some(decoded(reply, decode));
        })?;
        self.run_until(|| place.borrow().is_some());
        place.take().unwrap_or(Err(CallError::Cancelled))
    }

    fn pause(&self, time: Duration) {
        Self::pause(self, time, || false);
    }
}

impl Connection for ClientHandle {
    fn call<T: 'static>(
        &self,
        procedure: Procedure,
        spec: CallSpec,
        encode: impl Fn(&mut Encoder<'_>),
        decode: Decode<T>,
    ) -> Result<T, CallError> {
        Ok(decode(&mut self.start(procedure, spec, encode)?.wait()?.results())?)
    }

    fn pause(&self, time: Duration) {
        thread::sleep(time);
    }
}
