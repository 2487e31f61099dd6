use super::files::find;
use super::keys::KeyMode;
use super::node::Node;
use super::tree::Tree;
use crate::protocol::{Nfsstat3, WccData};
use crate::server::caller::Caller;
use crate::server::errors::OrStatus;
use crate::server::file_system::{Change, Outcome, Place, Renaming};
use rustix::fs::{AtFlags, renameat, unlinkat};

impl Tree {
    pub(super) fn unlink(&self, by: Change<'_>, at: Place<'_>, is_directory: bool) -> Outcome<()> {
        let Change { caller, wcc } = by;
        let what = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let directory = self.directory(at.directory)?;
        self.changing(&directory, wcc, |_| {
            let victim = self.victim(&directory, at.name);
            self.acting(caller, || unlinkat(&directory.path, at.name, what))?;
            self.forget_if_gone(victim);
            self.settle(&directory)
        })
    }

    pub(super) fn rename(&self, by: Renaming<'_>, from: Place<'_>, to: Place<'_>) -> Outcome<()> {
        let Change { caller, wcc: wccs } = by;
        let (source, target) = (self.directory(from.directory)?, self.directory(to.directory)?);
        if source.key == target.key {
            let renamed = self.changing(&source, &mut wccs.0, |_| {
                self.move_name(caller, (&source, from), (&source, to))
            });
            wccs.1 = WccData { before: wccs.0.before, after: wccs.0.after };
            return renamed;
        }
        let (of_source, of_target) = (&mut wccs.0, &mut wccs.1);
        self.changing(&source, of_source, |_| {
            self.changing(&target, of_target, |_| {
                self.move_name(caller, (&source, from), (&target, to))
            })
        })
    }

    fn move_name(
        &self,
        caller: &Caller,
        (source, from): (&Node, Place<'_>),
        (target, to): (&Node, Place<'_>),
    ) -> Outcome<()> {
        let victim = self.victim(target, to.name);
        self.acting(caller, || renameat(&source.path, from.name, &target.path, to.name))
            .map_err(|status| if victim.is_some() { not_compatible(status) } else { status })?;
        self.note_moved(target, to);
        self.forget_if_gone(victim);
        // The new name first: a crash in between leaves the file with two names, not without one.
        self.settle(target)?;
        if source.key == target.key { Ok(()) } else { self.settle(source) }
    }

    /// Without this, keys for a search would lead to the old name, and the next use of the file to a search.
    fn note_moved(&self, directory: &Node, to: Place<'_>) {
        if self.keys.mode() == KeyMode::Walk {
            let found = find(&directory.path, to.name).or_status();
            let _ = found.and_then(|path| self.found(to, path, false));
        }
    }
}

/// The status if a file cannot replace the one with the new name (RFC 1813 section 3.3.14).
fn not_compatible(status: Nfsstat3) -> Nfsstat3 {
    match status {
        Nfsstat3::Nfs3errIsdir | Nfsstat3::Nfs3errNotdir => Nfsstat3::Nfs3errExist,
        status => status,
    }
}
