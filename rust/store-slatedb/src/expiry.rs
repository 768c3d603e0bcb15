//! Expired rows leave while files are merged: what a merge drops, and what it notes about the rest, by which
//! `compaction` sees when another one is worth it.
//!
//! In place of an expired row a merge writes a tombstone, so that no older value shows again; where nothing older can be
//! left, nothing. That holds whatever the older values look like: they may have been written before the state had a
//! time to live, and then what is read as their timestamp is none.
//!
//! Versions are not touched: each has its own files, which merging replaces in the branch but does not change.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use slatedb::manifest::SortedRun;
use slatedb::{
    CompactionFilter, CompactionFilterDecision, CompactionFilterError, CompactionFilterSupplier, CompactionJobContext,
    RowEntry, ValueDeletable,
};
use weir_store::{Expiry, ExpiryRule};

/// What a row takes beside its key and value, about.
const ROW_OVERHEAD: u64 = 16;
/// The times at which rows expire are noted to this part of their time to live.
const TIME_STEPS: u64 = 16;
/// Files may seem so much older or younger than the merge that wrote them: clocks are stepped.
const CLOCK_SLACK_MS: u64 = 1_000;

/// The rules of a branch, and what its merges found.
#[derive(Default)]
pub(crate) struct Expiring {
    expiry: Mutex<Expiry>,
    /// By the id of the run that the last merge into it wrote.
    written: Mutex<HashMap<u32, Written>>,
}

/// What a merge noted, and when it ran, by which its run is known again: a failed one leaves the old run in its place.
#[derive(Clone)]
struct Written {
    began_ms: u64,
    profile: Arc<Profile>,
}

/// What a run holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Profile {
    /// The rules that the notes were made by.
    rules: BTreeMap<u32, ExpiryRule>,
    bytes: u64,
    /// Of tombstones.
    dead_bytes: u64,
    /// Bytes of the rows that will have expired at a time, but not at the one before.
    expiring: BTreeMap<i64, u64>,
    /// When the first row will have stayed for as long as its rule allows.
    overdue_at: Option<i64>,
}

impl Profile {
    /// The share of the run's bytes that a merge of all runs drops.
    pub(crate) fn dead_share(&self, now_ms: i64) -> f64 {
        if self.bytes == 0 {
            return 0.0;
        }
        let expired: u64 = self.expiring.range(..=now_ms).map(|(_, bytes)| bytes).sum();
        (self.dead_bytes + expired) as f64 / self.bytes as f64
    }

    pub(crate) fn is_overdue(&self, now_ms: i64) -> bool {
        self.overdue_at.is_some_and(|at| at <= now_ms)
    }

    fn note_row(&mut self, rule: &ExpiryRule, expires_at: i64, bytes: u64) {
        // Rounded up: when the notes say so, the rows have expired.
        let step = i64::try_from((rule.ttl_ms / TIME_STEPS).max(1).next_power_of_two()).unwrap_or(i64::MAX);
        let step_at = expires_at.div_euclid(step).saturating_add(1).saturating_mul(step);
        *self.expiring.entry(step_at).or_default() += bytes;
        if let Some(stay_ms) = rule.stay_ms {
            let overdue_at = step_at.saturating_add_unsigned(stay_ms);
            self.overdue_at = Some(self.overdue_at.map_or(overdue_at, |at| at.min(overdue_at)));
        }
    }
}

/// Milliseconds since 1970, as they are in the ids of files.
pub(crate) fn wall_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

impl Expiring {
    pub(crate) fn set(&self, expiry: Expiry) {
        *self.expiry.lock() = expiry;
    }

    pub(crate) fn get(&self) -> Expiry {
        self.expiry.lock().clone()
    }

    /// What the merge that wrote `run` noted by these rules; `None` if another branch or an earlier process wrote it,
    /// or the rules have changed.
    pub(crate) fn profile(&self, run: &SortedRun, rules: &BTreeMap<u32, ExpiryRule>) -> Option<Arc<Profile>> {
        let written = self.written.lock().get(&run.id).cloned()?;
        let ours = |view: &slatedb::manifest::SsTableView| {
            view.sst.id.value().timestamp_ms().saturating_add(CLOCK_SLACK_MS) >= written.began_ms
        };
        (run.sst_views().iter().all(ours) && written.profile.rules == *rules).then_some(written.profile)
    }

    fn note(&self, run: u32, written: Written) {
        self.written.lock().insert(run, written);
    }
}

/// Makes the filter of each merge.
pub(crate) struct Supplier(pub(crate) Arc<Expiring>);

#[async_trait]
impl CompactionFilterSupplier for Supplier {
    async fn create_compaction_filter(
        &self,
        context: &CompactionJobContext,
    ) -> Result<Box<dyn CompactionFilter>, CompactionFilterError> {
        let expiry = self.0.get();
        Ok(Box::new(Filter {
            expiring: self.0.clone(),
            run: context.destination,
            began_ms: wall_ms(),
            merge: Merge::new(expiry, context.is_dest_last_run),
        }))
    }
}

struct Filter {
    expiring: Arc<Expiring>,
    run: u32,
    began_ms: u64,
    merge: Merge,
}

#[async_trait]
impl CompactionFilter for Filter {
    async fn filter(&mut self, entry: &RowEntry) -> Result<CompactionFilterDecision, CompactionFilterError> {
        Ok(self.merge.decide(entry))
    }

    async fn on_compaction_end(&mut self) -> Result<(), CompactionFilterError> {
        let profile = Arc::new(std::mem::take(&mut self.merge.profile));
        self.expiring.note(self.run, Written { began_ms: self.began_ms, profile });
        Ok(())
    }
}

/// One merge: sees the rows by key, of each key the newest value first.
struct Merge {
    expiry: Expiry,
    now_ms: i64,
    /// Nothing older than what is merged is left.
    into_last_run: bool,
    /// The key of the last row that was dropped: what is older of it goes too.
    dropped: Option<Bytes>,
    profile: Profile,
}

impl Merge {
    fn new(expiry: Expiry, into_last_run: bool) -> Self {
        let profile = Profile { rules: expiry.rules().clone(), ..Profile::default() };
        Self { now_ms: expiry.now_ms(), expiry, into_last_run, dropped: None, profile }
    }

    fn decide(&mut self, entry: &RowEntry) -> CompactionFilterDecision {
        if self.dropped.as_ref() == Some(&entry.key) {
            return CompactionFilterDecision::Drop;
        }
        let key_bytes = entry.key.len() as u64 + ROW_OVERHEAD;
        let ValueDeletable::Value(value) = &entry.value else {
            self.profile.bytes += key_bytes;
            // What SlateDB still needs in the last run no merge drops.
            self.profile.dead_bytes += if self.into_last_run { 0 } else { key_bytes };
            return CompactionFilterDecision::Keep;
        };
        let rule = self.expiry.rule(&entry.key);
        let expiring = rule.and_then(|rule| Some((rule, rule.expires_at(value)?)));
        if let Some((_, expires_at)) = expiring
            && expires_at <= self.now_ms
        {
            self.dropped = Some(entry.key.clone());
            if self.into_last_run {
                return CompactionFilterDecision::Drop;
            }
            self.profile.bytes += key_bytes;
            self.profile.dead_bytes += key_bytes;
            return CompactionFilterDecision::Modify(ValueDeletable::Tombstone);
        }
        let bytes = key_bytes + value.len() as u64;
        self.profile.bytes += bytes;
        if let Some((rule, expires_at)) = expiring {
            self.profile.note_row(rule, expires_at, bytes);
        }
        CompactionFilterDecision::Keep
    }
}

#[cfg(test)]
impl Profile {
    /// Of 100 bytes, of which so many are dead and others expire at a time.
    pub(crate) fn of(dead_bytes: u64, expiring: &[(i64, u64)], overdue_at: Option<i64>) -> Arc<Self> {
        let expiring = expiring.iter().copied().collect();
        Arc::new(Self { rules: BTreeMap::new(), bytes: 100, dead_bytes, expiring, overdue_at })
    }
}

#[cfg(test)]
mod tests {
    use weir_store::promises::{key, timed};
    use weir_store::{ExpiryClock, RowValue};

    use super::*;

    fn merge(now_ms: i64, into_last_run: bool, stay_ms: Option<u64>) -> Merge {
        let mut expiry = Expiry::new(ExpiryClock::At(now_ms));
        let rule = ExpiryRule { ttl_ms: 100, value: RowValue::Whole, timestamp_at: 0, stay_ms };
        expiry.set(u32::from_be_bytes(*b"ttl."), Some(rule));
        Merge::new(expiry, into_last_run)
    }

    fn entry(name: &str, timestamp: i64) -> RowEntry {
        let row = timed(1, "ttl.", name, timestamp, "0123456789");
        let value = ValueDeletable::Value(row.value.unwrap());
        RowEntry { key: row.key, value, seq: 1, create_ts: None, expire_ts: None }
    }

    const TOMBSTONE: CompactionFilterDecision = CompactionFilterDecision::Modify(ValueDeletable::Tombstone);

    #[test]
    fn expired_rows_become_tombstones_and_go_from_the_last_run() {
        let mut upper = merge(200, false, None);
        assert_eq!(upper.decide(&entry("a", 101)), CompactionFilterDecision::Keep);
        assert_eq!(upper.decide(&entry("b", 100)), TOMBSTONE);
        assert_eq!(upper.decide(&entry("c", 101)), CompactionFilterDecision::Keep);
        let mut last = merge(200, true, None);
        assert_eq!(last.decide(&entry("b", 100)), CompactionFilterDecision::Drop);
        assert_eq!(last.decide(&entry("c", 101)), CompactionFilterDecision::Keep);
    }

    #[test]
    fn what_is_older_goes_with_what_expired() {
        for into_last_run in [false, true] {
            let mut merge = merge(200, into_last_run, None);
            assert_ne!(merge.decide(&entry("a", 100)), CompactionFilterDecision::Keep);
            // Whatever it looks like: it was overwritten.
            assert_eq!(merge.decide(&entry("a", 1_000_000)), CompactionFilterDecision::Drop);
            assert_eq!(merge.decide(&entry("a", 5)), CompactionFilterDecision::Drop);
            assert_eq!(merge.decide(&entry("b", 1_000_000)), CompactionFilterDecision::Keep);
        }
    }

    #[test]
    fn a_profile_says_when_how_much_goes() {
        let mut merge = merge(0, false, Some(1_000));
        for (name, timestamp) in [("a", 10), ("b", 11), ("c", 900), ("d", 900)] {
            assert_eq!(merge.decide(&entry(name, timestamp)), CompactionFilterDecision::Keep);
        }
        let deleted = RowEntry { value: ValueDeletable::Tombstone, ..entry("e", 0) };
        assert_eq!(merge.decide(&deleted), CompactionFilterDecision::Keep);
        let other = RowEntry { key: key(1, "other"), ..entry("f", 0) };
        assert_eq!(merge.decide(&other), CompactionFilterDecision::Keep);
        let profile = &merge.profile;
        let (row, tombstone) = (7 + 18 + ROW_OVERHEAD, 7 + ROW_OVERHEAD);
        assert_eq!(profile.bytes, 5 * row + tombstone);
        let share = |bytes: u64| bytes as f64 / profile.bytes as f64;
        assert_eq!(profile.dead_share(0), share(tombstone));
        // Never before the row has expired, and at most a sixteenth of its time to live later, by powers of two.
        assert_eq!(profile.dead_share(110), share(tombstone));
        assert_eq!(profile.dead_share(120), share(tombstone + 2 * row));
        assert_eq!(profile.dead_share(999), share(tombstone + 2 * row));
        assert_eq!(profile.dead_share(1_008), share(tombstone + 4 * row));
        assert!(!profile.is_overdue(1_110));
        assert!(profile.is_overdue(1_120));
    }
}
