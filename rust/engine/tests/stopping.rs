//! Whatever waits ends soon when the engine is cancelled or closed, and nothing is left behind.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::*;
use futures::future::BoxFuture;
use weir_engine::{ErrorKind, KeyedEngine, MemoryBudget, Result};
use weir_store::faulty::{Fault, Operation};
use weir_store::{Commit, Expiry, Page, PageLimit, PendingCommit, Row, StateReader, StateStore};

/// Runs `call` on a thread of its own, where `operation` blocks it, and stops the engine then.
fn ends(operation: Operation, call: impl Fn(&KeyedEngine) -> Result<()> + Send + Sync + 'static) {
    let call = Arc::new(call);
    for closing in [false, true] {
        let mut fastest = Duration::MAX;
        // The bound is for an idle machine: one of some tries must keep it.
        for _ in 0..10 {
            let harness = Harness::new(0);
            let budget = MemoryBudget::new(64 << 20);
            let mut options = options();
            options.fresh = false;
            options.max_dirty_bytes = 10_000;
            let engine = harness.open(None, options, &budget);
            harness.faults.next(operation, u64::MAX / 2, Fault::Block);
            let caller = std::thread::spawn({
                let (engine, call) = (engine.clone(), call.clone());
                move || (call(&engine), Instant::now())
            });
            eventually("the block", || harness.faults.blocked(operation) > 0);
            std::thread::sleep(Duration::from_millis(5));
            assert!(!caller.is_finished());
            let stopped = Instant::now();
            let closer = std::thread::spawn({
                let engine = engine.clone();
                move || if closing { engine.close() } else { engine.cancel() }
            });
            let (result, ended) = caller.join().unwrap();
            let kind = if closing { ErrorKind::Closed } else { ErrorKind::Cancelled };
            assert_eq!(result.unwrap_err().kind(), kind);
            assert_eq!(engine.put(&value_key(1), b"").unwrap_err().kind(), kind);
            assert_eq!(engine.freeze(1).unwrap_err().kind(), kind);
            closer.join().unwrap();
            engine.close();
            assert_eq!(engine.get(&value_key(1), |_| ()).unwrap_err().kind(), ErrorKind::Closed);
            assert_eq!(budget.used(), 0);
            fastest = fastest.min(ended - stopped);
            if fastest < Duration::from_millis(100) {
                break;
            }
        }
        assert!(fastest < Duration::from_millis(100), "{operation:?}: {fastest:?}");
    }
}

#[test]
fn a_miss() {
    ends(Operation::GetMany, |engine| engine.get(&value_key(1), |_| ()));
}

#[test]
fn many_misses() {
    ends(Operation::GetMany, |engine| engine.get_many(&[&value_key(1), &value_key(2)], |_, _| ()));
}

#[test]
fn a_scan() {
    ends(Operation::Scan, |engine| engine.group_page(&map_prefix(1), None, 1000, &mut Vec::new()).map(drop));
}

#[test]
fn a_clear() {
    ends(Operation::Scan, |engine| engine.group_clear(&map_prefix(1)));
}

#[test]
fn a_writer_that_waits() {
    ends(Operation::Write, |engine| {
        for i in 0.. {
            engine.put(&value_key(i), &[0; 100])?;
        }
        Ok(())
    });
}

#[test]
fn a_commit_whose_rows_are_being_written() {
    ends(Operation::Write, |engine| {
        engine.put(&value_key(1), b"1")?;
        engine.await_commit(engine.freeze(1)?).map(drop)
    });
}

#[test]
fn a_commit_that_begins() {
    ends(Operation::BeginCommit, |engine| engine.await_commit(engine.freeze(1)?).map(drop));
}

#[test]
fn a_commit_that_is_made_durable() {
    ends(Operation::AwaitCommit, |engine| engine.await_commit(engine.freeze(1)?).map(drop));
}

#[test]
fn a_read_of_all_rows() {
    ends(Operation::Write, |engine| {
        engine.put(&value_key(1), b"1")?;
        engine.row_page(&[], None, 1000, &mut Vec::new()).map(drop)
    });
}

#[test]
fn a_delete_of_all_rows() {
    ends(Operation::Scan, |engine| engine.delete_rows(&[]).map(drop));
}

#[test]
fn a_writer_slowed_by_the_store_goes_on_with_it() {
    let harness = Harness::new(0);
    let mut options = options();
    options.max_dirty_bytes = 20_000;
    options.flush_batch_rows = 16;
    let engine = harness.engine(options, &MemoryBudget::new(64 << 20));
    harness.faults.next(Operation::Write, 20, Fault::Delay(Duration::from_millis(5)));
    for i in 0..2000 {
        engine.put(&value_key(i), &[0; 100]).unwrap();
        assert!(engine.stats().dirty_bytes < 30_000);
        if i % 300 == 0 {
            engine.freeze(i).unwrap();
        }
    }
    assert!(engine.stats().writer_waits > 0);
}

#[test]
fn a_writer_that_waits_gets_the_error_of_the_store() {
    let harness = Harness::new(0);
    let mut options = options();
    options.max_dirty_bytes = 10_000;
    let engine = harness.engine(options, &MemoryBudget::new(64 << 20));
    harness.faults.next(Operation::Write, 1_000_000, Fault::Fail(ErrorKind::Unavailable));
    let error = (0..1000).find_map(|i| engine.put(&value_key(i), &[0; 100]).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    harness.faults.clear();
    for i in 0..1000 {
        while engine.put(&value_key(i), &[1; 100]).is_err() {}
    }
    let epoch = engine.freeze(1).unwrap();
    assert_eq!(harness.rows(&engine.await_commit(epoch).unwrap()).len(), 1000);
}

#[test]
fn an_engine_that_is_dropped_stops() {
    let harness = Harness::new(0);
    let budget = MemoryBudget::new(64 << 20);
    let engine = harness.engine(options(), &budget);
    engine.put(&value_key(1), b"1").unwrap();
    engine.freeze(1).unwrap();
    // Also where the runtime must not be waited for.
    harness.runtime.block_on(async { drop(engine) });
    assert_eq!(budget.used(), 0);
    eventually("the branch is given up", || harness.memory.pins().is_empty());
}

struct Panics;

impl StateReader for Panics {
    fn get_many<'a>(&'a self, _: &'a [Bytes]) -> BoxFuture<'a, weir_store::Result<Vec<Option<Bytes>>>> {
        panic!("get_many panics")
    }

    fn scan<'a>(&'a self, _: &'a [u8], _: Option<&'a [u8]>, _: PageLimit) -> BoxFuture<'a, weir_store::Result<Page>> {
        panic!("scan panics")
    }
}

impl StateStore for Panics {
    fn write(&self, _: Vec<Row>) -> BoxFuture<'_, weir_store::Result<()>> {
        panic!("write panics")
    }

    fn begin_commit(&self, _: u64) -> BoxFuture<'_, weir_store::Result<PendingCommit>> {
        async fn panics() -> weir_store::Result<Commit> {
            panic!("the commit panics")
        }
        Box::pin(async { Ok(Box::pin(panics()) as PendingCommit) })
    }

    fn upkeep(&self, _: u64) {}

    fn set_expiry(&self, _: Expiry) {}

    fn memory_bytes(&self) -> u64 {
        0
    }

    fn close(&self) -> BoxFuture<'_, weir_store::Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

#[test]
fn a_store_that_panics_leaves_nobody_waiting() {
    let harness = Harness::new(0);
    let budget = MemoryBudget::new(64 << 20);
    let mut options = options();
    options.fresh = false;
    let engine: Arc<KeyedEngine> =
        KeyedEngine::new(Arc::new(Panics), options, budget.clone(), harness.runtime.handle().clone());
    let epoch = engine.freeze(1).unwrap();
    assert_eq!(engine.await_commit(epoch).unwrap_err().kind(), ErrorKind::Internal);
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| engine.get(&value_key(1), |_| ())));
    assert!(read.is_err());
    // The panic has poisoned nothing.
    engine.put(&value_key(1), b"1").unwrap();
    assert_eq!(get(&engine, &value_key(1)), Some(b"1".to_vec()));
    let epoch = engine.freeze(2).unwrap();
    assert_eq!(engine.await_commit(epoch).unwrap_err().kind(), ErrorKind::Internal);
    let error = engine.freeze(3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(error.to_string().contains("write panics"), "{error}");
    engine.close();
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_pipeline_that_has_much_to_write_stops_and_does_not_spin() {
    for closing in [false, true] {
        let harness = Harness::new(0);
        let mut options = options();
        options.flush_batch_rows = 10;
        let engine = harness.engine(options, &MemoryBudget::new(64 << 20));
        for i in 0..20_000 {
            engine.put(&value_key(i), &[0; 100]).unwrap();
        }
        engine.freeze(1).unwrap();
        eventually("the first batches", || harness.faults.calls(Operation::Write) > 3);
        if !closing {
            engine.cancel();
            // The runtime's threads are free for others.
            let free = harness.runtime.spawn(async { tokio::task::yield_now().await });
            eventually("a task", || free.is_finished());
        }
        let began = Instant::now();
        engine.close();
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }
}
