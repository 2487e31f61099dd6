//! Users of this host, by its name services, which may block and fail.
//!
//! Outcomes are kept for a while: anyone can replay the token of a user, and name services may be on another host.

use crate::server::exports::{CallerGroups, Principal, USER_GROUPS_MAX};
use crate::server::throttle::Throttle;
use nix::errno::Errno;
use nix::unistd::{Gid, User, getgrouplist};
use spinrpc::sync::lock;
use spinrpc::sys::journal::event;
use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time that a user is kept for: changes of groups take effect after it.
const USER_TTL: Duration = Duration::from_secs(60);
/// Time that an absent user or a failure is kept for.
const MISS_TTL: Duration = Duration::from_secs(5);
/// Maximum number of names that are kept. The one that expires first is dropped for another one.
const KEPT_MAX: usize = 1024;

/// The name services failed, so that nothing is known about the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot look up user {name}: {cause}")]
pub struct LookupError {
    name: String,
    cause: Errno,
}

/// Finds users of a host by name. May block.
pub(super) trait NameService: fmt::Debug + Send + Sync {
    /// The user, or [`Principal::Unknown`] if there is none.
    fn user(&self, name: &str) -> Result<Principal, Errno>;
}

#[derive(Debug, Default)]
pub(super) struct Host {
    throttle: Mutex<Throttle>,
}

impl NameService for Host {
    fn user(&self, name: &str) -> Result<Principal, Errno> {
        let Some(user) = present(User::from_name(name))?.filter(|user| user.name == name) else {
            return Ok(Principal::Unknown);
        };
        let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
        let all = getgrouplist(&name, user.gid)?;
        let (groups, count) = further(user.gid, &all);
        if count > USER_GROUPS_MAX && lock(&self.throttle).admits(Instant::now()) {
            let name = &user.name;
            event!(
                WARN,
                ?name,
                count,
                "only the {USER_GROUPS_MAX} further groups with the lowest numbers count"
            );
        }
        Ok(Principal::User { uid: user.uid.as_raw(), gid: user.gid.as_raw(), groups })
    }
}

/// Some sources of users report an absent one as an error (getpwnam(3)).
fn present(found: Result<Option<User>, Errno>) -> Result<Option<User>, Errno> {
    match found {
        Err(Errno::ENOENT | Errno::ESRCH) => Ok(None),
        found => found,
    }
}

/// Groups besides the primary one, and their number before the limit.
fn further(primary: Gid, all: &[Gid]) -> (CallerGroups, usize) {
    let other = |gid: &Gid| (*gid != primary).then_some(gid.as_raw());
    let mut ids: Vec<u32> = all.iter().filter_map(other).collect();
    ids.sort_unstable();
    ids.dedup();
    (CallerGroups::of_user(&ids), ids.len())
}

#[derive(Debug)]
pub(super) struct Cached {
    services: Box<dyn NameService>,
    kept: Mutex<HashMap<String, CachedOutcome>>,
}

#[derive(Debug)]
struct CachedOutcome {
    outcome: Result<Principal, LookupError>,
    until: Instant,
}

impl Cached {
    pub(super) fn new(services: impl NameService + 'static) -> Self {
        Self { services: Box::new(services), kept: Mutex::default() }
    }

    pub(super) fn user(&self, name: &str, now: Instant) -> Result<Principal, LookupError> {
        if let Some(kept) = lock(&self.kept).get(name).filter(|kept| now < kept.until) {
            return kept.outcome.clone();
        }
        // Not under the lock, because this may block.
        let outcome = self.services.user(name);
        let outcome = outcome.map_err(|cause| LookupError { name: name.to_owned(), cause });
        let ttl = if matches!(outcome, Ok(Principal::User { .. })) { USER_TTL } else { MISS_TTL };
        self.keep(name, CachedOutcome { outcome: outcome.clone(), until: now + ttl }, now);
        outcome
    }

    fn keep(&self, name: &str, new: CachedOutcome, now: Instant) {
        let mut all = lock(&self.kept);
        if all.len() >= KEPT_MAX {
            all.retain(|_, kept| now < kept.until);
        }
        if all.len() >= KEPT_MAX {
            let first = all.iter().min_by_key(|(_, kept)| kept.until);
            let first = first.map(|(name, _)| name.clone());
            drop(first.and_then(|name| all.remove(&name)));
        }
        all.insert(name.to_owned(), new);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Name services that have alice, have no eve, and fail for all others. Counts its lookups, and those are alice's group.
    #[derive(Clone, Debug, Default)]
    pub(in super::super) struct Scripted(pub(in super::super) Arc<AtomicU32>);

    impl NameService for Scripted {
        fn user(&self, name: &str) -> Result<Principal, Errno> {
            let gid = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            match name {
                "alice" => Ok(Principal::User { uid: 7, gid, groups: CallerGroups::default() }),
                "eve" => Ok(Principal::Unknown),
                _ => Err(Errno::EIO),
            }
        }
    }

    fn cached() -> (Cached, Arc<AtomicU32>) {
        let services = Scripted::default();
        let lookups = Arc::clone(&services.0);
        (Cached::new(services), lookups)
    }

    #[test]
    fn a_user_is_looked_up_again_after_a_minute_and_another_outcome_sooner() {
        let ((cached, lookups), now) = (cached(), Instant::now());
        for (name, ttl) in [("alice", USER_TTL), ("eve", MISS_TTL), ("down", MISS_TTL)] {
            lookups.store(0, Ordering::Relaxed);
            let first = cached.user(name, now);
            assert_eq!(cached.user(name, now + ttl - Duration::from_nanos(1)), first);
            assert_eq!(lookups.load(Ordering::Relaxed), 1, "{name}");
            let _ = cached.user(name, now + ttl);
            assert_eq!(lookups.load(Ordering::Relaxed), 2, "{name}");
        }
    }

    #[test]
    fn names_that_are_kept_have_a_bound_and_the_user_kept_for_longest_stays() {
        let ((cached, lookups), now) = (cached(), Instant::now());
        let alice = cached.user("alice", now);
        for number in 0..2 * KEPT_MAX {
            assert!(cached.user(&format!("down{number}"), now).is_err());
        }
        assert_eq!(lock(&cached.kept).len(), KEPT_MAX);
        assert_eq!(cached.user("alice", now), alice);
        assert_eq!(lookups.load(Ordering::Relaxed) as usize, 1 + 2 * KEPT_MAX);
    }

    #[test]
    fn an_absent_user_is_told_from_a_failed_lookup() {
        for absent in [Ok(None), Err(Errno::ENOENT), Err(Errno::ESRCH)] {
            assert!(present(absent).unwrap().is_none());
        }
        for failed in [Errno::EIO, Errno::EAGAIN, Errno::EMFILE, Errno::ENOMEM] {
            assert_eq!(present(Err(failed)).unwrap_err(), failed);
        }
    }

    #[test]
    fn the_groups_of_a_user_are_all_but_the_primary_one() {
        let most = USER_GROUPS_MAX as u32;
        let ids: Vec<Gid> = (100..104 + most).rev().map(Gid::from_raw).collect();
        let (groups, count) = further(Gid::from_raw(103), &ids);
        assert_eq!(count, USER_GROUPS_MAX + 3);
        assert_eq!(groups.as_slice().len(), USER_GROUPS_MAX);
        assert!(!groups.as_slice().contains(&103));
    }
}
