//! What an engine that began without rows knows about keys that are not in memory: only evicted ones can be in the
//! store. A filter holds their hashes.

use crate::groups::spread;

/// Whether a key that is not in memory can be in the store.
pub(crate) struct Absence {
    /// The store had no rows when the engine began.
    fresh: bool,
    filter: Vec<Layer>,
    /// The filter may not grow beyond this; then it is given up and every key is asked.
    pub max_bytes: usize,
}

/// Blocks of 512 bits, one a key; about 12 bits a key and 8 of them set: one false answer in some 200.
struct Layer {
    blocks: Box<[[u64; 8]]>,
    keys: usize,
}

const FIRST_BLOCKS: usize = 64;
const KEYS_PER_BLOCK: usize = 42;

impl Absence {
    pub fn new(fresh: bool, max_bytes: usize) -> Self {
        Self { fresh, filter: Vec::new(), max_bytes }
    }

    /// True only if the store has no row of a key with this hash.
    #[inline]
    pub fn is_known(&self, hash: u64) -> bool {
        self.fresh && !self.filter.iter().any(|layer| layer.contains(hash))
    }

    /// From now on the store may have a row of a key with this hash that is not in memory.
    pub fn evicted(&mut self, hash: u64) {
        if !self.is_known(hash) {
            return;
        }
        let full = |layer: &Layer| layer.keys >= layer.blocks.len() * KEYS_PER_BLOCK;
        if self.filter.last().is_none_or(full) {
            let blocks = self.filter.last().map_or(FIRST_BLOCKS, |layer| layer.blocks.len() * 2);
            if self.bytes() + blocks * size_of::<[u64; 8]>() > self.max_bytes {
                tracing::warn!(
                    filter_bytes = self.bytes(),
                    "the filter of evicted keys has outgrown its share of the memory; absent keys are asked of the store"
                );
                self.fresh = false;
                self.filter = Vec::new();
                return;
            }
            self.filter.push(Layer { blocks: vec![[0; 8]; blocks].into_boxed_slice(), keys: 0 });
        }
        if let Some(layer) = self.filter.last_mut() {
            layer.insert(hash);
        }
    }

    pub fn bytes(&self) -> usize {
        self.filter.iter().map(|layer| layer.blocks.len() * size_of::<[u64; 8]>()).sum::<usize>()
            + self.filter.capacity() * size_of::<Layer>()
    }
}

impl Layer {
    /// The block, and a bit in each of its eight words.
    #[inline]
    fn place(&self, hash: u64) -> (usize, [u64; 8]) {
        let block = ((hash >> 32) * self.blocks.len() as u64) >> 32;
        // Six bits a word from a remix of the hash, whose high half has chosen the block.
        let bits = spread(hash as u32) ^ hash.rotate_left(17);
        (block as usize, std::array::from_fn(|word| 1 << (bits >> (6 * word) & 63)))
    }

    #[inline]
    fn contains(&self, hash: u64) -> bool {
        let (block, bits) = self.place(hash);
        self.blocks[block].iter().zip(bits).all(|(word, bit)| word & bit != 0)
    }

    fn insert(&mut self, hash: u64) {
        let (block, bits) = self.place(hash);
        self.blocks[block].iter_mut().zip(bits).for_each(|(word, bit)| *word |= bit);
        self.keys += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn has_no_false_absence_and_few_false_presences() {
        let hasher = hashbrown::DefaultHashBuilder::default();
        let mut absence = Absence::new(true, usize::MAX);
        let hash = |i: u64| hasher.hash_one(i.to_be_bytes());
        for i in 0..100_000 {
            absence.evicted(hash(i));
            absence.evicted(hash(i));
        }
        assert!((0..100_000).all(|i| !absence.is_known(hash(i))));
        let wrong = (100_000..200_000).filter(|&i| !absence.is_known(hash(i))).count();
        assert!(wrong < 2_500, "{wrong} of 100000 absent keys are not known");
        assert!(absence.bytes() < 100_000 * 4, "{} bytes", absence.bytes());
    }

    #[test]
    fn is_given_up_beyond_its_share() {
        let mut absence = Absence::new(true, 10_000);
        for i in 0..10_000_u64 {
            absence.evicted(i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            assert!(absence.bytes() <= 10_000 + 200);
        }
        assert!(!absence.is_known(1));
        assert_eq!(absence.bytes(), 0);
    }

    #[test]
    fn an_engine_with_sources_knows_nothing() {
        assert!(!Absence::new(false, 1000).is_known(7));
    }
}
