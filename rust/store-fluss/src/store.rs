//! A branch that is open for writing.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use weir_store::{
    Commit, ErrorKind, Expiry, Page, PageLimit, PendingCommit, Result, Row, StateReader, StateStore, StoreError,
    check_batch,
};

use crate::client::{Ask, MAX_BATCH_BYTES, MAX_UNSENT_BYTES, Unfinished, Writer};
use crate::control::{Entry, Kind, now};
use crate::encoding::{self, Stored, chain_key, chain_prefix, chain_rows, group_of, parse_chain, version_key};
use crate::lineage::{Ancestor, Lineage, Proof};
use crate::slots::Slots;
use crate::tables::{Table, home};
use crate::view::{Remainder, View, buckets_of, parse_rows};
use crate::{Shared, fenced, garbage, groups_of};

/// The largest row as it is sent: a request of the client holds 10 MiB.
const MAX_ROW_BYTES: usize = 9 << 20;
/// How long closing waits for garbage to be collected.
const CLOSE_WAIT: Duration = Duration::from_secs(2);
/// Key groups that an upkeep looks through.
const SWEPT_AT_ONCE: u16 = 8;

/// At most so many bytes of a batch does a row take, with the chain row behind it: its key twice, its value once.
fn sent_bytes(row: &Row) -> usize {
    row.key.len() * 2 + row.value.as_ref().map_or(0, Bytes::len) + 128
}

/// The branch's own table is the first of its lineage.
const OWN: usize = 0;

pub struct FlussStore {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    /// The pin: name, generation, range, and the lineage that the branch started from.
    pin: Entry,
    base: View,
    writer: Writer,
    writing: tokio::sync::Mutex<Writing>,
    /// What the branch sees now, its own rows first.
    view: Mutex<View>,
    /// Changes with the view's rows.
    state: AtomicU64,
    epochs: Mutex<Epochs>,
    /// For each bucket the number up to which the own chain was seen without a gap.
    verified: Mutex<Vec<u64>>,
    remainder: Remainder,
    closed: AtomicBool,
    /// Why nothing can be written or committed any more.
    failed: OnceLock<String>,
    tending: AtomicBool,
    /// Bytes of `writing.slots`.
    slot_bytes: AtomicU64,
}

struct Writing {
    epoch: u32,
    /// For each bucket the number of the last acknowledged chain row; 0: none.
    chain: Vec<u64>,
    slots: Slots,
    /// Of keys and values since the last commit, and of all that is there.
    written_bytes: u64,
    total_bytes: u64,
    /// Rows are on their way; still so at the next call if the last one was given up.
    sending: bool,
    /// Where the next sweep begins, and whether anything can have become garbage since the last whole round.
    swept: u16,
    dirt: bool,
}

/// Own epochs whose rows must not be overwritten.
#[derive(Default)]
struct Epochs {
    /// Committed, and not known to be released; or seen by somebody who descends from them.
    live: BTreeSet<u32>,
    /// Begun and not ended.
    pending: BTreeSet<u32>,
}

impl Epochs {
    fn protected(&self) -> Vec<u32> {
        self.live.union(&self.pending).copied().collect()
    }
}

/// An epoch whose commit has begun; ends with the commit, however that ends.
struct Pending {
    inner: Arc<Inner>,
    epoch: u32,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.inner.epochs.lock().pending.remove(&self.epoch);
    }
}

/// A version that was written down and not yet taken by the caller: it goes if it never is.
struct Delivery {
    inner: Arc<Inner>,
    version: Option<(Entry, Commit)>,
}

impl Delivery {
    fn take(mut self) -> Commit {
        self.version.take().expect("delivered once").1
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let Some((entry, _)) = self.version.take() else { return };
        let inner = self.inner.clone();
        self.inner.shared.runtime.spawn(async move {
            if let Err(error) = inner.withdraw(&entry).await {
                tracing::warn!(%error, version = %entry.version(), "a version that nobody took stays until the next attempt");
            }
        });
    }
}

impl FlussStore {
    /// `pin` is written; `base` is what the branch starts from, its own table first.
    pub async fn open(shared: Arc<Shared>, pin: Entry, base: View) -> Result<Self> {
        let table = base.tables[OWN].clone();
        let writer = Writer::new(&shared.config, true).await?;
        writer.prepare(&table).await?;
        let own = Ancestor { table: OWN, generation: pin.generation, last_epoch: u64::MAX };
        let lineage = Lineage { segments: base.lineage.extended(pin.range, own), ..Lineage::clone(&base.lineage) };
        let buckets = table.buckets() as usize;
        let writing = Writing {
            epoch: 1,
            chain: vec![0; buckets],
            slots: Slots::new(shared.config.remembered_keys),
            written_bytes: 0,
            total_bytes: pin.bytes,
            sending: false,
            swept: pin.range.first,
            dirt: !base.lineage.segments.is_empty(),
        };
        let inner = Inner {
            view: Mutex::new(View { lineage: lineage.into(), tables: base.tables.clone() }),
            shared,
            pin,
            base,
            writer,
            writing: tokio::sync::Mutex::new(writing),
            state: AtomicU64::new(0),
            epochs: Mutex::default(),
            verified: Mutex::new(vec![0; buckets]),
            remainder: Remainder::default(),
            closed: AtomicBool::new(false),
            failed: OnceLock::new(),
            tending: AtomicBool::new(false),
            slot_bytes: AtomicU64::new(0),
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl Inner {
    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(self.closed_error()) } else { Ok(()) }
    }

    fn closed_error(&self) -> StoreError {
        StoreError::new(ErrorKind::Closed, format!("branch {} is closed", self.pin.branch))
    }

    fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        match self.failed.get() {
            None => Ok(()),
            Some(cause) => Err(StoreError::new(
                ErrorKind::Unavailable,
                format!("branch {} takes no more rows, the job has to restart: {cause}", self.pin.branch),
            )),
        }
    }

    /// Whether a row has arrived, or still will, is unknown: nothing that this attempt could commit would be certain.
    fn fail(&self, cause: &StoreError) {
        let _ = self.failed.set(cause.to_string());
    }

    fn table(&self) -> &Arc<Table> {
        &self.base.tables[OWN]
    }

    fn view(&self) -> View {
        self.view.lock().clone()
    }

    /// Proofs of a branch that has acknowledged `chain`: where the own chain is known to lie behind all that the branch
    /// started from, it stands for that too.
    fn proofs(&self, chain: &[u64]) -> Vec<Proof> {
        let verified = self.verified.lock();
        let own_stands = |proof: &Proof| {
            let bucket = proof.bucket as usize;
            proof.table == OWN && verified[bucket] > 0 && chain[bucket] > 0
        };
        let mut proofs: Vec<Proof> =
            self.base.lineage.proofs.iter().filter(|proof| !own_stands(proof)).copied().collect();
        let generation = self.pin.generation;
        proofs.extend(chain.iter().enumerate().filter(|(_, number)| **number > 0).map(|(bucket, number)| Proof {
            table: OWN,
            bucket: bucket as i32,
            generation,
            number: *number,
        }));
        proofs
    }

    /// From now on reads are of a server that has all that `chain` stands for.
    fn advance(&self, chain: &[u64]) {
        let proofs = self.proofs(chain);
        let mut view = self.view.lock();
        view.lineage = Lineage { proofs, ..Lineage::clone(&view.lineage) }.into();
        self.state.fetch_add(1, Ordering::AcqRel);
    }

    async fn write(&self, batch: Vec<Row>) -> Result<()> {
        self.check_writable()?;
        check_batch(&batch)?;
        if let Some(row) = batch.iter().find(|row| sent_bytes(row) > MAX_ROW_BYTES) {
            let (key, value) = (row.key.len(), row.value.as_ref().map_or(0, Bytes::len));
            let message = format!("a row with a key of {key} and a value of {value} bytes is too large for Fluss");
            return Err(StoreError::new(ErrorKind::InvalidArgument, message));
        }
        let mut writing = self.writing.lock().await;
        if writing.sending {
            self.fail(&StoreError::new(ErrorKind::Internal, "a write was given up before it was acknowledged"));
        }
        self.check_writable()?;
        let mut rest = &batch[..];
        while !rest.is_empty() {
            let (part, after) = rest.split_at(self.batch(rest));
            self.learn(&mut writing, part).await?;
            writing.sending = true;
            if let Err(error) = self.send(&mut writing, part).await {
                self.fail(&error);
                return self.check_open().and(Err(error));
            }
            writing.sending = false;
            rest = after;
        }
        Ok(())
    }

    /// How many of the next rows go out together: one batch for each bucket.
    fn batch(&self, rows: &[Row]) -> usize {
        let mut buckets = vec![0; self.table().buckets() as usize];
        let mut all = 0;
        let fits = |row: &&Row| {
            let bytes = sent_bytes(row);
            let bucket = &mut buckets[self.table().bucket(group_of(&row.key)) as usize];
            (*bucket, all) = (*bucket + bytes, all + bytes);
            *bucket <= MAX_BATCH_BYTES && all <= MAX_UNSENT_BYTES
        };
        rows.iter().take_while(fits).count().max(1)
    }

    /// Asks for the places of keys that are not remembered.
    async fn learn(&self, writing: &mut Writing, rows: &[Row]) -> Result<()> {
        let slots = &mut writing.slots;
        slots.make_room(rows.len());
        let unknown: Vec<Bytes> =
            rows.iter().filter(|row| !slots.is_known(slots.id(&row.key))).map(|row| row.key.clone()).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let versions = self.view().versions(&self.shared.lookups, &unknown).await?;
        for (key, versions) in unknown.iter().zip(versions) {
            let own = versions.iter().filter(|row| row.generation == self.pin.generation);
            let bytes = |row: &Stored| row.value.as_ref().map_or(0, |value| (key.len() + value.len()) as u32);
            let id = slots.id(key);
            slots.learn(id, own.map(|row| (row.slot, row.epoch, bytes(row))));
        }
        Ok(())
    }

    /// Sends rows, in each bucket a chain row behind them, and waits for all.
    async fn send(&self, writing: &mut Writing, rows: &[Row]) -> Result<()> {
        let table = self.table();
        let generation = self.pin.generation;
        let protected = self.epochs.lock().protected();
        let mut writes = Unfinished::default();
        let mut touched = BTreeSet::new();
        for Row { key, value } in rows {
            let bucket = table.bucket(group_of(key));
            touched.insert(bucket);
            let bytes = (key.len() + value.as_ref().map_or(0, Bytes::len)) as u32;
            let held = if value.is_some() { bytes } else { 0 };
            let id = writing.slots.id(key);
            let (slot, before) = writing.slots.place(id, writing.epoch, &protected, held);
            writing.written_bytes += u64::from(bytes);
            writing.total_bytes = (writing.total_bytes + u64::from(held)).saturating_sub(u64::from(before));
            writing.dirt |= slot > 1 || value.is_none();
            let key = version_key(table.b(bucket), key, generation, slot);
            let row = encoding::row(&key, u64::from(writing.epoch), value.as_deref());
            self.writer.send(table, table.bucket_key(bucket), key, Some(row), &mut writes)?;
        }
        if rows.len() == 1 && sent_bytes(&rows[0]) > MAX_BATCH_BYTES {
            // Too large to share a batch with the chain row, which must come behind it.
            self.writer.finish(table, std::mem::take(&mut writes)).await?;
        }
        let mut chain = writing.chain.clone();
        for bucket in touched {
            let number = &mut chain[bucket as usize];
            *number += 1;
            let key = chain_key(table.b(bucket), generation, *number);
            let row = encoding::row(&key, u64::from(writing.epoch), None);
            self.writer.send(table, table.bucket_key(bucket), key, Some(row), &mut writes)?;
        }
        self.writer.finish(table, writes).await?;
        self.advance(&chain);
        writing.chain = chain;
        self.slot_bytes.store(writing.slots.bytes(), Ordering::Relaxed);
        Ok(())
    }

    async fn begin_commit(self: &Arc<Self>, checkpoint: u64) -> Result<PendingCommit> {
        self.check_writable()?;
        let mut writing = self.writing.lock().await;
        if writing.sending {
            self.fail(&StoreError::new(ErrorKind::Internal, "a write was given up before it was acknowledged"));
        }
        self.check_writable()?;
        let epoch = writing.epoch;
        self.epochs.lock().pending.insert(epoch);
        let pending = Pending { inner: self.clone(), epoch };
        writing.epoch += 1;
        let chain = writing.chain.clone();
        let written_bytes = std::mem::take(&mut writing.written_bytes);
        let total_bytes = writing.total_bytes;
        drop(writing);
        let inner = self.clone();
        Ok(async move {
            let (tell, told) = tokio::sync::oneshot::channel();
            let runtime = inner.shared.runtime.clone();
            // In a task, which withdraws the version if nobody waits for it any more.
            runtime.spawn(async move {
                let committed = inner.commit(&pending, checkpoint, &chain, total_bytes).await;
                let delivery = committed.map(|entry| {
                    let commit = Commit { version: entry.version(), written_bytes, total_bytes };
                    inner.epochs.lock().live.insert(epoch);
                    Delivery { inner: inner.clone(), version: Some((entry, commit)) }
                });
                drop(pending);
                let _ = tell.send(delivery);
            });
            match told.await {
                Ok(delivery) => Ok(delivery?.take()),
                Err(_) => Err(StoreError::new(ErrorKind::Internal, "the task of a commit ended without a result")),
            }
        }
        .boxed())
    }

    /// Writes the version down once all that it needs is known to be there.
    async fn commit(&self, pending: &Pending, checkpoint: u64, chain: &[u64], bytes: u64) -> Result<Entry> {
        self.check_open()?;
        self.verify(chain).await?;
        let own = Ancestor { table: OWN, generation: self.pin.generation, last_epoch: u64::from(pending.epoch) };
        let wrote = chain.iter().any(|number| *number > 0);
        let base = &self.base.lineage;
        let segments = if wrote { base.extended(self.pin.range, own) } else { base.segments.clone() };
        let entry = Entry {
            kind: Kind::Version,
            id: format!("{:016x}-{}", self.pin.generation, pending.epoch),
            born: now(),
            checkpoint,
            bytes,
            lineage: Lineage { tables: base.tables.clone(), segments, proofs: self.proofs(chain) },
            ..self.pin.clone()
        };
        self.check_open()?;
        let checked = async {
            self.shared.control.put(&entry).await?;
            // A reaper drops the pin, then looks for versions: either it sees this one, or its doing is seen here.
            let entries = self.shared.control.read(&home(&self.pin.branch)).await?;
            if !entries.iter().any(|entry| entry.kind == Kind::Pin && entry.generation == self.pin.generation) {
                return Err(if self.closed.load(Ordering::Acquire) {
                    self.closed_error()
                } else {
                    fenced(&self.pin.branch)
                });
            }
            self.check_open()
        };
        match checked.await {
            Ok(()) => Ok(entry),
            Err(error) => {
                if let Err(cleaning) = self.withdraw(&entry).await {
                    tracing::warn!(version = %entry.version(), error = %cleaning, "a commit that failed leaves its version");
                }
                Err(error)
            }
        }
    }

    /// Fails unless everything that `chain` stands for is there: in each bucket the own chain without a gap, and what the
    /// branch started from.
    async fn verify(&self, chain: &[u64]) -> Result<()> {
        let table = self.table();
        let from = self.verified.lock().clone();
        let grown: Vec<i32> = (0..table.buckets()).filter(|b| chain[*b as usize] > from[*b as usize]).collect();
        let lineage = Lineage { proofs: self.proofs(chain), ..Lineage::clone(&self.base.lineage) };
        let view = View { lineage: lineage.into(), tables: self.base.tables.clone() };
        let ask = |bucket: &i32| {
            let prefix = chain_prefix(table.b(*bucket), self.pin.generation).into();
            Ask { bucket: *bucket, prefix }
        };
        let chains = self.shared.lookups.get(table, &view.proofs(OWN), grown.iter().map(ask).collect()).await?;
        for (bucket, rows) in grown.iter().zip(chains) {
            let (from, to) = (from[*bucket as usize], chain[*bucket as usize]);
            let numbers: BTreeSet<u64> =
                parse_rows(table, &rows)?.iter().filter_map(parse_chain).map(|(_, number)| number).collect();
            if let Some(lost) = (from + 1..=to).find(|number| !numbers.contains(number)) {
                let error = StoreError::new(
                    ErrorKind::Corrupt,
                    format!(
                        "bucket {bucket} of table {} has lost rows that it had acknowledged (chain row {lost} of {to}): \
                         restore from another checkpoint; use replication 3 and an in-sync minimum of 2",
                        table.path
                    ),
                );
                self.fail(&error);
                return Err(error);
            }
        }
        view.verify(&self.shared.lookups).await?;
        let mut verified = self.verified.lock();
        for bucket in grown {
            let known = &mut verified[bucket as usize];
            *known = (*known).max(chain[bucket as usize]);
        }
        Ok(())
    }

    /// Removes a version that nobody was told of.
    async fn withdraw(&self, entry: &Entry) -> Result<()> {
        self.shared.control.remove([entry]).await?;
        if self.closed.load(Ordering::Acquire) {
            garbage::collect(&self.shared, groups_of([entry])).await?;
        }
        Ok(())
    }

    async fn close(self: &Arc<Self>) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // Ends a write under way.
        self.writer.close().await;
        self.shared.control.remove([&self.pin]).await?;
        let collecting = self.shared.collect_later(groups_of([&self.pin]));
        let _ = tokio::time::timeout(CLOSE_WAIT, collecting).await;
        Ok(())
    }

    /// Learns which epochs are still needed, and removes some of what nobody sees.
    async fn tend(&self) -> Result<()> {
        let (known, quiet) = {
            let epochs = self.epochs.lock();
            (epochs.live.clone(), epochs.pending.is_empty())
        };
        // Of commits that begin later none counts or names a chain row before these.
        let verified = self.verified.lock().clone();
        let groups = groups_of([&self.pin]);
        let entries = self.shared.control.read_all(groups).await?;
        let mut needed = BTreeSet::new();
        for entry in entries.iter().filter(|entry| entry.kind != Kind::Branch) {
            let ancestors = entry.lineage.segments.iter().flat_map(|segment| &segment.ancestors);
            let own = ancestors.filter(|ancestor| ancestor.generation == self.pin.generation);
            needed.extend(own.map(|ancestor| ancestor.last_epoch as u32));
        }
        self.epochs.lock().live.retain(|epoch| needed.contains(epoch) || !known.contains(epoch));
        if quiet {
            self.trim_chain(&entries, &verified).await?;
        }
        self.sweep().await
    }

    /// Removes own chain rows before `verified` that no version names as its proof.
    async fn trim_chain(&self, entries: &[Entry], verified: &[u64]) -> Result<()> {
        let table = self.table();
        let named: BTreeSet<(i32, u64)> = entries
            .iter()
            .flat_map(|entry| &entry.lineage.proofs)
            .filter(|proof| proof.generation == self.pin.generation)
            .map(|proof| (proof.bucket, proof.number))
            .collect();
        let buckets: Vec<i32> = (0..table.buckets()).filter(|bucket| verified[*bucket as usize] > 0).collect();
        let ask =
            |bucket: &i32| Ask { bucket: *bucket, prefix: chain_prefix(table.b(*bucket), self.pin.generation).into() };
        let rows = self.shared.lookups.get(table, &HashMap::new(), buckets.iter().map(ask).collect()).await?;
        let mut writing = self.writing.lock().await;
        if writing.sending {
            return Ok(());
        }
        let mut writes = Unfinished::default();
        for (bucket, rows) in buckets.iter().zip(rows) {
            for (_, number) in parse_rows(table, &rows)?.iter().filter_map(parse_chain) {
                if number < verified[*bucket as usize] && !named.contains(&(*bucket, number)) {
                    let key = chain_key(table.b(*bucket), self.pin.generation, number);
                    self.writer.send(table, table.bucket_key(*bucket), key, None, &mut writes)?;
                }
            }
        }
        self.finish_removal(&mut writing, writes).await
    }

    async fn finish_removal(&self, writing: &mut Writing, writes: Unfinished) -> Result<()> {
        writing.sending = true;
        self.writer.finish(self.table(), writes).await.inspect_err(|error| self.fail(error))?;
        writing.sending = false;
        Ok(())
    }

    /// Looks through the next key groups, and removes what nobody sees.
    async fn sweep(&self) -> Result<()> {
        let range = self.pin.range;
        let groups: Vec<u16> = {
            let mut writing = self.writing.lock().await;
            if writing.swept == range.first && !std::mem::take(&mut writing.dirt) {
                return Ok(());
            }
            let first = writing.swept;
            let last = first.saturating_add(SWEPT_AT_ONCE - 1).min(range.last);
            writing.swept = if last == range.last { range.first } else { last + 1 };
            (first..=last).collect()
        };
        let table = self.table();
        let view = self.view();
        let prefixes: Vec<Bytes> = groups.iter().map(|group| Bytes::copy_from_slice(&group.to_be_bytes())).collect();
        let stored = view.stored_in(&self.shared.lookups, OWN, &prefixes).await?;
        let own_view = |group: u16| view.lineage.ancestors(group).to_vec();
        let protected = || self.epochs.lock().protected();
        let own = self.pin.generation;
        let unseen = garbage::unseen(&self.shared, table, stored, own, own_view, protected).await?;
        let (own, others): (Vec<Stored>, Vec<Stored>) = unseen.into_iter().partition(|row| row.generation == own);
        garbage::remove_others(&self.shared, table, &others).await?;
        let mut writing = self.writing.lock().await;
        if !others.is_empty() || !own.is_empty() {
            // A deletion goes once what it hid has gone.
            writing.dirt = true;
        }
        if writing.sending || own.is_empty() {
            return Ok(());
        }
        let mut writes = Unfinished::default();
        for row in own {
            let id = writing.slots.id(&row.key);
            // Not where the slot was taken meanwhile.
            if writing.slots.free(id, row.slot, row.epoch) {
                let bucket = table.bucket(group_of(&row.key));
                let key = version_key(table.b(bucket), &row.key, row.generation, row.slot);
                self.writer.send(table, table.bucket_key(bucket), key, None, &mut writes)?;
            }
        }
        self.finish_removal(&mut writing, writes).await?;
        self.state.fetch_add(1, Ordering::AcqRel);
        self.remove_strange_chains().await
    }

    /// Removes chain rows of generations that nobody knows any more from this branch's buckets.
    async fn remove_strange_chains(&self) -> Result<()> {
        let table = self.table();
        let buckets = buckets_of(table, self.pin.range);
        let ask = |bucket: &i32| Ask { bucket: *bucket, prefix: chain_rows(table.b(*bucket)).into() };
        let rows = self.shared.lookups.get(table, &HashMap::new(), buckets.iter().map(ask).collect()).await?;
        let entries = self.shared.control.read(table.path.table()).await?;
        let known: BTreeSet<u64> = entries.iter().map(|entry| entry.generation).collect();
        let named = |generation: u64, number: u64| {
            let mut proofs = entries.iter().flat_map(|entry| &entry.lineage.proofs);
            proofs.any(|proof| (proof.generation, proof.number) == (generation, number))
        };
        let mut writes = Unfinished::default();
        for (bucket, rows) in buckets.iter().zip(rows) {
            for (generation, number) in parse_rows(table, &rows)?.iter().filter_map(parse_chain) {
                if generation != 0 && !known.contains(&generation) && !named(generation, number) {
                    let key = chain_key(table.b(*bucket), generation, number);
                    let bucket_key = table.bucket_key(*bucket);
                    self.shared.control.writer().send(table, bucket_key, key, None, &mut writes)?;
                }
            }
        }
        self.shared.control.writer().finish(table, writes).await
    }
}

impl StateReader for FlussStore {
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
        async move {
            self.inner.check_open()?;
            self.inner.view().get_many(&self.inner.shared.lookups, keys).await
        }
        .boxed()
    }

    fn scan<'a>(&'a self, prefix: &'a [u8], after: Option<&'a [u8]>, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        async move {
            let inner = &self.inner;
            inner.check_open()?;
            let state = inner.state.load(Ordering::Acquire);
            inner.view().scan(&inner.shared.lookups, &inner.remainder, state, prefix, after, limit).await
        }
        .boxed()
    }
}

impl StateStore for FlussStore {
    fn write(&self, batch: Vec<Row>) -> BoxFuture<'_, Result<()>> {
        self.inner.write(batch).boxed()
    }

    fn begin_commit(&self, checkpoint: u64) -> BoxFuture<'_, Result<PendingCommit>> {
        self.inner.begin_commit(checkpoint).boxed()
    }

    fn upkeep(&self, _completed_checkpoint: u64) {
        let inner = self.inner.clone();
        if inner.check_writable().is_err() || inner.tending.swap(true, Ordering::AcqRel) {
            return;
        }
        self.inner.shared.runtime.spawn(async move {
            if let Err(error) = inner.tend().await
                && inner.check_open().is_ok()
            {
                tracing::warn!(branch = %inner.pin.branch, %error, "upkeep failed; it is tried again later");
            }
            inner.tending.store(false, Ordering::Release);
        });
    }

    /// Nothing is dropped before a state's own clean-up deletes it.
    fn set_expiry(&self, _expiry: Expiry) {}

    fn memory_bytes(&self) -> u64 {
        self.inner.slot_bytes.load(Ordering::Relaxed) + self.inner.remainder.bytes()
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        async move { self.inner.close().await }.boxed()
    }
}
