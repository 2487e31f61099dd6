//! The store behind calls.
//!
//! One core owns all keys: a put and a get of the same key then need no lock, and one core makes
//! millions of them a second. The service is called on that core's thread only.

use crate::command_line::say;
use crate::kv::protocol::{
    self, KEY_BYTES_MAX, SCAN_ENTRIES_MAX, ScanArgs, Status, VALUE_BYTES_MAX,
};
use crate::kv::scanner::{Job, Scanner};
use crate::kv::store::{Capacity, Store, Value};
use crate::kv::watch::Watchers;
use spinrpc::{
    AcceptStatus, Bulk, Call, Config, ConnectionEvent, CoreContext, Data, DecodeError, Decoder,
    Engine, ReplyData, Service,
};
use std::error::Error;

/// Most keys of a store.
const ENTRIES_MAX: usize = 1 << 20;
/// Values up to this length live on the heap. They fit inline whatever the peer's threshold is.
const SMALL_BYTES_MAX: usize = 512;

/// Serves an empty store at `address` until the process is ended, and says so when it listens. The
/// configuration has one core, and room for [`WATCHES_MAX`] calls in reverse for watches.
///
/// # Errors
/// When the engine does not start, or cannot listen there.
///
/// [`WATCHES_MAX`]: crate::kv::WATCHES_MAX
pub fn serve(address: &str, config: Config) -> Result<(), Box<dyn Error>> {
    // The other half is for calls in progress.
    let capacity = Capacity { entries: ENTRIES_MAX, block_bytes: config.arena_bytes() / 2 };
    let engine = Engine::new(config)?;
    engine.serve(protocol::PROGRAM, protocol::VERSION, move |core| KvService::new(core, capacity));
    engine.listen(address)?;
    let running = engine.start()?;
    // Its cores run: it answers from here on.
    say(format_args!("listening on {address}"))?;
    Ok(running.join()?)
}

/// Answers the calls of `kv.x`.
pub struct KvService {
    store: Store,
    memory: CoreContext,
    /// `None` when the system gave no thread: then scans are refused.
    scanner: Option<Scanner>,
    watchers: Watchers,
}

impl Service for KvService {
    fn call(&mut self, call: Call<'_>) {
        match call.procedure() {
            protocol::NULL => call.reply(|_results| {}),
            protocol::GET => self.get(call),
            protocol::PUT => self.put(call),
            protocol::DELETE => self.delete(call),
            protocol::SCAN => self.scan(call),
            protocol::WATCH => self.watch(call),
            _ => call.reject(AcceptStatus::ProcUnavail),
        }
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

    fn get(&mut self, mut call: Call<'_>) {
        let Ok(key) = last(call.args(), key) else { return call.reject(AcceptStatus::GarbageArgs) };
        match self.store.get(key) {
            None => call.reply(|results| Status::NotFound.encode(results)),
            Some(Value::Small(bytes)) => call.reply(|results| {
                Status::Ok.encode(results);
                results.opaque(bytes);
            }),
            Some(Value::Large { bytes, .. }) => {
                let data = ReplyData::new().shared(bytes, 0..bytes.len());
                call.reply_with(data, |results| {
                    Status::Ok.encode(results);
                    results.bulk();
                });
            }
        }
    }

    fn put(&mut self, mut call: Call<'_>) {
        let decoded = last(call.args(), |args| Ok((key(args)?, args.data(VALUE_BYTES_MAX)?)));
        let Ok((key, data)) = decoded else { return call.reject(AcceptStatus::GarbageArgs) };
        let bytes = data.bytes().len() as u32;
        let status = match self.value(data) {
            Some(value) => self.store.put(key, value),
            None => Status::NoSpace,
        };
        if status == Status::Ok {
            self.watchers.changed(key, Some(bytes));
        }
        call.reply(|results| status.encode(results));
    }

    fn delete(&mut self, mut call: Call<'_>) {
        let Ok(key) = last(call.args(), key) else { return call.reject(AcceptStatus::GarbageArgs) };
        let status = self.store.delete(key);
        if status == Status::Ok {
            self.watchers.changed(key, None);
        }
        call.reply(|results| status.encode(results));
    }

    fn watch(&mut self, mut call: Call<'_>) {
        let Ok(key) = last(call.args(), key) else { return call.reject(AcceptStatus::GarbageArgs) };
        if key.is_empty() {
            return call.reply(|results| Status::InvalidKey.encode(results));
        }
        let value_bytes = self.store.get(key).map(|value| value.bytes().len() as u32);
        match self.watchers.add(&call, key, value_bytes) {
            Some(status) => call.reply(|results| status.encode(results)),
            None => call.reject(AcceptStatus::SystemErr),
        }
    }

    fn scan(&mut self, mut call: Call<'_>) {
        let Ok(args) = last(call.args(), ScanArgs::decode) else {
            return call.reject(AcceptStatus::GarbageArgs);
        };
        let Some(scanner) = &self.scanner else { return call.reject(AcceptStatus::SystemErr) };
        let entries_max = (args.entries_max as usize).min(SCAN_ENTRIES_MAX);
        let mut keys = self.store.scan(args.prefix, args.after);
        let page = keys.by_ref().take(entries_max);
        let found = page.map(|(key, value)| (key.to_vec(), value.clone())).collect();
        let more = keys.next().is_some();
        if let Some(call) = call.defer() {
            scanner.submit(Job { found, more, call });
        }
    }

    /// Keeps what arrived: a Read chunk's buffer as it is, a small value on the heap.
    fn value(&self, data: Data<'_>) -> Option<Value> {
        match data {
            Data::Bulk(bulk) if bulk.len() > SMALL_BYTES_MAX => Some(Value::large(bulk)),
            Data::Bulk(bulk) => Some(Value::Small(bulk.bytes().into())),
            Data::Inline(bytes) if bytes.len() > SMALL_BYTES_MAX => {
                self.registered(bytes).map(Value::large)
            }
            Data::Inline(bytes) => Some(Value::Small(bytes.into())),
        }
    }

    /// A copy of `bytes` in memory that can be sent from; `None` when none is left.
    fn registered(&self, bytes: &[u8]) -> Option<Bulk> {
        let mut bulk = self.memory.bulk(bytes.len())?;
        bulk.set_len(bytes.len());
        bulk.bytes_mut().copy_from_slice(bytes);
        Some(bulk)
    }
}

fn key<'a>(args: &mut Decoder<'a>) -> Result<&'a [u8], DecodeError> {
    args.opaque(KEY_BYTES_MAX)
}

/// Decodes with `decode`, and makes sure that nothing is left over.
fn last<'a, T>(
    mut args: Decoder<'a>,
    decode: impl FnOnce(&mut Decoder<'a>) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let decoded = decode(&mut args)?;
    args.finish()?;
    Ok(decoded)
}
