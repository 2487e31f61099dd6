//! Work of one turn, shared by all connections of a core: one turn ends soon, however many of them have much to do. Those that
//! found nothing left begin the next one.

/// FPDUs of a turn in one direction: a peer can send thousands that carry nothing.
const FPDUS_PER_TURN: usize = 512;

/// Bytes of a turn in one direction, which take some hundred microseconds. One connection more may begin its share before.
const BYTES_PER_TURN: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Budget {
    fpdus: usize,
    bytes: usize,
}

impl Budget {
    pub(super) fn of_a_turn() -> Self {
        Self { fpdus: FPDUS_PER_TURN, bytes: BYTES_PER_TURN }
    }

    pub(super) fn spend(&mut self, fpdus: usize, bytes: usize) {
        self.fpdus = self.fpdus.saturating_sub(fpdus);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    pub(super) fn is_spent(&self) -> bool {
        self.fpdus == 0 || self.bytes == 0
    }
}
