//! Calls by the thread of the engine's core: it runs turns while it waits for their answers.

use super::connection::Connection;
use super::{Error, Options, connect_timeout, user};
use spinrpc::fabric::Address;
use spinrpc::{
    Answer, AnswerQueue, Backpressure, CallError, ClientHandle, ConnectError, ConnectOptions,
    ConnectionEvent, Core, DownCause, Engine, PendingCall, Program, Token, Version,
};
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Makes calls to one program.
pub struct Caller {
    core: Rc<RefCell<Core>>,
    client: ClientHandle,
    /// Why there is no connection any more.
    down: Arc<OnceLock<DownCause>>,
}

impl Caller {
    /// Connects core 0 of the engine, which this thread runs.
    pub(super) fn connect(
        (engine, core): (&Engine, &Rc<RefCell<Core>>),
        server: &Address,
        program: (Program, Version),
        connect: ConnectOptions,
        options: &Options,
    ) -> Result<Self, Error> {
        let down = Arc::<OnceLock<DownCause>>::default();
        let ended = Arc::clone(&down);
        let connect = connect.on_event(move |event| {
            if let ConnectionEvent::Down { cause, .. } = event {
                let _ = ended.set(cause.clone());
            }
        });
        let end = Instant::now() + connect_timeout(options);
        let wait = |client: &ClientHandle| {
            let mut core = core.borrow_mut();
            core.run_until(|| !is_connecting(client) || Instant::now() >= end);
        };
        let to = (&server.to_string()[..], program);
        let client = connected((engine, 0), to, &connect, options, wait)?;
        if options.security.is_none() {
            user::set(|user| client.set_auth_sys(user), options)?;
        }
        Ok(Self { core: Rc::clone(core), client, down })
    }

    /// Runs turns of the core until `done`.
    pub fn run_until(&self, done: impl FnMut() -> bool) {
        self.core.borrow_mut().run_until(done);
    }

    /// Runs turns of the core for `time`, or until `done`.
    pub fn pause(&self, time: Duration, mut done: impl FnMut() -> bool) {
        let end = Instant::now() + time;
        self.run_until(|| done() || Instant::now() >= end);
    }

    /// Waits for the answer. `None` if `stop` returned true before.
    pub(super) fn answer(
        &self,
        mut pending: PendingCall,
        mut stop: impl FnMut() -> bool,
    ) -> Option<Result<Answer, CallError>> {
        let (mut answer, mut context) = (None, Context::from_waker(Waker::noop()));
        self.run_until(|| {
            if let Poll::Ready(ended) = Pin::new(&mut pending).poll(&mut context) {
                answer = Some(ended);
            }
            answer.is_some() || stop()
        });
        answer.map(|answer| answer.map_err(|error| self.explained(error)))
    }

    /// Waits for the next answer in `queue`, for which there must be a call in flight.
    pub(super) fn next(&self, queue: &AnswerQueue) -> Option<(Token, Result<Answer, CallError>)> {
        let mut next = None;
        self.run_until(|| {
            next = queue.next();
            next.is_some()
        });
        next.map(|(token, answer)| (token, answer.map_err(|error| self.explained(error))))
    }

    /// A call that was refused because the security context has ended, and cannot be replaced, gets the reason of that.
    fn explained(&self, error: CallError) -> CallError {
        match (&error, self.down.get()) {
            (CallError::NotStarted(Backpressure::Down), Some(cause @ DownCause::Security(_))) => {
                CallError::NotExecuted(cause.clone())
            }
            _ => error,
        }
    }
}

impl Connection for Caller {
    fn client(&self) -> &ClientHandle {
        &self.client
    }

    fn wait(&self, pending: PendingCall) -> Result<Answer, CallError> {
        self.answer(pending, || false).unwrap_or(Err(CallError::Cancelled))
    }

    fn pause(&self, time: Duration) {
        Self::pause(self, time, || false);
    }
}

/// Waits until the connection is closed, or for a second, so that the server is notified.
impl Drop for Caller {
    fn drop(&mut self) {
        self.client.close();
        self.pause(CLOSE_TIMEOUT, || !self.client.is_up());
    }
}

fn is_connecting(client: &ClientHandle) -> bool {
    matches!(client.wait_up(Duration::ZERO), Err(ConnectError::TimedOut(_)))
}

/// Connects, and waits for that.
pub(super) fn connected(
    (engine, core): (&Engine, usize),
    (address, (program, version)): (&str, (Program, Version)),
    connect: &ConnectOptions,
    options: &Options,
    wait: impl FnOnce(&ClientHandle),
) -> Result<ClientHandle, Error> {
    let timeout = connect_timeout(options);
    let up = engine.connect(core, address, program, version, connect).and_then(|client| {
        wait(&client);
        client.wait_up(timeout).map(|()| client)
    });
    up.map_err(|source| match source {
        // On the thread of the core the time is over already.
        ConnectError::TimedOut(_) => unreachable(address, ConnectError::TimedOut(timeout)),
        source => unreachable(address, source),
    })
}

pub(super) fn unreachable(address: &str, source: ConnectError) -> Error {
    match source {
        ConnectError::Security(reason) => {
            Error::Unreachable(format!("Kerberos with {address}: {reason}"))
        }
        source => Error::Connect(address.to_owned(), source),
    }
}
