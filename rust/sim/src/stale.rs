//! A store that is wrong on purpose: it opens an older version than it is asked for.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use weir_store::{
    BranchName, Expiry, KeyGroupRange, Page, PageLimit, PendingCommit, Result, Row, Source, StateReader, StateStore,
    Stores, VersionRef,
};

/// Versions of each branch, in the order of their commits.
type Versions = Arc<Mutex<HashMap<BranchName, Vec<String>>>>;

/// Opens, of each source, the version committed before the one asked for, where there is one and it still can be opened.
pub struct StaleStores {
    inner: Arc<dyn Stores>,
    versions: Versions,
}

impl StaleStores {
    pub fn new(inner: Arc<dyn Stores>) -> Self {
        Self { inner, versions: Versions::default() }
    }
}

impl Stores for StaleStores {
    fn open<'a>(
        &'a self,
        branch: &'a BranchName,
        range: KeyGroupRange,
        sources: &'a [Source],
        restored_checkpoint: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn StateStore>>> {
        async move {
            let mut stale = Vec::new();
            for source in sources {
                let mut older = source.clone();
                let known = self.versions.lock().get(&source.version.branch).cloned().unwrap_or_default();
                let position = known.iter().position(|version| *version == source.version.version);
                if let Some(position) = position.and_then(|position| position.checked_sub(1)) {
                    older.version.version = known[position].clone();
                }
                let there = self.inner.open_read_only(&older).await.is_ok();
                stale.push(if there { older } else { source.clone() });
            }
            let inner = self.inner.open(branch, range, &stale, restored_checkpoint).await?;
            let store = StaleStore { inner, branch: branch.clone(), versions: self.versions.clone() };
            Ok(Arc::new(store) as Arc<dyn StateStore>)
        }
        .boxed()
    }

    fn open_read_only<'a>(&'a self, source: &'a Source) -> BoxFuture<'a, Result<Arc<dyn StateReader>>> {
        self.inner.open_read_only(source)
    }

    fn release<'a>(&'a self, version: &'a VersionRef) -> BoxFuture<'a, Result<()>> {
        self.inner.release(version)
    }
}

/// Notes what is committed.
struct StaleStore {
    inner: Arc<dyn StateStore>,
    branch: BranchName,
    versions: Versions,
}

impl StateReader for StaleStore {
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
        self.inner.get_many(keys)
    }

    fn scan<'a>(&'a self, prefix: &'a [u8], after: Option<&'a [u8]>, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        self.inner.scan(prefix, after, limit)
    }
}

impl StateStore for StaleStore {
    fn write(&self, batch: Vec<Row>) -> BoxFuture<'_, Result<()>> {
        self.inner.write(batch)
    }

    fn begin_commit(&self, checkpoint: u64) -> BoxFuture<'_, Result<PendingCommit>> {
        async move {
            let pending = self.inner.begin_commit(checkpoint).await?;
            let (branch, versions) = (self.branch.clone(), self.versions.clone());
            Ok(async move {
                let commit = pending.await?;
                versions.lock().entry(branch).or_default().push(commit.version.version.clone());
                Ok(commit)
            }
            .boxed())
        }
        .boxed()
    }

    fn upkeep(&self, completed_checkpoint: u64) {
        self.inner.upkeep(completed_checkpoint);
    }

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
