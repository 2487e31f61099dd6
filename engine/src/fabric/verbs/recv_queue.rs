//! The receive queue of a queue pair as a table: which buffer is posted under which number, and which
//! wait to be. Nothing here touches a device.

/// Posted buffers of type `T` by their place; all places are made at the start.
#[derive(Debug)]
pub(super) struct RecvQueue<T> {
    places: Box<[Option<T>]>,
    free: Vec<u32>,
    /// Places that wait to be posted, in order.
    waiting: Vec<u32>,
}

impl<T> RecvQueue<T> {
    pub(super) fn new(depth: u32) -> Self {
        Self {
            places: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            waiting: Vec::with_capacity(depth as usize),
        }
    }

    /// Every place is taken.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Queues a buffer and says in which place; it comes back when all places are taken.
    #[inline]
    pub(super) fn push(&mut self, buffer: T) -> Result<u32, T> {
        let Some(place) = self.free.pop() else { return Err(buffer) };
        self.places[place as usize] = Some(buffer);
        self.waiting.push(place);
        Ok(place)
    }

    /// Places that wait to be posted, in order.
    #[inline]
    pub(super) fn waiting(&self) -> &[u32] {
        &self.waiting
    }

    /// The device has got the first `count` that waited.
    #[inline]
    pub(super) fn post(&mut self, count: usize) {
        if count >= self.waiting.len() {
            self.waiting.clear();
        } else {
            self.waiting.drain(..count);
        }
    }

    /// Takes the buffer of a place that the device is done with; `None` if it has none there.
    #[inline]
    pub(super) fn take(&mut self, place: u32) -> Option<T> {
        let buffer = self.places.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(buffer)
    }

    /// Buffers that the device has.
    pub(super) fn outstanding(&self) -> usize {
        self.places.len() - self.free.len() - self.waiting.len()
    }

    /// Takes back, in their order, the buffers that the device does not have.
    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = T> + '_ {
        let Self { places, free, waiting } = self;
        waiting.drain(..).filter_map(|place| {
            free.push(place);
            places[place as usize].take()
        })
    }

    /// Takes every buffer that is left: the device is done with all of them.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + '_ {
        self.waiting.clear();
        let Self { places, free, .. } = self;
        places.iter_mut().zip(0..).filter_map(|(buffer, place)| {
            let buffer = buffer.take()?;
            free.push(place);
            Some(buffer)
        })
    }
}
