//! Watches a key, for tools: the client that asks, and the service that the store calls.

use crate::kv::client::Error;
use crate::kv::protocol::{
    CALLBACK_PROGRAM, CALLBACK_VERSION, CHANGED, Change, PROGRAM, Status, VERSION, WATCH,
};
use spinrpc::{
    AcceptStatus, Call, CallError, CallSpec, Config, ConnectError, ConnectOptions, ConnectionEvent,
    Engine, Procedure, Reply, ReplyHandler, Token,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::{Sender, channel};

/// Watches `key` in the store at `address`: `each` gets the length of its value, or `None` if it has
/// none, at once and after every change; changes that follow each other fast come as one. Blocks
/// until `each` returns `false`. The configuration has one core, and room for a call in reverse.
///
/// # Errors
/// When no server listens there, the store refuses, or the connection is lost.
pub fn watch(
    config: Config,
    address: &str,
    key: &[u8],
    mut each: impl FnMut(Option<u32>) -> bool,
) -> Result<(), Error> {
    let (tell, told) = channel();
    let engine = Engine::new(config).map_err(ConnectError::from)?;
    engine.serve(CALLBACK_PROGRAM, CALLBACK_VERSION, move |_| {
        let tell = tell.clone();
        move |call: Call<'_>| answer(call, &tell)
    });
    let mut core = engine.core(0).map_err(ConnectError::from)?;
    let end = Rc::new(RefCell::new(None));
    let asking = Asking(Rc::clone(&end));
    let options = ConnectOptions::new().take_reverse_calls();
    let client = core.connect_with(address, PROGRAM, VERSION, &options, |_| asking)?;
    let (mut has_asked, mut goes_on) = (false, true);
    core.run_until(|| {
        if !has_asked && client.is_up() {
            has_asked = true;
            let asked = client.call(WATCH, Token(0), &mut CallSpec::new(), |args| args.opaque(key));
            if let Err(refused) = asked {
                *end.borrow_mut() = Some(CallError::NotStarted(refused).into());
            }
        }
        goes_on = goes_on && told.try_iter().all(&mut each);
        !goes_on || end.borrow().is_some()
    });
    end.take().filter(|_| goes_on).map_or(Ok(()), Err)
}

/// The store calls.
fn answer(mut call: Call<'_>, tell: &Sender<Option<u32>>) {
    match call.procedure() {
        Procedure(0) => call.reply(|_| {}),
        CHANGED => {
            let mut args = call.args();
            let change =
                Change::decode(&mut args).and_then(|change| args.finish().map(|()| change));
            match change {
                Ok(change) => {
                    // An error says that nobody listens any more: the watch has ended.
                    let _ = tell.send(change.value_bytes);
                    call.reply(|_| {});
                }
                Err(_) => call.reject(AcceptStatus::GarbageArgs),
            }
        }
        _ => call.reject(AcceptStatus::ProcUnavail),
    }
}

/// Hears why the watch ends, if it does not because enough was seen.
struct Asking(Rc<RefCell<Option<Error>>>);

impl ReplyHandler for Asking {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        let status = reply.and_then(|mut reply| Ok(Status::decode(&mut reply.results())?));
        *self.0.borrow_mut() = match status {
            Ok(Some(Status::Ok)) => None,
            Ok(Some(status)) => Some(Error::Status(status)),
            Ok(None) => Some(Error::UnknownStatus),
            Err(error) => Some(error.into()),
        };
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        let end = match event {
            ConnectionEvent::Down { cause, .. } => CallError::Disconnected(cause.clone()).into(),
            ConnectionEvent::ConnectFailed { error } => error.clone().into(),
            _ => return,
        };
        *self.0.borrow_mut() = Some(end);
    }
}
