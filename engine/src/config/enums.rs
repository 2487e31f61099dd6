//! The values of keys that take one of a few names.

use super::value::Choice;
use spinrpc_proto::config_proto::Protection;
use spinrpc_proto::dialect::Profile;
use spinrpc_proto::version::Versions;

/// Behaviour of an idle core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Keeps polling: lowest latency, all of the CPU.
    Busy,
    /// Spins, then yields, then parks on an event.
    Adaptive,
    /// Parks at once: lowest use of the CPU.
    Sleep,
}

/// An engine's role in the Connection Configuration Protocol (RFC 5666 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigRole {
    /// Both under the drafts, where it "will be used for connection setup" (draft-ietf-nfsv4-rpcrdma-00
    /// and -03, section 6.1); otherwise nothing.
    Auto,
    /// Nothing: RFC 8166 took it away.
    Off,
    /// Answers it on the connections it accepts.
    Serve,
    /// Calls it first on the connections it makes.
    Ask,
    /// Both.
    Both,
}

impl ConfigRole {
    /// The role under these rules: never [`ConfigRole::Auto`].
    #[must_use]
    pub fn under(self, protocol: Profile) -> Self {
        match self {
            Self::Auto if protocol.begins_with_configuration() => Self::Both,
            Self::Auto => Self::Off,
            role => role,
        }
    }
}

/// Urgency of something that a host may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Not requested.
    Off,
    /// Asked for; without it the engine goes on.
    Try,
    /// Asked for; without it the engine does not start.
    Require,
}

/// Consequence of a panic in a handler of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnPanic {
    /// The call is answered SYSTEM_ERR, and the core goes on.
    Answer,
    /// The engine ends with an error.
    End,
}

/// View that the application may get of bulk data that arrives in memory that the peer can write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkView {
    /// In place, if it asks for that. Where the peer can write at any time, safe code gets no
    /// reference to the bytes ([`ExposedBulk`](crate::ExposedBulk)).
    Lent,
    /// As a private copy that the peer cannot reach.
    Copy,
}

/// The fabric that moves the bytes of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Shared memory of one host; addresses `shm:NAME`.
    Shm,
    /// RDMA devices; addresses `rdma://HOST:PORT`. Needs the feature `verbs`.
    Verbs,
    /// TCP sockets of the process, over which iWARP is spoken; addresses `iwarp://HOST:PORT`. Needs no device and no
    /// privilege, and the peer may have a device.
    Iwarp,
}

/// Registration of the memory behind chunks for access by the peer of an RDMA connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// `Window` where the device has memory windows of type 2, else `Buffer`; `Buffer` on rxe, too,
    /// whose windows its kernel driver does not always get rid of.
    Auto,
    /// Each block of the connection's own memory (`mem.conn_arena_mib`) has separate keys, which live
    /// as long as the connection. No reference to that memory is given out: data that are not asked
    /// for as an [`ExposedBulk`](crate::ExposedBulk) are copied.
    Buffer,
    /// A memory window for each exposure, bound to its very bytes of the core's memory
    /// (`mem.arena_mib`); its key dies with it. Not for rxe with peers that are not trusted: it does
    /// not check a window's bounds, so that a key opens all of that memory.
    Window,
    /// One key with every right for the core's memory: for trusted fabrics only.
    Pool,
}

/// Access of other processes to an engine's statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsExport {
    /// Not at all.
    None,
    /// By its [control socket](crate::control).
    Socket,
}

/// Implements [`Choice`] from the list of names and values, in the order shown to people.
macro_rules! choice {
    (@ ($($value:tt)+)) => { $($value)+ };
    (@ $variant:ident) => { Self::$variant };
    ($type:ty: $($name:literal => $value:tt),+) => {
        impl Choice for $type {
            fn names(&self) -> &'static [&'static str] {
                &[$($name),+]
            }

            fn name(&self) -> &'static str {
                match self {
                    $(choice!(@ $value) => $name),+
                }
            }

            fn set(&mut self, name: &str) -> bool {
                *self = match name {
                    $($name => choice!(@ $value),)+
                    _ => return false,
                };
                true
            }
        }
    };
}

choice!(IdlePolicy: "busy" => Busy, "adaptive" => Adaptive, "sleep" => Sleep);
choice!(Want: "off" => Off, "try" => Try, "require" => Require);
choice!(
    Profile: "rfc8166" => Rfc8166, "rfc5666" => Rfc5666, "draft03" => Draft03, "draft00" => Draft00,
    "draft00-replies" => Draft00Replies
);
choice!(Versions: "auto" => Both, "1" => One, "2" => Two);
choice!(ConfigRole: "auto" => Auto, "off" => Off, "serve" => Serve, "ask" => Ask, "both" => Both);
choice!(OnPanic: "answer" => Answer, "end" => End);
choice!(BulkView: "lent" => Lent, "copy" => Copy);
choice!(Driver: "shm" => Shm, "verbs" => Verbs, "iwarp" => Iwarp);
choice!(
    Registration: "auto" => Auto, "buffer" => Buffer, "window" => Window, "pool" => Pool
);
choice!(bool: "on" => (true), "off" => (false));
choice!(StatsExport: "none" => None, "socket" => Socket);
choice!(
    Option<Protection>: "auto" => (None), "none" => (Some(Protection::None)),
    "sys" => (Some(Protection::Sys)), "gss" => (Some(Protection::Gss))
);
