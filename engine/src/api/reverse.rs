//! Clients in reverse: a server that calls its clients (RFC 8167). They are created by services and
//! by code that holds a core. The dispatch runs handlers at that time and cannot be asked, so it
//! takes them over when the connection has something for them.

use super::call::Call;
use super::client::{Client, ClientLink, LinkState, ReplyHandler};
use super::client_state::ClientEntry;
use super::core::Core;
use super::service::ConnectionId;
use crate::fabric::ConnId;
use crate::reactor::NoReverse;
use crate::reactor::state::core::CoreCell;
use spinrpc_proto::ids::{Program, Version};
use std::cell::RefCell;
use std::rc::Rc;

/// Options for calls from a server to a client; see [`Call::reverse_client`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReverseOptions {
    is_inline: bool,
}

impl ReverseOptions {
    /// Calls in reverse may have chunks in both directions, as other calls have, for the buffers of their specs, long
    /// arguments, and results whose length is given. Results of unknown length ([`CallSpec::new`](crate::CallSpec::new))
    /// have to fit inline: a client need not take chunks (RFC 8167 section 5), so that none is offered on suspicion. If they
    /// are longer after all, see [`CallError::Rdma`](crate::CallError::Rdma).
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps calls and replies inline, and offers no chunk, for clients such as that of Linux,
    /// which do not take chunks. RFC 8167 section 5 lets such a client refuse chunks with
    /// ERR_CHUNK, but not every one does. A call that does not fit is refused with
    /// [`Backpressure::InlineOnly`](crate::Backpressure::InlineOnly).
    #[must_use]
    pub fn inline_only(mut self) -> Self {
        self.is_inline = true;
        self
    }
}

/// Makes clients in reverse, and keeps them until the dispatch takes them over.
pub(super) struct Reverse {
    ops: Rc<CoreCell>,
    made: RefCell<Vec<ClientEntry>>,
}

impl Reverse {
    pub(super) fn new(ops: Rc<CoreCell>) -> Rc<Self> {
        Rc::new(Self { ops, made: RefCell::default() })
    }

    fn client<H: ReplyHandler + 'static>(
        &self,
        conn: ConnId,
        (program, version): (Program, Version),
        options: &ReverseOptions,
        make: impl FnOnce(Client) -> H,
    ) -> Result<Client, NoReverse> {
        self.ops.begin_reverse(conn, options.is_inline)?;
        let link = ClientLink::up(Rc::clone(&self.ops), program, version, conn);
        let client = Client(Rc::clone(&link));
        let handler = Box::new(make(client.clone()));
        self.made.borrow_mut().push(ClientEntry::in_reverse(link, handler, conn));
        Ok(client)
    }

    pub(super) fn lose_all(&self) {
        self.made.borrow().iter().for_each(|entry| entry.link.lose(LinkState::Down));
    }

    /// The client that was created for this connection, if it has not been taken over yet.
    pub(super) fn take(&self, conn: ConnId) -> Option<ClientEntry> {
        let mut made = self.made.borrow_mut();
        let place = made.iter().position(|entry| entry.conn == Some(conn))?;
        Some(made.swap_remove(place))
    }
}

impl Call<'_> {
    /// Makes a client that calls in reverse, by the connection this call came by, a program that the
    /// caller serves (RFC 8167). `make` makes the handler of its replies, as with
    /// [`Core::connect`]. Calls may be made at once, also while this call is not answered; the
    /// handler hears only [`Down`](crate::ConnectionEvent::Down). The connection takes one call until
    /// the first reply, then as many as the caller grants, `rpc.reverse_calls` at most
    /// ([`Backpressure::NoCredit`](crate::Backpressure::NoCredit) says that they are out).
    ///
    /// Nothing on the wire says whether the caller takes calls in reverse: the program has to say
    /// so, as with a procedure that asks to be called back. One that does not drops
    /// them, and they end by their deadline. Calls in reverse end with the connection; no
    /// [`Resend`](crate::Resend) sends them again, and no [`Engine::serve_once`](crate::Engine::serve_once)
    /// keeps replies for them. [`Client::close`] closes the connection for both directions; a client
    /// that is dropped leaves it alone, and its place taken.
    ///
    /// ```
    /// use spinrpc::{Call, CallError, CallSpec, Client, Procedure, Program, Reply, ReplyHandler};
    /// use spinrpc::{ReverseOptions, Service, Token, Version};
    ///
    /// struct Deaf;
    /// impl ReplyHandler for Deaf {
    ///     fn on_reply(&mut self, _: Token, _: Result<Reply<'_>, CallError>) {}
    /// }
    ///
    /// /// Procedure 1: "call me back".
    /// #[derive(Default)]
    /// struct CallsBack(Option<Client>);
    /// impl Service for CallsBack {
    ///     fn call(&mut self, call: Call<'_>) {
    ///         let (program, version) = (Program(0x2000_0002), Version(1));
    ///         if call.procedure() == Procedure(1) {
    ///             self.0 = call.reverse_client(program, version, &ReverseOptions::new(), |_| Deaf).ok();
    ///             if let Some(client) = &self.0 {
    ///                 let spec = &mut CallSpec::short();
    ///                 let _started = client.call(Procedure(1), Token(7), spec, |args| args.u32(42));
    ///             }
    ///         }
    ///         call.reply(|_| {});
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`NoReverse`] says why there is none.
    pub fn reverse_client<H: ReplyHandler + 'static>(
        &self,
        program: Program,
        version: Version,
        options: &ReverseOptions,
        make: impl FnOnce(Client) -> H,
    ) -> Result<Client, NoReverse> {
        self.0.home.reverse.client(self.connection().0, (program, version), options, make)
    }
}

impl Core {
    /// As [`Call::reverse_client`], for a connection that this core has accepted, and whose client
    /// has said that it takes calls in reverse.
    ///
    /// # Errors
    /// [`NoReverse`] says why there is none.
    pub fn reverse_client<H: ReplyHandler + 'static>(
        &mut self,
        connection: ConnectionId,
        program: Program,
        version: Version,
        options: &ReverseOptions,
        make: impl FnOnce(Client) -> H,
    ) -> Result<Client, NoReverse> {
        self.driver.dispatch.reverse.client(connection.0, (program, version), options, make)
    }
}
