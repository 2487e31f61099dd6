//! The life of one connection, as a table: events in each state, and the resulting actions.
//!
//! It makes no calls, so every event can be tried in every state. Events come from the connection
//! manager, from the device, from the core, and from calls of ours that failed; they come in any
//! order, and twice: DISCONNECTED before ESTABLISHED, a removed device after a disconnect.
//!
//! ```text
//! connecting: ResolvingAddress -> ResolvingRoute -> AwaitingAnswer -+
//! accepting:  AwaitingReceives -> Accepting -----------------------+-> Established -> Over -> Destroyed -> Gone
//! ```
//! On the accepting side the core has the link from the start; on the connecting side it gets it
//! when the connection is established, and until then a failure frees everything at once.

use super::super::super::DownCause;
use super::failure::STALE_CONNECTION;
use std::io;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The connection manager looks for the device that leads to the peer.
    ResolvingAddress,
    ResolvingRoute,
    AwaitingAnswer,
    /// The peer's request is here; its answer waits until the core has posted receives.
    AwaitingReceives,
    Accepting,
    Established,
    /// The connection ended. The core has its link, and waits for the posted requests.
    Over,
    /// The queue pair is destroyed. The core has its link still.
    Destroyed,
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Event {
    AddressResolved,
    /// ADDR_ERROR, because the time of one try has passed.
    AddressTimedOut,
    RouteResolved,
    Established,
    /// ADDR_ERROR, ROUTE_ERROR, CONNECT_ERROR, UNREACHABLE, REJECTED, or a call of ours failed.
    Failed(Failure),
    DeadlinePassed,
    Disconnected,
    /// ADDR_CHANGE: the address has moved to another device.
    AddressChanged,
    /// DEVICE_REMOVAL, or IBV_EVENT_DEVICE_FATAL.
    DeviceRemoved,
    /// IBV_EVENT_QP_FATAL and the like; the cause for the connection.
    QueuePairFailed(DownCause),
    /// A message has come before ESTABLISHED: by its core, or by IBV_EVENT_COMM_EST, which not every driver raises.
    FirstMessage,
    ReceivesPosted,
    DisconnectWanted,
    DestroyWanted,
    LinkDropped,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Failure {
    Manager {
        step: Step,
        /// A negative error number of the system; for [`Step::Rejected`] on InfiniBand and RoCE the
        /// positive reason of the connection manager.
        status: i32,
        /// Private data of the peer, if it refused.
        said: Box<[u8]>,
    },
    Own {
        reason: String,
        /// The system's error number, if it was a call that failed.
        errno: Option<i32>,
    },
}

impl Failure {
    pub(super) fn of_call(step: Step, error: &io::Error) -> Self {
        Self::of(step, -error.raw_os_error().unwrap_or(0))
    }

    pub(super) fn of(step: Step, status: i32) -> Self {
        Self::Manager { step, status, said: Box::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Step {
    ResolveAddress,
    ResolveRoute,
    Connect,
    /// The peer did not answer, or is out of reach.
    Unreachable,
    /// The peer refused, or does not listen.
    Rejected,
    /// The peer took the connection back before it was made.
    Disconnected,
    DeviceRemoved,
    NoPathInTime,
    NoAnswerInTime,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing: it changes nothing, or comes too late.
    Nothing,
    LookUpAgain,
    ResolveRoute,
    /// Make the queue pair and send the request.
    Connect,
    Accept,
    /// Tell the connection manager of the first message; the connection is established, even if the peer's confirmation
    /// is lost.
    TellOfMessage,
    /// The connection is established: hand the link over, or tell the core that has it.
    Establish,
    End(DownCause),
    /// Destroy the queue pair and tell the core.
    Destroy,
    /// Tell the waiting caller, and free everything.
    GiveUp(Failure),
    Free,
}

impl State {
    pub(super) fn on(self, event: Event) -> (Self, Action) {
        match self {
            Self::ResolvingAddress | Self::ResolvingRoute | Self::AwaitingAnswer => {
                self.connecting(event)
            }
            Self::AwaitingReceives | Self::Accepting | Self::Established => self.alive(event),
            Self::Over | Self::Destroyed => self.ended(event),
            Self::Gone => (Self::Gone, Action::Nothing),
        }
    }

    /// The link has not been handed out yet, so the core's events cannot come.
    fn connecting(self, event: Event) -> (Self, Action) {
        match (self, event) {
            (Self::ResolvingAddress, Event::AddressResolved) => {
                (Self::ResolvingRoute, Action::ResolveRoute)
            }
            (Self::ResolvingAddress, Event::AddressTimedOut) => (self, Action::LookUpAgain),
            (Self::ResolvingRoute, Event::RouteResolved) => (Self::AwaitingAnswer, Action::Connect),
            (Self::AwaitingAnswer, Event::Established) => (Self::Established, Action::Establish),
            (state, event) => match state.failure(event) {
                Some(failure) => (Self::Gone, Action::GiveUp(failure)),
                None => (state, Action::Nothing),
            },
        }
    }

    fn alive(self, event: Event) -> (Self, Action) {
        match (self, event) {
            (Self::AwaitingReceives, Event::ReceivesPosted) => (Self::Accepting, Action::Accept),
            (Self::Accepting, Event::Established) => (Self::Established, Action::Establish),
            (Self::Accepting, Event::FirstMessage) => (Self::Established, Action::TellOfMessage),
            (Self::Established, Event::DeadlinePassed) => (self, Action::Nothing),
            // The core has not taken it: only this side is to blame.
            (Self::AwaitingReceives, Event::DeadlinePassed) => {
                (Self::Over, Action::End(DownCause::Local))
            }
            (_, Event::DisconnectWanted) => (Self::Over, Action::End(DownCause::Local)),
            (_, Event::DestroyWanted) => (Self::Destroyed, Action::Destroy),
            (_, Event::LinkDropped) => (Self::Gone, Action::Free),
            (state, event) => match cause(&event) {
                Some(cause) => (Self::Over, Action::End(cause)),
                None => (state, Action::Nothing),
            },
        }
    }

    /// The first cause has been told.
    fn ended(self, event: Event) -> (Self, Action) {
        match (self, event) {
            (Self::Over, Event::DestroyWanted) => (Self::Destroyed, Action::Destroy),
            (_, Event::LinkDropped) => (Self::Gone, Action::Free),
            (state, _) => (state, Action::Nothing),
        }
    }

    fn failure(self, event: Event) -> Option<Failure> {
        let step = match event {
            Event::Failed(failure) => return Some(failure),
            Event::Disconnected => Step::Disconnected,
            Event::DeviceRemoved => Step::DeviceRemoved,
            Event::AddressChanged | Event::QueuePairFailed(_) => Step::Connect,
            Event::DeadlinePassed if self == Self::ResolvingAddress => {
                return Some(Failure::of(Step::ResolveAddress, -libc::ETIMEDOUT));
            }
            Event::DeadlinePassed if self == Self::ResolvingRoute => Step::NoPathInTime,
            Event::DeadlinePassed => Step::NoAnswerInTime,
            _ => return None,
        };
        Some(Failure::of(step, 0))
    }
}

fn cause(event: &Event) -> Option<DownCause> {
    match event {
        Event::Disconnected => Some(DownCause::Remote),
        // A peer that leaves before this side's last message of the handshake has arrived refuses it.
        Event::Failed(Failure::Manager { step: Step::Rejected, status, .. })
            if *status != STALE_CONNECTION =>
        {
            Some(DownCause::Remote)
        }
        Event::DeviceRemoved => Some(DownCause::DeviceRemoved),
        Event::QueuePairFailed(cause) => Some(cause.clone()),
        Event::Failed(_) | Event::DeadlinePassed | Event::AddressChanged => {
            Some(DownCause::Unreachable)
        }
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const STATES: [State; 9] = [
        State::ResolvingAddress,
        State::ResolvingRoute,
        State::AwaitingAnswer,
        State::AwaitingReceives,
        State::Accepting,
        State::Established,
        State::Over,
        State::Destroyed,
        State::Gone,
    ];

    fn events() -> [Event; 16] {
        [
            Event::AddressResolved,
            Event::AddressTimedOut,
            Event::RouteResolved,
            Event::Established,
            Event::Failed(Failure::of(Step::Rejected, 8)),
            Event::Failed(Failure::of(Step::Unreachable, -libc::ETIMEDOUT)),
            Event::DeadlinePassed,
            Event::Disconnected,
            Event::AddressChanged,
            Event::DeviceRemoved,
            Event::QueuePairFailed(DownCause::DeviceFailed),
            Event::FirstMessage,
            Event::ReceivesPosted,
            Event::DisconnectWanted,
            Event::DestroyWanted,
            Event::LinkDropped,
        ]
    }

    fn name(of: &impl std::fmt::Debug) -> String {
        let text = format!("{of:?}");
        text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
    }

    fn name_of_event(event: &Event) -> String {
        match event {
            Event::Failed(Failure::Manager { step, .. }) => name(step),
            event => name(event),
        }
    }

    /// The table without its trivial entries: every other event in every other state changes
    /// nothing, and has no action.
    const TABLE: &str = "
        ResolvingAddress AddressResolved -> ResolvingRoute ResolveRoute
        ResolvingAddress AddressTimedOut -> ResolvingAddress LookUpAgain
        ResolvingAddress Rejected -> Gone GiveUp
        ResolvingAddress Unreachable -> Gone GiveUp
        ResolvingAddress DeadlinePassed -> Gone GiveUp
        ResolvingAddress Disconnected -> Gone GiveUp
        ResolvingAddress AddressChanged -> Gone GiveUp
        ResolvingAddress DeviceRemoved -> Gone GiveUp
        ResolvingAddress QueuePairFailed -> Gone GiveUp
        ResolvingRoute RouteResolved -> AwaitingAnswer Connect
        ResolvingRoute Rejected -> Gone GiveUp
        ResolvingRoute Unreachable -> Gone GiveUp
        ResolvingRoute DeadlinePassed -> Gone GiveUp
        ResolvingRoute Disconnected -> Gone GiveUp
        ResolvingRoute AddressChanged -> Gone GiveUp
        ResolvingRoute DeviceRemoved -> Gone GiveUp
        ResolvingRoute QueuePairFailed -> Gone GiveUp
        AwaitingAnswer Established -> Established Establish
        AwaitingAnswer Rejected -> Gone GiveUp
        AwaitingAnswer Unreachable -> Gone GiveUp
        AwaitingAnswer DeadlinePassed -> Gone GiveUp
        AwaitingAnswer Disconnected -> Gone GiveUp
        AwaitingAnswer AddressChanged -> Gone GiveUp
        AwaitingAnswer DeviceRemoved -> Gone GiveUp
        AwaitingAnswer QueuePairFailed -> Gone GiveUp
        AwaitingReceives Rejected -> Over End Remote
        AwaitingReceives Unreachable -> Over End Unreachable
        AwaitingReceives DeadlinePassed -> Over End Local
        AwaitingReceives Disconnected -> Over End Remote
        AwaitingReceives AddressChanged -> Over End Unreachable
        AwaitingReceives DeviceRemoved -> Over End DeviceRemoved
        AwaitingReceives QueuePairFailed -> Over End DeviceFailed
        AwaitingReceives ReceivesPosted -> Accepting Accept
        AwaitingReceives DisconnectWanted -> Over End Local
        AwaitingReceives DestroyWanted -> Destroyed Destroy
        AwaitingReceives LinkDropped -> Gone Free
        Accepting Established -> Established Establish
        Accepting Rejected -> Over End Remote
        Accepting Unreachable -> Over End Unreachable
        Accepting DeadlinePassed -> Over End Unreachable
        Accepting Disconnected -> Over End Remote
        Accepting AddressChanged -> Over End Unreachable
        Accepting DeviceRemoved -> Over End DeviceRemoved
        Accepting QueuePairFailed -> Over End DeviceFailed
        Accepting FirstMessage -> Established TellOfMessage
        Accepting DisconnectWanted -> Over End Local
        Accepting DestroyWanted -> Destroyed Destroy
        Accepting LinkDropped -> Gone Free
        Established Rejected -> Over End Remote
        Established Unreachable -> Over End Unreachable
        Established Disconnected -> Over End Remote
        Established AddressChanged -> Over End Unreachable
        Established DeviceRemoved -> Over End DeviceRemoved
        Established QueuePairFailed -> Over End DeviceFailed
        Established DisconnectWanted -> Over End Local
        Established DestroyWanted -> Destroyed Destroy
        Established LinkDropped -> Gone Free
        Over DestroyWanted -> Destroyed Destroy
        Over LinkDropped -> Gone Free
        Destroyed LinkDropped -> Gone Free
    ";

    #[test]
    fn every_event_in_every_state_does_what_the_table_says() {
        let mut rows = Vec::new();
        for state in STATES {
            for event in events() {
                let (next, action) = state.on(event.clone());
                if (next, &action) == (state, &Action::Nothing) {
                    continue;
                }
                let cause = match &action {
                    Action::End(cause) => format!(" {cause:?}"),
                    _ => String::new(),
                };
                let (event, action) = (name_of_event(&event), name(&action));
                rows.push(format!("{state:?} {event} -> {next:?} {action}{cause}"));
            }
        }
        let expected: Vec<_> = TABLE.trim().lines().map(str::trim).collect();
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_connection_that_the_peers_host_does_not_know_was_not_closed_by_the_peer() {
        let stale = Event::Failed(Failure::of(Step::Rejected, STALE_CONNECTION));
        let ended = (State::Over, Action::End(DownCause::Unreachable));
        assert_eq!(State::Accepting.on(stale), ended);
    }

    /// Feeds these events in order. Returns the state at the end, and the actions.
    fn run(mut state: State, events: impl IntoIterator<Item = Event>) -> (State, Vec<String>) {
        let mut done = Vec::new();
        for event in events {
            let (next, action) = state.on(event);
            state = next;
            if action != Action::Nothing {
                done.push(name(&action));
            }
        }
        (state, done)
    }

    /// Lose ESTABLISHED, or have it late. Expect that the first message stands for it, and that the deadline does not end
    /// the connection.
    #[test]
    fn the_first_message_establishes_a_connection_whose_confirmation_is_lost() {
        let events = [Event::ReceivesPosted, Event::FirstMessage, Event::FirstMessage];
        let late = [Event::DeadlinePassed, Event::Established];
        let told = run(State::AwaitingReceives, events.into_iter().chain(late));
        assert_eq!(told, (State::Established, vec!["Accept".into(), "TellOfMessage".into()]));
    }

    #[test]
    fn a_connection_whose_deadline_passes_says_what_was_waited_for() {
        for (state, step, status) in [
            (State::ResolvingAddress, Step::ResolveAddress, -libc::ETIMEDOUT),
            (State::ResolvingRoute, Step::NoPathInTime, 0),
            (State::AwaitingAnswer, Step::NoAnswerInTime, 0),
        ] {
            let failure = Failure::of(step, status);
            assert_eq!(state.on(Event::DeadlinePassed), (State::Gone, Action::GiveUp(failure)));
        }
    }

    #[test]
    fn whatever_happens_everything_is_freed_once_when_the_link_is_dropped() {
        for state in [State::AwaitingReceives, State::Accepting, State::Established] {
            for first in events() {
                for second in events() {
                    let all = [first.clone(), second, Event::LinkDropped, Event::LinkDropped];
                    let (end, done) = run(state, all);
                    assert_eq!(end, State::Gone);
                    assert_eq!(done.iter().filter(|action| *action == "Free").count(), 1);
                    assert!(done.iter().filter(|action| *action == "Destroy").count() <= 1);
                    assert!(done.iter().filter(|action| *action == "End").count() <= 1);
                }
            }
        }
    }
}
