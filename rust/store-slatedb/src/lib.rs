//! The embedded store: each branch is a SlateDB database on an object store, for now a local or network file system.
//!
//! ```text
//! <root>/branches/<job>/<operator>/<subtask>/<attempt>/   a SlateDB database: manifest/ compacted/ compactions/
//! <root>/pins/<job>/<operator>/<subtask>/<attempt>        an attempt writes to that branch
//! ```
//!
//! * A *version* is a SlateDB checkpoint: `VersionRef::version` is its id, its name is
//!   `weir-<Flink checkpoint>-<first>-<last key group>`, and it has no expiry.
//! * *Opening* at versions writes a pin, clones them (one: a shallow clone; several: a union of projections), opens the
//!   clone, and then looks again that the pin and all it was cloned from are still there.
//! * A branch *goes* when no pin, version, child or reader needs it; then its parents are looked at.
//! * The WAL is off: what is not committed is the engine's to write again.
//!
//! The parts: [`config`] what can be set, `root` how branches come and go, `store` and `reader` the two ways to have one
//! open, `compaction` which files are merged, `expiry` what merging drops, `watch` how endless retries end with their cause.

mod compaction;
pub mod config;
mod expiry;
mod reader;
mod root;
mod store;
#[cfg(test)]
mod tests;
mod watch;

use std::ops::Bound;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use slatedb::admin::{CloneBuilder, CloneSourceSpec};
use slatedb::config::{CompactionWorkerOptions, CompactorOptions, Settings};
use slatedb::{CompactorBuilder, Db};
use tokio::runtime::Handle;
use weir_store::{
    BranchName, ErrorKind, KeyGroupRange, Result, Source, StateReader, StateStore, StoreError, Stores, VersionRef,
    check_sources,
};

pub use compaction::CompactionPolicy;
pub use config::{BlockCache, SlateConfig};
use expiry::Expiring;
use reader::SlateReader;
use root::{Access, Pin, Root, fenced, parse_version_name, parse_version_text, used};
use store::SlateStore;
use watch::WatchedStore;

/// New files that may wait for merging before writes do: far beyond what merging leaves, so that frequent commits do
/// not stall, and yet a bound.
const MAX_NEW_FILES: usize = 512;
/// Merges of one branch that run at once: a long one of old runs must not hold up the new files.
const MERGES_AT_ONCE: usize = 2;

/// The branches of one root. Cheap to clone; all clones share the object store and the cache.
#[derive(Clone)]
pub struct SlateStores {
    root: Arc<Root>,
}

impl SlateStores {
    /// Uses the root that `url` names, `file:///absolute/directory`, which is created when a branch is first opened.
    /// All background work runs on the Tokio runtime that this is called in.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for any other URL, naming what is allowed.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn new(url: &str, config: SlateConfig) -> Result<Self> {
        let directory = config::parse_root(url)?;
        Ok(Self { root: Root::new(url, directory, config, Handle::current()) })
    }

    /// The directory of the root.
    pub fn directory(&self) -> &FilePath {
        self.root.directory()
    }

    /// Removes what nobody comes back for: branches without an attempt that lack all files they ever wrote. An attempt's upkeep
    /// does it too. What is found is removed by a later call, [`SlateConfig::sweep_interval`] or more after; how many branches were.
    pub async fn sweep(&self) -> Result<usize> {
        let Some(access) = Access::new(&self.root, false)? else { return Ok(0) };
        access.sweep().await
    }

    fn settings(&self) -> Settings {
        let config = &self.root.config;
        Settings {
            wal_enabled: false,
            // Checked only to find a full buffer.
            flush_interval: Some(Duration::from_millis(100)),
            manifest_poll_interval: config.compaction_poll,
            l0_sst_size_bytes: config.write_buffer_bytes,
            max_unflushed_bytes: config.write_buffer_bytes * 4,
            l0_max_ssts: MAX_NEW_FILES,
            l0_max_ssts_per_key: MAX_NEW_FILES,
            l0_flush_parallelism: 2,
            // Compaction and garbage collection are set up apart.
            compactor_options: None,
            garbage_collector_options: None,
            ..Settings::default()
        }
    }

    fn compactor_options(&self) -> CompactorOptions {
        let config = &self.root.config;
        CompactorOptions {
            poll_interval: config.compaction_poll,
            commit_compacted_interval: config.compaction_poll,
            max_concurrent_compactions: MERGES_AT_ONCE,
            // Reads under way may still use what was merged.
            checkpoint_lifetime: config.gc_min_age,
            worker: Some(CompactionWorkerOptions {
                max_concurrent_compactions: MERGES_AT_ONCE,
                compactions_poll_interval: config.compaction_poll,
                max_subcompactions: 1,
                max_fetch_tasks: 2,
                ..CompactionWorkerOptions::default()
            }),
            ..CompactorOptions::default()
        }
    }

    /// Clones, opens, and looks again.
    async fn open_pinned(
        &self,
        access: &Access,
        branch: &BranchName,
        pin: Pin,
        sources: &[Source],
        restored_checkpoint: u64,
    ) -> Result<SlateStore> {
        let root = &self.root;
        let path = root.branch_path(branch);
        if access.manifest(branch).await?.is_some() {
            return Err(used(branch));
        }
        let mut specs = Vec::new();
        for source in sources {
            let version = access.version(&source.version).await?;
            access.verify(&source.version, &version).await?;
            let from = root.branch_path(&source.version.branch);
            let mut spec = CloneSourceSpec::with_checkpoint(from, version.id);
            let held = version.name.as_deref().and_then(parse_version_name).map(|(_, range)| range);
            if held.is_none_or(|held| source.range.intersection(held) != Some(held)) {
                spec = spec.with_projection_range(projection(source.range));
            }
            specs.push(spec);
        }
        if let Some((first, others)) = specs.split_first() {
            let admin = access.admin(path.clone());
            let mut builder = admin.create_clone_builder_from_source(first.clone());
            for other in others {
                builder = CloneBuilder::with_source(builder, other.clone());
            }
            if let Err(error) = access.watch().run_opening("cannot restore branch", branch, builder.build()).await {
                if error.kind() == ErrorKind::Corrupt {
                    // Was it taken away meanwhile?
                    for source in sources {
                        access.version(&source.version).await?;
                    }
                }
                return Err(error);
            }
        }
        let watch = root.watch();
        let object = WatchedStore::new(access.object().clone(), watch.clone());
        let (cache, cache_id) = root.config.block_cache.handle();
        let expiring = Arc::new(Expiring::default());
        let compactor = CompactorBuilder::new(path.clone(), object.clone())
            .with_options(self.compactor_options())
            .with_runtime(root.runtime.clone())
            .with_scheduler_supplier(compaction::supplier(root.config.compaction, expiring.clone()))
            .with_compaction_filter_supplier(Arc::new(expiry::Supplier(expiring.clone())));
        let build = Db::builder(path, object)
            .with_settings(self.settings())
            .with_db_cache(cache, cache_id)
            .with_compactor_builder(compactor)
            .build();
        let db = watch.run_opening("cannot open branch", branch, build).await?;
        let store = SlateStore::new(root.clone(), branch.clone(), pin.range, db, watch, expiring);
        // From here on the branch's own holds protect it, if they were made in time.
        if !access.has_pin(branch).await? {
            return Err(fenced(branch));
        }
        for held in store.manifest().external_dbs() {
            let parent = held.path.strip_prefix("branches/").and_then(|path| BranchName::parse(path).ok());
            let (Some(parent), Some(hold)) = (parent, held.final_checkpoint_id) else { continue };
            let manifest = access.manifest(&parent).await?;
            let held = manifest.iter().flat_map(|manifest| manifest.checkpoints()).any(|found| found.id == hold);
            if !held {
                let version = VersionRef { branch: parent, version: hold.to_string() };
                return Err(root.missing(&version));
            }
        }
        access.reap(branch, pin, restored_checkpoint).await?;
        Ok(store)
    }
}

/// The keys of a range of key groups, as SlateDB wants them.
fn projection(range: KeyGroupRange) -> (Bound<Bytes>, Bound<Bytes>) {
    let (lower, upper) = range.key_bounds();
    (Bound::Included(lower), upper.map_or(Bound::Unbounded, Bound::Excluded))
}

impl Stores for SlateStores {
    fn open<'a>(
        &'a self,
        branch: &'a BranchName,
        range: KeyGroupRange,
        sources: &'a [Source],
        restored_checkpoint: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn StateStore>>> {
        async move {
            check_sources(sources)?;
            for (i, source) in sources.iter().enumerate() {
                if sources[..i].iter().any(|other| other.version.branch == source.version.branch) {
                    let message = format!("branch {} is a source twice", source.version.branch);
                    return Err(StoreError::new(ErrorKind::InvalidArgument, message));
                }
            }
            // A missing root is a missing version, not a directory to make.
            let access = Access::new(&self.root, sources.is_empty())?;
            let access = access.ok_or_else(|| self.root.missing(&sources[0].version))?;
            let pin = Pin::now(range);
            access.write_pin(branch, pin).await?;
            let opened = self.open_pinned(&access, branch, pin, sources, restored_checkpoint).await;
            let error = match opened {
                Ok(store) => return Ok(Arc::new(store) as Arc<dyn StateStore>),
                Err(error) => error,
            };
            let cleaned = async {
                access.remove_pin(branch).await?;
                access.collect(branch).await
            };
            if let Err(cleaning) = cleaned.await {
                tracing::warn!(%branch, error = %cleaning, "an opening that failed leaves something behind");
            }
            Err(error)
        }
        .boxed()
    }

    fn open_read_only<'a>(&'a self, source: &'a Source) -> BoxFuture<'a, Result<Arc<dyn StateReader>>> {
        async move {
            let reader = SlateReader::open(&self.root, source).await?;
            Ok(Arc::new(reader) as Arc<dyn StateReader>)
        }
        .boxed()
    }

    fn release<'a>(&'a self, version: &'a VersionRef) -> BoxFuture<'a, Result<()>> {
        async move {
            let Some(access) = Access::new(&self.root, false)? else { return Ok(()) };
            let Some((id, _)) = parse_version_text(&version.version) else { return Ok(()) };
            match access.version(version).await {
                Ok(_) => access.delete_checkpoint(&version.branch, id).await?,
                // Gone already; yet a crash may have come between that and the look at the branch.
                Err(error) if error.kind() == ErrorKind::MissingVersion => {}
                Err(error) => return Err(error),
            }
            access.collect(&version.branch).await?;
            if !access.has_pin(&version.branch).await? && access.manifest(&version.branch).await?.is_some() {
                // No writer keeps it tidy.
                access.collect_garbage(&version.branch, true).await?;
            }
            Ok(())
        }
        .boxed()
    }
}
