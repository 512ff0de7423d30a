//! A hash table that cannot be iterated, so that no run depends on its order.

use std::hash::{BuildHasher, Hash};

use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// Key to value, seeded by its owner. There is no way to walk it: what must be walked is kept in
/// a [`Slab`] or an ordered map.
#[derive(Clone, Debug)]
pub struct Table<K, V>(HashMap<K, V, FixedState>);

impl<K: Eq + Hash, V> Table<K, V> {
    /// An empty table whose hash takes this seed.
    pub fn new(seed: u64) -> Self {
        Self(HashMap::with_hasher(FixedState::with_seed(seed)))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.0.get(key)
    }

    /// The value of a key, to change it.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.get_mut(key)
    }

    /// Sets a key's value and gives the old one back.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.0.insert(key, value)
    }

    /// Takes a key out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let value = self.0.remove(key);
        // A burst of names must not hold its memory for ever.
        if self.0.capacity() > 1024 && self.0.len() * 8 < self.0.capacity() {
            self.0.shrink_to(self.0.len() * 2);
        }
        value
    }

    /// The hash of a key in this table.
    pub fn hash_of(&self, key: &K) -> u64 {
        self.0.hasher().hash_one(key)
    }
}

/// Values in numbered places; freed places are used again, lowest memory first.
#[derive(Clone, Debug)]
pub struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    /// Puts a value in and says where.
    pub fn insert(&mut self, value: T) -> u32 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = Some(value);
            return place;
        }
        self.places.push(Some(value));
        (self.places.len() - 1) as u32
    }

    /// Takes the value at a place out.
    pub fn remove(&mut self, place: u32) -> Option<T> {
        let value = self.places.get_mut(place as usize)?.take()?;
        if self.len_used() == 1 {
            self.places.clear();
            self.free.clear();
        } else {
            self.free.push(place);
        }
        Some(value)
    }

    fn len_used(&self) -> usize {
        // The value just taken is still counted: it is in neither list yet.
        self.places.len() - self.free.len()
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value at a place.
    pub fn get(&self, place: u32) -> Option<&T> {
        self.places.get(place as usize)?.as_ref()
    }

    /// The value at a place, to change it.
    pub fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.places.get_mut(place as usize)?.as_mut()
    }

    /// All values with their places, in order of place.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let places = self.places.iter().enumerate();
        places.filter_map(|(place, value)| Some((place as u32, value.as_ref()?)))
    }

    /// The places in use, in order.
    pub fn places(&self) -> Vec<u32> {
        self.iter().map(|(place, _)| place).collect()
    }
}
