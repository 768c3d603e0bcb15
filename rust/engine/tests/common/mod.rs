//! An engine over a memory store that can be made to fail, and a model that says what it must answer.

#![allow(dead_code)] // every test program uses a part

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::runtime::Runtime;
use weir_engine::{Committed, EngineOptions, KeyedEngine, MemoryBudget};
use weir_store::faulty::{Faults, FaultyStores};
use weir_store::memory::MemoryStores;
use weir_store::{
    BranchName, Commit, Expiry, KeyGroupRange, Page, PageLimit, PendingCommit, Result, Row, Source, StateReader,
    StateStore, Stores, VersionRef,
};

pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub const RANGE: KeyGroupRange = KeyGroupRange { first: 0, last: 127 };

pub struct Harness {
    pub runtime: Runtime,
    pub memory: Arc<MemoryStores>,
    pub faults: Arc<Faults>,
    pub stores: Arc<FaultyStores>,
    /// How long the answer of a scan is on its way, in milliseconds.
    pub scan_answer_ms: Arc<AtomicU64>,
    attempts: AtomicU64,
}

impl Harness {
    pub fn new(seed: u64) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let memory = Arc::new(MemoryStores::new());
        let faults = Faults::new(seed);
        let stores = Arc::new(FaultyStores::new(memory.clone(), faults.clone()));
        Self { runtime, memory, faults, stores, scan_answer_ms: Arc::default(), attempts: AtomicU64::new(0) }
    }

    pub fn open_store(&self, source: Option<&VersionRef>) -> Arc<dyn StateStore> {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let branch = BranchName::parse(&format!("job/operator-{attempt}/0-of-1/attempt")).unwrap();
        let sources: Vec<Source> =
            source.map(|version| Source { version: version.clone(), range: RANGE }).into_iter().collect();
        // What a restored checkpoint's number is does not matter here, as long as nothing is reaped.
        let restored = if source.is_some() { u64::MAX } else { 0 };
        let store = self.runtime.block_on(self.stores.open(&branch, RANGE, &sources, restored)).unwrap();
        Arc::new(Elsewhere(store, self.scan_answer_ms.clone()))
    }

    pub fn engine(&self, options: EngineOptions, budget: &Arc<MemoryBudget>) -> Arc<KeyedEngine> {
        self.open(None, options, budget)
    }

    pub fn open(
        &self,
        source: Option<&VersionRef>,
        options: EngineOptions,
        budget: &Arc<MemoryBudget>,
    ) -> Arc<KeyedEngine> {
        KeyedEngine::new(self.open_store(source), options, budget.clone(), self.runtime.handle().clone())
    }

    /// What a committed version holds.
    pub fn rows(&self, committed: &Committed) -> Model {
        let rows = self.memory.rows(&committed.commit.version).expect("a committed version is there");
        rows.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
    }
}

pub fn options() -> EngineOptions {
    let mut options = EngineOptions::new(RANGE);
    options.fresh = true;
    options
}

pub fn value_key(i: u64) -> Vec<u8> {
    let mut key = ((i % 128) as u16).to_be_bytes().to_vec();
    key.extend([0, 0, 0, 1, 1]);
    key.extend(i.to_be_bytes());
    key
}

pub fn map_prefix(i: u64) -> Vec<u8> {
    let mut key = ((i % 128) as u16).to_be_bytes().to_vec();
    key.extend([0, 0, 0, 2, 1]);
    key.extend(i.to_be_bytes());
    key
}

pub fn list_prefix(i: u64) -> Vec<u8> {
    let mut key = map_prefix(i);
    key[5] = 3;
    key
}

pub fn get(engine: &KeyedEngine, key: &[u8]) -> Option<Vec<u8>> {
    engine.get(key, |value| value.map(<[u8]>::to_vec)).unwrap()
}

pub fn group_get(engine: &KeyedEngine, prefix: &[u8], suffix: &[u8]) -> Option<Vec<u8>> {
    engine.group_get(prefix, suffix, |value| value.map(<[u8]>::to_vec)).unwrap()
}

/// The rows of a page as the engine writes it.
pub fn parse_page(mut page: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut rows = Vec::new();
    while !page.is_empty() {
        let key_len = u32::from_le_bytes(page[..4].try_into().unwrap()) as usize;
        let value_len = u32::from_le_bytes(page[4..8].try_into().unwrap()) as usize;
        let (row, rest) = page[8..].split_at(key_len + value_len);
        rows.push((row[..key_len].to_vec(), row[key_len..].to_vec()));
        page = rest;
    }
    rows
}

/// Rows of the model under `prefix` after the key `after`.
pub fn model_rows(model: &Model, prefix: &[u8], after: Option<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let from = match after {
        Some(after) => Bound::Excluded(after),
        None => Bound::Included(prefix),
    };
    model
        .range::<[u8], _>((from, Bound::Unbounded))
        .take_while(|(key, _)| key.starts_with(prefix))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// All rows of a group, read in pages.
pub fn group_rows(engine: &KeyedEngine, prefix: &[u8], max_bytes: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut rows: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    loop {
        let mut page = Vec::new();
        let after = rows.last().map(|(suffix, _)| suffix.clone());
        let more = engine.group_page(prefix, after.as_deref(), max_bytes, &mut page).unwrap();
        assert!(!more || !page.is_empty());
        rows.extend(parse_page(&page));
        if !more {
            return rows;
        }
    }
}

/// A store whose rows are not in this process's memory.
struct Elsewhere(Arc<dyn StateStore>, Arc<AtomicU64>);

impl StateReader for Elsewhere {
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
        self.0.get_many(keys)
    }

    fn scan<'a>(&'a self, prefix: &'a [u8], after: Option<&'a [u8]>, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        Box::pin(async move {
            let page = self.0.scan(prefix, after, limit).await;
            let answer = self.1.load(Ordering::Relaxed);
            if answer > 0 {
                tokio::time::sleep(std::time::Duration::from_millis(answer)).await;
            }
            page
        })
    }
}

impl StateStore for Elsewhere {
    fn write(&self, batch: Vec<Row>) -> BoxFuture<'_, Result<()>> {
        self.0.write(batch)
    }

    fn begin_commit(&self, checkpoint: u64) -> BoxFuture<'_, Result<PendingCommit>> {
        self.0.begin_commit(checkpoint)
    }

    fn upkeep(&self, completed_checkpoint: u64) {
        self.0.upkeep(completed_checkpoint);
    }

    fn set_expiry(&self, expiry: Expiry) {
        self.0.set_expiry(expiry);
    }

    fn memory_bytes(&self) -> u64 {
        0
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        self.0.close()
    }
}

/// A store that takes everything and keeps nothing.
pub struct NoStore;

impl StateReader for NoStore {
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
        Box::pin(async { Ok(vec![None; keys.len()]) })
    }

    fn scan<'a>(&'a self, _: &'a [u8], _: Option<&'a [u8]>, _: PageLimit) -> BoxFuture<'a, Result<Page>> {
        Box::pin(async { Ok(Page { rows: vec![], done: true }) })
    }
}

impl StateStore for NoStore {
    fn write(&self, _: Vec<Row>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn begin_commit(&self, checkpoint: u64) -> BoxFuture<'_, Result<PendingCommit>> {
        let version = VersionRef { branch: BranchName::parse("a/b/c/d").unwrap(), version: checkpoint.to_string() };
        let commit = Commit { version, written_bytes: 0, total_bytes: 0 };
        Box::pin(async { Ok(Box::pin(async { Ok(commit) }) as PendingCommit) })
    }

    fn upkeep(&self, _: u64) {}

    fn set_expiry(&self, _: Expiry) {}

    fn memory_bytes(&self) -> u64 {
        0
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

/// Waits until `done`, which another thread brings about.
pub fn eventually(what: &str, done: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !done() {
        assert!(began.elapsed().as_secs() < 30, "{what} does not happen");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
