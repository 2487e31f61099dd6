//! Watches a key, for tools: the client that asks, and the service that the store calls.

use crate::kv::client::Error;
use crate::kv::protocol::kv_callback_v1::{self as callback, KvChanged};
use crate::kv::protocol::kv_v1::{self, KvWatch};
use crate::kv::protocol::{KvChange, Status};
use spinrpc::{
    CallError, CallSpec, Config, ConnectError, ConnectOptions, ConnectionEvent, Engine, Reply,
    ReplyHandler, Token,
};
use spinrpc_xdr::Opaque;
use spinrpc_xdr::rpc::{self, TypedCall};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::{Sender, channel};

/// Watches `key` in the store at `address`: `each` gets the length of its value, or `None` if there
/// is none, at once and after every change; rapid changes are combined. Blocks until `each` returns
/// `false`. The configuration has one core, and room for a call in reverse.
///
/// # Errors
/// No server listens there, the store rejects the watch, or the connection is lost.
pub fn watch(
    config: Config,
    address: &str,
    key: &[u8],
    mut each: impl FnMut(Option<u32>) -> bool,
) -> Result<(), Error> {
    let key = Opaque::new(key).map_err(|_| Error::Key(key.len()))?;
    let (tell, told) = channel();
    let engine = Engine::new(config).map_err(ConnectError::from)?;
    engine.serve(callback::PROGRAM, callback::VERSION, move |_| {
        callback::Server(Listener(tell.clone()))
    });
    let mut core = engine.core(0).map_err(ConnectError::from)?;
    let end = Rc::new(RefCell::new(None));
    let asking = Asking(Rc::clone(&end));
    let options = ConnectOptions::new().take_reverse_calls();
    let client =
        core.connect_with(address, kv_v1::PROGRAM, kv_v1::VERSION, &options, |_| asking)?;
    let (mut has_asked, mut goes_on) = (false, true);
    core.run_until(|| {
        if !has_asked && client.is_up() {
            has_asked = true;
            let asked = rpc::call::<KvWatch>(&client, Token(0), &mut CallSpec::new(), &key);
            if let Err(refused) = asked {
                *end.borrow_mut() = Some(CallError::NotStarted(refused).into());
            }
        }
        goes_on = goes_on && told.try_iter().all(&mut each);
        !goes_on || end.borrow().is_some()
    });
    end.take().filter(|_| goes_on).map_or(Ok(()), Err)
}

/// Receives notifications.
struct Listener(Sender<Option<u32>>);

impl callback::Service for Listener {
    fn kv_changed(&mut self, change: KvChange<'_>, call: TypedCall<'_, KvChanged>) {
        // The send only fails after the watch has ended.
        let _ = self.0.send(change.state);
        call.reply(&());
    }
}

/// Receives the reason for the end of the watch, unless `each` ended it.
struct Asking(Rc<RefCell<Option<Error>>>);

impl ReplyHandler for Asking {
    fn on_reply(&mut self, _: Token, reply: Result<Reply<'_>, CallError>) {
        let status = reply.and_then(|mut reply| Ok(rpc::results::<KvWatch>(&mut reply)?));
        *self.0.borrow_mut() = match status {
            Ok(Status::KvOk) => None,
            Ok(status) => Some(Error::Status(status)),
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
