//! A decorator that takes longer keys than the store under it.
//!
//! Rows whose key has `head` bytes or more share one row of the inner store, a *bundle*: its key is their first `head`
//! bytes, its value the list of what follows in their keys, with their values, in order. Shorter keys stay as they are, so
//! a key of exactly `head` bytes in the inner store is always a bundle, and the order of the rows is the order of
//! the inner rows. A write of such a row reads its bundle and writes it again: that suits the few long keys that there
//! are, not millions of rows that begin with the same `head` bytes.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::{
    BranchName, ErrorKind, Expiry, KeyGroupRange, MAX_KEY_BYTES, Page, PageLimit, PendingCommit, Result, Row, Source,
    StateReader, StateStore, StoreError, Stores, VersionRef, check_batch_up_to,
};

/// The longest key that [`LongKeyStores`] takes, in bytes.
pub const MAX_LONG_KEY_BYTES: usize = 16 << 20;

/// The most that the rows of one bundle may have, in bytes.
const MAX_BUNDLE_BYTES: usize = 1 << 30;

/// Whether the row of a store under [`LongKeyStores::new`] with this key is a bundle, whose value is no row's value.
pub fn is_bundle(key: &[u8]) -> bool {
    key.len() == MAX_KEY_BYTES
}

/// Any [`Stores`], for keys of up to [`MAX_LONG_KEY_BYTES`].
pub struct LongKeyStores {
    inner: Arc<dyn Stores>,
    head: usize,
}

impl LongKeyStores {
    pub fn new(inner: Arc<dyn Stores>) -> Self {
        Self::with_head(inner, MAX_KEY_BYTES)
    }

    /// Bundles keys from `head` bytes on. What was written with one `head` cannot be read with another.
    ///
    /// # Panics
    /// If `head` does not hold a key group, or is more than the inner store takes.
    pub fn with_head(inner: Arc<dyn Stores>, head: usize) -> Self {
        assert!((2..=MAX_KEY_BYTES).contains(&head), "a head of {head} bytes");
        Self { inner, head }
    }
}

impl Stores for LongKeyStores {
    fn open<'a>(
        &'a self,
        branch: &'a BranchName,
        range: KeyGroupRange,
        sources: &'a [Source],
        restored_checkpoint: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn StateStore>>> {
        async move {
            let inner = self.inner.open(branch, range, sources, restored_checkpoint).await?;
            Ok(Arc::new(LongKeyStore { inner, head: self.head }) as Arc<dyn StateStore>)
        }
        .boxed()
    }

    fn open_read_only<'a>(&'a self, source: &'a Source) -> BoxFuture<'a, Result<Arc<dyn StateReader>>> {
        async move {
            let inner = self.inner.open_read_only(source).await?;
            Ok(Arc::new(LongKeyReader { inner, head: self.head }) as Arc<dyn StateReader>)
        }
        .boxed()
    }

    fn release<'a>(&'a self, version: &'a VersionRef) -> BoxFuture<'a, Result<()>> {
        self.inner.release(version)
    }
}

struct LongKeyReader {
    inner: Arc<dyn StateReader>,
    head: usize,
}

impl StateReader for LongKeyReader {
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
        get_many(&*self.inner, self.head, keys)
    }

    fn scan<'a>(&'a self, prefix: &'a [u8], after: Option<&'a [u8]>, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        scan(&*self.inner, self.head, prefix, after, limit).boxed()
    }
}

struct LongKeyStore {
    inner: Arc<dyn StateStore>,
    head: usize,
}

impl StateReader for LongKeyStore {
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
        get_many(&*self.inner, self.head, keys)
    }

    fn scan<'a>(&'a self, prefix: &'a [u8], after: Option<&'a [u8]>, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        scan(&*self.inner, self.head, prefix, after, limit).boxed()
    }
}

impl StateStore for LongKeyStore {
    fn write(&self, batch: Vec<Row>) -> BoxFuture<'_, Result<()>> {
        if batch.iter().all(|row| row.key.len() < self.head) {
            return self.inner.write(batch);
        }
        async move {
            check_batch_up_to(&batch, MAX_LONG_KEY_BYTES)?;
            self.inner.write(self.bundled(batch).await?).await
        }
        .boxed()
    }

    fn begin_commit(&self, checkpoint: u64) -> BoxFuture<'_, Result<PendingCommit>> {
        self.inner.begin_commit(checkpoint)
    }

    fn upkeep(&self, completed_checkpoint: u64) {
        self.inner.upkeep(completed_checkpoint);
    }

    /// Bundles do not expire: [`Expiry::rule`] knows none for a key that long.
    fn set_expiry(&self, expiry: Expiry) {
        self.inner.set_expiry(expiry);
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.close()
    }
}

impl LongKeyStore {
    /// The batch as the inner store takes it: what changes in a bundle is merged into what it holds now.
    async fn bundled(&self, batch: Vec<Row>) -> Result<Vec<Row>> {
        let mut rows: Vec<Row> = Vec::with_capacity(batch.len());
        let mut changes: Vec<(Bytes, Vec<Row>)> = Vec::new();
        for row in batch {
            if row.key.len() < self.head {
                rows.push(row);
                continue;
            }
            let head = row.key.slice(..self.head);
            match changes.last_mut() {
                Some((last, of_bundle)) if *last == head => of_bundle.push(row),
                _ => changes.push((head, vec![row])),
            }
        }
        let heads: Vec<Bytes> = changes.iter().map(|(head, _)| head.clone()).collect();
        let bundles = self.inner.get_many(&heads).await?;
        for ((head, changes), bundle) in changes.into_iter().zip(bundles) {
            rows.push(Row { value: merged(self.head, bundle, changes)?, key: head });
        }
        rows.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(rows)
    }
}

/// The bundle with the changes, both in ascending order; `None` once no row is left.
fn merged(head: usize, bundle: Option<Bytes>, changes: Vec<Row>) -> Result<Option<Bytes>> {
    let mut merged = BytesMut::new();
    let mut changes = changes.into_iter().peekable();
    let mut append = |rest: &[u8], value: Option<Bytes>| match value {
        Some(value) if merged.len() + rest.len() + value.len() > MAX_BUNDLE_BYTES => Err(StoreError::new(
            ErrorKind::InvalidArgument,
            format!("the rows whose keys share their first {head} bytes have more than {MAX_BUNDLE_BYTES} bytes"),
        )),
        Some(value) => {
            merged.put_u32(rest.len() as u32);
            merged.put_u32(value.len() as u32);
            merged.put_slice(rest);
            merged.put_slice(&value);
            Ok(())
        }
        None => Ok(()),
    };
    for entry in entries(bundle) {
        let (rest, value) = entry?;
        while let Some(change) = changes.next_if(|change| change.key[head..] < rest[..]) {
            append(&change.key[head..], change.value)?;
        }
        match changes.next_if(|change| change.key[head..] == rest[..]) {
            Some(change) => append(&rest, change.value)?,
            None => append(&rest, Some(value))?,
        }
    }
    for change in changes {
        append(&change.key[head..], change.value)?;
    }
    Ok((!merged.is_empty()).then(|| merged.freeze()))
}

/// What follows the head in each key of a bundle, and the values; shares the bundle's memory.
fn entries(bundle: Option<Bytes>) -> impl Iterator<Item = Result<(Bytes, Bytes)>> {
    let mut left = bundle.unwrap_or_default();
    std::iter::from_fn(move || {
        if left.is_empty() {
            return None;
        }
        let entry = entry(&mut left);
        if entry.is_err() {
            left.clear();
        }
        Some(entry)
    })
}

fn entry(left: &mut Bytes) -> Result<(Bytes, Bytes)> {
    let cut = || StoreError::new(ErrorKind::Corrupt, "a bundle of rows with long keys ends within a row".to_owned());
    if left.len() < 8 {
        return Err(cut());
    }
    let (rest, value) = (left.get_u32() as usize, left.get_u32() as usize);
    if left.len() < rest + value {
        return Err(cut());
    }
    Ok((left.split_to(rest), left.split_to(value)))
}

fn get_many<'a>(
    inner: &'a (impl StateReader + ?Sized),
    head: usize,
    keys: &'a [Bytes],
) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
    if keys.iter().all(|key| key.len() < head) {
        return inner.get_many(keys);
    }
    async move {
        let asked: Vec<Bytes> = keys.iter().map(|key| key.slice(..key.len().min(head))).collect();
        let mut values = inner.get_many(&asked).await?;
        for (key, value) in keys.iter().zip(&mut values) {
            if key.len() >= head {
                *value = found(value.take(), &key[head..])?;
            }
        }
        Ok(values)
    }
    .boxed()
}

fn found(bundle: Option<Bytes>, wanted: &[u8]) -> Result<Option<Bytes>> {
    for entry in entries(bundle) {
        let (rest, value) = entry?;
        if rest == wanted {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

async fn scan(
    inner: &(impl StateReader + ?Sized),
    head: usize,
    prefix: &[u8],
    after: Option<&[u8]>,
    limit: PageLimit,
) -> Result<Page> {
    // A page holds at least one row.
    let limit = PageLimit { rows: limit.rows.max(1), bytes: limit.bytes.max(1) };
    let mut page = Filling { prefix, after, limit, rows: Vec::new(), bytes: 0 };
    if prefix.len() >= head {
        let done = page.bundle(head, &prefix[..head], inner).await?;
        return Ok(Page { rows: page.rows, done });
    }
    let mut behind = after.map(Bytes::copy_from_slice);
    if let Some(long) = after.filter(|after| after.len() >= head) {
        // The rest of a bundle that the page before ended in.
        if !page.bundle(head, &long[..head], inner).await? {
            return Ok(Page { rows: page.rows, done: false });
        }
        behind = Some(Bytes::copy_from_slice(&long[..head]));
    }
    if page.is_full() {
        let next = inner.scan(prefix, behind.as_deref(), PageLimit { rows: 1, bytes: 1 }).await?;
        return Ok(Page { rows: page.rows, done: next.rows.is_empty() });
    }
    loop {
        let left = PageLimit { rows: limit.rows - page.rows.len(), bytes: limit.bytes - page.bytes };
        let found = inner.scan(prefix, behind.as_deref(), left).await?;
        let count = found.rows.len();
        for (i, (key, value)) in found.rows.into_iter().enumerate() {
            let whole = if key.len() == head {
                page.add_bundle(&key, Some(value))?
            } else {
                page.add(key.clone(), value);
                true
            };
            if !whole || page.is_full() {
                let done = whole && found.done && i + 1 == count;
                return Ok(Page { rows: page.rows, done });
            }
            behind = Some(key);
        }
        if found.done {
            return Ok(Page { rows: page.rows, done: true });
        }
    }
}

/// A page that is being filled with the rows behind `after`.
struct Filling<'a> {
    prefix: &'a [u8],
    after: Option<&'a [u8]>,
    limit: PageLimit,
    rows: Vec<(Bytes, Bytes)>,
    bytes: usize,
}

impl Filling<'_> {
    fn is_full(&self) -> bool {
        self.rows.len() >= self.limit.rows || self.bytes >= self.limit.bytes
    }

    fn add(&mut self, key: Bytes, value: Bytes) {
        self.bytes += key.len() + value.len();
        self.rows.push((key, value));
    }

    /// Takes the rows of the bundle of this head, if there is one; says whether they all had room.
    async fn bundle(&mut self, head: usize, key: &[u8], inner: &(impl StateReader + ?Sized)) -> Result<bool> {
        debug_assert_eq!(key.len(), head);
        let key = Bytes::copy_from_slice(key);
        let bundle = inner.get_many(std::slice::from_ref(&key)).await?.pop().flatten();
        self.add_bundle(&key, bundle)
    }

    fn add_bundle(&mut self, head: &Bytes, bundle: Option<Bytes>) -> Result<bool> {
        for entry in entries(bundle) {
            let (rest, value) = entry?;
            let key: Bytes = [&head[..], &rest[..]].concat().into();
            if !key.starts_with(self.prefix) || self.after.is_some_and(|after| key <= after) {
                continue;
            }
            if self.is_full() {
                return Ok(false);
            }
            self.add(key, value);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::memory::MemoryStores;
    use crate::promises::{ALL, Subject, branch, commit, get, key, rows, run};

    /// So short a head that nearly every key of the promises is in a bundle, several together.
    struct Bundled(MemoryStores);

    impl Subject for Bundled {
        fn stores(&self) -> Arc<dyn Stores> {
            Arc::new(LongKeyStores::with_head(Arc::new(self.0.clone()), 3))
        }

        fn longest_key(&self) -> usize {
            MAX_LONG_KEY_BYTES
        }

        fn branches(&self) -> BoxFuture<'_, Vec<String>> {
            async move { self.0.branches().iter().map(|branch| branch.path().to_owned()).collect() }.boxed()
        }
    }

    mod keeps {
        // Rows in a bundle do not expire.
        crate::promises::suite!(|| super::Bundled(super::MemoryStores::new()), without expiry);
    }

    #[test]
    fn any_rows_read_as_in_a_map_by_any_pages() {
        run(async {
            for head in [2, 3, 4, 6] {
                let stores = LongKeyStores::with_head(Arc::new(MemoryStores::new()), head);
                let store = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
                let mut expected = BTreeMap::new();
                let mut draw = 7u64;
                let mut next = |below: u64| {
                    draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (draw >> 33) % below
                };
                for _ in 0..60 {
                    let mut batch = BTreeMap::new();
                    for _ in 0..next(12) {
                        let name: String = (0..next(7)).map(|_| ['a', 'b'][next(2) as usize]).collect();
                        let value = (next(3) > 0).then(|| Bytes::from(format!("v{}", next(1000))));
                        batch.insert(key(next(2) as u16, &name), value);
                    }
                    for (key, value) in &batch {
                        match value {
                            Some(value) => expected.insert(key.clone(), value.clone()),
                            None => expected.remove(key),
                        };
                    }
                    store.write(batch.into_iter().map(|(key, value)| Row { key, value }).collect()).await.unwrap();
                    assert_eq!(rows(&*store).await, expected, "head {head}");
                    let prefix = key(next(2) as u16, &"abab"[..next(5) as usize]);
                    let limit = PageLimit { rows: 1 + next(3) as usize, bytes: 1 + next(40) as usize };
                    let mut paged: Vec<(Bytes, Bytes)> = Vec::new();
                    loop {
                        let after = paged.last().map(|(key, _)| key.clone());
                        let page = store.scan(&prefix, after.as_deref(), limit).await.unwrap();
                        assert!(page.done || !page.rows.is_empty());
                        paged.extend(page.rows);
                        if page.done {
                            break;
                        }
                    }
                    let within = expected.iter().filter(|(key, _)| key.starts_with(&prefix));
                    assert!(paged.iter().map(|(key, value)| (key, value)).eq(within), "head {head}");
                }
            }
        });
    }

    #[test]
    fn keys_beyond_the_inner_store_are_kept_and_leave_nothing() {
        run(async {
            let memory = MemoryStores::new();
            let stores = LongKeyStores::new(Arc::new(memory.clone()));
            let store = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
            let long = "k".repeat(MAX_KEY_BYTES + 7);
            let keys = [key(1, &long), key(1, &format!("{long}1")), key(1, &format!("{long}2"))];
            let put = |key: &Bytes| Row { key: key.clone(), value: Some("value".into()) };
            store.write(keys.iter().map(put).collect()).await.unwrap();
            let version = commit(&*store, 1).await;
            assert_eq!(get(&*store, keys[1].clone()).await, Some(Bytes::from("value")));
            let inner = memory.rows(&version.version).unwrap();
            assert!(inner.keys().all(|key| is_bundle(key)) && inner.len() == 1);

            store.write(keys.iter().map(|key| Row { key: key.clone(), value: None }).collect()).await.unwrap();
            let version = commit(&*store, 2).await;
            assert_eq!(memory.rows(&version.version).unwrap(), BTreeMap::new());

            let too_long = Row { key: vec![0; MAX_LONG_KEY_BYTES + 1].into(), value: None };
            assert_eq!(store.write(vec![too_long]).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
        });
    }

    #[test]
    fn a_cut_bundle_is_corrupt() {
        run(async {
            let memory = MemoryStores::new();
            let inner = memory.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
            inner.write(vec![Row { key: key(1, "a"), value: Some("cut".into()) }]).await.unwrap();
            let store = LongKeyStore { inner, head: 3 };
            let read = store.get_many(&[key(1, "ab")]).await;
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Corrupt);
        });
    }
}
