//! The control thread of a connector: it accepts, and watches over the peers of all connections.
//!
//! Everything here is off the data path. A peer that sends nothing, or dies in the middle, delays
//! no other: every socket is waited for at once, and the handshake has a deadline.

mod listener;

pub(super) use listener::{Listener, listen};

use super::core::CoreShared;
use super::endpoint::Link;
use super::socket;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::next_number;
use crate::sys::credentials::{Credentials, ProcessIdentity};
use crate::sys::journal::event;
use crate::sys::mailbox::{self, Mailbox};
use crate::sys::peer_socket::PeerSocket;
use listener::{Pending, Strangers};
use rustix::event::epoll;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

const EVENTS_MAX: usize = 64;

pub(super) type Control = mailbox::Handle<State>;

/// The token of the mailbox itself; all others are [`next_number`]s.
const MAILBOX: u64 = 0;

pub(super) fn run() -> io::Result<Arc<Control>> {
    let control = Control::new("spinrpc-shm")?;
    let state = State::new(Arc::clone(&control.mailbox))?;
    control.run(move || state.run())?;
    Ok(control)
}

impl Control {
    /// Has a connection's memory given up elsewhere, as that takes long.
    pub(super) fn retire(&self, link: Link) {
        self.mailbox.leave(move |_| drop(link));
    }
}

#[derive(Debug)]
pub(super) struct WatchLease {
    token: u64,
    mailbox: Arc<Mailbox<State>>,
}

impl WatchLease {
    pub(super) fn new(mailbox: &Arc<Mailbox<State>>, watch: Watch) -> Self {
        let token = next_number();
        mailbox.leave(move |state| state.watch(token, watch));
        Self { token, mailbox: Arc::clone(mailbox) }
    }
}

impl Drop for WatchLease {
    fn drop(&mut self) {
        let token = self.token;
        self.mailbox.leave(move |state| drop(state.remove(token)));
    }
}

#[derive(Debug)]
pub(super) struct Watch {
    pub(super) socket: PeerSocket,
    pub(super) peer_is_gone: Arc<AtomicBool>,
    pub(super) core: Arc<CoreShared>,
    pub(super) place: u32,
    pub(super) credentials: Credentials,
}

impl Watch {
    fn report(&self) {
        self.peer_is_gone.store(true, Ordering::Release);
        self.core.notify(self.place);
    }
}

struct Process {
    pidfd: OwnedFd,
    identity: ProcessIdentity,
    watches: Vec<u64>,
}

enum Entry {
    Watch(Watch),
    Process(Process),
}

pub(super) struct State {
    epoll: OwnedFd,
    mailbox: Arc<Mailbox<Self>>,
    entries: HashMap<u64, Entry>,
    listeners: HashMap<u64, Listener>,
    pending: HashMap<u64, Pending>,
    strangers: Strangers,
    processes: HashMap<ProcessIdentity, u64>,
}

impl State {
    fn new(mailbox: Arc<Mailbox<Self>>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let state = Self {
            epoll,
            mailbox,
            entries: HashMap::new(),
            listeners: HashMap::new(),
            pending: HashMap::new(),
            strangers: Strangers::default(),
            processes: HashMap::new(),
        };
        state.add(MAILBOX, state.mailbox.as_fd())?;
        Ok(state)
    }

    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !self.mailbox.is_stopped() {
            mailbox::wait(&self.epoll, &mut events, self.next_deadline());
            let mut calling = Vec::new();
            for event in events.drain(..) {
                let token = event.data.u64();
                match self.listeners.contains_key(&token) {
                    true => calling.push(token),
                    false => self.handle(token),
                }
            }
            self.expire(Instant::now());
            // Last, so that new connections do not delay handshakes in progress.
            calling.into_iter().for_each(|token| self.accept(token));
        }
        // Connections that are left there have the mailbox.
        while let Some(job) = self.mailbox.take() {
            drop(job);
        }
    }

    fn handle(&mut self, token: u64) {
        if token == MAILBOX {
            return self.obey();
        }
        if self.pending.contains_key(&token) {
            return self.answer(token);
        }
        match self.entries.get(&token) {
            // Nothing is sent after the handshake, so whatever happens here is the end.
            Some(Entry::Watch(watch)) => {
                watch.report();
                self.remove(token);
            }
            Some(Entry::Process(_)) => self.process_ended(token),
            None => {}
        }
    }

    fn obey(&mut self) {
        self.mailbox.clear_event();
        while let Some(job) = self.mailbox.take() {
            job(self);
        }
    }

    /// Watches over an established connection: its socket, and the process behind it, as others
    /// may have inherited the socket.
    fn watch(&mut self, token: u64, watch: Watch) {
        let credentials = watch.credentials;
        let added = self.add(token, watch.socket.as_fd());
        if added.is_err() || self.watch_process(token, &watch, credentials).is_err() {
            event!(WARN, "a peer cannot be watched; its connection is given up");
            watch.report();
        }
        self.entries.insert(token, Entry::Watch(watch));
    }

    fn watch_process(&mut self, token: u64, watch: &Watch, peer: Credentials) -> io::Result<()> {
        if peer.process == ProcessIdentity::Pid(std::process::id()) {
            return Ok(());
        }
        if let Some(Entry::Process(process)) =
            self.processes.get(&peer.process).and_then(|known| self.entries.get_mut(known))
            // The id may belong to another process by now.
            && !socket::is_readable(process.pidfd.as_fd())
        {
            process.watches.push(token);
            return Ok(());
        }
        let pidfd = socket::peer_pidfd(watch.socket.as_fd(), peer)?;
        let own = next_number();
        self.add(own, pidfd.as_fd())?;
        self.processes.insert(peer.process, own);
        let process = Process { pidfd, identity: peer.process, watches: vec![token] };
        self.entries.insert(own, Entry::Process(process));
        Ok(())
    }

    fn process_ended(&mut self, token: u64) {
        let Some(Entry::Process(process)) = self.remove(token) else { return };
        if self.processes.get(&process.identity) == Some(&token) {
            self.processes.remove(&process.identity);
        }
        for watch in process.watches {
            if let Some(Entry::Watch(watch)) = self.remove(watch) {
                watch.report();
            }
        }
    }

    fn remove(&mut self, token: u64) -> Option<Entry> {
        self.listeners.remove(&token);
        let entry = self.entries.remove(&token)?;
        if let Entry::Watch(watch) = &entry {
            self.forget(&watch.socket);
            self.unwatch_process(token, watch.credentials.process);
        }
        Some(entry)
    }

    /// Waits no longer for a socket, which may stay open for a while after it is dropped.
    fn forget(&self, socket: &PeerSocket) {
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// A process without connections need not be watched.
    fn unwatch_process(&mut self, watch: u64, process: ProcessIdentity) {
        let Some(token) = self.processes.get(&process).copied() else { return };
        let Some(Entry::Process(watched)) = self.entries.get_mut(&token) else { return };
        watched.watches.retain(|other| *other != watch);
        if watched.watches.is_empty() {
            self.entries.remove(&token);
            self.processes.remove(&process);
        }
    }

    fn add(&self, token: u64, fd: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        Ok(epoll::add(&self.epoll, fd, data, flags)?)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let pending = self.pending.values().map(|pending| pending.deadline);
        let deadlines = pending.chain(self.listeners.values().filter_map(|l| l.paused_until));
        deadlines.min()
    }
}
