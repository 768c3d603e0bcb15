//! The store that keeps everything in memory: for tests, and as the oracle of the others.
//!
//! A version is a copy of the whole map, made when the first write after a commit finds the map shared. Nothing here
//! is ever lost or delayed: wrap it in [`crate::faulty`] for that.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use crate::{
    BranchName, Commit, ErrorKind, Expiry, KeyGroupRange, Kinship, Page, PageLimit, PendingCommit, Result, Row, Source,
    StateReader, StateStore, StoreError, Stores, VersionRef, check_batch, check_sources,
};

type Rows = BTreeMap<Bytes, Bytes>;

/// All branches of one root, in memory. Clones share them.
#[derive(Clone, Default)]
pub struct MemoryStores {
    root: Arc<Mutex<Root>>,
}

#[derive(Default)]
struct Root {
    branches: BTreeMap<String, Branch>,
    /// Counts openings and commits: orders attempts, and makes version names unique.
    clock: u64,
}

struct Branch {
    range: KeyGroupRange,
    born: u64,
    /// An attempt writes here.
    pinned: bool,
    versions: BTreeMap<String, Version>,
}

struct Version {
    checkpoint: u64,
    born: u64,
    rows: Arc<Rows>,
}

impl Root {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn drop_if_unneeded(&mut self, path: &str) {
        if self.branches.get(path).is_some_and(|branch| !branch.pinned && branch.versions.is_empty()) {
            self.branches.remove(path);
        }
    }

    fn rows_at(&self, source: &Source) -> Result<Arc<Rows>> {
        self.branches
            .get(source.version.branch.path())
            .and_then(|branch| branch.versions.get(&source.version.version))
            .map(|version| version.rows.clone())
            .ok_or_else(|| missing(&source.version))
    }

    /// What [`Stores::open`] says of earlier attempts.
    fn reap(&mut self, own: &BranchName, range: KeyGroupRange, born: u64, restored_checkpoint: u64) {
        let [job, operator, subtask, _] = own.components();
        let mut touched = Vec::new();
        for (path, branch) in &mut self.branches {
            let mut parts = path.split('/');
            let same_operator = parts.next() == Some(job) && parts.next() == Some(operator);
            let starts_in_range = (range.first..=range.last).contains(&branch.range.first);
            if path == own.path() || !same_operator || branch.born > born {
                continue;
            }
            if parts.next() != Some(subtask) && !starts_in_range {
                continue;
            }
            let kinship = own.kinship(&BranchName::parse(path).expect("opened under a parsed name"));
            if kinship == Kinship::SameAttempt {
                continue;
            }
            branch.pinned = false;
            if kinship == Kinship::SameRun {
                branch.versions.retain(|_, version| version.checkpoint <= restored_checkpoint || version.born > born);
            }
            touched.push(path.clone());
        }
        for path in touched {
            self.drop_if_unneeded(&path);
        }
    }
}

fn missing(version: &VersionRef) -> StoreError {
    StoreError::new(
        ErrorKind::MissingVersion,
        format!("version {version} is not in the memory store: it was released or never committed"),
    )
}

impl MemoryStores {
    pub fn new() -> Self {
        Self::default()
    }

    /// Every branch that is there: written to, or with a version.
    pub fn branches(&self) -> Vec<BranchName> {
        let root = self.root.lock();
        root.branches.keys().map(|path| BranchName::parse(path).expect("opened under a parsed name")).collect()
    }

    /// Every version that is there, with the checkpoint it was named after.
    pub fn versions(&self) -> Vec<(VersionRef, u64)> {
        let root = self.root.lock();
        let mut all = Vec::new();
        for (path, branch) in &root.branches {
            let name = BranchName::parse(path).expect("opened under a parsed name");
            all.extend(branch.versions.iter().map(|(version, data)| {
                (VersionRef { branch: name.clone(), version: version.clone() }, data.checkpoint)
            }));
        }
        all
    }

    /// The branches that an attempt has open for writing.
    pub fn pins(&self) -> Vec<BranchName> {
        let root = self.root.lock();
        let pinned = root.branches.iter().filter(|(_, branch)| branch.pinned);
        pinned.map(|(path, _)| BranchName::parse(path).expect("opened under a parsed name")).collect()
    }

    /// The rows of a version, or `None` if it is not there.
    pub fn rows(&self, version: &VersionRef) -> Option<BTreeMap<Bytes, Bytes>> {
        let root = self.root.lock();
        let branch = root.branches.get(version.branch.path())?;
        Some(branch.versions.get(&version.version)?.rows.as_ref().clone())
    }

    /// Rows of all versions, shared ones counted in each.
    pub fn total_rows(&self) -> usize {
        let root = self.root.lock();
        root.branches.values().flat_map(|branch| branch.versions.values()).map(|version| version.rows.len()).sum()
    }
}

impl Stores for MemoryStores {
    fn open<'a>(
        &'a self,
        branch: &'a BranchName,
        range: KeyGroupRange,
        sources: &'a [Source],
        restored_checkpoint: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn StateStore>>> {
        async move {
            check_sources(sources)?;
            let mut root = self.root.lock();
            if root.branches.contains_key(branch.path()) {
                return Err(StoreError::new(
                    ErrorKind::InvalidArgument,
                    format!("branch {branch} is there already: each attempt opens a new one"),
                ));
            }
            let mut rows = Rows::new();
            for source in sources {
                let (lower, upper) = source.range.key_bounds();
                let upper = upper.map_or(Bound::Unbounded, Bound::Excluded);
                let of_source = root.rows_at(source)?;
                rows.extend(
                    of_source.range((Bound::Included(lower), upper)).map(|(key, value)| (key.clone(), value.clone())),
                );
            }
            let born = root.tick();
            let entry = Branch { range, born, pinned: true, versions: BTreeMap::new() };
            root.branches.insert(branch.path().to_owned(), entry);
            root.reap(branch, range, born, restored_checkpoint);
            let bytes = rows.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum();
            Ok(Arc::new(MemoryStore {
                root: self.root.clone(),
                branch: branch.clone(),
                current: Mutex::new(Current { rows: Arc::new(rows), bytes, written: 0, expiry: Expiry::default() }),
                closed: Arc::default(),
            }) as Arc<dyn StateStore>)
        }
        .boxed()
    }

    fn open_read_only<'a>(&'a self, source: &'a Source) -> BoxFuture<'a, Result<Arc<dyn StateReader>>> {
        async move {
            let rows = self.root.lock().rows_at(source)?;
            Ok(Arc::new(MemoryReader { rows, range: source.range }) as Arc<dyn StateReader>)
        }
        .boxed()
    }

    fn release<'a>(&'a self, version: &'a VersionRef) -> BoxFuture<'a, Result<()>> {
        async move {
            let mut root = self.root.lock();
            if let Some(branch) = root.branches.get_mut(version.branch.path()) {
                branch.versions.remove(&version.version);
                root.drop_if_unneeded(version.branch.path());
            }
            Ok(())
        }
        .boxed()
    }
}

/// One branch of [`MemoryStores`].
struct MemoryStore {
    root: Arc<Mutex<Root>>,
    branch: BranchName,
    current: Mutex<Current>,
    closed: Arc<AtomicBool>,
}

struct Current {
    rows: Arc<Rows>,
    /// Of all keys and values.
    bytes: u64,
    /// Since the last commit.
    written: u64,
    expiry: Expiry,
}

impl Current {
    /// What merging is elsewhere.
    fn drop_expired(&mut self) {
        let now = self.expiry.now_ms();
        let expired = |(key, value): &(&Bytes, &Bytes)| self.expiry.is_expired(key, value, now);
        let expired: Vec<Bytes> = self.rows.iter().filter(expired).map(|(key, _)| key.clone()).collect();
        if expired.is_empty() {
            return;
        }
        let rows = Arc::make_mut(&mut self.rows);
        for key in expired {
            let value = rows.remove(&key).expect("a row that was there");
            self.bytes -= (key.len() + value.len()) as u64;
        }
    }
}

impl MemoryStore {
    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(closed(&self.branch)) } else { Ok(()) }
    }
}

fn closed(branch: &BranchName) -> StoreError {
    StoreError::new(ErrorKind::Closed, format!("branch {branch} is closed"))
}

fn get_rows(rows: &Rows, keys: &[Bytes]) -> Vec<Option<Bytes>> {
    keys.iter().map(|key| rows.get(key).cloned()).collect()
}

fn scan_rows<'r>(rows: impl Iterator<Item = (&'r Bytes, &'r Bytes)>, prefix: &[u8], limit: PageLimit) -> Page {
    let mut page = Page::default();
    let mut bytes = 0;
    for (key, value) in rows.take_while(|(key, _)| key.starts_with(prefix)) {
        if !page.rows.is_empty() && (page.rows.len() >= limit.rows || bytes >= limit.bytes) {
            return page;
        }
        bytes += key.len() + value.len();
        page.rows.push((key.clone(), value.clone()));
    }
    page.done = true;
    page
}

/// Where a scan of `prefix` after `after` starts.
fn scan_start(prefix: &[u8], after: Option<&[u8]>) -> Bound<Bytes> {
    match after {
        Some(after) if after >= prefix => Bound::Excluded(Bytes::copy_from_slice(after)),
        _ => Bound::Included(Bytes::copy_from_slice(prefix)),
    }
}

impl StateReader for MemoryStore {
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
        async move {
            self.check_open()?;
            Ok(get_rows(&self.current.lock().rows, keys))
        }
        .boxed()
    }

    fn scan<'a>(&'a self, prefix: &'a [u8], after: Option<&'a [u8]>, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        async move {
            self.check_open()?;
            let current = self.current.lock();
            let rows = current.rows.range((scan_start(prefix, after), Bound::Unbounded));
            Ok(scan_rows(rows, prefix, limit))
        }
        .boxed()
    }
}

impl StateStore for MemoryStore {
    fn write(&self, batch: Vec<Row>) -> BoxFuture<'_, Result<()>> {
        async move {
            self.check_open()?;
            check_batch(&batch)?;
            let mut current = self.current.lock();
            let Current { rows, bytes, written, .. } = &mut *current;
            let rows = Arc::make_mut(rows);
            for Row { key, value } in batch {
                let key_bytes = key.len() as u64;
                *written += key_bytes + value.as_ref().map_or(0, |value| value.len() as u64);
                let old = match value {
                    Some(value) => {
                        *bytes += key_bytes + value.len() as u64;
                        rows.insert(key, value)
                    }
                    None => rows.remove(&key),
                };
                *bytes -= old.map_or(0, |old| key_bytes + old.len() as u64);
            }
            Ok(())
        }
        .boxed()
    }

    fn begin_commit(&self, checkpoint: u64) -> BoxFuture<'_, Result<PendingCommit>> {
        async move {
            self.check_open()?;
            let (rows, written_bytes, total_bytes) = {
                let mut current = self.current.lock();
                (current.rows.clone(), std::mem::take(&mut current.written), current.bytes)
            };
            let (root, branch, is_closed) = (self.root.clone(), self.branch.clone(), self.closed.clone());
            Ok(async move {
                let mut root = root.lock();
                if is_closed.load(Ordering::Acquire) {
                    return Err(closed(&branch));
                }
                let born = root.tick();
                let entry = root.branches.get_mut(branch.path()).filter(|entry| entry.pinned).ok_or_else(|| {
                    StoreError::new(ErrorKind::Fenced, format!("a later attempt took over from branch {branch}"))
                })?;
                let version = format!("{checkpoint}-{born}");
                entry.versions.insert(version.clone(), Version { checkpoint, born, rows });
                Ok(Commit { version: VersionRef { branch, version }, written_bytes, total_bytes })
            }
            .boxed())
        }
        .boxed()
    }

    fn upkeep(&self, _completed_checkpoint: u64) {
        let mut current = self.current.lock();
        if !current.expiry.is_empty() {
            current.drop_expired();
        }
    }

    fn set_expiry(&self, expiry: Expiry) {
        self.current.lock().expiry = expiry;
    }

    fn memory_bytes(&self) -> u64 {
        self.current.lock().bytes
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        async move {
            let mut root = self.root.lock();
            if !self.closed.swap(true, Ordering::AcqRel) {
                if let Some(branch) = root.branches.get_mut(self.branch.path()) {
                    branch.pinned = false;
                }
                root.drop_if_unneeded(self.branch.path());
            }
            Ok(())
        }
        .boxed()
    }
}

/// One version of [`MemoryStores`], clipped to the key groups asked for.
struct MemoryReader {
    rows: Arc<Rows>,
    range: KeyGroupRange,
}

impl StateReader for MemoryReader {
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
        async move {
            let mut values = get_rows(&self.rows, keys);
            for (key, value) in keys.iter().zip(&mut values) {
                if !self.range.contains_key(key) {
                    *value = None;
                }
            }
            Ok(values)
        }
        .boxed()
    }

    fn scan<'a>(&'a self, prefix: &'a [u8], after: Option<&'a [u8]>, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        async move {
            let rows = self.rows.range((scan_start(prefix, after), Bound::Unbounded));
            Ok(scan_rows(rows.filter(|(key, _)| self.range.contains_key(key)), prefix, limit))
        }
        .boxed()
    }
}
