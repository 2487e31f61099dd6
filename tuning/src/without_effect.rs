//! Settings without effect, because another key of the profile overrides them. They are valid, but
//! probably not intended.

use crate::error::Problem;
use crate::profile::{Profile, Source};
use spinrpc::config::{CoreList, Driver, IdlePolicy, KEYS, RawConfig, Registration};

impl Profile {
    /// Settings without effect in the user's own files and overrides, in the order of the table of
    /// keys, each with the setting that overrides it. Shipped profiles are excluded: they may set values for profiles that
    /// include them.
    pub fn without_effect(&self) -> Vec<Problem> {
        let raw = self.config().raw();
        let vain = |key: &str| VAIN.iter().find(|(vain, _, is)| vain.contains(&key) && is(raw));
        let problem = |key: &str, location| {
            let (_, because_of, _) = vain(key)?;
            let value = KEYS.iter().find(|key| key.name == *because_of)?.value(raw);
            let message = format!("{key} has no effect with {because_of} = {value}");
            Some(Problem { location, message })
        };
        let own = self.settings().filter_map(|setting| match setting.source {
            Source::File(location) if !location.is_shipped() => {
                problem(setting.key.name, Some(location.clone()))
            }
            Source::Override => problem(setting.key.name, None),
            _ => None,
        });
        own.collect()
    }
}

/// Keys, the key that overrides them, and the condition under which it does.
type Vain = (&'static [&'static str], &'static str, fn(&RawConfig) -> bool);

const VAIN: &[Vain] = &[
    (&["cores.max"], "cores.list", |raw| matches!(raw.cores.list, CoreList::Cpus(_))),
    (&["poll.spin_us"], "poll.mode", |raw| raw.poll.mode != IdlePolicy::Adaptive),
    (&["poll.park_us"], "poll.mode", |raw| raw.poll.mode == IdlePolicy::Busy),
    (&["rpc.ccp_auth"], "rpc.ccp", has_no_ccp),
    // Over a device, it is the depth of its Reads, too; 0 forbids Read chunks in any case.
    (&["rpc.max_rdma_reads"], "rpc.ccp", |raw| {
        raw.fabric.driver == Driver::Shm && raw.rpc.max_rdma_reads > 0 && has_no_ccp(raw)
    }),
    (&["rpc.msgp_align_bytes"], "rpc.protocol", |raw| !raw.rpc.protocol.has_padded_messages()),
    (&["limits.host_conns"], "fabric.driver", |raw| raw.fabric.driver == Driver::Shm),
    (&["mem.conn_arena_mib"], "fabric.driver", |raw| raw.fabric.driver == Driver::Iwarp),
    (&["mem.conn_arena_mib"], "verbs.registration", |raw| {
        raw.fabric.driver == Driver::Verbs
            && matches!(raw.verbs.registration, Registration::Window | Registration::Pool)
    }),
];

fn has_no_ccp(raw: &RawConfig) -> bool {
    raw.rpc.ccp.under(raw.rpc.protocol) == spinrpc::config::ConfigRole::Off
}

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
