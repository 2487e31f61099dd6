//! A blocking client of the store, for tools.
//!
//! Values use direct data placement: the engine moves them through chunks if they do not fit
//! inline.

use crate::kv::protocol::kv_v1::{self, KvDelete, KvGet, KvPut, KvScan};
use crate::kv::protocol::{
    KEY_BYTES_MAX, KV_SCAN_ENTRIES_MAX, KvGetResult, KvKey, KvPage, KvPutArgs, KvScanArgs,
    KvScanResult, SCAN_RESULT_BYTES_MAX, Status, VALUE_BYTES_MAX,
};
use spinrpc::{Bulk, CallError, CallSpec, Config, ConnectError, blocking};
use spinrpc_xdr::rpc::call_wait;
use spinrpc_xdr::{Opaque, Placed};

/// Reason why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no connection.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// The call itself failed.
    #[error("{0}")]
    Call(#[from] CallError),
    /// A key of the wrong length.
    #[error("a key of {0} bytes: expected 1 to {KEY_BYTES_MAX}")]
    Key(usize),
    /// A value that is too long.
    #[error("a value of {0} bytes: expected at most {VALUE_BYTES_MAX}")]
    Value(usize),
    /// The connection has no memory left for a value.
    #[error("no memory for a value of {0} bytes: the connection's arena is too small")]
    Memory(usize),
    /// The store's status.
    #[error("{}", explain(*.0))]
    Status(Status),
}

fn explain(status: Status) -> &'static str {
    match status {
        Status::KvOk => "as asked",
        Status::KvNotFound => "no such key",
        Status::KvNoSpace => "the store is full: delete something",
        Status::KvInvalidKey => "a key must have at least one byte",
        Status::KvBusy => "too many concurrent scans or watches: try again",
    }
}

/// A connection to a store.
pub struct Client {
    rpc: blocking::Client,
}

impl Client {
    /// Connects to the store at `address` with the default configuration, like
    /// [`Client::connect_with`].
    ///
    /// # Errors
    /// No server listens there, or it does not have this program.
    pub fn connect(address: &str) -> Result<Self, Error> {
        let rpc = blocking::Client::connect(address, kv_v1::PROGRAM, kv_v1::VERSION)?;
        Ok(Self { rpc })
    }

    /// Connects to the store at `address`; blocks until connected or rejected.
    ///
    /// # Errors
    /// No server listens there, or it does not have this program.
    pub fn connect_with(config: Config, address: &str) -> Result<Self, Error> {
        let (program, version) = (kv_v1::PROGRAM, kv_v1::VERSION);
        Ok(Self { rpc: blocking::Client::connect_with(config, address, program, version)? })
    }

    /// Fetches the value of `key` and passes it to `take`, in place.
    ///
    /// # Errors
    /// [`Status::KvNotFound`], and errors of any call.
    pub fn get<T>(&mut self, key: &[u8], take: impl FnOnce(&[u8]) -> T) -> Result<T, Error> {
        let key = checked(key)?;
        let mut spec = CallSpec::new().result_into(self.memory(VALUE_BYTES_MAX)?);
        call_wait::<KvGet, _>(&mut self.rpc, &mut spec, &key, |result| match result {
            KvGetResult::KvOk(value) => Ok(take(value.bytes())),
            KvGetResult::Default(status) => Err(Error::Status(status)),
        })?
    }

    /// Stores `value` under `key`, replacing an older one.
    ///
    /// # Errors
    /// [`Status::KvNoSpace`], and errors of any call.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let key = checked(key)?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::Value(value.len()));
        }
        let mut bulk = self.memory(value.len())?;
        bulk.set_len(value.len());
        bulk.bytes_mut().copy_from_slice(value);
        let mut spec = CallSpec::new().argument(bulk);
        let args = KvPutArgs { key, value: Placed::Beside };
        done(call_wait::<KvPut, _>(&mut self.rpc, &mut spec, &args, |status| status)?)
    }

    /// Deletes `key`.
    ///
    /// # Errors
    /// [`Status::KvNotFound`], and errors of any call.
    pub fn delete(&mut self, key: &[u8]) -> Result<(), Error> {
        let (key, mut spec) = (checked(key)?, CallSpec::new());
        done(call_wait::<KvDelete, _>(&mut self.rpc, &mut spec, &key, |status| status)?)
    }

    /// Lists keys that begin with `prefix` and are greater than `after`, one page.
    ///
    /// # Errors
    /// [`Status::KvBusy`], and errors of any call.
    pub fn scan(&mut self, prefix: &[u8], after: &[u8]) -> Result<Page, Error> {
        let (prefix, after) = (bounded(prefix)?, bounded(after)?);
        let args = KvScanArgs { prefix, after, entries_max: KV_SCAN_ENTRIES_MAX };
        let mut spec = CallSpec::new().reply_bytes_max(SCAN_RESULT_BYTES_MAX);
        call_wait::<KvScan, _>(&mut self.rpc, &mut spec, &args, |result| match result {
            KvScanResult::KvOk(page) => Ok(Page::of(&page)),
            KvScanResult::Default(status) => Err(Error::Status(status)),
        })?
    }

    fn memory(&mut self, bytes: usize) -> Result<Bulk, Error> {
        self.rpc.bulk(bytes).ok_or(Error::Memory(bytes))
    }
}

/// One key in the answer to a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// Length of its value, in bytes.
    pub value_bytes: u32,
    /// Checksum of its value.
    pub value_crc32: u32,
}

/// The answer to a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In the order of their keys.
    pub entries: Vec<Entry>,
    /// True if there are more keys.
    pub more: bool,
}

impl Page {
    /// Copies a page from its message.
    fn of(page: &KvPage<'_>) -> Self {
        let entries = page.entries.iter().map(|entry| Entry {
            key: entry.key.to_vec(),
            value_bytes: entry.value_bytes,
            value_crc32: entry.value_crc32,
        });
        Self { entries: entries.collect(), more: page.more }
    }
}

/// Checks the length of a key.
fn checked(key: &[u8]) -> Result<KvKey<'_>, Error> {
    if key.is_empty() { Err(Error::Key(0)) } else { bounded(key) }
}

fn bounded(key: &[u8]) -> Result<KvKey<'_>, Error> {
    Opaque::new(key).map_err(|_| Error::Key(key.len()))
}

fn done(status: Status) -> Result<(), Error> {
    if status == Status::KvOk { Ok(()) } else { Err(Error::Status(status)) }
}
