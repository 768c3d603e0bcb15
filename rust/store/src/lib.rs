//! The contract between Weir's engine and whatever keeps its rows.
//!
//! A store is an ordered map from byte keys to byte values that can be reopened, for ever the same, at every
//! [`VersionRef`] it has committed. It knows neither Flink nor the engine's cache. What each store owes is written at
//! the methods below and proven by one suite, [`promises`], that runs on all of them.
//!
//! * [`Stores`] opens branches, and releases versions.
//! * [`StateReader`] reads one branch or one version.
//! * [`StateStore`] also writes to the one branch it was opened on.

mod error;
mod expiry;
pub mod faulty;
pub mod long_keys;
pub mod memory;
pub mod promises;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;

pub use error::{ErrorKind, Result, StoreError};
pub use expiry::{Expiry, ExpiryClock, ExpiryRule, RowValue};

/// Key groups `first..=last`, both inclusive, as in Flink's `KeyGroupRange`. Every key begins with its key group as
/// two big-endian bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyGroupRange {
    pub first: u16,
    pub last: u16,
}

impl KeyGroupRange {
    /// # Panics
    /// If `first` is greater than `last`.
    pub fn new(first: u16, last: u16) -> Self {
        assert!(first <= last, "key-group range {first}..={last} is empty");
        Self { first, last }
    }

    /// The key groups that both ranges hold, or `None`.
    pub fn intersection(self, other: Self) -> Option<Self> {
        let (first, last) = (self.first.max(other.first), self.last.min(other.last));
        (first <= last).then_some(Self { first, last })
    }

    /// The smallest key of the range, and the smallest key beyond it (`None`: the range reaches key group 65535).
    pub fn key_bounds(self) -> (Bytes, Option<Bytes>) {
        let lower = Bytes::copy_from_slice(&self.first.to_be_bytes());
        let upper = self.last.checked_add(1).map(|end| Bytes::copy_from_slice(&end.to_be_bytes()));
        (lower, upper)
    }

    /// Whether `key` lies in the range; a key shorter than two bytes lies in none.
    pub fn contains_key(self, key: &[u8]) -> bool {
        matches!(key, [high, low, ..] if (self.first..=self.last).contains(&u16::from_be_bytes([*high, *low])))
    }
}

impl fmt::Display for KeyGroupRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.first, self.last)
    }
}

/// Names the place that one attempt writes to. Components are `job`, `operator`, `subtask`, `attempt`; no two attempts
/// ever share all four. Each is made of letters, digits, `-`, `_` and `.` and is not empty; `path()` joins them by `/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BranchName(String);

impl BranchName {
    /// Parses `job/operator/subtask/attempt`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there are not exactly four components of the allowed characters.
    pub fn parse(path: &str) -> Result<Self> {
        let valid = |part: &str| {
            !part.is_empty()
                && part != "."
                && part != ".."
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        };
        let parts: Vec<&str> = path.split('/').collect();
        if parts.len() != 4 || !parts.iter().all(|part| valid(part)) {
            return Err(StoreError::new(
                ErrorKind::InvalidArgument,
                format!(
                    "'{path}' is not a branch name: expected job/operator/subtask/attempt of letters, digits, '-', '_' and '.'"
                ),
            ));
        }
        Ok(Self(path.to_owned()))
    }

    pub fn path(&self) -> &str {
        &self.0
    }

    /// The components `[job, operator, subtask, attempt]`.
    pub fn components(&self) -> [&str; 4] {
        let mut parts = self.0.split('/');
        std::array::from_fn(|_| parts.next().expect("four components were checked by parse"))
    }

    /// Reads the attempt components, `<execution graph>_<rest>-<number of the opening>`. Two names without a graph are of
    /// one run; two without an opening's number are two attempts.
    pub fn kinship(&self, earlier: &BranchName) -> Kinship {
        let ([.., own], [.., other]) = (self.components(), earlier.components());
        let same_run = || own.split_once('_').map(|(graph, _)| graph) == other.split_once('_').map(|(graph, _)| graph);
        match (own.rsplit_once('-'), other.rsplit_once('-')) {
            (Some((own, _)), Some((other, _))) if own == other => Kinship::SameAttempt,
            _ if same_run() => Kinship::SameRun,
            _ => Kinship::OtherRun,
        }
    }
}

/// How the attempt of an earlier branch stands to one that opens a branch of the same job and operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinship {
    /// The same attempt opened both.
    SameAttempt,
    /// Both are of one execution graph, so what the later one restored is the newest that counts.
    SameRun,
    /// Of another execution graph: a version may be one that a user retained.
    OtherRun,
}

impl fmt::Display for BranchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A committed point of a branch that a store can reopen at, for ever the same, until it is released. `version` is
/// opaque to everyone but the store that made it (letters, digits and `-` only, at most 64 bytes).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VersionRef {
    pub branch: BranchName,
    pub version: String,
}

impl fmt::Display for VersionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.branch, self.version)
    }
}

/// One of the versions that a branch starts from, clipped to the key groups that the new branch takes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub version: VersionRef,
    pub range: KeyGroupRange,
}

/// One change: `value` is `None` for a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub key: Bytes,
    pub value: Option<Bytes>,
}

/// The longest key that every store takes, in bytes; [`long_keys`] takes longer ones to any of them.
pub const MAX_KEY_BYTES: usize = 65_535;

/// Refuses a batch that breaks the contract of [`StateStore::write`]: for the stores.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the keys are not ascending, or one has no key group or more than [`MAX_KEY_BYTES`].
pub fn check_batch(batch: &[Row]) -> Result<()> {
    check_batch_up_to(batch, MAX_KEY_BYTES)
}

fn check_batch_up_to(batch: &[Row], longest: usize) -> Result<()> {
    let refuse = |message: String| Err(StoreError::new(ErrorKind::InvalidArgument, message));
    for (i, row) in batch.iter().enumerate() {
        if !(2..=longest).contains(&row.key.len()) {
            let len = row.key.len();
            return refuse(format!("a row's key has {len} bytes: at least 2 (the key group), at most {longest}"));
        }
        if i > 0 && batch[i - 1].key >= row.key {
            return refuse(format!("rows {} and {i} of a batch are not in ascending order of key", i - 1));
        }
    }
    Ok(())
}

/// Refuses sources that claim a key group twice: for the stores.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] naming the two versions.
pub fn check_sources(sources: &[Source]) -> Result<()> {
    for (i, source) in sources.iter().enumerate() {
        if let Some(other) = sources[..i].iter().find(|other| other.range.intersection(source.range).is_some()) {
            return Err(StoreError::new(
                ErrorKind::InvalidArgument,
                format!("sources overlap: {} {} and {} {}", other.version, other.range, source.version, source.range),
            ));
        }
    }
    Ok(())
}

/// A page of a scan is cut after the row that reaches either bound; it holds at least one row if one is left.
#[derive(Clone, Copy, Debug)]
pub struct PageLimit {
    pub rows: usize,
    pub bytes: usize,
}

/// Rows in ascending order of key. `done` says that no row follows the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub rows: Vec<(Bytes, Bytes)>,
    pub done: bool,
}

/// What a commit made durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    pub version: VersionRef,
    /// Bytes written to the store for this commit since the previous one, as far as the store knows them.
    pub written_bytes: u64,
    /// Bytes of everything that the version needs, shared with other versions or not.
    pub total_bytes: u64,
}

/// Resolves when the commit is durable and complete, or to an error: never to a part of it.
pub type PendingCommit = BoxFuture<'static, Result<Commit>>;

/// Reads one branch or one version. Cheap to share; all calls may run side by side.
pub trait StateReader: Send + Sync + 'static {
    /// The values of `keys`, in their order; `None` where there is no row.
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>>;

    /// The rows whose key starts with `prefix` and is greater than `after`, in order, cut by `limit`.
    fn scan<'a>(&'a self, prefix: &'a [u8], after: Option<&'a [u8]>, limit: PageLimit) -> BoxFuture<'a, Result<Page>>;
}

/// Writes to the branch it was opened on. One writer: `write` and `begin_commit` are never called side by side.
///
/// What a call that returned `Ok` from [`StateStore::write`] wrote is seen by every read that starts later, also before
/// a commit and through a change of whatever serves the branch.
pub trait StateStore: StateReader {
    /// Writes a batch: ascending by key, no key twice. Not yet durable. An error leaves it unknown which rows of the
    /// batch were taken; writing the same batch again is allowed and makes it whole.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], with nothing taken, for a batch that [`check_batch`] refuses.
    fn write(&self, batch: Vec<Row>) -> BoxFuture<'_, Result<()>>;

    /// Ends a version: when this resolves, the version holds exactly what was written before, and further writes belong
    /// to the next; the returned future makes it durable. `checkpoint` names it for people and for reaping. Several
    /// commits may be pending, and may be awaited in any order. A pending commit that is dropped, or whose result
    /// is an error, leaves nothing that keeps data alive for ever.
    fn begin_commit(&self, checkpoint: u64) -> BoxFuture<'_, Result<PendingCommit>>;

    /// Tells the store that `checkpoint` is complete on the JobManager and that upkeep (compaction of what is no longer
    /// needed, garbage collection) is due. A hint; must not block on I/O.
    fn upkeep(&self, completed_checkpoint: u64);

    /// Replaces what expires in this branch; without it nothing does. From then on the store may drop, whenever it merges
    /// what it holds, a row whose newest value written has expired: it then reads as if it had been deleted, and so do
    /// later versions. A row whose newest value has not expired is never dropped, an older value never shows again, and
    /// versions that were committed keep every row that they had. Must not block.
    ///
    /// The rule of a state may be set while older values of its rows, not in the rule's form, are still in the store,
    /// provided that a newer value of each has been handed over to be written before the next commit, or will be.
    fn set_expiry(&self, expiry: Expiry);

    /// Bytes that the store holds in memory for this branch alone (unflushed buffers, indexes).
    fn memory_bytes(&self) -> u64;

    /// Gives up the branch: cancels what is being sent, waits within a bound, drops the attempt's pin; a branch without
    /// any version left is deleted. Calls after it fail with [`ErrorKind::Closed`]. Idempotent.
    fn close(&self) -> BoxFuture<'_, Result<()>>;
}

/// Opens branches of one store root, and releases versions. Shared by all backends of a process.
pub trait Stores: Send + Sync + 'static {
    /// Creates `branch` with the rows of `sources` and opens it for writing; `range` holds the key groups of all rows that
    /// will be written or read. The sources' ranges are disjoint. The
    /// sources are not changed and may be opened again, by anyone, at the same time: each opening is an independent
    /// branch. On return the new branch no longer depends on its sources' versions staying unreleased.
    ///
    /// `restored_checkpoint` is the checkpoint that the sources belong to (0 without sources). Earlier attempts of the
    /// same job, operator and subtask (or, after a rescale, of a subtask that starts in `range`) are reaped, each by its
    /// [`BranchName::kinship`]: the pin of any but the same attempt is dropped, so that a branch without a version goes;
    /// versions of the same run and of checkpoints later than `restored_checkpoint`, which no checkpoint can have kept,
    /// are released. Versions of another run stay: with a job id that is used again, a user may have retained them.
    ///
    /// # Errors
    /// [`ErrorKind::MissingVersion`] naming the version, if a source is not there (any more);
    /// [`ErrorKind::Unavailable`] naming the path, if the store cannot be reached or written;
    /// [`ErrorKind::Corrupt`] naming the file.
    fn open<'a>(
        &'a self,
        branch: &'a BranchName,
        range: KeyGroupRange,
        sources: &'a [Source],
        restored_checkpoint: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn StateStore>>>;

    /// Opens a version to read it and nothing else; the version stays while the reader lives.
    fn open_read_only<'a>(&'a self, source: &'a Source) -> BoxFuture<'a, Result<Arc<dyn StateReader>>>;

    /// Gives a version up. The branch goes with its last version, unless an attempt still writes to it or another branch
    /// still needs it. Releasing what is no longer there is not an error.
    fn release<'a>(&'a self, version: &'a VersionRef) -> BoxFuture<'a, Result<()>>;
}
