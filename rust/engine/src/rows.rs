//! One row in memory.

use crate::resident::Resident;
use crate::slab::{Slab, Vacant};

/// A row key; up to 30 bytes need no allocation.
pub(crate) struct RowKey(Repr);

enum Repr {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<[u8]>),
}

const INLINE: usize = 30;

impl RowKey {
    pub const EMPTY: Self = Self(Repr::Inline { len: 0, bytes: [0; INLINE] });

    #[inline]
    pub fn new(key: &[u8]) -> Self {
        if key.len() <= INLINE {
            let mut bytes = [0; INLINE];
            bytes[..key.len()].copy_from_slice(key);
            Self(Repr::Inline { len: key.len() as u8, bytes })
        } else {
            Self(Repr::Heap(Box::from(key)))
        }
    }

    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Repr::Heap(bytes) => bytes,
        }
    }

    #[inline]
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Repr::Inline { .. } => 0,
            Repr::Heap(bytes) => bytes.len(),
        }
    }
}

/// The place is taken.
pub(crate) const USED: u8 = 1;
/// `owner` is a group's name and `key` a suffix; else `owner` is the hash of the whole key.
pub(crate) const IN_GROUP: u8 = 2;
/// Read or written since the clock's hand passed.
pub(crate) const REFERENCED: u8 = 4;
/// The value, as of `epoch`, is in the batch that the store is asked to write.
pub(crate) const FLUSHING: u8 = 8;
/// The store may have a row of this key, or get one from a batch or a frozen epoch.
pub(crate) const MAYBE_STORED: u8 = 16;
/// A row of a group that the index of rows names too.
pub(crate) const INDEXED: u8 = 32;

/// A row, on a cache line of its own.
///
/// `epoch` is 0 for a clean row, which is equal to what the store has; else the newest epoch that wrote it, and then the
/// row stays until the store has acknowledged it.
#[repr(align(64))]
pub(crate) struct Slot<V> {
    pub key: RowKey,
    /// `None`: known to be absent, or, if dirty, deleted.
    pub value: Option<V>,
    pub owner: u32,
    pub epoch: u32,
    /// The newest epoch whose list names this place; belongs to the place, not to the row in it.
    pub listed: u32,
    pub flags: u8,
}

impl<V> Slot<V> {
    #[inline]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

impl<V: Resident> Slot<V> {
    /// Bytes that this row holds beside its place.
    #[inline]
    pub fn heap_bytes(&self) -> usize {
        self.key.heap_bytes() + self.value_bytes()
    }

    #[inline]
    pub fn value_bytes(&self) -> usize {
        self.value.as_ref().map_or(0, V::heap_bytes)
    }
}

impl<V> Vacant for Slot<V> {
    fn vacant() -> Self {
        Self { key: RowKey::EMPTY, value: None, owner: 0, epoch: 0, listed: 0, flags: 0 }
    }
}

/// 8 KiB a chunk.
pub(crate) type Rows<V> = Slab<Slot<V>, 128>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resident::SmallBytes;

    #[test]
    fn a_row_is_a_cache_line() {
        assert_eq!(size_of::<Slot<SmallBytes>>(), 64);
        assert_eq!(size_of::<RowKey>(), 32);
    }

    #[test]
    fn keys_keep_their_bytes_on_both_sides_of_the_inline_bound() {
        for len in [0, 1, 29, 30, 31, 32, 1000] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let key = RowKey::new(&bytes);
            assert_eq!(key.as_slice(), &bytes[..]);
            assert_eq!(key.heap_bytes(), if len > 30 { len } else { 0 });
        }
    }
}
