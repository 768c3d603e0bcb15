//! One branch, open for writing.

use std::collections::{HashMap, HashSet};
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::{BoxFuture, FusedFuture};
use futures::{FutureExt, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use slatedb::config::{
    CheckpointOptions, CheckpointScope, CloseOptions, GarbageCollectorDirectoryOptions, GarbageCollectorOptions,
    GarbageCollectorScheduleOptions, ReadOptions, ScanOptions, WriteOptions,
};
use slatedb::manifest::SsTableView;
use slatedb::{CheckpointHandle, Db, DbIterator, VersionedManifest, WriteBatch};
use tokio::sync::{OnceCell, oneshot};
use uuid::Uuid;
use weir_store::{
    BranchName, Commit, ErrorKind, Expiry, KeyGroupRange, Page, PageLimit, PendingCommit, Result, Row, StateReader,
    StateStore, StoreError, VersionRef, check_batch,
};

use crate::expiry::Expiring;
use crate::root::{Access, Root, fenced, parse_version_name, version_name, version_text};
use crate::watch::Watch;

/// Keys asked for side by side in one `get_many`, when they are not in memory.
const READS_AT_ONCE: usize = 64;
/// Bytes that a scan reads at once.
const READ_AHEAD: usize = 64 << 10;

/// An open branch. Dropping it without [`StateStore::close`] is as if the process had died: its pin stays.
pub(crate) struct SlateStore {
    inner: Arc<Inner>,
}

struct Inner {
    root: Arc<Root>,
    branch: BranchName,
    range: KeyGroupRange,
    db: Db,
    /// Of all that `db` does.
    watch: Arc<Watch>,
    closed: AtomicBool,
    close_once: OnceCell<Result<()>>,
    commits: Mutex<Commits>,
    /// Bytes written since the last commit began.
    epoch_bytes: AtomicU64,
    /// Of commits that are not durable yet.
    flushing_bytes: AtomicU64,
    last_upkeep: Mutex<Option<Instant>>,
    expiring: Arc<Expiring>,
}

#[derive(Default)]
struct Commits {
    /// SlateDB checkpoints that nobody has been told of yet.
    undelivered: HashMap<Uuid, Landing>,
    /// Those that somebody has: when the branch closes, all others go.
    delivered: HashSet<Uuid>,
    /// The files of the last version that was delivered.
    known_files: HashSet<slatedb::manifest::SsTableId>,
}

/// Where an undelivered checkpoint stands.
enum Landing {
    Waiting,
    Landed,
    /// Nobody waits for it any more: it is deleted as soon as it has landed.
    Abandoned,
}

impl SlateStore {
    pub(crate) fn new(
        root: Arc<Root>,
        branch: BranchName,
        range: KeyGroupRange,
        db: Db,
        watch: Arc<Watch>,
        expiring: Arc<Expiring>,
    ) -> Self {
        let inner = Inner {
            root,
            branch,
            range,
            db,
            watch,
            closed: AtomicBool::new(false),
            close_once: OnceCell::new(),
            commits: Mutex::default(),
            epoch_bytes: AtomicU64::new(0),
            flushing_bytes: AtomicU64::new(0),
            last_upkeep: Mutex::new(None),
            expiring,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The newest manifest that the writer knows: for tests and figures.
    pub(crate) fn manifest(&self) -> VersionedManifest {
        self.inner.db.manifest()
    }
}

impl Drop for SlateStore {
    fn drop(&mut self) {
        let inner = self.inner.clone();
        if !inner.closed.swap(true, Ordering::AcqRel) {
            inner.watch.switch_off();
            self.inner.root.runtime.spawn(async move {
                let _ = inner.db.close_with_options(CloseOptions { flush_type: None }).await;
            });
        }
    }
}

impl Inner {
    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(self.closed_error()) } else { Ok(()) }
    }

    fn closed_error(&self) -> StoreError {
        StoreError::new(ErrorKind::Closed, format!("branch {} is closed", self.branch))
    }

    fn access(&self) -> Result<Access> {
        let access = Access::new(&self.root, true)?;
        access.ok_or_else(|| StoreError::new(ErrorKind::Internal, "the root was to be created"))
    }

    /// Waits for a SlateDB checkpoint, and cleans up after whoever asked for it and went away. Runs as a task.
    async fn land(
        self: Arc<Self>,
        id: Uuid,
        handle: CheckpointHandle,
        bytes: u64,
        sender: oneshot::Sender<Result<u64>>,
    ) {
        let mut wait = handle.wait().boxed().fuse();
        let landed = self.watch.run("cannot commit to branch", &self.branch, &mut wait).await;
        let failed = landed.is_err();
        let _ = sender.send(landed.map(|result| result.manifest_id));
        if failed {
            self.abandon(id);
            if !wait.is_terminated() {
                // SlateDB goes on trying: once the cause is mended, the checkpoint lands after all.
                let _ = wait.await;
            }
        }
        self.flushing_bytes.fetch_sub(bytes, Ordering::AcqRel);
        let abandoned = {
            let mut commits = self.commits.lock();
            match commits.undelivered.get_mut(&id) {
                Some(landing @ Landing::Waiting) => {
                    *landing = Landing::Landed;
                    false
                }
                Some(Landing::Abandoned) => true,
                _ => false,
            }
        };
        if abandoned {
            self.delete_undelivered(id).await;
        }
    }

    /// Nobody waits for this commit any more.
    fn abandon(self: &Arc<Self>, id: Uuid) {
        let mut commits = self.commits.lock();
        match commits.undelivered.get_mut(&id) {
            Some(Landing::Landed) => {
                let inner = self.clone();
                self.root.runtime.spawn(async move { inner.delete_undelivered(id).await });
            }
            Some(landing) => *landing = Landing::Abandoned,
            None => {}
        }
    }

    async fn delete_undelivered(&self, id: Uuid) {
        if self.closed.load(Ordering::Acquire) {
            // Closing deletes them all.
            return;
        }
        let deleted = async { self.access()?.delete_checkpoint(&self.branch, id).await };
        match deleted.await {
            Ok(()) => drop(self.commits.lock().undelivered.remove(&id)),
            Err(error) => tracing::warn!(branch = %self.branch, %error, "an abandoned commit stays until closing"),
        }
    }

    /// What a durable checkpoint is as a commit, unless a successor has taken over.
    async fn deliver(&self, id: Uuid, manifest_id: u64) -> Result<Commit> {
        let access = self.access()?;
        let admin = access.admin(self.root.branch_path(&self.branch));
        let reading = admin.read_manifest(Some(manifest_id));
        let manifest = access.watch().run("cannot commit to branch", &self.branch, reading).await?;
        // Only now, with the version durable: a successor drops the pin first and then looks for versions.
        if !access.has_pin(&self.branch).await? {
            return Err(fenced(&self.branch));
        }
        let manifest = manifest.ok_or_else(|| fenced(&self.branch))?;
        let checksum = access.manifest_checksum(&self.branch, manifest_id).await?;
        let mut files = HashSet::new();
        let (mut written_bytes, mut total_bytes) = (0, 0);
        let mut commits = self.commits.lock();
        for view in manifest.all_sst_views() {
            total_bytes += visible_bytes(view);
            if files.insert(view.sst.id) {
                let size = view.sst.estimate_size();
                written_bytes += if commits.known_files.contains(&view.sst.id) { 0 } else { size };
            }
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(self.closed_error());
        }
        commits.known_files = files;
        commits.undelivered.remove(&id);
        commits.delivered.insert(id);
        let version = VersionRef { branch: self.branch.clone(), version: version_text(id, checksum) };
        Ok(Commit { version, written_bytes, total_bytes })
    }

    async fn close(self: Arc<Self>) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        self.watch.switch_off();
        let closing = self.db.close_with_options(CloseOptions { flush_type: None });
        match tokio::time::timeout(self.root.config.close_timeout, closing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(branch = %self.branch, %error, "closed with an error"),
            Err(_) => tracing::warn!(branch = %self.branch, "closing went on for too long and is left behind"),
        }
        let Some(access) = Access::new(&self.root, false)? else { return Ok(()) };
        let manifest = access.manifest(&self.branch).await?;
        for checkpoint in manifest.iter().flat_map(|manifest| manifest.checkpoints()) {
            let version = checkpoint.name.as_deref().and_then(parse_version_name).is_some();
            let delivered = self.commits.lock().delivered.contains(&checkpoint.id);
            if version && !delivered {
                access.delete_checkpoint(&self.branch, checkpoint.id).await?;
            }
        }
        access.remove_pin(&self.branch).await?;
        access.collect(&self.branch).await
    }

    /// Collects the garbage of the branch, lets go of parents that it does not read from any more, and looks whether
    /// that was all that kept them.
    async fn upkeep(self: Arc<Self>) -> Result<()> {
        let Ok(_permit) = self.root.upkeep.acquire().await else { return Ok(()) };
        if self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let access = self.access()?;
        let unwritten = self.epoch_bytes.load(Ordering::Acquire) + self.flushing_bytes.load(Ordering::Acquire);
        access.collect_garbage(&self.branch, unwritten == 0).await?;
        for parent in access.parents(&self.branch).await? {
            if !access.has_pin(&parent).await? {
                // Nobody else keeps it tidy.
                access.collect_garbage(&parent, true).await?;
            }
        }
        access.sweep().await?;
        Ok(())
    }
}

/// One collection of everything that is older than `min_age` and not referred to.
pub(crate) fn garbage_options(min_age: Duration) -> GarbageCollectorOptions {
    let directory = GarbageCollectorDirectoryOptions { interval: None, min_age, dry_run: false };
    GarbageCollectorOptions {
        manifest_options: Some(directory),
        wal_options: None,
        wal_fence_options: None,
        compacted_options: Some(directory),
        compactions_options: Some(directory),
        detach_options: Some(GarbageCollectorScheduleOptions { interval: None }),
        metric_level: None,
        // A local file system has no conditional overwrite, and without it nothing would be collected.
        boundary_files_enabled: false,
        object_store_max_retries: None,
    }
}

/// The bytes of a file that belong to the branch. After a rescale a file also holds rows of other key groups; how many is
/// estimated as if each group had as many.
fn visible_bytes(view: &SsTableView) -> u64 {
    let bytes = view.sst.estimate_size();
    let group = |key: &[u8]| key.get(..2).map(|group| u64::from(u16::from_be_bytes([group[0], group[1]])));
    let of_entry = |entry: &Option<Bytes>| entry.as_deref().and_then(group);
    let info = &view.sst.info;
    let (Some(range), Some(first), Some(last)) =
        (view.visible_range(), of_entry(&info.first_entry), of_entry(&info.last_entry))
    else {
        return bytes;
    };
    let lowest = match range.start_bound() {
        Bound::Included(key) | Bound::Excluded(key) => group(key).unwrap_or(0).max(first),
        Bound::Unbounded => first,
    };
    // A bound that is no more than a key group is the end of the groups before it.
    let end = match range.end_bound() {
        Bound::Excluded(key) if key.len() == 2 => group(key).unwrap_or(0).min(last + 1),
        Bound::Included(key) | Bound::Excluded(key) => group(key).map_or(0, |group| group + 1).min(last + 1),
        Bound::Unbounded => last + 1,
    };
    bytes * end.saturating_sub(lowest) / (last + 1).saturating_sub(first).max(1)
}

/// A commit under way; abandons it when dropped before it is delivered.
struct Undelivered {
    inner: Arc<Inner>,
    id: Uuid,
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        self.inner.abandon(self.id);
    }
}

pub(crate) fn scan_options() -> ScanOptions {
    ScanOptions::default().with_read_ahead_bytes(READ_AHEAD).with_cache_blocks(true)
}

/// The keys that start with `prefix`, are greater than `after` and lie in `range`, or `None` if there can be none.
pub(crate) fn scan_bounds(
    prefix: &[u8],
    after: Option<&[u8]>,
    range: Option<KeyGroupRange>,
) -> Option<(Bound<Bytes>, Bound<Bytes>)> {
    let mut start = Bound::Included(Bytes::copy_from_slice(prefix));
    // The smallest key greater than all that start with the prefix: the last byte that can grow, grown.
    let mut end = prefix.iter().rposition(|byte| *byte != 0xFF).map(|at| {
        let mut end = prefix[..=at].to_vec();
        end[at] += 1;
        Bytes::from(end)
    });
    if let Some((lower, upper)) = range.map(KeyGroupRange::key_bounds) {
        if lower > prefix {
            start = Bound::Included(lower);
        }
        end = match (end, upper) {
            (Some(end), Some(upper)) => Some(end.min(upper)),
            (end, upper) => end.or(upper),
        };
    }
    if let (Some(after), Bound::Included(first)) = (after, &start)
        && after >= &first[..]
    {
        start = Bound::Excluded(Bytes::copy_from_slice(after));
    }
    let (Bound::Included(first) | Bound::Excluded(first)) = &start else { unreachable!("a start was set") };
    match end {
        Some(end) if *first >= end => None,
        Some(end) => Some((start, Bound::Excluded(end))),
        None => Some((start, Bound::Unbounded)),
    }
}

pub(crate) async fn read_page(mut rows: DbIterator, limit: PageLimit) -> Result<Page, slatedb::Error> {
    let mut page = Page::default();
    let mut bytes = 0;
    while let Some(row) = rows.next().await? {
        if !page.rows.is_empty() && (page.rows.len() >= limit.rows || bytes >= limit.bytes) {
            return Ok(page);
        }
        bytes += row.key.len() + row.value.len();
        page.rows.push((row.key, row.value));
    }
    page.done = true;
    Ok(page)
}

impl StateReader for SlateStore {
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
        async move {
            let inner = &self.inner;
            inner.check_open()?;
            let what = "cannot read from branch";
            let options = ReadOptions::default();
            if let [key] = keys {
                let value = inner.watch.run(what, &inner.branch, inner.db.get_with_options(key, &options)).await?;
                return Ok(vec![value]);
            }
            let (db, options) = (&inner.db, &options);
            let reads = futures::stream::iter(keys.to_vec())
                .map(move |key| db.get_with_options(key, options))
                .buffered(READS_AT_ONCE)
                .try_collect();
            inner.watch.run(what, &inner.branch, reads).await
        }
        .boxed()
    }

    fn scan<'a>(&'a self, prefix: &'a [u8], after: Option<&'a [u8]>, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        async move {
            let inner = &self.inner;
            inner.check_open()?;
            let Some(bounds) = scan_bounds(prefix, after, None) else {
                return Ok(Page { rows: Vec::new(), done: true });
            };
            let scan = async {
                let rows = inner.db.scan_with_options(bounds, &scan_options()).await?;
                read_page(rows, limit).await
            };
            inner.watch.run("cannot scan branch", &inner.branch, scan).await
        }
        .boxed()
    }
}

impl StateStore for SlateStore {
    fn write(&self, batch: Vec<Row>) -> BoxFuture<'_, Result<()>> {
        async move {
            let inner = &self.inner;
            inner.check_open()?;
            check_batch(&batch)?;
            if batch.is_empty() {
                return Ok(());
            }
            let mut bytes = 0;
            let mut rows = WriteBatch::new();
            for Row { key, value } in batch {
                bytes += key.len() as u64;
                match value {
                    Some(value) => {
                        bytes += value.len() as u64;
                        rows.put_bytes(key, value);
                    }
                    None => rows.delete(key),
                }
            }
            let options = WriteOptions::default();
            let write = inner.db.write_with_options(rows, &options);
            inner.watch.run("cannot write to branch", &inner.branch, write).await?;
            inner.epoch_bytes.fetch_add(bytes, Ordering::AcqRel);
            Ok(())
        }
        .boxed()
    }

    fn begin_commit(&self, checkpoint: u64) -> BoxFuture<'_, Result<PendingCommit>> {
        async move {
            let inner = &self.inner;
            inner.check_open()?;
            let name = Some(version_name(checkpoint, inner.range));
            let options = CheckpointOptions { name, ..CheckpointOptions::default() };
            let begin = inner.db.begin_checkpoint(CheckpointScope::All, &options);
            let handle = inner.watch.run("cannot commit to branch", &inner.branch, begin).await?;
            let id = handle.id();
            inner.commits.lock().undelivered.insert(id, Landing::Waiting);
            let undelivered = Undelivered { inner: inner.clone(), id };
            let bytes = inner.epoch_bytes.swap(0, Ordering::AcqRel);
            inner.flushing_bytes.fetch_add(bytes, Ordering::AcqRel);
            let (sender, landed) = oneshot::channel();
            inner.root.runtime.spawn(inner.clone().land(id, handle, bytes, sender));
            Ok(async move {
                let inner = &undelivered.inner;
                let manifest_id = match landed.await {
                    _ if inner.closed.load(Ordering::Acquire) => return Err(inner.closed_error()),
                    Ok(landed) => landed?,
                    Err(_) => return Err(inner.closed_error()),
                };
                inner.deliver(id, manifest_id).await
            }
            .boxed())
        }
        .boxed()
    }

    fn upkeep(&self, _completed_checkpoint: u64) {
        let inner = &self.inner;
        let interval = (inner.root.config.gc_min_age / 4).max(Duration::from_millis(250));
        {
            let mut last = inner.last_upkeep.lock();
            if inner.closed.load(Ordering::Acquire) || last.is_some_and(|last| last.elapsed() < interval) {
                return;
            }
            *last = Some(Instant::now());
        }
        let inner = inner.clone();
        self.inner.root.runtime.spawn(async move {
            let branch = inner.branch.clone();
            if let Err(error) = inner.upkeep().await {
                tracing::warn!(%branch, %error, "upkeep failed and is tried again after the next checkpoint");
            }
        });
    }

    fn set_expiry(&self, expiry: Expiry) {
        self.inner.expiring.set(expiry);
    }

    fn memory_bytes(&self) -> u64 {
        let unflushed =
            self.inner.epoch_bytes.load(Ordering::Acquire) + self.inner.flushing_bytes.load(Ordering::Acquire);
        // Full buffers are flushed before any commit.
        unflushed.min(self.inner.root.config.write_buffer_bytes as u64 * 4)
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        async move {
            self.inner.closed.store(true, Ordering::Release);
            let inner = self.inner.clone();
            // As a task: whoever waits may give up, closing goes on.
            let once = self.inner.clone();
            let closing = self
                .inner
                .root
                .runtime
                .spawn(async move { once.close_once.get_or_init(|| inner.close()).await.clone() });
            closing.await.unwrap_or_else(|error| {
                Err(StoreError::new(ErrorKind::Internal, format!("closing a branch failed: {error}")))
            })
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_prefixes() {
        let bytes = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        let included = |key: &[u8]| Bound::Included(bytes(key));
        let excluded = |key: &[u8]| Bound::Excluded(bytes(key));
        assert_eq!(scan_bounds(&[], None, None), Some((included(&[]), Bound::Unbounded)));
        assert_eq!(scan_bounds(&[1, 0xFF], None, None), Some((included(&[1, 0xFF]), excluded(&[2]))));
        assert_eq!(scan_bounds(&[0xFF], None, None), Some((included(&[0xFF]), Bound::Unbounded)));
        assert_eq!(scan_bounds(&[1], Some(&[0, 9]), None), Some((included(&[1]), excluded(&[2]))));
        assert_eq!(scan_bounds(&[1], Some(&[1, 9]), None), Some((excluded(&[1, 9]), excluded(&[2]))));
        assert_eq!(scan_bounds(&[1], Some(&[2]), None), None);
        let range = Some(KeyGroupRange::new(2, 4));
        assert_eq!(scan_bounds(&[], None, range), Some((included(&[0, 2]), excluded(&[0, 5]))));
        assert_eq!(scan_bounds(&[0, 3, 1], None, range), Some((included(&[0, 3, 1]), excluded(&[0, 3, 2]))));
        assert_eq!(scan_bounds(&[0, 5], None, range), None);
        assert_eq!(scan_bounds(&[0, 1], None, range), None);
    }
}
