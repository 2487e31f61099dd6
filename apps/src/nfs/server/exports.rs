//! What is exported, to whom, and as whom they act.

use crate::nfs::server::file_system::FileSystem;
use spinrpc::{AuthFlavor, AuthSys, Groups, OpaqueAuth};
use std::net::IpAddr;
use std::sync::Arc;

/// As whom an operation is done, when the options of the export have been applied to what the
/// credential says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Further groups.
    pub groups: Groups,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A host.
    Host(IpAddr),
    /// A process of this host, by shared memory or a Unix socket.
    Local {
        /// Its user.
        uid: u32,
    },
    /// Nobody can say.
    Unknown,
}

impl Peer {
    /// Who is meant by the name that the engine has for a peer.
    pub(super) fn named(name: &str) -> Self {
        let address = name.strip_prefix("rdma://").and_then(|rest| rest.parse().ok());
        if let Some(address) = address {
            return Self::Host(std::net::SocketAddr::ip(&address));
        }
        let user = name.rsplit_once(" uid ").and_then(|(_, uid)| uid.parse().ok());
        user.map_or(Self::Unknown, |uid| Self::Local { uid })
    }
}

/// Whose identity the callers of an export lose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// Those of user 0 and group 0.
    #[default]
    Root,
    /// All.
    All,
    /// Nobody's.
    None,
}

/// A directory or an in-memory tree that clients may mount.
#[derive(Clone)]
pub struct Export {
    /// Marks its handles; the same after a restart, and no other export has it.
    pub id: u32,
    /// The path that clients mount.
    pub path: String,
    /// What is behind it.
    pub file_system: Arc<dyn FileSystem>,
    /// How it may be used.
    pub options: ExportOptions,
}

/// How an export may be used, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    /// Nothing is changed.
    pub read_only: bool,
    /// Who acts as [`ExportOptions::anonymous`].
    pub squash: Squash,
    /// User and group of those who lose their own, and of AUTH_NONE.
    pub anonymous: (u32, u32),
    /// Who may come in; nobody if empty.
    pub clients: Vec<Client>,
    /// Credentials that are taken, the favourite first.
    pub flavors: Vec<AuthFlavor>,
}

/// One or many who may come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Hosts whose address begins with so many bits of this one.
    Network {
        /// The address.
        address: IpAddr,
        /// How many of its bits count.
        bits: u8,
    },
    /// Processes of this host and of this user, by shared memory.
    Local {
        /// The user.
        uid: u32,
    },
    /// Everybody.
    Any,
}

/// Why somebody may not come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The export is not for this peer.
    NotAClient,
    /// The export wants another flavor of credential.
    TooWeak,
    /// The credential cannot be read.
    BadCredential,
}

/// Why exports cannot be served together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// Two have the same number or path.
    #[error("two exports have the id {id} or the path {path}")]
    Twice {
        /// The number.
        id: u32,
        /// The path.
        path: String,
    },
}

/// All that a server exports.
#[derive(Clone, Debug)]
pub struct Exports(Vec<Export>);

impl Exports {
    /// These.
    ///
    /// # Errors
    /// [`ExportError`] if two cannot be told apart.
    pub fn new(exports: Vec<Export>) -> Result<Self, ExportError> {
        for (index, one) in exports.iter().enumerate() {
            let same = |other: &&Export| other.id == one.id || other.path == one.path;
            if let Some(twice) = exports.iter().take(index).find(same) {
                return Err(ExportError::Twice { id: twice.id, path: twice.path.clone() });
            }
        }
        Ok(Self(exports))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Export> {
        self.0.iter()
    }

    /// The one with this number.
    #[must_use]
    pub fn by_id(&self, id: u32) -> Option<&Export> {
        self.0.iter().find(|export| export.id == id)
    }

    /// The one with this path.
    #[must_use]
    pub fn by_path(&self, path: &str) -> Option<&Export> {
        self.0.iter().find(|export| export.path == path)
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export").field("id", &self.id).field("path", &self.path).finish()
    }
}

impl Export {
    /// As whom somebody acts here.
    ///
    /// # Errors
    /// [`Refused`] says why not at all.
    pub fn admit(&self, peer: &Peer, credential: OpaqueAuth<'_>) -> Result<Caller, Refused> {
        if !self.options.clients.iter().any(|client| client.is(peer)) {
            return Err(Refused::NotAClient);
        }
        if !self.options.flavors.contains(&credential.flavor) {
            return Err(Refused::TooWeak);
        }
        let (uid, gid) = self.options.anonymous;
        let anonymous = Caller { uid, gid, groups: Groups::default() };
        if credential.flavor != AuthFlavor::Sys {
            return Ok(anonymous);
        }
        let user = AuthSys::parse(credential.body).map_err(|_| Refused::BadCredential)?;
        Ok(match self.options.squash {
            Squash::All => anonymous,
            Squash::Root if user.uid == 0 => anonymous,
            _ => Caller { uid: user.uid, gid: user.gid, groups: user.groups },
        })
    }
}

impl Client {
    fn is(&self, peer: &Peer) -> bool {
        match (self, peer) {
            (Self::Any, _) => true,
            (Self::Local { uid }, Peer::Local { uid: peer }) => uid == peer,
            (Self::Network { address, .. }, Peer::Host(peer)) => address == peer,
            _ => false,
        }
    }
}
