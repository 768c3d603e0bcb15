//! Fluss as the home of state: the rows of all attempts of an operator in one primary-key table, told apart by who wrote
//! them.
//!
//! ```text
//! <database>.<job>__<operator>   the rows, and the chain rows that prove them
//!     PK (bucket, key_group, state, key1 … key4, key_rest, generation, slot), epoch, state_value
//! <database>.weir-control        branches, pins, versions, readers
//!     PK (t, k), v
//! ```
//!
//! Fluss overwrites in place, fences no writer and has no snapshots. So the writer is in the key: each opening of a branch
//! is a *generation*, and writes rows of its own only. What a branch or version sees is its *lineage*: for each range
//! of key groups the generations, newest first, and the last epoch of each that counts. Opening at a version moves no
//! row. A server's answer counts only with a *proof*: the last chain row that is known to lie behind everything that the
//! answer must hold.
//!
//! The parts: [`config`] what can be set, `client` connections and the defects of the client, `tables` what the tables
//! are like, `encoding` their rows, `control` who is there, `lineage` who sees what, `view` reading, `slots` where a row
//! is overwritten, `store` writing and committing, `reader` versions to read, `garbage` what goes when.

mod client;
pub mod config;
mod control;
mod encoding;
mod garbage;
mod lineage;
mod reader;
mod slots;
mod store;
mod tables;
mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use uuid::Uuid;
use weir_store::{
    BranchName, ErrorKind, KeyGroupRange, Kinship, Result, Source, StateReader, StateStore, StoreError, Stores,
    VersionRef, check_sources,
};

use client::{Ask, Lookups, Writer};
pub use config::{Credentials, FlussConfig};
use control::{Control, Entry, Kind, now};
use lineage::{Lineage, TableRef};
use reader::FlussReader;
use store::FlussStore;
use tables::{Table, Tables, home};
use view::{View, buckets_of};

/// The branches of one database. Cheap to clone; all clones share the connections.
#[derive(Clone)]
pub struct FlussStores {
    config: Arc<FlussConfig>,
    shared: Arc<OnceCell<Arc<Shared>>>,
}

/// What all branches of a process share.
struct Shared {
    config: Arc<FlussConfig>,
    lookups: Arc<Lookups>,
    tables: Tables,
    control: Control,
    runtime: Handle,
}

impl Shared {
    /// `None` if there is no control table and none is to be made.
    async fn connect(config: &Arc<FlussConfig>, create: bool) -> Result<Option<Arc<Self>>> {
        let lookups = Arc::new(Lookups::new(config).await?);
        let writer = Arc::new(Writer::new(config, false).await?);
        let tables = Tables::new(FlussConfig::clone(config));
        let Some(table) = tables.control(&writer, &lookups, create).await? else { return Ok(None) };
        let control = Control::new(table, writer, lookups.clone(), random());
        Ok(Some(Arc::new(Self { config: config.clone(), lookups, tables, control, runtime: Handle::current() })))
    }

    async fn rows_table(&self, name: &str, create: bool) -> Result<Option<Arc<Table>>> {
        self.tables.rows(self.control.writer(), &self.lookups, name, create).await
    }

    /// The tables of a lineage, as they were when it was written down.
    async fn view(&self, lineage: Lineage, of: &VersionRef) -> Result<View> {
        let mut tables = Vec::new();
        for TableRef { name, id } in &lineage.tables {
            let table = self.rows_table(name, false).await?;
            let table = table.ok_or_else(|| missing(of, &format!("table {name} is gone")))?;
            if table.id != *id {
                return Err(missing(of, &format!("table {name} was dropped and made again")));
            }
            tables.push(table);
        }
        Ok(View { lineage: lineage.into(), tables: tables.into() })
    }

    /// Collects garbage in the background.
    fn collect_later(self: &Arc<Self>, groups: BTreeSet<String>) -> tokio::task::JoinHandle<()> {
        let shared = self.clone();
        self.runtime.spawn(async move {
            if let Err(error) = garbage::collect(&shared, groups).await {
                tracing::warn!(%error, "garbage stays until the next attempt or release");
            }
        })
    }
}

fn random() -> u64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    (high ^ low).max(1)
}

fn missing(version: &VersionRef, why: &str) -> StoreError {
    StoreError::new(
        ErrorKind::MissingVersion,
        format!("version {version} is not in Fluss ({why}): restore from another checkpoint"),
    )
}

fn fenced(branch: &BranchName) -> StoreError {
    StoreError::new(ErrorKind::Fenced, format!("a later attempt took over from branch {branch}"))
}

fn groups_of<'e>(entries: impl IntoIterator<Item = &'e Entry>) -> BTreeSet<String> {
    entries.into_iter().flat_map(Entry::groups).collect()
}

impl FlussStores {
    /// Connects when a branch is first opened or a version released.
    pub fn new(config: FlussConfig) -> Self {
        Self { config: Arc::new(config), shared: Arc::default() }
    }

    async fn shared(&self) -> Result<&Arc<Shared>> {
        let connect = async || Ok(Shared::connect(&self.config, true).await?.expect("made if it is missing"));
        self.shared.get_or_try_init(connect).await
    }

    /// `None` where no branch was ever opened; nothing is made there.
    async fn shared_if_there(&self) -> Result<Option<&Arc<Shared>>> {
        let connect = async || Shared::connect(&self.config, false).await.map_err(Some)?.ok_or(None);
        match self.shared.get_or_try_init(connect).await {
            Ok(shared) => Ok(Some(shared)),
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
    }

    /// The paths of all branches of which anything is left.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the cluster does not answer.
    pub async fn branches(&self) -> Result<Vec<String>> {
        let entries = self.shared().await?.control.read_database().await?;
        let paths: BTreeSet<String> = entries.iter().map(|entry| entry.branch.path().to_owned()).collect();
        Ok(paths.into_iter().collect())
    }

    /// How many rows lie in the table that a branch's first attempt made, seen by anybody or not; 0 without such a table.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the cluster does not answer.
    pub async fn stored_rows(&self, branch: &BranchName) -> Result<usize> {
        let shared = self.shared().await?;
        let Some(table) = shared.rows_table(&home(branch), false).await? else { return Ok(0) };
        let whole = |bucket| Ask { bucket, prefix: vec![table.b(bucket) as u8].into() };
        let all = shared.lookups.get(&table, &HashMap::new(), (0..table.buckets()).map(whole).collect()).await?;
        let chain = |bucket| Ask { bucket, prefix: encoding::chain_rows(table.b(bucket)).into() };
        let chains = shared.lookups.get(&table, &HashMap::new(), (0..table.buckets()).map(chain).collect()).await?;
        let count = |rows: Vec<Vec<Vec<u8>>>| rows.iter().map(Vec::len).sum::<usize>();
        Ok(count(all) - count(chains))
    }

    /// The entries of versions, and the groups that they lie in.
    async fn find(shared: &Shared, sources: &[Source]) -> Result<Vec<Entry>> {
        let mut groups: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        let mut found = Vec::new();
        for Source { version, .. } in sources {
            let group = home(&version.branch);
            if !groups.contains_key(&group) {
                groups.insert(group.clone(), shared.control.read(&group).await?);
            }
            let is_it = |entry: &&Entry| {
                entry.kind == Kind::Version && entry.branch == version.branch && entry.id == version.version
            };
            let entry = groups[&group].iter().find(is_it);
            found.push(entry.ok_or_else(|| missing(version, "it was released or never committed"))?.clone());
        }
        Ok(found)
    }

    /// What a branch on `range` of `home` sees of its sources; its own table is the first.
    async fn lineage(shared: &Shared, branch: &BranchName, sources: &[Source], found: &[Entry]) -> Result<(View, u64)> {
        let table = match found.first() {
            Some(entry) => entry.lineage.tables[0].clone(),
            None => {
                let name = home(branch);
                let table = shared.rows_table(&name, true).await?.expect("made if it is missing");
                TableRef { name: name.into(), id: table.id }
            }
        };
        let mut lineage = Lineage::default();
        lineage.table(&table);
        let mut bytes = 0;
        for (source, entry) in sources.iter().zip(found) {
            let of_source = shared.view(entry.lineage.clone(), &source.version).await?;
            let buckets: Vec<Vec<i32>> = of_source.tables.iter().map(|table| buckets_of(table, source.range)).collect();
            lineage.add(&entry.lineage, source.range, |proof| buckets[proof.table].contains(&proof.bucket));
            let all = u64::from(entry.range.last - entry.range.first) + 1;
            let taken =
                source.range.intersection(entry.range).map_or(0, |range| u64::from(range.last - range.first) + 1);
            bytes += entry.bytes / all * taken + entry.bytes % all * taken / all;
        }
        let named = VersionRef { branch: branch.clone(), version: "its sources".to_owned() };
        let of = sources.first().map_or(&named, |source| &source.version);
        Ok((shared.view(lineage, of).await?, bytes))
    }

    /// What [`Stores::open`] says of earlier attempts.
    async fn reap(shared: &Arc<Shared>, own: &Entry, restored_checkpoint: u64) -> Result<()> {
        let [job, operator, subtask, _] = own.branch.components();
        let earlier = |entry: &Entry| {
            let [its_job, its_operator, its_subtask, _] = entry.branch.components();
            entry.branch != own.branch
                && (its_job, its_operator) == (job, operator)
                && entry.born <= own.born
                && (its_subtask == subtask || (own.range.first..=own.range.last).contains(&entry.range.first))
                && own.branch.kinship(&entry.branch) != Kinship::SameAttempt
        };
        let group = home(&own.branch);
        let entries = shared.control.read(&group).await?;
        let reaped: Vec<&Entry> = entries.iter().filter(|entry| entry.kind != Kind::Reader && earlier(entry)).collect();
        if reaped.is_empty() {
            return Ok(());
        }
        shared.control.remove(reaped.iter().copied().filter(|entry| entry.kind == Kind::Pin)).await?;
        // A commit under way either sees that its pin is gone, or its version is seen here.
        let entries = shared.control.read(&group).await?;
        let lost = entries.iter().filter(|entry| {
            entry.kind == Kind::Version
                && earlier(entry)
                && entry.checkpoint > restored_checkpoint
                && own.branch.kinship(&entry.branch) == Kinship::SameRun
        });
        shared.control.remove(lost).await?;
        shared.collect_later(groups_of(reaped));
        Ok(())
    }
}

impl Stores for FlussStores {
    fn open<'a>(
        &'a self,
        branch: &'a BranchName,
        range: KeyGroupRange,
        sources: &'a [Source],
        restored_checkpoint: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn StateStore>>> {
        async move {
            check_sources(sources)?;
            let shared = self.shared().await?;
            let found = Self::find(shared, sources).await?;
            let (view, bytes) = Self::lineage(shared, branch, sources, &found).await?;
            let entry = |kind| Entry {
                kind,
                branch: branch.clone(),
                id: String::new(),
                generation: 0,
                range,
                born: now(),
                expires: 0,
                checkpoint: restored_checkpoint,
                bytes,
                lineage: Lineage::clone(&view.lineage),
            };
            let home = home(branch);
            let used = shared.control.read(&home).await?.into_iter().any(|entry| &entry.branch == branch);
            if used {
                let message = format!("branch {branch} is there already: each attempt opens a new one");
                return Err(StoreError::new(ErrorKind::InvalidArgument, message));
            }
            // The pin first: a branch without one is garbage.
            let pin = shared.control.put_pin(entry(Kind::Pin), shared.config.timeout).await?;
            let generation = pin.generation;
            let mark = Entry { kind: Kind::Branch, ..pin.clone() };
            let opened = async {
                shared.control.put(&mark).await?;
                // Whoever released a source meanwhile has either seen the pin, or is seen here.
                Self::find(shared, sources).await?;
                view.verify(&shared.lookups).await?;
                let store = FlussStore::open(shared.clone(), pin.clone(), view).await?;
                Self::reap(shared, &pin, restored_checkpoint).await?;
                let entries = shared.control.read(&home).await?;
                let pins = entries.iter().filter(|entry| entry.kind == Kind::Pin && &entry.branch == branch);
                let generations: Vec<u64> = pins.map(|entry| entry.generation).collect();
                if generations == [generation] { Ok(store) } else { Err(fenced(branch)) }
            };
            match opened.await {
                Ok(store) => Ok(Arc::new(store) as Arc<dyn StateStore>),
                Err(error) => {
                    if let Err(cleaning) = shared.control.remove([&mark, &pin]).await {
                        tracing::warn!(%branch, error = %cleaning, "an opening that failed leaves something behind");
                    }
                    Err(error)
                }
            }
        }
        .boxed()
    }

    fn open_read_only<'a>(&'a self, source: &'a Source) -> BoxFuture<'a, Result<Arc<dyn StateReader>>> {
        async move {
            let shared = self.shared().await?;
            let sources = std::slice::from_ref(source);
            let found = Self::find(shared, sources).await?;
            let (view, bytes) = Self::lineage(shared, &source.version.branch, sources, &found).await?;
            let entry = Entry {
                kind: Kind::Reader,
                id: Uuid::new_v4().simple().to_string(),
                range: source.range,
                bytes,
                lineage: Lineage::clone(&view.lineage),
                ..found[0].clone()
            };
            let reader = FlussReader::open(shared.clone(), entry, view).await?;
            Self::find(shared, sources).await?;
            Ok(Arc::new(reader) as Arc<dyn StateReader>)
        }
        .boxed()
    }

    fn release<'a>(&'a self, version: &'a VersionRef) -> BoxFuture<'a, Result<()>> {
        async move {
            let Some(shared) = self.shared_if_there().await? else { return Ok(()) };
            let entries = shared.control.read(&home(&version.branch)).await?;
            let of_branch = entries.iter().filter(|entry| entry.branch == version.branch);
            let (released, others): (Vec<&Entry>, Vec<&Entry>) =
                of_branch.partition(|entry| entry.kind == Kind::Version && entry.id == version.version);
            shared.control.remove(released.iter().copied()).await?;
            // Gone already, yet a crash may have come before the rest; but nothing goes while there is another hold. If
            // it was there, other holds may have gone since they were read: collecting looks again.
            if !released.is_empty() || others.iter().all(|entry| entry.kind == Kind::Branch) {
                let groups = groups_of(released.into_iter().chain(others));
                if !groups.is_empty() {
                    garbage::collect(shared, groups).await?;
                }
            }
            Ok(())
        }
        .boxed()
    }
}
