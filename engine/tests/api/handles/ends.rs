//! The end of a core, or of a core that never started, and the fate of its calls.

use super::*;

/// A function that panics then harms no other call.
#[test]
fn the_core_never_runs_expect_calls_to_end_with_the_engine() {
    for end in ["shutdown", "drop", "a start that fails"] {
        let engine = Engine::new(valid(client_config())).unwrap();
        let factory = |_: &_| -> fn(spinrpc::Call<'_>) { panic!("in a factory") };
        engine.serve(PROGRAM, VERSION, factory).unwrap();
        let client = connect(&engine, "shm:none").unwrap();
        let pending = client.start(NULL, CallSpec::short(), nothing).unwrap();
        let bad: Arc<OnAnswer> =
            Arc::new(|_: Token, _: Result<Reply<'_>, CallError>| panic!("on the core"));
        client.start_on_core(&bad, Token(0), NULL, CallSpec::short(), nothing).unwrap();
        match end {
            "shutdown" => engine.shutdown(),
            "drop" => {}
            _ => assert!(engine.start().is_err()),
        }
        drop(engine);
        let error = pending.wait().unwrap_err();
        assert!(matches!(error, CallError::NotExecuted(DownCause::Local)), "{end}: {error}");
        assert!(matches!(client.wait_up(LIMIT), Err(ConnectError::Down)), "{end}");
    }
}

#[test]
fn the_core_ends_expect_every_call_answered() {
    let mut pair = Pair::start();
    let pending: Vec<_> = (0..CALLS as u32 - 1).map(|number| pair.later(number)).collect();
    pair.wait_for_deferred(CALLS - 1);
    let queue = AnswerQueue::new(1).unwrap();
    pair.client
        .start_to_queue(&queue, Token(1), LATER, CallSpec::short(), |args| args.u32(99))
        .unwrap();
    pair.wait_for_deferred(CALLS);
    let waiting = thread::spawn(move || {
        pending.into_iter().map(|call| call.wait().err()).collect::<Vec<_>>()
    });
    pair.end_client();
    for error in waiting.join().unwrap() {
        assert!(matches!(error, Some(CallError::Disconnected(DownCause::Local))), "{error:?}");
    }
    let (_, answer) = queue.next().unwrap();
    assert!(matches!(answer, Err(CallError::Disconnected(DownCause::Local))), "{answer:?}");
    let refused = pair.client.start(NULL, CallSpec::short(), nothing).unwrap_err();
    assert_eq!(refused, Backpressure::Down);
    assert!(matches!(pair.client.wait_up(LIMIT), Err(ConnectError::Down)));
}

/// Threads call, and drop calls, while the core ends: none of them waits forever.
#[test]
fn the_core_ends_while_threads_call_expect_each_call_to_end() {
    for _ in 0..20 {
        let mut pair = Pair::start();
        let (barrier, is_over) = (Arc::new(Barrier::new(4)), Arc::new(AtomicBool::new(false)));
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                let (client, barrier) = (pair.client.clone(), Arc::clone(&barrier));
                let is_over = Arc::clone(&is_over);
                thread::spawn(move || {
                    barrier.wait();
                    while !is_over.load(Ordering::Relaxed) {
                        match client.start(NULL, CallSpec::short(), nothing) {
                            Ok(call) if thread == 0 => drop(call),
                            Ok(call) => drop(call.wait()),
                            Err(_) => thread::yield_now(),
                        }
                    }
                })
            })
            .collect();
        barrier.wait();
        pair.end_client();
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// A function that keeps the tokens of the calls that were lost, of which the first `sent` may have been executed.
fn note_lost(heard: &Arc<Mutex<Vec<u64>>>, sent: u64) -> Arc<OnAnswer> {
    let heard = Arc::clone(heard);
    Arc::new(move |Token(token): Token, reply: Result<Reply<'_>, CallError>| {
        match reply {
            Err(CallError::Disconnected(DownCause::Local)) => assert!(token < sent, "{token}"),
            Err(CallError::NotExecuted(DownCause::Local)) => assert!(token >= sent, "{token}"),
            _ => panic!("{token} has an answer"),
        }
        lock(&heard).push(token);
    })
}

/// Ends on a stack that has no room for something of each of them.
#[test]
fn the_core_never_runs_expect_many_calls_to_end_in_their_order() {
    const ORDERS: u64 = 8192;
    const STACK_BYTES: usize = 256 << 10;
    let raw = client_with(|raw| raw.fixed.handle_calls = ORDERS);
    let engine = Engine::new(valid(raw)).unwrap();
    let client = connect(&engine, "shm:none").unwrap();
    let heard = Arc::default();
    let on_answer = note_lost(&heard, 0);
    for token in 0..ORDERS {
        client.start_on_core(&on_answer, Token(token), NULL, CallSpec::short(), nothing).unwrap();
    }
    let ends = thread::Builder::new().stack_size(STACK_BYTES);
    ends.spawn(move || engine.shutdown()).unwrap().join().unwrap();
    assert!(lock(&heard).iter().copied().eq(0..ORDERS));
}

/// One call is in flight, some behind it wait for its credit, and the last ones have not been taken.
#[test]
fn the_core_is_dropped_expect_calls_to_end_in_their_order() {
    let server = Server::start();
    let raw = client_with(|raw| raw.rpc.credits = 1);
    let (engine, mut core) = with_core(raw);
    let client = connect(&engine, &server.address).unwrap();
    let heard = Arc::default();
    let on_answer = note_lost(&heard, 1);
    let start = |token: u64| {
        let encode = |args: &mut Encoder<'_>| args.u32(token as u32);
        client.start_on_core(&on_answer, Token(token), LATER, CallSpec::short(), encode).unwrap();
    };
    (0..100).for_each(start);
    wait_until("a call in flight", || {
        core.poll_once();
        server.shared.waiting() == 1
    });
    (100..200).for_each(start);
    assert!(lock(&heard).is_empty());
    drop(core);
    assert!(lock(&heard).iter().copied().eq(0..200));
}

/// The thread that ends the calls would wait for itself; with the call of before it need not wait.
#[test]
fn a_function_waits_for_other_calls_after_the_end_expect_it_to_be_told() {
    let engine = Engine::new(valid(client_config())).unwrap();
    let client = connect(&engine, "shm:none").unwrap();
    let (pending, heard) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let on_answer: Arc<OnAnswer> = {
        let (pending, heard) = (Arc::clone(&pending), Arc::clone(&heard));
        Arc::new(move |_: Token, _: Result<Reply<'_>, CallError>| {
            let pending: Vec<spinrpc::PendingCall> = lock(&pending).drain(..).collect();
            lock(&heard).extend(pending.into_iter().map(|call| call.wait().err()));
        })
    };
    let start = || client.start(NULL, CallSpec::short(), nothing).unwrap();
    lock(&pending).push(start());
    client.start_on_core(&on_answer, Token(0), NULL, CallSpec::short(), nothing).unwrap();
    lock(&pending).push(start());
    engine.shutdown();
    let heard = lock(&heard);
    assert!(matches!(
        heard[..],
        [Some(CallError::NotExecuted(DownCause::Local)), Some(CallError::Cancelled)]
    ));
}

/// A handle that is dropped between two attempts gives its number back.
#[test]
fn a_call_waits_for_the_first_connection_that_is_retried() {
    let address = unique_address();
    let raw = client_with(|raw| raw.limits.conns = 1);
    let engine = Started::new(Engine::new(valid(raw)).unwrap());
    let hour = Duration::from_secs(3600);
    let late = Reconnect::default().first_delay(hour).max_delay(hour).give_up_after(hour);
    let connect = |policy: Reconnect| {
        let options = ConnectOptions::new().reconnect(policy.retry_first());
        engine.connect(0, &address, PROGRAM, VERSION, &options)
    };
    drop(connect(late).unwrap());
    let mut client = None;
    wait_until("a free number", || {
        let policy = Reconnect::default().max_delay(Duration::from_millis(5));
        client = connect(policy).ok();
        client.is_some()
    });
    let client = client.unwrap();
    let pending = client.start(ECHO, CallSpec::short(), |args| args.u32(0)).unwrap();
    assert!(!client.is_up());
    wait_until("a failure", || matches!(client.failure(), Some(ConnectError::Fabric(_))));
    let server = Server::at(&address);
    assert_eq!(pending.wait().unwrap().results().u32().unwrap(), 0);
    client.wait_up(LIMIT).unwrap();
    assert!(client.failure().is_none());
    drop((client, server));
}
