//! What nobody sees any more goes: dead branches with all their rows, and of live ones the versions that are replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use weir_store::{KeyGroupRange, Result};

use crate::Shared;
use crate::client::{Ask, MAX_UNSENT_BYTES, Unfinished, Writer};
use crate::control::{Entry, Kind, now};
use crate::encoding::{Stored, chain_key, chain_prefix, group_of, parse_chain, prefixes, version_key};
use crate::lineage::{Ancestor, visible};
use crate::tables::Table;
use crate::view::{buckets_of, parse_rows};

/// Key groups that are looked through at once.
const GROUPS_AT_ONCE: usize = 16;

/// Whether somebody counts on what the entry names.
fn is_live(entry: &Entry) -> bool {
    match entry.kind {
        Kind::Branch => false,
        Kind::Pin | Kind::Version => true,
        Kind::Reader => entry.expires > now(),
    }
}

/// Removes every branch in these groups that has no pin and no version, and that nothing live descends from.
pub async fn collect(shared: &Shared, mut groups: BTreeSet<String>) -> Result<()> {
    let (entries, dead) = loop {
        let entries = shared.control.read_all(groups.iter().cloned()).await?;
        let live: Vec<&Entry> = entries.iter().filter(|entry| is_live(entry)).collect();
        let is_dead = |branch: &Entry| {
            branch.kind == Kind::Branch
                && !live.iter().any(|entry| entry.branch == branch.branch || entry.lineage.sees(branch.generation))
        };
        let dead: Vec<Entry> = entries.iter().filter(|entry| is_dead(entry)).cloned().collect();
        // Whatever sees a branch lies in the group of the branch's table.
        let needed: BTreeSet<String> = dead.iter().flat_map(Entry::groups).collect();
        if needed.is_subset(&groups) {
            break (entries, dead);
        }
        groups.extend(needed);
    };
    let expired = entries.iter().filter(|entry| entry.kind == Kind::Reader && !is_live(entry));
    shared.control.remove(expired).await?;
    for branch in &dead {
        let own = &branch.lineage.tables[0];
        if let Some(table) = shared.rows_table(&own.name, false).await?
            && table.id == own.id
        {
            remove_generation(shared, &table, branch.generation, branch.range).await?;
        }
        shared.control.remove([branch]).await?;
    }
    Ok(())
}

/// Removes all rows that a generation wrote, chain rows last.
async fn remove_generation(shared: &Shared, table: &Table, generation: u64, range: KeyGroupRange) -> Result<()> {
    let no_proofs = std::collections::HashMap::new();
    let writer = shared.control.writer();
    let buckets = buckets_of(table, range);
    let chain = |bucket: &i32| Ask { bucket: *bucket, prefix: chain_prefix(table.b(*bucket), generation).into() };
    let chains = shared.lookups.get(table, &no_proofs, buckets.iter().map(chain).collect()).await?;
    if chains.iter().all(Vec::is_empty) {
        return Ok(());
    }
    let groups: Vec<u16> = (range.first..=range.last).collect();
    for groups in groups.chunks(GROUPS_AT_ONCE) {
        let ask = |group: &u16| {
            let bucket = table.bucket(*group);
            let prefix = prefixes(table.b(bucket), &group.to_be_bytes()).remove(0);
            Ask { bucket, prefix: prefix.into() }
        };
        let found = shared.lookups.get(table, &no_proofs, groups.iter().map(ask).collect()).await?;
        let mut rows = Vec::new();
        for found in found {
            rows.extend(parse_rows(table, &found)?.into_iter().filter(|row| row.generation == generation));
        }
        remove_rows(writer, table, &rows).await?;
    }
    let mut writes = Unfinished::default();
    for (bucket, rows) in buckets.iter().zip(&chains) {
        for (generation, number) in parse_rows(table, rows)?.iter().filter_map(parse_chain) {
            let key = chain_key(table.b(*bucket), generation, number);
            writer.send(table, table.bucket_key(*bucket), key, None, &mut writes)?;
        }
    }
    writer.finish(table, writes).await
}

/// Removes stored versions of rows.
async fn remove_rows(writer: &Writer, table: &Table, rows: &[Stored]) -> Result<()> {
    let mut writes = Unfinished::default();
    let mut bytes = 0;
    for row in rows {
        let bucket = table.bucket(group_of(&row.key));
        let key = version_key(table.b(bucket), &row.key, row.generation, row.slot);
        bytes += key.len() * 2;
        writer.send(table, table.bucket_key(bucket), key, None, &mut writes)?;
        if bytes > MAX_UNSENT_BYTES {
            writer.finish(table, std::mem::take(&mut writes)).await?;
            bytes = 0;
        }
    }
    writer.finish(table, writes).await
}

/// Who sees what of one key group of one table.
pub struct Eyes {
    /// What each live version, reader and running branch sees, newest first.
    views: Vec<Vec<Ancestor>>,
    /// Generations that others write to: none of their rows is touched.
    running: BTreeSet<u64>,
    own: u64,
    /// The newest own epoch that is committed.
    committed: u64,
    /// Somebody sees rows of the group in several tables, so a deletion may hide what is not here.
    keep_deletions: bool,
}

impl Eyes {
    /// `entries`: all in the group of `table`, read after the rows. `own`: the generation of the caller, which sees
    /// `own_view`, and `protected` epochs of which are committed or may still be.
    pub fn new(
        entries: &[Entry],
        table: &Table,
        group: u16,
        own: u64,
        own_view: &[Ancestor],
        protected: &[u32],
    ) -> Self {
        let mut views = vec![own_view.to_vec()];
        for epoch in protected {
            let mut view = own_view.to_vec();
            if let Some(first) = view.first_mut().filter(|first| first.generation == own) {
                first.last_epoch = u64::from(*epoch);
            }
            views.push(view);
        }
        let several = |ancestors: &[Ancestor]| ancestors.windows(2).any(|pair| pair[0].table != pair[1].table);
        let mut keep_deletions = several(own_view);
        let mut running = BTreeSet::new();
        for entry in entries.iter().filter(|entry| is_live(entry) && entry.generation != own) {
            if entry.kind == Kind::Pin {
                running.insert(entry.generation);
            }
        }
        let mut committed = 0;
        for entry in entries.iter().filter(|entry| is_live(entry)) {
            if entry.kind == Kind::Pin && entry.generation == own {
                continue;
            }
            keep_deletions |= several(entry.lineage.ancestors(group));
            let place = entry.lineage.tables.iter().position(|found| found.id == table.id);
            let seen = entry.lineage.ancestors(group).iter().filter(|ancestor| Some(ancestor.table) == place);
            views.push(seen.copied().collect());
            if entry.kind == Kind::Version && entry.generation == own {
                committed = committed.max(entry.lineage.ancestors(group).first().map_or(0, |own| own.last_epoch));
            }
        }
        Self { views, running, own, committed, keep_deletions }
    }

    /// The versions of one key that nobody sees.
    pub fn unseen(&self, rows: &[Stored]) -> Vec<Stored> {
        let mut needed = vec![false; rows.len()];
        for (at, row) in rows.iter().enumerate() {
            needed[at] =
                self.running.contains(&row.generation) || row.generation == self.own && row.epoch > self.committed;
        }
        for view in &self.views {
            let Some(at) = visible(rows, view) else { continue };
            // What a deletion hides must go before the deletion does.
            let sees = |row: &Stored| {
                view.iter().any(|ancestor| row.generation == ancestor.generation && row.epoch <= ancestor.last_epoch)
            };
            let hides = rows.iter().enumerate().any(|(other, row)| other != at && sees(row));
            needed[at] |= rows[at].value.is_some() || hides || self.keep_deletions;
        }
        rows.iter().zip(needed).filter(|(_, needed)| !needed).map(|(row, _)| row.clone()).collect()
    }
}

/// The versions among `stored`, all of `table`, that nobody sees. They were read before this is called.
pub async fn unseen(
    shared: &Shared,
    table: &Arc<Table>,
    stored: Vec<Stored>,
    own: u64,
    own_view: impl Fn(u16) -> Vec<Ancestor>,
    protected: impl Fn() -> Vec<u32>,
) -> Result<Vec<Stored>> {
    // Read after the rows, so that whoever wrote one of them is known. What is `protected` is asked before, so that a
    // commit that ends meanwhile is in one of the two.
    let protected = protected();
    let entries = shared.control.read(table.path.table()).await?;
    let mut by_key: BTreeMap<Bytes, Vec<Stored>> = BTreeMap::new();
    for row in stored {
        by_key.entry(row.key.clone()).or_default().push(row);
    }
    let mut unseen = Vec::new();
    let mut eyes: Option<(u16, Eyes)> = None;
    for (key, rows) in by_key {
        let group = group_of(&key);
        let known = eyes.take().filter(|(of, _)| *of == group);
        let (_, eyes) = eyes.insert(
            known.unwrap_or_else(|| (group, Eyes::new(&entries, table, group, own, &own_view(group), &protected))),
        );
        unseen.extend(eyes.unseen(&rows));
    }
    Ok(unseen)
}

/// Removes rows of generations that nobody writes to.
pub async fn remove_others(shared: &Shared, table: &Table, rows: &[Stored]) -> Result<()> {
    remove_rows(shared.control.writer(), table, rows).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(generation: u64, epoch: u64, value: Option<&'static str>) -> Stored {
        Stored { key: "\0\0k".into(), generation, slot: 0, epoch, value: value.map(Bytes::from) }
    }

    fn ancestor(generation: u64, last_epoch: u64) -> Ancestor {
        Ancestor { table: 0, generation, last_epoch }
    }

    fn eyes(views: &[&[Ancestor]]) -> Eyes {
        let views = views.iter().map(|view| view.to_vec()).collect();
        Eyes { views, running: BTreeSet::from([7]), own: 2, committed: 4, keep_deletions: false }
    }

    #[test]
    fn what_a_view_sees_stays() {
        let rows = [row(1, 1, Some("a")), row(1, 3, Some("b")), row(2, 2, Some("c")), row(9, 1, Some("z"))];
        let newest = [ancestor(2, 9), ancestor(1, 3)];
        assert_eq!(eyes(&[&newest]).unseen(&rows), [rows[0].clone(), rows[1].clone(), rows[3].clone()]);
        let older = [ancestor(1, 2)];
        assert_eq!(eyes(&[&newest, &older]).unseen(&rows), [rows[1].clone(), rows[3].clone()]);
    }

    #[test]
    fn rows_of_the_running_stay() {
        let rows = [row(7, 1, Some("a")), row(2, 5, Some("b")), row(2, 4, Some("c"))];
        assert_eq!(eyes(&[]).unseen(&rows), [rows[2].clone()]);
    }

    #[test]
    fn a_deletion_goes_last() {
        let view = [ancestor(2, 9), ancestor(1, 3)];
        let rows = [row(1, 1, Some("a")), row(2, 2, None)];
        assert_eq!(eyes(&[&view]).unseen(&rows), rows[..1]);
        assert_eq!(eyes(&[&view]).unseen(&rows[1..]), rows[1..]);
        let older = [ancestor(1, 3)];
        assert_eq!(eyes(&[&view, &older]).unseen(&rows), []);
    }
}
