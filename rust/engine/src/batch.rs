//! Rows on their way to the store.

use bytes::Bytes;
use weir_store::Row;

/// Copies of rows of one epoch, made under the engine's lock, sorted and written without it, and kept until the store
/// has acknowledged them: until then they are what the barrier's version needs of rows that were overwritten meanwhile.
pub(crate) struct Batch {
    pub epoch: u32,
    pub entries: Vec<Entry>,
    buffer: Vec<u8>,
    /// What the buffer held, once the batch is sealed.
    sealed: Bytes,
}

pub(crate) struct Entry {
    pub place: u32,
    /// Taken from the displaced values; the row itself holds what a later epoch wrote.
    pub displaced: bool,
    /// Acknowledged like the others, but not written (a seeded defect).
    pub omitted: bool,
    key: (usize, usize),
    value: Option<(usize, usize)>,
}

impl Batch {
    pub fn new(epoch: u32) -> Self {
        Self { epoch, entries: Vec::new(), buffer: Vec::new(), sealed: Bytes::new() }
    }

    /// Adds a row whose key is `prefix` and `suffix`.
    pub fn push(&mut self, place: u32, displaced: bool, prefix: &[u8], suffix: &[u8], value: Option<&[u8]>) {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(prefix);
        self.buffer.extend_from_slice(suffix);
        let end = self.buffer.len();
        let value = value.map(|value| {
            self.buffer.extend_from_slice(value);
            (end, self.buffer.len())
        });
        self.entries.push(Entry { place, displaced, omitted: false, key: (start, end), value });
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.buffer.len() + self.sealed.len()
    }

    pub fn heap_bytes(&self) -> usize {
        self.buffer.capacity() + self.sealed.len() + self.entries.capacity() * size_of::<Entry>()
    }

    fn key(&self, entry: &Entry) -> &[u8] {
        &self.sealed[entry.key.0..entry.key.1]
    }

    /// The value of a sealed batch's entry.
    pub fn value(&self, entry: &Entry) -> Option<&[u8]> {
        entry.value.map(|(start, end)| &self.sealed[start..end])
    }

    /// The rows as the store takes them: ascending, and of a row that was taken twice the last value alone. Nothing can
    /// be added any more.
    pub fn seal(&mut self) -> Vec<Row> {
        self.sealed = Bytes::from(std::mem::take(&mut self.buffer));
        // By the first bytes, beside the number, then by the rest; rows of one key stay in the order of their numbers.
        let mut order: Vec<(u128, usize)> =
            self.entries.iter().enumerate().map(|(i, entry)| (head(self.key(entry), &[]), i)).collect();
        order.sort_unstable_by(|a, b| {
            a.0.cmp(&b.0)
                .then_with(|| self.key(&self.entries[a.1]).cmp(self.key(&self.entries[b.1])))
                .then(a.1.cmp(&b.1))
        });
        let mut rows: Vec<Row> = Vec::with_capacity(order.len());
        for entry in order.into_iter().map(|(_, i)| &self.entries[i]).filter(|entry| !entry.omitted) {
            let row = Row {
                key: self.sealed.slice(entry.key.0..entry.key.1),
                value: entry.value.map(|(start, end)| self.sealed.slice(start..end)),
            };
            match rows.last_mut() {
                Some(last) if last.key == row.key => *last = row,
                _ => rows.push(row),
            }
        }
        rows
    }
}

/// The first 16 bytes of a key in two parts, as they sort.
#[inline]
pub(crate) fn head(prefix: &[u8], suffix: &[u8]) -> u128 {
    let mut head = [0; 16];
    let from_prefix = prefix.len().min(head.len());
    head[..from_prefix].copy_from_slice(&prefix[..from_prefix]);
    let from_suffix = suffix.len().min(head.len() - from_prefix);
    head[from_prefix..from_prefix + from_suffix].copy_from_slice(&suffix[..from_suffix]);
    u128::from_be_bytes(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_the_last_of_a_key_counts() {
        let mut batch = Batch::new(1);
        batch.push(1, false, b"b", b"", Some(b"1"));
        batch.push(2, false, b"a", b"x", None);
        batch.push(1, false, b"b", b"", Some(b"22"));
        batch.push(3, true, b"", b"a", Some(b""));
        assert_eq!(batch.bytes(), 2 + 2 + 3 + 1);
        let rows: Vec<_> = batch.seal().into_iter().map(|row| (row.key, row.value)).collect();
        assert_eq!(
            rows,
            vec![
                (Bytes::from_static(b"a"), Some(Bytes::new())),
                (Bytes::from_static(b"ax"), None),
                (Bytes::from_static(b"b"), Some(Bytes::from_static(b"22"))),
            ]
        );
        assert_eq!(batch.value(&batch.entries[2]), Some(&b"22"[..]));
    }
}
