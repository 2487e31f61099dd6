//! From a path to a file: a sequence of LOOKUPs, with symbolic links.

use super::mount::Root;
use super::{Error, Files};
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

pub(super) struct Walk<'a, F> {
    nfs: &'a F,
    root: &'a Root,
    /// Names and handles from below the root to here.
    trail: Vec<(Vec<u8>, FileHandle)>,
    ahead: VecDeque<Vec<u8>>,
    links: usize,
}

impl<'a, F: Files> Walk<'a, F> {
    pub(super) fn new(nfs: &'a F, root: &'a Root, path: &str) -> Self {
        let ahead = names(path.as_bytes()).collect();
        Self { nfs, root, trail: Vec::new(), ahead, links: 0 }
    }

    pub(super) fn run(mut self, follow: bool) -> Result<Found, Error> {
        let mut attributes = None;
        while let Some(name) = self.ahead.pop_front() {
            attributes = self.step(name, follow)?;
        }
        let handle = *self.here();
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.nfs.attributes(&handle).map_err(|error| error.at(&self.shown(b"")))?,
        };
        Ok(Found { handle, attributes })
    }

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
