//! A client of the store that waits for each reply, for tools.
//!
//! Values travel by direct data placement: the engine puts them into chunks where they do not fit
//! inline.

use crate::kv::protocol::{
    self, KEY_BYTES_MAX, Page, SCAN_ENTRIES_MAX, SCAN_RESULT_BYTES_MAX, ScanArgs, Status,
    VALUE_BYTES_MAX,
};
use spinrpc::blocking;
use spinrpc::{
    Bulk, CallError, CallSpec, Config, ConnectError, Data, DecodeError, Decoder, Encoder, Procedure,
};

/// Why the store did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no connection.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// The call itself failed.
    #[error("{0}")]
    Call(#[from] CallError),
    /// A key of the wrong length.
    #[error("a key of {0} bytes: allowed are 1 to {KEY_BYTES_MAX}")]
    Key(usize),
    /// A value that is too long.
    #[error("a value of {0} bytes: allowed are at most {VALUE_BYTES_MAX}")]
    Value(usize),
    /// The connection has no memory left for a value.
    #[error("no memory for a value of {0} bytes: the connection's arena is too small")]
    Memory(usize),
    /// The store's own answer.
    #[error("{}", explain(*.0))]
    Status(Status),
    /// An answer that is not in the protocol.
    #[error("the server answered with a status this client does not know")]
    UnknownStatus,
}

fn explain(status: Status) -> &'static str {
    match status {
        Status::Ok => "as asked",
        Status::NotFound => "no such key",
        Status::NoSpace => "the store is full: delete something",
        Status::InvalidKey => "a key has at least one byte",
        Status::Busy => "too many scans or watches at a time: try again",
    }
}

/// A connection to a store.
pub struct Client {
    rpc: blocking::Client,
}

impl Client {
    /// Connects to the store at `address` with the default configuration, as
    /// [`Client::connect_with`].
    ///
    /// # Errors
    /// When no server listens there, or not this program.
    pub fn connect(address: &str) -> Result<Self, Error> {
        let rpc = blocking::Client::connect(address, protocol::PROGRAM, protocol::VERSION)?;
        Ok(Self { rpc })
    }

    /// Connects to the store at `address`; blocks until it is there or refused.
    ///
    /// # Errors
    /// No server listens there, or it does not have this program.
    pub fn connect_with(config: Config, address: &str) -> Result<Self, Error> {
        let (program, version) = (protocol::PROGRAM, protocol::VERSION);
        Ok(Self { rpc: blocking::Client::connect_with(config, address, program, version)? })
    }

    /// Fetches the value of `key` and gives it to `take`, where it was placed.
    ///
    /// # Errors
    /// [`Status::NotFound`], and what can go wrong with any call.
    pub fn get<T>(&mut self, key: &[u8], take: impl FnOnce(&[u8]) -> T) -> Result<T, Error> {
        check_key(key)?;
        let room = self.memory(VALUE_BYTES_MAX)?;
        let mut spec = CallSpec::new().result_into(room);
        self.call(
            protocol::GET,
            &mut spec,
            |args| args.opaque(key),
            |results| {
                Ok(match results.data(VALUE_BYTES_MAX)? {
                    Data::Inline(bytes) => take(bytes),
                    Data::Bulk(bulk) => take(bulk.bytes()),
                })
            },
        )
    }

    /// Stores `value` under `key`, over an older one.
    ///
    /// # Errors
    /// [`Status::NoSpace`], and what can go wrong with any call.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        check_key(key)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::Value(value.len()));
        }
        let mut bulk = self.memory(value.len())?;
        bulk.set_len(value.len());
        bulk.bytes_mut().copy_from_slice(value);
        let mut spec = CallSpec::new().argument(bulk);
        let encode = |args: &mut Encoder<'_>| {
            args.opaque(key);
            args.bulk();
        };
        self.call(protocol::PUT, &mut spec, encode, |_| Ok(()))
    }

    /// Forgets the value of `key`.
    ///
    /// # Errors
    /// [`Status::NotFound`], and what can go wrong with any call.
    pub fn delete(&mut self, key: &[u8]) -> Result<(), Error> {
        check_key(key)?;
        self.call(protocol::DELETE, &mut CallSpec::new(), |args| args.opaque(key), |_| Ok(()))
    }

    /// Lists keys that begin with `prefix` and are greater than `after`, a page at a time.
    ///
    /// # Errors
    /// [`Status::Busy`], and what can go wrong with any call.
    pub fn scan(&mut self, prefix: &[u8], after: &[u8]) -> Result<Page, Error> {
        let args = ScanArgs { prefix, after, entries_max: SCAN_ENTRIES_MAX as u32 };
        let mut spec = CallSpec::new().reply_bytes_max(SCAN_RESULT_BYTES_MAX);
        self.call(protocol::SCAN, &mut spec, |call_args| args.encode(call_args), Page::decode)
    }

    fn memory(&mut self, bytes: usize) -> Result<Bulk, Error> {
        self.rpc.bulk(bytes).ok_or(Error::Memory(bytes))
    }

    /// One call whose results begin with a status; `decode` reads what follows [`Status::Ok`].
    fn call<T>(
        &mut self,
        procedure: Procedure,
        spec: &mut CallSpec,
        encode: impl Fn(&mut Encoder<'_>),
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, Error> {
        let decode = |results: &mut Decoder<'_>| match Status::decode(results)? {
            Some(Status::Ok) => Ok(Ok(decode(results)?)),
            Some(status) => Ok(Err(Error::Status(status))),
            None => Ok(Err(Error::UnknownStatus)),
        };
        self.rpc.call_with(procedure, spec, encode, decode)?
    }
}

fn check_key(key: &[u8]) -> Result<(), Error> {
    let allowed = (1..=KEY_BYTES_MAX).contains(&key.len());
    if allowed { Ok(()) } else { Err(Error::Key(key.len())) }
}
