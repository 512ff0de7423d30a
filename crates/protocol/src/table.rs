//! Hash tables that cannot be iterated in the order of their hashes, so that no run depends on it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{BuildHasher, Hash};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use indexmap::IndexSet;

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
        if self.0.capacity() > ROOM_MIN && self.0.len() * 8 < self.0.capacity() {
            self.0.shrink_to(self.0.len() * 2);
        }
        value
    }

    /// The hash of a key in this table.
    pub fn hash_of(&self, key: &K) -> u64 {
        self.0.hasher().hash_one(key)
    }
}

/// Keys that come and go quickly and are walked seldom, then in order: a step that puts one in or
/// takes one out costs less than in an ordered set, a walk costs a sort.
#[derive(Clone, Debug)]
pub struct Set<K>(IndexSet<K, FixedState>);

impl<K: Copy + Ord + Hash> Set<K> {
    /// An empty set whose hash takes this seed.
    pub fn new(seed: u64) -> Self {
        Self(IndexSet::with_hasher(FixedState::with_seed(seed)))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a key is there.
    pub fn contains(&self, key: &K) -> bool {
        self.0.contains(key)
    }

    /// Puts a key in; `false` if it was there.
    pub fn insert(&mut self, key: K) -> bool {
        self.0.insert(key)
    }

    /// Takes a key out; `false` if it was not there.
    pub fn remove(&mut self, key: &K) -> bool {
        let found = self.0.swap_remove(key);
        // A burst of keys must not hold its memory for ever.
        if self.0.capacity() > ROOM_MIN && self.0.len() * 8 < self.0.capacity() {
            self.0.shrink_to(self.0.len() * 2);
        }
        found
    }

    /// All keys that are wanted, in order.
    pub fn sorted(&self, wanted: impl Fn(&K) -> bool) -> Vec<K> {
        let wanted = |key: &&K| wanted(key);
        let mut keys: Vec<K> = self.0.iter().filter(wanted).copied().collect();
        keys.sort_unstable();
        keys
    }
}

/// Values in numbered places; freed places are used again, the lowest first, and empty places at
/// the end are given back.
#[derive(Clone, Debug)]
pub struct Slab<T> {
    /// The last place is never empty.
    places: Vec<Option<T>>,
    /// Empty places; also some beyond the end that were given back.
    free: BinaryHeap<Reverse<u32>>,
    used: usize,
}

/// Room for so many values is never given back.
const ROOM_MIN: usize = 1024;

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: BinaryHeap::new(),
            used: 0,
        }
    }
}

impl<T> Slab<T> {
    /// Puts a value in and says where.
    pub fn insert(&mut self, value: T) -> u32 {
        self.used += 1;
        if let Some(Reverse(place)) = self.free.pop() {
            if let Some(empty) = self.places.get_mut(place as usize) {
                *empty = Some(value);
                return place;
            }
            // The lowest was given back, so all of them were.
            self.free.clear();
        }
        self.places.push(Some(value));
        (self.places.len() - 1) as u32
    }

    /// Takes the value at a place out.
    pub fn remove(&mut self, place: u32) -> Option<T> {
        let value = self.places.get_mut(place as usize)?.take()?;
        self.used -= 1;
        self.free.push(Reverse(place));
        while self.places.last().is_some_and(Option::is_none) {
            self.places.pop();
        }
        let kept = self.places.len();
        if self.places.capacity() > ROOM_MIN && kept * 4 < self.places.capacity() {
            self.places.shrink_to((kept * 2).max(ROOM_MIN));
            self.free.retain(|Reverse(place)| (*place as usize) < kept);
            self.free.shrink_to(ROOM_MIN);
        }
        Some(value)
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.used
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

    /// As [`Self::iter`], from a place on.
    pub fn iter_from(&self, from: u32) -> impl Iterator<Item = (u32, &T)> {
        let places = self.places.iter().enumerate().skip(from as usize);
        places.filter_map(|(place, value)| Some((place as u32, value.as_ref()?)))
    }

    /// One more than the last place in use.
    pub fn last_place(&self) -> u32 {
        self.places.len() as u32
    }

    /// The places in use, in order.
    pub fn places(&self) -> Vec<u32> {
        self.iter().map(|(place, _)| place).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use conclave_quorum::Prng;

    use super::*;

    /// A slab holds what an ordered map holds, in the lowest places that were free.
    #[test]
    fn a_slab_equals_its_dumb_twin() {
        let mut rng = Prng::new(9);
        for round in 0..60 {
            let mut slab = Slab::default();
            let mut dumb = BTreeMap::new();
            let mut bias = 0.7;
            for number in 0..600 {
                if number % 150 == 0 {
                    bias = 1.0 - bias;
                }
                if rng.chance(bias) {
                    let lowest = (0..=u32::MAX).find(|place| !dumb.contains_key(place));
                    let place = slab.insert(number);
                    assert_eq!(Some(place), lowest, "round {round}");
                    dumb.insert(place, number);
                } else {
                    let place = rng.below(40) as u32;
                    assert_eq!(slab.remove(place), dumb.remove(&place));
                }
                assert_eq!(slab.len(), dumb.len());
                assert!(
                    slab.iter()
                        .eq(dumb.iter().map(|(place, value)| (*place, value)))
                );
            }
        }
    }

    /// A set holds what an ordered set holds, and gives it in the same order.
    #[test]
    fn a_set_equals_its_dumb_twin() {
        let mut rng = Prng::new(4);
        let mut set = Set::new(7);
        let mut dumb = std::collections::BTreeSet::new();
        for _ in 0..5_000 {
            let key = rng.below(200);
            if rng.chance(0.5) {
                assert_eq!(set.insert(key), dumb.insert(key));
            } else {
                assert_eq!(set.remove(&key), dumb.remove(&key));
            }
            assert_eq!((set.len(), set.is_empty()), (dumb.len(), dumb.is_empty()));
            assert_eq!(set.contains(&key), dumb.contains(&key));
            let even = |key: &usize| key.is_multiple_of(2);
            assert!(
                set.sorted(even)
                    .iter()
                    .eq(dumb.iter().filter(|key| even(key)))
            );
        }
    }

    #[test]
    fn a_burst_gives_its_room_back() {
        let mut set = Set::new(0);
        for number in 0..100_000 {
            set.insert(number);
        }
        for number in 10..100_000 {
            set.remove(&number);
        }
        assert_eq!(set.len(), 10);
        assert!(set.0.capacity() <= 2 * ROOM_MIN);
        let mut slab = Slab::default();
        for number in 0..100_000 {
            slab.insert(number);
        }
        for place in 10..100_000 {
            slab.remove(place);
        }
        assert_eq!(slab.len(), 10);
        assert!(slab.places.capacity() <= ROOM_MIN);
        assert!(slab.free.len() <= ROOM_MIN);
    }
}
