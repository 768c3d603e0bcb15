//! One version, open for reading.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use slatedb::config::{CheckpointOptions, DbReaderOptions, ReadOptions};
use slatedb::{DbReader, DbReaderMode};
use tokio::task::AbortHandle;
use uuid::Uuid;
use weir_store::{BranchName, ErrorKind, KeyGroupRange, Page, PageLimit, Result, Source, StateReader};

use crate::root::{Access, READER_NAME, Root};
use crate::store::{read_page, scan_bounds, scan_options};
use crate::watch::{Watch, WatchedStore};

const READS_AT_ONCE: usize = 64;

/// A version, kept by a SlateDB checkpoint of its own that is renewed while the reader lives, and expires when its
/// process dies.
pub(crate) struct SlateReader {
    root: Arc<Root>,
    branch: BranchName,
    hold: Uuid,
    range: KeyGroupRange,
    reader: Arc<DbReader>,
    watch: Arc<Watch>,
    renewal: AbortHandle,
}

impl SlateReader {
    pub(crate) async fn open(root: &Arc<Root>, source: &Source) -> Result<Self> {
        let absent = || root.missing(&source.version);
        let access = Access::new(root, false)?.ok_or_else(absent)?;
        let version = access.version(&source.version).await?;
        access.verify(&source.version, &version).await?;
        let branch = source.version.branch.clone();
        let path = root.branch_path(&branch);
        let lease = root.config.reader_lease;
        let options =
            CheckpointOptions { lifetime: Some(lease), source: Some(version.id), name: Some(READER_NAME.to_owned()) };
        let admin = access.admin(path.clone());
        let hold = match access
            .watch()
            .run_opening("cannot read", &source.version, admin.create_detached_checkpoint(&options))
            .await
        {
            Ok(hold) => hold.id,
            // Released between the two looks.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                access.version(&source.version).await?;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        let watch = root.watch();
        let store = WatchedStore::new(access.object().clone(), watch.clone());
        let (cache, cache_id) = root.config.block_cache.handle();
        let build = DbReader::builder(path.clone(), store)
            .with_reader_mode(DbReaderMode::Checkpoint(hold))
            .with_options(DbReaderOptions { skip_wal_replay: true, ..DbReaderOptions::default() })
            .with_db_cache(cache, cache_id)
            .build();
        let reader = match watch.run_opening("cannot read", &source.version, build).await {
            Ok(reader) => reader,
            Err(error) => {
                let _ = access.delete_checkpoint(&branch, hold).await;
                return Err(error);
            }
        };
        let held = branch.clone();
        let renewal = root.runtime.spawn(async move {
            loop {
                tokio::time::sleep((lease / 3).max(Duration::from_millis(100))).await;
                let renewed = admin.refresh_checkpoint(hold, Some(lease));
                if let Err(error) = access.watch().run("cannot renew a reader's hold on", &held, renewed).await {
                    tracing::warn!(%error, "a reader may lose its version");
                }
            }
        });
        Ok(Self {
            root: root.clone(),
            branch,
            hold,
            range: source.range,
            reader: Arc::new(reader),
            watch,
            renewal: renewal.abort_handle(),
        })
    }
}

impl Drop for SlateReader {
    fn drop(&mut self) {
        self.renewal.abort();
        let (root, branch, hold, reader) = (self.root.clone(), self.branch.clone(), self.hold, self.reader.clone());
        self.root.runtime.spawn(async move {
            let _ = reader.close().await;
            let dropped = async {
                let Some(access) = Access::new(&root, false)? else { return Ok(()) };
                access.delete_checkpoint(&branch, hold).await?;
                access.collect(&branch).await
            };
            if let Err(error) = dropped.await {
                tracing::warn!(%branch, %error, "a reader's hold stays until it expires");
            }
        });
    }
}

impl StateReader for SlateReader {
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
        async move {
            let options = ReadOptions::default();
            let (reader, range, options) = (&self.reader, self.range, &options);
            let reads = futures::stream::iter(keys.to_vec())
                .map(move |key| async move {
                    if range.contains_key(&key) { reader.get_with_options(key, options).await } else { Ok(None) }
                })
                .buffered(READS_AT_ONCE)
                .try_collect();
            self.watch.run("cannot read from branch", &self.branch, reads).await
        }
        .boxed()
    }

    fn scan<'a>(&'a self, prefix: &'a [u8], after: Option<&'a [u8]>, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        async move {
            let Some(bounds) = scan_bounds(prefix, after, Some(self.range)) else {
                return Ok(Page { rows: Vec::new(), done: true });
            };
            let scan = async {
                let rows = self.reader.scan_with_options(bounds, &scan_options()).await?;
                read_page(rows, limit).await
            };
            self.watch.run("cannot scan branch", &self.branch, scan).await
        }
        .boxed()
    }
}
