//! A service and its callers with the stubs of `x/store.x`, in two threads of one process over shared
//! memory: `cargo run -p spinrpc-xdr-suite --example store`.

use spinrpc::{
    CallError, CallSpec, Config, ConnectOptions, CoreContext, Engine, Reply, ReplyHandler, Token,
};
use spinrpc_xdr::rpc::{self, ReplyData, TypedCall};
use spinrpc_xdr::{List, Opaque, Placed};
use spinrpc_xdr_suite::store::store_v1::{self, Server, Service};
use spinrpc_xdr_suite::store::{Entry, GetResult, Key, PutArgs, StoreStatus};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

const ADDRESS: &str = "shm:xdr-example-store";

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Config::default())?;
    engine.serve(store_v1::PROGRAM, store_v1::VERSION, |core| Server(Store::new(core)))?;
    engine.listen(ADDRESS)?;
    let server = engine.start()?;
    blocking()?;
    callbacks()?;
    threads()?;
    engine.shutdown();
    Ok(server.join()?)
}

/// The values of one core.
struct Store {
    core: CoreContext,
    values: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Store {
    fn new(core: &CoreContext) -> Self {
        Self { core: core.clone(), values: BTreeMap::new() }
    }
}

/// Keys came with a call, so none is too long.
fn entry<'a>((name, value): (&'a Vec<u8>, &Vec<u8>)) -> Option<Entry<'a>> {
    Some(Entry { name: Opaque::new(name).ok()?, bytes: value.len() as u32 })
}

/// STORE_DELETE is not implemented: it is answered PROC_UNAVAIL.
impl Service for Store {
    fn store_put(&mut self, args: PutArgs<'_>, call: TypedCall<'_, store_v1::StorePut>) {
        self.values.insert(args.name.to_vec(), args.value.bytes().to_vec());
        call.reply(&StoreStatus::StoreOk);
    }

    fn store_get(&mut self, key: Key<'_>, call: TypedCall<'_, store_v1::StoreGet>) {
        let Some(value) = self.values.get(key.bytes()) else {
            return call.reply(&GetResult::Default(StoreStatus::StoreNotFound));
        };
        // A large value goes straight into the caller's memory, from registered memory.
        let bulk = self.core.bulk(value.len()).filter(|_| value.len() > 512);
        let Some(mut bulk) = bulk else {
            return call.reply(&GetResult::StoreOk(Placed::Inline(value)));
        };
        bulk.set_len(value.len());
        bulk.bytes_mut().copy_from_slice(value);
        call.reply_with(ReplyData::new().bulk(bulk), &GetResult::StoreOk(Placed::Beside));
    }

    fn store_list(&mut self, call: TypedCall<'_, store_v1::StoreList>) {
        let entries: Vec<Entry<'_>> = self.values.iter().filter_map(entry).collect();
        call.reply(&List::new(&entries));
    }
}

/// One call at a time, on this thread.
fn blocking() -> Result<(), Box<dyn Error>> {
    let mut store = store_v1::connect(ADDRESS)?;
    for (name, value) in [(&b"colour"[..], &b"blue"[..]), (b"size", b"large")] {
        let args = PutArgs { name: Opaque::new(name)?, value: Placed::Inline(value) };
        let status = store.store_put(&args, |status| status)?;
        println!("put {}: {status:?}", name.escape_ascii());
    }
    store.store_list(|entries| {
        for entry in entries {
            println!("{:?} has {} bytes", entry.name, entry.bytes);
        }
    })?;

    // A large value, both ways by direct placement.
    let mut argument = store.0.bulk(100_000).ok_or("no memory for the value")?;
    argument.set_len(100_000);
    argument.bytes_mut().fill(7);
    let args = PutArgs { name: Opaque::new(b"large")?, value: Placed::Beside };
    let mut spec = CallSpec::new().argument(argument);
    rpc::call_wait::<store_v1::StorePut, _>(&mut store.0, &mut spec, &args, |_| ())?;
    let mut spec = CallSpec::new().result_into(store.0.bulk(100_000).ok_or("no memory")?);
    let name = Opaque::new(b"large")?;
    let taken = rpc::call_wait::<store_v1::StoreGet, _>(
        &mut store.0,
        &mut spec,
        &name,
        |result| matches!(result, GetResult::StoreOk(Placed::Bulk(bulk)) if bulk.bytes() == [7; 100_000]),
    )?;
    println!("the large value was placed in memory of this end: {taken}");
    let refused = store.store_delete(&name, |_| ());
    println!("delete: {}", refused.map_or_else(|error| error.to_string(), |()| "done".to_owned()));
    Ok(())
}

/// Prints one reply.
struct Print(Rc<RefCell<bool>>);

impl ReplyHandler for Print {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        let result = reply.and_then(|mut reply| {
            let value = rpc::results::<store_v1::StoreGet>(&mut reply)?;
            println!("get: {value:?}");
            Ok(())
        });
        if let Err(error) = result {
            println!("get: {error}");
        }
        *self.0.borrow_mut() = true;
    }
}

/// As many calls as the connection takes, without waiting for one before the next.
fn callbacks() -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Config::default())?;
    let mut core = engine.core(0)?;
    let is_done = Rc::new(RefCell::new(false));
    let print = Print(Rc::clone(&is_done));
    let (program, version) = (store_v1::PROGRAM, store_v1::VERSION);
    let client = core.connect_wait(ADDRESS, program, version, |_| print, Duration::from_secs(5))?;
    let client = store_v1::Client(client);
    client.store_get(Token(1), &mut CallSpec::new(), &Opaque::new(b"colour")?)?;
    core.run_until(|| *is_done.borrow());
    Ok(())
}

/// Calls from several threads over one connection. A pending call is a future, too.
fn threads() -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Config::default())?;
    let running = engine.start()?;
    let (program, version) = (store_v1::PROGRAM, store_v1::VERSION);
    let client = engine.connect(0, ADDRESS, program, version, &ConnectOptions::new())?;
    let client = store_v1::Handle(client);
    let read = |name: &[u8]| -> Result<String, Box<dyn Error + Send + Sync>> {
        let mut answer = client.store_get(&Opaque::new(name)?)?.wait()?;
        Ok(format!("{:?}", answer.results()?))
    };
    let values = std::thread::scope(|scope| {
        [&b"colour"[..], b"size"].map(|name| scope.spawn(move || read(name))).map(|it| it.join())
    });
    for value in values.into_iter().flatten() {
        println!("get from a thread: {}", value.map_err(|error| error.to_string())?);
    }
    drop(client);
    engine.shutdown();
    Ok(running.join()?)
}
