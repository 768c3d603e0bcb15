//! The engine's surface, and what the task thread, the pipeline and the other engines of the slot share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use weir_store::{Commit, Expiry, StateStore};

use crate::budget::{Member, MemoryBudget};
use crate::commits::Commits;
use crate::error::{EngineError, ErrorKind, Result, closed, invalid};
use crate::flush::{self, DeleteRows};
use crate::options::EngineOptions;
use crate::resident::{Resident, SmallBytes};
use crate::stats::Stats;
use crate::stop::Stop;
use crate::working_set::{Found, NONE, WorkingSet};

/// How long [`KeyedEngine::close`] waits for the pipeline, and then for the store.
const CLOSE_PIPELINE: Duration = Duration::from_secs(5);
const CLOSE_STORE: Duration = Duration::from_secs(10);
/// An engine may keep this many dirty bytes even when the slot's memory is exhausted.
const LEAST_DIRTY_BOUND: usize = 64 << 10;
/// After others could not free enough, they are not asked again for this many charges.
const RECLAIM_PAUSE: u32 = 64;

/// Names a frozen epoch of one engine; grows with every freeze.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochId(pub u64);

/// A durable version of everything up to a freeze.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    pub commit: Commit,
    /// The sequence number that the next list element had at the freeze.
    pub next_sequence: u64,
}

/// The keyed state of one operator's subtask.
///
/// Only the task thread calls the state operations and [`Self::freeze`]; the others say that any thread may call them.
/// No call may be made from a thread of a tokio runtime, nor from within a closure that was passed to the engine.
///
/// Every call ends with [`ErrorKind::Cancelled`] after [`Self::cancel`], with [`ErrorKind::Closed`] after
/// [`Self::close`], also one that waits; with [`ErrorKind::InvalidArgument`] for a key outside the engine's key groups;
/// and with the store's error if the store had to be asked and failed.
pub struct KeyedEngine<V: Resident = SmallBytes> {
    shared: Arc<Shared<V>>,
}

pub(crate) struct Shared<V: Resident> {
    pub store: Arc<dyn StateStore>,
    pub options: EngineOptions,
    pub budget: Arc<MemoryBudget>,
    pub runtime: Handle,
    pub stop: Arc<Stop>,
    pub commits: Arc<Commits>,
    expiry: Mutex<Expiry>,
    pub inner: Mutex<Inner<V>>,
    /// Rows were acknowledged, or a batch failed, or the engine is being stopped. Waits with `inner`.
    pub flushed: Condvar,
    /// Wakes the pipeline.
    pub work: Notify,
    /// Another engine wants this one's dirty rows flushed.
    pub nudged: AtomicBool,
    /// What `inner` has charged, to read without its lock.
    resident: AtomicUsize,
    this: Weak<Shared<V>>,
}

pub(crate) struct Inner<V: Resident> {
    pub working_set: WorkingSet<V>,
    next_sequence: u64,
    /// The task thread asks the store for what it will compare with the memory: nothing may leave that.
    pub scanning: bool,
    /// The pipeline waits for work.
    pub idle: bool,
    /// All dirty rows are to be flushed.
    pub flush_wanted: bool,
    pub delete: Option<DeleteRows>,
    pub failures: u64,
    pub last_error: Option<EngineError>,
    pub pipeline_ended: Option<EngineError>,
    charged: usize,
    reclaim_pause: u32,
    pub stats: Stats,
}

impl<V: Resident> KeyedEngine<V> {
    /// Starts the pipeline on `runtime`, which must outlive the engine.
    pub fn new(
        store: Arc<dyn StateStore>,
        options: EngineOptions,
        budget: Arc<MemoryBudget>,
        runtime: Handle,
    ) -> Arc<Self> {
        let options = EngineOptions { max_dirty_bytes: options.max_dirty_bytes.max(1), ..options };
        let stop = Arc::new(Stop::new());
        let commits = Commits::new(Arc::clone(&stop), options.stores.clone(), runtime.clone());
        let inner = Inner {
            working_set: WorkingSet::new(&options),
            next_sequence: options.next_sequence,
            scanning: false,
            idle: false,
            flush_wanted: false,
            delete: None,
            failures: 0,
            last_error: None,
            pipeline_ended: None,
            charged: 0,
            reclaim_pause: 0,
            stats: Stats::default(),
        };
        let shared = Arc::new_cyclic(|this| Shared {
            store,
            options,
            budget,
            runtime,
            stop,
            commits,
            expiry: Mutex::default(),
            inner: Mutex::new(inner),
            flushed: Condvar::new(),
            work: Notify::new(),
            nudged: AtomicBool::new(false),
            resident: AtomicUsize::new(0),
            this: Weak::clone(this),
        });
        shared.budget.join(shared.member());
        shared.runtime.spawn(flush::run(Arc::clone(&shared)));
        Arc::new(Self { shared })
    }

    // ---- value rows

    /// Passes the value of `key` to `f`, `None` if there is no row.
    #[inline]
    pub fn get<R>(&self, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let (mut inner, id) = self.shared.read(key)?;
        let value = inner.value(id);
        Ok(f(value.map(V::as_bytes).as_deref()))
    }

    /// As [`Self::get`], in the form in which the value is resident.
    #[inline]
    pub fn get_resident<R>(&self, key: &[u8], f: impl FnOnce(Option<&V>) -> R) -> Result<R> {
        let (mut inner, id) = self.shared.read(key)?;
        Ok(f(inner.value(id)))
    }

    /// Passes every key's position and value to `f`, in the order of `keys`. Asks the store once for all keys that are
    /// not in memory.
    pub fn get_many(&self, keys: &[&[u8]], mut f: impl FnMut(usize, Option<&[u8]>)) -> Result<()> {
        self.shared.get_many(keys, &mut f)
    }

    /// Writes a row. Waits while there are too many dirty bytes.
    #[inline]
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.shared.check_key(key)?;
        let mut inner = self.shared.enter_to_write()?;
        inner.working_set.set(key, Some(value));
        self.shared.wrote(&mut inner);
        Ok(())
    }

    /// Removes a row, without asking whether there is one.
    #[inline]
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        self.shared.check_key(key)?;
        let mut inner = self.shared.enter_to_write()?;
        inner.working_set.set(key, None);
        self.shared.wrote(&mut inner);
        Ok(())
    }

    // ---- groups: the rows of one key and namespace of a map or list

    /// Passes the value of the row `prefix`, `suffix` to `f`, `None` if there is none.
    #[inline]
    pub fn group_get<R>(&self, prefix: &[u8], suffix: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let (mut inner, id) = self.shared.read_in_group(prefix, suffix)?;
        let value = inner.value(id);
        Ok(f(value.map(V::as_bytes).as_deref()))
    }

    /// Writes a row of a group.
    #[inline]
    pub fn group_put(&self, prefix: &[u8], suffix: &[u8], value: &[u8]) -> Result<()> {
        self.shared.set_in_group(prefix, suffix, Some(value))
    }

    /// Removes a row of a group, without asking whether there is one.
    #[inline]
    pub fn group_delete(&self, prefix: &[u8], suffix: &[u8]) -> Result<()> {
        self.shared.set_in_group(prefix, suffix, None)
    }

    pub fn group_contains(&self, prefix: &[u8], suffix: &[u8]) -> Result<bool> {
        let (mut inner, id) = self.shared.read_in_group(prefix, suffix)?;
        Ok(inner.value(id).is_some())
    }

    /// Whether a group has no row; reads no more of it than it must.
    pub fn group_is_empty(&self, prefix: &[u8]) -> Result<bool> {
        self.shared.group_is_empty(prefix)
    }

    /// Removes all rows of a group. If they are not all in memory their keys are paged through, a bounded number of
    /// tombstones at a time.
    pub fn group_clear(&self, prefix: &[u8]) -> Result<()> {
        self.shared.group_clear(prefix)
    }

    /// Appends an element to a list, whose rows hold elements as `[u32 BE length][element]` each and have sequence numbers as
    /// suffixes, encoded as [`crate::encoding::sequence_suffix`].
    ///
    /// The element goes into the list's last row, if that was begun in the running epoch, is not flushed yet and stays
    /// within 1 KiB; else (true) into a new row of the engine's next sequence number. So nothing is read, and a checkpoint
    /// costs a list a row for each KiB that was appended since the last one.
    pub fn list_append(&self, prefix: &[u8], element: &[u8]) -> Result<bool> {
        self.shared.check_key(prefix)?;
        let mut inner = self.shared.enter_to_write()?;
        let sequence = inner.next_sequence;
        let begun = inner.working_set.append(prefix, sequence, element);
        inner.next_sequence += u64::from(begun);
        self.shared.wrote(&mut inner);
        Ok(begun)
    }

    /// Appends rows of a group to `out`, in the order of their suffixes, those after the suffix `after` only, as
    /// `[u32 LE suffix length][u32 LE value length][suffix][value]` each. Stops before a row that would make it more
    /// than `max_bytes`, but not before the first.
    ///
    /// True if there may be more rows; then the page is not empty. The next page may be.
    pub fn group_page(&self, prefix: &[u8], after: Option<&[u8]>, max_bytes: usize, out: &mut Vec<u8>) -> Result<bool> {
        self.shared.group_page(prefix, after, max_bytes, out)
    }

    /// Appends the values of a group to `out`, in the order of their suffixes, if the whole group is in memory and its values
    /// have at most `max_bytes`. Of a list that is all its elements, each behind its length.
    ///
    /// False: the group is not, or they have more, so that `out` is as before and [`Self::group_page`] reads the group.
    pub fn group_values(&self, prefix: &[u8], max_bytes: usize, out: &mut Vec<u8>) -> Result<bool> {
        self.shared.check_key(prefix)?;
        let mut inner = self.shared.enter()?;
        Ok(inner.values_in_memory(prefix, max_bytes, out))
    }

    // ---- rows by any prefix

    /// Appends the rows whose key starts with `prefix`, value rows and groups alike, in the order of their keys, those
    /// after the key `after` only; the format is [`Self::group_page`]'s with whole keys. Flushes what is dirty first.
    ///
    /// True if there are more rows.
    pub fn row_page(&self, prefix: &[u8], after: Option<&[u8]>, max_bytes: usize, out: &mut Vec<u8>) -> Result<bool> {
        self.shared.row_page(prefix, after, max_bytes, out)
    }

    /// Removes every row whose key starts with `prefix`; returns how many there were. Flushes what is dirty first.
    pub fn delete_rows(&self, prefix: &[u8]) -> Result<u64> {
        self.shared.delete_rows(prefix)
    }

    // ---- epochs

    /// Ends the running epoch at the barrier of `checkpoint`, in a time that does not depend on the rows, and starts its
    /// flush.
    pub fn freeze(&self, checkpoint: u64) -> Result<EpochId> {
        let mut inner = self.shared.enter()?;
        if let Some(error) = &inner.pipeline_ended {
            return Err(error.clone());
        }
        let epoch = inner.working_set.epochs.freeze(checkpoint);
        self.shared.commits.freeze(epoch, inner.next_sequence);
        self.shared.kick(&mut inner);
        Ok(EpochId(u64::from(epoch)))
    }

    /// Waits until the version of a frozen epoch is durable. Any thread; once an epoch.
    ///
    /// # Errors
    /// The store's, if a batch or the commit failed: nothing is lost, and the next commit includes the epoch's rows.
    pub fn await_commit(&self, epoch: EpochId) -> Result<Committed> {
        self.shared.commits.wait(epoch)
    }

    /// The version of a frozen epoch is no longer wanted: it will not be, or it is released. Any thread.
    pub fn abort(&self, epoch: EpochId) {
        if let Ok(number) = u32::try_from(epoch.0)
            && let Some(frozen) = self.shared.inner.lock().working_set.epochs.frozen_mut(number)
        {
            frozen.wanted = false;
        }
        self.shared.commits.abort(epoch);
    }

    /// The JobManager has completed `checkpoint`. Any thread.
    pub fn checkpoint_complete(&self, checkpoint: u64) {
        if self.shared.stop.check().is_ok() {
            self.shared.store.upkeep(checkpoint);
        }
    }

    /// Changes which rows the store may drop because they have expired, as [`StateStore::set_expiry`] says. The engine
    /// itself drops none: what is in memory stays until it is evicted, overwritten or deleted. Any thread; does not wait.
    pub fn change_expiry(&self, change: impl FnOnce(&mut Expiry)) -> Result<()> {
        self.shared.stop.check()?;
        // Under the lock, so that the store gets the changes in their order.
        let mut expiry = self.shared.expiry.lock();
        change(&mut expiry);
        self.shared.store.set_expiry(expiry.clone());
        Ok(())
    }

    /// Ends waiting and later calls with [`ErrorKind::Cancelled`]. Any thread; does not wait.
    pub fn cancel(&self) {
        self.shared.stop.cancel();
        self.shared.wake_all();
    }

    /// Ends waiting and later calls with [`ErrorKind::Closed`], gives the branch up and returns all memory. Any thread,
    /// idempotent; waits for the pipeline and the store, within bounds.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Any thread, also after close.
    pub fn stats(&self) -> Stats {
        let inner = self.shared.inner.lock();
        let set = &inner.working_set;
        Stats {
            rows: set.rows.used() as u64,
            groups: set.groups.len() as u64,
            resident_bytes: set.resident_bytes() as u64,
            dirty_bytes: set.unflushed_bytes() as u64,
            dirty_rows: set.dirty_rows as u64,
            filter_bytes: set.absence.bytes() as u64,
            store_memory_bytes: set.store_bytes as u64,
            frozen_epochs: set.epochs.frozen.len() as u64,
            evictions: set.counters.evictions,
            elided_rows: set.counters.elided_rows,
            displaced_values: set.counters.displaced_values,
            ..inner.stats
        }
    }
}

impl<V: Resident> Drop for KeyedEngine<V> {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl<V: Resident> Inner<V> {
    /// The value of the row that [`Shared::read`] found.
    #[inline]
    fn value(&mut self, id: Option<u32>) -> Option<&V> {
        self.working_set.touch(id?)
    }
}

impl<V: Resident> Shared<V> {
    #[inline]
    pub fn check_key(&self, key: &[u8]) -> Result<()> {
        if self.options.range.contains_key(key) { Ok(()) } else { Err(self.outside(key)) }
    }

    #[cold]
    fn outside(&self, key: &[u8]) -> EngineError {
        let group = match key {
            [high, low, ..] => u16::from_be_bytes([*high, *low]).to_string(),
            _ => "none".to_owned(),
        };
        invalid(format!("a key of key group {group} was given to an engine of the key groups {}", self.options.range))
    }

    /// The task thread begins a call.
    #[inline]
    pub fn enter(&self) -> Result<MutexGuard<'_, Inner<V>>> {
        let inner = self.inner.lock();
        self.stop.check()?;
        Ok(inner)
    }

    /// The task thread goes on with a call after it waited for the store.
    pub fn reenter(&self) -> Result<MutexGuard<'_, Inner<V>>> {
        let inner = self.inner.lock();
        self.stop.check()?;
        Ok(inner)
    }

    /// As [`Self::enter`], after waiting until there is room for dirty bytes.
    #[inline]
    pub fn enter_to_write(&self) -> Result<MutexGuard<'_, Inner<V>>> {
        let mut inner = self.enter()?;
        if inner.working_set.unflushed_bytes() >= LEAST_DIRTY_BOUND.min(self.options.max_dirty_bytes) {
            self.wait_for_room(&mut inner)?;
        }
        Ok(inner)
    }

    /// How many dirty bytes this engine may have now.
    pub fn dirty_bound(&self) -> usize {
        let bound = self.options.max_dirty_bytes;
        if self.budget.excess() == 0 { bound } else { bound.min((self.budget.fair_share() / 2).max(LEAST_DIRTY_BOUND)) }
    }

    #[inline]
    fn wait_for_room(&self, inner: &mut MutexGuard<'_, Inner<V>>) -> Result<()> {
        if inner.working_set.unflushed_bytes() < self.dirty_bound() {
            return Ok(());
        }
        let began = Instant::now();
        inner.stats.writer_waits += 1;
        let result =
            self.wait_for_flush(inner, |inner| inner.working_set.unflushed_bytes() < self.dirty_bound(), |_| {});
        inner.stats.writer_wait_nanos += began.elapsed().as_nanos() as u64;
        result
    }

    /// Waits until `done`; before every wait `ask` may say what the pipeline is to do.
    fn wait_for_flush(
        &self,
        inner: &mut MutexGuard<'_, Inner<V>>,
        done: impl Fn(&Inner<V>) -> bool,
        ask: impl Fn(&mut Inner<V>),
    ) -> Result<()> {
        let failures = inner.failures;
        while !done(inner) {
            self.stop.check()?;
            if let Some(error) = &inner.pipeline_ended {
                return Err(error.clone());
            }
            if inner.failures != failures
                && let Some(error) = &inner.last_error
            {
                return Err(error.clone());
            }
            ask(inner);
            self.kick(inner);
            self.flushed.wait(inner);
        }
        self.stop.check()
    }

    /// Waits until the store has every row.
    pub fn flush_all(&self) -> Result<MutexGuard<'_, Inner<V>>> {
        let mut inner = self.enter()?;
        self.wait_for_flush(&mut inner, |inner| inner.working_set.dirty_rows == 0, |inner| inner.flush_wanted = true)?;
        Ok(inner)
    }

    /// Wakes the pipeline if it waits for work.
    #[inline]
    pub fn kick(&self, inner: &mut Inner<V>) {
        if inner.idle {
            inner.idle = false;
            self.work.notify_one();
        }
    }

    /// Ends a call that changed rows.
    #[inline]
    pub fn wrote(&self, inner: &mut Inner<V>) {
        if !std::mem::take(&mut inner.working_set.changed) {
            return;
        }
        self.settle(inner);
        if inner.idle {
            let unflushed = inner.working_set.unflushed_bytes();
            if 2 * unflushed >= LEAST_DIRTY_BOUND.min(self.options.max_dirty_bytes)
                && unflushed > self.dirty_bound() / 2
            {
                self.kick(inner);
            }
        }
    }

    /// Charges what is in memory to the budget, and evicts if that is too much.
    #[inline]
    pub fn settle(&self, inner: &mut Inner<V>) {
        let now = inner.working_set.resident_bytes();
        if now != inner.charged {
            self.charge(inner, now);
            if self.budget.excess() > 0 || now > self.options.working_set_bytes.unwrap_or(usize::MAX) {
                self.reclaim(inner);
            }
        }
    }

    #[inline]
    fn charge(&self, inner: &mut Inner<V>, now: usize) {
        self.budget.charge(inner.charged, now);
        inner.charged = now;
        self.resident.store(now, Ordering::Relaxed);
    }

    fn evict(&self, inner: &mut Inner<V>, target: usize) {
        if !inner.scanning {
            inner.working_set.absence.max_bytes = self.share() / 8;
            inner.working_set.evict(target);
            let now = inner.working_set.resident_bytes();
            self.charge(inner, now);
        }
    }

    #[cold]
    fn reclaim(&self, inner: &mut Inner<V>) {
        if let Some(bound) = self.options.working_set_bytes
            && inner.charged > bound
        {
            self.evict(inner, bound);
        }
        let excess = self.budget.excess();
        let fair = self.budget.fair_share();
        if excess > 0 && inner.charged > fair {
            self.evict(inner, inner.charged.saturating_sub(excess).max(fair));
        }
        if self.budget.excess() == 0 {
            return;
        }
        if inner.reclaim_pause > 0 {
            inner.reclaim_pause -= 1;
        } else if !self.budget.reclaim_from_others(&self.member()) {
            inner.reclaim_pause = RECLAIM_PAUSE;
        }
        // The others hold on to what they have (dirty, or busy): this engine does with less than its share.
        let excess = self.budget.excess();
        if excess > 0 {
            self.evict(inner, inner.charged.saturating_sub(excess).max(fair / 4));
        }
    }

    /// What this engine may hold when all engines of the slot want more.
    pub fn share(&self) -> usize {
        self.options.working_set_bytes.unwrap_or(usize::MAX).min(self.budget.fair_share())
    }

    fn member(&self) -> Weak<dyn Member> {
        Weak::clone(&self.this) as Weak<dyn Member>
    }

    /// Runs a call of the store on this thread, until it ends or the engine is stopped.
    pub fn block_on<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(self.stop.or(work))
    }

    /// Finds a value row, in the store if need be. `None`: there is no row.
    #[inline]
    fn read(&self, key: &[u8]) -> Result<(MutexGuard<'_, Inner<V>>, Option<u32>)> {
        self.check_key(key)?;
        let mut inner = self.enter()?;
        match inner.working_set.find(key) {
            Found::Row(id) => {
                inner.stats.hits += 1;
                return Ok((inner, Some(id)));
            }
            Found::Absent => {
                inner.stats.hits += 1;
                return Ok((inner, None));
            }
            Found::Unknown => {}
        }
        let (mut inner, value) = self.load(inner, Bytes::copy_from_slice(key))?;
        let id = inner.working_set.insert_clean(key, value.as_deref());
        self.settle_but(&mut inner, id);
        Ok((inner, Some(id)))
    }

    /// As [`Self::read`], of a row of a group.
    #[inline]
    fn read_in_group(&self, prefix: &[u8], suffix: &[u8]) -> Result<(MutexGuard<'_, Inner<V>>, Option<u32>)> {
        self.check_key(prefix)?;
        let mut inner = self.enter()?;
        match inner.working_set.find_in_group(prefix, suffix) {
            Found::Row(id) => {
                inner.stats.hits += 1;
                return Ok((inner, Some(id)));
            }
            Found::Absent => {
                inner.stats.hits += 1;
                return Ok((inner, None));
            }
            Found::Unknown => {}
        }
        let (mut inner, value) = self.load(inner, [prefix, suffix].concat().into())?;
        let id = inner.working_set.insert_clean_in_group(prefix, suffix, value.as_deref(), true);
        self.settle_but(&mut inner, id);
        Ok((inner, Some(id)))
    }

    /// Asks the store for one key, without the lock.
    #[cold]
    fn load<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner<V>>,
        key: Bytes,
    ) -> Result<(MutexGuard<'a, Inner<V>>, Option<Bytes>)> {
        inner.stats.misses += 1;
        inner.stats.store_reads += 1;
        inner.stats.store_read_calls += 1;
        drop(inner);
        let keys = [key];
        let values = self.block_on(self.store.get_many(&keys))?;
        let [value] = <[Option<Bytes>; 1]>::try_from(values)
            .map_err(|values| EngineError::new(ErrorKind::Internal, answered(1, values.len())))?;
        Ok((self.reenter()?, value))
    }

    /// Settles without evicting the row that the call is about.
    fn settle_but(&self, inner: &mut Inner<V>, id: u32) {
        inner.working_set.held = id;
        self.settle(inner);
        inner.working_set.held = NONE;
    }

    fn get_many(&self, keys: &[&[u8]], f: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<()> {
        for key in keys {
            self.check_key(key)?;
        }
        let mut inner = self.enter()?;
        let mut missing: Vec<usize> = Vec::new();
        for (i, key) in keys.iter().enumerate() {
            if inner.working_set.find(key) == Found::Unknown {
                missing.push(i);
            }
        }
        inner.stats.hits += (keys.len() - missing.len()) as u64;
        let mut loaded: Vec<Option<Bytes>> = Vec::new();
        if !missing.is_empty() {
            inner.stats.misses += missing.len() as u64;
            inner.stats.store_reads += missing.len() as u64;
            inner.stats.store_read_calls += 1;
            // What was found in memory must still be there afterwards.
            inner.scanning = true;
            drop(inner);
            let asked: Vec<Bytes> = missing.iter().map(|&i| Bytes::copy_from_slice(keys[i])).collect();
            let answer = self.block_on(self.store.get_many(&asked));
            inner = self.end_scan()?;
            loaded = answer?;
            if loaded.len() != asked.len() {
                return Err(EngineError::new(ErrorKind::Internal, answered(asked.len(), loaded.len())));
            }
        }
        let mut answers = missing.iter().zip(&loaded).peekable();
        for (i, key) in keys.iter().enumerate() {
            match answers.next_if(|(at, _)| **at == i) {
                Some((_, value)) => f(i, value.as_deref()),
                None => match inner.working_set.find(key) {
                    Found::Row(id) => f(i, inner.working_set.touch(id).map(V::as_bytes).as_deref()),
                    _ => f(i, None),
                },
            }
        }
        for (&i, value) in missing.iter().zip(&loaded) {
            inner.working_set.insert_clean(keys[i], value.as_deref());
        }
        self.settle(&mut inner);
        Ok(())
    }

    /// Nothing may be evicted until [`Self::end_scan`], which is called whatever happens in between.
    pub fn begin_scan(&self) {
        let mut inner = self.inner.lock();
        inner.scanning = true;
        inner.stats.scans += 1;
    }

    pub fn end_scan(&self) -> Result<MutexGuard<'_, Inner<V>>> {
        let mut inner = self.inner.lock();
        inner.scanning = false;
        self.stop.check()?;
        Ok(inner)
    }

    pub fn set_in_group(&self, prefix: &[u8], suffix: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.check_key(prefix)?;
        let mut inner = self.enter_to_write()?;
        inner.working_set.set_in_group(prefix, suffix, value);
        self.wrote(&mut inner);
        Ok(())
    }

    fn wake_all(&self) {
        // With the lock, so that nobody is between looking and waiting.
        drop(self.inner.lock());
        self.flushed.notify_all();
        self.work.notify_one();
        self.commits.wake();
    }

    fn close(&self) {
        if !self.stop.close() {
            return;
        }
        self.wake_all();
        self.commits.fail_all(&closed());
        // A destructor may run on the runtime, which must not be waited for there.
        let may_wait = Handle::try_current().is_err();
        let mut inner = self.inner.lock();
        if may_wait {
            let until = Instant::now() + CLOSE_PIPELINE;
            while inner.pipeline_ended.is_none() && !self.flushed.wait_until(&mut inner, until).timed_out() {}
        }
        self.empty(&mut inner);
        drop(inner);
        self.budget.leave(&self.member());
        let store = Arc::clone(&self.store);
        let closing = async move {
            match tokio::time::timeout(CLOSE_STORE, store.close()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the store could not give the branch up"),
                Err(_) => tracing::warn!("the store did not give the branch up in time"),
            }
        };
        if may_wait {
            self.runtime.block_on(closing);
        } else {
            self.runtime.spawn(closing);
        }
    }

    /// Returns all memory.
    fn empty(&self, inner: &mut Inner<V>) {
        inner.working_set = WorkingSet::new(&self.options);
        inner.delete = None;
        self.charge(inner, 0);
    }
}

#[cold]
fn answered(asked: usize, answered: usize) -> String {
    format!("the store answered {answered} values for {asked} keys")
}

impl<V: Resident> Member for Shared<V> {
    fn resident_bytes(&self) -> usize {
        self.resident.load(Ordering::Relaxed)
    }

    fn try_evict(&self, target: usize) {
        if let Some(mut inner) = self.inner.try_lock() {
            self.evict(&mut inner, target);
        }
    }

    fn nudge(&self) {
        if !self.nudged.swap(true, Ordering::AcqRel) {
            self.work.notify_one();
        }
    }
}
