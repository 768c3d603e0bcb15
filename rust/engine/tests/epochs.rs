//! What each version holds, whatever is written, refused, given up or finished while it is made.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use common::*;
use futures::future::BoxFuture;
use weir_engine::{ErrorKind, KeyedEngine, MemoryBudget, Resident};
use weir_store::faulty::{Fault, Operation};
use weir_store::{Expiry, Page, PageLimit, PendingCommit, Result, Row, StateReader, StateStore};

const BUDGET: usize = 64 << 20;

#[test]
fn a_row_overwritten_in_three_epochs_that_are_all_in_flight() {
    let harness = Harness::new(0);
    let engine = harness.engine(options(), &MemoryBudget::new(BUDGET));
    harness.faults.next(Operation::Write, 1, Fault::Block);
    let (key, other, prefix) = (value_key(1), value_key(2), map_prefix(3));
    let mut model = Model::new();
    let mut epochs = Vec::new();
    for round in 0..4_u8 {
        engine.put(&key, &[round; 10]).unwrap();
        model.insert(key.clone(), vec![round; 10]);
        engine.group_put(&prefix, &[1, round], &[round]).unwrap();
        model.insert([&prefix[..], &[1, round]].concat(), vec![round]);
        if round % 2 == 0 {
            engine.put(&other, &[round]).unwrap();
            model.insert(other.clone(), vec![round]);
        } else {
            engine.delete(&other).unwrap();
            model.remove(&other);
        }
        epochs.push((engine.freeze(u64::from(round)).unwrap(), model.clone()));
        if round == 0 {
            eventually("the first batch", || harness.faults.blocked(Operation::Write) == 1);
        }
        assert_eq!(get(&engine, &key), Some(vec![round; 10]));
    }
    assert!(engine.stats().displaced_values > 0);
    engine.put(&key, b"later").unwrap();
    harness.faults.unblock(Operation::Write);
    for (epoch, model) in epochs.iter().rev() {
        assert_eq!(&harness.rows(&engine.await_commit(*epoch).unwrap()), model);
    }
    assert_eq!(get(&engine, &key), Some(b"later".to_vec()));
}

#[test]
fn a_row_overwritten_while_its_batch_is_refused() {
    let harness = Harness::new(0);
    let engine = harness.engine(options(), &MemoryBudget::new(BUDGET));
    harness.faults.next(Operation::Write, 1, Fault::Delay(Duration::from_millis(200)));
    let rows: Vec<Vec<u8>> = (0..300).map(value_key).collect();
    for key in &rows {
        engine.put(key, b"first").unwrap();
    }
    engine.delete(&rows[5]).unwrap();
    let first = engine.freeze(1).unwrap();
    eventually("the first batch", || harness.faults.calls(Operation::Write) == 1);
    harness.faults.next(Operation::Write, 2, Fault::Tear(ErrorKind::Unavailable));
    // Half of the rows are in the batch in flight; it succeeds. The second batch is torn, and torn again.
    let mut second = Model::new();
    for (i, key) in rows.iter().enumerate() {
        match i % 3 {
            0 => {
                engine.put(key, b"second").unwrap();
                second.insert(key.clone(), b"second".to_vec());
            }
            1 => engine.delete(key).unwrap(),
            _ if i != 5 => drop(second.insert(key.clone(), b"first".to_vec())),
            _ => {}
        }
    }
    engine.await_commit(first).unwrap();
    let refused = engine.freeze(2).unwrap();
    let error = engine.await_commit(refused).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for key in rows.iter().take(50) {
        engine.put(key, b"third").unwrap();
    }
    let third = engine.freeze(3).unwrap();
    // The third epoch's first batch is the second's, and it is torn once more.
    assert_eq!(engine.await_commit(third).unwrap_err().kind(), ErrorKind::Unavailable);
    let mut expected = second;
    for key in rows.iter().take(50) {
        expected.insert(key.clone(), b"third".to_vec());
    }
    engine.put(&rows[0], b"fourth").unwrap();
    expected.insert(rows[0].clone(), b"fourth".to_vec());
    let fourth = engine.freeze(4).unwrap();
    assert_eq!(harness.rows(&engine.await_commit(fourth).unwrap()), expected);
    assert_eq!(engine.stats().failed_batches, 2);
    assert_eq!(engine.stats().dirty_rows, 0);
}

#[test]
fn a_refused_batch_gives_back_what_the_barrier_saw() {
    let harness = Harness::new(0);
    let engine = harness.engine(options(), &MemoryBudget::new(BUDGET));
    harness.faults.next(Operation::Write, 1, Fault::Block);
    let key = value_key(1);
    engine.put(&key, b"barrier one").unwrap();
    let one = engine.freeze(1).unwrap();
    eventually("the batch", || harness.faults.blocked(Operation::Write) == 1);
    // In flight, and overwritten twice: the value of epoch 2 must come from the displaced ones.
    engine.put(&key, b"barrier two").unwrap();
    let two = engine.freeze(2).unwrap();
    engine.put(&key, b"running").unwrap();
    harness.faults.next(Operation::Write, 1, Fault::Fail(ErrorKind::Unavailable));
    harness.faults.unblock(Operation::Write);
    let version = harness.rows(&engine.await_commit(one).unwrap());
    assert_eq!(version[&key], b"barrier one");
    assert_eq!(engine.await_commit(two).unwrap_err().kind(), ErrorKind::Unavailable);
    let three = engine.freeze(3).unwrap();
    assert_eq!(harness.rows(&engine.await_commit(three).unwrap())[&key], b"running");

    // The same, with the first batch refused: the next version holds its own barrier's value.
    harness.faults.next(Operation::Write, 1, Fault::Block);
    engine.put(&key, b"4").unwrap();
    engine.put(&value_key(2), b"only in 4").unwrap();
    let four = engine.freeze(4).unwrap();
    eventually("the batch", || harness.faults.blocked(Operation::Write) == 1);
    engine.put(&key, b"6, never frozen before").unwrap();
    let five = engine.freeze(5).unwrap();
    engine.put(&key, b"7").unwrap();
    engine.put(&value_key(2), b"7").unwrap();
    engine.abort(four);
    harness.faults.unblock(Operation::Write);
    let version = harness.rows(&engine.await_commit(five).unwrap());
    assert_eq!(version[&key], b"6, never frozen before");
    assert_eq!(version[&value_key(2)], b"only in 4");
}

#[test]
fn rows_of_a_failed_commit_belong_to_the_next() {
    for operation in [Operation::BeginCommit, Operation::AwaitCommit, Operation::Write] {
        let harness = Harness::new(0);
        let engine = harness.engine(options(), &MemoryBudget::new(BUDGET));
        harness.faults.next(operation, 1, Fault::Fail(ErrorKind::Unavailable));
        engine.put(&value_key(1), b"1").unwrap();
        let failed = engine.freeze(1).unwrap();
        engine.put(&value_key(2), b"2").unwrap();
        assert_eq!(engine.await_commit(failed).unwrap_err().kind(), ErrorKind::Unavailable);
        let next = engine.freeze(2).unwrap();
        assert_eq!(harness.rows(&engine.await_commit(next).unwrap()).len(), 2);
        assert_eq!(harness.memory.versions().len(), 1);
    }
}

#[test]
fn commits_end_in_any_order() {
    let harness = Harness::new(0);
    let engine = harness.engine(options(), &MemoryBudget::new(BUDGET));
    harness.faults.next(Operation::AwaitCommit, 1, Fault::Block);
    engine.put(&value_key(1), b"1").unwrap();
    let first = engine.freeze(1).unwrap();
    eventually("the first commit", || harness.faults.blocked(Operation::AwaitCommit) == 1);
    engine.put(&value_key(1), b"2").unwrap();
    let second = engine.freeze(2).unwrap();
    assert_eq!(harness.rows(&engine.await_commit(second).unwrap())[&value_key(1)], b"2");
    harness.faults.unblock(Operation::AwaitCommit);
    assert_eq!(harness.rows(&engine.await_commit(first).unwrap())[&value_key(1)], b"1");
    assert_eq!(engine.await_commit(first).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn an_aborted_epoch_leaves_no_version_and_loses_no_row() {
    let harness = Harness::new(0);
    let mut options = options();
    options.stores = Some(harness.memory.clone());
    let engine = harness.engine(options, &MemoryBudget::new(BUDGET));
    // Before its rows are written.
    harness.faults.next(Operation::Write, 1, Fault::Block);
    engine.put(&value_key(1), b"1").unwrap();
    let epoch = engine.freeze(1).unwrap();
    eventually("the batch", || harness.faults.blocked(Operation::Write) == 1);
    engine.abort(epoch);
    harness.faults.unblock(Operation::Write);
    // While its version is made durable.
    harness.faults.next(Operation::AwaitCommit, 1, Fault::Block);
    engine.put(&value_key(2), b"2").unwrap();
    let epoch = engine.freeze(2).unwrap();
    eventually("the commit", || harness.faults.blocked(Operation::AwaitCommit) == 1);
    engine.abort(epoch);
    // When it is done.
    engine.put(&value_key(3), b"3").unwrap();
    let epoch = engine.freeze(3).unwrap();
    eventually("the version", || harness.memory.versions().iter().any(|(_, checkpoint)| *checkpoint == 3));
    std::thread::sleep(Duration::from_millis(20));
    engine.abort(epoch);
    eventually("its release", || harness.memory.versions().is_empty());
    let epoch = engine.freeze(4).unwrap();
    assert_eq!(harness.rows(&engine.await_commit(epoch).unwrap()).len(), 3);
}

#[test]
fn deletes_and_puts_in_turn() {
    let harness = Harness::new(0);
    let engine = harness.engine(options(), &MemoryBudget::new(BUDGET));
    let key = value_key(1);
    let mut epochs = Vec::new();
    harness.faults.next(Operation::Write, 1, Fault::Block);
    engine.put(&value_key(0), b"x").unwrap();
    for present in [true, false, true, false, false, true] {
        if present { engine.put(&key, b"y") } else { engine.delete(&key) }.unwrap();
        if present {
            engine.delete(&key).unwrap();
            engine.put(&key, b"z").unwrap();
        }
        epochs.push((engine.freeze(1).unwrap(), present));
        assert_eq!(get(&engine, &key).is_some(), present);
    }
    eventually("the first batch", || harness.faults.blocked(Operation::Write) == 1);
    harness.faults.unblock(Operation::Write);
    for (epoch, present) in epochs {
        let version = harness.rows(&engine.await_commit(epoch).unwrap());
        assert_eq!(version.get(&key).map(Vec::as_slice), present.then_some(&b"z"[..]));
    }
}

#[test]
fn the_working_set_survives_barriers_and_a_fresh_engine_never_asks() {
    let harness = Harness::new(0);
    let engine = harness.engine(options(), &MemoryBudget::new(BUDGET));
    for i in 0..1000 {
        assert_eq!(get(&engine, &value_key(i)), None);
        engine.put(&value_key(i), b"value").unwrap();
        engine.group_put(&map_prefix(i % 10), &i.to_be_bytes(), b"entry").unwrap();
        engine.list_append(&list_prefix(i % 10), b"element").unwrap();
    }
    let epoch = engine.freeze(1).unwrap();
    engine.await_commit(epoch).unwrap();
    for i in 0..1000 {
        assert!(get(&engine, &value_key(i)).is_some());
        assert!(group_get(&engine, &map_prefix(i % 10), &i.to_be_bytes()).is_some());
    }
    for i in 0..10 {
        // 93 elements of 7 bytes, each behind 4 of its length, fill a row of 1 KiB.
        assert_eq!(group_rows(&engine, &list_prefix(i), 1000).len(), 2);
        assert!(!engine.group_is_empty(&map_prefix(i)).unwrap());
        assert!(engine.group_is_empty(&map_prefix(i + 10)).unwrap());
    }
    let stats = engine.stats();
    assert_eq!((stats.store_reads, stats.scans, stats.misses, stats.evictions), (0, 0, 0, 0));
    assert_eq!((stats.rows, stats.dirty_rows, stats.dirty_bytes, stats.flushed_rows), (2020, 0, 0, 2020));
}

#[test]
fn what_is_put_and_deleted_in_one_epoch_is_never_flushed() {
    let harness = Harness::new(0);
    let engine = harness.engine(options(), &MemoryBudget::new(BUDGET));
    let before = engine.stats();
    for i in 0..1000 {
        engine.put(&value_key(i), b"window").unwrap();
        engine.list_append(&list_prefix(i), b"window").unwrap();
        engine.group_put(&map_prefix(i), b"\x01k", b"window").unwrap();
        engine.delete(&value_key(i)).unwrap();
        engine.group_clear(&list_prefix(i)).unwrap();
        engine.group_clear(&map_prefix(i)).unwrap();
    }
    let epoch = engine.freeze(1).unwrap();
    assert!(harness.rows(&engine.await_commit(epoch).unwrap()).is_empty());
    let stats = engine.stats();
    assert_eq!((stats.flushed_rows, stats.elided_rows, stats.rows, stats.groups), (0, 3000, 0, 0));
    assert!(stats.resident_bytes < before.resident_bytes + 64 * 1024, "{}", stats.resident_bytes);
}

#[test]
fn a_group_that_was_read_whole_is_complete() {
    let harness = Harness::new(0);
    let budget = MemoryBudget::new(BUDGET);
    let engine = harness.engine(options(), &budget);
    let prefix = map_prefix(1);
    for i in 0..500_u64 {
        engine.group_put(&prefix, &i.to_be_bytes(), b"value").unwrap();
    }
    let epoch = engine.freeze(1).unwrap();
    let committed = engine.await_commit(epoch).unwrap();
    engine.close();
    let mut options = options();
    options.fresh = false;
    let engine = harness.open(Some(&committed.commit.version), options, &budget);
    assert_eq!(group_rows(&engine, &prefix, 1000).len(), 500);
    let scans = engine.stats().scans;
    assert!(scans > 1);
    engine.group_put(&prefix, &[9], b"new").unwrap();
    engine.group_delete(&prefix, &3_u64.to_be_bytes()).unwrap();
    assert_eq!(group_rows(&engine, &prefix, 1000).len(), 500);
    assert!(!engine.group_contains(&prefix, b"no").unwrap());
    assert!(engine.group_is_empty(&map_prefix(7)).unwrap());
    assert!(engine.group_is_empty(&map_prefix(7)).unwrap());
    assert!(!engine.group_contains(&map_prefix(7), b"no").unwrap());
    let stats = engine.stats();
    assert_eq!((stats.scans, stats.store_reads), (scans + 1, 0));
}

#[test]
fn a_point_miss_is_asked_once_and_many_keys_at_once() {
    let harness = Harness::new(0);
    let mut options = options();
    options.fresh = false;
    let engine = harness.open(None, options, &MemoryBudget::new(BUDGET));
    for _ in 0..3 {
        assert_eq!(get(&engine, &value_key(1)), None);
        assert_eq!(group_get(&engine, &map_prefix(1), b"x"), None);
    }
    let keys: Vec<_> = (0..100).map(value_key).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    for _ in 0..2 {
        engine.get_many(&keys, |_, value| assert_eq!(value, None)).unwrap();
    }
    let stats = engine.stats();
    assert_eq!((stats.store_reads, stats.store_read_calls), (101, 3));
}

#[test]
fn keys_of_other_key_groups_are_refused() {
    let harness = Harness::new(0);
    let engine = harness.engine(options(), &MemoryBudget::new(BUDGET));
    let mut key = value_key(1);
    key[..2].copy_from_slice(&128_u16.to_be_bytes());
    let error = engine.put(&key, b"").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("128") && error.to_string().contains("[0, 127]"), "{error}");
    assert_eq!(engine.get(&[0], |_| ()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(engine.group_clear(&key).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_page_that_is_older_than_a_tombstone_that_is_acknowledged_meanwhile() {
    let harness = Harness::new(0);
    let engine = harness.engine(options(), &MemoryBudget::new(80_000));
    let prefix = map_prefix(1);
    let commit = |checkpoint| drop(engine.await_commit(engine.freeze(checkpoint).unwrap()).unwrap());
    for i in 0..1000_u64 {
        engine.group_put(&prefix, &i.to_be_bytes(), &[1; 20]).unwrap();
    }
    commit(1);
    // Never evicted, so that nothing but the tombstones says that they are gone.
    let rows = || (0..10_u64).map(|i| [&i.to_be_bytes()[..], b"x"].concat());
    rows().for_each(|suffix| engine.group_put(&prefix, &suffix, &[2; 20]).unwrap());
    commit(2);
    // Written once more, so that the clock passes them by.
    rows().for_each(|suffix| engine.group_put(&prefix, &suffix, &[3; 20]).unwrap());
    let evicted = engine.stats().evictions;
    commit(3);
    assert_eq!(engine.stats().evictions, evicted);
    rows().for_each(|suffix| engine.group_delete(&prefix, &suffix).unwrap());
    // The page is read, then the tombstones are written, then the page's answer arrives.
    harness.faults.next(Operation::Write, 1, Fault::Delay(Duration::from_millis(100)));
    harness.scan_answer_ms.store(300, std::sync::atomic::Ordering::Relaxed);
    let epoch = engine.freeze(4).unwrap();
    let mut page = Vec::new();
    engine.group_page(&prefix, None, 10_000, &mut page).unwrap();
    let page = parse_page(&page);
    assert!(page.len() > 100 && page.iter().all(|(suffix, _)| suffix.len() == 8));
    engine.await_commit(epoch).unwrap();
}

/// A count, resident as a number.
struct Count(u64);

impl Resident for Count {
    fn from_bytes(bytes: &[u8]) -> Self {
        Self(u64::from_be_bytes(bytes.try_into().unwrap()))
    }

    fn as_bytes(&self) -> std::borrow::Cow<'_, [u8]> {
        self.0.to_be_bytes().to_vec().into()
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}

#[test]
fn values_need_not_be_resident_as_bytes() {
    let harness = Harness::new(0);
    let budget = MemoryBudget::new(20_000);
    let engine: std::sync::Arc<KeyedEngine<Count>> =
        KeyedEngine::new(harness.open_store(None), options(), budget, harness.runtime.handle().clone());
    for round in 1..=3_u64 {
        for i in 0..500 {
            let count = engine.get_resident(&value_key(i), |count| count.map_or(0, |count| count.0)).unwrap();
            assert_eq!(count, round - 1);
            engine.put(&value_key(i), &(count + 1).to_be_bytes()).unwrap();
        }
        let committed = engine.await_commit(engine.freeze(round).unwrap()).unwrap();
        assert!(harness.rows(&committed).values().all(|value| value[..] == round.to_be_bytes()));
    }
    assert!(engine.stats().evictions > 0);
}

/// Keeps the keys of the batches in the order in which they came.
#[derive(Default)]
struct Recorder(Mutex<Vec<Vec<Bytes>>>);

impl StateReader for Recorder {
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
        NoStore.get_many(keys)
    }

    fn scan<'a>(&'a self, prefix: &'a [u8], after: Option<&'a [u8]>, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        NoStore.scan(prefix, after, limit)
    }
}

impl StateStore for Recorder {
    fn write(&self, batch: Vec<Row>) -> BoxFuture<'_, Result<()>> {
        self.0.lock().unwrap().push(batch.into_iter().map(|row| row.key).collect());
        NoStore.write(Vec::new())
    }

    fn begin_commit(&self, checkpoint: u64) -> BoxFuture<'_, Result<PendingCommit>> {
        NoStore.begin_commit(checkpoint)
    }

    fn upkeep(&self, _: u64) {}

    fn set_expiry(&self, _: Expiry) {}

    fn memory_bytes(&self) -> u64 {
        0
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        NoStore.close()
    }
}

#[test]
fn batches_of_a_long_epoch_follow_each_other_in_the_order_of_the_keys() {
    let harness = Harness::new(1);
    let store = Arc::new(Recorder::default());
    let mut options = options();
    options.flush_batch_rows = 32;
    let budget = MemoryBudget::new(64 << 20);
    let engine: Arc<KeyedEngine> =
        KeyedEngine::new(store.clone(), options, budget.clone(), harness.runtime.handle().clone());
    for i in 0..2000_u64 {
        let i = i * 7919 % 2000;
        engine.put(&value_key(i), b"value").unwrap();
        engine.group_put(&map_prefix(i % 500), &i.to_be_bytes(), b"value").unwrap();
    }
    let epoch = engine.freeze(1).unwrap();
    // Displaces while they are being ordered and written, and belongs to the next epoch.
    for i in 0..2000 {
        engine.put(&value_key(i), b"later").unwrap();
    }
    engine.await_commit(epoch).unwrap();
    let batches = std::mem::take(&mut *store.0.lock().unwrap());
    let mut keys: Vec<&Bytes> = batches.iter().flatten().collect();
    keys.sort();
    assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(keys.len(), 4000);
    for batch in &batches {
        let rank = |key: &Bytes| keys.binary_search(&key).unwrap();
        let span = rank(&batch[batch.len() - 1]) - rank(&batch[0]);
        assert!(span < 400, "a batch of {} rows spans {span} of the 4000", batch.len());
    }
    engine.await_commit(engine.freeze(2).unwrap()).unwrap();
    assert_eq!(store.0.lock().unwrap().iter().flatten().count(), 2000);
    engine.close();
    assert_eq!(budget.used(), 0);
}

#[test]
fn elements_of_a_list_share_rows_within_an_epoch_and_keep_their_order() {
    let harness = Harness::new(0);
    let engine = harness.engine(options(), &MemoryBudget::new(BUDGET));
    let prefix = list_prefix(0);
    let mut elements: Vec<Vec<u8>> = Vec::new();
    let mut append = |len: usize, begins: bool| {
        let element = vec![elements.len() as u8; len];
        assert_eq!(engine.list_append(&prefix, &element).unwrap(), begins, "element {} of {len} bytes", elements.len());
        elements.push(element);
    };
    append(900, true);
    append(116, false); // 904 + 120 bytes are 1 KiB
    append(0, true);
    append(1020, true); // 4 + 1024 bytes are more
    append(0, true); // although there is room in the row before the last
    append(7, false);
    append(2000, true);
    append(1, true);
    let first = engine.freeze(1).unwrap();
    append(2, true); // what is frozen stays as it is
    append(3, false);
    let second = engine.freeze(2).unwrap();
    let rows = |prefix: &[u8]| group_rows(&engine, prefix, 100);
    let framed: Vec<u8> =
        elements.iter().flat_map(|element| [&(element.len() as u32).to_be_bytes()[..], element].concat()).collect();
    assert_eq!(rows(&prefix).into_iter().flat_map(|(_, value)| value).collect::<Vec<u8>>(), framed);
    let suffixes: Vec<Vec<u8>> = rows(&prefix).into_iter().map(|(suffix, _)| suffix).collect();
    let expected: Vec<Vec<u8>> =
        (0..7).map(|sequence| weir_engine::encoding::sequence_suffix(sequence).to_vec()).collect();
    assert_eq!(suffixes, expected);
    let first = engine.await_commit(first).unwrap();
    assert_eq!((first.next_sequence, harness.rows(&first).len()), (6, 6));
    let second = engine.await_commit(second).unwrap();
    assert_eq!((second.next_sequence, harness.rows(&second).len()), (7, 7));
    assert!(engine.list_append(&prefix, b"x").unwrap(), "the last row was flushed");
    engine.group_delete(&prefix, &weir_engine::encoding::sequence_suffix(7)).unwrap();
    assert!(engine.list_append(&prefix, b"y").unwrap(), "the last row was deleted");
}
