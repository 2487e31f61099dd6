//! A back end that blocks on request.

use spinrpc::sync::lock;
use spinrpc::{Bulk, CoreContext, Progress};
use spinrpc_nfs::protocol::{Fattr3, Fsstat3resok, Sattr3, WccData};
use spinrpc_nfs::server::exports::Caller;
use spinrpc_nfs::server::file_system::{
    Abilities, Change, DataPath, Done, FileKey, FileSystem, Found, ListFrom, Listed, NewFile,
    Outcome, Place, Renaming, Request, Setting, Started, Take, WriteData,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Obstacles in the way of calls.
#[derive(Default)]
pub(crate) struct Gate {
    /// Number of losses of unstable data that the back end reports.
    pub(crate) losses: AtomicU64,
    /// Losses while the next data request is in progress.
    pub(crate) losses_in_flight: AtomicU64,
    /// The next call through the gate panics.
    pub(crate) is_trap: AtomicBool,
    /// The next LOOKUP is followed at once by the creation of a directory with its name.
    pub(crate) is_overtaken: AtomicBool,
    cores: Mutex<Vec<CoreContext>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    is_open: bool,
    waiting: usize,
}

impl Gate {
    pub(crate) fn open() -> Arc<Self> {
        let gate = Self::default();
        lock(&gate.state).is_open = true;
        Arc::new(gate)
    }

    pub(crate) fn closed() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn let_in(&self) {
        lock(&self.state).is_open = true;
        self.changed.notify_all();
    }

    pub(crate) fn shut(&self) {
        lock(&self.state).is_open = false;
    }

    fn is_open(&self) -> bool {
        lock(&self.state).is_open
    }

    /// Takes the memory of all cores, so that nothing can be deferred.
    pub(crate) fn take_memory(&self) -> Vec<Bulk> {
        let of = |core: &CoreContext, bytes| {
            let core = core.clone();
            std::iter::from_fn(move || core.bulk(bytes))
        };
        let cores = lock(&self.cores);
        let sizes = [1 << 20, 64 << 10, 1];
        cores.iter().flat_map(|core| sizes.into_iter().flat_map(|size| of(core, size))).collect()
    }

    /// Number of waiting calls.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.state).waiting
    }

    fn pass(&self) {
        assert!(!self.is_trap.swap(false, Ordering::Relaxed), "planted");
        let mut state = lock(&self.state);
        state.waiting += 1;
        let mut state = self.changed.wait_while(state, |state| !state.is_open).unwrap();
        state.waiting -= 1;
    }
}

/// See the module.
pub(crate) struct Gated {
    inner: Arc<dyn FileSystem>,
    gate: Arc<Gate>,
}

impl Gated {
    pub(crate) fn new(inner: Arc<dyn FileSystem>, gate: &Arc<Gate>) -> Arc<Self> {
        Arc::new(Self { inner, gate: Arc::clone(gate) })
    }

    /// The file system behind the gate.
    fn inner(&self) -> &dyn FileSystem {
        self.gate.pass();
        &*self.inner
    }
}

impl FileSystem for Gated {
    fn blocks(&self) -> bool {
        true
    }

    fn losses(&self) -> u64 {
        self.gate.losses.load(Ordering::Relaxed)
    }

    fn root(&self) -> FileKey {
        self.inner.root()
    }

    fn attributes(&self, file: &FileKey) -> Outcome<Fattr3> {
        self.inner.attributes(file)
    }

    fn setattr(&self, by: Change<'_>, file: &FileKey, to: Setting<'_>) -> Outcome<()> {
        self.inner().setattr(by, file, to)
    }

    fn access(&self, caller: &Caller, file: &FileKey, wanted: u32) -> Outcome<u32> {
        self.inner.access(caller, file, wanted)
    }

    fn lookup(&self, caller: &Caller, at: Place<'_>) -> Outcome<Found> {
        let found = self.inner.lookup(caller, at);
        if self.gate.is_overtaken.swap(false, Ordering::Relaxed) {
            let (new, wcc) = (Sattr3::default(), &mut WccData::default());
            self.inner.make(Change { caller, wcc }, at, NewFile::Directory(&new)).unwrap();
        }
        found
    }

    fn read_link(&self, link: &FileKey) -> Outcome<Vec<u8>> {
        self.inner.read_link(link)
    }

    fn make(&self, by: Change<'_>, at: Place<'_>, new: NewFile<'_>) -> Outcome<Found> {
        self.inner().make(by, at, new)
    }

    fn unlink(&self, by: Change<'_>, at: Place<'_>, is_directory: bool) -> Outcome<()> {
        self.inner().unlink(by, at, is_directory)
    }

    fn rename(&self, by: Renaming<'_>, from: Place<'_>, to: Place<'_>) -> Outcome<()> {
        self.inner().rename(by, from, to)
    }

    fn link(&self, by: Change<'_>, file: &FileKey, at: Place<'_>) -> Outcome<()> {
        self.inner().link(by, file, at)
    }

    fn list(&self, caller: &Caller, from: &ListFrom, take: Take<'_>) -> Outcome<Listed> {
        self.inner.list(caller, from, take)
    }

    fn space(&self) -> Outcome<Fsstat3resok> {
        self.inner.space()
    }

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn data_path(self: Arc<Self>, core: &CoreContext) -> Box<dyn DataPath> {
        lock(&self.gate.cores).push(core.clone());
        let inner = Arc::clone(&self.inner).data_path(core);
        Box::new(Later { inner, gate: Arc::clone(&self.gate), done: Vec::new() })
    }
}

/// Delivers completions one turn later, and only with an open gate.
struct Later {
    inner: Box<dyn DataPath>,
    gate: Arc<Gate>,
    done: Vec<Option<Done>>,
}

impl DataPath for Later {
    fn start(&mut self, caller: &Caller, file: &FileKey, asked: Request<WriteData<'_>>) -> Started {
        let Started::Done(done) = self.inner.start(caller, file, asked) else {
            panic!("memory does not wait");
        };
        let free = self.done.iter().position(Option::is_none).unwrap_or(self.done.len());
        self.done.resize_with(self.done.len().max(free + 1), || None);
        self.done[free] = Some(done);
        Started::Later(free as u32)
    }

    fn poll(&mut self, _: bool, done: &mut dyn FnMut(u32, Done)) -> Progress {
        if !self.gate.is_open() {
            return Progress { events: 0, is_waiting: self.done.iter().any(Option::is_some) };
        }
        for (number, place) in self.done.iter_mut().enumerate() {
            if let Some(taken) = place.take() {
                let losses = self.gate.losses_in_flight.swap(0, Ordering::Relaxed);
                self.gate.losses.fetch_add(losses, Ordering::Relaxed);
                done(number as u32, taken);
            }
        }
        Progress::default()
    }
}
