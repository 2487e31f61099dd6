//! The RPC service of the store.
//!
//! One core owns all keys, so that operations on the same key need no lock, and one core handles
//! millions of them per second. The service is only used on that core's thread.

use crate::command_line::say;
use crate::kv::protocol::kv_v1::{self, KvDelete, KvGet, KvPut, KvScan, KvWatch};
use crate::kv::protocol::{
    KvGetResult, KvKey, KvPutArgs, KvScanArgs, KvValue, SCAN_ENTRIES_MAX, Status,
};
use crate::kv::scanner::{Job, Scanner};
use crate::kv::store::{Capacity, Store, Value};
use crate::kv::watch::Watchers;
use spinrpc::{
    AcceptStatus, Bulk, Call, Config, ConnectionEvent, CoreContext, Engine, ReplyData, Service,
};
use spinrpc_xdr::Placed;
use spinrpc_xdr::rpc::TypedCall;
use std::error::Error;

/// Maximum number of keys in a store.
const ENTRIES_MAX: usize = 1 << 20;
/// Values up to this length live on the heap. They fit inline whatever the peer's threshold is.
const SMALL_BYTES_MAX: usize = 512;

/// Serves an empty store at `address` until the process is killed, and prints a line when it
/// listens. The configuration has one core, and room for [`WATCHES_MAX`] calls in reverse for
/// watches.
///
/// # Errors
/// The engine does not start, or cannot listen there.
///
/// [`WATCHES_MAX`]: crate::kv::WATCHES_MAX
pub fn serve(address: &str, config: Config) -> Result<(), Box<dyn Error>> {
    // The other half is for calls in progress.
    let capacity = Capacity { entries: ENTRIES_MAX, block_bytes: config.arena_bytes() / 2 };
    let engine = Engine::new(config)?;
    engine.serve(kv_v1::PROGRAM, kv_v1::VERSION, move |core| KvService::new(core, capacity));
    engine.listen(address)?;
    let running = engine.start()?;
    // The cores are running: calls are answered from now on.
    say(format_args!("listening on {address}"))?;
    Ok(running.join()?)
}

/// Answers the calls of `kv.x`.
pub struct KvService {
    store: Store,
    memory: CoreContext,
    /// `None` if the thread could not be started: scans are then rejected.
    scanner: Option<Scanner>,
    watchers: Watchers,
}

impl Service for KvService {
    fn call(&mut self, call: Call<'_>) {
        kv_v1::dispatch(self, call);
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        if let ConnectionEvent::Down { connection, .. } = event {
            self.watchers.forget(*connection);
        }
    }
}

impl KvService {
    /// An empty store in the memory of `core`.
    pub fn new(core: &CoreContext, capacity: Capacity) -> Self {
        let (store, memory) = (Store::new(capacity), core.clone());
        Self { store, memory, scanner: Scanner::start().ok(), watchers: Watchers::default() }
    }
}

impl kv_v1::Service for KvService {
    fn kv_get(&mut self, key: KvKey<'_>, call: TypedCall<'_, KvGet>) {
        match self.store.get(&key) {
            None => call.reply(&KvGetResult::Default(Status::KvNotFound)),
            Some(Value::Small(bytes)) => call.reply(&KvGetResult::KvOk(Placed::Inline(bytes))),
            Some(Value::Large { bytes, .. }) => {
                let data = ReplyData::new().shared(bytes, 0..bytes.len());
                call.reply_with(data, &KvGetResult::KvOk(Placed::Beside));
            }
        }
    }

    fn kv_put(&mut self, args: KvPutArgs<'_>, call: TypedCall<'_, KvPut>) {
        let KvPutArgs { key, value } = args;
        let bytes = value.bytes().len() as u32;
        let status = match self.value(value) {
            Some(value) => self.store.put(&key, value),
            None => Status::KvNoSpace,
        };
        if status == Status::KvOk {
            self.watchers.changed(&key, Some(bytes));
        }
        call.reply(&status);
    }

    fn kv_delete(&mut self, key: KvKey<'_>, call: TypedCall<'_, KvDelete>) {
        let status = self.store.delete(&key);
        if status == Status::KvOk {
            self.watchers.changed(&key, None);
        }
        call.reply(&status);
    }

    fn kv_watch(&mut self, key: KvKey<'_>, call: TypedCall<'_, KvWatch>) {
        if key.is_empty() {
            return call.reply(&Status::KvInvalidKey);
        }
        let value_bytes = self.store.get(&key).map(|value| value.bytes().len() as u32);
        match self.watchers.add(call.call(), &key, value_bytes) {
            Some(status) => call.reply(&status),
            None => call.reject(AcceptStatus::SystemErr),
        }
    }

    fn kv_scan(&mut self, args: KvScanArgs<'_>, call: TypedCall<'_, KvScan>) {
        let Some(scanner) = &self.scanner else { return call.reject(AcceptStatus::SystemErr) };
        let entries_max = (args.entries_max as usize).min(SCAN_ENTRIES_MAX);
        let mut keys = self.store.scan(&args.prefix, &args.after);
        let page = keys.by_ref().take(entries_max);
        let found = page.map(|(key, value)| (key.to_vec(), value.clone())).collect();
        let more = keys.next().is_some();
        if let Some(call) = call.defer() {
            scanner.submit(Job { found, more, call });
        }
    }
}

impl KvService {
    /// Stores received data: keeps the buffer of a Read chunk, and copies a small value to the
    /// heap.
    fn value(&self, data: KvValue<'_>) -> Option<Value> {
        match data {
            Placed::Bulk(bulk) if bulk.len() > SMALL_BYTES_MAX => Some(Value::large(bulk)),
            Placed::Bulk(bulk) => Some(Value::Small(bulk.bytes().into())),
            Placed::Inline(bytes) if bytes.len() > SMALL_BYTES_MAX => {
                self.registered(bytes).map(Value::large)
            }
            Placed::Inline(bytes) => Some(Value::Small(bytes.into())),
            Placed::Beside => None,
        }
    }

    /// A copy of `bytes` in registered memory; `None` if there is none left.
    fn registered(&self, bytes: &[u8]) -> Option<Bulk> {
        let mut bulk = self.memory.bulk(bytes.len())?;
        bulk.set_len(bytes.len());
        bulk.bytes_mut().copy_from_slice(bytes);
        Some(bulk)
    }
}
