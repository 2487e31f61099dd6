//! A thread that replaces exports and closes back ends. Both may block as long as a disk does not answer, so the main thread,
//! which handles the signals, does neither.

use crate::reload::Request;
use spinrpc::spawn_helper;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval of looking whether back ends that are not exported any more can be closed, while there are some.
const CLOSING_INTERVAL: Duration = Duration::from_secs(1);

/// See the module. Dropping it waits for the change in progress, and drops the requests after it.
pub(crate) struct Keeper {
    /// `None` only while it is dropped.
    requests: Option<Sender<Option<Request>>>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// A thread that calls `reload` for each request. `collect` closes what it can, and returns whether something is left.
    pub(crate) fn start(
        reload: impl FnMut(Option<Request>) + Send + 'static,
        collect: impl Fn() -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let (requests, arriving) = channel();
        let is_stopped = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&is_stopped);
        let thread = spawn_helper("exports", move || run(&arriving, &stopped, reload, collect))?;
        Ok(Self { requests: Some(requests), is_stopped, thread: Some(thread) })
    }

    /// Passes a request on. Does not block.
    pub(crate) fn reload(&self, request: Option<Request>) {
        // Without the thread, the request is dropped: its client is told that the server ends.
        if let Some(requests) = &self.requests {
            drop(requests.send(request));
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Release);
        self.requests = None;
        drop(self.thread.take().map(JoinHandle::join));
    }
}

fn run(
    arriving: &Receiver<Option<Request>>,
    is_stopped: &AtomicBool,
    mut reload: impl FnMut(Option<Request>),
    collect: impl Fn() -> bool,
) {
    while !is_stopped.load(Ordering::Acquire) {
        let next = match collect() {
            true => arriving.recv_timeout(CLOSING_INTERVAL),
            false => arriving.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok(request) if !is_stopped.load(Ordering::Acquire) => reload(request),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_taken_while_a_disk_hangs_and_done_afterwards() {
        let (collecting, in_collection) = channel();
        let (go_on, disk) = channel::<()>();
        let (done, reloads) = channel();
        let collect = move || {
            let _ = collecting.send(());
            // Once its other end is gone, the disk answers.
            let _ = disk.recv();
            false
        };
        let keeper = Keeper::start(move |_| done.send(()).unwrap(), collect).unwrap();
        in_collection.recv().unwrap();
        keeper.reload(None);
        keeper.reload(None);
        assert!(reloads.try_recv().is_err(), "the disk hangs");
        drop(go_on);
        reloads.recv().unwrap();
        reloads.recv().unwrap();
        drop(keeper);
        assert!(reloads.recv().is_err(), "the thread has ended");
    }
}
