//! The control thread of a connector: it makes connections and takes them down.

mod mailbox;

pub(super) use mailbox::Job;

use mailbox::Mailbox;

/// Handle on the control thread, which ends with the last one.
#[derive(Debug)]
pub(super) struct Control {
    mailbox: Mailbox,
}

impl Control {
    /// Leaves a job for the thread; does not block.
    pub(super) fn post(&self, job: Job) {
        self.mailbox.post(job);
    }
}
