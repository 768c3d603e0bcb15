//! Reading many rows: pages of the store, merged with what is in memory.
//!
//! A page is exact because only the task thread changes rows and it is busy reading: a row that is in memory before the
//! store is asked stays there until the page is merged (nothing is evicted meanwhile, nor is a tombstone dropped when it is
//! acknowledged), and what memory says of a row counts, whichever state of its flush the store has seen.

use bytes::Bytes;
use parking_lot::MutexGuard;
use tokio::sync::oneshot;
use weir_store::{Page, PageLimit};

use crate::engine::{Inner, Shared};
use crate::error::{Result, closed};
use crate::flush::DeleteRows;
use crate::resident::Resident;

/// Rows that one page of the store may have.
const PAGE_ROWS: usize = 4096;
const PAGE_BYTES: usize = 256 << 10;
/// Rows of a group that are deleted before the writer waits for room again.
const SLICE: usize = 256;
/// Of a page's row, beside key and value.
const HEADER: usize = 8;
/// Rows of a page that are asked of the memory side by side.
const PREFETCHED_ROWS: usize = 64;

impl<V: Resident> Shared<V> {
    /// Asks the store for a page, without the lock, and returns with it.
    fn scan(&self, prefix: &[u8], after: Option<&[u8]>, limit: PageLimit) -> Result<(MutexGuard<'_, Inner<V>>, Page)> {
        self.begin_scan();
        let page = self.block_on(self.store.scan(prefix, after, limit));
        let mut inner = self.end_scan()?;
        let page = page?;
        inner.working_set.page_bytes = page_bytes(&page);
        Ok((inner, page))
    }

    pub fn group_page(&self, prefix: &[u8], after: Option<&[u8]>, max_bytes: usize, out: &mut Vec<u8>) -> Result<bool> {
        self.check_key(prefix)?;
        let mut after = after.map(<[u8]>::to_vec);
        loop {
            let inner = self.enter()?;
            match inner.working_set.find_group(prefix) {
                None if inner.working_set.group_is_known_empty(prefix) => return Ok(false),
                Some(group) if inner.working_set.groups[group].complete => {
                    return Ok(inner.page_in_memory(group, after.as_deref(), max_bytes, out));
                }
                _ => drop(inner),
            }
            let from = after.as_ref().map(|after| [prefix, after].concat());
            let limit = PageLimit { rows: PAGE_ROWS, bytes: max_bytes.clamp(1, PAGE_BYTES) };
            let (mut inner, page) = self.scan(prefix, from.as_deref(), limit)?;
            let start = out.len();
            // A group that takes more of the memory is read past it.
            let room = self.share() / 8;
            let merged = inner.merge(prefix, after.as_deref(), &page, max_bytes, room, out);
            inner.working_set.page_bytes = 0;
            self.settle(&mut inner);
            if out.len() > start || !merged.more {
                return Ok(merged.more);
            }
            after = merged.until;
        }
    }

    pub fn group_is_empty(&self, prefix: &[u8]) -> Result<bool> {
        self.check_key(prefix)?;
        let inner = self.enter()?;
        let set = &inner.working_set;
        let absent_rows = match set.find_group(prefix) {
            None if set.group_is_known_empty(prefix) => return Ok(true),
            None => 0,
            Some(group) => {
                if set.group_rows(group, None).any(|id| set.rows[id].value.is_some()) {
                    return Ok(false);
                }
                if set.groups[group].complete {
                    return Ok(true);
                }
                set.groups[group].rows.len()
            }
        };
        drop(inner);
        // Rows that memory says are deleted may still be in the store.
        let limit = PageLimit { rows: (1 + absent_rows).min(PAGE_ROWS), bytes: PAGE_BYTES };
        let mut after: Option<Bytes> = None;
        loop {
            let (mut inner, page) = self.scan(prefix, after.as_deref(), limit)?;
            inner.working_set.page_bytes = 0;
            let set = &mut inner.working_set;
            let group = set.find_group(prefix);
            let remains = |key: &Bytes| {
                let row = group.map(|group| set.group_row(group, &key[prefix.len()..]));
                row.is_none_or(|row| row.is_none())
            };
            if page.rows.iter().any(|(key, _)| remains(key)) {
                return Ok(false);
            }
            if page.done {
                // Evicted tombstones between pages were the store's too.
                set.complete_empty_group(prefix);
                self.settle(&mut inner);
                return Ok(true);
            }
            after = page.rows.last().map(|(key, _)| key.clone()).or(after);
        }
    }

    pub fn group_clear(&self, prefix: &[u8]) -> Result<()> {
        self.check_key(prefix)?;
        let mut complete = self.clear_in_memory(prefix)?;
        let mut after: Option<Bytes> = None;
        while !complete {
            let limit = PageLimit { rows: PAGE_ROWS, bytes: PAGE_BYTES };
            let (inner, page) = self.scan(prefix, after.as_deref(), limit)?;
            drop(inner);
            for (key, _) in &page.rows {
                self.set_in_group(prefix, &key[prefix.len()..], None)?;
            }
            self.reenter()?.working_set.page_bytes = 0;
            complete = page.done;
            after = page.rows.last().map(|(key, _)| key.clone()).or(after);
        }
        let mut inner = self.reenter()?;
        if let Some(group) = inner.working_set.find_group(prefix) {
            inner.working_set.complete_group(group);
        } else {
            inner.working_set.complete_empty_group(prefix);
        }
        self.settle(&mut inner);
        Ok(())
    }

    /// Deletes the rows of a group that are in memory, waiting when that makes too many dirty bytes. True: then the group
    /// had no others. Asked last and without a wait in between, since a wait lets rows be flushed and evicted.
    fn clear_in_memory(&self, prefix: &[u8]) -> Result<bool> {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let mut inner = self.enter_to_write()?;
            let set = &mut inner.working_set;
            let Some(group) = set.find_group(prefix) else { return Ok(set.group_is_known_empty(prefix)) };
            let suffixes: Vec<Vec<u8>> = set
                .group_rows(group, after.as_deref())
                .filter(|&id| set.rows[id].value.is_some())
                .take(SLICE)
                .map(|id| set.rows[id].key.as_slice().to_vec())
                .collect();
            if suffixes.is_empty() {
                return Ok(set.groups[group].complete);
            }
            for suffix in &suffixes {
                set.set_in_group(prefix, suffix, None);
            }
            self.wrote(&mut inner);
            after = suffixes.into_iter().next_back();
        }
    }

    pub fn row_page(&self, prefix: &[u8], after: Option<&[u8]>, max_bytes: usize, out: &mut Vec<u8>) -> Result<bool> {
        let mut after = after.map(Bytes::copy_from_slice);
        loop {
            drop(self.flush_all()?);
            let limit = PageLimit { rows: PAGE_ROWS, bytes: max_bytes.clamp(1, PAGE_BYTES) };
            let (mut inner, page) = self.scan(prefix, after.as_deref(), limit)?;
            inner.working_set.page_bytes = 0;
            for (key, value) in &page.rows {
                append(out, key, value);
            }
            if page.done || !page.rows.is_empty() {
                return Ok(!page.done);
            }
            after = page.rows.last().map(|(key, _)| key.clone()).or(after);
        }
    }

    pub fn delete_rows(&self, prefix: &[u8]) -> Result<u64> {
        let (reply, answer) = oneshot::channel();
        let mut inner = self.flush_all()?;
        inner.delete = Some(DeleteRows { prefix: Bytes::copy_from_slice(prefix), reply });
        self.kick(&mut inner);
        drop(inner);
        let deleted = self.block_on(async { answer.await.unwrap_or_else(|_| Err(closed())) });
        let mut inner = self.reenter()?;
        // If it failed, some rows are gone and some are not: memory must not know better than the store.
        inner.working_set.drop_prefix(prefix, deleted.is_ok());
        self.settle(&mut inner);
        deleted
    }
}

struct Merged {
    more: bool,
    /// The suffix up to which everything was looked at.
    until: Option<Vec<u8>>,
}

impl<V: Resident> Inner<V> {
    /// See [`crate::KeyedEngine::group_values`].
    pub fn values_in_memory(&mut self, prefix: &[u8], max_bytes: usize, out: &mut Vec<u8>) -> bool {
        let set = &self.working_set;
        let start = out.len();
        let append = |id: u32, out: &mut Vec<u8>| {
            let Some(value) = &set.rows[id].value else { return true };
            let value = value.as_bytes();
            let fits = out.len() - start + value.len() <= max_bytes;
            if fits {
                out.extend_from_slice(&value);
            }
            fits
        };
        let whole = match set.find_group(prefix) {
            None => set.group_is_known_empty(prefix),
            Some(group) => {
                let rows = &set.groups[group].rows;
                set.groups[group].complete
                    && match rows.only() {
                        Some(id) => append(id, out),
                        None => rows.chunks().all(|mut ids| {
                            set.rows.prefetch(ids.clone());
                            ids.all(|id| append(id, out))
                        }),
                    }
            }
        };
        if whole {
            self.stats.hits += 1;
        } else {
            out.truncate(start);
        }
        whole
    }

    /// A page of a complete group.
    fn page_in_memory(&self, group: u32, after: Option<&[u8]>, max_bytes: usize, out: &mut Vec<u8>) -> bool {
        let set = &self.working_set;
        let start = out.len();
        if after.is_none() {
            set.rows.prefetch(set.group_rows(group, None).take(PREFETCHED_ROWS));
        }
        for id in set.group_rows(group, after) {
            let row = &set.rows[id];
            let Some(value) = &row.value else { continue };
            if !append_within(out, start, max_bytes, row.key.as_slice(), &value.as_bytes()) {
                return true;
            }
        }
        false
    }

    /// Merges a page of the store, of the rows after `after`, with the rows in memory, which count; keeps the page's
    /// rows in memory if the group is being read from its start and fits into `room` bytes.
    fn merge(
        &mut self,
        prefix: &[u8],
        after: Option<&[u8]>,
        page: &Page,
        max_bytes: usize,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Merged {
        let set = &mut self.working_set;
        let start = out.len();
        let group = set.find_group(prefix);
        let suffix_of = |key: &Bytes| prefix.len()..key.len();
        let last = if page.done { None } else { page.rows.last().map(|(key, _)| &key[suffix_of(key)]) };
        let mut cut = false;
        let mut until: Option<Vec<u8>> = after.map(<[u8]>::to_vec);
        // How many of the page's rows were looked at.
        let mut seen = 0;
        {
            let set = &*set;
            let mut resident = group
                .map(|group| set.group_rows(group, after))
                .into_iter()
                .flatten()
                .map(|id| &set.rows[id])
                .take_while(|row| last.is_none_or(|last| row.key.as_slice() <= last))
                .peekable();
            let mut stored = page.rows.iter().map(|(key, value)| (&key[suffix_of(key)], value)).peekable();
            loop {
                let next_stored = stored.peek().map(|(suffix, _)| *suffix);
                let in_memory = resident.next_if(|row| next_stored.is_none_or(|next| row.key.as_slice() <= next));
                let (suffix, appended) = match in_memory {
                    Some(row) => {
                        let suffix = row.key.as_slice();
                        let appended = row
                            .value
                            .as_ref()
                            .is_none_or(|value| append_within(out, start, max_bytes, suffix, &value.as_bytes()));
                        if appended && next_stored == Some(suffix) {
                            stored.next();
                            seen += 1;
                        }
                        (suffix, appended)
                    }
                    None => match stored.next() {
                        Some((suffix, value)) => {
                            let appended = append_within(out, start, max_bytes, suffix, value);
                            seen += usize::from(appended);
                            (suffix, appended)
                        }
                        None => break,
                    },
                };
                if !appended {
                    cut = true;
                    break;
                }
                let until = until.get_or_insert_default();
                until.clear();
                until.extend_from_slice(suffix);
            }
        }
        let more = cut || !page.done;
        if !set.continues_load(group, after) {
            return Merged { more, until };
        }
        let read = &page.rows[..seen];
        let bytes = set.loaded_bytes(after)
            + read
                .iter()
                .map(|(key, value)| key.len() + value.len() + size_of::<crate::rows::Slot<V>>())
                .sum::<usize>();
        set.end_load();
        if bytes <= room {
            for (key, value) in read {
                set.insert_clean_in_group(prefix, &key[suffix_of(key)], Some(value), false);
            }
            if !more {
                set.complete_empty_group(prefix);
            } else if let (Some(group), Some(until)) = (set.find_group(prefix), &until) {
                set.set_load(group, until.clone(), bytes);
            }
        }
        Merged { more, until }
    }
}

fn append(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.extend_from_slice(&(key.len() as u32).to_le_bytes());
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

/// Appends a row unless it makes the page, which began at `start`, longer than `max_bytes`; the first row always fits.
fn append_within(out: &mut Vec<u8>, start: usize, max_bytes: usize, key: &[u8], value: &[u8]) -> bool {
    let size = out.len() - start;
    if size > 0 && size + HEADER + key.len() + value.len() > max_bytes {
        return false;
    }
    append(out, key, value);
    true
}

fn page_bytes(page: &Page) -> usize {
    page.rows.iter().map(|(key, value)| key.len() + value.len() + size_of::<(Bytes, Bytes)>()).sum()
}
