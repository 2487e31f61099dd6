//! A client for tools and tests: one connection, one call at a time, on the calling thread.

use super::client::{
    BesideReply, Client as CoreClient, NOTHING_PLACED, Reply, ReplyHandler, Token,
};
use super::codec::{Decoder, Encoder};
use super::core::Core;
use super::driver::driver_of;
use super::engine::Engine;
use super::errors::{CallError, ConnectError};
use super::service::ConnectionEvent;
use crate::config::Config;
use crate::mem::{Bulk, ExposedBulk};
use crate::reactor::CallSpec;
use crate::reactor::words::calls::PulledChunks;
use spinrpc_proto::alignment::Alignment;
use spinrpc_proto::ids::{Procedure, Program, Version};
use spinrpc_proto::xdr::DecodeError;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Calls and waits. It owns an engine with one core, which moves only during its methods: between
/// calls the connection is not served, which a server bears for as long as it likes. Its thread is tied
/// to the core's CPU until it is dropped.
pub struct Client {
    core: Core,
    client: CoreClient,
    arrived: Rc<RefCell<Option<Arrived>>>,
    _engine: Engine,
}

/// A reply, copied out of the turn it arrived in.
struct Arrived {
    result: Result<(), CallError>,
    stream: Vec<u8>,
    /// Of an RDMA_MSGP: its alignment, and where in the message the stream begins.
    padding: Option<(Alignment, usize)>,
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
    fn of(result: Result<(), CallError>, stream: Vec<u8>) -> Self {
        let (placed, results) = (NOTHING_PLACED.to_vec(), Vec::new());
        Self { result, stream, padding: None, placed, results, pulled: None }
    }

    fn decoder(&mut self) -> Decoder<'_> {
        let Self { stream, padding, placed, results, pulled, .. } = self;
        match pulled {
            None => {
                let decoder = Decoder::results(stream, placed, results);
                match *padding {
                    Some((alignment, start)) => decoder.aligned(alignment, start),
                    None => decoder,
                }
            }
            Some(ArrivedChunks { base, chunks, bulks }) => {
                let pulled = PulledChunks { chunks, bulks, base: *base };
                Decoder::pulled_results(stream, placed, results, pulled)
            }
        }
    }
}

struct Keep(Rc<RefCell<Option<Arrived>>>);

impl ReplyHandler for Keep {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        let arrived = match reply {
            Ok(Reply { stream, beside: None }) => Arrived::of(Ok(()), stream.to_vec()),
            Ok(Reply { stream, beside: Some(mut beside) }) => Arrived {
                padding: beside.padded.as_ref().map(|padded| (padded.alignment, padded.start)),
                placed: beside.placed.to_vec(),
                results: beside.results.iter_mut().map(Option::take).collect(),
                pulled: beside.pulled.as_deref_mut().map(|pulled| ArrivedChunks {
                    base: pulled.base,
                    chunks: pulled.chunks.to_vec(),
                    bulks: pulled.bulks.iter_mut().map(Option::take).collect(),
                }),
                ..Arrived::of(Ok(()), whole_stream(stream, &beside))
            },
            Err(error) => Arrived::of(Err(error), Vec::new()),
        };
        *self.0.borrow_mut() = Some(arrived);
    }

    fn on_event(&mut self, _: &ConnectionEvent) {}
}

/// Both parts of a stream that goes on in the second buffer of its receive.
fn whole_stream(stream: &[u8], beside: &BesideReply<'_>) -> Vec<u8> {
    let spill = beside.padded.as_ref().and_then(|padded| padded.spill.as_ref());
    let tail = spill.and_then(|spill| spill.tail.as_ref());
    [stream, tail.map_or(&[][..], Bulk::bytes)].concat()
}

impl Client {
    /// Connects with the default configuration, by the driver that `address` is for, as
    /// [`Client::connect_with`].
    ///
    /// # Errors
    /// [`ConnectError`] says why there is no connection.
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
    /// [`ConnectError`] says why there is no connection.
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

    /// Calls with short arguments and results, and waits for the reply.
    ///
    /// # Errors
    /// [`CallError`] says why there is no result, and whether to try again.
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
    /// [`CallError`] says why there is no result, and whether to try again.
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
        std::mem::replace(&mut arrived.result, Ok(()))?;
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

    /// Whether the connection is up, as far as the last call knew.
    pub fn is_up(&self) -> bool {
        self.client.is_up()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("blocking::Client").field("up", &self.is_up()).finish_non_exhaustive()
    }
}
