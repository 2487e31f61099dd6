//! The connections of a core, found by their queue pair.

use super::connection::Conn;
use crate::fabric::ConnId;

/// The connections of a core by queue pair.
#[derive(Default)]
pub(crate) struct ConnTable(Vec<Option<Box<Conn>>>);

impl ConnTable {
    #[inline]
    pub(crate) fn find(&mut self, id: ConnId) -> Option<&mut Conn> {
        let conn = self.0.get_mut(id.index() as usize)?.as_deref_mut()?;
        (conn.id == id).then_some(conn)
    }

    pub(super) fn insert(&mut self, conn: Conn) {
        let index = conn.id.index() as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index] = Some(Box::new(conn));
    }

    pub(super) fn remove(&mut self, id: ConnId) -> Option<Box<Conn>> {
        self.find(id)?;
        self.0.get_mut(id.index() as usize)?.take()
    }

    /// One more than the highest place that was ever taken.
    pub(super) fn places(&self) -> usize {
        self.0.len()
    }

    /// The connection at a place.
    pub(super) fn at(&mut self, place: usize) -> Option<&mut Conn> {
        self.0.get_mut(place)?.as_deref_mut()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Conn> {
        self.0.iter_mut().flatten().map(Box::as_mut)
    }

    pub(super) fn ids(&self) -> Vec<ConnId> {
        self.0.iter().flatten().map(|conn| conn.id).collect()
    }
}
