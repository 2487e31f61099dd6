//! A fixed number of places for operations of the kernel, named by index and generation.

/// Names the item in a slot, and none that is put there later; the kernel returns it as `user_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(u64);

impl Key {
    fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }

    pub(super) fn from_user_data(user_data: u64) -> Self {
        Self(user_data)
    }

    pub(super) fn user_data(self) -> u64 {
        self.0
    }

    fn index(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The slots. Allocates only when created.
pub(super) struct Slots<O> {
    slots: Box<[Slot<O>]>,
    /// Indices of the empty ones, the last used on top, as its memory is warm.
    free: Vec<u32>,
}

struct Slot<O> {
    /// Incremented with each use. Only a key that is four billion uses old is taken for a new one.
    generation: u32,
    content: Option<O>,
}

/// An empty slot, on top of the free ones.
pub(super) struct Vacancy<'a, O> {
    slots: &'a mut Slots<O>,
    index: u32,
}

impl<'a, O> Vacancy<'a, O> {
    /// Puts `content` there, where it stays until it is taken.
    pub(super) fn fill(self, content: O) -> (Key, &'a mut O) {
        self.slots.free.pop();
        let slot = &mut self.slots.slots[self.index as usize];
        (Key::new(self.index, slot.generation), slot.content.insert(content))
    }
}

impl<O> Slots<O> {
    pub(super) fn new(count: u32) -> Self {
        let empty = |_| Slot { generation: 0, content: None };
        Self { slots: (0..count).map(empty).collect(), free: (0..count).rev().collect() }
    }

    /// Number of slots in use.
    pub(super) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// An empty slot, if there is one.
    pub(super) fn vacancy(&mut self) -> Option<Vacancy<'_, O>> {
        let index = *self.free.last()?;
        Some(Vacancy { slots: self, index })
    }

    /// The item that `key` names, if it is still there.
    pub(super) fn find(&mut self, key: Key) -> Option<&mut O> {
        let slot = self.slots.get_mut(key.index())?;
        slot.content.as_mut().filter(|_| slot.generation == key.generation())
    }

    /// Takes the item that `key` names out; the key names nothing from then on.
    pub(super) fn take(&mut self, key: Key) -> Option<O> {
        self.find(key)?;
        let slot = &mut self.slots[key.index()];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index() as u32);
        slot.content.take()
    }

    /// The keys of all that is there.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        let used = (0_u32..).zip(&self.slots).filter(|(_, slot)| slot.content.is_some());
        used.map(|(index, slot)| Key::new(index, slot.generation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put<O>(slots: &mut Slots<O>, content: O) -> Key {
        slots.vacancy().unwrap().fill(content).0
    }

    #[test]
    fn a_key_names_one_use_of_a_slot_and_not_the_next() {
        let mut slots = Slots::new(1);
        let first = put(&mut slots, 'a');
        assert!(slots.vacancy().is_none(), "one slot, one use at a time");
        assert_eq!(slots.take(first), Some('a'));
        let second = put(&mut slots, 'b');
        assert_ne!(first, second);
        assert_eq!(slots.find(first), None);
        assert_eq!(slots.take(first), None);
        assert_eq!(slots.keys().collect::<Vec<_>>(), [second]);
        assert_eq!(slots.take(second), Some('b'));
        assert_eq!((slots.take(second), slots.used()), (None, 0));
    }

    #[test]
    fn a_key_from_nowhere_names_nothing() {
        let mut slots = Slots::new(2);
        put(&mut slots, ());
        for user_data in [1, 2, 1 << 32, u64::MAX] {
            assert_eq!(slots.find(Key::from_user_data(user_data)), None, "{user_data:#x}");
        }
    }

    #[test]
    fn generations_wrap() {
        let mut slots = Slots::new(1);
        slots.slots[0].generation = u32::MAX;
        let last = put(&mut slots, ());
        slots.take(last).unwrap();
        let first = put(&mut slots, ());
        assert_eq!(first.user_data(), 0);
        assert!(slots.find(last).is_none());
    }
}
