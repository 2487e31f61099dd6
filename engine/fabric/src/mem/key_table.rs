//! The keys of a connection, with the memory that each of them opens to its peer.

use super::KeyGenerator;

/// Values by their keys, each in the place that its key names.
#[derive(Debug)]
pub(crate) struct KeyTable<T> {
    keys: KeyGenerator,
    held: Vec<Option<(u32, T)>>,
    free: Vec<u32>,
}

impl<T> KeyTable<T> {
    /// A table with as many places as the keys name at most, or with the first of them, see [`KeyTable::grow`].
    pub(crate) fn new(keys: KeyGenerator, places: usize) -> Self {
        let mut table = Self { keys, held: Vec::new(), free: Vec::new() };
        table.grow(places);
        table
    }

    /// Makes more places, `places` in all. Nothing else allocates.
    pub(crate) fn grow(&mut self, places: usize) {
        let before = self.held.len();
        self.held.reserve_exact(places - before);
        self.held.resize_with(places, || None);
        self.free.reserve_exact(places);
        self.free.extend((before as u32..places as u32).rev());
    }

    pub(crate) fn places(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn alive(&self) -> usize {
        self.held.len() - self.free.len()
    }

    /// Keeps a value; `None` if all places are taken.
    pub(crate) fn insert(&mut self, value: T) -> Option<u32> {
        let place = self.free.pop()? as usize;
        let key = self.keys.next(place);
        self.held[place] = Some((key, value));
        Some(key)
    }

    pub(crate) fn remove(&mut self, key: u32) -> Option<T> {
        self.get(key)?;
        let place = self.place_of(key);
        self.free.push(place as u32);
        self.held[place].take().map(|(_, value)| value)
    }

    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(&mut T) -> bool) {
        for (place, held) in self.held.iter_mut().enumerate() {
            if held.take_if(|(_, value)| !keeps(value)).is_some() {
                self.free.push(place as u32);
            }
        }
    }

    pub(crate) fn get(&self, key: u32) -> Option<&T> {
        let (own, value) = self.held.get(self.place_of(key))?.as_ref()?;
        (*own == key).then_some(value)
    }

    pub(crate) fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        let place = self.place_of(key);
        let (own, value) = self.held.get_mut(place)?.as_mut()?;
        (*own == key).then_some(value)
    }

    /// See [`KeyGenerator::index_of`].
    pub(crate) fn place_of(&self, key: u32) -> usize {
        self.keys.index_of(key)
    }

    pub(crate) fn key_at(&self, place: usize) -> Option<u32> {
        self.held.get(place)?.as_ref().map(|(key, _)| *key)
    }
}
