//! What can be set, and the root.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slatedb::db_cache::DbCache;
use slatedb::db_cache::foyer::{FoyerCache, FoyerCacheOptions};
use weir_store::{ErrorKind, Result, StoreError};

use crate::compaction::CompactionPolicy;

/// A cache of blocks, indexes and filters, shared by every branch that is opened with a clone of it. A process has one
/// a memory budget.
#[derive(Clone)]
pub struct BlockCache {
    cache: Arc<dyn DbCache>,
    capacity: u64,
}

impl BlockCache {
    /// A cache of at most `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        // Fewer shards than cores would contend; more would make large entries overflow their shard of a small cache.
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let shards = cores.min((capacity >> 22).max(1) as usize);
        let cache = FoyerCache::new_with_opts(FoyerCacheOptions { max_capacity: capacity, shards });
        Self { cache: Arc::new(cache), capacity }
    }

    /// Bytes it may hold.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The cache and an id under which no other database has entries: ids of SSTs are unique only in a database.
    pub(crate) fn handle(&self) -> (Arc<dyn DbCache>, u64) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        (self.cache.clone(), NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Settings of the branches of one root in one process. `Default` suits production on a local or network file system.
#[derive(Clone)]
pub struct SlateConfig {
    /// A branch writes a file when so many bytes are unflushed; it keeps at most four times as many in memory.
    pub write_buffer_bytes: usize,
    pub block_cache: BlockCache,
    /// Files that nothing refers to stay for so long. Must exceed any pause of a process: a writer that slept for
    /// longer could believe in a commit that others no longer see.
    pub gc_min_age: Duration,
    /// How long I/O may keep failing before a call ends with [`ErrorKind::Unavailable`].
    pub store_timeout: Duration,
    /// How long [`weir_store::StateStore::close`] waits for what is under way.
    pub close_timeout: Duration,
    /// How often a branch looks for work to merge. New files are visible to merging, and merged ones to reads, about
    /// so late.
    pub compaction_poll: Duration,
    pub compaction: CompactionPolicy,
    /// Whether files are forced to the disk before a commit counts: without it a commit survives the process, but
    /// perhaps not the machine.
    pub fsync: bool,
    /// How long a reader that died without closing keeps its version.
    pub reader_lease: Duration,
    /// How often the root is swept for what nobody comes back for; it is removed when two sweeps have found it. Longer
    /// than any checkpoint takes.
    pub sweep_interval: Duration,
}

impl Default for SlateConfig {
    fn default() -> Self {
        Self {
            write_buffer_bytes: 32 << 20,
            block_cache: BlockCache::new(64 << 20),
            gc_min_age: Duration::from_secs(300),
            store_timeout: Duration::from_secs(60),
            close_timeout: Duration::from_secs(10),
            compaction_poll: Duration::from_secs(1),
            compaction: CompactionPolicy::default(),
            fsync: true,
            reader_lease: Duration::from_secs(900),
            sweep_interval: Duration::from_secs(3600),
        }
    }
}

/// The directory that a root URL names.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] naming the scheme and what is allowed.
pub(crate) fn parse_root(root: &str) -> Result<PathBuf> {
    let refuse = |why: String| {
        let message = format!("'{root}' cannot be a store root: {why}; allowed is file:///absolute/directory");
        Err(StoreError::new(ErrorKind::InvalidArgument, message))
    };
    let url = match url::Url::parse(root) {
        Ok(url) => url,
        Err(error) => return refuse(error.to_string()),
    };
    if url.scheme() != "file" {
        return refuse(format!("the scheme '{}' is not supported", url.scheme()));
    }
    match url.to_file_path() {
        Ok(path) if path.parent().is_some() => Ok(path),
        Ok(_) => refuse("it is the root directory".into()),
        Err(()) => refuse("it has a host or no absolute path".into()),
    }
}
