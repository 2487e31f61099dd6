//! Log of mounts and refusals. Connections are logged by the engine.
//!
//! A write to a log may block, so cores hand events to a thread through a bounded queue. Clients can cause events as often as
//! they like, so the lines per second are bounded, too. Events beyond either bound are counted, and their number is logged.

use super::exports::Peer;
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use spinrpc::spawn_helper;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of events that wait for the thread.
const EVENTS_MAX: usize = 1024;
/// Maximum number of lines per interval.
const LINES_MAX: u32 = 100;
const INTERVAL: Duration = Duration::from_secs(1);

/// Something that clients did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client got the handle of an export.
    Mounted(Peer, String),
    /// It said that it has unmounted an export.
    Unmounted(Peer, String),
    /// It said so of all exports.
    UnmountedAll(Peer),
    /// It got no handle for this path, with the reason.
    NotMounted(Peer, String, &'static str),
    /// A call was rejected, with the reason.
    Refused(Peer, &'static str),
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Paths come from clients: quoted, with control characters escaped.
        match self {
            Self::Mounted(peer, path) => write!(f, "{peer} mounted {path:?}"),
            Self::Unmounted(peer, path) => write!(f, "{peer} unmounted {path:?}"),
            Self::UnmountedAll(peer) => write!(f, "{peer} unmounted everything"),
            Self::NotMounted(peer, path, why) => {
                write!(f, "rejected a mount of {path:?} by {peer}: {why}")
            }
            Self::Refused(peer, why) => write!(f, "rejected a call of {peer}: {why}"),
        }
    }
}

/// Takes events; the default one drops them.
#[derive(Clone, Debug, Default)]
pub struct Journal(Option<Arc<Queue>>);

#[derive(Debug)]
struct Queue {
    events: Sender<Event>,
    lost: Arc<AtomicU64>,
}

impl Journal {
    /// Logs at level info, on a thread that ends with the last copy of this.
    ///
    /// # Errors
    /// The system has no thread.
    pub fn start() -> io::Result<Self> {
        let (events, received) = bounded(EVENTS_MAX);
        let lost = Arc::<AtomicU64>::default();
        let of_thread = Arc::clone(&lost);
        let log = |line: &dyn fmt::Display| tracing::info!("{line}");
        spawn_helper("journal", move || write(&received, &of_thread, INTERVAL, log))?;
        Ok(Self(Some(Arc::new(Queue { events, lost }))))
    }

    /// Logs the event, unless too many wait. Never blocks.
    pub fn log(&self, event: impl FnOnce() -> Event) {
        if let Some(queue) = &self.0
            && queue.events.try_send(event()).is_err()
        {
            queue.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Logs events until all senders are gone.
fn write(
    events: &Receiver<Event>,
    lost: &AtomicU64,
    interval: Duration,
    log: impl Fn(&dyn fmt::Display),
) {
    let (mut began, mut lines) = (Instant::now(), 0);
    loop {
        let left = interval.saturating_sub(began.elapsed());
        let event = events.recv_timeout(left);
        if began.elapsed() >= interval || event == Err(RecvTimeoutError::Disconnected) {
            (began, lines) = (Instant::now(), 0);
            match lost.swap(0, Ordering::Relaxed) {
                0 => {}
                count => log(&format_args!("{count} events were not logged: too many at a time")),
            }
        }
        match event {
            Ok(_) if lines == LINES_MAX => drop(lost.fetch_add(1, Ordering::Relaxed)),
            Ok(event) => {
                lines += 1;
                log(&event);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn written(events: impl IntoIterator<Item = Event>) -> Vec<String> {
        let (sender, received) = bounded(EVENTS_MAX);
        events.into_iter().for_each(|event| sender.send(event).unwrap());
        drop(sender);
        let lines = RefCell::new(Vec::new());
        let log = |line: &dyn fmt::Display| lines.borrow_mut().push(line.to_string());
        write(&received, &AtomicU64::new(0), Duration::MAX, log);
        lines.into_inner()
    }

    #[test]
    fn what_a_client_names_cannot_break_a_line() {
        let peer = Peer::Host("192.0.2.7".parse().unwrap());
        let event = Event::NotMounted(peer, "/a\nfake \u{1b}[2J".into(), "there is no such export");
        let line =
            "rejected a mount of \"/a\\nfake \\u{1b}[2J\" by 192.0.2.7: there is no such export";
        assert_eq!(written([event]), [line]);
    }

    #[test]
    fn lines_beyond_the_bound_are_counted() {
        let peer = || Event::UnmountedAll(Peer::Local { uid: 7 });
        let lines = written((0..LINES_MAX + 9).map(|_| peer()));
        let (last, rest) = lines.split_last().unwrap();
        assert_eq!(last, "9 events were not logged: too many at a time");
        assert_eq!(rest.len(), LINES_MAX as usize);
        assert!(rest.iter().all(|line| line == "local:7 unmounted everything"));
    }

    #[test]
    fn a_full_queue_does_not_block() {
        let (events, received) = bounded(1);
        let lost = Arc::<AtomicU64>::default();
        let journal = Journal(Some(Arc::new(Queue { events, lost: Arc::clone(&lost) })));
        (0..3).for_each(|_| journal.log(|| Event::UnmountedAll(Peer::Unknown)));
        assert_eq!((received.len(), lost.load(Ordering::Relaxed)), (1, 2));
        Journal::default().log(|| unreachable!("nothing takes it"));
    }
}
