//! Work completions in the words of the fabric: their owner, and the meaning of errors.

use super::super::{Completion, CompletionKind, Completions, DownCause, QpId, WrError};
use super::work_id::Queue;
use crate::mem::Buf;
use rdma_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status};
use std::collections::VecDeque;

/// The batch of the poll, or the queue of those that did not fit there.
pub(super) struct Outbox<'a> {
    pub(super) batch: Option<&'a mut Completions>,
    pub(super) late: &'a mut VecDeque<Completion>,
}

impl Outbox<'_> {
    #[inline]
    pub(super) fn push_received(&mut self, qp: QpId, message: Buf, invalidated: Option<u32>) {
        match &mut self.batch {
            Some(batch) if batch.room() > 0 && self.late.is_empty() => {
                batch.push_received(qp, message, invalidated);
            }
            _ => self.push(qp, CompletionKind::Received { message, invalidated }),
        }
    }

    pub(super) fn push(&mut self, qp: QpId, kind: CompletionKind) {
        match &mut self.batch {
            Some(batch) if batch.room() > 0 && self.late.is_empty() => batch.push(qp, kind),
            _ => self.late.push_back(Completion { qp, kind }),
        }
    }

    pub(super) fn catch_up(&mut self) {
        let Some(batch) = &mut self.batch else { return };
        while batch.room() > 0
            && let Some(Completion { qp, kind }) = self.late.pop_front()
        {
            batch.push(qp, kind);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// The queue pair ended before it was done.
    Flushed,
    Failed(DownCause),
}

impl Outcome {
    /// Outcome of a request of `queue`. Messages that arrived have none.
    pub(super) fn of(wc: &ibv_wc, queue: Queue) -> Self {
        match (wc.status, queue) {
            (ibv_wc_status::IBV_WC_SUCCESS, Queue::Send) => Self::Done,
            (ibv_wc_status::IBV_WC_SUCCESS, Queue::Recv) => {
                Self::Failed(DownCause::PeerMisbehaved("it wrote with immediate data"))
            }
            (status, queue) => Self::of_error(status, queue),
        }
    }

    #[cold]
    fn of_error(status: u32, queue: Queue) -> Self {
        use ibv_wc_status::*;
        let failed = |error| Self::Failed(DownCause::WorkRequest(error));
        match (status, queue) {
            (IBV_WC_WR_FLUSH_ERR, _) => Self::Flushed,
            // The second is the status of rxe for a message that is longer than its receive.
            (IBV_WC_LOC_LEN_ERR, _) | (IBV_WC_LOC_QP_OP_ERR, Queue::Recv) => {
                failed(WrError::Length)
            }
            (
                IBV_WC_REM_ACCESS_ERR
                | IBV_WC_REM_OP_ERR
                | IBV_WC_REM_INV_REQ_ERR
                | IBV_WC_REM_INV_RD_REQ_ERR,
                _,
            ) => failed(WrError::RemoteAccess),
            (IBV_WC_RNR_RETRY_EXC_ERR, _) => Self::Failed(DownCause::ReceiverNotReady),
            (IBV_WC_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR | IBV_WC_REM_ABORT_ERR, _) => {
                Self::Failed(DownCause::Unreachable)
            }
            // A receive fails by itself only because of the message that arrived for it.
            (_, Queue::Recv) => Self::Failed(DownCause::PeerMisbehaved(
                "what arrived could not be put into the receive posted for it",
            )),
            (_, Queue::Send) => Self::Failed(DownCause::DeviceFailed),
        }
    }

    /// The same, for a message: a peer that refuses one has no receive that it fits into.
    pub(super) fn of_message(self) -> Self {
        match self {
            Self::Failed(DownCause::WorkRequest(WrError::RemoteAccess)) => {
                Self::Failed(DownCause::WorkRequest(WrError::Length))
            }
            other => other,
        }
    }

    pub(super) fn result(&self) -> Result<(), WrError> {
        match self {
            Self::Done => Ok(()),
            Self::Failed(DownCause::WorkRequest(error)) => Err(*error),
            Self::Flushed | Self::Failed(_) => Err(WrError::Flushed),
        }
    }
}

/// True for a message. RDMA Write With Immediate, which RPC-over-RDMA has no use for, uses a receive up without one.
#[inline]
pub(super) fn is_message(wc: &ibv_wc) -> bool {
    wc.status == ibv_wc_status::IBV_WC_SUCCESS
        && wc.opcode != ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM
}

/// The key that the peer invalidated with a message, if the flags say that it did.
#[inline]
pub(super) fn invalidated_key(wc: &ibv_wc) -> u32 {
    // SAFETY: both members of the union are four bytes of any value.
    unsafe { wc.imm_data_invalidated_rkey_union.invalidated_rkey }
}
