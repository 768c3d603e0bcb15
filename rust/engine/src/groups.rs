//! Maps and lists: a hash table of groups, each an ordered list of its rows in memory.

use crate::index::Index;
use crate::rows::RowKey;
use crate::slab::{Slab, Vacant, prefetch};

/// The rows of one key and namespace of a map or list state. What finding a row needs lies on the first cache line.
#[repr(C, align(64))]
pub(crate) struct Group {
    pub prefix: RowKey,
    pub rows: OrderedRows,
    pub hash: u32,
    /// A row of this group that is not in memory does not exist.
    pub complete: bool,
    /// Used since the last sweep of empty groups.
    pub referenced: bool,
    /// The sequence number of the row that was appended last since the group came to memory.
    pub begun: Option<u64>,
}

impl Vacant for Group {
    fn vacant() -> Self {
        Self {
            prefix: RowKey::EMPTY,
            hash: 0,
            complete: false,
            referenced: false,
            begun: None,
            rows: OrderedRows::default(),
        }
    }
}

/// All groups in memory.
pub(crate) struct Groups {
    slab: Slab<Group, 32>,
    index: Index,
    /// Complete groups without a row in memory, each a proof of absence; nothing else holds them.
    pub empty: usize,
    hand: u32,
}

impl Groups {
    pub fn new() -> Self {
        Self { slab: Slab::new(), index: Index::new(), empty: 0, hand: 0 }
    }

    #[inline]
    pub fn find(&self, hash: u32, prefix: &[u8]) -> Option<u32> {
        let slab = &self.slab;
        self.index.find(hash, |id| slab[id].prefix.as_slice() == prefix)
    }

    /// Has the processor read the prefix that [`Self::find`] will compare.
    #[inline]
    pub fn prefetch(&self, hash: u32) {
        if let Some(id) = self.index.guess(hash) {
            prefetch(&raw const self.slab[id].prefix);
        }
    }

    pub fn insert(&mut self, hash: u32, prefix: &[u8], complete: bool) -> u32 {
        let id = self.slab.alloc();
        self.slab[id] = Group {
            prefix: RowKey::new(prefix),
            hash,
            complete,
            referenced: true,
            begun: None,
            rows: OrderedRows::default(),
        };
        self.index.insert(hash, id);
        id
    }

    /// Forgets a group that holds no rows.
    pub fn remove(&mut self, id: u32) {
        debug_assert!(self.slab[id].rows.is_empty());
        let hash = self.slab[id].hash;
        self.index.remove(hash, id);
        self.slab[id] = Group::vacant();
        self.slab.release(id);
        while self.slab.pop_chunk() {}
        self.index.shrink();
    }

    /// The next empty group that was not used since the hand passed; stops after `steps`.
    pub fn next_empty(&mut self, mut steps: usize) -> Option<u32> {
        while steps > 0 && self.empty > 0 {
            steps -= 1;
            if self.hand >= self.slab.end() {
                self.hand = 0;
            }
            let id = self.hand;
            self.hand += 1;
            if !self.slab.is_used(id) {
                continue;
            }
            let group = &mut self.slab[id];
            if group.rows.is_empty() && !std::mem::take(&mut group.referenced) {
                return Some(id);
            }
        }
        None
    }

    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.slab.end()).filter(|&id| self.slab.is_used(id))
    }

    pub fn is_used(&self, id: u32) -> bool {
        self.slab.is_used(id)
    }

    pub fn len(&self) -> usize {
        self.slab.used()
    }

    /// Bytes of the table and of the groups, without their prefixes and lists.
    pub fn bytes(&self) -> usize {
        self.slab.bytes() + self.index.bytes()
    }
}

impl std::ops::Index<u32> for Groups {
    type Output = Group;

    #[inline]
    fn index(&self, id: u32) -> &Group {
        &self.slab[id]
    }
}

impl std::ops::IndexMut<u32> for Groups {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Group {
        &mut self.slab[id]
    }
}

/// Spreads the 32 hash bits that are kept of a row or group over 64: tables take their places from the high ones.
#[inline]
pub(crate) fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Names of rows in the order of their suffixes: sorted chunks, so that a list fills them by appending and a map of any
/// size takes an insert in a bounded move. The suffixes lie in the rows; of each, the order needs 64 bits in most cases.
#[repr(C)]
#[derive(Default)]
pub(crate) struct OrderedRows {
    first: Vec<Entry>,
    len: u32,
    /// The row with the greatest suffix, if there is any: named here too, since most lists have one row and all grow there.
    last: u32,
    rest: Option<Box<Rest>>,
    bytes: usize,
}

/// The chunks after the first, of which most groups have none. Every one has an entry.
#[derive(Default)]
struct Rest {
    /// Of each chunk the head of its first entry, side by side, so that finding a chunk among thousands reads few lines.
    heads: Vec<u64>,
    chunks: Vec<Vec<Entry>>,
}

const CHUNK: usize = 256;
/// Chunks up to this length are compared throughout: no step waits for the one before.
const LINEAR: usize = 16;

#[derive(Clone, Copy)]
struct Entry {
    head: [u32; 2],
    id: u32,
}

/// A place between or at the entries of [`OrderedRows`].
#[derive(Clone, Copy)]
pub(crate) struct Position {
    chunk: usize,
    entry: usize,
}

/// Grows with the suffix, not always strictly. Nearly all suffixes begin with a null marker below 3, which is folded
/// into two bits to leave room for what follows it.
#[inline]
fn head(suffix: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let class = suffix.first().map_or(0, |&byte| byte.min(3));
    let from = if class == 3 { suffix } else { suffix.get(1..).unwrap_or(&[]) };
    if let Some(eight) = from.first_chunk() {
        bytes = *eight;
    } else {
        bytes[..from.len()].copy_from_slice(from);
    }
    u64::from(class) << 62 | u64::from_be_bytes(bytes) >> 2
}

impl Entry {
    #[inline]
    fn new(suffix: &[u8], id: u32) -> Self {
        let head = head(suffix);
        Self { head: [(head >> 32) as u32, head as u32], id }
    }

    #[inline]
    fn head(&self) -> u64 {
        u64::from(self.head[0]) << 32 | u64::from(self.head[1])
    }
}

impl Rest {
    /// How many chunks begin with an entry that is not greater.
    #[inline]
    fn find<'a>(&self, head: u64, suffix: &[u8], suffix_of: impl Fn(u32) -> &'a [u8]) -> usize {
        let less = self.heads.partition_point(|&other| other < head);
        let equal = self.heads[less..].partition_point(|&other| other == head);
        less + self.chunks[less..less + equal].partition_point(|chunk| suffix_of(chunk[0].id) <= suffix)
    }

    fn insert(&mut self, at: usize, chunk: Vec<Entry>) {
        self.heads.insert(at, chunk[0].head());
        self.chunks.insert(at, chunk);
    }

    fn remove(&mut self, at: usize) -> Vec<Entry> {
        self.heads.remove(at);
        let chunk = self.chunks.remove(at);
        if self.chunks.len() < self.chunks.capacity() / 4 {
            self.heads.shrink_to(2 * self.heads.len());
            self.chunks.shrink_to(2 * self.chunks.len());
        }
        chunk
    }

    /// Without the chunks' entries.
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.heads.capacity() * size_of::<u64>() + self.chunks.capacity() * size_of::<Vec<Entry>>()
    }
}

impl OrderedRows {
    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The row with the greatest suffix.
    #[inline]
    pub fn last(&self) -> Option<u32> {
        (self.len > 0).then_some(self.last)
    }

    /// The only row.
    #[inline]
    pub fn only(&self) -> Option<u32> {
        (self.len == 1).then_some(self.last)
    }

    /// Bytes of the chunks and of the list of chunks.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    fn rest(&self) -> &[Vec<Entry>] {
        // Asked first, since it lies beside what else is read.
        if self.len() == self.first.len() {
            return &[];
        }
        self.rest.as_ref().map_or(&[], |rest| rest.chunks.as_slice())
    }

    #[inline]
    fn chunk(&self, chunk: usize) -> &Vec<Entry> {
        if chunk == 0 { &self.first } else { &self.rest()[chunk - 1] }
    }

    #[inline]
    fn chunk_mut(&mut self, chunk: usize) -> &mut Vec<Entry> {
        match &mut self.rest {
            Some(rest) if chunk > 0 => &mut rest.chunks[chunk - 1],
            _ => &mut self.first,
        }
    }

    fn chunk_bytes(&self, chunk: usize) -> usize {
        self.chunk(chunk).capacity() * size_of::<Entry>()
    }

    fn rest_bytes(&self) -> usize {
        self.rest.as_ref().map_or(0, |rest| rest.bytes())
    }

    #[cfg(test)]
    fn counted_bytes(&self) -> usize {
        (0..=self.rest().len()).map(|chunk| self.chunk_bytes(chunk)).sum::<usize>() + self.rest_bytes()
    }

    /// Where `suffix` is, or would be inserted.
    #[inline]
    pub fn find<'a>(&self, suffix: &[u8], suffix_of: impl Fn(u32) -> &'a [u8]) -> Result<(Position, u32), Position> {
        let head = head(suffix);
        let chunk = if self.len() == self.first.len() {
            0
        } else {
            self.rest.as_ref().map_or(0, |rest| rest.find(head, suffix, &suffix_of))
        };
        let entries = self.chunk(chunk).as_slice();
        let (less, equal) = if entries.len() <= LINEAR {
            entries.iter().fold((0, 0), |(less, equal), entry| {
                let other = entry.head();
                (less + usize::from(other < head), equal + usize::from(other == head))
            })
        } else {
            // The first row of all is what a queue of timers asks for again and again.
            let less = if entries[0].head() < head { entries.partition_point(|entry| entry.head() < head) } else { 0 };
            let equal = match entries.get(less) {
                Some(entry) if entry.head() == head => entries[less..].partition_point(|entry| entry.head() == head),
                _ => 0,
            };
            (less, equal)
        };
        // Nearly always one or none.
        match entries[less..less + equal].binary_search_by(|entry| suffix_of(entry.id).cmp(suffix)) {
            Ok(at) => Ok((Position { chunk, entry: less + at }, entries[less + at].id)),
            Err(at) => Err(Position { chunk, entry: less + at }),
        }
    }

    /// Inserts at the place that [`Self::find`] gave.
    pub fn insert(&mut self, mut at: Position, suffix: &[u8], id: u32) {
        let entry = Entry::new(suffix, id);
        if at.chunk == self.rest().len() && at.entry == self.chunk(at.chunk).len() {
            self.last = id;
        }
        self.len += 1;
        if self.chunk(at.chunk).len() < CHUNK {
            let before = self.chunk_bytes(at.chunk);
            self.chunk_mut(at.chunk).insert(at.entry, entry);
            self.bytes += self.chunk_bytes(at.chunk) - before;
            return;
        }
        let before = self.rest_bytes();
        if at.entry == CHUNK && at.chunk == self.rest().len() {
            // Appending: leave the full chunk as it is.
            let mut chunk = Vec::with_capacity(4);
            chunk.push(entry);
            self.rest.get_or_insert_default().insert(at.chunk, chunk);
            self.bytes += self.chunk_bytes(at.chunk + 1);
        } else {
            let lower = self.chunk_bytes(at.chunk);
            let upper = self.chunk_mut(at.chunk).split_off(CHUNK / 2);
            self.rest.get_or_insert_default().insert(at.chunk, upper);
            let split = at.chunk;
            if at.entry > CHUNK / 2 {
                at = Position { chunk: at.chunk + 1, entry: at.entry - CHUNK / 2 };
            }
            self.chunk_mut(at.chunk).insert(at.entry, entry);
            self.bytes += self.chunk_bytes(split) + self.chunk_bytes(split + 1) - lower;
        }
        self.bytes += self.rest_bytes() - before;
    }

    pub fn remove(&mut self, at: Position) {
        let was_last = self.chunk(at.chunk)[at.entry].id == self.last;
        self.remove_entry(at);
        self.len -= 1;
        if was_last && let Some(entry) = self.chunk(self.rest().len()).last() {
            self.last = entry.id;
        }
    }

    fn remove_entry(&mut self, at: Position) {
        let before = self.chunk_bytes(at.chunk);
        let chunk = self.chunk_mut(at.chunk);
        chunk.remove(at.entry);
        if chunk.len() < chunk.capacity() / 4 {
            chunk.shrink_to(2 * chunk.len());
        }
        let first = chunk.first().map(Entry::head);
        let size = chunk.len();
        self.bytes -= before - self.chunk_bytes(at.chunk);
        let Some(rest) = &mut self.rest else { return };
        if let Some(head) = first
            && at.entry == 0
            && at.chunk > 0
        {
            rest.heads[at.chunk - 1] = head;
        }
        if size < CHUNK / 8 {
            self.join(at.chunk);
        }
    }

    /// Gives a nearly empty chunk up to a neighbour, if both fit in half a chunk, so that evictions do not leave a list of
    /// such chunks; an empty one always.
    fn join(&mut self, chunk: usize) {
        let Some(rest) = &mut self.rest else { return };
        let left = if chunk == rest.chunks.len() { chunk - 1 } else { chunk };
        let before = rest.bytes();
        let kept = if left == 0 { &mut self.first } else { &mut rest.chunks[left - 1] };
        let (kept_bytes, kept_len) = (kept.capacity() * size_of::<Entry>(), kept.len());
        let (right_bytes, right_len) = {
            let right = &rest.chunks[left];
            (right.capacity() * size_of::<Entry>(), right.len())
        };
        if kept_len > 0 && right_len > 0 && kept_len + right_len > CHUNK / 2 {
            return;
        }
        let right = rest.remove(left);
        let kept = if left == 0 { &mut self.first } else { &mut rest.chunks[left - 1] };
        if kept.is_empty() {
            *kept = right;
        } else {
            kept.extend(right);
        }
        if left > 0 {
            rest.heads[left - 1] = rest.chunks[left - 1][0].head();
        }
        if rest.chunks.is_empty() {
            self.rest = None;
        }
        self.bytes -= before + kept_bytes + right_bytes;
        self.bytes += self.rest_bytes() + self.chunk_bytes(left);
    }

    /// Names another place as the holder of the same row.
    pub fn rename(&mut self, at: Position, id: u32) {
        let was = std::mem::replace(&mut self.chunk_mut(at.chunk)[at.entry].id, id);
        if self.last == was {
            self.last = id;
        }
    }

    pub fn start(&self) -> Position {
        Position { chunk: 0, entry: 0 }
    }

    /// The place of the first row after `suffix`.
    pub fn after<'a>(&self, suffix: &[u8], suffix_of: impl Fn(u32) -> &'a [u8]) -> Position {
        match self.find(suffix, suffix_of) {
            Ok((at, _)) => Position { chunk: at.chunk, entry: at.entry + 1 },
            Err(at) => at,
        }
    }

    /// All names in order, chunk by chunk.
    pub fn chunks(&self) -> impl Iterator<Item = impl Iterator<Item = u32> + Clone + '_> {
        std::iter::once(&self.first).chain(self.rest()).map(|chunk| chunk.iter().map(|entry| entry.id))
    }

    /// The names from `at` on, in order.
    pub fn iter_from(&self, at: Position) -> impl Iterator<Item = u32> + '_ {
        let skip = at.entry;
        (at.chunk..=self.rest().len())
            .flat_map(move |chunk| self.chunk(chunk).iter().skip(if chunk == at.chunk { skip } else { 0 }))
            .map(|entry| entry.id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::mem::offset_of;

    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn what_finding_a_row_needs_is_on_one_cache_line() {
        assert_eq!(offset_of!(Group, rows) + offset_of!(OrderedRows, rest), 64);
        assert_eq!(size_of::<Group>(), 128);
    }

    #[test]
    fn heads_grow_with_suffixes() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut suffixes: Vec<Vec<u8>> = (0..3000)
            .map(|_| (0..rng.random_range(0..12)).map(|_| rng.random_range(0..5) * rng.random_range(0..=60)).collect())
            .collect();
        suffixes.extend([vec![], vec![0], vec![1], vec![2], vec![3], vec![255; 9], vec![3, 0], vec![2, 255]]);
        suffixes.sort();
        for pair in suffixes.windows(2) {
            assert!(head(&pair[0]) <= head(&pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn equals_a_sorted_map() {
        for (seed, spread) in [(1, 40_u64), (2, 3000), (3, 1 << 40)] {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut suffixes: Vec<Vec<u8>> = Vec::new();
            let mut model: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
            let mut rows = OrderedRows::default();
            for step in 0..6000 {
                let growing = step % 3000 < 2000;
                let mut suffix = vec![rng.random_range(0..4_u8)];
                suffix.extend(rng.random_range(0..spread).to_be_bytes());
                if !growing && !model.is_empty() {
                    let keys: Vec<_> = model.range(suffix.clone()..).take(1).map(|(k, _)| k.clone()).collect();
                    suffix = keys.into_iter().next().unwrap_or(suffix);
                }
                let found = rows.find(&suffix, |id| &suffixes[id as usize]);
                match found {
                    Ok((_, id)) if growing => assert_eq!(model[&suffix], id),
                    Ok((at, _)) => {
                        rows.remove(at);
                        assert!(model.remove(&suffix).is_some());
                    }
                    Err(at) => {
                        assert!(!model.contains_key(&suffix));
                        let id = suffixes.len() as u32;
                        suffixes.push(suffix.clone());
                        rows.insert(at, &suffix, id);
                        model.insert(suffix.clone(), id);
                    }
                }
                if step % 97 == 0 {
                    let at = rows.after(&suffix, |id| &suffixes[id as usize]);
                    let expected: Vec<u32> = model
                        .range::<[u8], _>((std::ops::Bound::Excluded(&suffix[..]), std::ops::Bound::Unbounded))
                        .map(|(_, id)| *id)
                        .collect();
                    assert_eq!(rows.iter_from(at).collect::<Vec<_>>(), expected);
                    assert_eq!(rows.bytes(), rows.counted_bytes());
                    let heads: Vec<_> = rows.rest().iter().map(|chunk| chunk[0].head()).collect();
                    assert_eq!(rows.rest.as_ref().map_or(&[][..], |rest| &rest.heads), heads);
                    assert_eq!(rows.len(), model.len());
                    assert_eq!(rows.last(), model.values().next_back().copied());
                    assert_eq!(rows.only().is_some(), model.len() == 1);
                }
            }
        }
    }
}
