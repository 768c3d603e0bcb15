//! Reading what a lineage sees.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use weir_store::{ErrorKind, KeyGroupRange, Page, PageLimit, Result, StoreError};

use crate::client::{Ask, Lookups};
use crate::encoding::{Stored, chain_key, group_of, parse_row, prefixes, put_key};
use crate::lineage::{Ancestor, Lineage, Proof, visible};
use crate::tables::Table;

/// Key groups that a scan over many asks for at once: few at first, as the page may be full soon.
const GROUPS_AT_ONCE: RangeInclusive<usize> = 4..=256;
/// The rest of a scan is kept for its next page up to this many bytes.
const KEPT_BYTES: usize = 32 << 20;

/// What a lineage sees, and the means to read it. Cheap to clone.
#[derive(Clone)]
pub struct View {
    pub lineage: Arc<Lineage>,
    /// In the order of the lineage's tables.
    pub tables: Arc<[Arc<Table>]>,
}

/// The rest of a scan, for its next page.
#[derive(Default)]
pub struct Remainder(Mutex<Option<Kept>>);

struct Kept {
    prefix: Bytes,
    /// Of the state of the view that it was read from.
    state: u64,
    /// Ascending.
    rows: Arc<Vec<(Bytes, Bytes)>>,
}

impl View {
    /// The chain rows to ask for with anything of each bucket of a table.
    pub fn proofs(&self, table: usize) -> HashMap<i32, Vec<Bytes>> {
        let mut proofs: HashMap<i32, Vec<Bytes>> = HashMap::new();
        for Proof { bucket, generation, number, .. } in self.lineage.proofs.iter().filter(|proof| proof.table == table)
        {
            let key = chain_key(self.tables[table].b(*bucket), *generation, *number);
            proofs.entry(*bucket).or_default().push(key.into());
        }
        proofs
    }

    /// Fails unless all rows are there.
    pub async fn verify(&self, lookups: &Lookups) -> Result<()> {
        for (at, table) in self.tables.iter().enumerate() {
            let proofs = self.proofs(at);
            let asks = proofs.iter().map(|(bucket, proofs)| Ask { bucket: *bucket, prefix: proofs[0].clone() });
            lookups.get(table, &proofs, asks.collect()).await?;
        }
        Ok(())
    }

    /// All stored versions of `keys`, visible or not, in the tables that the lineage of each names.
    pub async fn versions(&self, lookups: &Lookups, keys: &[Bytes]) -> Result<Vec<Vec<Stored>>> {
        let mut found = vec![Vec::new(); keys.len()];
        for (at, table) in self.tables.iter().enumerate() {
            let proofs = self.proofs(at);
            let mut asks = Vec::new();
            let mut asked = Vec::new();
            for (place, key) in keys.iter().enumerate() {
                if key.len() < 2 || !self.lineage.ancestors(group_of(key)).iter().any(|ancestor| ancestor.table == at) {
                    continue;
                }
                let bucket = table.bucket(group_of(key));
                // Nothing was ever written there.
                if !proofs.contains_key(&bucket) {
                    continue;
                }
                let mut prefix = Vec::with_capacity(key.len() + 12);
                put_key(&mut prefix, table.b(bucket), key);
                asks.push(Ask { bucket, prefix: prefix.into() });
                asked.push(place);
            }
            for (place, rows) in asked.into_iter().zip(lookups.get(table, &proofs, asks).await?) {
                found[place].extend(parse_rows(table, &rows)?);
            }
        }
        Ok(found)
    }

    pub async fn get_many(&self, lookups: &Lookups, keys: &[Bytes]) -> Result<Vec<Option<Bytes>>> {
        let versions = self.versions(lookups, keys).await?;
        let values = keys.iter().zip(versions).map(|(key, mut rows)| {
            let at = visible(&rows, if rows.is_empty() { &[] } else { self.lineage.ancestors(group_of(key)) })?;
            rows.swap_remove(at).value
        });
        Ok(values.collect())
    }

    /// Every stored version of the rows under the prefixes, which have their key groups, by key. May hold other keys too.
    async fn stored(&self, lookups: &Lookups, prefixed: &[Bytes]) -> Result<BTreeMap<Bytes, Vec<Stored>>> {
        let mut rows: BTreeMap<Bytes, Vec<Stored>> = BTreeMap::new();
        for table in 0..self.tables.len() {
            for row in self.stored_in(lookups, table, prefixed).await? {
                rows.entry(row.key.clone()).or_default().push(row);
            }
        }
        Ok(rows)
    }

    /// The same of one of the tables, in no order.
    pub async fn stored_in(&self, lookups: &Lookups, at: usize, prefixed: &[Bytes]) -> Result<Vec<Stored>> {
        let table = &self.tables[at];
        let proofs = self.proofs(at);
        let mut asks = Vec::new();
        for prefix in prefixed {
            let group = group_of(prefix);
            let bucket = table.bucket(group);
            let named = self.lineage.ancestors(group).iter().any(|ancestor| ancestor.table == at);
            if named && proofs.contains_key(&bucket) {
                let below = prefixes(table.b(bucket), prefix);
                asks.extend(below.into_iter().map(|prefix| Ask { bucket, prefix: prefix.into() }));
            }
        }
        let mut rows = Vec::new();
        for found in lookups.get(table, &proofs, asks).await? {
            rows.extend(parse_rows(table, &found)?);
        }
        Ok(rows)
    }

    /// What is visible under the prefixes, ascending.
    async fn rows(&self, lookups: &Lookups, prefixed: &[Bytes]) -> Result<Vec<(Bytes, Bytes)>> {
        let stored = self.stored(lookups, prefixed).await?;
        let rows = stored.into_iter().filter_map(|(key, mut versions)| {
            let at = visible(&versions, self.lineage.ancestors(group_of(&key)))?;
            Some((key, versions.swap_remove(at).value?))
        });
        Ok(rows.collect())
    }

    /// A page of a scan. `state` changes whenever the view may show something else; a page kept under another is not
    /// used.
    pub async fn scan(
        &self,
        lookups: &Lookups,
        remainder: &Remainder,
        state: u64,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: PageLimit,
    ) -> Result<Page> {
        let mut page = Page::default();
        let mut bytes = 0;
        let mut add = |page: &mut Page, rows: &[(Bytes, Bytes)]| {
            let start = rows.partition_point(|(key, _)| after.is_some_and(|after| &key[..] <= after));
            for (key, value) in rows[start..].iter().filter(|(key, _)| key.starts_with(prefix)) {
                if !page.rows.is_empty() && (page.rows.len() >= limit.rows || bytes >= limit.bytes) {
                    return false;
                }
                bytes += key.len() + value.len();
                page.rows.push((key.clone(), value.clone()));
            }
            true
        };
        if prefix.len() >= 2 {
            let rows = self.kept(lookups, remainder, state, prefix).await?;
            page.done = add(&mut page, &rows);
            return Ok(page);
        }
        let groups = self.groups(prefix, after);
        let mut next = 0;
        let mut at_once = *GROUPS_AT_ONCE.start();
        while next < groups.len() {
            // The group that the page before ended in is the one that is kept.
            let first = if next == 0 { 1 } else { at_once };
            let until = (next + first).min(groups.len());
            let full = if until - next == 1 {
                !add(&mut page, &self.kept(lookups, remainder, state, &groups[next]).await?)
            } else {
                !add(&mut page, &self.rows(lookups, &groups[next..until]).await?)
            };
            if full {
                return Ok(page);
            }
            next = until;
            at_once = (at_once * 2).min(*GROUPS_AT_ONCE.end());
        }
        page.done = true;
        Ok(page)
    }

    /// The key groups that a scan has to look into, as prefixes, ascending: only those that the lineage names rows in.
    fn groups(&self, prefix: &[u8], after: Option<&[u8]>) -> Vec<Bytes> {
        let start = match after {
            Some(after) if after.len() >= 2 => group_of(after),
            Some([high]) => u16::from_be_bytes([*high, 0]),
            _ => 0,
        };
        let mut groups = Vec::new();
        for segment in self.lineage.segments.iter().filter(|segment| !segment.ancestors.is_empty()) {
            for group in segment.range.first.max(start)..=segment.range.last {
                let bytes = group.to_be_bytes();
                if bytes.starts_with(prefix) && self.has_rows(group, &segment.ancestors) {
                    groups.push(Bytes::copy_from_slice(&bytes));
                }
            }
        }
        groups
    }

    fn has_rows(&self, group: u16, ancestors: &[Ancestor]) -> bool {
        self.lineage.proofs.iter().any(|proof| {
            let named = ancestors.iter().any(|ancestor| ancestor.table == proof.table);
            named && self.tables[proof.table].bucket(group) == proof.bucket
        })
    }

    async fn kept(
        &self,
        lookups: &Lookups,
        remainder: &Remainder,
        state: u64,
        prefix: &[u8],
    ) -> Result<Arc<Vec<(Bytes, Bytes)>>> {
        let known = remainder
            .0
            .lock()
            .as_ref()
            .filter(|kept| kept.prefix == prefix && kept.state == state)
            .map(|kept| kept.rows.clone());
        if let Some(rows) = known {
            return Ok(rows);
        }
        let prefix = Bytes::copy_from_slice(prefix);
        let rows = Arc::new(self.rows(lookups, std::slice::from_ref(&prefix)).await?);
        let bytes: usize = rows.iter().map(|(key, value)| key.len() + value.len()).sum();
        *remainder.0.lock() = (bytes <= KEPT_BYTES).then(|| Kept { prefix, state, rows: rows.clone() });
        Ok(rows)
    }
}

impl Remainder {
    pub fn bytes(&self) -> u64 {
        let kept = self.0.lock();
        kept.iter().flat_map(|kept| kept.rows.iter()).map(|(key, value)| (key.len() + value.len() + 64) as u64).sum()
    }
}

/// The buckets of a table that hold a range of key groups.
pub fn buckets_of(table: &Table, range: KeyGroupRange) -> Vec<i32> {
    let mut buckets: Vec<i32> = (range.first..=range.last).map(|group| table.bucket(group)).collect();
    buckets.sort_unstable();
    buckets.dedup();
    buckets
}

pub fn parse_rows(table: &Table, rows: &[Vec<u8>]) -> Result<Vec<Stored>> {
    let parsed: Option<Vec<Stored>> = rows.iter().map(|row| parse_row(row)).collect();
    parsed.ok_or_else(|| {
        let message = format!("table {} holds a row that this version of Weir did not write", table.path);
        StoreError::new(ErrorKind::Corrupt, message)
    })
}
