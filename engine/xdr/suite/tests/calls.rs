//! Calls with generated stubs over shared memory: a service, and clients of all kinds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test ends here")]

use spinrpc::{
    AcceptStatus, AnswerQueue, CallError, CallSpec, Config, ConnectOptions, CoreContext, Engine,
    OnAnswer, Procedure, Reply, ReplyHandler, Running, Token, blocking,
};
use spinrpc_xdr::rpc::{self, ReplyData, TypedCall};
use spinrpc_xdr::{Decode, DecodeError, Decoder, List, Opaque, Placed, Text};
use spinrpc_xdr_suite::store::store_v1::{self as store, Server as StoreServer};
use spinrpc_xdr_suite::store::{Entry, GetList, GetResult, Key, PutArgs, PutList, StoreStatus};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// The example of the generator, whose procedures have tuples as arguments.
#[allow(dead_code, unreachable_pub, reason = "a part of it is used")]
mod example {
    include!(concat!(env!("OUT_DIR"), "/example.rs"));
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
            engine
                .serve(store::PROGRAM, store::VERSION, |core| StoreServer(Store::new(core)))
                .unwrap();
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
                assert!(!call.is_unheard());
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

    /// Gives values that were placed back from where they are, and no others.
    fn store_echo(&mut self, list: PutList<'_>, call: TypedCall<'_, store::StoreEcho>) {
        let (mut data, mut results) = (ReplyData::new(), Vec::new());
        for PutArgs { value, .. } in list {
            match value {
                Placed::Bulk(bulk) => {
                    data = data.bulk(bulk);
                    results.push(GetResult::StoreOk(Placed::Beside));
                }
                _ => results.push(GetResult::Default(StoreStatus::StoreNotFound)),
            }
        }
        call.reply_with(data, &GetList::new(results).unwrap());
    }
}

/// Asks the server behind it, and adds to its answers.
struct AsyncStore {
    core: CoreContext,
    behind: store::Handle,
}

fn failed<E>(_: E) -> AcceptStatus {
    AcceptStatus::SystemErr
}

impl store::AsyncService for AsyncStore {
    async fn store_put(
        &self,
        mut args: rpc::TypedArgs<store::StorePut>,
    ) -> rpc::Answered<store::StorePut> {
        let args = args.decode()?;
        let mut answer = self.behind.store_put(&args).map_err(failed)?.await.map_err(failed)?;
        Ok(rpc::TypedResults::new(&answer.results().map_err(failed)?))
    }

    /// Its length in the key, as data.
    async fn store_get(
        &self,
        mut args: rpc::TypedArgs<store::StoreGet>,
    ) -> rpc::Answered<store::StoreGet> {
        let mut answer = self.behind.store_list().map_err(failed)?.await.map_err(failed)?;
        let names = answer.results().map_err(failed)?.iter().count();
        let key = args.decode()?;
        if key.bytes() == b"no data" {
            return Ok(rpc::TypedResults::new(&GetResult::StoreOk(Placed::Beside)));
        }
        let mut bulk = self.core.bulk(70_000).ok_or(AcceptStatus::SystemErr)?;
        bulk.set_len(70_000);
        bulk.bytes_mut().fill(key.len() as u8 + names as u8);
        let results = GetResult::StoreOk(Placed::Beside);
        Ok(rpc::TypedResults::with_data(ReplyData::new().bulk(bulk), results))
    }

    async fn store_list(&self) -> rpc::Answered<store::StoreList> {
        let mut answer = self.behind.store_list().map_err(failed)?.await.map_err(failed)?;
        Ok(rpc::TypedResults::new(&answer.results().map_err(failed)?))
    }
}

#[test]
fn async_functions_answer_when_what_they_await_is_there() {
    let behind = Started::store();
    let address = behind.address.clone();
    let server = Started::start(move |engine| {
        let serve = move |core: &CoreContext| {
            let (program, version) = (store::PROGRAM, store::VERSION);
            let behind = core.connect(&address, program, version, &ConnectOptions::new()).unwrap();
            let service = AsyncStore { core: core.clone(), behind: store::Handle(behind) };
            spinrpc::async_service(core, 8, store::AsyncServer(service))
        };
        engine.serve(store::PROGRAM, store::VERSION, serve).unwrap();
    });
    let mut client = server.client();
    client.store_null(|()| ()).unwrap();
    let args = PutArgs { name: key("k"), value: Placed::Inline(b"short") };
    assert_eq!(client.store_put(&args, |status| status).unwrap(), StoreStatus::StoreOk);
    // An argument that came as data, and a result that goes as data.
    let mut bulk = client.0.bulk(70_001).unwrap();
    bulk.set_len(70_001);
    let args = PutArgs { name: key("k"), value: Placed::Beside };
    let mut spec = CallSpec::new().argument(bulk);
    let put = rpc::call_wait::<store::StorePut, _>(&mut client.0, &mut spec, &args, |ok| ok);
    assert_eq!(put.unwrap(), StoreStatus::StoreOk);
    let mut spec = CallSpec::new().result_into(client.0.bulk(70_000).unwrap());
    rpc::call_wait::<store::StoreGet, _>(&mut client.0, &mut spec, &key("four"), |result| {
        let GetResult::StoreOk(Placed::Bulk(bulk)) = result else { panic!("{result:?}") };
        assert_eq!(bulk.bytes(), [6; 70_000]);
    })
    .unwrap();
    let names = client.store_list(|list| list.iter().map(|entry| entry.name.to_vec()).collect());
    assert_eq!(names, Ok(vec![b"a".to_vec(), b"bcd".to_vec()]));

    let refused = |result: Result<(), CallError>, status| {
        assert_eq!(result, Err(CallError::Accepted(status)));
    };
    refused(client.store_get(&key("no data"), |_| ()), AcceptStatus::SystemErr);
    refused(client.store_delete(&key("k"), |_| ()), AcceptStatus::ProcUnavail);
    refused(client.0.call(Procedure(99), |_| {}, |_| Ok(())), AcceptStatus::ProcUnavail);
    refused(client.0.call(Procedure(2), |_| {}, |_| Ok(())), AcceptStatus::GarbageArgs);
    refused(client.0.call(Procedure(3), |args| args.u32(0), |_| Ok(())), AcceptStatus::GarbageArgs);
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

/// The stub knows from the description how long the value may be.
#[test]
fn long_results_arrive_without_a_length_or_a_buffer_from_the_caller() {
    let server = Started::store();
    let mut client = server.client();
    let value = vec![5; 70_000];
    let args = PutArgs { name: key("k"), value: Placed::Inline(&value) };
    client.store_put(&args, |status| assert_eq!(status, StoreStatus::StoreOk)).unwrap();
    let got = client.store_get(&key("value"), |result| match result {
        GetResult::StoreOk(value) => value.bytes().to_vec(),
        GetResult::Default(status) => panic!("{status:?}"),
    });
    assert_eq!(got.map_err(|error| error.to_string()), Ok(value));
}

/// The caller gets SYSTEM_ERR, as from an untyped call.
#[test]
fn a_deferred_call_that_is_too_late_was_not_executed() {
    let server = Started::start(|engine| {
        let late = |_: &CoreContext| {
            |call: rpc::Call<'_>| match call.procedure().0 {
                0 => call.reply(|_| {}),
                _ => {
                    let call = TypedCall::<store::StoreList>::accept(call);
                    if let Some(deferred) = call.and_then(|((), call)| call.defer()) {
                        deferred.into_inner().too_late();
                    }
                }
            }
        };
        engine.serve(store::PROGRAM, store::VERSION, late).unwrap();
    });
    let error = server.client().store_list(|_| ()).unwrap_err();
    assert_eq!(error, CallError::Accepted(AcceptStatus::SystemErr));
}

#[test]
fn data_in_the_items_of_an_array_are_placed_directly_both_ways() {
    const BYTES: usize = 70_001;
    let server = Started::store();
    let mut client = server.client();
    let mut spec = CallSpec::new();
    for byte in [3, 4] {
        let mut bulk = client.0.bulk(BYTES).unwrap();
        bulk.set_len(BYTES);
        bulk.bytes_mut().fill(byte);
        spec.add_argument(bulk);
        spec.add_result_into(client.0.bulk(BYTES).unwrap());
    }
    let put = |value| PutArgs { name: key("k"), value };
    let list = vec![put(Placed::Beside), put(Placed::Inline(b"short")), put(Placed::Beside)];
    let list = PutList::new(list).unwrap();
    let results = rpc::call_wait::<store::StoreEcho, _>(&mut client.0, &mut spec, &list, |list| {
        let value = |result| match result {
            GetResult::StoreOk(Placed::Bulk(bulk)) => bulk.bytes().to_vec(),
            other => panic!("{other:?}"),
        };
        let mut results = list.into_vec();
        let inline = results.remove(1);
        assert_eq!(inline, GetResult::Default(StoreStatus::StoreNotFound));
        results.into_iter().map(value).collect::<Vec<_>>()
    });
    assert_eq!(results.unwrap(), [vec![3; BYTES], vec![4; BYTES]]);
}

#[test]
fn more_items_with_data_than_the_bound_are_refused() {
    let item = || PutArgs { name: key("k"), value: Placed::Inline(b"v") };
    assert!(PutList::new((0..5).map(|_| item()).collect()).is_err());
    let list = PutList::new((0..4).map(|_| item()).collect()).unwrap();
    let mut bytes = spinrpc_xdr::to_bytes(&list);
    assert_eq!(PutList::decode(&mut Decoder::plain(&bytes)), Ok(list));
    bytes[3] = 5;
    let refused = PutList::decode(&mut Decoder::plain(&bytes));
    assert_eq!(refused, Err(DecodeError::TooLong { at: 0, length: 5, max: 4 }));
    bytes[3] = 3;
    let mut from = Decoder::plain(&bytes);
    assert_eq!(PutList::decode(&mut from).unwrap().len(), 3);
    assert!(from.finish().is_err(), "the fourth is left");
    assert!(PutList::decode(&mut Decoder::plain(&bytes[..20])).is_err());
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
    let timeout = Duration::from_secs(60);
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
        engine.serve(listing::PROGRAM, listing::VERSION, |_| Both(Lister, 0)).unwrap();
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

/// The engine of a client with handles, and one of them.
fn handle(server: &Started) -> (Engine, Running, store::Handle) {
    let engine = Engine::new(Config::default()).unwrap();
    let running = engine.start().unwrap();
    let (program, version) = (store::PROGRAM, store::VERSION);
    let options = ConnectOptions::new();
    let client = engine.connect(0, &server.address, program, version, &options).unwrap();
    client.wait_up(Duration::from_secs(60)).unwrap();
    (engine, running, store::Handle(client))
}

/// Polls a future on this thread until it is ready.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn futures_and_waiting_threads_get_typed_answers() {
    let server = Started::store();
    let (engine, running, client) = handle(&server);
    let other = client.clone();
    std::thread::spawn(move || {
        let args = PutArgs { name: key("k"), value: Placed::Inline(b"v") };
        let mut answer = other.store_put(&args).unwrap().wait().unwrap();
        assert_eq!(answer.results().unwrap(), StoreStatus::StoreOk);
    })
    .join()
    .unwrap();
    let lengths = block_on(async {
        let list = client.store_list().unwrap();
        client.store_null().unwrap().await.unwrap().results().unwrap();
        let mut answer = list.await.unwrap();
        let entries = answer.results().unwrap();
        entries.iter().map(|entry| entry.name.len()).collect::<Vec<_>>()
    });
    assert_eq!(lengths, [1, 3]);
    let unavailable = client.store_delete(&key("k")).unwrap().wait();
    let unavailable = unavailable.map(|_| ());
    assert!(matches!(unavailable, Err(CallError::Accepted(AcceptStatus::ProcUnavail))));
    drop(client);
    engine.shutdown();
    running.join().unwrap();
}

#[test]
fn answers_come_to_a_queue_and_to_a_function_on_the_core() {
    let server = Started::store();
    let (engine, running, client) = handle(&server);
    let (sender, shown) = channel();
    let on_answer: Arc<OnAnswer> = Arc::new(move |token, reply| {
        let mut reply = reply.unwrap();
        let results = rpc::results::<store::StoreList>(&mut reply);
        sender.send((token, results.map(|list| list.len()))).unwrap();
    });
    let spec = CallSpec::new();
    rpc::start_on_core::<store::StoreList>(&client.0, &on_answer, Token(4), spec, &()).unwrap();
    assert_eq!(shown.recv_timeout(Duration::from_secs(60)), Ok((Token(4), Ok(2))));

    let queue = AnswerQueue::new(4).unwrap();
    let spec = CallSpec::new();
    rpc::start_to_queue::<store::StoreList>(&client.0, &queue, Token(5), spec, &()).unwrap();
    let (token, answer) = loop {
        match queue.next() {
            Some(found) => break found,
            None => std::thread::yield_now(),
        }
    };
    let mut answer = rpc::TypedAnswer::<store::StoreList>::of(answer.unwrap());
    assert_eq!((token, answer.results().unwrap().len()), (Token(5), 2));
    drop((answer, client, on_answer));
    engine.shutdown();
    running.join().unwrap();
}

#[test]
fn results_of_another_type_are_an_error_of_the_caller() {
    let server = Started::store();
    let (engine, running, client) = handle(&server);
    let answer = client.0.start(Procedure(3), CallSpec::new(), |_| {}).unwrap().wait().unwrap();
    let mut answer = rpc::TypedAnswer::<store::StoreNull>::of(answer);
    assert!(matches!(answer.results(), Err(spinrpc::DecodeError::TrailingBytes { .. })));
    drop((answer, client));
    engine.shutdown();
    running.join().unwrap();
}
