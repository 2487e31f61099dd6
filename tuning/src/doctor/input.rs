//! The host to examine, and the profile's demands on it.

use super::{Tried, Verdict};
use crate::host::{Adapter, HostFacts, minus};
use crate::{Loader, Profile, ProfileError};
use spinrpc::config::{Config, CoreList, Driver, Host, IdlePolicy};
use spinrpc::sys::affinity::{CPUS_MAX, CpuSet};

#[derive(Clone, Copy, Debug)]
pub struct CheckInput<'a> {
    pub facts: &'a HostFacts,
    pub profile: &'a Profile,
    /// Test results; `None` for a host that cannot be tested.
    pub tried: Option<&'a Tried>,
}

/// Loads a profile for a host to examine. A core list with CPUs that the host does not have is
/// accepted here, because a check reports it.
///
/// # Errors
/// All other problems of the profile.
pub fn profile_for(
    facts: &HostFacts,
    name: &str,
    overrides: &[String],
) -> Result<Profile, ProfileError> {
    let any = Host { allowed: (0..CPUS_MAX).collect(), ..Host::default() };
    let load = |host: &Host| {
        overrides.iter().fold(Loader::new(host), |loader, set| loader.set(set)).load(name)
    };
    let profile = load(&any)?;
    match profile.config().raw().cores.list {
        CoreList::Cpus(_) => Ok(profile),
        CoreList::Auto | CoreList::Any => load(&facts.cpus.for_engine()),
    }
}

impl<'a> CheckInput<'a> {
    pub(crate) fn config(&self) -> &'a Config {
        self.profile.config()
    }

    /// The CPUs that are polled on: all that this process may use, if cores are not pinned.
    pub(crate) fn cores(&self) -> CpuSet {
        match self.config().pins_cores() {
            true => self.config().cpus().iter().copied().collect(),
            false => self.facts.cpus.for_engine().allowed.into_iter().collect(),
        }
    }

    pub(crate) fn open_cores(&self) -> CpuSet {
        minus(&self.cores(), &self.facts.cpus.isolated.clone().unwrap_or_default())
    }

    pub(super) fn rest(&self) -> CpuSet {
        minus(&self.facts.cpus.online.clone().unwrap_or_default(), &self.cores())
    }

    /// CPUs for as many cores as the profile has, close to each other if they share memory.
    pub(super) fn better_cores(&self) -> CpuSet {
        let (cpus, most) = (&self.facts.cpus, self.config().cores() as u64);
        cpus.select(&cpus.for_engine(), most, !self.goes_by_rdma())
    }

    pub(crate) fn mode(&self) -> IdlePolicy {
        self.config().idle_policy()
    }

    /// Busy cores suffer from work that competes with polling, other modes yield to it.
    pub(super) fn interference(&self) -> Verdict {
        match self.mode() {
            IdlePolicy::Busy => Verdict::Warn,
            IdlePolicy::Adaptive | IdlePolicy::Sleep => Verdict::Info,
        }
    }

    pub(super) fn goes_by_rdma(&self) -> bool {
        self.config().driver() == Driver::Verbs
    }

    pub(super) fn adapters(&self) -> Vec<&'a Adapter> {
        let wanted = self.config().verbs().device.to_string();
        let is_wanted = |adapter: &&Adapter| wanted == "auto" || adapter.device.name == wanted;
        self.facts.rdma.adapters.iter().filter(is_wanted).collect()
    }

    /// Severity of an RDMA problem. A program chooses its transport by address, so devices are
    /// checked whatever the profile says, but only fail profiles for verbs.
    pub(super) fn rdma_failure(&self) -> Verdict {
        if self.goes_by_rdma() { Verdict::Fail } else { Verdict::Info }
    }
}

pub(super) fn agree(name: fn(&CpuSet) -> String, set: &CpuSet, one: &str, several: &str) -> String {
    format!("{} {}", name(set), if set.len() == 1 { one } else { several })
}

pub(super) fn are(set: &CpuSet) -> String {
    agree(cores, set, "is", "are")
}

pub(super) fn cpus(set: &CpuSet) -> String {
    if set.len() == 1 { format!("CPU {set}") } else { format!("CPUs {set}") }
}

pub(super) fn cores(set: &CpuSet) -> String {
    if set.len() == 1 { format!("poll core {set}") } else { format!("poll cores {set}") }
}
