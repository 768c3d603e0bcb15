//! Engines of one slot keep its memory bound together.

mod common;

use std::sync::Arc;

use common::*;
use weir_engine::{KeyedEngine, MemoryBudget};

const LIMIT: usize = 2 << 20;

fn fill(engine: &KeyedEngine, rows: u64) {
    for i in 0..rows {
        engine.put(&value_key(i), &[i as u8; 100]).unwrap();
    }
    let epoch = engine.freeze(rows).unwrap();
    engine.await_commit(epoch).unwrap();
}

/// Reads every row, so that what is resident follows from the bound alone, not from how the flush kept up.
fn read(engine: &KeyedEngine, rows: u64) {
    for i in 0..rows {
        assert_eq!(get(engine, &value_key(i)), Some(vec![i as u8; 100]));
    }
}

#[test]
fn an_engine_takes_from_one_above_its_share() {
    let harness = Harness::new(0);
    let budget = MemoryBudget::new(LIMIT);
    let mut options = options();
    options.max_dirty_bytes = 200_000;
    let (first, second) = (harness.engine(options.clone(), &budget), harness.engine(options, &budget));
    fill(&first, 20_000);
    read(&first, 20_000);
    let alone = first.stats().resident_bytes as usize;
    assert!(alone > LIMIT * 8 / 10 && alone <= LIMIT, "{alone}");
    fill(&second, 20_000);
    read(&second, 20_000);
    let (a, b) = (first.stats().resident_bytes as usize, second.stats().resident_bytes as usize);
    assert_eq!(budget.used(), a + b);
    assert!(a + b <= LIMIT, "{a} + {b}");
    assert!(a > LIMIT / 3 && b > LIMIT / 3, "{a} and {b}");
    for i in (0..20_000).step_by(97) {
        assert_eq!(get(&first, &value_key(i)), Some(vec![i as u8; 100]));
        assert_eq!(get(&second, &value_key(i)), Some(vec![i as u8; 100]));
    }
    first.close();
    fill(&second, 20_000);
    read(&second, 20_000);
    assert!(second.stats().resident_bytes as usize > LIMIT * 7 / 10);
}

#[test]
fn an_own_bound_is_kept_within_the_budget() {
    let harness = Harness::new(0);
    let budget = MemoryBudget::new(LIMIT);
    let mut options = options();
    options.max_dirty_bytes = 100_000;
    options.working_set_bytes = Some(400_000);
    let engine = harness.engine(options, &budget);
    fill(&engine, 10_000);
    read(&engine, 10_000);
    assert!(engine.stats().resident_bytes <= 400_000, "{:?}", engine.stats());
    assert!(engine.stats().rows > 1000);
}

#[test]
fn forty_engines_that_only_write_keep_the_bound() {
    let harness = Harness::new(0);
    let budget = MemoryBudget::new(4 << 20);
    let mut options = options();
    // Forty times this is far more than the budget: dirty rows must be flushed because others need the room.
    options.max_dirty_bytes = 2 << 20;
    let engines: Vec<Arc<KeyedEngine>> = (0..40).map(|_| harness.engine(options.clone(), &budget)).collect();
    let mut most = 0;
    for i in 0..3_000 {
        for engine in &engines {
            engine.put(&value_key(i), &[0; 100]).unwrap();
            most = most.max(budget.used());
        }
    }
    // Each may keep 64 KiB of dirty bytes whatever the others have.
    assert!(most <= (4 << 20) + 40 * (64 << 10), "{most}");
    assert_eq!(budget.used() as u64, engines.iter().map(|engine| engine.stats().resident_bytes).sum::<u64>());
    for engine in engines {
        engine.close();
    }
    assert_eq!(budget.used(), 0);
}

#[test]
fn hot_rows_stay_and_cold_ones_go() {
    let harness = Harness::new(0);
    let budget = MemoryBudget::new(LIMIT);
    let mut options = options();
    options.max_dirty_bytes = 200_000;
    let engine = harness.engine(options, &budget);
    for i in 0..40_000 {
        engine.put(&value_key(i), &[0; 100]).unwrap();
        engine.get(&value_key(i % 500), |value| assert!(i < 500 || value.is_some())).unwrap();
    }
    let stats = engine.stats();
    assert!(stats.evictions > 20_000);
    assert!(stats.misses < 2_000, "{} of the hot reads missed", stats.misses);
}

#[test]
fn a_group_larger_than_the_memory_is_read_and_cleared() {
    let harness = Harness::new(0);
    let budget = MemoryBudget::new(300_000);
    let mut options = options();
    options.max_dirty_bytes = 50_000;
    let engine = harness.engine(options, &budget);
    let prefix = map_prefix(1);
    for i in 0..10_000_u64 {
        engine.group_put(&prefix, &i.to_be_bytes(), &[0; 50]).unwrap();
    }
    assert_eq!(group_rows(&engine, &prefix, 5_000).len(), 10_000);
    assert!(!engine.group_is_empty(&prefix).unwrap());
    engine.group_clear(&prefix).unwrap();
    assert!(engine.group_is_empty(&prefix).unwrap());
    engine.group_put(&prefix, b"\x01after", b"1").unwrap();
    assert_eq!(group_rows(&engine, &prefix, 5_000).len(), 1);
    assert!(budget.used() <= 300_000 + 64_000, "{}", budget.used());
    let epoch = engine.freeze(1).unwrap();
    assert_eq!(harness.rows(&engine.await_commit(epoch).unwrap()).len(), 1);
}

#[test]
fn a_group_is_cleared_whose_rows_are_evicted_while_the_writer_waits() {
    let harness = Harness::new(0);
    let mut options = options();
    options.max_dirty_bytes = 3_000;
    options.working_set_bytes = Some(9_000);
    let engine = harness.engine(options, &MemoryBudget::new(LIMIT));
    for i in 0..200 {
        let prefix = map_prefix(i);
        engine.group_put(&prefix, b"\x01a", &[0; 2_000]).unwrap();
        engine.put(&value_key(i), &[0; 2_000]).unwrap();
        engine.group_clear(&prefix).unwrap();
        assert!(engine.group_is_empty(&prefix).unwrap(), "{i}");
        assert!(group_rows(&engine, &prefix, 1_000).is_empty(), "{i}");
    }
}
