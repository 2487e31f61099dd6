//! The server, and the service of each of its cores: receives calls, and dispatches them.
//!
//! GETATTR, and everything that a back end does without blocking, is answered on the core at once;
//! READ, WRITE and COMMIT use the core's data paths (`data`), everything else the threads of the
//! pool. The engine calls this on its cores' threads; nothing in it blocks.

use super::answer::Answer;
use super::data::{self, DataPaths};
use super::exports::{Claim, Current, Export, ExportTable, Exports, Peer};
use super::file_system::Outcome;
use super::handle::Seal;
use super::journal::{Event, Journal};
use super::pool::{Job, Pool};
use super::procedures::Arguments;
use super::site::{Refusal, RequestContext, ServerOptions, Site, Visit};
use super::stats::{Counters, ServerStats};
use super::throttle::Throttle;
use crate::nfs3;
use crate::protocol::{
    Fattr3, FileHandle, Getattr3args, NFS3_FHSIZE, NfsFh3, Nfsstat3, ProcedureId,
};
use spinrpc::sync::lock;
use spinrpc::sys::random::Random;
use spinrpc::{
    AcceptStatus, AuthStat, Call, ConnectionEvent, ConnectionId, CoreContext, DecodeError, Decoder,
    Engine, EngineError, Procedure, Progress, ReplyData, Service,
};
use spinrpc_xdr::{Decode, Encode, Opaque, to_bytes};
use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// An NFS server: its exports, and the threads for its cores. Drop it after its engine: that waits
/// for calls in progress, and drops those that wait for a thread.
#[derive(Debug)]
pub struct Server {
    site: Arc<Site>,
    /// Present once an export has had a back end that may block.
    pool: OnceLock<Pool>,
    cores: Mutex<Vec<Arc<Counters>>>,
}

impl Server {
    /// A server of these exports. Handles are sealed with `seal_key`: they stay valid as long as it
    /// is the same, and anyone who knows it can forge them.
    ///
    /// # Errors
    /// The system provides no random numbers or no threads.
    pub fn new(
        exports: Exports,
        seal_key: [u8; 16],
        options: &ServerOptions,
    ) -> io::Result<Arc<Self>> {
        Self::with_journal(exports, seal_key, options, Journal::default())
    }

    /// Like [`Server::new`], and logs what clients do.
    ///
    /// # Errors
    /// Those of [`Server::new`].
    pub fn with_journal(
        exports: Exports,
        seal_key: [u8; 16],
        options: &ServerOptions,
        journal: Journal,
    ) -> io::Result<Arc<Self>> {
        let instance = Random::from_system()?.next_u64();
        let blocks = blocks(&exports);
        let (table, seal) = (ExportTable::new(exports), Seal::new(&seal_key));
        let site = Arc::new(Site { table, journal, seal, options: *options, instance });
        let server = Self { site, pool: OnceLock::new(), cores: Mutex::default() };
        if blocks {
            server.start_pool()?;
        }
        Ok(Arc::new(server))
    }

    fn start_pool(&self) -> io::Result<()> {
        if self.pool.get().is_none() {
            // Only the first of two at a time is kept, and the other one's threads end.
            drop(self.pool.set(Pool::start(&self.site)?));
        }
        Ok(())
    }

    /// Replaces the exports while the server runs. Connections stay, and calls that begin from now on see the new
    /// exports; handles of an export that is gone are stale. Call [`ExportTable::collect`] of [`Server::table`] later, to
    /// close the back ends that are gone. Not for cores.
    ///
    /// # Errors
    /// The system has no threads for the first back end that may block; the exports stay as they were.
    pub fn replace_exports(&self, exports: Exports) -> io::Result<()> {
        if blocks(&exports) {
            self.start_pool()?;
        }
        self.site.table.replace(exports);
        Ok(())
    }

    /// Makes `engine` serve NFS version 3, with a reply cache for non-idempotent procedures. Call
    /// it before the engine starts.
    ///
    /// # Errors
    /// [`EngineError::ApiMisuse`] if `rpc.reply_cache_clients` is 0, or the engine moves less in
    /// one call than the options promise to clients.
    pub fn serve(self: &Arc<Self>, engine: &Engine) -> Result<(), EngineError> {
        self.check_limits(engine)?;
        let server = Arc::clone(self);
        engine.serve_once(nfs3::PROGRAM, nfs3::VERSION, move |core: &CoreContext| {
            NfsService::new(Arc::clone(&server), core.clone())
        })
    }

    fn check_limits(&self, engine: &Engine) -> Result<(), EngineError> {
        let (options, config) = (&self.site.options, engine.config());
        for (promised, limit, key) in [
            (options.read_bytes_max, config.read_bytes_max(), "rpc.max_read_bytes"),
            (options.list_bytes_max, config.read_bytes_max(), "rpc.max_read_bytes"),
            (options.write_bytes_max, config.write_bytes_max(), "rpc.max_write_bytes"),
        ] {
            if promised as usize > limit {
                let why = format!("{promised} bytes in one call exceed {key} = {limit}");
                return Err(EngineError::ApiMisuse(why));
            }
        }
        Ok(())
    }

    /// The exports in force.
    #[must_use]
    pub fn exports(&self) -> Arc<Exports> {
        self.site.table.current()
    }

    /// The exports in force, and those that replace them.
    #[must_use]
    pub fn table(&self) -> &Arc<ExportTable> {
        &self.site.table
    }

    /// The log of what clients do.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.site.journal
    }

    /// Makes the handles that MOUNT gives, as [`Server::root_handle`].
    pub fn root_handles(&self) -> impl Fn(&Export) -> FileHandle + Send + Sync + use<> {
        let seal = self.site.seal.clone();
        move |export| root_handle(&seal, export)
    }

    /// The handle that MOUNT gives for an export.
    #[must_use]
    pub fn root_handle(&self, export: &Export) -> FileHandle {
        root_handle(&self.site.seal, export)
    }

    /// Keeps threads from starting further calls, for the shutdown of an engine that missed its
    /// deadline ([`Engine::drain`]). A client that lost its connection retries its calls on another
    /// server: this one must not execute them afterwards. Calls in progress continue. Queued
    /// ones are not answered until the server is dropped, which must happen after the engine has
    /// stopped. Callable from any thread; does not block.
    pub fn stop(&self) {
        self.pool.get().into_iter().for_each(Pool::stop);
        self.site.table.for_each_back_end(|file_system| file_system.stop());
    }

    /// Sum of the counters of all cores and threads; other threads may count meanwhile.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        let mut sum = ServerStats::default();
        lock(&self.cores).iter().for_each(|core| core.add_to(&mut sum));
        self.pool.get().into_iter().for_each(|pool| pool.add_to(&mut sum));
        sum
    }
}

/// The service of one core.
struct NfsService {
    /// Dropped before the server, whose threads may wait for its requests in progress.
    paths: DataPaths,
    server: Arc<Server>,
    core: CoreContext,
    current: Current,
    peers: HashMap<ConnectionId, Peer>,
    counters: Arc<Counters>,
    /// Of log lines about rejected calls.
    throttle: Cell<Throttle>,
}

impl Service for NfsService {
    fn call(&mut self, call: Call<'_>) {
        if self.current.is_stale() {
            self.take_new_exports();
        }
        let Procedure(procedure) = call.procedure();
        let Some(operation) = ProcedureId::new(procedure) else {
            return call.reject(AcceptStatus::ProcUnavail);
        };
        self.counters.count_call(operation);
        let taken = match operation {
            ProcedureId::Nfsproc3Null => null(call),
            ProcedureId::Nfsproc3Getattr => self.attributes(call),
            ProcedureId::Nfsproc3Read
            | ProcedureId::Nfsproc3Write
            | ProcedureId::Nfsproc3Commit => self.data(operation, call),
            _ => self.plain(operation, call),
        };
        if let Err(Garbage(call)) = taken {
            self.counters.garbage.add(1);
            call.reject(AcceptStatus::GarbageArgs);
        }
    }

    /// Repeating a READ or COMMIT is harmless, as is repeating a procedure that changes nothing.
    /// Repeating a WRITE is not: the first one may still be in progress when the client has
    /// retransmitted it, got the reply, and written something else to the same place.
    fn is_idempotent(&self, Procedure(procedure): Procedure) -> bool {
        let is_once = |of| of == ProcedureId::Nfsproc3Write || Arguments::changes(of);
        !ProcedureId::new(procedure).is_some_and(is_once)
    }

    /// Exports with data paths that have to be polled may come later.
    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self) -> Progress {
        if self.current.is_stale() {
            self.take_new_exports();
        }
        self.paths.poll(&self.server.site, &self.counters)
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        match event {
            ConnectionEvent::Up { connection, peer, .. } => {
                self.peers.insert(*connection, Peer::from(peer));
            }
            ConnectionEvent::Down { connection, .. } => {
                self.peers.remove(connection);
            }
            _ => {}
        }
    }
}

/// A call whose arguments cannot be decoded.
struct Garbage<'a>(Call<'a>);

/// Decodes arguments to their end.
fn whole<'a, T>(
    call: &mut Call<'a>,
    decode: impl FnOnce(&mut Decoder<'a>) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let mut arguments = call.args();
    let decoded = decode(&mut arguments)?;
    arguments.finish()?;
    Ok(decoded)
}

fn null(mut call: Call<'_>) -> Result<(), Garbage<'_>> {
    match whole(&mut call, |_| Ok(())) {
        Ok(()) => call.reply(|_| {}),
        Err(_) => return Err(Garbage(call)),
    }
    Ok(())
}

impl NfsService {
    fn new(server: Arc<Server>, core: CoreContext) -> Self {
        let counters = Arc::new(Counters::default());
        lock(&server.cores).push(Arc::clone(&counters));
        let current = Current::new(&server.site.table);
        let paths = DataPaths::new(current.exports(), &core);
        let throttle = Cell::default();
        Self { server, core, paths, current, peers: HashMap::new(), counters, throttle }
    }

    #[cold]
    fn take_new_exports(&mut self) {
        self.current.refresh();
        self.paths.update(self.current.exports(), &self.core);
    }

    fn enter<'a>(&'a self, handle: &[u8], call: &Call<'_>) -> Result<Visit<'a>, Refusal> {
        let who = (self.peer(call), Claim::of(call));
        self.server.site.enter(self.current.exports(), handle, who)
    }

    fn peer(&self, call: &Call<'_>) -> &Peer {
        self.peers.get(&call.connection()).unwrap_or(&Peer::Unknown)
    }

    /// Denies a call, or makes its procedure fail.
    fn refuse<'a>(
        &self,
        refusal: Refusal,
        call: Call<'a>,
        operation: ProcedureId,
        fail: impl FnOnce(Nfsstat3, Answer<'a, '_>),
    ) {
        self.log_refusal(&refusal, &call);
        match refusal {
            Refusal::Status(status) => fail(status, Answer::now(call, operation, &self.counters)),
            Refusal::Denied(why) => {
                self.counters.denied.add(1);
                call.deny(why);
            }
        }
    }

    /// Logs one rejection per second: clients may send as many calls as they like.
    #[cold]
    fn log_refusal(&self, refusal: &Refusal, call: &Call<'_>) {
        let why = match refusal {
            Refusal::Status(Nfsstat3::Nfs3errAcces) => "it is not a client of the export",
            Refusal::Denied(AuthStat::TooWeak) => "the export does not accept its flavor (sec=)",
            Refusal::Denied(_) => "its credential is malformed",
            Refusal::Status(_) => return,
        };
        let mut throttle = self.throttle.take();
        if throttle.admits(Instant::now()) {
            self.server.site.journal.log(|| Event::Refused(self.peer(call).clone(), why));
        }
        self.throttle.set(throttle);
    }

    /// GETATTR, the most frequent call: without a thread if possible, and without memory.
    fn attributes<'a>(&self, mut call: Call<'a>) -> Result<(), Garbage<'a>> {
        let operation = ProcedureId::Nfsproc3Getattr;
        // Only the field: the decoder of the struct takes 1.1 times the instructions.
        let Ok(data) = whole(&mut call, Opaque::<'_, NFS3_FHSIZE>::decode) else {
            return Err(Garbage(call));
        };
        match self.enter(&data, &call) {
            Ok(visit) => match attributes_now(&visit) {
                Some(outcome) => {
                    give_attributes(&outcome, Answer::now(call, operation, &self.counters));
                }
                None => {
                    let object = NfsFh3 { data };
                    let arguments = Arguments::Getattr(Getattr3args { object });
                    self.submit(operation, &arguments, &visit, call);
                }
            },
            Err(refusal) => {
                self.refuse(refusal, call, operation, |status, answer| answer.fail(status, &()));
            }
        }
        Ok(())
    }

    /// READ, WRITE and COMMIT.
    fn data<'a>(&mut self, operation: ProcedureId, mut call: Call<'a>) -> Result<(), Garbage<'a>> {
        let decoded = whole(&mut call, |from| data::Arguments::decode(operation, from));
        let Ok(arguments) = decoded else { return Err(Garbage(call)) };
        let peer = self.peers.get(&call.connection()).unwrap_or(&Peer::Unknown);
        let who = (peer, Claim::of(&call));
        match self.server.site.enter(self.current.exports(), arguments.handle(), who) {
            Ok(visit) => {
                let context = RequestContext { site: &self.server.site, visit, core: &self.core };
                let answer = Answer::now(call, operation, &self.counters);
                self.paths.begin(&context, arguments, answer);
            }
            Err(refusal) => self.refuse(refusal, call, operation, |status, answer| {
                data::fail(answer, status, None);
            }),
        }
        Ok(())
    }

    /// All others.
    fn plain<'a>(&self, operation: ProcedureId, mut call: Call<'a>) -> Result<(), Garbage<'a>> {
        let decoded = whole(&mut call, |from| Arguments::decode(operation, from));
        let Ok(Some(arguments)) = decoded else { return Err(Garbage(call)) };
        let handle = arguments.handle().data;
        let entered = self.enter(&handle, &call).or_else(|refusal| match refusal {
            Refusal::Denied(AuthStat::TooWeak) if operation == ProcedureId::Nfsproc3Fsinfo => {
                let exports = self.current.exports();
                self.server.site.enter_root(exports, &handle, self.peer(&call)).ok_or(refusal)
            }
            _ => Err(refusal),
        });
        match entered {
            Ok(visit) if visit.export.file_system.blocks() => {
                self.submit(operation, &arguments, &visit, call);
            }
            Ok(visit) => {
                let context = RequestContext { site: &self.server.site, visit, core: &self.core };
                arguments.answer(&context, Answer::now(call, operation, &self.counters));
            }
            Err(refusal) => self.refuse(refusal, call, operation, |status, answer| {
                arguments.refuse(status, answer);
            }),
        }
        Ok(())
    }

    /// Passes a call to the pool; if there is no room, it is to be retried later.
    fn submit(
        &self,
        operation: ProcedureId,
        arguments: &Arguments<'_>,
        visit: &Visit<'_>,
        call: Call<'_>,
    ) {
        let refused = |answer: Answer<'_, '_>| arguments.refuse(Nfsstat3::Nfs3errJukebox, answer);
        let later = |call| Answer::later(call, operation, &self.counters);
        let call = match call.try_defer() {
            Ok(call) => call,
            Err(call) => {
                return refused(Answer::now(call, operation, &self.counters));
            }
        };
        let Some(pool) = self.server.pool.get() else { return refused(later(call)) };
        let job = Job {
            call,
            operation,
            arguments: to_bytes(arguments),
            exports: Arc::clone(self.current.shared()),
            export: visit.export.id,
            file: visit.file,
            caller: visit.caller,
            core: self.core.clone(),
        };
        if let Err(job) = pool.submit(job) {
            refused(later(job.call));
        }
    }
}

fn root_handle(seal: &Seal, export: &Export) -> FileHandle {
    let root = export.file_system.root();
    seal.handle(export.id, &root, &root)
}

fn blocks(exports: &Exports) -> bool {
    exports.iter().any(|export| export.file_system.blocks())
}

/// Attributes of a file, if they are available without blocking.
fn attributes_now(visit: &Visit<'_>) -> Option<Outcome<Fattr3>> {
    let file_system = &visit.export.file_system;
    match file_system.blocks() {
        true => file_system.attributes_now(&visit.file),
        false => Some(file_system.attributes(&visit.file)),
    }
}

fn give_attributes(outcome: &Outcome<Fattr3>, answer: Answer<'_, '_>) {
    match outcome {
        Ok(attributes) => {
            answer.succeed(ReplyData::new(), |to| attributes.encode(to));
        }
        Err(status) => answer.fail(*status, &()),
    }
}
