//! Calls with generated stubs over shared memory: a service, a blocking client and one with callbacks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

use spinrpc::{
    AcceptStatus, CallError, CallSpec, Config, CoreContext, Engine, Procedure, Reply, ReplyHandler,
    Running, Token, blocking,
};
use spinrpc_xdr::rpc::{self, ReplyData, TypedCall};
use spinrpc_xdr::{List, Opaque, Placed, Text};
use spinrpc_xdr_suite::store::store_v1::{self as store, Server as StoreServer};
use spinrpc_xdr_suite::store::{Entry, GetResult, Key, PutArgs, StoreStatus};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// The example of the generator, whose procedures have tuples as arguments.
#[allow(dead_code, unreachable_pub, reason = "a part of it is used")]
mod example {
    include!("../../gen/tests/golden/example.rs");
}

use example::store_v1 as listing;

/// A server that ends with the test.
struct Started {
    engine: Engine,
    running: Option<Running>,
    address: String,
}

impl Started {
    fn start(serve: impl FnOnce(&Engine)) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let address = format!("shm:xdr-calls-{}-{number}", std::process::id());
        let engine = Engine::new(Config::default()).unwrap();
        serve(&engine);
        engine.listen(&address).unwrap();
        let running = Some(engine.start().unwrap());
        Self { engine, running, address }
    }

    fn store() -> Self {
        Self::start(|engine| {
            engine.serve(store::PROGRAM, store::VERSION, |core| StoreServer(Store::new(core)));
        })
    }

    fn client(&self) -> store::Blocking {
        store::connect(&self.address).unwrap()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.engine.shutdown();
        self.running.take().unwrap().join().unwrap();
    }
}

/// Has one value; lists are answered by another thread.
struct Store {
    core: CoreContext,
    value: Vec<u8>,
    was_placed: bool,
    lister: Sender<rpc::TypedDeferred<store::StoreList>>,
}

impl Store {
    fn new(core: &CoreContext) -> Self {
        let (lister, calls) = channel::<rpc::TypedDeferred<store::StoreList>>();
        std::thread::spawn(move || {
            for call in calls {
                let names = ["a", "bcd"].map(|name| Opaque::new(name.as_bytes()).unwrap());
                call.reply(&List::new(&names.map(|name| Entry { name, bytes: 9 })));
            }
        });
        Self { core: core.clone(), value: Vec::new(), was_placed: false, lister }
    }
}

impl store::Service for Store {
    fn store_put(&mut self, args: PutArgs<'_>, call: TypedCall<'_, store::StorePut>) {
        self.was_placed = matches!(args.value, Placed::Bulk(_));
        self.value = args.value.bytes().to_vec();
        call.reply(&StoreStatus::StoreOk);
    }

    fn store_get(&mut self, key: Key<'_>, call: TypedCall<'_, store::StoreGet>) {
        match key.bytes() {
            b"placed" => {
                call.reply(&GetResult::StoreOk(Placed::Inline(&[u8::from(self.was_placed)])));
            }
            b"value" => {
                let mut bulk = self.core.bulk(self.value.len()).unwrap();
                bulk.set_len(self.value.len());
                bulk.bytes_mut().copy_from_slice(&self.value);
                let results = GetResult::StoreOk(Placed::Beside);
                call.reply_with(ReplyData::new().bulk(bulk), &results);
            }
            _ => call.reply(&GetResult::Default(StoreStatus::StoreNotFound)),
        }
    }

    fn store_list(&mut self, call: TypedCall<'_, store::StoreList>) {
        let _ = self.lister.send(call.defer().unwrap());
    }
}

fn key(name: &str) -> Key<'_> {
    Opaque::new(name.as_bytes()).unwrap()
}

fn is_placed(client: &mut store::Blocking) -> bool {
    client
        .store_get(&key("placed"), |result| match result {
            GetResult::StoreOk(placed) => placed.bytes() == [1],
            GetResult::Default(_) => panic!(),
        })
        .unwrap()
}

#[test]
fn a_value_goes_there_and_back_inline_and_by_direct_placement() {
    let server = Started::store();
    let mut client = server.client();
    let args = PutArgs { name: key("k"), value: Placed::Inline(b"short") };
    assert_eq!(client.store_put(&args, |status| status).unwrap(), StoreStatus::StoreOk);
    assert!(!is_placed(&mut client));

    let mut bulk = client.0.bulk(70_001).unwrap();
    bulk.set_len(70_001);
    bulk.bytes_mut().fill(3);
    let args = PutArgs { name: key("k"), value: Placed::Beside };
    let mut spec = CallSpec::new().argument(bulk);
    let status = rpc::call_wait::<store::StorePut, _>(&mut client.0, &mut spec, &args, |ok| ok);
    assert_eq!(status.unwrap(), StoreStatus::StoreOk);
    assert!(is_placed(&mut client));

    let mut spec = CallSpec::new().result_into(client.0.bulk(70_001).unwrap());
    rpc::call_wait::<store::StoreGet, _>(&mut client.0, &mut spec, &key("value"), |result| {
        let GetResult::StoreOk(Placed::Bulk(bulk)) = result else { panic!("{result:?}") };
        assert_eq!(bulk.bytes(), [3; 70_001]);
    })
    .unwrap();
}

#[test]
fn a_default_arm_and_a_deferred_list_come_back() {
    let server = Started::store();
    let mut client = server.client();
    let missing = client.store_get(&key("none"), |result| {
        matches!(result, GetResult::Default(StoreStatus::StoreNotFound))
    });
    assert!(missing.unwrap());
    let names = client
        .store_list(|entries| entries.iter().map(|entry| entry.name.to_vec()).collect::<Vec<_>>());
    assert_eq!(names.unwrap(), [b"a".to_vec(), b"bcd".to_vec()]);
}

#[test]
fn procedures_that_are_not_there_are_unavailable_and_null_is() {
    let server = Started::store();
    let mut client = server.client();
    client.store_null(|()| ()).unwrap();
    let unavailable = |result: Result<(), CallError>| {
        assert!(
            matches!(result, Err(CallError::Accepted(AcceptStatus::ProcUnavail))),
            "{result:?}"
        );
    };
    unavailable(client.store_delete(&key("k"), |_| ()));
    unavailable(client.0.call(Procedure(99), |_| {}, |_| Ok(())));
}

#[test]
fn arguments_of_another_type_are_garbage() {
    let server = Started::store();
    let mut client = server.client();
    let garbage = |result: Result<(), CallError>| {
        assert!(
            matches!(result, Err(CallError::Accepted(AcceptStatus::GarbageArgs))),
            "{result:?}"
        );
    };
    garbage(client.0.call(Procedure(2), |_| {}, |_| Ok(())));
    garbage(client.0.call(Procedure(2), |args| args.opaque(&[0; 256]), |_| Ok(())));
    let trailing = |args: &mut spinrpc::Encoder<'_>| {
        args.opaque(b"key");
        args.u32(0);
    };
    garbage(client.0.call(Procedure(2), trailing, |_| Ok(())));
    garbage(client.0.call(Procedure(0), |args| args.u32(0), |_| Ok(())));
}

/// Keeps what arrived.
struct Keep(Rc<RefCell<Vec<(Token, String)>>>);

impl ReplyHandler for Keep {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        let mut reply = reply.unwrap();
        let shown = match token {
            Token(1) => format!("{:?}", rpc::results::<store::StorePut>(&mut reply)),
            Token(2) => format!("{:?}", rpc::results::<store::StoreList>(&mut reply)),
            _ => format!("{:?}", rpc::results::<store::StoreNull>(&mut reply)),
        };
        self.0.borrow_mut().push((token, shown));
    }
}

#[test]
fn a_client_with_callbacks_has_many_calls_in_flight() {
    let server = Started::store();
    let engine = Engine::new(Config::default()).unwrap();
    let mut core = engine.core(0).unwrap();
    let arrived = Rc::new(RefCell::new(Vec::new()));
    let keep = Keep(Rc::clone(&arrived));
    let timeout = Duration::from_secs(5);
    let (program, version) = (store::PROGRAM, store::VERSION);
    let client = core.connect_wait(&server.address, program, version, |_| keep, timeout).unwrap();
    let client = store::Client(client);
    let mut spec = CallSpec::new();
    let args = PutArgs { name: key("k"), value: Placed::Inline(b"v") };
    client.store_put(Token(1), &mut spec, &args).unwrap();
    client.store_list(Token(2), &mut spec).unwrap();
    client.store_null(Token(3), &mut spec).unwrap();
    core.run_until(|| arrived.borrow().len() == 3);
    let mut arrived = arrived.borrow().clone();
    arrived.sort();
    let list = r#"Ok([Entry { name: "a", bytes: 9 }, Entry { name: "bcd", bytes: 9 }])"#;
    let expected = [(Token(1), "Ok(StoreOk)"), (Token(2), list), (Token(3), "Ok(())")];
    assert_eq!(arrived, expected.map(|(token, shown)| (token, shown.to_owned())));
}

/// Answers with what it was asked for.
struct Lister;

impl listing::Service for Lister {
    fn store_list(&mut self, name: example::Name<'_>, call: TypedCall<'_, listing::StoreList>) {
        let entries = [example::Entry { name }; 3];
        call.reply(&example::Listing::Directory(List::new(&entries)));
    }

    fn store_read(
        &mut self,
        (name, offset): (example::Name<'_>, u64),
        call: TypedCall<'_, listing::StoreRead>,
    ) {
        let data = Placed::Inline(name.as_bytes());
        call.reply(&example::Page { offset, data });
    }
}

/// A service that has another job, too, hands its calls on.
struct Both(Lister, u32);

impl spinrpc::Service for Both {
    fn call(&mut self, call: spinrpc::Call<'_>) {
        self.1 += 1;
        listing::dispatch(&mut self.0, call);
    }
}

#[test]
fn several_arguments_come_as_a_tuple() {
    let server = Started::start(|engine| {
        engine.serve(listing::PROGRAM, listing::VERSION, |_| Both(Lister, 0));
    });
    let client = blocking::Client::connect(&server.address, listing::PROGRAM, listing::VERSION);
    let mut client = listing::Blocking(client.unwrap());
    let name = Text::new("n\u{e4}me").unwrap();
    let shown = client.store_read(&(name, 1 << 40), |page| format!("{page:?}")).unwrap();
    assert_eq!(shown, "Page { offset: 1099511627776, data: Inline([110, 195, 164, 109, 101]) }");
    let count = client.store_list(&name, |listing| match listing {
        example::Listing::Directory(entries) => {
            assert!(entries.iter().all(|entry| &*entry.name == "n\u{e4}me"));
            entries.len()
        }
        example::Listing::Default(_) => 0,
    });
    assert_eq!(count.unwrap(), 3);
}
