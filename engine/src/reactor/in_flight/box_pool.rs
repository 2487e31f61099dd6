//! Boxes that messages need now and then, kept for the next ones. A connection or a core makes them when they are first
//! needed, so that one that never needs any holds none.

/// Boxes that are made at the first need at least, so that a few calls in flight do not allocate later.
const MADE_AT_LEAST: usize = 8;

/// Empty boxes of one owner, at most a fixed number of them with those that are out.
#[derive(Debug)]
pub(in crate::reactor) struct BoxPool<T> {
    // Boxes, as those that are out move at the price of a pointer.
    free: Vec<Box<T>>,
    made: usize,
    made_max: usize,
}

impl<T: Default> BoxPool<T> {
    /// No boxes, and room for at most `made_max`.
    pub(in crate::reactor) fn new(made_max: usize) -> Self {
        Self { free: Vec::new(), made: 0, made_max }
    }

    /// An empty box. `None` if as many as there may be are out.
    pub(in crate::reactor) fn take(&mut self) -> Option<Box<T>> {
        if self.free.is_empty() {
            self.make();
        }
        self.free.pop()
    }

    /// A box that was taken is empty again.
    pub(in crate::reactor) fn give(&mut self, emptied: Box<T>) {
        self.free.push(emptied);
    }

    /// Number of boxes that are out.
    pub(in crate::reactor) fn out(&self) -> usize {
        self.made - self.free.len()
    }

    /// More are out than ever before: makes as many again, so that a connection allocates a few times in all.
    #[cold]
    fn make(&mut self) {
        let more = self.made.max(MADE_AT_LEAST).min(self.made_max - self.made);
        self.made += more;
        // Room for those that are out, too.
        self.free.reserve_exact(self.made);
        self.free.extend((0..more).map(|_| Box::default()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_made_when_more_are_out_than_before_and_never_more_than_the_bound() {
        let mut spares = BoxPool::<u64>::new(20);
        assert_eq!(spares.made, 0, "an idle connection has none");
        let mut out = Vec::new();
        for made in [8, 16, 20] {
            while out.len() < made {
                out.push(spares.take().unwrap());
                assert_eq!(spares.made, made);
            }
        }
        assert_eq!(spares.take(), None);
        let room = spares.free.capacity();
        out.drain(..).for_each(|one| spares.give(one));
        assert_eq!(
            (spares.free.capacity(), spares.free.len()),
            (room, 20),
            "giving allocates nothing"
        );
        assert!(spares.take().is_some() && spares.made == 20);
    }
}
