//! A store of Weir as the engine uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use weir_store::{BranchName, PageLimit, Result, Row, Source, StateStore, Stores, VersionRef};

use crate::rows::ALL;

/// As the engine hands rows over, and asks for pages.
const BATCH_ROWS: usize = 4096;
const PAGE: PageLimit = PageLimit { rows: 1024, bytes: 1 << 20 };

pub struct Subject {
    stores: Arc<dyn Stores>,
    openings: AtomicU64,
    checkpoints: AtomicU64,
}

impl Subject {
    pub fn new(stores: Arc<dyn Stores>) -> Self {
        Self { stores, openings: AtomicU64::new(0), checkpoints: AtomicU64::new(0) }
    }

    /// Opens a new branch of an operator, empty or at a version.
    pub async fn open(&self, operator: &str, version: Option<&VersionRef>) -> Result<Arc<dyn StateStore>> {
        // As attempts of different execution graphs, so that nothing is reaped.
        let number = self.openings.fetch_add(1, Ordering::Relaxed);
        let branch = BranchName::parse(&format!("bench/{operator}/0/graph-{number}_attempt-0"))?;
        let sources: Vec<Source> =
            version.map(|version| Source { version: version.clone(), range: ALL }).into_iter().collect();
        self.stores.open(&branch, ALL, &sources, self.checkpoints.load(Ordering::Relaxed)).await
    }

    /// Writes rows, in order of their keys, and commits.
    pub async fn flush(&self, store: &dyn StateStore, rows: &[Row]) -> Result<VersionRef> {
        for batch in rows.chunks(BATCH_ROWS) {
            store.write(batch.to_vec()).await?;
        }
        let checkpoint = self.checkpoints.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(store.begin_commit(checkpoint).await?.await?.version)
    }

    /// What Flink does after a checkpoint: the one before is given up, and the store may tidy up.
    pub async fn complete(&self, store: &dyn StateStore, before: &VersionRef) -> Result<()> {
        self.stores.release(before).await?;
        store.upkeep(self.checkpoints.load(Ordering::Relaxed));
        Ok(())
    }

    pub async fn release(&self, version: &VersionRef) -> Result<()> {
        self.stores.release(version).await
    }
}

/// Asks for keys that are all there.
pub async fn get(store: &dyn StateStore, keys: &[Bytes]) -> Result<()> {
    let found = store.get_many(keys).await?;
    assert!(found.iter().all(Option::is_some), "a row of {keys:?} is missing");
    Ok(())
}

/// Reads a map of so many entries page by page.
pub async fn scan(store: &dyn StateStore, map: &[u8], entries: u64) -> Result<()> {
    let (mut found, mut after) = (0, None);
    loop {
        let page = store.scan(map, after.as_deref(), PAGE).await?;
        found += page.rows.len() as u64;
        if page.done {
            break;
        }
        after = page.rows.last().map(|(key, _)| key.clone());
    }
    assert_eq!(found, entries);
    Ok(())
}
