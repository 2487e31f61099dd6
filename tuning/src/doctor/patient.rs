//! A host, a profile, and what the one means for the other.

use super::{Tried, Verdict};
use crate::host::{Adapter, HostFacts};
use crate::{Loader, Profile, ProfileError};
use spinrpc::config::{Config, CoreList, Driver, Host, IdlePolicy};
use spinrpc::sys::affinity::{CPUS_MAX, CpuSet};

/// What is examined.
#[derive(Clone, Copy, Debug)]
pub struct Patient<'a> {
    /// What the host says.
    pub facts: &'a HostFacts,
    /// What is to run on it.
    pub profile: &'a Profile,
    /// What trying found; `None` for a host that cannot be tried.
    pub tried: Option<&'a Tried>,
}

/// Loads a profile for a host that is to be examined. A list of cores that the host does not have is
/// taken as it is here: the examination will say so.
///
/// # Errors
/// Everything else that is wrong in the profile.
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
        CoreList::Auto => load(&facts.cpus.for_engine()),
    }
}

impl<'a> Patient<'a> {
    pub(super) fn config(&self) -> &'a Config {
        self.profile.config()
    }

    /// The CPUs that are polled on.
    pub(super) fn cores(&self) -> CpuSet {
        self.config().cpus().iter().copied().collect()
    }

    /// The CPUs that are left for everything else.
    pub(super) fn rest(&self) -> CpuSet {
        minus(&self.facts.cpus.online.clone().unwrap_or_default(), &self.cores())
    }

    pub(super) fn mode(&self) -> IdlePolicy {
        self.config().idle_policy()
    }

    /// What work that gets in the way of polling counts: cores that never give way suffer from it,
    /// others give way to it.
    pub(super) fn interference(&self) -> Verdict {
        match self.mode() {
            IdlePolicy::Busy => Verdict::Warn,
            IdlePolicy::Adaptive | IdlePolicy::Sleep => Verdict::Info,
        }
    }

    pub(super) fn goes_by_rdma(&self) -> bool {
        self.config().driver() == Driver::Verbs
    }

    /// The devices that the profile may go by: that which it names, else all.
    pub(super) fn adapters(&self) -> Vec<&'a Adapter> {
        let wanted = self.config().verbs().device.to_string();
        let is_wanted = |adapter: &&Adapter| wanted == "auto" || adapter.device.name == wanted;
        self.facts.rdma.adapters.iter().filter(is_wanted).collect()
    }

    /// Programs choose devices by the address they are given, so a host that has some is looked at
    /// whatever the profile says; what is wrong with them fails only those that go by them.
    pub(super) fn rdma_failure(&self) -> Verdict {
        if self.goes_by_rdma() { Verdict::Fail } else { Verdict::Info }
    }
}

/// The CPUs of `all` without those of `others`.
pub(super) fn minus(all: &CpuSet, others: &CpuSet) -> CpuSet {
    all.iter().filter(|cpu| !others.contains(*cpu)).collect()
}

/// The CPUs in both.
pub(super) fn both(one: &CpuSet, other: &CpuSet) -> CpuSet {
    one.iter().filter(|cpu| other.contains(*cpu)).collect()
}

/// The form of a verb that goes with one CPU or with several.
pub(super) fn agree(set: &CpuSet, one: &'static str, several: &'static str) -> &'static str {
    if set.len() == 1 { one } else { several }
}

/// `CPU 3`, `CPUs 3-5`.
pub(super) fn cpus(set: &CpuSet) -> String {
    if set.len() == 1 { format!("CPU {set}") } else { format!("CPUs {set}") }
}

/// `poll core 3`, `poll cores 3-5`.
pub(super) fn cores(set: &CpuSet) -> String {
    if set.len() == 1 { format!("poll core {set}") } else { format!("poll cores {set}") }
}
