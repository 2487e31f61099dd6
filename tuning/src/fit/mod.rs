//! Has a host fit a profile: what is to be changed, the changes, and the way back.
//!
//! [`Plan::of`] compares facts with a profile and changes nothing. [`apply`] writes the values of a
//! plan and keeps in a journal what was there before; [`revert`] writes that back. All of it goes by
//! the files of sysfs and procfs below a root directory: that of this host, or a copy, which is
//! treated as the kernel treats its own. What takes a boot, or somebody's word, is only told
//! ([`Advice`]). `spintune plan`, `apply` and `revert` call it; an engine never changes its host.
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

/// Why nothing was done at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// Somebody else is at it.
    #[error("{0}: another spintune is changing this host")]
    Busy(String),
    /// The journal is not what spintune writes: whoever knows what was changed has to undo it, and
    /// then remove the file.
    #[error("{file}: {reason}; nothing was changed: undo by hand what it names, then remove it")]
    Journal {
        /// Its path.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file could not be read or written; it says which.
    #[error("{file}: {source}; nothing was changed")]
    File {
        /// Its path.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
}
