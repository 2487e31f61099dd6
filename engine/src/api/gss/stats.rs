//! Statistics of the security contexts of an engine: counters that the cores and the threads of mechanisms write, and anybody
//! reads.

use crate::api::errors::CallError;
use crate::reactor::types::crypto_counts::CryptoCounts;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::cache_lines::assert_alone;
use spinrpc_proto::rpc::{AuthStat, GssFault, GssService, RejectStatus};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Counters of RPCSEC_GSS since the engine started. Each is exact; they may be of slightly different times. See
        /// [`Engine::gss_stats`](crate::Engine::gss_stats).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct GssStats { $($(#[$doc])* pub $name: u64,)+ }

        /// The counters of one core, or of the threads that are no core. On lines of their own: each call counts, and those
        /// of another core may be next to them.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(in crate::api) struct GssCounts { $(pub(super) $name: AtomicU64,)+ }

        impl GssStats {
            /// Every counter with its name, for tables and JSON.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }

            pub(super) fn add(&mut self, counts: &GssCounts) {
                $(self.$name += counts.$name.load(Ordering::Relaxed);)+
            }
        }
    };
}

counters! {
    /// Contexts that the server has now.
    contexts,
    /// Contexts that it accepted.
    contexts_accepted,
    /// Tokens that it refused.
    contexts_refused,
    /// Contexts that their clients ended.
    contexts_destroyed,
    /// Contexts dropped because they expired or were idle for too long.
    contexts_expired,
    /// Contexts that made way for others.
    contexts_evicted,
    /// Calls received whose arguments nothing protects.
    calls_none,
    /// Calls received whose arguments are signed.
    calls_integrity,
    /// Calls received whose arguments are sealed.
    calls_privacy,
    /// Calls refused because their context is not known, or not any more.
    refused_context,
    /// Calls refused because their verifier does not check.
    refused_verifier,
    /// Calls that came again: each closed its connection.
    refused_replay,
    /// Calls refused because their sequence number is beyond the last one.
    refused_sequence,
    /// Calls refused because their arguments are not as their client sent them.
    refused_body,
    /// Calls refused because their credential is malformed.
    refused_credential,
    /// Calls refused because they have less protection than the server requires.
    refused_weak,
    /// Contexts that clients of this engine established.
    contexts_established,
    /// Contexts that they did not get.
    contexts_failed,
    /// Calls of theirs that servers denied because they had forgotten the context.
    calls_denied,
    /// Replies to them that do not come from the server, or are not as it sent them.
    replies_forged,
    /// Long bodies that threads of the cores sealed or unsealed.
    long_bodies,
    /// Bytes of arguments and results, with their frames, that were signed, or whose signature was checked.
    bytes_integrity,
    /// Bytes of arguments and results, with their frames, that were encrypted or decrypted.
    bytes_privacy,
    /// Nanoseconds that signing and checking these bytes took. Verifiers are not in it. 0
    /// where the time-stamp counter of the processor is not the clock.
    ns_integrity,
    /// Nanoseconds that encrypting and decrypting these bytes took, as for `ns_integrity`.
    ns_privacy,
}

impl GssStats {
    pub(super) fn add_crypto(&mut self, counts: &CryptoCounts) {
        self.long_bodies += counts.long();
        let (integrity, privacy) = (GssService::Integrity, GssService::Privacy);
        for (service, bytes, ns) in [
            (integrity, &mut self.bytes_integrity, &mut self.ns_integrity),
            (privacy, &mut self.bytes_privacy, &mut self.ns_privacy),
        ] {
            let counted = counts.of_service(service);
            *bytes += counted.0;
            *ns += counted.1;
        }
    }
}

assert_alone!(GssCounts);

impl GssCounts {
    /// One more. Each is written by one thread mostly; who reads pairs with nothing.
    pub(super) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_call(&self, service: GssService) {
        Self::count(match service {
            GssService::Integrity => &self.calls_integrity,
            GssService::Privacy => &self.calls_privacy,
            GssService::None | GssService::Other(_) => &self.calls_none,
        });
    }

    pub(super) fn count_error(&self, error: &CallError) {
        match error {
            CallError::NotAuthentic => Self::count(&self.replies_forged),
            CallError::Rejected(RejectStatus::AuthError(
                AuthStat::GssCredProblem | AuthStat::GssCtxProblem,
            )) => Self::count(&self.calls_denied),
            _ => {}
        }
    }

    pub(super) fn count_fault(&self, fault: GssFault) {
        Self::count(match fault {
            GssFault::UnknownContext => &self.refused_context,
            GssFault::Verifier => &self.refused_verifier,
            GssFault::Replay => &self.refused_replay,
            GssFault::SequenceTooLarge => &self.refused_sequence,
            GssFault::Body => &self.refused_body,
            GssFault::Credential => &self.refused_credential,
        });
    }
}
