//! Addresses of servers with a path: `rdma://HOST:PORT/EXPORT/PATH`, the same with `iwarp://` and `any://`, and
//! `shm:NAME//EXPORT/PATH`.

use spinrpc::fabric::Address;

/// A server, and a path on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Address of the server.
    pub server: Address,
    /// From the first slash on; may be empty. Only the server knows where the export ends and the
    /// path in it begins.
    pub path: String,
}

impl Target {
    /// Parses a server with or without a path.
    ///
    /// # Errors
    /// The problem, and the allowed forms.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (address, path) = text.split_at(end_of_address(text));
        match Address::parse(address) {
            Ok(server) => {
                let is_shm = matches!(server, Address::Shm(_));
                let path = if is_shm { path.get(1..).unwrap_or_default() } else { path };
                Ok(Self { server, path: path.to_owned() })
            }
            Err(error) => Err(format!(
                "\"{text}\" is not an NFS server: {}; expected rdma://HOST[:PORT]/EXPORT/PATH (IPv6 in brackets), \
                 iwarp:// or any:// with the same, or shm:NAME//EXPORT/PATH with two slashes before the path",
                error.reason
            )),
        }
    }
}

/// Start of the path. The name of a server in shared memory may be a path itself, so that one slash
/// does not end it; the first of two does, and belongs to neither.
fn end_of_address(text: &str) -> usize {
    let found = match text.split_once("://") {
        Some((scheme, rest)) if !scheme.contains([':', '/']) => {
            rest.find('/').map(|at| text.len() - rest.len() + at)
        }
        _ => text.find("//"),
    };
    found.unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, String) {
        let target = Target::parse(text).unwrap();
        (target.server.to_string(), target.path)
    }

    #[test]
    fn the_first_slash_behind_a_host_begins_the_path() {
        for (text, server, path) in [
            ("rdma://10.8.0.1", "rdma://10.8.0.1:20049", ""),
            ("rdma://10.8.0.1/", "rdma://10.8.0.1:20049", "/"),
            ("rdma://nfs.example:2049/a/b", "rdma://nfs.example:2049", "/a/b"),
            ("rdma://[2001:db8::1]/a", "rdma://[2001:db8::1]:20049", "/a"),
            ("rdma://[::1]:1//a", "rdma://[::1]:1", "//a"),
            ("iwarp://h/a", "iwarp://h:20049", "/a"),
            ("any://h/a", "any://h:20049", "/a"),
        ] {
            assert_eq!(parsed(text), (server.to_owned(), path.to_owned()), "{text}");
        }
    }

    #[test]
    fn two_slashes_behind_a_name_of_shared_memory_do() {
        for (text, server, path) in [
            ("shm:nfs", "shm:nfs", ""),
            ("shm:nfs//export/dir", "shm:nfs", "/export/dir"),
            ("shm:nfs//", "shm:nfs", "/"),
            ("shm:/run/nfs.sock//export", "shm:/run/nfs.sock", "/export"),
        ] {
            assert_eq!(parsed(text), (server.to_owned(), path.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_names_no_server_is_refused_with_what_is_allowed() {
        for text in [
            "",
            "10.8.0.1",
            "tcp:1",
            "rdma:",
            "rdma://",
            "rdma:///export",
            "rdma://host:0/x",
            "rdma://[::1",
            "shm:",
            "shm:a b",
            "shm:name/export",
        ] {
            let error = Target::parse(text).unwrap_err();
            assert!(error.contains("two slashes"), "{text}: {error}");
        }
    }
}
