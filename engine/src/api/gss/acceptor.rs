//! Contexts of a server: those that are there, and those that are being established.

use super::keys::new_context;
use super::stats::GssCounts;
use crate::reactor::types::protection::{ProtectError, fill_random, now};
use crate::sync::lock;
use crate::sys::journal::event;
use spinrpc_gss::Role;
use spinrpc_gss::context::{Context, ContextWindow};
use spinrpc_gss::mechanism::{GoOn, Mechanism, MechanismError, Negotiation};
use spinrpc_gss::table::{ContextTable, TableLimits};
use spinrpc_proto::ids::Instant;
use spinrpc_proto::rpc::{GssInitResult, GssService};
use std::cmp::Reverse;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Contexts that are being established at a time; the oldest of the host with most of them goes.
const HALVES_MAX: usize = 64;
/// Time that the client of a context has for its next token.
const HALF_TIME: Duration = Duration::from_secs(10);

/// Settings of a server that accepts contexts; see [`Engine::gss`](crate::Engine::gss).
pub struct GssAcceptor {
    mechanism: Box<dyn Mechanism>,
    contexts: usize,
    idle: Duration,
    required: Option<GssService>,
}

impl GssAcceptor {
    /// By this mechanism: 4096 contexts, each for an hour without a call.
    pub fn new(mechanism: impl Mechanism + 'static) -> Self {
        let idle = Duration::from_secs(3600);
        Self { mechanism: Box::new(mechanism), contexts: 4096, idle, required: None }
    }

    /// Number of contexts at a time, at least one; an eighth of them for one host. When there are as many, the one that was
    /// idle longest goes, and its client establishes another.
    #[must_use]
    pub fn contexts_max(mut self, contexts: usize) -> Self {
        self.contexts = contexts;
        self
    }

    /// Denies every call without at least this protection (AUTH_TOOWEAK), to whatever program, so that no handler has to ask
    /// who calls. But for the NULL procedure, with which connections begin, and calls in reverse, which come by connections
    /// that this process made.
    #[must_use]
    pub fn require(mut self, service: GssService) -> Self {
        self.required = Some(service);
        self
    }

    /// Time that a context is kept without a call. One that no call has used yet is kept for `Config::gss_unused`.
    #[must_use]
    pub fn idle(mut self, time: Duration) -> Self {
        self.idle = time;
        self
    }
}

impl fmt::Debug for GssAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("GssAcceptor");
        shown.field("contexts", &self.contexts).field("idle", &self.idle).finish_non_exhaustive()
    }
}

fn no_context() -> MechanismError {
    /// GSS_S_NO_CONTEXT.
    const NO_CONTEXT: u32 = 8 << 16;
    let reason = "no context of this handle is being established".to_owned();
    MechanismError { major: NO_CONTEXT, minor: 0, reason }
}

fn no_memory(error: io::Error) -> MechanismError {
    /// GSS_S_FAILURE.
    const FAILURE: u32 = 13 << 16;
    MechanismError { major: FAILURE, minor: 0, reason: format!("no memory for keys: {error}") }
}

pub(super) struct Acceptor {
    mechanism: Box<dyn Mechanism>,
    pub(super) table: ContextTable,
    required: Option<GssService>,
    halves: Mutex<Halves>,
    refusals: Mutex<Refusals>,
    counts: Arc<GssCounts>,
}

/// Refused tokens, which anybody may send at any rate: they are logged once in a second.
#[derive(Default)]
struct Refusals {
    logged: Option<Instant>,
    since: u64,
}

impl Refusals {
    const INTERVAL_NS: u64 = 1_000_000_000;

    /// One more; how many there are since the last line of log, if there is to be another.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.since += 1;
        if self.logged.is_some_and(|logged| now.0.saturating_sub(logged.0) < Self::INTERVAL_NS) {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.since))
    }
}

#[derive(Default)]
struct Halves {
    all: Vec<Half>,
    next: u32,
}

impl Halves {
    /// The oldest are first.
    fn push(&mut self, half: Half) {
        if self.all.len() >= HALVES_MAX {
            let of = |host| self.all.iter().filter(|half| half.host == host).count();
            let hosts = self.all.iter().map(|half| half.host).enumerate();
            let first = hosts.max_by_key(|(at, host)| (of(*host), Reverse(*at)));
            first.into_iter().for_each(|(at, _)| drop(self.all.remove(at)));
        }
        self.all.push(half);
    }
}

/// A context whose client has to send another token.
struct Half {
    host: u64,
    handle: [u8; HALF_HANDLE_BYTES],
    go_on: GoOn,
    until: Instant,
}

/// Not the length of a handle of the table.
const HALF_HANDLE_BYTES: usize = 12;

pub(super) struct Answered {
    handle: Vec<u8>,
    major: u32,
    minor: u32,
    token: Vec<u8>,
    pub(super) context: Option<Arc<Context>>,
}

impl Answered {
    /// Number of calls in flight that a client is told of.
    pub(super) const WINDOW: u32 = ContextWindow::TOLD;

    pub(super) fn result(&self) -> GssInitResult<'_> {
        let Self { handle, major, minor, token, .. } = self;
        let window = Self::WINDOW;
        GssInitResult { handle, major: *major, minor: *minor, window, token }
    }
}

impl Acceptor {
    pub(super) fn new(
        with: GssAcceptor,
        unused: Duration,
        counts: &Arc<GssCounts>,
    ) -> Result<Self, ProtectError> {
        let counts = Arc::clone(counts);
        let mut process = [0; 8];
        fill_random(&mut process)?;
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (contexts, idle, unused) = (with.contexts, ns(with.idle), ns(unused));
        let table = ContextTable::new(TableLimits { contexts, idle, unused }, process);
        let GssAcceptor { mechanism, required, .. } = with;
        let (halves, refusals) = (Mutex::default(), Mutex::default());
        Ok(Self { mechanism, table, required, halves, refusals, counts })
    }

    /// Calls under this service, or none, are to be denied.
    pub(super) fn is_too_weak(&self, service: Option<GssService>) -> bool {
        let level = |service| match service {
            None | Some(GssService::Other(_)) => 0,
            Some(GssService::None) => 1,
            Some(GssService::Integrity) => 2,
            Some(GssService::Privacy) => 3,
        };
        level(service) < level(self.required)
    }

    /// Takes a token of INIT, which has no handle, or CONTINUE_INIT. May block.
    pub(super) fn take_token(&self, handle: &[u8], token: &[u8], host: u64) -> Answered {
        let accepted = match (handle, self.take_half(handle)) {
            ([], _) => self.mechanism.accept(token, now()),
            (_, Some(go_on)) => go_on(token, now()),
            (_, None) => Err(no_context()),
        };
        self.answer(accepted, host).unwrap_or_else(|error| {
            GssCounts::count(&self.counts.contexts_refused);
            if let Some(count) = lock(&self.refusals).count(now()) {
                let reason = &error.reason;
                event!(INFO, %reason, count, "security contexts were refused, the last one for this");
            }
            let MechanismError { major, minor, .. } = error;
            Answered { handle: Vec::new(), major, minor, token: Vec::new(), context: None }
        })
    }

    fn answer(
        &self,
        accepted: Result<Negotiation, MechanismError>,
        host: u64,
    ) -> Result<Answered, MechanismError> {
        Ok(match accepted? {
            Negotiation::Continue(go_on, token) => {
                let handle = self.keep_half(go_on, host)?.to_vec();
                let major = GssInitResult::CONTINUE_NEEDED;
                Answered { handle, major, minor: 0, token, context: None }
            }
            Negotiation::Complete(established, token) => {
                let context = new_context(Role::Acceptor, established).map_err(no_memory)?;
                let context = Arc::new(context);
                let handle = self.table.insert(Arc::clone(&context), host, now()).to_vec();
                GssCounts::count(&self.counts.contexts_accepted);
                let (major, context) = (GssInitResult::COMPLETE, Some(context));
                Answered { handle, major, minor: 0, token, context }
            }
        })
    }

    fn keep_half(&self, go_on: GoOn, host: u64) -> Result<[u8; HALF_HANDLE_BYTES], MechanismError> {
        let mut handle = [0; HALF_HANDLE_BYTES];
        fill_random(&mut handle[4..]).map_err(|_| no_context())?;
        let until = Instant(now().0.saturating_add(HALF_TIME.as_nanos() as u64));
        let mut halves = lock(&self.halves);
        handle[..4].copy_from_slice(&halves.next.to_be_bytes());
        halves.next = halves.next.wrapping_add(1);
        halves.push(Half { host, handle, go_on, until });
        Ok(handle)
    }

    fn take_half(&self, handle: &[u8]) -> Option<GoOn> {
        let mut halves = lock(&self.halves);
        let now = now();
        halves.all.retain(|half| half.until > now);
        let index = halves.all.iter().position(|half| half.handle == handle)?;
        Some(halves.all.remove(index).go_on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One host begins as many as there may be, and another one a few: expect those of the first to go, oldest first.
    #[test]
    fn a_host_that_begins_many_contexts_pushes_out_its_own() {
        let mut halves = Halves::default();
        let half = |host: u64, number: u8| Half {
            host,
            handle: [number; HALF_HANDLE_BYTES],
            go_on: Box::new(|_, _| Err(no_context())),
            until: Instant(0),
        };
        halves.push(half(1, 0));
        (0..80).for_each(|number| halves.push(half(2, number)));
        halves.push(half(1, 1));
        assert_eq!(halves.all.len(), HALVES_MAX);
        let of = |host| halves.all.iter().filter(move |half| half.host == host);
        assert_eq!(of(1).count(), 2);
        assert_eq!(of(2).next().map(|half| half.handle[0]), Some(18));
    }

    #[test]
    fn refusals_are_logged_once_in_a_second() {
        let (mut refusals, second) = (Refusals::default(), Refusals::INTERVAL_NS);
        assert_eq!(refusals.count(Instant(5)), Some(1));
        assert!((0..1000).all(|at| refusals.count(Instant(5 + at)).is_none()));
        assert_eq!(refusals.count(Instant(5 + second)), Some(1001));
        assert_eq!(refusals.count(Instant(6 + second)), None);
    }
}
