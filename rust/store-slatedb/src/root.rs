//! What is at a root, and how branches come and go: pins, checkpoints, reaping, removal.
//!
//! Every change that two processes may make at once follows one rule: *change your own thing first, then look at the
//! others'*. Of two racing removers the later one then sees that all is gone; an opener whose source is taken away while
//! it clones finds no checkpoint to hang its own on.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Error as IoError, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use parking_lot::Mutex;
use slatedb::admin::{Admin, AdminBuilder};
use slatedb::{Checkpoint, VersionedManifest};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use uuid::Uuid;
use weir_store::{BranchName, ErrorKind, KeyGroupRange, Kinship, Result, StoreError, VersionRef};

use crate::config::SlateConfig;
use crate::store::garbage_options;
use crate::watch::{RESTORE, Watch, WatchedStore};

/// Begins the name of every SlateDB checkpoint that is a version: `weir-<checkpoint>-<first>-<last key group>`.
const VERSION_PREFIX: &str = "weir";
/// Names the SlateDB checkpoint that a reader holds.
pub(crate) const READER_NAME: &str = "reader";
/// Garbage collections that run at once in a process, over all branches of a root.
const UPKEEP_PERMITS: usize = 2;

/// One root in one process.
pub(crate) struct Root {
    /// As the user wrote it.
    pub(crate) url: String,
    directory: PathBuf,
    object: Mutex<Option<Arc<dyn ObjectStore>>>,
    pub(crate) config: SlateConfig,
    pub(crate) runtime: Handle,
    pub(crate) upkeep: Semaphore,
    sweep: Mutex<Sweep>,
}

#[derive(Default)]
struct Sweep {
    last: Option<Instant>,
    /// What a sweep found, and when first.
    orphans: HashMap<BranchName, Instant>,
}

/// What a pin says of the attempt that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pin {
    /// Nanoseconds since 1970 by the attempt's clock.
    pub(crate) born: u128,
    pub(crate) range: KeyGroupRange,
}

impl Pin {
    pub(crate) fn now(range: KeyGroupRange) -> Self {
        let born = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        Self { born, range }
    }

    fn encode(&self) -> String {
        format!("weir-pin 1 {} {} {}\n", self.born, self.range.first, self.range.last)
    }

    fn decode(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        if (words.next(), words.next()) != (Some("weir-pin"), Some("1")) {
            return None;
        }
        let born = words.next()?.parse().ok()?;
        let (first, last) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        (first <= last).then_some(Self { born, range: KeyGroupRange { first, last } })
    }
}

/// The name of the SlateDB checkpoint that is a version.
pub(crate) fn version_name(checkpoint: u64, range: KeyGroupRange) -> String {
    format!("{VERSION_PREFIX}-{checkpoint}-{}-{}", range.first, range.last)
}

/// The checkpoint and key groups that [`version_name`] was made of.
pub(crate) fn parse_version_name(name: &str) -> Option<(u64, KeyGroupRange)> {
    let mut parts = name.split('-');
    if parts.next() != Some(VERSION_PREFIX) {
        return None;
    }
    let checkpoint = parts.next()?.parse().ok()?;
    let (first, last) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    (parts.next().is_none() && first <= last).then_some((checkpoint, KeyGroupRange { first, last }))
}

/// What [`VersionRef::version`] says: the SlateDB checkpoint, and the CRC-32 of the file of its manifest, which has no
/// checksum of its own.
pub(crate) fn version_text(id: Uuid, checksum: u32) -> String {
    format!("{id}-{checksum:08x}")
}

/// What [`version_text`] was made of; versions of before it was have no checksum.
pub(crate) fn parse_version_text(text: &str) -> Option<(Uuid, Option<u32>)> {
    match text.rsplit_once('-') {
        Some((id, checksum)) if text.len() == 45 => {
            Some((Uuid::parse_str(id).ok()?, Some(u32::from_str_radix(checksum, 16).ok()?)))
        }
        _ => Some((Uuid::parse_str(text).ok()?, None)),
    }
}

/// Whether a SlateDB checkpoint keeps its branch: a version, a child's hold, a living reader. What the compactor holds
/// for a while for reads under way does not.
fn keeps_branch(checkpoint: &Checkpoint) -> bool {
    match (checkpoint.expire_time, &checkpoint.name) {
        (None, _) => true,
        (Some(expires), Some(name)) if name == READER_NAME => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            i128::from(expires.timestamp_millis()) > now.as_millis() as i128
        }
        _ => false,
    }
}

impl Root {
    pub(crate) fn new(url: &str, directory: PathBuf, config: SlateConfig, runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            url: url.trim_end_matches('/').to_owned(),
            directory,
            object: Mutex::default(),
            config,
            runtime,
            upkeep: Semaphore::new(UPKEEP_PERMITS),
            sweep: Mutex::default(),
        })
    }

    pub(crate) fn directory(&self) -> &FilePath {
        &self.directory
    }

    /// Why there is no such version: tells a directory that is elsewhere from a version that is gone.
    pub(crate) fn missing(&self, version: &VersionRef) -> StoreError {
        let VersionRef { branch, .. } = version;
        let (url, folder) = (&self.url, self.directory.join("branches"));
        let why = if !self.directory.is_dir() {
            format!("the directory {url} is not there: was it moved, or is it not mounted here? Put it back there")
        } else if !folder.is_dir() {
            format!(
                "the directory {url} holds no state: was it emptied, or made anew in the place of one that was moved?"
            )
        } else if !folder.join(branch.path()).is_dir() {
            format!(
                "{url} holds nothing of {branch} any more: its last version was released, or its files were removed"
            )
        } else {
            format!("{branch} is at {url}, but no longer has this version: it was released, or never committed")
        };
        StoreError::new(ErrorKind::MissingVersion, format!("version {version} is missing: {why}"))
    }

    /// The object store of the root, or `None` if its directory is not there and `create` is false.
    pub(crate) fn object(&self, create: bool) -> Result<Option<Arc<dyn ObjectStore>>> {
        let mut object = self.object.lock();
        if let Some(object) = &*object {
            return Ok(Some(object.clone()));
        }
        if !self.directory.is_dir() {
            if !create {
                return Ok(None);
            }
            std::fs::create_dir_all(&self.directory).map_err(|error| {
                let message = format!("cannot create the directory of the store {}: {error}", self.url);
                StoreError::new(ErrorKind::Unavailable, message)
            })?;
        }
        let local = LocalFileSystem::new_with_prefix(&self.directory).map_err(|error| {
            StoreError::new(ErrorKind::Unavailable, format!("cannot use the directory of {}: {error}", self.url))
        })?;
        let local = local.with_automatic_cleanup(true).with_fsync(self.config.fsync);
        Ok(Some(object.insert(Arc::new(local)).clone()))
    }

    #[cfg(test)]
    pub(crate) fn replace_object(&self, object: Arc<dyn ObjectStore>) {
        *self.object.lock() = Some(object);
    }

    pub(crate) fn watch(&self) -> Arc<Watch> {
        Watch::new(self.url.clone(), self.config.store_timeout, self.runtime.clone())
    }

    pub(crate) fn branch_path(&self, branch: &BranchName) -> Path {
        Path::from(format!("branches/{}", branch.path()))
    }

    fn pin_path(&self, branch: &BranchName) -> Path {
        Path::from(format!("pins/{}", branch.path()))
    }
}

/// The root, seen for a while through one [`Watch`]: all that is done to branches other than through their writer.
pub(crate) struct Access {
    pub(crate) root: Arc<Root>,
    object: Arc<dyn ObjectStore>,
    watched: Arc<dyn ObjectStore>,
    watch: Arc<Watch>,
}

impl Access {
    /// `None` if the root is not there and `create` is false.
    pub(crate) fn new(root: &Arc<Root>, create: bool) -> Result<Option<Self>> {
        let Some(object) = root.object(create)? else { return Ok(None) };
        let watch = root.watch();
        let watched = WatchedStore::new(object.clone(), watch.clone());
        Ok(Some(Self { root: root.clone(), object, watched, watch }))
    }

    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// The object store itself, to be seen through another watch.
    pub(crate) fn object(&self) -> &Arc<dyn ObjectStore> {
        &self.object
    }

    pub(crate) fn admin(&self, path: Path) -> Admin {
        AdminBuilder::new(path, self.watched.clone()).build()
    }

    fn io(&self, what: &str, path: &Path, error: &IoError) -> StoreError {
        self.watch.describe_io(what, path, error)
    }

    /// Writes the attempt's pin; an existing one means that the name was used before.
    pub(crate) async fn write_pin(&self, branch: &BranchName, pin: Pin) -> Result<()> {
        let path = self.root.pin_path(branch);
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let mut tries = 0;
        loop {
            match self.object.put_opts(&path, pin.encode().into(), options.clone()).await {
                Ok(_) => return Ok(()),
                Err(IoError::AlreadyExists { .. }) => return Err(used(branch)),
                // Another process may remove the emptied folder in between.
                Err(_) if tries < 2 => tries += 1,
                Err(error) => return Err(self.io("cannot write the pin", &path, &error)),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn has_pin(&self, branch: &BranchName) -> Result<bool> {
        let path = self.root.pin_path(branch);
        match self.object.head(&path).await {
            Ok(_) => Ok(true),
            Err(IoError::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.io("cannot read the pin", &path, &error)),
        }
    }

    async fn read_pin(&self, branch: &BranchName) -> Result<Option<Pin>> {
        let path = self.root.pin_path(branch);
        let read = async { self.object.get(&path).await?.bytes().await };
        match read.await {
            Ok(bytes) => {
                let pin = std::str::from_utf8(&bytes).ok().and_then(Pin::decode);
                let corrupt = || StoreError::new(ErrorKind::Corrupt, format!("{}/{path} is not a pin", self.root.url));
                pin.map(Some).ok_or_else(corrupt)
            }
            Err(IoError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.io("cannot read the pin", &path, &error)),
        }
    }

    pub(crate) async fn remove_pin(&self, branch: &BranchName) -> Result<()> {
        let path = self.root.pin_path(branch);
        match self.object.delete(&path).await {
            Ok(()) | Err(IoError::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.io("cannot remove the pin", &path, &error)),
        }
    }

    /// The newest manifest of a branch, or `None` if there is none.
    pub(crate) async fn manifest(&self, branch: &BranchName) -> Result<Option<VersionedManifest>> {
        let admin = self.admin(self.root.branch_path(branch));
        self.watch.run_opening("cannot read branch", &branch, admin.read_manifest(None)).await
    }

    /// The SlateDB checkpoint that is `version`.
    pub(crate) async fn version(&self, version: &VersionRef) -> Result<Checkpoint> {
        let absent = || self.root.missing(version);
        let (id, _) = parse_version_text(&version.version).ok_or_else(absent)?;
        let manifest = self.manifest(&version.branch).await?.ok_or_else(absent)?;
        let found = manifest.checkpoints().iter().find(|checkpoint| checkpoint.id == id);
        let named = |checkpoint: &&Checkpoint| checkpoint.name.as_deref().and_then(parse_version_name).is_some();
        found.filter(named).cloned().ok_or_else(absent)
    }

    /// The CRC-32 of a manifest's file.
    pub(crate) async fn manifest_checksum(&self, branch: &BranchName, manifest_id: u64) -> Result<u32> {
        let path = self.root.branch_path(branch).join("manifest").join(format!("{manifest_id:020}.manifest"));
        let read = async { self.object.get(&path).await?.bytes().await };
        let bytes = read.await.map_err(|error| self.io("cannot read", &path, &error))?;
        Ok(crc32fast::hash(&bytes))
    }

    /// Whether the manifest of a version is as it was when the version was committed.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] naming the file.
    pub(crate) async fn verify(&self, version: &VersionRef, checkpoint: &Checkpoint) -> Result<()> {
        let Some((_, Some(expected))) = parse_version_text(&version.version) else { return Ok(()) };
        let VersionRef { branch, .. } = version;
        let found = self.manifest_checksum(branch, checkpoint.manifest_id).await?;
        if found == expected {
            return Ok(());
        }
        let file = format!("{}/branches/{branch}/manifest/{:020}.manifest", self.root.url, checkpoint.manifest_id);
        let message = format!(
            "version {version}: the manifest {file} is damaged: its CRC-32 is {found:08x}, that of the version {expected:08x}. {RESTORE}"
        );
        Err(StoreError::new(ErrorKind::Corrupt, message))
    }

    pub(crate) async fn delete_checkpoint(&self, branch: &BranchName, id: Uuid) -> Result<()> {
        let admin = self.admin(self.root.branch_path(branch));
        self.watch.run("cannot release a version of", branch, admin.delete_checkpoint(id)).await
    }

    /// Removes `branch` if nothing needs it any more, and then every branch that only it needed.
    pub(crate) async fn collect(&self, branch: &BranchName) -> Result<()> {
        let mut left = vec![branch.clone()];
        while let Some(branch) = left.pop() {
            if self.has_pin(&branch).await? {
                continue;
            }
            let Some(manifest) = self.manifest(&branch).await? else {
                self.purge(&branch).await?;
                continue;
            };
            if manifest.checkpoints().iter().any(keeps_branch) {
                continue;
            }
            let parents: BTreeSet<String> = manifest.external_dbs().iter().map(|db| db.path.clone()).collect();
            self.delete_database(&branch).await?;
            tracing::debug!(%branch, "removed a branch that nothing needs");
            left.extend(parents.iter().filter_map(|path| BranchName::parse(path.strip_prefix("branches/")?).ok()));
        }
        Ok(())
    }

    /// The branches that `branch` has holds on.
    pub(crate) async fn parents(&self, branch: &BranchName) -> Result<BTreeSet<BranchName>> {
        let manifest = self.manifest(branch).await?;
        let held = manifest.iter().flat_map(|manifest| manifest.external_dbs());
        Ok(held.filter_map(|db| BranchName::parse(db.path.strip_prefix("branches/")?).ok()).collect())
    }

    /// Deletes the files of `branch` that are old enough and that nothing needs, and lets go of parents that it does not read
    /// from any more. `quiet` says that no file is on its way into the branch.
    pub(crate) async fn collect_garbage(&self, branch: &BranchName, quiet: bool) -> Result<()> {
        let result = self.collect_garbage_of(branch, quiet).await;
        if result.is_err() && matches!(self.manifest(branch).await, Ok(None)) {
            return Ok(()); // The branch was removed meanwhile, and its garbage with it.
        }
        result
    }

    async fn collect_garbage_of(&self, branch: &BranchName, quiet: bool) -> Result<()> {
        let before = self.parents(branch).await?;
        let admin = self.admin(self.root.branch_path(branch));
        let collected = admin.run_gc_once(garbage_options(self.root.config.gc_min_age));
        self.watch.run("cannot collect the garbage of", branch, collected).await?;
        if quiet {
            self.delete_unneeded(&admin, branch).await?;
        }
        for parent in before.difference(&self.parents(branch).await?) {
            self.collect(parent).await?;
        }
        Ok(())
    }

    /// SlateDB deletes nothing that is newer than the newest file that was written rather than merged, since a file newer than
    /// that may be about to be added. In a branch that nobody writes to, runs that were merged since would stay for ever.
    async fn delete_unneeded(&self, admin: &Admin, branch: &BranchName) -> Result<()> {
        const WHAT: &str = "cannot collect the garbage of";
        let view = self.watch.run(WHAT, branch, admin.read_compactor_state_view()).await?;
        let compactions = view.compactions().into_iter().flat_map(|compactions| compactions.recent_compactions());
        if compactions.into_iter().any(|compaction| compaction.active()) {
            return Ok(());
        }
        let mut needed: BTreeSet<String> = sst_names(view.manifest()).into_iter().collect();
        for checkpoint in view.manifest().checkpoints() {
            let manifest = admin.read_manifest(Some(checkpoint.manifest_id));
            match self.watch.run(WHAT, branch, manifest).await? {
                Some(manifest) => needed.extend(sst_names(&manifest)),
                // Was released meanwhile: the next look sees why.
                None => return Ok(()),
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i128;
        let min_age = self.root.config.gc_min_age.as_millis() as i128;
        for file in self.compacted_files(branch).await? {
            let old = now - i128::from(file.last_modified.timestamp_millis()) > min_age;
            if !old || sst_name(&file).is_none_or(|name| needed.contains(name)) {
                continue;
            }
            match self.object.delete(&file.location).await {
                Ok(()) | Err(IoError::NotFound { .. }) => {}
                Err(error) => return Err(self.io("cannot remove", &file.location, &error)),
            }
        }
        Ok(())
    }

    /// Removes the orphans of the whole root that an earlier sweep has found too, if the last sweep is long enough ago; how
    /// many there were. Whoever works on a branch has a pin.
    pub(crate) async fn sweep(&self) -> Result<usize> {
        let interval = self.root.config.sweep_interval;
        let now = Instant::now();
        {
            let mut sweep = self.root.sweep.lock();
            if sweep.last.is_some_and(|last| now - last < interval) {
                return Ok(0);
            }
            sweep.last = Some(now);
        }
        let mut found = BTreeSet::new();
        for job in self.folders(&Path::from("branches")).await? {
            for operator in self.folders(&Path::from(format!("branches/{job}"))).await? {
                for branch in self.attempts(&job, &operator).await? {
                    if self.is_orphan(&branch).await? {
                        found.insert(branch);
                    }
                }
            }
        }
        let due: Vec<BranchName> = {
            let orphans = &mut self.root.sweep.lock().orphans;
            orphans.retain(|branch, _| found.contains(branch));
            for branch in found {
                orphans.entry(branch).or_insert(now);
            }
            let due = orphans.iter().filter(|(_, since)| now - **since >= interval);
            due.map(|(branch, _)| branch.clone()).collect()
        };
        let mut removed = 0;
        for branch in due {
            if self.is_orphan(&branch).await? {
                let parents = self.parents(&branch).await?;
                match self.manifest(&branch).await? {
                    Some(_) => self.delete_database(&branch).await?,
                    None => self.purge(&branch).await?,
                }
                removed += 1;
                tracing::info!(%branch, "removed a branch that nobody comes back for");
                for parent in &parents {
                    self.collect(parent).await?;
                }
            }
            self.root.sweep.lock().orphans.remove(&branch);
        }
        Ok(removed)
    }

    /// Whether a branch is of no use to anyone: no attempt works on it, and whatever would keep it cannot be read, as all
    /// files that it wrote are gone. That is what is left when a zombie brings back the manifest of a branch that was
    /// removed, or when removing it was interrupted.
    async fn is_orphan(&self, branch: &BranchName) -> Result<bool> {
        if self.has_pin(branch).await? {
            return Ok(false);
        }
        let Some(manifest) = self.manifest(branch).await? else { return Ok(true) };
        let files = self.compacted_files(branch).await?;
        let names: BTreeSet<&str> = files.iter().filter_map(sst_name).collect();
        for checkpoint in manifest.checkpoints().iter().filter(|checkpoint| keeps_branch(checkpoint)) {
            let admin = self.admin(self.root.branch_path(branch));
            let reading = admin.read_manifest(Some(checkpoint.manifest_id));
            let Some(version) = self.watch.run("cannot read branch", branch, reading).await? else { continue };
            let external: BTreeSet<String> = version
                .external_dbs()
                .iter()
                .flat_map(|db| db.sst_ids.iter().map(|id| id.value().to_string()))
                .collect();
            let mut own = sst_names(&version).into_iter().filter(|name| !external.contains(name)).peekable();
            // Of a version that wrote nothing itself nothing can be missing.
            if own.peek().is_none() || own.any(|name| names.contains(name.as_str())) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn compacted_files(&self, branch: &BranchName) -> Result<Vec<ObjectMeta>> {
        let path = self.root.branch_path(branch).join("compacted");
        match self.watched.list(Some(&path)).try_collect().await {
            Ok(files) => Ok(files),
            Err(IoError::NotFound { .. }) => Ok(Vec::new()),
            Err(error) => Err(self.io("cannot list", &path, &error)),
        }
    }

    /// Deletes the database of a branch, its holds on its parents first. Another process may be doing the same.
    async fn delete_database(&self, branch: &BranchName) -> Result<()> {
        let admin = self.admin(self.root.branch_path(branch));
        for _ in 0..3 {
            let deleted = self.watch.run("cannot remove branch", &branch, admin.delete_db(true)).await;
            match deleted {
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    tracing::debug!(%branch, %error, "the branch is being removed by someone else too");
                }
                Err(error) => return Err(error),
            }
        }
        self.purge(branch).await
    }

    /// Deletes what is left under a branch that has no manifest.
    async fn purge(&self, branch: &BranchName) -> Result<()> {
        let path = self.root.branch_path(branch);
        let left: Vec<_> = match self.watched.list(Some(&path)).try_collect().await {
            Ok(left) => left,
            Err(IoError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(self.io("cannot list", &path, &error)),
        };
        for file in left {
            match self.object.delete(&file.location).await {
                Ok(()) | Err(IoError::NotFound { .. }) => {}
                Err(error) => return Err(self.io("cannot remove", &file.location, &error)),
            }
        }
        Ok(())
    }

    async fn folders(&self, path: &Path) -> Result<Vec<String>> {
        let listed = self.watched.list_with_delimiter(Some(path)).await;
        let listed = listed.map_err(|error| self.io("cannot list", path, &error))?;
        let names = listed.common_prefixes.into_iter();
        Ok(names.filter_map(|folder| folder.filename().map(str::to_owned)).collect())
    }

    /// Every attempt of `job`/`operator` that left a database or a pin.
    async fn attempts(&self, job: &str, operator: &str) -> Result<BTreeSet<BranchName>> {
        let mut attempts = BTreeSet::new();
        let path = Path::from(format!("branches/{job}/{operator}"));
        for subtask in self.folders(&path).await? {
            for attempt in self.folders(&path.clone().join(subtask.as_str())).await? {
                attempts.extend(BranchName::parse(&format!("{job}/{operator}/{subtask}/{attempt}")));
            }
        }
        let path = Path::from(format!("pins/{job}/{operator}"));
        let pins: Vec<_> = match self.watched.list(Some(&path)).try_collect().await {
            Ok(pins) => pins,
            Err(IoError::NotFound { .. }) => Vec::new(),
            Err(error) => return Err(self.io("cannot list", &path, &error)),
        };
        attempts.extend(pins.iter().filter_map(|pin| {
            let pin = pin.location.as_ref().strip_prefix("pins/")?;
            BranchName::parse(pin).ok()
        }));
        Ok(attempts)
    }

    /// Drops the pins of earlier attempts of the same subtask, or, after a rescale, of subtasks that start in `own`'s
    /// key groups, and releases the same run's versions later than `restored_checkpoint`; see [`Stores::open`].
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`] if a later attempt has reaped this one meanwhile; any other failure is only reported, the
    /// next attempt tries again.
    pub(crate) async fn reap(&self, own: &BranchName, pin: Pin, restored_checkpoint: u64) -> Result<()> {
        let [job, operator, ..] = own.components();
        let attempts = match self.attempts(job, operator).await {
            Ok(attempts) => attempts,
            Err(error) => {
                tracing::warn!(branch = %own, %error, "cannot look for earlier attempts");
                return Ok(());
            }
        };
        for attempt in attempts.iter().filter(|attempt| *attempt != own && !are_siblings(own, attempt)) {
            match self.reap_one(own, pin, attempt, restored_checkpoint).await {
                Err(error) if error.kind() == ErrorKind::Fenced => return Err(error),
                Err(error) => tracing::warn!(branch = %attempt, %error, "cannot reap an earlier attempt"),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    async fn reap_one(&self, own: &BranchName, own_pin: Pin, attempt: &BranchName, restored: u64) -> Result<()> {
        let kinship = own.kinship(attempt);
        if kinship == Kinship::SameAttempt {
            return Ok(());
        }
        let same_subtask = attempt.components()[2] == own.components()[2];
        let starts_in_range = |range: KeyGroupRange| (own_pin.range.first..=own_pin.range.last).contains(&range.first);
        let pin = self.read_pin(attempt).await?;
        if pin.is_some_and(|pin| !same_subtask && !starts_in_range(pin.range)) {
            return Ok(());
        }
        if pin.is_some_and(|pin| (pin.born, attempt.path()) > (own_pin.born, own.path())) {
            // Later than this attempt: this one is the zombie.
            return Ok(());
        }
        let manifest = self.manifest(attempt).await?;
        let versions: Vec<(u64, KeyGroupRange, &Checkpoint)> = manifest
            .iter()
            .flat_map(|manifest| manifest.checkpoints())
            .filter_map(|checkpoint| {
                let (number, range) = parse_version_name(checkpoint.name.as_deref()?)?;
                Some((number, range, checkpoint))
            })
            .collect();
        let range = pin.map(|pin| pin.range).or_else(|| versions.first().map(|(_, range, _)| *range));
        if !same_subtask && !range.is_some_and(starts_in_range) {
            return Ok(());
        }
        if !self.has_pin(own).await? {
            return Err(fenced(own));
        }
        self.remove_pin(attempt).await?;
        // Of another run a user may have retained what this one did not restore.
        for (number, _, checkpoint) in versions.into_iter().filter(|_| kinship == Kinship::SameRun) {
            let created = u128::try_from(checkpoint.create_time.timestamp_micros()).unwrap_or_default() * 1000;
            if number > restored && created <= own_pin.born {
                tracing::info!(branch = %attempt, checkpoint = number, "releasing a version that no checkpoint kept");
                self.delete_checkpoint(attempt, checkpoint.id).await?;
            }
        }
        self.collect(attempt).await
    }
}

/// The files that a manifest names, its parents' included.
fn sst_names(manifest: &VersionedManifest) -> Vec<String> {
    manifest.all_sst_views().map(|view| view.sst.id.value().to_string()).collect()
}

fn sst_name(file: &ObjectMeta) -> Option<&str> {
    file.location.filename()?.strip_suffix(".sst")
}

/// Whether two branches are of different subtasks, `<index>-of-<parallelism>`, of one parallelism: such never start in each
/// other's key groups, so that an opener need not read what all its siblings left.
fn are_siblings(one: &BranchName, other: &BranchName) -> bool {
    let (one, other) = (one.components()[2], other.components()[2]);
    match (one.split_once("-of-"), other.split_once("-of-")) {
        (Some((of_one, all)), Some((of_other, all_others))) => of_one != of_other && all == all_others,
        _ => false,
    }
}

pub(crate) fn used(branch: &BranchName) -> StoreError {
    let message = format!("branch {branch} is there already: each attempt opens a new one");
    StoreError::new(ErrorKind::InvalidArgument, message)
}

pub(crate) fn fenced(branch: &BranchName) -> StoreError {
    let message =
        format!("the pin of branch {branch} is gone: a later attempt took over, or its directory was removed");
    StoreError::new(ErrorKind::Fenced, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_share_their_parallelism() {
        let siblings = |one: &str, other: &str| {
            let name = |subtask: &str| BranchName::parse(&format!("job/op/{subtask}/a")).unwrap();
            are_siblings(&name(one), &name(other))
        };
        assert!(siblings("0-of-2", "1-of-2"));
        assert!(!siblings("0-of-2", "0-of-2"));
        assert!(!siblings("0-of-2", "1-of-3"));
        assert!(!siblings("0", "1"));
    }

    #[test]
    fn pins_and_version_names_come_back() {
        let pin = Pin::now(KeyGroupRange::new(3, 70));
        assert_eq!(Pin::decode(&pin.encode()), Some(pin));
        for bad in ["", "weir-pin 2 1 0 1", "weir-pin 1 1 5 1", "weir-pin 1 x 0 1", "weir-pin 1 1 0"] {
            assert_eq!(Pin::decode(bad), None, "{bad}");
        }
        let name = version_name(17, KeyGroupRange::new(0, 63));
        assert_eq!(name, "weir-17-0-63");
        assert_eq!(parse_version_name(&name), Some((17, KeyGroupRange::new(0, 63))));
        let id = Uuid::new_v4();
        let text = version_text(id, 0xab);
        assert!(text.len() <= 64 && text.ends_with("-000000ab"), "{text}");
        assert_eq!(parse_version_text(&text), Some((id, Some(0xab))));
        assert_eq!(parse_version_text(&id.to_string()), Some((id, None)));
        for bad in ["", "1", &text[1..], &text.replace("ab", "xy")] {
            assert_eq!(parse_version_text(bad), None, "{bad}");
        }
        for bad in ["", "reader", "weir-1-0", "weir-1-5-1", "weir-1-0-5-7", "other-1-0-5"] {
            assert_eq!(parse_version_name(bad), None, "{bad}");
        }
    }
}
