//! Names by hash, in one table with open addressing: finding one costs a cache line, where a table of tags and a table of
//! entries would cost two.

use crate::groups::spread;
use crate::slab::prefetch;

/// 32 bits of hash and a name each; what a name stands for, the caller compares.
pub(crate) struct Index {
    /// The hash above one more than the name; 0 is an empty place. A power of two, at most three quarters full.
    entries: Box<[u64]>,
    len: usize,
}

const FIRST: usize = 8;

#[inline]
fn hash_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

#[inline]
fn id_of(entry: u64) -> u32 {
    entry as u32 - 1
}

impl Index {
    pub fn new() -> Self {
        Self { entries: Box::default(), len: 0 }
    }

    /// Where the search for a hash begins.
    #[inline]
    fn home(&self, hash: u32) -> usize {
        (spread(hash) >> (64 - self.entries.len().trailing_zeros())) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.entries.len() - 1)
    }

    /// The place of the entry of this hash whose name `is` the one.
    #[inline]
    fn position(&self, hash: u32, is: impl Fn(u32) -> bool) -> Option<usize> {
        if self.entries.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        loop {
            let entry = self.entries[at];
            if entry == 0 {
                return None;
            }
            if hash_of(entry) == hash && is(id_of(entry)) {
                return Some(at);
            }
            at = self.next(at);
        }
    }

    #[inline]
    pub fn find(&self, hash: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        self.position(hash, is).map(|at| id_of(self.entries[at]))
    }

    /// A name of this hash, which may be that of another key. Reads nothing but the table.
    #[inline]
    pub fn guess(&self, hash: u32) -> Option<u32> {
        self.find(hash, |_| true)
    }

    /// Has the processor read where the search for a hash begins.
    #[inline]
    pub fn prefetch(&self, hash: u32) {
        if !self.entries.is_empty() {
            prefetch(&raw const self.entries[self.home(hash)]);
        }
    }

    /// Adds a name that is not there.
    pub fn insert(&mut self, hash: u32, id: u32) {
        if 4 * (self.len + 1) > 3 * self.entries.len() {
            self.rebuild((2 * self.entries.len()).max(FIRST));
        }
        self.put(u64::from(hash) << 32 | u64::from(id + 1));
        self.len += 1;
    }

    #[inline]
    fn put(&mut self, entry: u64) {
        let mut at = self.home(hash_of(entry));
        while self.entries[at] != 0 {
            at = self.next(at);
        }
        self.entries[at] = entry;
    }

    fn rebuild(&mut self, places: usize) {
        let old = std::mem::replace(&mut self.entries, vec![0; places].into_boxed_slice());
        old.iter().filter(|&&entry| entry != 0).for_each(|&entry| self.put(entry));
    }

    /// Takes a name out; what lies behind it moves up, so that no search ends too early.
    pub fn remove(&mut self, hash: u32, id: u32) {
        let Some(mut hole) = self.position(hash, |other| other == id) else { return };
        let mask = self.entries.len() - 1;
        let mut at = self.next(hole);
        while self.entries[at] != 0 {
            let home = self.home(hash_of(self.entries[at]));
            // How far the entry is from its home, and from the hole: it may move if that does not pass its home.
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.entries[hole] = self.entries[at];
                hole = at;
            }
            at = self.next(at);
        }
        self.entries[hole] = 0;
        self.len -= 1;
    }

    /// The entry of a name gets another one.
    pub fn rename(&mut self, hash: u32, from: u32, to: u32) {
        if let Some(at) = self.position(hash, |other| other == from) {
            self.entries[at] = u64::from(hash) << 32 | u64::from(to + 1);
        }
    }

    /// Gives memory back once a small part of it is used.
    pub fn shrink(&mut self) {
        if self.entries.len() > 8 * self.len + 64 {
            self.rebuild((3 * self.len).next_power_of_two().max(FIRST));
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn bytes(&self) -> usize {
        self.entries.len() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn equals_a_map_through_inserts_removals_and_shrinking() {
        // Few hashes, so that many names share one, and many.
        for hashes in [3, 50, u32::MAX] {
            let mut rng = SmallRng::seed_from_u64(u64::from(hashes));
            let mut index = Index::new();
            let mut model: HashMap<u32, u32> = HashMap::new();
            let mut most = 0;
            for step in 0..4000_u32 {
                if step % 2000 < 1000 || model.is_empty() {
                    let hash = rng.random_range(0..hashes);
                    index.insert(hash, step);
                    model.insert(step, hash);
                } else {
                    let id = *model.keys().nth(rng.random_range(0..model.len())).unwrap();
                    let hash = model.remove(&id).unwrap();
                    if rng.random_bool(0.2) {
                        index.rename(hash, id, id + 100_000);
                        model.insert(id + 100_000, hash);
                    } else {
                        index.remove(hash, id);
                    }
                    assert_eq!(index.find(hash, |other| other == id), None);
                    index.shrink();
                }
                most = most.max(index.bytes());
                if step % 50 == 0 {
                    for (&id, &hash) in &model {
                        assert_eq!(index.find(hash, |other| other == id), Some(id));
                    }
                    assert_eq!(index.len, model.len());
                }
            }
            for (id, hash) in model {
                index.remove(hash, id);
            }
            index.shrink();
            assert!(index.entries.iter().all(|&entry| entry == 0));
            assert!(index.bytes() <= 64 * 8 && most > 1000 * 8);
        }
    }
}
