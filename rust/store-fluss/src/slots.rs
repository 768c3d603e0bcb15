//! In which slot of the table each key that this branch wrote lies.
//!
//! A slot is overwritten in place, which costs Fluss half of what an insert and a delete do and leaves nothing to purge;
//! but never one whose version some checkpoint needs. So a key that is written over and over takes two slots: the
//! newest checkpoint's, and the one that is written to.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Bytes of an entry in the map.
const ENTRY_BYTES: usize = 64;

/// An epoch that is in no slot.
const EMPTY: u32 = 0;

pub struct Slots {
    /// Keys are known by 128 bits of two hashes whose seeds nobody knows.
    hashers: [RandomState; 2],
    known: HashMap<u128, Entry>,
    /// Whether a key that is not known was never written.
    complete: bool,
    limit: usize,
}

#[derive(Default)]
struct Entry {
    /// Of key and newest value; 0 for a deleted key.
    bytes: u32,
    /// The epoch of the version in each slot.
    epochs: [u32; 2],
    more: Box<[u32]>,
}

impl Entry {
    fn slots(&self) -> usize {
        2 + self.more.len()
    }

    fn epoch(&self, slot: usize) -> u32 {
        match slot {
            0 | 1 => self.epochs[slot],
            _ => self.more.get(slot - 2).copied().unwrap_or(EMPTY),
        }
    }

    fn set(&mut self, slot: usize, epoch: u32) {
        match slot {
            0 | 1 => self.epochs[slot] = epoch,
            _ => {
                let mut more = std::mem::take(&mut self.more).into_vec();
                more.resize(more.len().max(slot - 1), EMPTY);
                more[slot - 2] = epoch;
                self.more = more.into();
            }
        }
    }

    /// Whether one of the `protected` epochs, ascending, sees the version of `epoch`.
    fn is_needed(&self, epoch: u32, protected: &[u32]) -> bool {
        let next = (0..self.slots()).map(|slot| self.epoch(slot)).filter(|other| *other > epoch).min();
        let at = protected.partition_point(|kept| *kept < epoch);
        protected.get(at).is_some_and(|kept| next.is_none_or(|next| *kept < next))
    }
}

impl Slots {
    pub fn new(limit: usize) -> Self {
        Self { hashers: [RandomState::new(), RandomState::new()], known: HashMap::new(), complete: true, limit }
    }

    pub fn id(&self, key: &[u8]) -> u128 {
        let [high, low] = &self.hashers;
        u128::from(high.hash_one(key)) << 64 | u128::from(low.hash_one(key))
    }

    /// Forgets all if `more` keys would be too many; then what a key has must be learnt before it is written.
    pub fn make_room(&mut self, more: usize) {
        if self.known.len() + more > self.limit && !self.known.is_empty() {
            self.known = HashMap::new();
            self.complete = false;
        }
    }

    pub fn is_known(&self, id: u128) -> bool {
        self.complete || self.known.contains_key(&id)
    }

    /// Takes over what the table has of a key: slot, epoch and bytes of each of its own versions.
    pub fn learn(&mut self, id: u128, versions: impl Iterator<Item = (u32, u64, u32)>) {
        let entry = self.known.entry(id).or_default();
        let mut newest = 0;
        for (slot, epoch, bytes) in versions {
            entry.set(slot as usize, epoch as u32);
            if epoch >= newest {
                (newest, entry.bytes) = (epoch, bytes);
            }
        }
    }

    /// Chooses the slot for a version of `epoch`, which is no older than any there. Returns it with the bytes that the key
    /// had before.
    pub fn place(&mut self, id: u128, epoch: u32, protected: &[u32], bytes: u32) -> (u32, u32) {
        let entry = self.known.entry(id).or_default();
        let same = (0..entry.slots()).find(|slot| entry.epoch(*slot) == epoch);
        let free = |slot: &usize| {
            let held = entry.epoch(*slot);
            held == EMPTY || !entry.is_needed(held, protected)
        };
        let slot = same.or_else(|| (0..entry.slots()).find(free)).unwrap_or(entry.slots());
        entry.set(slot, epoch);
        (slot as u32, std::mem::replace(&mut entry.bytes, bytes))
    }

    /// Frees a slot whose version is to be deleted; `false` if another version has taken it, or it is not known.
    pub fn free(&mut self, id: u128, slot: u32, epoch: u64) -> bool {
        match self.known.get_mut(&id) {
            Some(entry) if u64::from(entry.epoch(slot as usize)) == epoch => {
                entry.set(slot as usize, EMPTY);
                true
            }
            _ => false,
        }
    }

    pub fn bytes(&self) -> u64 {
        (self.known.capacity() * ENTRY_BYTES) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_key_takes_two_slots() {
        let mut slots = Slots::new(10);
        let id = slots.id(b"k");
        let placed: Vec<u32> = (1..=6).map(|epoch| slots.place(id, epoch, &[epoch - 1], 1).0).collect();
        assert_eq!(placed, [0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn what_a_checkpoint_sees_is_never_overwritten() {
        let mut slots = Slots::new(10);
        let id = slots.id(b"k");
        assert_eq!(slots.place(id, 1, &[], 5), (0, 0));
        assert_eq!(slots.place(id, 1, &[], 6), (0, 5), "in one epoch the newest counts");
        // Checkpoints 1 and 3 stay; 3 sees the version of epoch 2.
        assert_eq!(slots.place(id, 2, &[1], 7).0, 1);
        assert_eq!(slots.place(id, 4, &[1, 3], 7).0, 2);
        assert_eq!(slots.place(id, 5, &[1, 3, 4], 7).0, 3);
        assert_eq!(slots.place(id, 6, &[1, 4], 7).0, 1, "3 was released");
        assert_eq!(slots.place(id, 7, &[6], 7).0, 0);
        // An epoch that came to nothing protects nothing.
        assert_eq!(slots.place(id, 8, &[6], 7).0, 0);
    }

    #[test]
    fn forgotten_keys_are_learnt() {
        let mut slots = Slots::new(1);
        let (a, b) = (slots.id(b"a"), slots.id(b"b"));
        slots.place(a, 1, &[], 5);
        slots.make_room(1);
        assert!(!slots.is_known(a) && !slots.is_known(b));
        slots.learn(a, [(0, 1, 5), (1, 3, 9)].into_iter());
        slots.learn(b, std::iter::empty());
        assert_eq!(slots.place(a, 4, &[3], 1), (0, 9));
        assert_eq!(slots.place(b, 4, &[3], 1), (0, 0));
        assert!(slots.free(a, 1, 3) && !slots.free(a, 0, 1));
    }
}
