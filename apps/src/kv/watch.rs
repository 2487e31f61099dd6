//! Watches on the server: the watched keys of each connection, and the client that notifies it.
//! Called by the service.
//!
//! Nothing queues up for a slow client: there is one call per key at a time, and the next one only
//! has the latest state.

use crate::kv::protocol::kv_callback_v1::{self as callback, KvChanged};
use crate::kv::protocol::{KvChange, Status};
use spinrpc::{
    Call, CallError, CallSpec, Client, ConnectionId, Reply, ReplyHandler, ReverseOptions, Token,
};
use spinrpc_xdr::{Opaque, rpc};
use std::cell::RefCell;
use std::rc::Rc;

/// Maximum number of watched keys per connection; a further one is answered [`Status::KvBusy`].
pub const WATCHES_MAX: usize = 16;

/// The connections that watch keys.
#[derive(Default)]
pub(crate) struct Watchers(Vec<Watcher>);

struct Watcher {
    connection: ConnectionId,
    client: Client,
    watches: Watches,
}

type Watches = Rc<RefCell<Vec<Watch>>>;

/// A key watched by a connection.
struct Watch {
    key: Box<[u8]>,
    /// State that the client does not know yet: the length of the value, if there is one.
    news: Option<Option<u32>>,
    /// A notification is in flight.
    is_calling: bool,
}

/// Handles replies to notifications.
struct Told {
    client: Client,
    watches: Watches,
}

impl ReplyHandler for Told {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        {
            let mut watches = self.watches.borrow_mut();
            match (reply, watches.get_mut(token.0 as usize)) {
                (Ok(_), Some(watch)) => watch.is_calling = false,
                (Ok(_), None) => {}
                // A client that does not answer is not notified again, unless it asks again.
                (Err(_), _) => watches.clear(),
            }
        }
        tell(&self.client, &self.watches);
    }
}

/// Notifies a client of each key with news.
fn tell(client: &Client, watches: &Watches) {
    for (index, watch) in watches.borrow_mut().iter_mut().enumerate() {
        let Some(value_bytes) = watch.news.filter(|_| !watch.is_calling) else { continue };
        // The key came with a call, so it is not too long.
        let Ok(key) = Opaque::new(&watch.key) else { continue };
        let (change, token) = (KvChange { key, state: value_bytes }, Token(index as u64));
        // Without a credit it is retried with the next reply.
        if rpc::call::<KvChanged>(client, token, &mut CallSpec::new(), &change).is_ok() {
            (watch.news, watch.is_calling) = (None, true);
        }
    }
}

impl Watchers {
    /// Watches `key` for the caller, and sends the length of its current value, if there is one.
    /// `None` if it cannot be called.
    pub(crate) fn add(
        &mut self,
        call: &Call<'_>,
        key: &[u8],
        value_bytes: Option<u32>,
    ) -> Option<Status> {
        let watcher = self.watcher(call)?;
        let mut watches = watcher.watches.borrow_mut();
        if watches.iter().any(|watch| *watch.key == *key) {
            return Some(Status::KvOk);
        }
        if watches.len() == WATCHES_MAX {
            return Some(Status::KvBusy);
        }
        watches.push(Watch { key: key.into(), news: Some(value_bytes), is_calling: false });
        drop(watches);
        tell(&watcher.client, &watcher.watches);
        Some(Status::KvOk)
    }

    fn watcher(&mut self, call: &Call<'_>) -> Option<&Watcher> {
        let connection = call.connection();
        let known = self.0.iter().position(|watcher| watcher.connection == connection);
        if let Some(index) = known {
            return self.0.get(index);
        }
        let watches = Watches::default();
        let options = ReverseOptions::new();
        let of_handler = Rc::clone(&watches);
        let client = call
            .reverse_client(callback::PROGRAM, callback::VERSION, &options, |client| Told {
                client,
                watches: of_handler,
            })
            .ok()?;
        self.0.push(Watcher { connection, client, watches });
        self.0.last()
    }

    /// The value of `key` has changed: to this length, or it was deleted.
    pub(crate) fn changed(&mut self, key: &[u8], value_bytes: Option<u32>) {
        for Watcher { client, watches, .. } in &self.0 {
            let mut all = watches.borrow_mut();
            let Some(watch) = all.iter_mut().find(|watch| *watch.key == *key) else { continue };
            watch.news = Some(value_bytes);
            drop(all);
            tell(client, watches);
        }
    }

    /// A connection was closed or lost.
    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.0.retain(|watcher| watcher.connection != connection);
    }
}
