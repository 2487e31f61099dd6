//! A server's registration with a rpcbind daemon, for as long as it serves.

use super::TIMEOUT;
use super::address::{Endpoint, Netid};
use super::client::{Client, Daemon};
use super::errors::RpcbindError;
use super::wire::Entry;
use crate::sys::journal::event;
use spinrpc_proto::ids::{Program, Version};

/// A program, version and netid registered with a daemon. Dropping it takes the registration back,
/// as far as that can be done; [`Registration::end`] says whether it could. A process that is
/// killed leaves its registration behind; the next one of the same user replaces it.
#[derive(Debug)]
pub struct Registration {
    daemon: Daemon,
    entry: Entry,
    netid: Netid,
    replaced: Option<String>,
    ended: bool,
}

impl Registration {
    /// Registers `endpoint`, under its own netid. rpcbind keeps one address for a program, version
    /// and netid: another one of this user is replaced, because a server that was killed could not
    /// take it back (see [`replaced`](Self::replaced)). Blocks for [`TIMEOUT`] a call at most.
    ///
    /// # Errors
    /// [`RpcbindError::NotTaken`] if another user holds the place, and others.
    pub fn new(
        daemon: &Daemon,
        program: Program,
        version: Version,
        endpoint: &Endpoint,
    ) -> Result<Self, RpcbindError> {
        let netid = endpoint.netid();
        let owner = rustix::process::geteuid().as_raw().to_string();
        let (name, address) = (netid.name().to_owned(), endpoint.universal());
        let entry = Entry { program, version, netid: name, address, owner };
        let mut client = Client::connect_to_register(daemon, TIMEOUT)?;
        let replaced = match client.set(&entry)? {
            true => None,
            false => replace(&mut client, &entry, netid)?,
        };
        Ok(Self { daemon: daemon.clone(), entry, netid, replaced, ended: false })
    }

    /// The universal address that was registered before, if there was one: of a server that was
    /// killed, or of one that still runs and is not found any more.
    #[must_use]
    pub fn replaced(&self) -> Option<&str> {
        self.replaced.as_deref()
    }

    /// Takes the registration back; one that replaced it meanwhile stays. Blocks for three times
    /// [`TIMEOUT`] at most.
    ///
    /// # Errors
    /// [`RpcbindError`]: then the daemon is gone, and with it the registration, or keeps it.
    pub fn end(mut self) -> Result<(), RpcbindError> {
        self.take_back()
    }

    fn take_back(&mut self) -> Result<(), RpcbindError> {
        self.ended = true;
        let mut client = Client::connect_to_register(&self.daemon, TIMEOUT)?;
        let held = client.entry(self.entry.program, self.entry.version, self.netid)?;
        if held.is_some_and(|held| held.address == self.entry.address) {
            client.unset(&self.entry)?;
        }
        Ok(())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.ended
            && let Err(error) = self.take_back()
        {
            event!(WARN, %error, "a registration with rpcbind was left behind");
        }
    }
}

/// Names and addresses are quoted: another user may have chosen them for their effect on terminals.
fn occupied(held: &Entry) -> String {
    let Entry { address, owner, .. } = held;
    format!("{address:?} of user {owner:?} is there; have that server ended, or use no rpcbind")
}

/// Replaces the daemon's entry by `entry`; returns the earlier address.
fn replace(
    client: &mut Client,
    entry: &Entry,
    netid: Netid,
) -> Result<Option<String>, RpcbindError> {
    let held = client.entry(entry.program, entry.version, netid)?;
    if client.unset(entry)? && client.set(entry)? {
        return Ok(held.map(|held| held.address));
    }
    let holder = match held {
        Some(held) => occupied(&held),
        None => "it does not say why".to_owned(),
    };
    let (program, version) = (entry.program, entry.version);
    Err(RpcbindError::NotTaken { program, version, netid, holder })
}
