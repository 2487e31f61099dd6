//! A client for tools and tests: one connection, one call at a time, on the calling thread.

use super::client::{Client as CoreClient, Reply, ReplyHandler, Token};
use super::codec::{Decoder, Encoder};
use super::core::Core;
use super::engine::Engine;
use super::errors::{CallError, ConnectError};
use super::owned_reply::Arrived;
use super::select_driver::driver_of;
use super::service::ConnectionEvent;
use crate::config::Config;
use crate::mem::{Bulk, ExposedBulk};
use crate::reactor::CallSpec;
use spinrpc_proto::ids::{Procedure, Program, Version};
use spinrpc_proto::xdr::DecodeError;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Calls and waits. It owns an engine with one core, which moves only during its methods: between
/// calls the connection is not served, which a server tolerates for as long as it likes. Its thread
/// is tied to the core's CPU until it is dropped.
pub struct Client {
    core: Core,
    client: CoreClient,
    arrived: Rc<RefCell<Option<Arrived>>>,
    _engine: Engine,
}

struct Keep(Rc<RefCell<Option<Arrived>>>);

impl ReplyHandler for Keep {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        let mut arrived = Arrived::default();
        arrived.keep(reply);
        *self.0.borrow_mut() = Some(arrived);
    }

    fn on_event(&mut self, _: &ConnectionEvent) {}
}

impl Client {
    /// Connects with the default configuration, by the driver that `address` is for, as
    /// [`Client::connect_with`].
    ///
    /// # Errors
    /// [`ConnectError`] gives the reason why the connection failed.
    pub fn connect(
        address: &str,
        program: Program,
        version: Version,
    ) -> Result<Self, ConnectError> {
        let config = Config::default().with_driver(driver_of(address)?)?;
        Self::connect_with(config, address, program, version)
    }

    /// Connects; the engine uses the first core of `config` and pins this thread to its CPU. Blocks
    /// for five seconds at most.
    ///
    /// # Errors
    /// [`ConnectError`] gives the reason why the connection failed.
    pub fn connect_with(
        config: Config,
        address: &str,
        program: Program,
        version: Version,
    ) -> Result<Self, ConnectError> {
        let engine = Engine::new(config)?;
        let mut core = engine.core(0)?;
        let arrived = Rc::new(RefCell::new(None));
        let keep = Keep(Rc::clone(&arrived));
        let client = core.connect_wait(address, program, version, |_| keep, CONNECT_TIMEOUT)?;
        Ok(Self { core, client, arrived, _engine: engine })
    }

    /// Calls and waits for the reply. The results may be as long as `rpc.max_read_bytes`; if they are short,
    /// [`Client::call_with`] with [`CallSpec::short`] is faster.
    ///
    /// # Errors
    /// [`CallError`] gives the reason why the call failed, and whether to try again.
    pub fn call<T>(
        &mut self,
        procedure: Procedure,
        encode: impl FnOnce(&mut Encoder<'_>),
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, CallError> {
        self.call_with(procedure, &mut CallSpec::new(), encode, decode)
    }

    /// Calls as `spec` says and waits for the reply.
    ///
    /// # Errors
    /// [`CallError`] gives the reason why the call failed, and whether to try again.
    pub fn call_with<T>(
        &mut self,
        procedure: Procedure,
        spec: &mut CallSpec,
        encode: impl FnOnce(&mut Encoder<'_>),
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, CallError> {
        self.client.call(procedure, Token(0), spec, encode)?;
        let arrived = Rc::clone(&self.arrived);
        self.core.run_until(|| arrived.borrow().is_some());
        let taken = self.arrived.borrow_mut().take();
        let Some(mut arrived) = taken else { return Err(CallError::Cancelled) };
        arrived.status()?;
        Ok(decode(&mut arrived.decoder())?)
    }

    /// Registered memory of the connection, as [`crate::Client::bulk`].
    pub fn bulk(&self, bytes: usize) -> Option<Bulk> {
        self.client.bulk(bytes)
    }

    /// Memory of the connection, as [`crate::Client::exposed_bulk`].
    pub fn exposed_bulk(&self, bytes: usize) -> Option<ExposedBulk> {
        self.client.exposed_bulk(bytes)
    }

    /// True if the connection was up at the last call.
    pub fn is_up(&self) -> bool {
        self.client.is_up()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("blocking::Client").field("up", &self.is_up()).finish_non_exhaustive()
    }
}
