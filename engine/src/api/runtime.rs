//! The internals of an engine: the mailboxes and the creation of cores.

use super::control_socket;
use super::core::{Core, CoreContext};
use super::core_balancing::CoreBalancer;
use super::dialing::Dialing;
use super::dispatch::{ConnectRequests, Dispatch, ServiceEntry};
use super::errors::EngineError;
#[cfg(feature = "gss")]
use super::gss::{GssCore, GssShared};
use super::handle::core::HandleCore;
use super::handle::pool::Pool;
use super::helper_thread::run_journal;
use super::listening::ListenOptions;
use super::metrics::Metrics;
use super::observer::{Observed, Observer, ReadContexts, Served};
use super::rfc5666::{ConfigClient, ConfigService, SERVED_AS};
use super::served_programs::Directory;
use super::service::Service;
use super::version_cache::Responders;
use crate::config::{BulkView, Config, StatsExport};
use crate::fabric::{Connector, ListenRequest};
use crate::reactor::in_flight::drain::DrainRequest;
use crate::reactor::in_flight::mailbox::{Inbox, Mail};
use crate::reactor::in_flight::reply_cache::ReplyCache;
use crate::reactor::state::core::{CoreCell, Reactor};
use crate::reactor::turn::ArrivedMessages;
use crate::reactor::types::idle::IdleSwitch;
use crate::reactor::types::memory;
use crate::reactor::types::peer_id::Instance;
use crate::reactor::{Negotiated, Progress, StatsCells};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::lock;
use crate::sys::cpu_claim::{self, CpuClaim};
use crate::sys::journal::{self, event};
use crate::sys::line_server::LineServer;
use crate::sys::pinning::{Pin, PolledCpus};
use crate::sys::pm_qos::{self, WakeLimit};
use spinrpc_proto::ids::{Program, Version};
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(super) type ServiceFactory =
    Box<dyn Fn(&CoreContext, &Rc<CoreCell>) -> Box<dyn Service> + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Threads {
    /// Its own threads: each core's thread is pinned to its CPU, and further ones make connections, because that takes
    /// long with a real driver.
    Own,
    /// Only the caller's thread, for a driver that connects at once: cores of many engines share a thread and take
    /// turns as the caller decides, and the result does not depend on other threads.
    #[cfg(feature = "sim")]
    Callers,
}

impl Threads {
    fn mailbox_letters(self) -> usize {
        match self {
            Self::Own => memory::MAILBOX_LETTERS,
            #[cfg(feature = "sim")]
            Self::Callers => SIMULATED_LETTERS,
        }
    }
}

/// Letters of a mailbox in a simulation, which makes thousands of engines per second: two for each call that a test
/// may have deferred at a time.
#[cfg(feature = "sim")]
pub(super) const SIMULATED_LETTERS: usize = 256;

/// Poll interval for a shutdown by another thread, while waiting for cores to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Poll interval while the mailbox of one of these cores is full.
const POST_EVERY: Duration = Duration::from_millis(1);

pub(super) struct Runtime {
    connector: Arc<dyn Connector>,
    pub(super) config: Config,
    private_data: [u8; Negotiated::PRIVATE_DATA_BYTES],
    cores: Vec<CorePlace>,
    services: Mutex<Vec<(Program, Version, ServiceFactory)>>,
    pub(super) directory: Directory,
    pub(super) metrics: Metrics,
    /// `None` once the engine accepts no more connections.
    listeners: Mutex<Option<Vec<Box<dyn Send>>>>,
    dialing: Arc<Dialing>,
    shut_down: Arc<AtomicBool>,
    /// Calls that a graceful shutdown left unfinished. Locked by the thread that runs the shutdown.
    unfinished: Mutex<usize>,
    threads: Threads,
    pub(super) reply_cache: Option<Arc<ReplyCache>>,
    responders: Arc<Responders>,
    _claims: Vec<CpuClaim>,
    _polled: Option<PolledCpus>,
    #[expect(dead_code, reason = "lasts as long as the engine")]
    wake_limit: Option<WakeLimit>,
    /// Present if other processes may observe the engine.
    observed: Option<LineServer>,
    #[cfg(feature = "gss")]
    pub(super) gss: Arc<GssShared>,
}

/// State that outlives a core's thread.
pub(super) struct CorePlace {
    pub(super) inbox: Arc<Inbox>,
    pub(super) cells: Arc<StatsCells>,
    idle: Arc<IdleSwitch>,
    pub(super) calls: Arc<Pool>,
    served: Served,
    taken: AtomicBool,
}

impl Runtime {
    pub(super) fn launch(
        connector: Arc<dyn Connector>,
        config: Config,
        threads: Threads,
    ) -> Result<Arc<Self>, EngineError> {
        let (config, claims) = claim_cpus(config, threads);
        let is_pinned = threads == Threads::Own && config.pins_cores();
        let polled = is_pinned.then(|| PolledCpus::register(config.cpus()));
        let wake_limit = wake_limit(&config)?;
        run_journal()?;
        let mut random = connector.random()?;
        let reply_cache = ReplyCache::new(&config, random.next_u64(), random.next_u64());
        let instance = reply_cache.as_ref().map_or(Instance::Passing, |cache| cache.instance());
        let private_data =
            Negotiated::private_data(&config, connector.remote_invalidate(), instance);
        let letters = threads.mailbox_letters();
        let cores: Vec<_> = (0..config.cores()).map(|_| CorePlace::new(letters, &config)).collect();
        let inboxes = cores.iter().map(|core| Arc::clone(&core.inbox)).collect();
        let shut_down = Arc::<AtomicBool>::default();
        let dialing = Arc::new(Dialing {
            connector: Arc::clone(&connector),
            config: config.clone(),
            inboxes,
            is_over: Arc::clone(&shut_down),
            workers: Dialing::workers(),
        });
        let (directory, metrics) = (Directory::default(), Metrics::default());
        #[cfg(feature = "gss")]
        let gss = GssShared::new(threads != Threads::Own, &config);
        #[cfg(not(feature = "gss"))]
        let contexts: ReadContexts = Box::new(Vec::new);
        #[cfg(feature = "gss")]
        let contexts = Self::read_contexts(&gss);
        let observed = cores.iter().map(CorePlace::observed).collect();
        let shown = (contexts, metrics.clone());
        let observer = Observer::new(config.clone(), directory.clone(), shown, observed);
        Ok(Arc::new(Self {
            responders: Responders::new(&config),
            _claims: claims,
            _polled: polled,
            observed: Self::let_observe(&config, threads, observer),
            connector,
            config,
            private_data,
            cores,
            services: Mutex::default(),
            directory,
            metrics,
            listeners: Mutex::new(Some(Vec::new())),
            dialing,
            shut_down,
            unfinished: Mutex::default(),
            threads,
            reply_cache,
            wake_limit,
            #[cfg(feature = "gss")]
            gss,
        }))
    }

    /// An engine without a control socket still serves, so a failure to open the socket is logged and is not an
    /// error.
    fn let_observe(config: &Config, threads: Threads, observer: Observer) -> Option<LineServer> {
        if config.stats_export() != StatsExport::Socket || threads != Threads::Own {
            return None;
        }
        let failed = |error: &io::Error| event!(WARN, %error, "no control socket (stats.export)");
        control_socket::open(observer).inspect_err(failed).ok()
    }

    #[cfg(feature = "gss")]
    fn read_contexts(gss: &Arc<GssShared>) -> ReadContexts {
        let gss = Arc::clone(gss);
        Box::new(move || gss.stats().entries().collect())
    }

    /// An additional observer that belongs to no control socket.
    #[cfg(test)]
    pub(super) fn observer(&self) -> Observer {
        #[cfg(not(feature = "gss"))]
        let contexts: ReadContexts = Box::new(Vec::new);
        #[cfg(feature = "gss")]
        let contexts = Self::read_contexts(&self.gss);
        let observed = self.cores.iter().map(CorePlace::observed).collect();
        let shown = (contexts, self.metrics.clone());
        Observer::new(self.config.clone(), self.directory.clone(), shown, observed)
    }

    pub(super) fn place(&self, index: usize) -> Result<&CorePlace, EngineError> {
        let count = self.cores.len();
        self.cores.get(index).ok_or_else(|| {
            EngineError::ApiMisuse(format!("core {index} of {count}: cores count from zero"))
        })
    }

    /// Makes the caller the one that starts the core.
    pub(super) fn take_core(&self, index: usize) -> Result<(), EngineError> {
        // Relaxed: it only decides which thread is first; everything the core needs is behind locks and queues.
        if self.place(index)?.taken.swap(true, Ordering::Relaxed) {
            return Err(EngineError::ApiMisuse(format!("core {index} was started before")));
        }
        Ok(())
    }

    /// Makes the caller the one that starts the cores: of all of them, or of none.
    pub(super) fn take_cores(&self) -> Result<(), EngineError> {
        for index in 0..self.cores.len() {
            self.take_core(index).inspect_err(|_| self.give_back(..index))?;
        }
        Ok(())
    }

    fn give_back(&self, cores: std::ops::RangeTo<usize>) {
        self.cores[cores].iter().for_each(|core| core.taken.store(false, Ordering::Relaxed));
    }

    /// A core gets its services when it starts.
    pub(super) fn check_not_started(&self) -> Result<(), EngineError> {
        if self.cores.iter().any(|core| core.taken.load(Ordering::Relaxed)) {
            let what = "services are added before the first core starts";
            return Err(EngineError::ApiMisuse(what.into()));
        }
        Ok(())
    }

    /// Ends calls by other threads, once no core runs.
    pub(super) fn close_calls(&self) {
        self.cores.iter().for_each(|core| core.calls.close(|| {}));
    }

    /// A core's services: the application's programs, followed by the engine's own, so that an application's program
    /// can replace one of these.
    fn make_services(&self, context: &CoreContext, ops: &Rc<CoreCell>) -> Vec<ServiceEntry> {
        let programs = lock(&self.services);
        let made = programs.iter().map(|(program, version, factory)| ServiceEntry {
            program: *program,
            version: *version,
            service: factory(context, ops),
        });
        made.chain(self.config_service(ops)).collect()
    }

    fn config_service(&self, ops: &Rc<CoreCell>) -> Option<ServiceEntry> {
        let (program, version) = SERVED_AS;
        self.config.serves_ccp().then(|| ServiceEntry {
            program,
            version,
            service: Box::new(ConfigService::new(Rc::clone(ops), &self.config)),
        })
    }

    fn stop_listening(&self) {
        self.directory.forget_addresses();
        drop(lock(&self.listeners).take());
    }

    /// Asks every core to finish its calls, and waits until all have done so, no time is `left` or the engine is shut
    /// down. Returns the number of unfinished calls. A core that has not reported its number counts as one, because
    /// it may have lost calls.
    fn see_off(&self, left: &dyn Fn() -> Duration) -> usize {
        let (report, reports) = channel();
        let running = |core: &usize| self.cores[*core].inbox.is_read();
        let mut requests: Vec<_> = (0..self.cores.len())
            .filter(running)
            .map(|core| DrainRequest { core, report: report.clone() })
            .collect();
        drop(report);
        let mut unfinished = vec![0; self.cores.len()];
        requests.iter().for_each(|request| unfinished[request.core] = 1);
        loop {
            requests = self.deliver(requests);
            let patience = if requests.is_empty() { LOOK_EVERY } else { POST_EVERY };
            match reports.recv_timeout(left().min(patience)) {
                Ok((core, count)) => unfinished[core] = count,
                Err(RecvTimeoutError::Timeout) if !left().is_zero() && !self.is_shut_down() => {}
                Err(_) => return unfinished.iter().sum(),
            }
        }
    }

    /// Posts the requests; returns those whose cores' mailboxes are full.
    fn deliver(&self, requests: Vec<DrainRequest>) -> Vec<DrainRequest> {
        let post =
            |request: DrainRequest| match self.cores[request.core].inbox.post(Mail::Leave(request))
            {
                Err(Mail::Leave(back)) => Some(back),
                _ => None,
            };
        requests.into_iter().filter_map(post).collect()
    }

    /// Waits until the engine is shut down, or no time is `left`.
    fn await_shutdown(&self, left: &dyn Fn() -> Duration) {
        while !self.is_shut_down() && !left().is_zero() {
            std::thread::sleep(left().min(LOOK_EVERY));
        }
    }

    fn requests(&self, core: usize) -> ConnectRequests {
        let (dialing, threads) = (Arc::clone(&self.dialing), self.threads);
        let next = Cell::new(0);
        Box::new(move |entry| {
            let number = next.replace(next.get() + 1);
            let request = entry.connection_request(core, number);
            match threads {
                Threads::Own => dialing.begin(request),
                // The answer still comes by mail, in a later turn.
                #[cfg(feature = "sim")]
                Threads::Callers => dialing.dial(&request),
            }
            number
        })
    }
}

impl Runtime {
    pub(super) fn add_service(
        &self,
        program: Program,
        version: Version,
        factory: ServiceFactory,
    ) -> Result<(), EngineError> {
        self.check_not_started()?;
        lock(&self.services).push((program, version, factory));
        self.directory.add_service(program, version);
        Ok(())
    }

    pub(super) fn listen(&self, address: &str, options: &ListenOptions) -> Result<(), EngineError> {
        if lock(&self.listeners).is_none() {
            return Err(no_more_connections());
        }
        let lent = options.lent(address)?;
        let lent = match self.config.bulk_view() {
            BulkView::Lent => lent,
            BulkView::Copy => &[],
        };
        let shared = |core: &CorePlace| (Arc::clone(&core.inbox), Arc::clone(&core.cells));
        let spread =
            Box::new(CoreBalancer::over(self.cores.iter().map(shared), options.admission()));
        let request = ListenRequest { address, private_data: &self.private_data, lent };
        let guard = self.connector.listen(&request, spread)?;
        // Another thread may have shut the engine down meanwhile.
        lock(&self.listeners).as_mut().ok_or_else(no_more_connections)?.push(guard);
        self.directory.add_address(address);
        Ok(())
    }

    /// Starts a core that the caller has taken.
    pub(super) fn make_core(self: &Arc<Self>, index: usize) -> Result<Core, EngineError> {
        let place = self.place(index)?;
        let cpu = self.config.cpus()[index];
        let is_pinned = self.threads == Threads::Own && self.config.pins_cores();
        let pin = is_pinned.then(|| Pin::new(cpu)).transpose();
        let pin = pin.map_err(|error| {
            EngineError::host(format!("core {index} cannot be pinned to CPU {cpu}"), error)
        })?;
        // Before services are made, because these may make calls.
        place.calls.attach();
        let mut unstarted = Unstarted(Some(Arc::clone(&place.calls)));
        let fabric = self.connector.any_fabric(index)?;
        let pool = memory::core_pool(&self.config, cpu)?;
        let calls = Arc::clone(&place.calls);
        let context = CoreContext { index, pool: pool.clone(), calls };
        let inbox = Arc::clone(&place.inbox);
        let reactor =
            Reactor::new(fabric, self.config.clone(), pool, inbox, Arc::clone(&place.cells));
        let cell = Rc::new(CoreCell::new(reactor));
        let ops = Rc::clone(&cell);
        let make = || self.make_services(&context, &ops);
        // Services may start threads, which must not be confined to this thread's single CPU.
        let services = match &pin {
            Some(pin) => pin.loosened(make),
            None => make(),
        };
        let served = services.iter().map(|entry| (entry.program, entry.version)).collect();
        // Runs once for each core: a core that was taken is not started again.
        let _ = place.served.set(served);
        let config_client =
            self.config.asks_ccp().then(|| Rc::new(ConfigClient::new(&self.config)));
        let connector = Arc::clone(&self.connector);
        let varying = (Arc::clone(&self.responders), connector.random()?, connector);
        let calls = Arc::clone(&place.calls);
        let handles = HandleCore::new(calls, Rc::clone(&ops), context.pool.clone(), &self.config);
        #[cfg(feature = "gss")]
        let gss = GssCore::new(&self.gss, &place.inbox, &ops);
        let dispatch = Dispatch::new(
            ops,
            services,
            config_client,
            handles,
            varying,
            self.requests(index),
            #[cfg(feature = "gss")]
            gss,
        );
        let arrived = ArrivedMessages::with_limit(self.config.poll_budget());
        let runner = Box::new(Runner { cell, dispatch, arrived });
        unstarted.0 = None;
        Ok(Core::new(runner, context, Arc::clone(&place.idle), pin, Arc::clone(self)))
    }

    pub(super) fn drain(&self, at_most: Duration) -> usize {
        let began = Instant::now();
        let left = || at_most.saturating_sub(began.elapsed());
        let mut unfinished = self.unfinished.try_lock().unwrap_or_else(|_| {
            self.await_shutdown(&left);
            // The thread that drains notices the shutdown soon, and has then counted for both.
            self.shutdown();
            lock(&self.unfinished)
        });
        if !self.is_shut_down() {
            self.stop_listening();
            *unfinished = self.see_off(&left);
            self.shutdown();
        }
        *unfinished
    }

    #[cfg(feature = "sim")]
    pub(super) fn leave(&self) {
        self.stop_listening();
        // No report is read: the caller drives the cores, and sees their progress.
        let (report, _) = channel();
        let request = |core| DrainRequest { core, report: report.clone() };
        self.deliver((0..self.cores.len()).map(request).collect());
    }

    pub(super) fn shutdown(&self) {
        self.shut_down.store(true, Ordering::Relaxed);
        self.stop_listening();
        for core in &self.cores {
            // A full mailbox is being read; its core checks the flag after this turn.
            drop(core.inbox.post(Mail::Shutdown));
            // A core that has not started answers no call.
            if !core.taken.load(Ordering::Relaxed) {
                core.calls.close(|| {});
            }
        }
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Relaxed)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.shutdown();
        drop(self.observed.take());
        // A core that was taken may still have failed to start.
        self.close_calls();
        self.dialing.end();
        journal::flush(journal::FLUSH_MAX);
    }
}

/// Ends the calls by other threads if their core cannot start, or the factory of a service panics.
struct Unstarted(Option<Arc<Pool>>);

impl Drop for Unstarted {
    fn drop(&mut self) {
        if let Some(calls) = &self.0 {
            calls.close(|| {});
        }
    }
}

impl CorePlace {
    fn new(letters: usize, config: &Config) -> Self {
        let inbox = Arc::new(Inbox::new(letters));
        let idle = Arc::new(IdleSwitch::new(config.idle_policy()));
        let longest_bytes = memory::longest_block_bytes(config);
        let calls = Pool::new(Arc::clone(&inbox), config.clone(), longest_bytes);
        let (calls, cells, taken) = (Arc::new(calls), Arc::default(), AtomicBool::new(false));
        Self { inbox, cells, idle, calls, served: Served::default(), taken }
    }

    fn observed(&self) -> Observed {
        Observed {
            inbox: Arc::clone(&self.inbox),
            cells: Arc::clone(&self.cells),
            idle: Arc::clone(&self.idle),
            served: Arc::clone(&self.served),
            is_asked: false,
        }
    }
}

fn no_more_connections() -> EngineError {
    EngineError::ApiMisuse("the engine was shut down, or is being drained".into())
}

/// Returns the configuration with its cores on CPUs that no other engine of the host has claimed, if it leaves the
/// choice to the engine and such CPUs exist.
fn claim_cpus(config: Config, threads: Threads) -> (Config, Vec<CpuClaim>) {
    if threads != Threads::Own || !config.pins_cores() {
        return (config, Vec::new());
    }
    if config.candidates().is_empty() {
        let claims = config.cpus().iter().filter_map(|cpu| CpuClaim::new(*cpu)).collect();
        return (config, claims);
    }
    let (cpus, claims) = cpu_claim::choose(config.candidates(), config.cores());
    (config.on_cpus(cpus), claims)
}

/// Applies `host.cpu_dma_latency_us`.
fn wake_limit(config: &Config) -> Result<Option<WakeLimit>, EngineError> {
    let hold = |at_most| WakeLimit::hold(Path::new(pm_qos::DEVICE), at_most);
    config.cpu_dma_latency().map(hold).transpose().map_err(|error| {
        let what = format!(
            "host.cpu_dma_latency_us: let this user write to {}, or set the key to \"off\"",
            pm_qos::DEVICE
        );
        EngineError::host(what, error)
    })
}

/// One core's reactor with the application on top of it.
pub(super) struct Runner {
    pub(super) cell: Rc<CoreCell>,
    pub(super) dispatch: Dispatch,
    arrived: ArrivedMessages,
}

/// Clients that outlive the core keep its state, but none of its connections.
impl Drop for Runner {
    fn drop(&mut self) {
        // State left behind by a panic may make the core panic again, which the process has to survive.
        let ended = catch_unwind(AssertUnwindSafe(|| self.cell.end()));
        if ended.is_err() {
            event!(ERROR, "a core that panicked could not close its connections");
        }
        self.dispatch.lose_all();
    }
}

impl Runner {
    #[inline]
    pub(super) fn turn(&mut self) -> Progress {
        self.cell.turn(&mut self.arrived, &mut self.dispatch)
    }

    pub(super) fn park(&mut self, at_most: Duration) {
        self.cell.park(at_most, &mut self.dispatch);
    }
}
