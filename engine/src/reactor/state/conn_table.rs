//! The connections of a core, found by their queue pair.

use crate::fabric::ConnId;
use crate::reactor::state::conn_lane::ConnLane;
use crate::reactor::state::connection::Conn;
use std::rc::Rc;

/// The connections of a core by queue pair.
#[derive(Default)]
pub(crate) struct ConnTable {
    conns: Vec<Option<Box<Conn>>>,
    /// Their lanes, so that a short message needs nothing else of a connection.
    lanes: Vec<Option<Rc<ConnLane>>>,
}

impl ConnTable {
    /// Finds a connection for any use, so its gate is closed until the lane looks again.
    #[inline]
    pub(crate) fn find(&mut self, id: ConnId) -> Option<&mut Conn> {
        let conn = self.find_for_lane(id)?;
        conn.lane.forget_gate();
        Some(conn)
    }

    /// Finds a connection for the lane, which keeps its gate up to date itself: a call without chunks is answered, and its
    /// room released, before the lane looks at another message.
    #[inline(always)]
    pub(in crate::reactor) fn find_for_lane(&mut self, id: ConnId) -> Option<&mut Conn> {
        let conn = self.conns.get_mut(id.index() as usize)?.as_deref_mut()?;
        (conn.id == id).then_some(conn)
    }

    /// The lane of a connection, for a short message.
    #[inline(always)]
    pub(in crate::reactor) fn lane(&self, id: ConnId) -> Option<&Rc<ConnLane>> {
        self.lanes.get(id.index() as usize)?.as_ref().filter(|lane| lane.id() == id)
    }

    pub(in crate::reactor) fn insert(&mut self, conn: Conn) {
        conn.lane.forget_gate();
        let index = conn.id.index() as usize;
        if self.conns.len() <= index {
            self.conns.resize_with(index + 1, || None);
            self.lanes.resize_with(index + 1, || None);
        }
        self.lanes[index] = Some(Rc::clone(&conn.lane));
        self.conns[index] = Some(Box::new(conn));
    }

    pub(in crate::reactor) fn remove(&mut self, id: ConnId) -> Option<Box<Conn>> {
        self.find(id)?;
        self.lanes[id.index() as usize] = None;
        self.conns.get_mut(id.index() as usize)?.take()
    }

    /// One more than the highest place that was ever taken.
    pub(in crate::reactor) fn places(&self) -> usize {
        self.conns.len()
    }

    /// The connection at a place.
    pub(in crate::reactor) fn at(&mut self, place: usize) -> Option<&mut Conn> {
        let conn = self.conns.get_mut(place)?.as_deref_mut()?;
        conn.lane.forget_gate();
        Some(conn)
    }

    pub(in crate::reactor) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Conn> {
        self.conns.iter_mut().flatten().map(|conn| {
            conn.lane.forget_gate();
            &mut **conn
        })
    }

    /// All of them, to look at.
    pub(in crate::reactor) fn iter(&self) -> impl Iterator<Item = &Conn> {
        self.conns.iter().flatten().map(|conn| &**conn)
    }

    pub(in crate::reactor) fn ids(&self) -> Vec<ConnId> {
        self.conns.iter().flatten().map(|conn| conn.id).collect()
    }
}
