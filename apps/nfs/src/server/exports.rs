//! Exports, their clients, and the identity that callers get.
//!
//! [`Exports`] does not change, and is used by every core and by MOUNT; nothing in it blocks or allocates. `table` replaces
//! it as a whole.

mod clients;
mod flavor;
mod options;
mod principal;
mod table;

pub use super::caller::{Caller, CallerGroups, USER_GROUPS_MAX};
pub use super::errors::Problem;
pub use super::stats::EXPORTS_MAX;
pub use clients::{Client, NamedHosts, Peer};
pub use flavor::Flavor;
pub use options::{CLIENTS_MAX, ExportOptions, KEYS, Settings, Squash, size};
pub use principal::{Mapped, Principal};
pub(super) use table::Current;
pub use table::ExportTable;

use crate::mount3::MNTPATHLEN;
use crate::protocol::Nfsstat3;
use crate::server::file_system::FileSystem;
use spinrpc::{AuthFlavor, AuthStat, AuthSys, GssService, Identity, OpaqueAuth};
use std::fmt;
use std::sync::Arc;

/// A call's statement about its user.
#[derive(Clone, Copy, Debug)]
pub enum Claim<'a> {
    /// A credential that proves nothing.
    Stated(OpaqueAuth<'a>),
    /// The user that Kerberos proves.
    Proved(Principal, GssService),
}

impl<'a> From<OpaqueAuth<'a>> for Claim<'a> {
    fn from(credential: OpaqueAuth<'a>) -> Self {
        Self::Stated(credential)
    }
}

impl<'a> Claim<'a> {
    #[inline]
    pub(super) fn of(call: &spinrpc::Call<'a>) -> Self {
        let credential = call.credential();
        if credential.flavor == AuthFlavor::Gss {
            proved(call, credential)
        } else {
            Self::Stated(credential)
        }
    }
}

#[cold]
fn proved<'a>(call: &spinrpc::Call<'a>, credential: OpaqueAuth<'a>) -> Claim<'a> {
    match call.identity() {
        Identity::Gss { principal, service } => Claim::Proved(Principal::parse(principal), service),
        _ => Claim::Stated(credential),
    }
}

/// Reason why a call is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// NFS3ERR_ACCES, like MNT3ERR_ACCES for MNT, if the peer is not a client of the export; others are of its handle.
    Status(Nfsstat3),
    /// The call is denied (RFC 5531 section 9): AUTH_TOOWEAK if the export does not accept credentials of this flavor,
    /// AUTH_BADCRED for one that claims to be AUTH_SYS but cannot be parsed.
    Denied(AuthStat),
}

impl From<Nfsstat3> for Refusal {
    fn from(status: Nfsstat3) -> Self {
        Self::Status(status)
    }
}

/// A directory or an in-memory tree that clients may mount.
#[derive(Clone)]
pub struct Export {
    /// Number in its handles; persistent, and unique among the exports.
    pub id: u32,
    /// The path that clients mount: absolute, without empty parts, `.` and `..`.
    pub path: String,
    /// The back end.
    pub file_system: Arc<dyn FileSystem>,
    /// Access options.
    pub options: ExportOptions,
    /// Addresses of the clients that are listed by name.
    pub named: NamedHosts,
}

impl Export {
    /// Identity for a call of `peer` with this credential: [`Export::has_client`], which holds as
    /// long as the connection, then [`Export::caller`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn admit<'a>(&self, peer: &Peer, claim: impl Into<Claim<'a>>) -> Result<Caller, Refusal> {
        if !self.has_client(peer) {
            return Err(Nfsstat3::Nfs3errAcces.into());
        }
        self.caller(claim)
    }

    /// Returns whether the peer may connect: a client list has to name it.
    #[must_use]
    pub fn has_client(&self, peer: &Peer) -> bool {
        self.options.clients.iter().any(|client| client.covers(peer)) || self.named.has(peer)
    }

    /// Identity for a client with this credential.
    ///
    /// # Errors
    /// [`Refusal::Denied`].
    pub fn caller<'a>(&self, claim: impl Into<Claim<'a>>) -> Result<Caller, Refusal> {
        let claim = claim.into();
        let flavor = flavor_of(&claim).ok_or(Refusal::Denied(AuthStat::TooWeak))?;
        if !self.options.flavors.contains(&flavor) {
            return Err(Refusal::Denied(AuthStat::TooWeak));
        }
        match claim {
            Claim::Proved(principal, _) => Ok(self.proved(principal)),
            Claim::Stated(credential) if flavor == Flavor::Sys => {
                let bad = |_| Refusal::Denied(AuthStat::BadCred);
                let user = AuthSys::parse(credential.body).map_err(bad)?;
                Ok(self.squashed(user.uid, user.gid, user.groups.into()))
            }
            Claim::Stated(_) => Ok(self.anonymous()),
        }
    }

    fn proved(&self, principal: Principal) -> Caller {
        match principal {
            Principal::User { uid, gid, groups } => self.squashed(uid, gid, groups),
            Principal::Machine
                if self.options.machine_is_root && self.options.squash != Squash::All =>
            {
                Caller { uid: 0, gid: 0, groups: CallerGroups::default() }
            }
            Principal::Machine | Principal::Unknown => self.anonymous(),
        }
    }

    pub(super) fn anonymous(&self) -> Caller {
        let (uid, gid) = self.options.anonymous;
        Caller { uid, gid, groups: CallerGroups::default() }
    }

    fn squashed(&self, uid: u32, gid: u32, groups: CallerGroups) -> Caller {
        let (anonymous_uid, anonymous_gid) = self.options.anonymous;
        let loses = |id: u32| loses_identity(self.options.squash, id);
        if self.options.squash == Squash::All {
            return self.anonymous();
        }
        let or = |id: u32, anonymous: u32| if loses(id) { anonymous } else { id };
        let (uid, gid) = (or(uid, anonymous_uid), or(gid, anonymous_gid));
        Caller { uid, gid, groups: groups.mapped(loses, anonymous_gid) }
    }
}

/// `None` if an export cannot accept it.
fn flavor_of(claim: &Claim<'_>) -> Option<Flavor> {
    match claim {
        Claim::Proved(_, service) => Flavor::of_service(*service),
        Claim::Stated(credential) => match credential.flavor {
            AuthFlavor::None => Some(Flavor::None),
            AuthFlavor::Sys => Some(Flavor::Sys),
            _ => None,
        },
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, path, file_system: _, options, named } = self;
        let mut shown = f.debug_struct("Export");
        shown.field("id", id).field("path", path).field("options", options).field("named", named);
        shown.finish_non_exhaustive()
    }
}

/// The highest number: Linux takes it as "no change", so that the caller would act as the server.
fn loses_identity(squash: Squash, id: u32) -> bool {
    match squash {
        Squash::None => id == u32::MAX,
        Squash::Root => id == u32::MAX || id == 0,
        Squash::All => true,
    }
}

/// All exports of a server at one time.
#[derive(Clone, Debug, Default)]
pub struct Exports {
    /// By id.
    all: Vec<Export>,
}

impl Exports {
    /// Combines exports.
    ///
    /// # Errors
    /// [`Problem`]: two have the same path or id, or a path is invalid.
    pub fn new(mut all: Vec<Export>) -> Result<Self, Problem> {
        if let Some(error) = Self::problems(&mut all).into_iter().next() {
            return Err(error);
        }
        Ok(Self { all })
    }

    /// Everything that keeps exports from being combined. Sorts them by id.
    pub fn problems(all: &mut [Export]) -> Vec<Problem> {
        let mut problems = Vec::new();
        let count = all.len();
        if count > EXPORTS_MAX {
            problems.push(format!("{count} exports are too many: the limit is {EXPORTS_MAX}"));
        }
        let bad = all.iter().filter(|export| !is_path(&export.path));
        problems.extend(bad.map(|Export { path, .. }| {
            format!(
                "{path:?} cannot be mounted: a path must begin with / and have at most {MNTPATHLEN} bytes, \
                 without empty parts, . and .."
            )
        }));
        all.sort_by(|a, b| a.path.cmp(&b.path));
        let same = twice(all, |a, b| a.path == b.path);
        problems.extend(same.map(|(Export { path, .. }, _)| {
            format!("two exports have the path {path}: set another one with path=/PATH")
        }));
        all.sort_by_key(|export| export.id);
        let same = twice(all, |a, b| a.id == b.id && a.path != b.path);
        problems.extend(same.map(|(Export { path, id, .. }, b)| {
            let other = &b.path;
            format!(
                "the exports {path} and {other} both have the id {id}: set another one with id=NUMBER"
            )
        }));
        problems.into_iter().map(Problem).collect()
    }

    /// The export of a handle.
    #[must_use]
    #[inline]
    pub fn by_id(&self, id: u32) -> Option<&Export> {
        match &self.all[..] {
            [only] => (only.id == id).then_some(only),
            all => {
                all.binary_search_by_key(&id, |export| export.id).ok().and_then(|at| all.get(at))
            }
        }
    }

    /// The export with this path, ignoring redundant slashes. A path below an export is not an
    /// export: a client mounts the export and continues with LOOKUP.
    #[must_use]
    pub fn by_path(&self, path: &str) -> Option<&Export> {
        let same = |export: &&Export| path.starts_with('/') && parts(path).eq(parts(&export.path));
        self.all.iter().find(same)
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Export> {
        self.all.iter()
    }
}

/// Default number in the handles of an export with this path: FNV-1a of the path, which is the same
/// in every process and build.
pub fn id_of(path: &str) -> u32 {
    const OFFSET: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    path.bytes().fold(OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME))
}

fn twice(
    sorted: &[Export],
    same: impl Fn(&Export, &Export) -> bool,
) -> impl Iterator<Item = (&Export, &Export)> {
    let neighbours = sorted.windows(2).filter_map(|pair| Some((pair.first()?, pair.get(1)?)));
    neighbours.filter(move |(a, b)| same(a, b))
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

fn is_path(path: &str) -> bool {
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    let names = path.strip_prefix('/').filter(|_| path.len() <= MNTPATHLEN as usize);
    names.is_some_and(|names| names.is_empty() || names.split('/').all(is_name))
}

#[cfg(test)]
pub(in crate::server) mod tests;
