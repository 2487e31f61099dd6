//! Kerberos, by MIT's library (`libgssapi_krb5`), which must be installed where the program runs.
//!
#![doc = include_str!("library.md")]

mod error;
mod ffi;
mod handles;

use core::ffi::CStr;
use spinrpc_proto::ids::Instant;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::context::Established;
use crate::mechanism::{Mechanism, MechanismError, Negotiation};
use handles::{Credential, LibraryContext, MemoryCache, Name, Usage};

pub use error::{Fault, KerberosError};

const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;
/// GSS_C_INDEFINITE.
const INDEFINITE: u32 = u32::MAX;
/// Numbers of ticket caches in memory, whose names must differ within the process.
static CACHES: AtomicU64 = AtomicU64::new(0);

/// Where an initiator has its tickets from.
#[derive(Clone, Debug, Default)]
pub struct InitiatorOptions {
    cache: Option<String>,
    keytab: Option<PathBuf>,
    principal: Option<String>,
}

impl InitiatorOptions {
    /// Tickets of the default cache of the user, as `klist` shows them.
    pub fn new() -> Self {
        Self::default()
    }

    /// The cache with this name, such as `FILE:/tmp/krb5cc_1000`. Without a type it is a file.
    #[must_use]
    pub fn cache(mut self, name: impl Into<String>) -> Self {
        self.cache = Some(name.into());
        self
    }

    /// Asks the KDC for tickets with a key of this keytab, and again before they end. They are kept in memory, unless a
    /// cache is named too.
    #[must_use]
    pub fn keytab(mut self, path: impl Into<PathBuf>) -> Self {
        self.keytab = Some(path.into());
        self
    }

    /// The principal, such as `alice@REALM` or `host/client@REALM`. By default that of the cache, or the first of the
    /// keytab.
    #[must_use]
    pub fn principal(mut self, name: impl Into<String>) -> Self {
        self.principal = Some(name.into());
        self
    }
}

/// Keys of an acceptor.
#[derive(Clone, Debug, Default)]
pub struct AcceptorOptions {
    keytab: Option<PathBuf>,
    service: Option<String>,
}

impl AcceptorOptions {
    /// Every key in the default keytab of the system, `/etc/krb5.keytab` unless `krb5.conf` names another.
    pub fn new() -> Self {
        Self::default()
    }

    /// The keytab. It is read for each context, so a new version of a key needs no restart.
    #[must_use]
    pub fn keytab(mut self, path: impl Into<PathBuf>) -> Self {
        self.keytab = Some(path.into());
        self
    }

    /// Takes tickets for this service only: `nfs` with any host name, `nfs@server`, or a principal.
    #[must_use]
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.service = Some(name.into());
        self
    }
}

/// One end of contexts of Kerberos: initiator or acceptor.
#[derive(Debug)]
pub struct Kerberos(End);

#[derive(Debug)]
enum End {
    Initiator(Initiator),
    Acceptor(Acceptor),
}

impl Kerberos {
    /// An initiator. Tickets are looked for when a context begins, so that those of a later `kinit` are used.
    ///
    /// # Errors
    /// A path or name with a NUL.
    pub fn initiator(options: InitiatorOptions) -> Result<Self, KerberosError> {
        Initiator::new(options).map(|initiator| Self(End::Initiator(initiator)))
    }

    /// An acceptor.
    ///
    /// # Errors
    /// The keytab is missing, cannot be read, or has no key of the service.
    pub fn acceptor(options: AcceptorOptions) -> Result<Self, KerberosError> {
        Acceptor::new(options).map(|acceptor| Self(End::Acceptor(acceptor)))
    }
}

type Store = Vec<(&'static CStr, CString)>;

fn text(value: impl Into<Vec<u8>>) -> Result<CString, KerberosError> {
    CString::new(value).map_err(|_| KerberosError::refused("a path or name contains a NUL"))
}

/// A file as a keytab's name, which otherwise might be taken for a type.
fn file(path: &Path) -> Result<CString, KerberosError> {
    text([b"FILE:", path.as_os_str().as_bytes()].concat())
}

#[derive(Debug)]
struct Initiator {
    store: Store,
    principal: Option<String>,
    keytab: Option<PathBuf>,
    cache: Option<Arc<MemoryCache>>,
}

impl Initiator {
    fn new(options: InitiatorOptions) -> Result<Self, KerberosError> {
        let InitiatorOptions { cache, keytab, principal } = options;
        let (mut store, mut in_memory) = (Store::new(), None);
        match (cache, &keytab) {
            (Some(name), _) => store.push((c"ccache", text(name)?)),
            (None, Some(_)) => {
                let number = CACHES.fetch_add(1, Ordering::Relaxed);
                let name = text(format!("MEMORY:spinrpc-gss-{number}"))?;
                store.push((c"ccache", name.clone()));
                in_memory = Some(Arc::new(MemoryCache(name)));
            }
            (None, None) => {}
        }
        if let Some(path) = &keytab {
            store.push((c"client_keytab", file(path)?));
        }
        Ok(Self { store, principal, keytab, cache: in_memory })
    }

    fn begin(&self, target: &str, now: Instant) -> Result<Negotiation, KerberosError> {
        let target = Name::service(target)?;
        let principal = self.principal.as_deref().map(Name::principal).transpose()?;
        let credential = Credential::acquire(principal.as_ref(), Usage::Initiate, &self.store);
        let credential = credential.map_err(|error| self.explain(error))?;
        let (context, _cache) = (LibraryContext::new(), self.cache.clone());
        let initiating = Initiating { context, credential, target, _cache };
        initiating.step(&[], now).map_err(|error| self.explain(error))
    }

    /// Without a ticket, the keytab may be why.
    fn explain(&self, error: KerberosError) -> KerberosError {
        match &self.keytab {
            Some(path) => error.of_keytab(path),
            None => error,
        }
    }
}

struct Initiating {
    context: LibraryContext,
    credential: Credential,
    target: Name,
    /// The last: the credential refers to it.
    _cache: Option<Arc<MemoryCache>>,
}

impl Initiating {
    fn step(mut self, token: &[u8], now: Instant) -> Result<Negotiation, KerberosError> {
        let step = self.context.initiate(&self.credential, &self.target, token)?;
        if step.continues {
            let go_on =
                move |token: &[u8], now| self.step(token, now).map_err(MechanismError::from);
            return Ok(Negotiation::Continue(Box::new(go_on), step.token));
        }
        // With mutual authentication the last token is the acceptor's.
        let peer = self.context.target()?;
        let established = established(self.context, peer, step.lifetime, now)?;
        Ok(Negotiation::Complete(established, Vec::new()))
    }
}

struct Acceptor {
    store: Store,
    service: Option<String>,
    /// Credentials that no thread uses now: as many as have been needed at once.
    idle: Mutex<Vec<Credential>>,
}

impl Acceptor {
    fn new(options: AcceptorOptions) -> Result<Self, KerberosError> {
        let AcceptorOptions { keytab, service } = options;
        let mut store = vec![(c"rcache", text("none:")?)];
        if let Some(path) = &keytab {
            store.push((c"keytab", file(path)?));
        }
        let acceptor = Self { store, service, idle: Mutex::default() };
        let credential = acceptor.acquire().map_err(|error| match &keytab {
            Some(path) => error.of_keytab(path),
            None => error,
        })?;
        acceptor.idle().push(credential);
        Ok(acceptor)
    }

    fn acquire(&self) -> Result<Credential, KerberosError> {
        let service = self.service.as_deref().map(Name::service).transpose()?;
        Credential::acquire(service.as_ref(), Usage::Accept, &self.store)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Credential>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An initiator of Kerberos sends one token, so that a context is complete at once.
    fn accept(&self, token: &[u8], now: Instant) -> Result<Negotiation, KerberosError> {
        let idle = self.idle().pop();
        let credential = idle.map_or_else(|| self.acquire(), Ok)?;
        let mut context = LibraryContext::new();
        let accepted = context.accept(&credential, token);
        self.idle().push(credential);
        let (step, peer) = accepted?;
        let established = established(context, peer, step.lifetime, now)?;
        Ok(Negotiation::Complete(established, step.token))
    }
}

impl core::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Acceptor").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Names and lifetime were read before, because export ends the context.
fn established(
    context: LibraryContext,
    peer: String,
    lifetime: u32,
    now: Instant,
) -> Result<Established, KerberosError> {
    let (key, acceptor_subkey) = context.export()?;
    let nanoseconds = match lifetime {
        INDEFINITE => u64::MAX,
        seconds => u64::from(seconds) * NANOSECONDS_PER_SECOND,
    };
    let expires = Instant(now.0.saturating_add(nanoseconds));
    Ok(Established { key, acceptor_subkey, expires, peer })
}

impl Mechanism for Kerberos {
    fn begin(&self, target: &str, now: Instant) -> Result<Negotiation, MechanismError> {
        match &self.0 {
            End::Initiator(initiator) => Ok(initiator.begin(target, now)?),
            End::Acceptor(_) => Err(KerberosError::no_credential("this end accepts only").into()),
        }
    }

    fn accept(&self, token: &[u8], now: Instant) -> Result<Negotiation, MechanismError> {
        match &self.0 {
            End::Acceptor(acceptor) => Ok(acceptor.accept(token, now)?),
            End::Initiator(_) => {
                Err(KerberosError::no_credential("this end initiates only").into())
            }
        }
    }
}
