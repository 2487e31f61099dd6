//! A client of NFS version 3 for tools: it blocks the calling thread, with several READs and WRITEs
//! in flight where that helps.
//!
//! A server is not trusted: its replies are bounded and validated, and never make the client run forever.

mod caller;
mod connection;
mod directory;
mod engine;
mod error;
mod files;
mod handle;
mod jukebox_retry;
mod load;
mod mount;
mod pipeline;
mod read;
mod round_trips;
mod security;
mod target;
mod user;
mod walk;
mod write;

pub use caller::{Caller, Decode, Waiting};
pub use connection::Connection;
pub use directory::Entry;
pub use error::Error;
pub use files::Files;
pub use handle::{NfsHandle, OpenFile, Read, Written};
pub use load::{Load, Loaded, Work};
pub use mount::{Mount, MountBy, Root};
pub use round_trips::RoundTrips;
pub use security::{ContextPort, Security};
pub use target::Target;
pub use user::User;
pub use walk::Found;
pub use write::Source;

use crate::nfs3::{self, PROCEDURES};
use crate::protocol::{Nfsstat3, ProcedureId};
use spinrpc::fabric::Address;
use spinrpc::{
    CallError, Client, ConnectError, ConnectOptions, Core, DecodeError, Decoder, Engine,
    EngineError, Program, Reconnect, ReplyHandler, Resend, StatsSnapshot, Version, driver_of,
};
use spinrpc_tuning::ProfileArgs;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Minimum wait for a connection: setup takes several exchanges, and work on both hosts.
const CONNECT_TIMEOUT_MIN: Duration = Duration::from_secs(5);
/// Number of turns after which a core without calls is idle.
const TURNS_MAX: usize = 1000;

/// Options of a session.
#[derive(Clone, Debug)]
pub struct Options {
    /// Profile of the engine, and values of its keys.
    pub profile: ProfileArgs,
    /// Deadline of a call, and the time for retries with a server that needs longer.
    pub timeout: Duration,
    /// User of the calls; `None` for AUTH_NONE.
    pub user: Option<User>,
    /// Kerberos, which proves the user of NFS calls; `user` is then that of MOUNT alone.
    pub security: Option<Security>,
    /// Connections for the calls; `None`: one for each address. With more than one, or several addresses, calls go by the
    /// connection with the fewest in flight, and those of a lost one are sent again by another.
    pub connections: Option<u16>,
    /// Further addresses of the server, of the same fabric.
    pub also: Vec<Address>,
    /// READs or WRITEs in flight that have memory: 0 for a session without any. A [`Load`] may have
    /// as many calls in flight, of any kind.
    pub depth: usize,
    /// Maximum bytes of one READ or WRITE; the server may have a lower limit.
    pub block_bytes: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            profile: ProfileArgs::default(),
            timeout: Duration::from_secs(30),
            user: Some(User::current()),
            security: None,
            connections: None,
            also: Vec::new(),
            depth: 8,
            block_bytes: 1 << 20,
        }
    }
}

impl Options {
    fn has_several(&self) -> bool {
        !self.also.is_empty() || self.connections.is_some_and(|connections| connections > 1)
    }

    fn several(&self, to: ConnectOptions) -> ConnectOptions {
        if !self.has_several() {
            return to;
        }
        let to = self.also.iter().fold(to, |to, address| to.also(&address.to_string()));
        let to = to.reconnect(Reconnect::default());
        match self.connections {
            Some(connections) => to.connections(connections.into()),
            None => to,
        }
    }

    /// A call goes over from a lost connection to another one if there are several. WRITE and COMMIT may be repeated, as every
    /// NFS client does; what changes names or attributes may not.
    fn resend(&self, operation: ProcedureId) -> Resend {
        use ProcedureId::{
            Nfsproc3Create, Nfsproc3Link, Nfsproc3Mkdir, Nfsproc3Mknod, Nfsproc3Remove,
            Nfsproc3Rename, Nfsproc3Rmdir, Nfsproc3Setattr, Nfsproc3Symlink,
        };
        match operation {
            _ if !self.has_several() => Resend::Never,
            Nfsproc3Setattr | Nfsproc3Create | Nfsproc3Mkdir | Nfsproc3Symlink | Nfsproc3Mknod
            | Nfsproc3Remove | Nfsproc3Rmdir | Nfsproc3Rename | Nfsproc3Link => Resend::AtMostOnce,
            _ => Resend::AtLeastOnce,
        }
    }

    fn check(&self, server: &Address) -> Result<(), Error> {
        let driver = |address: &Address| driver_of(&address.to_string());
        let is_other = |address: &&Address| driver(address) != driver(server);
        match self.also.iter().find(is_other) {
            None => Ok(()),
            Some(other) => Err(Error::Usage(format!(
                "{other} is not of the same fabric as {server}: one engine uses one fabric"
            ))),
        }
    }
}

/// A session with one server.
pub struct Nfs {
    caller: Caller,
    core: Rc<RefCell<Core>>,
    engine: Engine,
    server: Address,
    options: Options,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    calls: [Cell<u64>; PROCEDURES],
    placed_bytes: Cell<u64>,
    inline_bytes: Cell<u64>,
    written_bytes: Cell<u64>,
}

fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get().wrapping_add(more));
}

/// Decodes results of a procedure: a status other than NFS3_OK, or the part that is needed.
pub(crate) type Outcome<T> = fn(&mut Decoder<'_>) -> Result<Result<T, Nfsstat3>, DecodeError>;

impl Nfs {
    /// Connects to `server`; blocks for at most the timeout, or 5 seconds if that is less. Pins the calling thread to the CPU of
    /// the engine's core.
    ///
    /// # Errors
    /// [`Error`] is the reason for the failure.
    pub fn connect(server: &Address, options: Options) -> Result<Self, Error> {
        options.check(server)?;
        let failed = |error: EngineError| Error::Local(error.to_string());
        let engine = Engine::new(engine::config(server, &options)?).map_err(failed)?;
        let core = engine.core(0).map_err(failed)?;
        let core = Rc::new(RefCell::new(core));
        let program = (nfs3::PROGRAM, nfs3::VERSION);
        let caller = Caller::connect(&core, connect_timeout(&options), |replies| {
            connect(&core, server, program, &options, replies)
        })?;
        let (server, counts) = (server.clone(), Counts::default());
        Ok(Self { caller, core, engine, server, options, counts })
    }

    /// The caller of the connection.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Statistics of the engine. Runs idle turns first, in which the engine publishes them.
    pub fn stats(&self) -> StatsSnapshot {
        let mut core = self.core.borrow_mut();
        let _is_idle = (0..TURNS_MAX).any(|_| core.poll_once().events == 0);
        // Every engine has a core 0.
        self.engine.stats(0).unwrap_or_default()
    }

    /// Counters of the session: calls by procedure, then bytes of data by path. WRITEs are counted
    /// by their replies.
    pub fn counters(&self) -> Vec<(String, u64)> {
        let name = |number: usize| {
            ProcedureId::new(number as u32)
                .map_or_else(|| number.to_string(), |of| nfs3::name(of).to_owned())
        };
        let calls = self.counts.calls.iter().map(Cell::get).enumerate();
        let calls = calls.filter(|(_, calls)| *calls > 0);
        let mut all: Vec<_> = calls.map(|(number, calls)| (name(number), calls)).collect();
        let Counts { placed_bytes, inline_bytes, written_bytes, .. } = &self.counts;
        all.push(("read_placed_bytes".to_owned(), placed_bytes.get()));
        all.push(("read_inline_bytes".to_owned(), inline_bytes.get()));
        all.push(("written_bytes".to_owned(), written_bytes.get()));
        all
    }
}

fn connect(
    core: &RefCell<Core>,
    server: &Address,
    (program, version): (Program, Version),
    options: &Options,
    handler: impl ReplyHandler + 'static,
) -> Result<Client, Error> {
    let (address, timeout) = (server.to_string(), connect_timeout(options));
    let security = options.security.as_ref();
    let secured = security.map(|security| security::protected(server, security, options));
    let secured = options.several(secured.transpose()?.unwrap_or_default());
    let (mut core, make) = (core.borrow_mut(), |_| handler);
    let connected = core.connect_wait_with(&address, program, version, &secured, make, timeout);
    let client = connected.map_err(|source| {
        Error::Unreachable(match source {
            ConnectError::Security(reason) => format!("Kerberos with {address}: {reason}"),
            source => format!(
                "no connection to {address}: {source}; check the address, and that the server listens for RDMA there"
            ),
        })
    })?;
    if options.security.is_none() {
        let credential = options.user.as_ref().map(User::credential);
        let set = client.set_auth_sys(credential.as_ref());
        set.map_err(|refused| Error::Local(format!("the user of the calls: {refused}")))?;
    }
    Ok(client)
}

fn connect_timeout(options: &Options) -> Duration {
    options.timeout.max(CONNECT_TIMEOUT_MIN)
}

fn failed(operation: ProcedureId) -> impl Fn(CallError) -> Error {
    move |source| Error::call(operation, source)
}
