//! What is exported, to whom, and as whom they act.

use crate::nfs::server::file_system::FileSystem;
use spinrpc::{AuthFlavor, Groups};
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
