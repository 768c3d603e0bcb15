//! The bytes that an engine charges are the bytes that it has allocated. One test, since the allocator counts for the
//! whole program.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use weir_engine::{KeyedEngine, MemoryBudget};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those of this method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Of the engine itself, its task and the pipeline's small buffers, which are not charged.
const FIXED: usize = 24 << 10;

#[test]
fn what_is_charged_is_what_is_allocated() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let budget = MemoryBudget::new(8 << 20);
    // What the runtime keeps for its first task is not the engine's.
    let mut options = options();
    options.max_dirty_bytes = 1 << 20;
    options.flush_batch_bytes = 100 << 10;
    let engine: Arc<KeyedEngine> =
        KeyedEngine::new(Arc::new(NoStore), options.clone(), budget.clone(), runtime.handle().clone());
    engine.close();
    let base = LIVE.load(Ordering::SeqCst);
    let engine: Arc<KeyedEngine> =
        KeyedEngine::new(Arc::new(NoStore), options, budget.clone(), runtime.handle().clone());
    let mut rng = SmallRng::seed_from_u64(1);
    let check = |what: &str| {
        eventually("the flush", || engine.stats().dirty_bytes <= 512 << 10);
        std::thread::sleep(std::time::Duration::from_millis(20));
        let allocated = LIVE.load(Ordering::SeqCst) - base;
        let charged = budget.used();
        assert_eq!(charged as u64, engine.stats().resident_bytes, "{what}");
        assert!(
            charged <= allocated + 1024 && allocated <= charged + charged / 100 + FIXED,
            "{what}: {allocated} allocated, {charged} charged"
        );
    };
    check("empty");
    for i in 0..1000 {
        engine.put(&value_key(i), &[1; 10]).unwrap();
    }
    check("short values");
    for i in 0..1000 {
        let long_key = [value_key(i), vec![7; rng.random_range(0..60)]].concat();
        engine.put(&long_key, &vec![1; rng.random_range(0..300)]).unwrap();
        engine.group_put(&map_prefix(i % 7), &i.to_be_bytes(), &vec![1; rng.random_range(0..50)]).unwrap();
        engine.list_append(&[list_prefix(i), vec![3; (i % 50) as usize]].concat(), b"element").unwrap();
    }
    check("groups");
    let epoch = engine.freeze(1).unwrap();
    for i in 0..1000 {
        engine.put(&value_key(i), &[1; 20]).unwrap();
        engine.group_delete(&map_prefix(i % 7), &i.to_be_bytes()).unwrap();
    }
    check("displaced values");
    engine.await_commit(epoch).unwrap();
    check("after a commit");
    for round in 0..4_u64 {
        for i in 0..40_000 {
            engine.put(&value_key(round * 40_000 + i), &[1; 50]).unwrap();
            assert!(budget.used() <= (8 << 20) + (1 << 20));
        }
        check("evicting");
        assert!(budget.used() <= 8 << 20);
    }
    assert!(engine.stats().evictions > 10_000 && engine.stats().filter_bytes > 0);
    for i in 0..2_000_u64 {
        engine.group_put(&map_prefix(1), &[&[1][..], &(i * 7919 % 2000).to_be_bytes()].concat(), &[0; 100]).unwrap();
    }
    check("a large group");
    for i in 0..200 {
        engine.group_clear(&map_prefix(i)).unwrap();
        engine.group_clear(&[list_prefix(i), vec![3; (i % 50) as usize]].concat()).unwrap();
    }
    check("cleared groups");
    let epoch = engine.freeze(2).unwrap();
    engine.await_commit(epoch).unwrap();
    check("flushed");
    engine.close();
    assert_eq!(budget.used(), 0);
    let left = LIVE.load(Ordering::SeqCst) - base;
    assert!(left < FIXED, "{left} bytes are left after close");
}
