//! Finding the root handle: MOUNT (RFC 1813 appendix I), over TCP or over the fabric.

mod tcp;

use super::caller::Caller;
use super::connection::Connection;
use super::error::Error;
use super::{Nfs, Options, connect, connect_timeout};
use crate::mount3::{self, EXPORT, Exports, MNT, Mounted, UMNT};
use crate::protocol::FileHandle;
use spinrpc::fabric::Address;
use spinrpc::{CallSpec, DecodeError, Decoder, Encoder, Procedure};
use spinrpc_xdr::{Decode, Encode};
use std::fmt::Display;
use tcp::TcpCaller;

/// Maximum size of the export list with its groups, in bytes.
const EXPORTS_BYTES_MAX: usize = 64 << 10;
const MNT_BYTES_MAX: usize = 512;
const EXPORTS_SHOWN: usize = 8;
/// Maximum number of parent directories that are tried.
const TRIES_MAX: usize = 64;

/// Transport to the MOUNT service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MountBy {
    /// Over TCP on the same host, or if that fails, at the NFS server's own address. For a server
    /// in shared memory, only at its address.
    #[default]
    Auto,
    /// Over TCP at this port of the same host, without asking rpcbind.
    Port(u16),
    /// At the NFS server's own address.
    Fabric,
}

/// A mounted directory, which paths are relative to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Its handle.
    pub handle: FileHandle,
    /// Its path on the server; empty if it is not known.
    pub export: String,
}

impl Root {
    /// A directory with a known handle.
    pub fn of_handle(handle: FileHandle) -> Self {
        Self { handle, export: String::new() }
    }

    pub(super) fn below<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let rest = path.strip_prefix(self.export.trim_end_matches('/').as_bytes())?;
        (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
    }
}

/// The connection to a MOUNT service, and the mounted path.
pub struct Mount<C = Caller> {
    service: Service<C>,
    mounted: Option<String>,
}

enum Service<C> {
    Tcp(Box<TcpCaller>),
    Fabric(Box<C>),
}

impl Mount {
    /// Connects to the MOUNT service of the server that `nfs` is connected to.
    ///
    /// # Errors
    /// [`Error::Unreachable`] names the places that were tried.
    pub fn connect(nfs: &Nfs, by: MountBy) -> Result<Self, Error> {
        Self::new(&nfs.server, &nfs.options, by, || on_fabric(nfs))
    }
}

impl<C: Connection> Mount<C> {
    /// `on_fabric` connects to the service at the server's own address.
    pub(super) fn new(
        server: &Address,
        options: &Options,
        by: MountBy,
        on_fabric: impl Fn() -> Result<C, Error>,
    ) -> Result<Self, Error> {
        let on_fabric = || Ok(Service::Fabric(Box::new(on_fabric().map_err(unreachable)?)));
        let by_tcp = |host, port| TcpCaller::connect(host, port, options).map(Box::new);
        let service = match (server, by) {
            (Address::Shm(_), _) | (_, MountBy::Fabric) => on_fabric()?,
            (Address::Rdma(server), MountBy::Port(port)) => {
                Service::Tcp(by_tcp(server.host(), Some(port))?)
            }
            (Address::Rdma(server), MountBy::Auto) => match by_tcp(server.host(), None) {
                Ok(service) => Service::Tcp(service),
                // This reason is more likely: servers without MOUNT over TCP are rare.
                Err(error) => on_fabric().map_err(|_| error)?,
            },
        };
        Ok(Self { service, mounted: None })
    }

    /// The root for `path`: the export that contains it, or `export`, and the rest of the path
    /// below it. With `export`, the whole path is the rest.
    ///
    /// # Errors
    /// [`Error::MountRefused`] names the server's exports, if it lists them.
    pub fn root(&mut self, path: &str, export: Option<&str>) -> Result<(Root, String), Error> {
        let path = &format!("/{}", path.trim_start_matches('/'));
        if let Some(export) = export {
            let handle = self.mount(export)??;
            return Ok((Root { handle, export: export.to_owned() }, path.to_owned()));
        }
        // Servers may refuse to list them.
        let exports = self.exports().unwrap_or_default();
        let mut refusal = None;
        for candidate in candidates(path, &exports) {
            match self.mount(&candidate)? {
                Ok(handle) => {
                    let root = Root { handle, export: candidate };
                    let Some(rest) = root.below(path.as_bytes()) else {
                        return Err(Error::Path(format!("{path} is not below {}", root.export)));
                    };
                    let rest = String::from_utf8_lossy(rest).into_owned();
                    return Ok((root, rest));
                }
                Err(error) => drop(refusal.get_or_insert(error)),
            }
        }
        Err(refusal.map_or_else(
            || Error::Path("the path is empty".to_owned()),
            |error| with_exports(error, &exports),
        ))
    }

    /// Unmounts the directory (UMNT).
    ///
    /// # Errors
    /// The call may fail; the server forgets the directory sooner or later in any case.
    pub fn end(mut self) -> Result<(), Error> {
        let Some(path) = self.mounted.take() else { return Ok(()) };
        let path = path_of(&path)?;
        self.call("UMNT", UMNT, 0, |to| path.encode(to), |_| Ok(()))
    }

    /// The outer error is that of the call; the inner one is the server's reply for this path.
    fn mount(&mut self, path: &str) -> Result<Result<FileHandle, Error>, Error> {
        let sent = path_of(path)?;
        let encode = |to: &mut Encoder<'_>| sent.encode(to);
        match self.call("MNT", MNT, MNT_BYTES_MAX, encode, mount3::outcome)? {
            Ok(Mounted { handle, .. }) => {
                self.mounted = Some(path.to_owned());
                Ok(Ok(handle))
            }
            Err(status) => Ok(Err(Error::MountRefused(path.to_owned(), status, String::new()))),
        }
    }

    fn exports(&mut self) -> Result<Vec<String>, Error> {
        self.call(
            "EXPORT",
            EXPORT,
            EXPORTS_BYTES_MAX,
            |_| {},
            |from| {
                let nodes = Exports::decode(from)?.into_iter();
                Ok(nodes.map(|node| String::from_utf8_lossy(&node.ex_dir).into_owned()).collect())
            },
        )
    }

    fn call<T: 'static>(
        &mut self,
        name: &str,
        procedure: Procedure,
        reply_bytes_max: usize,
        encode: impl Fn(&mut Encoder<'_>),
        decode: fn(&mut Decoder<'_>) -> Result<T, DecodeError>,
    ) -> Result<T, Error> {
        match &mut self.service {
            Service::Tcp(tcp) => tcp.call(name, procedure, encode, decode),
            Service::Fabric(caller) => {
                let spec = CallSpec::new().reply_bytes_max(reply_bytes_max);
                let called = caller.call(procedure, spec, encode, decode);
                called.map_err(|source| Error::Call(name.to_owned(), source))
            }
        }
    }
}

fn on_fabric(nfs: &Nfs) -> Result<Caller, Error> {
    let program = (mount3::PROGRAM, mount3::VERSION);
    let (connections, also) = Default::default();
    let options = Options { security: None, connections, also, ..nfs.options.clone() };
    Caller::connect(&nfs.core, connect_timeout(&options), |replies| {
        connect(&nfs.core, &nfs.server, program, &options, replies)
    })
}

fn unreachable(problem: impl Display) -> Error {
    Error::Unreachable(format!(
        "cannot reach the MOUNT service: {problem}; its port, or the handle of the directory, can be given instead"
    ))
}

fn path_of(path: &str) -> Result<mount3::Dirpath<'_>, Error> {
    mount3::path(path).map_err(|error| Error::Path(format!("the path {path}: {error}")))
}

fn with_exports(error: Error, all: &[String]) -> Error {
    let Error::MountRefused(path, status, _) = error else { return error };
    let mut exports = String::new();
    if !all.is_empty() {
        let shown: Vec<String> =
            all.iter().take(EXPORTS_SHOWN).map(|path| path.escape_debug().to_string()).collect();
        let more = if all.len() > EXPORTS_SHOWN { " and more" } else { "" };
        exports = format!(" (it exports {}{more})", shown.join(", "));
    }
    Error::MountRefused(path, status, exports)
}

/// Paths to try: the exports that contain the path, the longest first; then the path itself and all
/// its parents, because a server may allow directories below an export, or list none.
fn candidates(path: &str, exports: &[String]) -> Vec<String> {
    let path = format!("/{}", path.trim_matches('/'));
    let is_above = |export: &&String| {
        let root = Root { export: (*export).clone(), ..Root::of_handle(FileHandle::empty()) };
        export.starts_with('/') && root.below(path.as_bytes()).is_some()
    };
    let mut all: Vec<String> = exports.iter().filter(is_above).cloned().collect();
    all.sort_by_key(|export| std::cmp::Reverse(export.len()));
    let mut above = &path[..];
    while !above.is_empty() {
        all.push(above.to_owned());
        above = above.rsplit_once('/').map_or("", |(above, _)| above);
    }
    all.push("/".to_owned());
    let mut seen = std::collections::HashSet::new();
    all.retain(|candidate| seen.insert(candidate.clone()));
    all.truncate(TRIES_MAX);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, exports: &[&str]) -> Vec<String> {
        let exports: Vec<String> = exports.iter().map(|path| (*path).to_owned()).collect();
        candidates(path, &exports)
    }

    #[test]
    fn the_longest_export_above_the_path_is_asked_for_first() {
        let exports = ["/", "/run/exp", "/run", "/run/ex", "/other", "relative"];
        let all = asked("/run/exp/dir/file", &exports);
        assert_eq!(all[..3], ["/run/exp", "/run", "/"]);
        assert_eq!(all[3..], ["/run/exp/dir/file", "/run/exp/dir"]);
    }

    #[test]
    fn without_a_list_the_path_and_all_above_it_are_asked_for() {
        assert_eq!(asked("/a/b/", &[]), ["/a/b", "/a", "/"]);
        assert_eq!(asked("", &[]), ["/"]);
        assert_eq!(asked(&"/x".repeat(100), &[]).len(), TRIES_MAX);
    }

    #[test]
    fn what_only_begins_alike_is_not_below() {
        let root = Root { export: "/a".to_owned(), ..Root::of_handle(FileHandle::empty()) };
        assert_eq!(root.below(b"/a/b"), Some(&b"/b"[..]));
        assert_eq!(root.below(b"/a"), Some(&b""[..]));
        assert_eq!(root.below(b"/ab"), None);
        let all = Root { export: "/".to_owned(), ..Root::of_handle(FileHandle::empty()) };
        assert_eq!(all.below(b"/ab"), Some(&b"/ab"[..]));
    }
}
