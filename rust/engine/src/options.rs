//! What one engine is opened with.

use std::sync::Arc;

use weir_store::{KeyGroupRange, Stores};

/// Start from [`EngineOptions::new`] and change fields.
#[derive(Clone)]
#[non_exhaustive]
pub struct EngineOptions {
    /// The key groups that this engine owns; keys outside are refused.
    pub range: KeyGroupRange,
    /// Bytes that this engine may hold in memory, below what the shared budget allows it. Default: no own bound.
    pub working_set_bytes: Option<usize>,
    /// Bytes of rows that the store has not acknowledged, frozen epochs and displaced values included. The background
    /// flush begins at half of it, a writer waits above it. Default: 64 MiB.
    pub max_dirty_bytes: usize,
    /// A batch to the store is cut at this many rows. Default: 4096.
    pub flush_batch_rows: usize,
    /// A batch to the store is cut at this many bytes of keys and values. Default: 1 MiB.
    pub flush_batch_bytes: usize,
    /// The branch began without sources: a row that was never evicted is known to be absent without asking the store.
    /// Default: `false`.
    pub fresh: bool,
    /// The sequence number that the next list element gets, from the restored checkpoint. Default: 0.
    pub next_sequence: u64,
    /// Where versions are released that were committed after their caller had given them up. Without it they stay until
    /// a successor reaps them. Default: none.
    pub stores: Option<Arc<dyn Stores>>,
    /// A defect to run with, so that a test can prove that it would be found.
    #[cfg(any(test, feature = "seeded-defects"))]
    pub defect: Option<Defect>,
}

impl EngineOptions {
    pub fn new(range: KeyGroupRange) -> Self {
        Self {
            range,
            working_set_bytes: None,
            max_dirty_bytes: 64 << 20,
            flush_batch_rows: 4096,
            flush_batch_bytes: 1 << 20,
            fresh: false,
            next_sequence: 0,
            stores: None,
            #[cfg(any(test, feature = "seeded-defects"))]
            defect: None,
        }
    }
}

/// Ways to break the engine on purpose.
#[cfg(any(test, feature = "seeded-defects"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A write to a row of a frozen epoch does not keep the value that the row had at the barrier.
    FreezeCopiesNothing,
    /// A deleted row turns clean without its tombstone being written.
    DroppedTombstone,
    /// Rows of the running epoch are written before the commits of the frozen ones have begun.
    FlushOutOfEpochOrder,
}
