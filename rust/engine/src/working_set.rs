//! The rows in memory and everything that must change together with them. Calls neither block nor know of a store.

use std::hash::{BuildHasher, Hasher};

use hashbrown::DefaultHashBuilder;

use crate::absence::Absence;
use crate::batch::{Batch, head};
use crate::encoding::{element_length, sequence_suffix};
use crate::epochs::Epochs;
use crate::groups::{Groups, Position};
use crate::index::Index;
use crate::options::EngineOptions;
use crate::resident::Resident;
use crate::rows::{FLUSHING, IN_GROUP, INDEXED, MAYBE_STORED, REFERENCED, RowKey, Rows, Slot, USED};

pub(crate) const NONE: u32 = u32::MAX;

/// Bytes up to which a list's row grows. Copying what is there costs an element this much, halved, as the row grows.
const MAX_GROWN_BYTES: usize = 1024;

/// How many rows ahead the processor is told what is read next.
const PREFETCHED: usize = 12;

/// What is known about a row without asking the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// In memory, at this place.
    Row(u32),
    Absent,
    Unknown,
}

/// Counters that the working set keeps itself.
#[derive(Default)]
pub(crate) struct Counters {
    pub evictions: u64,
    pub elided_rows: u64,
    pub displaced_values: u64,
}

/// A group that is being read from its start, page by page, and kept.
struct Load {
    group: u32,
    /// All rows up to this suffix are in memory.
    until: Vec<u8>,
    bytes: usize,
}

pub(crate) struct WorkingSet<V> {
    pub rows: Rows<V>,
    /// Hash and place of the value rows.
    index: Index,
    hasher: DefaultHashBuilder,
    pub groups: Groups,
    pub epochs: Epochs<V>,
    pub absence: Absence,
    /// Heap bytes of keys, values, displaced values, group prefixes and lists of groups.
    heap_bytes: usize,
    pub dirty_rows: usize,
    /// Bytes of dirty rows with their places, and of displaced values.
    pub dirty_bytes: usize,
    /// Bytes of the batch that is being written.
    pub batch_bytes: usize,
    /// Bytes of the places that are being ordered.
    pub order_bytes: usize,
    /// Bytes of pages of the store that are being merged.
    pub page_bytes: usize,
    pub store_bytes: usize,
    /// Bytes may have changed since the engine has looked.
    pub changed: bool,
    /// The row that the running call is about, which is not evicted.
    pub held: u32,
    load: Option<Load>,
    hand: u32,
    /// The hand found nothing to evict, and nothing has become evictable since.
    exhausted: bool,
    pub counters: Counters,
    #[cfg(any(test, feature = "seeded-defects"))]
    defect: Option<crate::options::Defect>,
}

impl<V: Resident> WorkingSet<V> {
    pub fn new(options: &EngineOptions) -> Self {
        Self {
            rows: Rows::new(),
            index: Index::new(),
            hasher: DefaultHashBuilder::default(),
            groups: Groups::new(),
            epochs: Epochs::new(),
            absence: Absence::new(options.fresh, 0),
            heap_bytes: 0,
            dirty_rows: 0,
            dirty_bytes: 0,
            batch_bytes: 0,
            order_bytes: 0,
            page_bytes: 0,
            store_bytes: 0,
            changed: false,
            held: NONE,
            load: None,
            hand: 0,
            exhausted: false,
            counters: Counters::default(),
            #[cfg(any(test, feature = "seeded-defects"))]
            defect: options.defect,
        }
    }

    // ---- looking up

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// Of a row of a group whose prefix has this hash; not what [`Self::hash`] gives for the whole key.
    #[inline]
    fn group_row_hash(&self, prefix_hash: u64, suffix: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u64(prefix_hash);
        hasher.write(suffix);
        hasher.finish()
    }

    #[inline]
    fn find_in_index(&self, hash: u32, key: &[u8]) -> Option<u32> {
        let rows = &self.rows;
        self.index.find(hash, |id| !rows[id].has(IN_GROUP) && rows[id].key.as_slice() == key)
    }

    /// Finds a row of a group by the index of rows alone, which need not name it.
    ///
    /// Of a map with few entries, one of many, nothing is in the processor's cache: the lines of both indexes are asked for
    /// at once, then those of the row and of the group's prefix. By the group and the order of its rows it is four, one
    /// after the other.
    #[inline]
    fn find_indexed(&self, prefix_hash: u64, row_hash: u64, prefix: &[u8], suffix: &[u8]) -> Option<u32> {
        self.index.prefetch(fold(row_hash));
        self.groups.prefetch(fold(prefix_hash));
        let (rows, groups) = (&self.rows, &self.groups);
        self.index.find(fold(row_hash), |id| {
            let row = &rows[id];
            row.has(IN_GROUP) && row.key.as_slice() == suffix && groups[row.owner].prefix.as_slice() == prefix
        })
    }

    /// Has the index of rows name a row of a group.
    fn add_to_index(&mut self, id: u32, row_hash: u64) {
        let slot = &mut self.rows[id];
        if !slot.has(INDEXED) {
            slot.flags |= INDEXED;
            self.index.insert(fold(row_hash), id);
            self.changed = true;
        }
    }

    /// What the index of rows has a row under.
    fn index_hash(&self, id: u32) -> u32 {
        let slot = &self.rows[id];
        if !slot.has(IN_GROUP) {
            return slot.owner;
        }
        fold(self.group_row_hash(self.hash(self.groups[slot.owner].prefix.as_slice()), slot.key.as_slice()))
    }

    #[inline]
    pub fn find(&self, key: &[u8]) -> Found {
        let hash = self.hash(key);
        match self.find_in_index(fold(hash), key) {
            Some(id) => Found::Row(id),
            None if self.absence.is_known(hash) => Found::Absent,
            None => Found::Unknown,
        }
    }

    #[inline]
    pub fn find_group(&self, prefix: &[u8]) -> Option<u32> {
        self.groups.find(fold(self.hash(prefix)), prefix)
    }

    /// Whether a group that is not in memory has no rows.
    pub fn group_is_known_empty(&self, prefix: &[u8]) -> bool {
        self.absence.is_known(group_hash(self.hash(prefix)))
    }

    #[inline]
    pub fn find_in_group(&mut self, prefix: &[u8], suffix: &[u8]) -> Found {
        let hash = self.hash(prefix);
        let row_hash = self.group_row_hash(hash, suffix);
        if let Some(id) = self.find_indexed(hash, row_hash, prefix, suffix) {
            return Found::Row(id);
        }
        let Some(group) = self.groups.find(fold(hash), prefix) else {
            let absent = self.absence.is_known(group_hash(hash)) || self.absence.is_known(row_hash);
            return if absent { Found::Absent } else { Found::Unknown };
        };
        match self.find_row(group, suffix) {
            Ok((_, id)) => {
                self.add_to_index(id, row_hash);
                Found::Row(id)
            }
            Err(_) if self.groups[group].complete => {
                self.groups[group].referenced = true;
                Found::Absent
            }
            Err(_) if self.absence.is_known(row_hash) => Found::Absent,
            Err(_) => Found::Unknown,
        }
    }

    #[inline]
    fn find_row(&self, group: u32, suffix: &[u8]) -> Result<(Position, u32), Position> {
        self.groups[group].rows.find(suffix, |id| self.rows[id].key.as_slice())
    }

    #[inline]
    pub fn touch(&mut self, id: u32) -> Option<&V> {
        let slot = &mut self.rows[id];
        slot.flags |= REFERENCED;
        slot.value.as_ref()
    }

    /// What memory says of a row of a group: `Some(None)` if it is known to be absent.
    pub fn group_row(&self, group: u32, suffix: &[u8]) -> Option<Option<&V>> {
        self.find_row(group, suffix).ok().map(|(_, id)| self.rows[id].value.as_ref())
    }

    /// The places of a group's rows in the order of their suffixes, those after `after` only.
    pub fn group_rows(&self, group: u32, after: Option<&[u8]>) -> impl Iterator<Item = u32> + '_ {
        let rows = &self.groups[group].rows;
        let from = match after {
            None => rows.start(),
            Some(suffix) => rows.after(suffix, |id| self.rows[id].key.as_slice()),
        };
        rows.iter_from(from)
    }

    // ---- changing

    /// Writes a value row; `None` deletes it.
    #[inline]
    pub fn set(&mut self, key: &[u8], value: Option<&[u8]>) {
        let hash = self.hash(key);
        if let Some(id) = self.find_in_index(fold(hash), key) {
            return self.write(id, value);
        }
        let absent = self.absence.is_known(hash);
        if absent && value.is_none() {
            return;
        }
        let id = self.insert(RowKey::new(key), value, fold(hash), if absent { 0 } else { MAYBE_STORED });
        self.index.insert(fold(hash), id);
        self.mark_dirty(id);
    }

    /// Writes a row of a group; `None` deletes it.
    #[inline]
    pub fn set_in_group(&mut self, prefix: &[u8], suffix: &[u8], value: Option<&[u8]>) {
        let hash = self.hash(prefix);
        let row_hash = self.group_row_hash(hash, suffix);
        if let Some(id) = self.find_indexed(hash, row_hash, prefix, suffix) {
            return self.write(id, value);
        }
        let found = self.groups.find(fold(hash), prefix);
        let at = match found.map(|group| self.find_row(group, suffix)) {
            Some(Ok((_, id))) => {
                self.add_to_index(id, row_hash);
                return self.write(id, value);
            }
            Some(Err(at)) => Some(at),
            None => None,
        };
        let absent = match found {
            Some(group) => self.groups[group].complete,
            None => self.absence.is_known(group_hash(hash)),
        } || self.absence.is_known(row_hash);
        if absent && value.is_none() {
            return;
        }
        let group = found.unwrap_or_else(|| self.insert_group(prefix));
        let at = at.unwrap_or_else(|| self.groups[group].rows.start());
        let flags = IN_GROUP | if absent { 0 } else { MAYBE_STORED };
        let id = self.insert(RowKey::new(suffix), value, group, flags);
        self.insert_in_group(group, at, suffix, id);
        self.add_to_index(id, row_hash);
        self.mark_dirty(id);
    }

    /// Appends an element to a list: to the row that was begun last if the running epoch has written that and nobody is
    /// about to flush it, so that no row that was flushed is written again; else as a new row of this sequence number, which
    /// is greater than any before. True: the number is taken.
    #[inline]
    pub fn append(&mut self, prefix: &[u8], sequence: u64, element: &[u8]) -> bool {
        let found = self.find_group(prefix);
        if let Some(group) = found
            && let Some(last) = self.groups[group].rows.last()
            && let Some(begun) = self.groups[group].begun
            && self.rows[last].key.as_slice() == sequence_suffix(begun)
            && self.extend(last, element)
        {
            return false;
        }
        let group = found.unwrap_or_else(|| self.insert_group(prefix));
        self.groups[group].begun = Some(sequence);
        let suffix = sequence_suffix(sequence);
        let length = element_length(element);
        let at = match self.find_row(group, &suffix) {
            // Somebody has asked for it before it was there.
            Ok((_, id)) => {
                self.write(id, Some(&[&length, element].concat()));
                return true;
            }
            Err(at) => at,
        };
        let id = self.insert(RowKey::new(&suffix), Some(&length), group, IN_GROUP);
        let slot = &mut self.rows[id];
        if let Some(value) = &mut slot.value {
            let before = value.heap_bytes();
            value.append([element, &[]]);
            self.heap_bytes = self.heap_bytes + value.heap_bytes() - before;
        }
        self.insert_in_group(group, at, &suffix, id);
        self.mark_dirty(id);
        true
    }

    /// Appends an element to a row; false: that is not to be written in the running epoch, or would become too long.
    #[inline]
    fn extend(&mut self, id: u32, element: &[u8]) -> bool {
        let slot = &mut self.rows[id];
        if slot.epoch != self.epochs.current || slot.has(FLUSHING) {
            return false;
        }
        let Some(value) = &mut slot.value else { return false };
        let length = element_length(element);
        if value.as_bytes().len() + length.len() + element.len() > MAX_GROWN_BYTES {
            return false;
        }
        let before = value.heap_bytes();
        value.append([&length, element]);
        let after = value.heap_bytes();
        slot.flags |= REFERENCED;
        self.heap_bytes = self.heap_bytes + after - before;
        self.dirty_bytes = self.dirty_bytes + after - before;
        self.changed = true;
        true
    }

    /// Keeps what the store said about a value row. Returns its place.
    pub fn insert_clean(&mut self, key: &[u8], value: Option<&[u8]>) -> u32 {
        let hash = fold(self.hash(key));
        if let Some(id) = self.find_in_index(hash, key) {
            return id;
        }
        let stored = if value.is_some() { MAYBE_STORED } else { 0 };
        let id = self.insert(RowKey::new(key), value, hash, REFERENCED | stored);
        self.index.insert(hash, id);
        self.exhausted = false;
        id
    }

    /// Keeps what the store said about a row of a group. Returns its place.
    pub fn insert_clean_in_group(&mut self, prefix: &[u8], suffix: &[u8], value: Option<&[u8]>, hot: bool) -> u32 {
        let group = self.find_group(prefix).unwrap_or_else(|| self.insert_group(prefix));
        let at = match self.find_row(group, suffix) {
            Ok((_, id)) => return id,
            Err(at) => at,
        };
        let flags = IN_GROUP | if value.is_some() { MAYBE_STORED } else { 0 } | if hot { REFERENCED } else { 0 };
        let id = self.insert(RowKey::new(suffix), value, group, flags);
        self.insert_in_group(group, at, suffix, id);
        self.exhausted = false;
        id
    }

    fn insert(&mut self, key: RowKey, value: Option<&[u8]>, owner: u32, flags: u8) -> u32 {
        self.changed = true;
        let id = self.rows.alloc();
        let slot = &mut self.rows[id];
        slot.key = key;
        slot.value = value.map(V::from_bytes);
        slot.owner = owner;
        slot.epoch = 0;
        slot.flags = USED | flags;
        self.heap_bytes += slot.heap_bytes();
        id
    }

    fn insert_group(&mut self, prefix: &[u8]) -> u32 {
        let hash = self.hash(prefix);
        let complete = self.absence.is_known(group_hash(hash));
        let id = self.groups.insert(fold(hash), prefix, complete);
        self.heap_bytes += self.groups[id].prefix.heap_bytes();
        self.groups.empty += usize::from(complete);
        id
    }

    fn insert_in_group(&mut self, group: u32, at: Position, suffix: &[u8], id: u32) {
        let group = &mut self.groups[group];
        self.heap_bytes -= group.rows.bytes();
        let was_empty = group.rows.is_empty();
        group.rows.insert(at, suffix, id);
        self.heap_bytes += group.rows.bytes();
        self.groups.empty -= usize::from(was_empty && self.groups[self.rows[id].owner].complete);
    }

    /// A clean row becomes dirty in the running epoch.
    #[inline]
    fn mark_dirty(&mut self, id: u32) {
        let epoch = self.epochs.current;
        let slot = &mut self.rows[id];
        debug_assert_eq!(slot.epoch, 0);
        slot.epoch = epoch;
        self.dirty_rows += 1;
        self.dirty_bytes += size_of::<Slot<V>>() + slot.heap_bytes();
        if slot.listed != epoch {
            slot.listed = epoch;
            self.epochs.list(id);
        }
    }

    /// Writes a row that is in memory; `None` deletes it.
    #[inline]
    fn write(&mut self, id: u32, value: Option<&[u8]>) {
        let epoch = self.epochs.current;
        let slot = &mut self.rows[id];
        slot.flags |= REFERENCED;
        let Some(value) = value else {
            return self.erase(id);
        };
        if slot.epoch != epoch || slot.has(FLUSHING) {
            self.begin_write(id);
        }
        let slot = &mut self.rows[id];
        let before = slot.value_bytes();
        match &mut slot.value {
            Some(resident) => resident.assign(value),
            absent => *absent = Some(V::from_bytes(value)),
        }
        let after = slot.value_bytes();
        if after != before {
            self.heap_bytes = self.heap_bytes + after - before;
            self.dirty_bytes = self.dirty_bytes + after - before;
            self.changed = true;
        }
    }

    fn erase(&mut self, id: u32) {
        let epoch = self.epochs.current;
        let slot = &mut self.rows[id];
        if slot.value.is_none() {
            // Clean and known to be absent, or a tombstone on its way; the row stays absent.
            return;
        }
        self.changed = true;
        let value_bytes = slot.value_bytes();
        if slot.epoch == epoch && !slot.has(FLUSHING | MAYBE_STORED) {
            // The store has never seen this row and need not see its tombstone.
            self.dirty_rows -= 1;
            self.dirty_bytes -= size_of::<Slot<V>>() + slot.heap_bytes();
            slot.value = None;
            slot.epoch = 0;
            self.heap_bytes -= value_bytes;
            self.counters.elided_rows += 1;
            self.exhausted = false;
            self.drop_if_superfluous(id);
            return;
        }
        if slot.epoch != epoch || slot.has(FLUSHING) {
            self.begin_write(id);
        }
        let slot = &mut self.rows[id];
        let value_bytes = slot.value_bytes();
        slot.value = None;
        self.heap_bytes -= value_bytes;
        self.dirty_bytes -= value_bytes;
    }

    /// Readies a row for a value of the running epoch: the one that it holds is kept for a frozen epoch that still
    /// needs it.
    fn begin_write(&mut self, id: u32) {
        self.changed = true;
        let epoch = self.epochs.current;
        let slot = &mut self.rows[id];
        if slot.epoch == 0 {
            return self.mark_dirty(id);
        }
        if slot.has(FLUSHING) {
            // The batch has the old value, and gives it back if the store refuses it.
            slot.flags &= !FLUSHING;
        } else {
            slot.flags |= MAYBE_STORED;
            let old_epoch = slot.epoch;
            #[cfg(any(test, feature = "seeded-defects"))]
            let keep = self.defect != Some(crate::options::Defect::FreezeCopiesNothing);
            #[cfg(not(any(test, feature = "seeded-defects")))]
            let keep = true;
            if keep {
                let old = self.rows[id].value.take();
                self.epochs.displace(old_epoch, id, old);
                self.counters.displaced_values += 1;
            }
        }
        let slot = &mut self.rows[id];
        slot.epoch = epoch;
        if slot.listed != epoch {
            slot.listed = epoch;
            self.epochs.list(id);
        }
    }

    // ---- dropping

    /// Drops a clean row if its absence is known without it.
    fn drop_if_superfluous(&mut self, id: u32) {
        let slot = &self.rows[id];
        debug_assert!(slot.epoch == 0 && slot.value.is_none());
        let superfluous = if slot.has(IN_GROUP) {
            let group = &self.groups[slot.owner];
            group.complete || {
                let prefix_hash = self.hash(group.prefix.as_slice());
                self.absence.is_known(self.group_row_hash(prefix_hash, slot.key.as_slice()))
            }
        } else {
            self.absence.is_known(self.hash(slot.key.as_slice()))
        };
        if superfluous {
            self.drop_row(id);
        }
    }

    /// Takes a clean row out of memory.
    fn drop_row(&mut self, id: u32) {
        let slot = &mut self.rows[id];
        debug_assert!(slot.epoch == 0 && slot.has(USED));
        self.heap_bytes -= slot.heap_bytes();
        let owner = slot.owner;
        let in_group = slot.has(IN_GROUP);
        if !in_group || slot.has(INDEXED) {
            self.index.remove(self.index_hash(id), id);
        }
        if in_group && let Ok((at, _)) = self.find_row(owner, self.rows[id].key.as_slice()) {
            let group = &mut self.groups[owner];
            self.heap_bytes -= group.rows.bytes();
            group.rows.remove(at);
            self.heap_bytes += group.rows.bytes();
        }
        let slot = &mut self.rows[id];
        slot.key = RowKey::EMPTY;
        slot.value = None;
        slot.flags = 0;
        self.rows.release(id);
        if in_group && self.groups[owner].rows.is_empty() {
            self.groups.empty += usize::from(self.groups[owner].complete);
            self.drop_group_if_superfluous(owner);
        }
    }

    fn drop_group_if_superfluous(&mut self, id: u32) {
        let group = &self.groups[id];
        if group.rows.is_empty() && (!group.complete || self.group_is_known_empty(group.prefix.as_slice())) {
            self.drop_group(id);
        }
    }

    /// Forgets a group without rows.
    fn drop_group(&mut self, id: u32) {
        if self.load.as_ref().is_some_and(|load| load.group == id) {
            self.load = None;
        }
        let group = &self.groups[id];
        self.groups.empty -= usize::from(group.complete);
        self.heap_bytes -= self.groups[id].prefix.heap_bytes() + self.groups[id].rows.bytes();
        self.groups.remove(id);
    }

    /// A row that is not in memory does not exist, from now on. Nothing but tombstones may be missing in it.
    pub fn complete_group(&mut self, id: u32) {
        let group = &mut self.groups[id];
        group.referenced = true;
        if !std::mem::replace(&mut group.complete, true) {
            self.groups.empty += usize::from(self.groups[id].rows.is_empty());
        }
        let superfluous: Vec<u32> = self
            .group_rows(id, None)
            .filter(|&row| self.rows[row].epoch == 0 && self.rows[row].value.is_none())
            .collect();
        if superfluous.is_empty() {
            self.drop_group_if_superfluous(id);
        }
        for row in superfluous {
            self.drop_row(row);
        }
    }

    /// The store was found to have nothing of a group, nor has the memory.
    pub fn complete_empty_group(&mut self, prefix: &[u8]) {
        let id = self.find_group(prefix).unwrap_or_else(|| self.insert_group(prefix));
        self.complete_group(id);
    }

    /// Evicts clean rows by the clock until the resident bytes are at most `target`, or nothing is left to evict.
    pub fn evict(&mut self, target: usize) {
        if self.exhausted {
            return;
        }
        if self.groups.empty > 1024 + self.rows.used() / 4 {
            self.evict_empty_groups(target, 4096);
        }
        // Two rounds: the first may only take the marks off.
        let mut steps = 2 * self.rows.end() as usize + 2;
        let mut over = self.resident_bytes() > target;
        while over {
            if steps == 0 || self.rows.used() == 0 {
                self.trim();
                self.evict_empty_groups(target, usize::MAX);
                self.exhausted = self.groups.empty == 0;
                return;
            }
            steps -= 1;
            if self.hand >= self.rows.end() {
                self.hand = 0;
            }
            let id = self.hand;
            self.hand += 1;
            let slot = &mut self.rows[id];
            if !slot.has(USED) || slot.epoch != 0 || id == self.held {
                continue;
            }
            if slot.has(REFERENCED) {
                slot.flags &= !REFERENCED;
                continue;
            }
            self.evict_row(id);
            if self.rows.unused() > 256 + self.rows.used() / 16 {
                self.trim();
            }
            over = self.resident_bytes() > target;
        }
    }

    fn evict_row(&mut self, id: u32) {
        self.counters.evictions += 1;
        let slot = &self.rows[id];
        if slot.value.is_some() {
            if slot.has(IN_GROUP) {
                let owner = slot.owner;
                let group = &self.groups[owner];
                let prefix = group.prefix.as_slice();
                let hash = self.hash(prefix);
                let row_hash = self.group_row_hash(hash, slot.key.as_slice());
                self.absence.evicted(row_hash);
                self.absence.evicted(group_hash(hash));
                self.groups[owner].complete = false;
                if self.load.as_ref().is_some_and(|load| load.group == owner) {
                    self.load = None;
                }
            } else {
                let hash = self.hash(slot.key.as_slice());
                self.absence.evicted(hash);
            }
        }
        self.drop_row(id);
    }

    fn evict_empty_groups(&mut self, target: usize, steps: usize) {
        let steps = steps.min(2 * self.groups.len() + 64);
        while self.resident_bytes() > target {
            match self.groups.next_empty(steps) {
                Some(id) => self.drop_group(id),
                None => break,
            }
        }
    }

    /// Gives chunks of the slab back by moving clean rows of the last one into free places; a few at a time, since the
    /// task thread waits.
    fn trim(&mut self) {
        for _ in 0..16 {
            if self.rows.unused() <= 128 + self.rows.used() / 32 {
                break;
            }
            if self.rows.pop_chunk() {
                continue;
            }
            for id in self.rows.last_chunk() {
                let slot = &self.rows[id];
                if slot.has(USED) && (slot.epoch != 0 || id == self.held) {
                    return;
                }
            }
            for id in self.rows.last_chunk() {
                if self.rows[id].has(USED) {
                    self.relocate(id);
                }
            }
            if !self.rows.pop_chunk() {
                break;
            }
        }
        self.index.shrink();
    }

    /// Moves a clean row to the lowest free place.
    fn relocate(&mut self, from: u32) {
        let to = self.rows.alloc();
        debug_assert!(to < from);
        if !self.rows[from].has(IN_GROUP) || self.rows[from].has(INDEXED) {
            self.index.rename(self.index_hash(from), from, to);
        }
        let slot = &mut self.rows[from];
        let (key, value) = (std::mem::replace(&mut slot.key, RowKey::EMPTY), slot.value.take());
        let (owner, flags) = (slot.owner, std::mem::take(&mut slot.flags));
        let in_group = flags & IN_GROUP != 0;
        if in_group {
            // The order is looked up through the old place, which therefore gets its key back for a moment.
            self.rows[from].key = key;
            let found = self.find_row(owner, self.rows[from].key.as_slice());
            if let Ok((at, _)) = found {
                self.groups[owner].rows.rename(at, to);
            }
            let key = std::mem::replace(&mut self.rows[from].key, RowKey::EMPTY);
            self.rows[to].key = key;
        } else {
            self.rows[to].key = key;
        }
        let slot = &mut self.rows[to];
        slot.value = value;
        slot.owner = owner;
        slot.epoch = 0;
        slot.flags = flags;
        self.rows.release(from);
    }

    /// Bytes of everything that is in memory.
    #[inline]
    pub fn resident_bytes(&self) -> usize {
        self.rows.bytes()
            + self.index.bytes()
            + self.groups.bytes()
            + self.epochs.bytes()
            + self.absence.bytes()
            + self.heap_bytes
            + self.batch_bytes
            + self.order_bytes
            + self.page_bytes
            + self.store_bytes
    }

    /// Bytes that the store has not acknowledged.
    #[inline]
    pub fn unflushed_bytes(&self) -> usize {
        self.dirty_bytes + self.batch_bytes
    }

    // ---- flushing

    /// Copies rows of the batch's epoch into it, at most `slice` of them. True: the batch is full, or nothing is left.
    pub fn collect(&mut self, batch: &mut Batch, slice: usize, max_rows: usize, max_bytes: usize) -> bool {
        for _ in 0..slice {
            if batch.entries.len() >= max_rows || batch.bytes() >= max_bytes {
                return true;
            }
            let Some(id) = self.epochs.pop(batch.epoch) else {
                return true;
            };
            if let Some(later) = self.epochs.peek(batch.epoch, PREFETCHED) {
                self.rows.prefetch(Some(later).into_iter().filter(|&id| id < self.rows.end()));
            }
            self.take(batch, id);
        }
        false
    }

    /// The first bytes of the keys of the rows at these places, which order them well enough; zero for free places.
    pub fn heads(&self, places: &[u32]) -> impl Iterator<Item = u128> {
        self.rows.prefetch(places.iter().copied().filter(|&id| id < self.rows.end()));
        places.iter().map(|&id| {
            if !self.rows.is_used(id) {
                return 0;
            }
            let slot = &self.rows[id];
            let key = slot.key.as_slice();
            if slot.has(IN_GROUP) { head(self.groups[slot.owner].prefix.as_slice(), key) } else { head(key, &[]) }
        })
    }

    fn take(&mut self, batch: &mut Batch, id: u32) {
        let epoch = batch.epoch;
        if !self.rows.is_used(id) {
            if id < self.rows.end() && self.rows[id].listed == epoch {
                self.rows[id].listed = 0;
            }
            return;
        }
        if self.rows[id].listed == epoch {
            self.rows[id].listed = 0;
        }
        let old = self.epochs.take_displaced(epoch, id);
        let slot = &mut self.rows[id];
        let displaced = old.is_some();
        if !displaced {
            let due = slot.epoch == epoch && !slot.has(FLUSHING);
            #[cfg(any(test, feature = "seeded-defects"))]
            let due = due
                || (self.defect == Some(crate::options::Defect::FreezeCopiesNothing)
                    && slot.epoch > epoch
                    && !slot.has(FLUSHING));
            if !due {
                return;
            }
            if slot.epoch == epoch {
                slot.flags |= FLUSHING;
            }
            slot.flags |= MAYBE_STORED;
        }
        let slot = &self.rows[id];
        let prefix = if slot.has(IN_GROUP) { self.groups[slot.owner].prefix.as_slice() } else { &[] };
        let value = match &old {
            Some(old) => old.as_ref(),
            None => slot.value.as_ref(),
        };
        batch.push(id, displaced, prefix, slot.key.as_slice(), value.map(V::as_bytes).as_deref());
        #[cfg(any(test, feature = "seeded-defects"))]
        if self.defect == Some(crate::options::Defect::DroppedTombstone)
            && value.is_none()
            && let Some(entry) = batch.entries.last_mut()
        {
            entry.omitted = true;
        }
        if let Some(Some(old)) = old {
            self.heap_bytes -= old.heap_bytes();
            self.dirty_bytes -= old.heap_bytes();
        }
    }

    /// The store has these entries of a batch, a slice of them at a time, between which the task thread may evict: rows
    /// that were not overwritten meanwhile are clean. `keep`: the task thread
    /// is about to merge a page that may be older than the batch, and needs the tombstones.
    pub fn acknowledge(&mut self, entries: &[crate::batch::Entry], keep: bool) {
        for (i, entry) in entries.iter().enumerate() {
            let end = self.rows.end();
            self.rows.prefetch(entries.get(i + PREFETCHED).map(|later| later.place).into_iter().filter(|&id| id < end));
            // A row that was taken twice is clean since its first entry, and may have been evicted with its chunk.
            if entry.displaced || entry.place >= end {
                continue;
            }
            let slot = &mut self.rows[entry.place];
            if !slot.has(FLUSHING) {
                continue;
            }
            slot.flags &= !FLUSHING;
            slot.epoch = 0;
            self.dirty_rows -= 1;
            self.dirty_bytes -= size_of::<Slot<V>>() + slot.heap_bytes();
            if slot.value.is_none() {
                slot.flags &= !MAYBE_STORED;
                if !keep {
                    self.drop_if_superfluous(entry.place);
                }
            }
            self.exhausted = false;
        }
    }

    /// The store has refused a batch, or perhaps taken a part of it: all of it is dirty again, in its epoch.
    pub fn give_back(&mut self, batch: &Batch) {
        // The last taken of a row is the newest of its epoch.
        for entry in batch.entries.iter().rev() {
            let id = entry.place;
            let slot = &mut self.rows[id];
            if !entry.displaced && slot.has(FLUSHING) {
                slot.flags &= !FLUSHING;
                if slot.listed < batch.epoch {
                    slot.listed = batch.epoch;
                }
                self.epochs.unpop(batch.epoch, id);
            } else if slot.epoch != batch.epoch && !self.epochs.is_displaced(batch.epoch, id) {
                let old = batch.value(entry).map(V::from_bytes);
                let bytes = old.as_ref().map_or(0, V::heap_bytes);
                if self.epochs.displace(batch.epoch, id, old) {
                    self.heap_bytes += bytes;
                    self.dirty_bytes += bytes;
                    self.epochs.unpop(batch.epoch, id);
                }
            }
        }
    }

    // ---- reading groups into memory

    /// Whether a page of `group` that starts after `after` continues what is in memory from the group's start.
    pub fn continues_load(&self, group: Option<u32>, after: Option<&[u8]>) -> bool {
        match after {
            None => true,
            Some(after) => self.load.as_ref().is_some_and(|load| Some(load.group) == group && load.until == after),
        }
    }

    /// Bytes kept so far of the load that a page after `after` continues.
    pub fn loaded_bytes(&self, after: Option<&[u8]>) -> usize {
        if after.is_some() { self.load.as_ref().map_or(0, |load| load.bytes) } else { 0 }
    }

    pub fn set_load(&mut self, group: u32, until: Vec<u8>, bytes: usize) {
        self.load = Some(Load { group, until, bytes });
    }

    pub fn end_load(&mut self) {
        self.load = None;
    }

    // ---- rows by prefix

    /// Takes every row under `prefix` out of memory, all of them clean. `deleted`: the store no longer has them;
    /// else what it has of them is unknown.
    pub fn drop_prefix(&mut self, prefix: &[u8], deleted: bool) {
        debug_assert_eq!(self.dirty_rows, 0);
        self.load = None;
        let groups: Vec<u32> = self
            .groups
            .ids()
            .filter(|&id| {
                let group = self.groups[id].prefix.as_slice();
                group.starts_with(prefix) || prefix.starts_with(group)
            })
            .collect();
        for group in groups {
            let shared = self.groups[group].prefix.as_slice();
            let rest = prefix.get(shared.len()..).unwrap_or(&[]).to_vec();
            let rows: Vec<u32> =
                self.group_rows(group, None).filter(|&id| self.rows[id].key.as_slice().starts_with(&rest)).collect();
            for id in rows {
                if deleted { self.drop_row(id) } else { self.evict_row(id) }
            }
            if !deleted && self.groups.is_used(group) {
                if self.groups[group].rows.is_empty() {
                    self.drop_group(group);
                } else {
                    self.groups[group].complete = false;
                }
            }
        }
        for id in 0..self.rows.end() {
            let slot = &self.rows[id];
            if slot.has(USED) && !slot.has(IN_GROUP) && slot.key.as_slice().starts_with(prefix) {
                if deleted { self.drop_row(id) } else { self.evict_row(id) }
            }
        }
        self.exhausted = false;
        self.trim();
    }
}

#[inline]
fn fold(hash: u64) -> u32 {
    (hash ^ hash >> 32) as u32
}

/// The hash that stands for a group as a whole in the filter.
#[inline]
fn group_hash(prefix_hash: u64) -> u64 {
    prefix_hash ^ 0x5851_F42D_4C95_7F2D
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use weir_store::KeyGroupRange;

    use super::*;
    use crate::groups::spread;
    use crate::resident::SmallBytes;

    fn working_set() -> WorkingSet<SmallBytes> {
        let mut options = EngineOptions::new(KeyGroupRange::new(0, 127));
        options.fresh = true;
        WorkingSet::new(&options)
    }

    #[test]
    fn consecutive_big_endian_keys_do_not_cluster() {
        const KEYS: u64 = 1 << 17;
        for shift in [0, 8, 16, 40] {
            let set = working_set();
            let hashes: Vec<u64> = (0..KEYS)
                .map(|i| {
                    let mut key = vec![0, (i % 128) as u8, 1, 2, 3, 4, 1];
                    key.extend((i << shift).to_be_bytes());
                    spread(fold(set.hash(&key)))
                })
                .collect();
            // A random function hits 1 - 1/e of the places, which tables take from the high bits.
            let places: HashSet<u64> = hashes.iter().map(|hash| hash >> (64 - 17)).collect();
            let share = places.len() as f64 / KEYS as f64;
            assert!((0.62..0.65).contains(&share), "{share} of the places with shift {shift}");
        }
    }

    #[test]
    fn rows_move_when_chunks_are_given_back() {
        let mut set = working_set();
        let prefix = [0, 1, 0, 0, 0, 2];
        for i in 0..4000_u32 {
            set.set(&i.to_be_bytes(), Some(&i.to_le_bytes()));
            set.set_in_group(&prefix, &i.to_be_bytes(), Some(&i.to_le_bytes()));
        }
        let mut batch = Batch::new(1);
        assert!(set.collect(&mut batch, usize::MAX, usize::MAX, usize::MAX));
        set.acknowledge(&batch.entries, false);
        assert_eq!((set.dirty_rows, set.dirty_bytes), (0, 0));
        set.absence.max_bytes = usize::MAX;
        let full = set.resident_bytes();
        set.evict(full / 3);
        assert!(set.resident_bytes() <= full / 3 && set.rows.used() > 1500, "{}", set.rows.used());
        let mut found = 0;
        for i in 0..4000_u32 {
            for group in [false, true] {
                let row = if group { set.find_in_group(&prefix, &i.to_be_bytes()) } else { set.find(&i.to_be_bytes()) };
                match row {
                    Found::Row(id) => {
                        found += 1;
                        assert_eq!(set.touch(id).map(SmallBytes::as_bytes).as_deref(), Some(&i.to_le_bytes()[..]));
                    }
                    Found::Unknown => {}
                    Found::Absent => panic!("row {i} is not absent"),
                }
            }
        }
        assert_eq!(found, set.rows.used());
        assert_eq!(set.index.len(), found);
        let group = set.find_group(&prefix).unwrap();
        assert!(set.group_rows(group, None).is_sorted_by_key(|id| set.rows[id].key.as_slice()));
        set.evict(0);
        assert_eq!((set.rows.used(), set.groups.len(), set.heap_bytes), (0, 0, 0));
        assert_eq!(set.index.len(), 0);
        assert!(set.resident_bytes() < full / 10 + set.absence.bytes(), "{}", set.resident_bytes());
    }
    #[test]
    fn a_row_of_a_group_is_indexed_when_it_is_asked_for() {
        let mut set = working_set();
        // The keys of two rows are equal but for where the prefix ends, and one is a value row's.
        let rows: [(&[u8], &[u8]); 3] = [(b"ab", b"c"), (b"a", b"bc"), (b"b", b"c")];
        for (prefix, suffix) in rows {
            set.insert_clean_in_group(prefix, suffix, Some(&[prefix, b"/", suffix].concat()), false);
        }
        set.set(b"abc", Some(b"value"));
        assert_eq!(set.index.len(), 1);
        for (at, indexed) in [(0, 2), (1, 3), (2, 4), (0, 4), (1, 4), (2, 4)] {
            let (prefix, suffix) = rows[at];
            let Found::Row(id) = set.find_in_group(prefix, suffix) else { panic!("{prefix:?} {suffix:?} is there") };
            let expected = [prefix, b"/", suffix].concat();
            assert_eq!(set.touch(id).map(SmallBytes::as_bytes).as_deref(), Some(expected.as_slice()));
            assert_eq!(set.index.len(), indexed);
        }
        assert!(set.find_in_group(b"ab", b"d") == Found::Absent && set.find_in_group(b"abc", b"") == Found::Absent);
        let found = set.find(b"abc");
        assert!(
            matches!(found, Found::Row(id) if set.rows[id].value.as_ref().is_some_and(|v| *v.as_bytes() == *b"value"))
        );
        for (prefix, suffix) in rows {
            set.set_in_group(prefix, suffix, None);
        }
        set.set(b"abc", None);
        let mut batch = Batch::new(1);
        assert!(set.collect(&mut batch, usize::MAX, usize::MAX, usize::MAX));
        assert_eq!(batch.entries.len(), 3);
        set.acknowledge(&batch.entries, false);
        set.evict(0);
        assert_eq!((set.rows.used(), set.index.len()), (0, 0));
        for (prefix, suffix) in rows {
            assert!(set.find_in_group(prefix, suffix) == Found::Absent);
        }
    }

    #[test]
    fn a_row_that_a_batch_has_twice_may_be_evicted_in_between() {
        let mut set = working_set();
        set.absence.max_bytes = usize::MAX;
        let mut batch = Batch::new(1);
        for round in 0..2_u32 {
            for i in 0..1000_u32 {
                set.set(&i.to_be_bytes(), Some(&(i + round).to_le_bytes()));
            }
            assert!(set.collect(&mut batch, usize::MAX, usize::MAX, usize::MAX));
        }
        assert_eq!(batch.entries.len(), 2000);
        set.acknowledge(&batch.entries[..1000], false);
        set.evict(0);
        assert!(set.rows.used() == 0 && set.rows.end() < 500, "{}", set.rows.end());
        set.set(&7_u32.to_be_bytes(), Some(b"of the next epoch"));
        set.acknowledge(&batch.entries[1000..], false);
        assert_eq!(set.dirty_rows, 1);
        match set.find(&7_u32.to_be_bytes()) {
            Found::Row(id) => {
                assert_eq!(set.touch(id).map(SmallBytes::as_bytes).as_deref(), Some(&b"of the next epoch"[..]))
            }
            _ => panic!("row 7 has been written"),
        }
    }
}
