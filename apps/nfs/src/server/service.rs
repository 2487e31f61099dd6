//! The server, and the service of each of its cores: receives calls, and dispatches them.
//!
//! GETATTR, and everything that a back end does without blocking, is answered on the core at once;
//! READ, WRITE and COMMIT use the core's data paths (`data`), everything else the threads of the
//! pool. The engine calls this on its cores' threads; nothing in it blocks.

use super::answer::Answer;
use super::client_table::{CLIENTS_MAX, ClientTable, ConnectedClient};
use super::data::DataPaths;
use super::exports::{Claim, Current, Export, ExportTable, Exports, Peer, Refusal};
use super::file_system::Outcome;
use super::handle::Seal;
use super::pool::{Job, Pool};
use super::procedures::Arguments;
use super::site::{RequestContext, ServerOptions, Site, Visit};
use super::stats::{Counters, ServerStats, Ticket, Usage};
use super::throttle::Throttle;
use crate::nfs3;
use crate::protocol::{
    Fattr3, FileHandle, Getattr3args, NFS3_FHSIZE, NfsFh3, Nfsstat3, ProcedureId,
};
use spinrpc::sync::lock;
use spinrpc::sys::journal::event;
use spinrpc::sys::random::Random;
use spinrpc::{
    AcceptStatus, AuthStat, Call, ConnectionEvent, ConnectionId, CoreContext, DecodeError, Decoder,
    Engine, EngineError, Procedure, Progress, ReplyData, Service,
};
use spinrpc_xdr::{Decode, Encode, Opaque, to_bytes};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
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
    clients: ClientTable,
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
        let instance = Random::from_system()?.next_u64();
        let blocks = blocks(&exports);
        let (table, seal) = (ExportTable::new(exports), Seal::new(&seal_key));
        let site = Arc::new(Site { table, seal, options: *options, instance });
        let clients = ClientTable::default();
        let server = Self { site, pool: OnceLock::new(), cores: Mutex::default(), clients };
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
    /// [`EngineError::ApiMisuse`] if `rpc.reply_cache_mib` is 0, or the engine moves less in
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
    pub fn exports(&self) -> Arc<Exports> {
        self.site.table.current()
    }

    /// The exports in force, and those that replace them.
    pub fn table(&self) -> &Arc<ExportTable> {
        &self.site.table
    }

    /// Makes the handles that MOUNT gives, one for the root directory of an export.
    pub fn root_handles(&self) -> impl Fn(&Export) -> FileHandle + Send + Sync + use<> {
        let seal = self.site.seal.clone();
        move |export| {
            let root = export.file_system.root();
            seal.handle(export.id, &root, &root)
        }
    }

    /// Keeps threads from starting further calls, for the shutdown of an engine that missed its
    /// deadline ([`Engine::drain`]). A client that lost its connection retries its calls on another
    /// server: this one must not execute them afterwards. Calls in progress continue. Queued
    /// ones are not answered until the server is dropped, which must happen after the engine has
    /// stopped. Callable from any thread; does not block.
    pub fn stop(&self) {
        self.pool.get().into_iter().for_each(|pool| pool.threads.stop());
        self.site.table.for_each_back_end(|file_system| file_system.stop());
    }

    /// Sum of the counters of all cores and threads; other threads may count meanwhile.
    pub fn stats(&self) -> ServerStats {
        let mut sum = ServerStats::default();
        self.for_each_thread(&self.core_counters(), |counters| counters.add_to(&mut sum));
        sum
    }

    /// Calls to each export that was called, by its number.
    pub fn export_usage(&self) -> BTreeMap<u32, Usage> {
        let mut sum = BTreeMap::new();
        self.for_each_thread(&self.core_counters(), |counters| counters.add_exports_to(&mut sum));
        sum
    }

    /// Calls of each client that is or was connected, and those of clients that are connected beyond [`CLIENTS_MAX`].
    /// Those of a client that leaves meanwhile may include the first ones of the next at its place.
    pub fn client_usage(&self) -> (Vec<(Peer, Usage)>, Usage) {
        self.clients.usage(self.usage_at())
    }

    /// The clients that are connected now.
    pub fn clients(&self) -> Vec<ConnectedClient> {
        self.clients.connected(self.usage_at())
    }

    fn usage_at(&self) -> impl Fn(usize) -> Usage {
        let cores = self.core_counters();
        move |place| {
            let mut sum = Usage::default();
            self.for_each_thread(&cores, |counters| sum.add(&counters.client_usage(place)));
            sum
        }
    }

    /// A copy: cores that start wait for the lock.
    fn core_counters(&self) -> Vec<Arc<Counters>> {
        lock(&self.cores).clone()
    }

    fn for_each_thread(&self, cores: &[Arc<Counters>], mut act: impl FnMut(&Counters)) {
        cores.iter().for_each(|core| act(core));
        self.pool.get().into_iter().flat_map(Pool::counters).for_each(act);
    }
}

struct NfsService {
    /// Dropped before the server, whose threads may wait for its requests in progress.
    paths: DataPaths,
    server: Arc<Server>,
    core: CoreContext,
    current: Current,
    peers: HashMap<ConnectionId, Caller>,
    counters: Arc<Counters>,
    /// Of log lines about rejected calls.
    throttle: Cell<Throttle>,
}

#[derive(Clone, Copy)]
struct Caller {
    peer: Peer,
    /// Its place in the table of clients.
    place: u32,
    is_listed: bool,
}

impl Caller {
    fn new(peer: Peer, place: u32, exports: &Exports) -> Self {
        let is_listed = exports.iter().any(|export| export.has_client(&peer));
        Self { peer, place, is_listed }
    }
}

impl Service for NfsService {
    fn call(&mut self, call: Call<'_>) {
        self.notice_new_exports();
        let Procedure(procedure) = call.procedure();
        let Some(operation) = ProcedureId::new(procedure) else {
            return call.reject(AcceptStatus::ProcUnavail);
        };
        let of = self.begin(operation, &call);
        match operation {
            ProcedureId::Nfsproc3Null => self.null(call, &of),
            ProcedureId::Nfsproc3Getattr => self.attributes(call, &of),
            _ => self.others(call, &of),
        }
    }

    /// Repeating a READ or COMMIT is harmless, as is repeating a procedure that changes nothing.
    /// Repeating a WRITE is not: the first one may still be in progress when the client has
    /// retransmitted it, got the reply, and written something else to the same place.
    fn is_idempotent(&self, Procedure(procedure): Procedure) -> bool {
        let is_once = |of| of == ProcedureId::Nfsproc3Write || Arguments::changes(of);
        !ProcedureId::new(procedure).is_some_and(is_once)
    }

    /// Clients that an export lists: to all others every call fails that changes something.
    fn keeps_replies_for(&mut self, connection: ConnectionId) -> bool {
        self.notice_new_exports();
        self.peers.get(&connection).is_some_and(|caller| caller.is_listed)
    }

    /// NFS3ERR_JUKEBOX, with which clients wait and retry (RFC 1813 section 2.6).
    fn too_many(&mut self, call: Call<'_>) {
        let Procedure(procedure) = call.procedure();
        let Some(operation) = ProcedureId::new(procedure) else {
            return call.reject(AcceptStatus::ProcUnavail);
        };
        let of = self.begin(operation, &call);
        self.log_rejected(&of, "too many of its calls, or of all, are in progress");
        self.postpone(call, &of);
    }

    /// Exports with data paths that have to be polled may come later.
    fn polls(&self) -> bool {
        true
    }

    fn poll(&mut self) -> Progress {
        self.notice_new_exports();
        self.paths.poll(&self.server.site, &self.counters)
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        match event {
            ConnectionEvent::Up { connection, peer, .. } => {
                let (peer, ours) = (Peer::from(peer).canonical(), (self.core.index(), *connection));
                let place = self.server.clients.enter(peer, ours, self.server.usage_at()) as u32;
                let caller = Caller::new(peer, place, self.current.exports());
                self.peers.insert(*connection, caller);
            }
            ConnectionEvent::Down { connection, .. } => {
                if let Some(caller) = self.peers.remove(connection) {
                    self.server.clients.leave(&caller.peer, (self.core.index(), *connection));
                }
            }
            _ => {}
        }
    }
}

#[derive(Clone, Copy)]
struct Arrival {
    peer: Peer,
    ticket: Ticket,
}

fn whole<'a, T>(
    call: &mut Call<'a>,
    decode: impl FnOnce(&mut Decoder<'a>) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let mut arguments = call.args();
    let decoded = decode(&mut arguments)?;
    arguments.finish()?;
    Ok(decoded)
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

    #[inline]
    fn notice_new_exports(&mut self) {
        if self.current.is_stale() {
            self.take_new_exports();
        }
    }

    #[cold]
    fn take_new_exports(&mut self) {
        self.current.refresh();
        self.paths.update(self.current.exports(), &self.core);
        for caller in self.peers.values_mut() {
            *caller = Caller::new(caller.peer, caller.place, self.current.exports());
        }
    }

    fn begin(&self, operation: ProcedureId, call: &Call<'_>) -> Arrival {
        let caller = self.peers.get(&call.connection());
        let unknown = (Peer::Unknown, CLIENTS_MAX as u32);
        let (peer, place) = caller.map_or(unknown, |caller| (caller.peer, caller.place));
        Arrival { peer, ticket: self.counters.begin(operation, place) }
    }

    fn reject_garbage(&self, call: Call<'_>, of: &Arrival) {
        self.counters.garbage.add(1);
        self.counters.end(&of.ticket.refused());
        call.reject(AcceptStatus::GarbageArgs);
    }

    fn null(&self, mut call: Call<'_>, of: &Arrival) {
        if whole(&mut call, |_| Ok(())).is_err() {
            return self.reject_garbage(call, of);
        }
        self.counters.end(&of.ticket);
        call.reply(|_| {});
    }

    fn refuse<'a>(
        &self,
        refusal: Refusal,
        call: Call<'a>,
        of: &Arrival,
        fail: impl FnOnce(Nfsstat3, Answer<'a, '_>),
    ) {
        self.log_refusal(&refusal, of);
        let ticket = of.ticket.refused();
        match refusal {
            Refusal::Status(status) => fail(status, Answer::now(call, ticket, &self.counters)),
            Refusal::Denied(why) => {
                self.counters.denied.add(1);
                self.counters.end(&ticket);
                call.deny(why);
            }
        }
    }

    #[cold]
    fn log_refusal(&self, refusal: &Refusal, of: &Arrival) {
        let why = match refusal {
            Refusal::Status(Nfsstat3::Nfs3errAcces) => "it is not a client of the export",
            Refusal::Denied(AuthStat::TooWeak) => "the export does not accept its flavor (sec=)",
            Refusal::Denied(_) => "its credential is malformed",
            Refusal::Status(_) => return,
        };
        self.log_rejected(of, why);
    }

    /// Logs one rejection per second: clients may send as many calls as they like.
    fn log_rejected(&self, of: &Arrival, why: &'static str) {
        let mut throttle = self.throttle.take();
        if throttle.admits(Instant::now()) {
            event!(INFO, "rejected a call of {}: {why}", of.peer);
        }
        self.throttle.set(throttle);
    }

    /// GETATTR, the most frequent call: without a thread if possible, and without memory.
    fn attributes(&self, mut call: Call<'_>, of: &Arrival) {
        // Only the field: the decoder of the struct takes 1.1 times the instructions.
        let Ok(data) = whole(&mut call, Opaque::<'_, NFS3_FHSIZE>::decode) else {
            return self.reject_garbage(call, of);
        };
        match enter((&self.server.site, self.current.exports()), &data, &call, of) {
            Ok(visit) => match attributes_now(&visit) {
                Some(outcome) => {
                    let ticket = of.ticket.to(visit.export.id);
                    give_attributes(&outcome, Answer::now(call, ticket, &self.counters));
                }
                None => {
                    let object = NfsFh3 { data };
                    let arguments = Arguments::Getattr(Getattr3args { object });
                    self.submit(of, &arguments, &visit, call);
                }
            },
            Err(refusal) => {
                self.refuse(refusal, call, of, |status, answer| answer.fail(status, &()));
            }
        }
    }

    fn others(&mut self, mut call: Call<'_>, of: &Arrival) {
        let operation = of.ticket.operation;
        let decoded = whole(&mut call, |from| Arguments::decode(operation, from));
        let Ok(Some(arguments)) = decoded else { return self.reject_garbage(call, of) };
        let site = (&*self.server.site, self.current.exports());
        let visit = match enter(site, &arguments.handle().data, &call, of) {
            Ok(visit) => visit,
            Err(refusal) => {
                let fail = |status, answer: Answer<'_, '_>| arguments.refuse(status, answer);
                return self.refuse(refusal, call, of, fail);
            }
        };
        let context = RequestContext { site: site.0, visit, core: &self.core };
        let answer = |call| Answer::now(call, of.ticket.to(visit.export.id), &self.counters);
        match arguments {
            Arguments::Read(_) | Arguments::Write(_) | Arguments::Commit(_) => {
                self.paths.begin(&context, arguments, answer(call));
            }
            _ if context.file_system().blocks() => self.submit(of, &arguments, &visit, call),
            _ => arguments.answer(&context, answer(call)),
        }
    }

    fn postpone(&self, mut call: Call<'_>, of: &Arrival) {
        let operation = of.ticket.operation;
        let decoded = whole(&mut call, |from| Arguments::decode(operation, from));
        let Ok(Some(arguments)) = decoded else { return self.reject_garbage(call, of) };
        let answer = Answer::now(call, of.ticket, &self.counters);
        arguments.refuse(Nfsstat3::Nfs3errJukebox, answer);
    }

    fn submit(&self, of: &Arrival, arguments: &Arguments<'_>, visit: &Visit<'_>, call: Call<'_>) {
        let refused = |answer: Answer<'_, '_>| arguments.refuse(Nfsstat3::Nfs3errJukebox, answer);
        let ticket = of.ticket.to(visit.export.id);
        let later = |call| Answer::later(call, ticket, &self.counters);
        let call = match call.try_defer() {
            Ok(call) => call,
            Err(call) => {
                return refused(Answer::now(call, ticket, &self.counters));
            }
        };
        let Some(pool) = self.server.pool.get() else { return refused(later(call)) };
        let job = Job {
            call,
            ticket,
            arguments: to_bytes(arguments),
            exports: Arc::clone(self.current.shared()),
            export: visit.export.id,
            file: visit.file,
            caller: visit.caller,
            core: self.core.clone(),
        };
        if let Err(job) = pool.threads.submit(job) {
            refused(later(job.call));
        }
    }
}

/// FSINFO of a root needs no proof of the user ([`Site::enter_root`]).
fn enter<'a>(
    (site, exports): (&'a Site, &'a Exports),
    handle: &[u8],
    call: &Call<'_>,
    of: &Arrival,
) -> Result<Visit<'a>, Refusal> {
    let is_fsinfo = of.ticket.operation == ProcedureId::Nfsproc3Fsinfo;
    site.enter(exports, handle, (&of.peer, Claim::of(call))).or_else(|refusal| match refusal {
        Refusal::Denied(AuthStat::TooWeak) if is_fsinfo => {
            site.enter_root(exports, handle, &of.peer).ok_or(refusal)
        }
        _ => Err(refusal),
    })
}

fn blocks(exports: &Exports) -> bool {
    exports.iter().any(|export| export.file_system.blocks())
}

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
