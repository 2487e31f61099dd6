//! A client with several connections: which of them a call goes by, and what becomes of one that is lost.
//!
//! Each connection is an entry of the dispatch with a link of its own, an identity by which the server knows it, and its own
//! XIDs: calls that are sent again go over a later connection of the same entry, as those of any client that reconnects. So
//! the server executes none twice, and two connections that are up at once do not displace each other's replies. The
//! client that the application has is a link that is never up itself; its calls look for one here.
//!
//! A connection that is lost while there is another address leaves its home: it takes its calls to that address at once, and
//! another link of its place tries its own address. When that is up, and the calls have ended, the one that left is
//! closed. There are two links for each place, so that there are never more than twice as many connections. Used by the
//! dispatch and the client.

use super::client::{ClientLink, LinkState, Reply, ReplyHandler, Token};
use super::client_state::ClientEntry;
use super::dispatch::Dispatch;
use super::errors::CallError;
use super::reconnect::ConnectOptions;
use super::service::ConnectionEvent;
use crate::fabric::{ConnId, FabricError};
use crate::reactor::types::calls::CallId;
use crate::reactor::types::peer_id::Instance;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Connections of a client, and addresses of its server.
pub(super) const CONNECTIONS_MAX: usize = 16;

/// Links of a place: one at home, and one that has left, or is not in use.
const LINKS: usize = 2;

type SharedHandler = RefCell<Box<dyn ReplyHandler>>;

pub(super) struct Group {
    members: Box<[Member]>,
    addresses: Box<[String]>,
    options: ConnectOptions,
    front: Weak<ClientLink>,
    /// The entries own it, so that it goes with the last of them: it may own the client.
    handler: Weak<SharedHandler>,
    /// Where the search for the next call begins.
    next: Cell<usize>,
    /// Index of the link whose reply the handler got last.
    answered: Cell<usize>,
    was_up: Cell<bool>,
    /// A connection has come up since [`Dispatch::revive`].
    has_risen: Cell<bool>,
    is_closed: Cell<bool>,
    is_over: Cell<bool>,
}

struct Member {
    link: Rc<ClientLink>,
    /// It has taken its calls to another address, or is about to.
    has_left: Cell<bool>,
    /// It could not be connected since it was up last.
    has_failed: Cell<bool>,
    /// Number of its address.
    address: Cell<usize>,
    /// A thread dials it.
    is_dialing: Cell<bool>,
    /// It has an entry of the dispatch, if only until its last connection has gone.
    is_taken: Cell<bool>,
}

impl Group {
    fn new(
        front: &Rc<ClientLink>,
        handler: &Rc<SharedHandler>,
        address: &str,
        options: &ConnectOptions,
    ) -> Rc<Self> {
        let (program, version) = front.called();
        let member = |_| {
            let ops = Rc::clone(&front.ops);
            let link = ClientLink::new(ops, program, version, options.reconnect.is_some());
            link.state.set(LinkState::Down);
            let (has_left, has_failed, address, is_dialing, is_taken) = Default::default();
            Member { link, has_left, has_failed, address, is_dialing, is_taken }
        };
        Rc::new(Self {
            members: (0..LINKS * options.connection_count()).map(member).collect(),
            addresses: options.addresses(address),
            options: options.clone(),
            front: Rc::downgrade(front),
            handler: Rc::downgrade(handler),
            next: Cell::default(),
            answered: Cell::default(),
            was_up: Cell::default(),
            has_risen: Cell::default(),
            is_closed: Cell::default(),
            is_over: Cell::default(),
        })
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &ClientLink> {
        self.members.iter().map(|member| &*member.link)
    }

    /// The connection for the next call: of those at home the one with the fewest calls in flight, each in turn if they have
    /// as many. One that is to be closed comes after those that have left home, one without credits after all that have
    /// some, and one that is just being lost does not count.
    pub(super) fn pick(&self) -> Option<(&ClientLink, ConnId)> {
        let (from, count) = (self.next.get(), self.members.len());
        self.next.set((from + 1) % count);
        let up = (from..from + count).filter_map(|index| {
            let index = index % count;
            let Member { link, has_left, .. } = &self.members[index];
            let conn = link.conn().filter(|_| !link.is_closed.get())?;
            let (in_flight, has_credit) = link.ops.load(conn)?;
            let is_last = index % LINKS > 0 && self.has_twin_away(index);
            Some(((!has_credit, has_left.get(), is_last, in_flight), (&**link, conn)))
        });
        up.min_by_key(|(load, _)| *load).map(|(_, picked)| picked)
    }

    /// The link whose call this is. `None` also if two connections have calls with this number, which hardly happens.
    pub(super) fn link_of(&self, call: CallId) -> Option<&ClientLink> {
        let awaits = |link: &&ClientLink| {
            link.conn_of_calls().is_some_and(|conn| link.ops.is_awaited(conn, call))
        };
        let mut links = self.links().filter(awaits);
        let found = links.next()?;
        links.next().is_none().then_some(found)
    }

    pub(super) fn conn_of_reply(&self) -> Option<ConnId> {
        self.members[self.answered.get()].link.conn()
    }

    pub(super) fn is_up(&self) -> bool {
        self.links().any(|link| link.conn().is_some())
    }

    pub(super) fn is_down(&self) -> bool {
        self.links().all(|link| link.state.get() == LinkState::Down)
    }

    pub(super) fn is_connecting(&self) -> bool {
        !self.is_up() && self.links().any(|link| link.state.get() == LinkState::Connecting)
    }

    pub(super) fn close(&self) {
        self.is_closed.set(true);
        self.links().for_each(ClientLink::close);
    }

    fn is_home_up(&self) -> bool {
        self.members.iter().any(|member| !member.has_left.get() && member.link.conn().is_some())
    }

    /// Both links of the place have left home, and the other one is up.
    fn has_twin_away(&self, index: usize) -> bool {
        let (member, twin) = (&self.members[index], &self.members[index ^ 1]);
        let is_up = twin.link.conn().is_some() && !twin.link.is_closed.get();
        member.has_left.get() && twin.has_left.get() && is_up
    }

    /// Closes a connection that has left home, if no calls are awaited and others have come home, or if the other link of its
    /// place has left as well: one of them is to try home.
    fn end_if_unused(&self, index: usize) {
        let Member { link, has_left, .. } = &self.members[index];
        let is_unused = |conn| !link.ops.awaits_any(conn);
        if has_left.get()
            && link.conn().is_some_and(is_unused)
            && (self.is_home_up() || self.has_twin_away(index))
        {
            link.close();
        }
    }

    /// A connection by this address is up.
    fn is_in_use(&self, address: usize) -> bool {
        let at = |member: &&Member| member.address.get() == address;
        self.members.iter().filter(at).any(|member| member.link.conn().is_some())
    }

    /// The address to go to from this one: one by which another connection is up, or the next one.
    fn address_after(&self, address: usize) -> usize {
        let count = self.addresses.len();
        let mut others = (1..count).map(|step| (address + step) % count);
        others.find(|other| self.is_in_use(*other)).unwrap_or((address + 1) % count)
    }

    /// Sets the state of the client that the application has. Returns false if the application has no use for the event.
    fn note(&self, member: &Member, event: &ConnectionEvent) -> bool {
        let front = self.front.upgrade();
        match event {
            ConnectionEvent::Up { .. } => {
                member.has_failed.set(false);
                self.was_up.set(true);
                self.has_risen.set(true);
                if let Some(front) = front {
                    front.was_up.set(true);
                    front.failure.take();
                }
                true
            }
            ConnectionEvent::Reconnecting { .. } => true,
            ConnectionEvent::Retrying { error, .. } => {
                if let Some(front) = front.filter(|_| !self.was_up.get()) {
                    *front.failure.borrow_mut() = Some(error.clone());
                }
                !self.was_up.get()
            }
            ConnectionEvent::ConnectFailed { .. } | ConnectionEvent::Down { .. } => {
                if !self.is_down() || self.is_over.replace(true) {
                    return false;
                }
                if let Some(front) = front {
                    let failure = member.link.failure.borrow().clone();
                    *front.failure.borrow_mut() = failure.filter(|_| !self.was_up.get());
                    front.state.set(LinkState::Down);
                }
                true
            }
        }
    }
}

/// The place of a connection among those of its client.
#[derive(Clone)]
pub(super) struct Membership {
    group: Rc<Group>,
    index: usize,
}

impl Membership {
    fn member(&self) -> &Member {
        &self.group.members[self.index]
    }

    /// The connection could not be made.
    pub(super) fn note_failure(&self) {
        self.member().has_failed.set(true);
    }

    /// Returns true if a connection that could not be made is tried again: another one is up, or was, or may be soon.
    pub(super) fn retries_after_failure(&self) -> bool {
        let members = self.group.members.iter();
        let mut connecting = members.filter(|member| member.link.state.get() != LinkState::Down);
        self.group.was_up.get() || connecting.any(|member| !member.has_failed.get())
    }

    /// A connection of its client is up.
    pub(super) fn is_group_up(&self) -> bool {
        self.group.is_up()
    }

    /// A thread begins to dial it, or has ended.
    pub(super) fn set_dialing(&self, is_dialing: bool) {
        self.member().is_dialing.set(is_dialing);
    }

    /// Another one of its client is being dialed at the same address. Attempts at one that does not answer take their
    /// time one after the other: this one would learn nothing before, and can still go elsewhere.
    pub(super) fn is_preceded(&self) -> bool {
        let address = &self.member().address;
        self.group.members.iter().any(|other| other.is_dialing.get() && other.address == *address)
    }

    /// This connection is not tried again. If none can be made, those that wait for their next attempt end.
    pub(super) fn fail(&self) {
        self.note_failure();
        if self.retries_after_failure() {
            return;
        }
        for link in self.group.links().filter(|link| link.state.get() == LinkState::Pausing) {
            link.state.set(LinkState::Down);
            link.ops.set_alarm(Duration::ZERO);
        }
    }
}

impl ClientEntry {
    /// Its connection is lost. It leaves home if there is another address, and it has calls in flight or no other connection
    /// is up. Its next attempt begins at once then, and where another connection to the only address is up. Returns its
    /// place among the connections of its client.
    pub(super) fn leave(&mut self, lost: ConnId) -> Option<Membership> {
        let membership = self.membership.clone()?;
        let (group, member) = (&membership.group, membership.member());
        let (is_up, has_addresses) = (group.is_up(), group.addresses.len() > 1);
        let has_calls = self.link.ops.in_flight(lost).is_some_and(|calls| calls > 0);
        if has_addresses && (has_calls || !is_up) {
            member.has_left.set(true);
        }
        if let Some(state) = &mut self.reconnect_state {
            state.begins_at_once = member.has_left.get() || is_up && !has_addresses;
        }
        Some(membership)
    }

    /// It waits for its next attempt, and has left home for an address that is not in use, while others are.
    fn is_misdirected(&self) -> bool {
        let Some(Membership { group, index }) = &self.membership else { return false };
        let Member { has_left, address, .. } = &group.members[*index];
        let waits = self.retry_at.is_some() && has_left.get();
        waits && group.is_up() && !group.is_in_use(address.get())
    }

    /// Goes where another connection has come up meanwhile: at once, unless it has done so just before.
    pub(super) fn aim_again(&mut self, now: Duration) {
        if !self.is_misdirected() {
            return;
        }
        self.prepare_attempt();
        if self.reconnect_state.as_mut().is_some_and(|state| state.may_begin_at_once(now)) {
            self.retry_at = Some(now);
        }
    }

    /// One that has left home goes to another address with each attempt. One at home is tried for as long as others are up.
    pub(super) fn prepare_attempt(&mut self) {
        let (Some(membership), Some(state)) = (&self.membership, &mut self.reconnect_state) else {
            return;
        };
        let (group, member) = (&membership.group, membership.member());
        state.is_endless = !member.has_left.get() && group.is_up();
        if member.has_left.get() {
            member.address.set(group.address_after(member.address.get()));
            self.address.clone_from(&group.addresses[member.address.get()]);
        }
    }
}

impl Dispatch {
    pub(super) fn connect_group(
        &mut self,
        front: &Rc<ClientLink>,
        handler: Box<dyn ReplyHandler>,
        address: &str,
        options: &ConnectOptions,
    ) {
        let handler = Rc::new(RefCell::new(handler));
        let group = Group::new(front, &handler, address, options);
        front.join(Rc::clone(&group));
        self.groups.push(Rc::downgrade(&group));
        for index in (0..group.members.len()).step_by(LINKS) {
            let entry = self.entry_at_home((&group, index), &handler);
            self.wait(entry, Duration::ZERO);
        }
    }

    fn entry_at_home(
        &mut self,
        (group, index): (&Rc<Group>, usize),
        handler: &Rc<SharedHandler>,
    ) -> ClientEntry {
        let member = &group.members[index];
        let home = index / LINKS % group.addresses.len();
        member.link.begin();
        member.is_taken.set(true);
        member.has_left.set(false);
        member.has_failed.set(false);
        member.address.set(home);
        let membership = Membership { group: Rc::clone(group), index };
        let made = MemberHandler { membership: membership.clone(), handler: Rc::clone(handler) };
        let link = Rc::clone(&member.link);
        let address = &group.addresses[home];
        let mut entry = self.entry(link, Box::new(made), address, &group.options);
        if let Some(state) = entry.reconnect_state.as_mut().filter(|_| group.addresses.len() > 1) {
            match self.roaming() {
                Ok(instance) => state.instance = instance,
                // One that the server would not know again does not come back.
                Err(_) => entry.reconnect_state = None,
            }
        }
        entry.membership = Some(membership);
        entry
    }

    /// An identity that no peer can guess. That of a client that is known from one host only follows from those of others.
    fn roaming(&self) -> Result<Instance, FabricError> {
        Ok(Instance::Roaming(self.connector.random()?.next_u64().max(1)))
    }

    /// Has the other link of a place try its own address, if one has left and the other is not in use.
    pub(super) fn restore(&mut self, membership: Option<Membership>) {
        let Some(Membership { group, index }) = membership else { return };
        let links = &group.members[index - index % LINKS..][..LINKS];
        let is_away =
            |member: &Member| member.has_left.get() && member.link.state.get() != LinkState::Down;
        if links.iter().any(is_away) {
            self.come_home(&group, index);
        }
    }

    /// Of clients with a connection that has come up, has all places try their own addresses that had given up.
    pub(super) fn revive(&mut self) {
        self.groups.retain(|group| group.strong_count() > 0);
        let groups: Vec<_> = self.groups.iter().filter_map(Weak::upgrade).collect();
        for group in groups.into_iter().filter(|group| group.has_risen.take()) {
            for index in (0..group.members.len()).step_by(LINKS) {
                let is_down = |member: &Member| member.link.state.get() == LinkState::Down;
                if group.members[index..][..LINKS].iter().all(is_down) {
                    self.come_home(&group, index);
                }
            }
        }
    }

    /// Has a link that is not in use try the own address of this place.
    fn come_home(&mut self, group: &Rc<Group>, index: usize) {
        let (first, handler) = (index - index % LINKS, group.handler.upgrade());
        let free = (first..first + LINKS).find(|index| !group.members[*index].is_taken.get());
        let (Some(index), Some(handler)) = (free, handler) else { return };
        if group.is_closed.get() || group.options.reconnect.is_none() {
            return;
        }
        let mut entry = self.entry_at_home((group, index), &handler);
        let now = self.ops.time();
        let next =
            entry.reconnect_state.as_mut().and_then(|it| it.next_attempt(now, &mut self.random));
        match next {
            Some(next) => {
                entry.link.state.set(LinkState::Pausing);
                self.wait(entry, next.after);
            }
            None => entry.link.state.set(LinkState::Down),
        }
    }
}

/// Passes on what the application's handler hears of one connection.
struct MemberHandler {
    membership: Membership,
    handler: Rc<SharedHandler>,
}

impl Drop for MemberHandler {
    /// With its entry: the link may have another one.
    fn drop(&mut self) {
        self.membership.member().is_taken.set(false);
    }
}

impl ReplyHandler for MemberHandler {
    fn on_reply(&mut self, token: Token, reply: Result<Reply<'_>, CallError>) {
        let Membership { group, index } = &self.membership;
        group.answered.set(*index);
        self.handler.borrow_mut().on_reply(token, reply);
        if group.members[*index].has_left.get() {
            group.end_if_unused(*index);
        }
    }

    fn on_event(&mut self, event: &ConnectionEvent) {
        let (group, member) = (&self.membership.group, self.membership.member());
        if group.note(member, event) {
            self.handler.borrow_mut().on_event(event);
        }
        if matches!(event, ConnectionEvent::Up { .. }) {
            (0..group.members.len()).for_each(|index| group.end_if_unused(index));
            // For those that wait, and those that have given up: this may be where they go.
            member.link.ops.set_alarm(Duration::ZERO);
        }
    }
}
