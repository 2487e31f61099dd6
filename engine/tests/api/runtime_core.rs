//! A core that is a task of a thread-per-core runtime: its turns, the handlers of its service and the tasks that call
//! share one thread.
//!
//! ThreadSanitizer does not see the locks of other threads of runtimes, which are in the compiled part of std.

use crate::common::prelude::*;
use std::future::poll_fn;
use std::task::Poll;

/// Tasks that call, and handlers that run, at a time.
const TASKS: u32 = 8;
/// Calls of each task.
const CALLS: u32 = 25;

/// Answers with the number of the call and that of the most handlers at a time, when a timer of the runtime has run
/// down.
#[derive(Default)]
struct Timed {
    running: Cell<u32>,
    most: Cell<u32>,
}

struct Words([u32; 2]);

impl Results for Words {
    fn encode(self, results: &mut Encoder<'_>) {
        self.0.iter().for_each(|word| results.u32(*word));
    }
}

impl AsyncService for Timed {
    type Request = u32;
    type Reply = Words;

    fn request(&self, call: &mut Call<'_>) -> Result<u32, AcceptStatus> {
        match call.procedure() {
            Procedure(0) => Ok(0),
            _ => call.args().u32().map_err(|_| AcceptStatus::GarbageArgs),
        }
    }

    async fn call(self: Rc<Self>, number: u32) -> Result<Words, AcceptStatus> {
        self.running.set(self.running.get() + 1);
        self.most.set(self.most.get().max(self.running.get()));
        compio::time::sleep(Duration::from_millis(1)).await;
        self.running.set(self.running.get() - 1);
        Ok(Words([number, self.most.get()]))
    }
}

async fn yield_now() {
    let mut is_later = false;
    poll_fn(|context| {
        if std::mem::replace(&mut is_later, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

async fn drive(mut core: Core, engine: Engine) {
    while !engine.is_shut_down() {
        core.poll_once();
        yield_now().await;
    }
}

async fn call(client: &ClientHandle, number: u32) -> Result<[u32; 2], CallError> {
    let encode = |args: &mut Encoder<'_>| args.u32(number);
    let mut answer = client.start(Procedure(1), CallSpec::short(), encode)?.await?;
    let mut results = answer.results();
    Ok([results.u32()?, results.u32()?])
}

async fn call_often(client: ClientHandle, task: u32) -> u32 {
    let mut most = 0;
    for number in 0..CALLS {
        let number = 1000 * task + number;
        let [same, most_now] = call(&client, number).await.unwrap();
        assert_eq!(same, number);
        most = most_now;
    }
    most
}

async fn serve_and_call() -> u32 {
    let server = Engine::new(valid(small_with(|_| {}))).unwrap();
    server
        .serve(PROGRAM, VERSION, |core| async_service(core, TASKS as usize, Timed::default()))
        .unwrap();
    let address = listening(&server);
    let here = Engine::new(valid(client_config())).unwrap();
    let drivers = [&server, &here]
        .map(|engine| compio::runtime::spawn(drive(engine.core(0).unwrap(), engine.clone())));
    let options = ConnectOptions::new();
    let client = here.connect(0, &address, PROGRAM, VERSION, &options).unwrap();
    let began = Instant::now();
    while !client.is_up() {
        assert!(began.elapsed() < LIMIT, "no connection");
        yield_now().await;
    }
    let tasks: Vec<_> =
        (0..TASKS).map(|task| compio::runtime::spawn(call_often(client.clone(), task))).collect();
    let mut most = 0;
    for task in tasks {
        most = most.max(task.await.unwrap());
    }
    [&server, &here].into_iter().for_each(Engine::shutdown);
    for driver in drivers {
        driver.await.unwrap();
    }
    most
}

#[test]
fn cores_are_tasks_of_compio_expect_calls_and_timers_served_by_one_thread() {
    let most = compio::runtime::Runtime::new().unwrap().block_on(serve_and_call());
    assert!(most > 1, "handlers waited for each other");
}
