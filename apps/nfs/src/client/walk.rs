//! From a path to a file: a sequence of LOOKUPs, with symbolic links.

use super::mount::Root;
use super::{Error, Nfs};
use crate::protocol::{Fattr3, FileHandle, Ftype3};
use std::collections::VecDeque;

/// Maximum number of symbolic links on one path, as on Linux: more count as a loop.
const LINKS_MAX: usize = 40;

/// The file at the end of a path.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its handle.
    pub handle: FileHandle,
    /// Its attributes.
    pub attributes: Fattr3,
}

struct Walk<'a> {
    nfs: &'a Nfs,
    root: &'a Root,
    /// Names and handles from below the root to here.
    trail: Vec<(Vec<u8>, FileHandle)>,
    ahead: VecDeque<Vec<u8>>,
    links: usize,
}

impl Nfs {
    /// Finds the file at `path` below `root`; follows a symbolic link at the end only with
    /// `follow`.
    ///
    /// # Errors
    /// [`Error::Status`] for the name that is not found, with the path up to it.
    pub fn find(&self, root: &Root, path: &str, follow: bool) -> Result<Found, Error> {
        let ahead = names(path.as_bytes()).collect();
        let mut walk = Walk { nfs: self, root, trail: Vec::new(), ahead, links: 0 };
        let mut attributes = None;
        while let Some(name) = walk.ahead.pop_front() {
            attributes = walk.step(name, follow)?;
        }
        let handle = *walk.here();
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.attributes(&handle).map_err(|error| error.at(&walk.shown(b"")))?,
        };
        Ok(Found { handle, attributes })
    }

    /// Finds the directory that contains `path`, and returns the last name.
    ///
    /// # Errors
    /// [`Error::Path`] if the path does not end with a name, and those of [`Nfs::find`].
    pub fn find_parent<'p>(&self, root: &Root, path: &'p str) -> Result<(Found, &'p [u8]), Error> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if matches!(name, "" | "." | "..") {
            return Err(Error::Path(format!("\"{path}\" does not end with the name of a file")));
        }
        Ok((self.find(root, parent, true)?, name.as_bytes()))
    }
}

impl Walk<'_> {
    fn here(&self) -> &FileHandle {
        self.trail.last().map_or(&self.root.handle, |(_, handle)| handle)
    }

    fn step(&mut self, name: Vec<u8>, follow: bool) -> Result<Option<Fattr3>, Error> {
        if name == b".." {
            self.trail.pop();
            return Ok(None);
        }
        let shown = self.shown(&name);
        let looked = self.nfs.look(self.here(), &name).map_err(|error| error.at(&shown));
        let Found { handle, attributes } = looked?;
        let is_passed = follow || !self.ahead.is_empty();
        if attributes.r#type == Ftype3::Nf3lnk && is_passed {
            self.follow(&handle, &shown)?;
            return Ok(None);
        }
        self.trail.push((name, handle));
        Ok(Some(attributes))
    }

    fn follow(&mut self, link: &FileHandle, shown: &str) -> Result<(), Error> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Error::Path(format!(
                "{shown}: more than {LINKS_MAX} symbolic links on the path, probably a loop"
            )));
        }
        let target = self.nfs.link_target(link).map_err(|error| error.at(shown))?;
        let mut below = &target[..];
        if target.starts_with(b"/") {
            below = self.root.below(&target).ok_or_else(|| {
                let target = target.escape_ascii();
                Error::Path(format!("{shown}: a symbolic link to {target}, outside of the export"))
            })?;
            self.trail.clear();
        }
        for name in names(below).rev() {
            self.ahead.push_front(name);
        }
        Ok(())
    }

    fn shown(&self, name: &[u8]) -> String {
        let mut shown = self.root.export.trim_end_matches('/').to_owned();
        for part in self.trail.iter().map(|(name, _)| &name[..]).chain([name]) {
            if !part.is_empty() {
                shown.push('/');
                shown.push_str(&part.escape_ascii().to_string());
            }
        }
        if shown.is_empty() { "/".to_owned() } else { shown }
    }
}

fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_and_dots_are_no_names() {
        let all: Vec<_> = names(b"//a/./b/../c/").collect();
        assert_eq!(all, [b"a".to_vec(), b"b".to_vec(), b"..".to_vec(), b"c".to_vec()]);
        assert_eq!(names(b"").count(), 0);
    }
}
