//! The pipeline that brings dirty rows to the store: one task an engine, one batch at a time, in the order of epochs.
//!
//! No row of an epoch is written before the commits of all earlier epochs have begun, so that a version holds what its
//! barrier saw and nothing later.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use tokio::sync::oneshot;
use weir_store::{PageLimit, Row};

use crate::batch::Batch;
use crate::engine::Shared;
use crate::error::{EngineError, ErrorKind, Result};
use crate::resident::Resident;

/// Rows handled while the lock is held once.
const SLICE: usize = 256;
/// Rows that are ordered before they are written; so many take 2.3 MB meanwhile.
const ORDERED_AT_ONCE: usize = 1 << 18;
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Rows to delete in the store itself, in the running epoch, when nothing is dirty.
pub(crate) struct DeleteRows {
    pub prefix: Bytes,
    pub reply: oneshot::Sender<Result<u64>>,
}

enum Step {
    /// Rows of this epoch.
    Write(u32),
    Commit {
        epoch: u32,
        checkpoint: u64,
    },
    Delete(DeleteRows),
    Idle,
}

/// Runs until the engine is stopped.
pub(crate) async fn run<V: Resident>(shared: Arc<Shared<V>>) {
    let mut ending = Ending { shared, error: None };
    let ended = AssertUnwindSafe(pipeline(&ending.shared)).catch_unwind().await;
    ending.error = Some(ended.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        EngineError::new(ErrorKind::Internal, format!("the flush pipeline panicked, the log says where: {text}"))
    }));
}

/// Why it ended.
async fn pipeline<V: Resident>(shared: &Shared<V>) -> EngineError {
    let mut pause = FIRST_PAUSE;
    loop {
        if let Err(error) = shared.stop.check() {
            return error;
        }
        match next_step(shared) {
            Step::Idle => {
                shared.stop.or_until(shared.work.notified()).await;
            }
            Step::Write(epoch) => {
                order(shared, epoch);
                let batch = collect(shared, epoch);
                if batch.entries.is_empty() {
                    continue;
                }
                match write(shared, batch).await {
                    Ok(()) => pause = FIRST_PAUSE,
                    Err(error) => {
                        if shared.stop.check().is_ok() {
                            tracing::warn!(%error, "the store refused a batch; its rows stay dirty");
                        }
                        shared.stop.or_until(tokio::time::sleep(pause)).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                }
            }
            Step::Commit { epoch, checkpoint } => {
                match shared.stop.or(shared.store.begin_commit(checkpoint)).await {
                    Ok(pending) => shared.commits.run(epoch, pending),
                    Err(error) => shared.commits.finish(epoch, Err(error)),
                }
                let store_bytes = shared.store.memory_bytes() as usize;
                let mut inner = shared.inner.lock();
                if shared.stop.check().is_ok() {
                    inner.working_set.store_bytes = store_bytes;
                    shared.settle(&mut inner);
                }
            }
            Step::Delete(command) => {
                let deleted = shared.stop.or(delete_rows(shared, &command.prefix)).await;
                let _ = command.reply.send(deleted);
            }
        }
    }
}

/// What is due: the oldest frozen epoch first; rows of the running epoch only if there is none.
fn next_step<V: Resident>(shared: &Shared<V>) -> Step {
    let mut inner = shared.inner.lock();
    let inner = &mut *inner;
    if shared.nudged.swap(false, Ordering::AcqRel) {
        inner.flush_wanted = true;
    }
    if inner.working_set.dirty_rows == 0 {
        inner.flush_wanted = false;
    }
    let pressed =
        inner.flush_wanted || inner.delete.is_some() || inner.working_set.unflushed_bytes() > shared.dirty_bound() / 2;
    let epochs = &mut inner.working_set.epochs;
    #[cfg(any(test, feature = "seeded-defects"))]
    if shared.options.defect == Some(crate::options::Defect::FlushOutOfEpochOrder)
        && !epochs.frozen.is_empty()
        && !epochs.current_is_empty()
    {
        return Step::Write(epochs.current);
    }
    while let Some(flushed) = epochs.pop_flushed() {
        if flushed.wanted {
            return Step::Commit { epoch: flushed.epoch, checkpoint: flushed.checkpoint };
        }
    }
    if let Some(oldest) = epochs.frozen.front() {
        if pressed || epochs.frozen.iter().any(|epoch| epoch.wanted) {
            return Step::Write(oldest.epoch);
        }
    } else if inner.working_set.dirty_rows > 0 {
        if pressed {
            return Step::Write(epochs.current);
        }
    } else if let Some(command) = inner.delete.take() {
        return Step::Delete(command);
    }
    inner.idle = true;
    // Who waits for less to be dirty under a bound that has meanwhile been raised would wait for ever.
    shared.flushed.notify_all();
    Step::Idle
}

/// Orders the rows of a long list by their keys, so that one batch follows the other in the store and each touches a
/// part of it. Only roughly, by [`WorkingSet::heads`] of some of them: a batch is sorted when it is sealed.
fn order<V: Resident>(shared: &Shared<V>, epoch: u32) {
    let batch = shared.options.flush_batch_rows;
    let places = {
        let mut inner = shared.inner.lock();
        let set = &mut inner.working_set;
        let Some(places) = set.epochs.take_unordered(epoch, 2 * batch, ORDERED_AT_ONCE) else { return };
        set.order_bytes = places.len() * (2 * size_of::<u32>() + size_of::<u8>());
        shared.settle(&mut inner);
        places
    };
    let parts = (places.len() / batch.max(1)).clamp(1, usize::from(u8::MAX));
    let sample: Vec<u32> = places.iter().copied().step_by((places.len() / (parts * 16)).max(1)).collect();
    let mut heads: Vec<u128> = Vec::with_capacity(sample.len());
    for slice in sample.chunks(SLICE) {
        heads.extend(shared.inner.lock().working_set.heads(slice));
    }
    heads.sort_unstable();
    let bounds: Vec<u128> = (1..parts).map(|part| heads[part * heads.len() / parts]).collect();
    let mut part_of: Vec<u8> = Vec::with_capacity(places.len());
    for slice in places.chunks(SLICE) {
        let inner = shared.inner.lock();
        part_of.extend(inner.working_set.heads(slice).map(|head| bounds.partition_point(|bound| *bound <= head) as u8));
    }
    let mut ends = vec![0; parts];
    part_of.iter().for_each(|&part| ends[usize::from(part)] += 1);
    let mut next = 0;
    for end in &mut ends {
        next += std::mem::replace(end, next);
    }
    let mut ordered = vec![0; places.len()];
    for (&place, &part) in places.iter().zip(&part_of) {
        let at = &mut ends[usize::from(part)];
        ordered[*at] = place;
        *at += 1;
    }
    drop((places, part_of));
    let mut inner = shared.inner.lock();
    inner.working_set.epochs.put_ordered(epoch, ordered);
    inner.working_set.order_bytes = 0;
    shared.settle(&mut inner);
}

/// Copies rows of `epoch`; between slices the task thread goes on, and may freeze the epoch.
fn collect<V: Resident>(shared: &Shared<V>, epoch: u32) -> Batch {
    let mut batch = Batch::new(epoch);
    loop {
        let mut inner = shared.inner.lock();
        if shared.stop.check().is_err() {
            return Batch::new(epoch);
        }
        let full = inner.working_set.collect(
            &mut batch,
            SLICE,
            shared.options.flush_batch_rows,
            shared.options.flush_batch_bytes,
        );
        inner.working_set.batch_bytes = batch.heap_bytes();
        if full {
            shared.settle(&mut inner);
            return batch;
        }
    }
}

async fn write<V: Resident>(shared: &Shared<V>, mut batch: Batch) -> Result<()> {
    let rows = batch.seal();
    let (count, bytes) = (rows.len() as u64, batch.bytes() as u64);
    // A seeded defect can leave nothing to write.
    let result = if rows.is_empty() { Ok(()) } else { shared.stop.or(shared.store.write(rows)).await };
    if let Err(error) = result {
        let mut inner = shared.inner.lock();
        // Once the engine is stopped the working set may be empty.
        shared.stop.check()?;
        inner.working_set.give_back(&batch);
        inner.working_set.batch_bytes = 0;
        inner.failures += 1;
        inner.last_error = Some(error.clone());
        inner.stats.failed_batches += 1;
        // The commit that needs this batch fails; its rows go, in order, before those of the next.
        if let Some(epoch) = inner.working_set.epochs.frozen.iter_mut().find(|epoch| epoch.wanted) {
            epoch.wanted = false;
            shared.commits.finish(epoch.epoch, Err(error.clone()));
        }
        shared.settle(&mut inner);
        shared.flushed.notify_all();
        return Err(error);
    }
    let store_bytes = shared.store.memory_bytes() as usize;
    let mut slices = batch.entries.chunks(SLICE).peekable();
    while let Some(slice) = slices.next() {
        let mut inner = shared.inner.lock();
        shared.stop.check()?;
        let keep = inner.scanning;
        inner.working_set.acknowledge(slice, keep);
        if slices.peek().is_none() {
            inner.working_set.batch_bytes = 0;
            inner.working_set.store_bytes = store_bytes;
            inner.stats.flushed_rows += count;
            inner.stats.flushed_bytes += bytes;
            inner.stats.flushed_batches += 1;
        }
        shared.settle(&mut inner);
        shared.flushed.notify_all();
    }
    Ok(())
}

/// Nothing is dirty and the task thread waits, so the store is all there is.
async fn delete_rows<V: Resident>(shared: &Shared<V>, prefix: &[u8]) -> Result<u64> {
    let limit = PageLimit { rows: shared.options.flush_batch_rows, bytes: shared.options.flush_batch_bytes };
    let mut deleted = 0;
    let mut after: Option<Bytes> = None;
    loop {
        let page = shared.store.scan(prefix, after.as_deref(), limit).await?;
        after = page.rows.last().map(|(key, _)| key.clone()).or(after);
        deleted += page.rows.len() as u64;
        let rows: Vec<Row> = page.rows.into_iter().map(|(key, _)| Row { key, value: None }).collect();
        if !rows.is_empty() {
            shared.store.write(rows).await?;
        }
        if page.done {
            return Ok(deleted);
        }
    }
}

/// Tells everyone who waits for the pipeline that it has ended, also if it was dropped.
struct Ending<V: Resident> {
    shared: Arc<Shared<V>>,
    error: Option<EngineError>,
}

impl<V: Resident> Drop for Ending<V> {
    fn drop(&mut self) {
        let error = self.error.take().unwrap_or_else(|| {
            EngineError::new(ErrorKind::Internal, "the flush pipeline ended: its runtime was shut down")
        });
        // In this order: an epoch is frozen under the lock, and only while the pipeline runs.
        self.shared.inner.lock().pipeline_ended = Some(error.clone());
        self.shared.commits.fail_all(&error);
        self.shared.flushed.notify_all();
    }
}
