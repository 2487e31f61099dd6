//! Which service gets a call, and what answers one that none gets.

use super::Dispatch;
use crate::api::catch_panic::{ContainedService, Found};
use crate::reactor::in_flight::serving::Serving;
use crate::reactor::types::calls::{CallOutcome, RpcRefusal};
use spinrpc_proto::ids::{Program, Version};
use spinrpc_proto::rpc::AcceptStatus;

impl Dispatch {
    /// Finds the service of a program: most calls go to the same service as the previous call.
    #[inline]
    pub(in crate::api) fn find(&mut self, program: Program, version: Version) -> Option<Found> {
        match self.was_called(program, version) {
            true => Some(Found { index: self.called, is_measured: false }),
            false => self.find_other(program, version),
        }
    }

    /// Returns true if [`Dispatch::find`] would find the service.
    #[cfg(feature = "gss")]
    pub(in crate::api) fn serves(&self, program: Program, version: Version) -> bool {
        let is_served = |service: &ContainedService| service.serves(program, version);
        self.was_called(program, version) || !self.is_leaving && self.services.iter().any(is_served)
    }

    /// Returns true if the previous call was for the same program.
    #[inline(always)]
    pub(super) fn was_called(&self, program: Program, version: Version) -> bool {
        self.services.get(self.called).is_some_and(|service| service.serves(program, version))
    }

    #[inline(never)]
    pub(super) fn find_other(&mut self, program: Program, version: Version) -> Option<Found> {
        if self.is_leaving {
            return None;
        }
        let index = self.services.iter().position(|service| service.serves(program, version))?;
        let is_timed = self.is_measuring || self.ops.is_resumed();
        // A call that is timed anyway leaves the sample to the next one.
        let is_measured = is_timed || std::mem::take(&mut self.is_sampling);
        if !self.is_measuring && !self.is_sampling {
            self.called = index;
        }
        Some(Found { index, is_measured })
    }

    /// The answer if the program has no service (RFC 5531 section 9).
    #[cold]
    fn not_served(&self, program: Program) -> AcceptStatus {
        let served = self.services.iter().map(ContainedService::program);
        let served = served.filter(|(number, _)| *number == program);
        let versions = served.map(|(_, version)| version.0);
        match (versions.clone().min(), versions.max()) {
            (Some(low), Some(high)) => AcceptStatus::ProgMismatch { low, high },
            _ => AcceptStatus::ProgUnavail,
        }
    }

    #[cold]
    pub(in crate::api) fn turn_away(&self, serving: &Serving<'_>, program: Program) -> CallOutcome {
        if !self.is_leaving {
            let status = self.not_served(program);
            return self.refuse(serving, &RpcRefusal::Accepted(status));
        }
        if let Some(to) = self.ops.target(serving) {
            self.ops.abandon_call(&to);
        }
        CallOutcome::Done
    }

    pub(in crate::api) fn refuse(&self, serving: &Serving<'_>, answer: &RpcRefusal) -> CallOutcome {
        if let Some(to) = self.ops.target(serving) {
            self.ops.reject(&to, answer);
        }
        CallOutcome::Done
    }
}
