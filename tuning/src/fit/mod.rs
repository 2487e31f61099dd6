//! Applies a profile to a host: computes the changes, makes them, and reverts them.
//!
//! [`Plan::of`] compares facts with a profile and changes nothing. [`apply`] writes the values of a
//! plan and keeps the previous values in a journal; [`revert`] restores them. All access goes
//! through the files of sysfs and procfs. Changes that need a reboot or a decision are only
//! described ([`Advice`]). `spintune plan`, `apply` and `revert` call this module; an engine never
//! changes its host.
//!
//! Changes last until the next boot, and so does the journal, which lies below `/run`.

mod change;
mod item;
mod journal;
mod plan;
mod site;

pub use change::{Outcome, Step, apply, revert};
pub use item::Item;
pub use journal::{Entry, JOURNAL, Journal};
pub use plan::{Advice, Change, Plan};
pub use site::Site;

/// A path relative to the root, as an absolute one of the host.
fn absolute<S: serde::Serializer>(path: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format!("/{path}"))
}

#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// Another process is changing the host.
    #[error("{0}: another spintune is changing this host")]
    Busy(String),
    /// The journal has contents that spintune does not write. Undo the changes by hand, then remove
    /// the file.
    #[error("{file}: {reason}; nothing was changed: undo its changes by hand, then remove it")]
    Journal { file: String, reason: String },
    #[error("{file}: {source}; nothing was changed")]
    File { file: String, source: std::io::Error },
}
