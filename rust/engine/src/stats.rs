//! Counters and gauges of one engine.

/// A snapshot of an engine's counters (since it was opened) and gauges (now).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Rows in memory, known-absent ones included.
    pub rows: u64,
    /// Map and list groups in memory.
    pub groups: u64,
    /// Bytes charged to the memory budget.
    pub resident_bytes: u64,
    /// Bytes of rows, displaced values and batches that the store has not acknowledged.
    pub dirty_bytes: u64,
    /// Rows that the store has not acknowledged.
    pub dirty_rows: u64,
    /// Bytes of the filter of evicted keys.
    pub filter_bytes: u64,
    /// Bytes that the store holds in memory for this branch, as last asked.
    pub store_memory_bytes: u64,
    /// Frozen epochs whose commit has not begun.
    pub frozen_epochs: u64,
    /// Rows evicted.
    pub evictions: u64,
    /// Keys asked of the store.
    pub store_reads: u64,
    /// Calls that asked the store for keys.
    pub store_read_calls: u64,
    /// Pages scanned in the store.
    pub scans: u64,
    /// Point reads answered from memory, absence included.
    pub hits: u64,
    /// Point reads that had to ask the store.
    pub misses: u64,
    /// Rows written to the store, tombstones included.
    pub flushed_rows: u64,
    /// Bytes of keys and values written to the store.
    pub flushed_bytes: u64,
    /// Batches written to the store.
    pub flushed_batches: u64,
    /// Batches that the store refused.
    pub failed_batches: u64,
    /// Rows that were deleted before the store ever saw them, so that it never will.
    pub elided_rows: u64,
    /// Old values kept because their row was overwritten after its epoch was frozen.
    pub displaced_values: u64,
    /// Calls that had to wait because of too many dirty bytes.
    pub writer_waits: u64,
    /// Nanoseconds spent in those waits.
    pub writer_wait_nanos: u64,
}

impl Stats {
    /// Names of [`Self::values`], in their order.
    pub const NAMES: &'static [&'static str] = &[
        "rows",
        "groups",
        "resident_bytes",
        "dirty_bytes",
        "dirty_rows",
        "filter_bytes",
        "store_memory_bytes",
        "frozen_epochs",
        "evictions",
        "store_reads",
        "store_read_calls",
        "scans",
        "hits",
        "misses",
        "flushed_rows",
        "flushed_bytes",
        "flushed_batches",
        "failed_batches",
        "elided_rows",
        "displaced_values",
        "writer_waits",
        "writer_wait_nanos",
    ];

    pub fn values(&self) -> [u64; 22] {
        [
            self.rows,
            self.groups,
            self.resident_bytes,
            self.dirty_bytes,
            self.dirty_rows,
            self.filter_bytes,
            self.store_memory_bytes,
            self.frozen_epochs,
            self.evictions,
            self.store_reads,
            self.store_read_calls,
            self.scans,
            self.hits,
            self.misses,
            self.flushed_rows,
            self.flushed_bytes,
            self.flushed_batches,
            self.failed_batches,
            self.elided_rows,
            self.displaced_values,
            self.writer_waits,
            self.writer_wait_nanos,
        ]
    }
}
