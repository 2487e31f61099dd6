//! Calls to one program over one connection: one at a time, or several in flight.
//!
//! Replies are decoded in place, in the turn in which they arrive. Everything belongs to the core's thread.

use spinrpc::{
    Backpressure, Bulk, CallError, CallId, CallSpec, Client, ConnectionEvent, Core, DecodeError,
    Decoder, DownCause, Encoder, Procedure, Reply, ReplyHandler, Token,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Attempts after the time limit of a call that waits for others.
const LATE_ATTEMPTS: u32 = 4;

/// Decodes the results of a call.
pub type Decode<T> = fn(&mut Decoder<'_>) -> Result<T, DecodeError>;

type Ended = Box<dyn FnOnce(Result<Reply<'_>, CallError>)>;

/// Makes calls to one program.
pub struct Caller {
    core: Rc<RefCell<Core>>,
    client: Client,
    waiting: Waiting,
    timeout: Duration,
}

/// Handlers of pending replies, by token; and why there is no connection any more.
#[derive(Clone, Default)]
pub struct Waiting(Rc<RefCell<Vec<Option<Ended>>>>, Rc<RefCell<Option<DownCause>>>);

impl Waiting {
    fn put(&self, ended: Ended) -> Token {
        let mut places = self.0.borrow_mut();
        let free = places.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            places.push(None);
            places.len() - 1
        });
        places[place] = Some(ended);
        Token(place as u64)
    }

    fn take(&self, token: Token) -> Option<Ended> {
        self.0.borrow_mut().get_mut(token.0 as usize)?.take()
    }
}

impl ReplyHandler for Waiting {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        if let Some(ended) = self.take(token) {
            ended(reply);
        }
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        if let ConnectionEvent::Down { cause, .. } = event {
            *self.1.borrow_mut() = Some(cause.clone());
        }
    }
}

impl Caller {
    /// Has the connection that `connect` makes with this handler. `timeout` is the time for starting
    /// a call.
    ///
    /// # Errors
    /// Those of `connect`.
    pub fn connect<E>(
        core: &Rc<RefCell<Core>>,
        timeout: Duration,
        connect: impl FnOnce(Waiting) -> Result<Client, E>,
    ) -> Result<Self, E> {
        let waiting = Waiting::default();
        Ok(Self { core: Rc::clone(core), client: connect(waiting.clone())?, waiting, timeout })
    }

    /// The connection.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Memory for the data of a call that is about to be made. A connection that is without a security context has no memory
    /// until there is another one: this waits for that.
    pub(super) fn memory_for_call(&self, bytes: usize) -> Result<Option<Bulk>, CallError> {
        let mut attempts = Attempts::within(self.timeout);
        loop {
            let memory = self.client.bulk(bytes);
            let is_down = self.waiting.1.borrow().is_some();
            match memory {
                None if is_down => return Err(self.refusal(Backpressure::Down)),
                None if !self.client.is_up() && attempts.go_on() => self.turn(),
                None if !self.client.is_up() => return Err(Backpressure::Connecting.into()),
                memory => return Ok(memory),
            }
        }
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

    /// Starts a call, waiting for others to end if there is no room for it; `ended` gets the reply
    /// in a later turn.
    ///
    /// # Errors
    /// [`CallError::NotStarted`], or [`CallError::NotExecuted`] after a connection whose security context has ended; and
    /// `ended` is dropped.
    pub fn start(
        &self,
        procedure: Procedure,
        spec: &mut CallSpec,
        encode: impl Fn(&mut Encoder<'_>),
        ended: impl FnOnce(Result<Reply<'_>, CallError>) + 'static,
    ) -> Result<CallId, CallError> {
        let token = self.waiting.put(Box::new(ended));
        let mut attempts = Attempts::within(self.timeout);
        loop {
            match self.client.call(procedure, token, spec, &encode) {
                Ok(call) => return Ok(call),
                Err(refused) if refused.is_transient() && attempts.go_on() => self.turn(),
                Err(refused) => {
                    drop(self.waiting.take(token));
                    return Err(self.refusal(refused));
                }
            }
        }
    }

    /// A call that was refused because the security context has ended, and cannot be replaced, gets the reason of that.
    fn refusal(&self, refused: Backpressure) -> CallError {
        match (&refused, &*self.waiting.1.borrow()) {
            (Backpressure::Down, Some(cause @ DownCause::Security(_))) => {
                CallError::NotExecuted(cause.clone())
            }
            _ => refused.into(),
        }
    }

    fn turn(&self) {
        let mut is_over = false;
        self.run_until(|| std::mem::replace(&mut is_over, true));
    }
}

/// Attempts within a time limit, and some after it: a process that was stopped takes what has arrived meanwhile.
struct Attempts {
    end: Instant,
    late: u32,
}

impl Attempts {
    fn within(time: Duration) -> Self {
        Self { end: Instant::now() + time, late: 0 }
    }

    fn go_on(&mut self) -> bool {
        self.late += u32::from(Instant::now() >= self.end);
        self.late <= LATE_ATTEMPTS
    }
}

/// Waits until the connection is closed, or for a second, so that the server is notified.
impl Drop for Caller {
    fn drop(&mut self) {
        self.client.close();
        let client = self.client.clone();
        self.pause(CLOSE_TIMEOUT, || !client.is_up());
    }
}

pub(super) fn decoded<T>(
    reply: Result<Reply<'_>, CallError>,
    decode: impl FnOnce(&mut Decoder<'_>) -> Result<T, DecodeError>,
) -> Result<T, CallError> {
    Ok(decode(&mut reply?.results())?)
}
