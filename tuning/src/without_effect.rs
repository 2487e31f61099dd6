//! Settings without effect, because another key of the profile overrides them. They are valid, but
//! probably not intended.

use crate::error::Location;
use crate::profile::{Profile, Source};
use spinrpc::config::{CoreList, Driver, IdlePolicy, KEYS, RawConfig, Registration, Versions};
use std::fmt;

/// A setting without effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WithoutEffect {
    /// Location, if it is in a file.
    pub location: Option<Location>,
    /// The ineffective key.
    pub key: &'static str,
    /// The key that overrides it.
    pub because_of: &'static str,
    /// Value of the overriding key, in profile syntax.
    pub value: String,
}

impl fmt::Display for WithoutEffect {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(out, "{location}: ")?;
        }
        out.write_str(&self.message())
    }
}

impl WithoutEffect {
    /// Message without the location.
    pub fn message(&self) -> String {
        let Self { key, because_of, value, .. } = self;
        format!("{key} has no effect with {because_of} = {value}")
    }
}

impl Profile {
    /// Settings without effect in the user's own files and overrides, in the order of the table of
    /// keys. Shipped profiles are excluded: they may set values for profiles that include them.
    pub fn without_effect(&self) -> Vec<WithoutEffect> {
        let raw = self.config().raw();
        let vain = |key: &str| VAIN.iter().find(|(vain, _, is)| vain.contains(&key) && is(raw));
        let because = |key: &'static str| {
            let (_, because_of, _) = vain(key)?;
            let decides = KEYS.iter().find(|key| key.name == *because_of)?;
            Some((decides.name, decides.value(raw).to_string()))
        };
        let own = self.settings().filter_map(|setting| match setting.source {
            Source::File(location) if !location.is_shipped() => {
                Some((setting.key.name, Some(location.clone())))
            }
            Source::Override => Some((setting.key.name, None)),
            _ => None,
        });
        own.filter_map(|(key, location)| {
            let (because_of, value) = because(key)?;
            Some(WithoutEffect { location, key, because_of, value })
        })
        .collect()
    }
}

/// Keys, the key that overrides them, and the condition under which it does.
type Vain = (&'static [&'static str], &'static str, fn(&RawConfig) -> bool);

const VAIN: &[Vain] = &[
    (&["cores.max", "cores.skip", "cores.smt"], "cores.list", |raw| {
        raw.cores.list != CoreList::Auto
    }),
    (&["poll.spin_us", "poll.yield_us"], "poll.mode", |raw| raw.poll.mode != IdlePolicy::Adaptive),
    (&["poll.park_us"], "poll.mode", |raw| raw.poll.mode == IdlePolicy::Busy),
    (&["rpc.version_memory_ms"], "rpc.version", |raw| raw.rpc.version != Versions::Both),
    (&["rpc.propagate_deadlines"], "rpc.version", |raw| raw.rpc.version == Versions::One),
    (&["rpc.ccp_auth", "rpc.max_rdma_reads"], "rpc.ccp", |raw| {
        raw.rpc.ccp.under(raw.rpc.protocol) == spinrpc::config::ConfigRole::Off
    }),
    (&["rpc.msgp_align_bytes", "rpc.msgp_threshold_bytes"], "rpc.protocol", |raw| {
        !raw.rpc.protocol.has_padded_messages()
    }),
    (&["rpc.msgp_threshold_bytes"], "rpc.msgp_align_bytes", |raw| raw.rpc.msgp_align_bytes == 0),
    (&["rpc.done_timeout_ms", "limits.exports"], "rpc.protocol", |raw| {
        !raw.rpc.protocol.has_reads_in_replies()
    }),
    (
        &["rpc.reply_cache_entries", "rpc.reply_cache_bytes", "rpc.reply_cache_keep_ms"],
        "rpc.reply_cache_clients",
        |raw| raw.rpc.reply_cache_clients == 0,
    ),
    (&["limits.host_conns"], "fabric.driver", |raw| raw.fabric.driver == Driver::Shm),
    (&["verbs.arena_mib"], "verbs.registration", |raw| {
        matches!(raw.verbs.registration, Registration::Window | Registration::Pool)
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_that_is_named_exists() {
        for (keys, because_of, _) in VAIN {
            for name in keys.iter().chain([because_of]) {
                assert!(KEYS.iter().any(|key| key.name == *name), "{name}");
            }
        }
    }
}
