//! What Kerberos for NFS depends on: the keytab, the realm, TCP port 2049 and the instructions of the processor.

use super::Tree;
use super::clock::has_flag;
use super::tree::Permissions;
use crate::keytab::NoFile;
use std::collections::BTreeSet;
use std::path::Path;

facts! {
    Kerberos(tree) {
        keytab: Keytab = Keytab::of(tree.permissions(KEYTAB));
        /// The keytab that was named ([`Kerberos::use_keytab`]), an absolute path or what was given instead of one; `None` for
        /// [`KEYTAB`].
        named_keytab: Option<String> = None;
        /// `default_realm` of `/etc/krb5.conf`. Included files are not read.
        realm: Option<String> = realm(tree);
        /// Listeners at TCP port 2049 by any address; `None` if the host does not report its sockets.
        listeners: Option<BTreeSet<Listener>> = listeners(tree);
        /// Threads of the kernel's NFS server; `None` if its module is not loaded.
        nfsd_threads: Option<u32> = nfsd_threads(tree);
        /// The processor has instructions for AES; `None` if it does not report its instructions.
        aes: Option<bool> = has_instructions(tree, &["aes"]);
        sha: Option<bool> = has_instructions(tree, &["sha_ni", "sha2"]);
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keytab {
    #[default]
    Missing,
    File(Permissions),
    /// A directory or a device, for example.
    Other,
    /// The name is not that of a file.
    NoFile(NoFile),
    /// The record does not have it.
    NotRecorded,
    /// The path is not UTF-8, and was not looked up.
    NotText,
}

impl Keytab {
    fn of(found: Option<Permissions>) -> Self {
        match found {
            None => Self::Missing,
            Some(found) if found.is_file => Self::File(found),
            Some(_) => Self::Other,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listener {
    pub inode: u64,
    /// Effective user of the process that made it.
    pub user: u32,
}

impl Kerberos {
    /// Examines this keytab instead of [`KEYTAB`], relative to the root of `tree`; or has the finding of a name that is none
    /// of a file.
    pub fn use_keytab(&mut self, tree: &Tree, named: Result<&Path, NoFile>) {
        let path = match named {
            // A record has each path in one form.
            Ok(path) if tree.is_record() => Path::new("/").join(path).components().collect(),
            Ok(path) => Path::new("/").join(path),
            Err(error) => {
                self.named_keytab = Some(error.name().to_owned());
                self.keytab = Keytab::NoFile(error);
                return;
            }
        };
        self.named_keytab = Some(path.to_string_lossy().into_owned());
        self.keytab = match path.to_str().map(|path| path.trim_start_matches('/')) {
            None => Keytab::NotText,
            // The root itself.
            Some("") => Keytab::Other,
            Some(path) => match tree.permissions(path) {
                None if tree.is_record() && path != KEYTAB => Keytab::NotRecorded,
                found => Keytab::of(found),
            },
        };
    }

    pub fn keytab_path(&self) -> String {
        self.named_keytab.clone().unwrap_or_else(|| format!("/{KEYTAB}"))
    }
}

/// Keytab that programs use unless they are told another one, relative to the root.
pub const KEYTAB: &str = "etc/krb5.keytab";

/// Every processor of an architecture has one of the first flags: a record without it is older than this check.
fn has_instructions(tree: &Tree, flags: &[&str]) -> Option<bool> {
    let has = |flags| has_flag(tree, &["flags", "Features"], flags);
    has(&["fpu", "fp"]).filter(|is_known| *is_known)?;
    has(flags)
}

/// The `default_realm` of the configuration; the record has no more of it.
fn realm(tree: &Tree) -> Option<String> {
    let text = tree.reduced("etc/krb5.conf", |text| {
        let is_wanted = |line: &&str| line.trim_start().starts_with(REALM);
        text.lines().filter(is_wanted).map(|line| format!("{}\n", line.trim())).collect()
    })?;
    let realm = text.lines().find_map(assigned)?.to_owned();
    (!realm.is_empty()).then_some(realm)
}

fn assigned(line: &str) -> Option<&str> {
    Some(line.trim().strip_prefix(REALM)?.trim_start().strip_prefix('=')?.trim())
}

const REALM: &str = "default_realm";

fn listeners(tree: &Tree) -> Option<BTreeSet<Listener>> {
    let wanted = |text: &str| super::kept(text, |line| listener(line).is_some());
    let tables = ["proc/net/tcp", "proc/net/tcp6"].into_iter();
    let tables: Vec<String> = tables.filter_map(|path| tree.reduced(path, wanted)).collect();
    let all = tables.iter().flat_map(|table| table.lines().filter_map(listener)).collect();
    (!tables.is_empty()).then_some(all)
}

/// A line of `/proc/net/tcp` of a listener at port 2049: number, local and remote address, state, five more words of which the
/// fourth is the user, and the inode.
fn listener(line: &str) -> Option<Listener> {
    const PORT: &str = ":0801";
    const LISTENS: &str = "0A";
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, local, _, LISTENS, _, _, _, user, _, inode, ..] = words[..] else { return None };
    local.ends_with(PORT).then_some(())?;
    Some(Listener { inode: inode.parse().ok()?, user: user.parse().ok()? })
}

/// `th THREADS ...` in the statistics of the kernel's server.
fn nfsd_threads(tree: &Tree) -> Option<u32> {
    let text = tree.reduced("proc/net/rpc/nfsd", |text| super::lines(text, &["th "]))?;
    text.strip_prefix("th ")?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_those_of_the_port_that_listen() {
        let line = "   3: 0100007F:0801 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0";
        assert_eq!(listener(line), Some(Listener { inode: 4711, user: 1000 }));
        for other in [
            line.replace(":0801", ":0802"),
            line.replace(" 0A ", " 01 "),
            line.replace("4711", "x"),
            line[..40].to_owned(),
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"
                .to_owned(),
        ] {
            assert_eq!(listener(&other), None, "{other}");
        }
    }
}
