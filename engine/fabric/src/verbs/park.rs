//! Sleeping until a completion, news of the control thread, or a call to wake (system calls).

use super::objects::CompletionChannel;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::null;
use std::sync::Arc;
use std::time::Duration;

/// Descriptors that a core sleeps on; the memory is kept between two sleeps.
#[derive(Debug, Default)]
pub(super) struct Sleeper {
    polled: Vec<libc::pollfd>,
}

impl Sleeper {
    /// Sleeps until `event` or one of the channels is readable, or `at_most` is over; a signal ends
    /// it early. Then takes the events of the channels.
    pub(super) fn sleep<'a>(
        &mut self,
        event: BorrowedFd<'_>,
        channels: impl Iterator<Item = &'a Arc<CompletionChannel>> + Clone,
        at_most: Duration,
    ) {
        self.polled.clear();
        let fds = channels.clone().map(|channel| channel.as_fd().as_raw_fd());
        let fds = fds.chain([event.as_raw_fd()]);
        self.polled.extend(fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }));
        let timeout = libc::timespec {
            tv_sec: at_most.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        let count = self.polled.len() as libc::nfds_t;
        // SAFETY: `polled` has `count` entries, and its descriptors are open as long as the
        // arguments live; the time is on the stack. However it ends, the caller looks at everything.
        unsafe { libc::ppoll(self.polled.as_mut_ptr(), count, &timeout, null()) };
        for channel in channels {
            channel.take_events();
        }
    }
}
