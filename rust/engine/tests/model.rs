//! Random programs of one engine against an ordered map, with working sets of a few rows and of all, and with a store
//! that fails.

mod common;

use std::collections::VecDeque;
use std::sync::Arc;

use common::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use weir_engine::{Committed, EngineOptions, EpochId, ErrorKind, KeyedEngine, MemoryBudget};
use weir_store::faulty::{Chance, Fault, Operation};

struct Program<'a> {
    harness: &'a Harness,
    rng: SmallRng,
    engine: Arc<KeyedEngine>,
    budget: Arc<MemoryBudget>,
    options: EngineOptions,
    model: Model,
    next_sequence: u64,
    checkpoint: u64,
    /// Frozen epochs with what the model held, oldest first.
    pending: VecDeque<(EpochId, Model, u64)>,
    last: Option<(Committed, Model)>,
    keys: u64,
    value_len: usize,
    faulty: bool,
    commits: u64,
    checked: Result<(), String>,
}

impl Program<'_> {
    fn key(&mut self) -> u64 {
        // Some keys are hot.
        let keys = if self.rng.random_bool(0.5) { self.keys } else { self.keys / 20 + 1 };
        self.rng.random_range(0..keys)
    }

    fn suffix(&mut self) -> Vec<u8> {
        let i = self.rng.random_range(0..self.keys);
        match i % 3 {
            0 => vec![0],
            1 => [&[1][..], &i.to_be_bytes()].concat(),
            _ => [&[2][..], format!("{:0width$}", i, width = (i % 50) as usize).as_bytes()].concat(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        let len =
            if self.rng.random_bool(0.7) { self.value_len } else { self.rng.random_range(0..=2 * self.value_len) };
        (0..len).map(|_| self.rng.random()).collect()
    }

    /// Tries a call again as long as the store refuses it.
    fn retry<T>(&self, mut call: impl FnMut(&KeyedEngine) -> weir_engine::Result<T>) -> T {
        for _ in 0..1000 {
            match call(&self.engine) {
                Ok(value) => return value,
                Err(error) => {
                    assert!(self.faulty && error.kind() == ErrorKind::Unavailable, "{error:?}");
                }
            }
        }
        panic!("the store fails for ever");
    }

    fn check<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, got: T, expected: T) {
        if got != expected && self.checked.is_ok() {
            let (got, expected) = (format!("{got:?}"), format!("{expected:?}"));
            let at = got.bytes().zip(expected.bytes()).take_while(|(a, b)| a == b).count().saturating_sub(60);
            let cut = |text: &str| text.chars().skip(at).take(300).collect::<String>();
            self.checked = Err(format!("{what}: got, from {at}, {}, expected {}", cut(&got), cut(&expected)));
        }
    }

    fn step(&mut self) {
        let key = self.key();
        match self.rng.random_range(0..100) {
            0..15 => {
                let key = value_key(key);
                let got = self.retry(|engine| engine.get(&key, |value| value.map(<[u8]>::to_vec)));
                let expected = self.model.get(&key).cloned();
                self.check("get", got, expected);
            }
            15..35 => {
                let (key, value) = (value_key(key), self.value());
                self.retry(|engine| engine.put(&key, &value));
                self.model.insert(key, value);
            }
            35..42 => {
                let key = value_key(key);
                self.retry(|engine| engine.delete(&key));
                self.model.remove(&key);
            }
            42..45 => {
                let keys: Vec<Vec<u8>> = (0..10).map(|_| self.key()).map(value_key).collect();
                let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let got = self.retry(|engine| {
                    let mut got = Vec::new();
                    engine.get_many(&asked, |i, value| got.push((i, value.map(<[u8]>::to_vec)))).map(|()| got)
                });
                let expected = keys.iter().map(|key| self.model.get(key).cloned()).enumerate().collect();
                self.check("get_many", got, expected);
            }
            45..60 => {
                let (prefix, suffix, value) = (map_prefix(key % 20), self.suffix(), self.value());
                self.retry(|engine| engine.group_put(&prefix, &suffix, &value));
                self.model.insert([prefix, suffix].concat(), value);
            }
            60..66 => {
                let (prefix, suffix) = (map_prefix(key % 20), self.suffix());
                self.retry(|engine| engine.group_delete(&prefix, &suffix));
                self.model.remove(&[prefix, suffix].concat());
            }
            66..73 => {
                let (prefix, suffix) = (map_prefix(key % 20), self.suffix());
                let got = self.retry(|engine| engine.group_get(&prefix, &suffix, |value| value.map(<[u8]>::to_vec)));
                let contains = self.retry(|engine| engine.group_contains(&prefix, &suffix));
                let expected = self.model.get(&[prefix, suffix].concat()).cloned();
                self.check("group_contains", contains, expected.is_some());
                self.check("group_get", got, expected);
            }
            73..78 => {
                let (prefix, value) = (list_prefix(key % 10), self.value());
                // A refused append has not taken its number.
                let begun = self.retry(|engine| engine.list_append(&prefix, &value));
                let element = [&(value.len() as u32).to_be_bytes()[..], &value].concat();
                if begun {
                    let suffix = weir_engine::encoding::sequence_suffix(self.next_sequence);
                    self.next_sequence += 1;
                    self.model.insert([&prefix[..], &suffix].concat(), element);
                } else {
                    let last = model_rows(&self.model, &prefix, None).pop().map(|(key, _)| key);
                    let row = last.and_then(|key| self.model.get_mut(&key)).expect("a row to append to");
                    row.extend(element);
                    assert!(row.len() <= 1024, "a row of {} bytes", row.len());
                }
            }
            78..80 => {
                let prefix = group_prefix(key);
                self.retry(|engine| engine.group_clear(&prefix));
                self.model.retain(|key, _| !key.starts_with(&prefix));
            }
            80..84 => {
                let prefix = group_prefix(key);
                let got = self.retry(|engine| engine.group_is_empty(&prefix));
                let expected = model_rows(&self.model, &prefix, None).is_empty();
                self.check("group_is_empty", got, expected);
            }
            84..92 => self.iterate_group(key),
            92 => self.iterate_rows(),
            93 if self.rng.random_bool(0.2) => {
                let prefix = self.prefix();
                if !self.faulty {
                    let got = self.retry(|engine| engine.delete_rows(&prefix));
                    let before = self.model.len();
                    self.model.retain(|key, _| !key.starts_with(&prefix));
                    self.check("delete_rows", got, (before - self.model.len()) as u64);
                }
            }
            93..97 => {
                self.checkpoint += 1;
                let epoch = self.engine.freeze(self.checkpoint).unwrap();
                self.pending.push_back((epoch, self.model.clone(), self.next_sequence));
            }
            _ => self.end_epoch(),
        }
        if self.pending.len() > 4 {
            self.end_epoch();
        }
    }

    fn prefix(&mut self) -> Vec<u8> {
        let key = self.key();
        match self.rng.random_range(0..6) {
            0 => vec![],
            1 => vec![0],
            2 => value_key(key)[..2].to_vec(),
            3 => value_key(key)[..6].to_vec(),
            4 => map_prefix(key % 20),
            _ => [map_prefix(key % 20), vec![1]].concat(),
        }
    }

    fn iterate_group(&mut self, key: u64) {
        let prefix = group_prefix(key);
        let mut after: Option<Vec<u8>> = None;
        loop {
            let max_bytes = self.rng.random_range(1..=20 * (self.value_len + 20));
            let (more, page) = self.retry(|engine| {
                let mut page = Vec::new();
                engine.group_page(&prefix, after.as_deref(), max_bytes, &mut page).map(|more| (more, page))
            });
            let rows = parse_page(&page);
            let from = after.as_ref().map(|after| [&prefix[..], after].concat());
            let mut expected: Vec<_> = model_rows(&self.model, &prefix, from.as_deref())
                .into_iter()
                .map(|(key, value)| (key[prefix.len()..].to_vec(), value))
                .collect();
            if more {
                assert!(!rows.is_empty());
                expected.truncate(rows.len());
            }
            after = rows.last().map(|(suffix, _)| suffix.clone());
            self.check("group_page", rows, expected);
            if !more || self.rng.random_bool(0.05) {
                return;
            }
            if self.rng.random_bool(0.3) {
                let suffix = self.suffix();
                if self.rng.random_bool(0.5) {
                    let value = self.value();
                    self.retry(|engine| engine.group_put(&prefix, &suffix, &value));
                    self.model.insert([&prefix[..], &suffix].concat(), value);
                } else {
                    self.retry(|engine| engine.group_delete(&prefix, &suffix));
                    self.model.remove(&[&prefix[..], &suffix].concat());
                }
            }
        }
    }

    fn iterate_rows(&mut self) {
        let prefix = self.prefix();
        let mut after: Option<Vec<u8>> = None;
        loop {
            let max_bytes = self.rng.random_range(1..=100 * (self.value_len + 20));
            let (more, page) = self.retry(|engine| {
                let mut page = Vec::new();
                engine.row_page(&prefix, after.as_deref(), max_bytes, &mut page).map(|more| (more, page))
            });
            let rows = parse_page(&page);
            let mut expected = model_rows(&self.model, &prefix, after.as_deref());
            if more {
                assert!(!rows.is_empty());
                expected.truncate(rows.len());
            }
            after = rows.last().map(|(key, _)| key.clone());
            self.check("row_page", rows, expected);
            if !more {
                return;
            }
            let (key, value) = (value_key(self.key()), self.value());
            self.retry(|engine| engine.put(&key, &value));
            self.model.insert(key, value);
        }
    }

    fn end_epoch(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.pending.len());
        let (epoch, model, next_sequence) = self.pending.remove(at).unwrap();
        if self.rng.random_bool(0.2) {
            self.engine.abort(epoch);
            return;
        }
        match self.engine.await_commit(epoch) {
            Ok(committed) => {
                self.commits += 1;
                assert_eq!(committed.next_sequence, next_sequence);
                self.check_version(&committed, &model);
                self.engine.checkpoint_complete(self.checkpoint);
                self.last = Some((committed, model));
            }
            Err(error) => assert!(self.faulty && error.kind() == ErrorKind::Unavailable, "{error:?}"),
        }
    }

    fn check_version(&mut self, committed: &Committed, model: &Model) {
        let rows = self.harness.rows(committed);
        let differing: Vec<_> = model
            .iter()
            .filter(|(key, value)| rows.get(*key) != Some(value))
            .map(|(key, _)| key)
            .chain(rows.keys().filter(|key| !model.contains_key(*key)))
            .take(3)
            .collect();
        self.check(
            "version",
            format!("{} rows, wrong {differing:?}", rows.len()),
            format!("{} rows, wrong []", model.len()),
        );
    }

    /// Ends the attempt and starts another from the last version.
    fn restore(&mut self) {
        for (epoch, _, _) in std::mem::take(&mut self.pending) {
            self.engine.abort(epoch);
        }
        self.engine.close();
        assert_eq!(self.engine.stats().resident_bytes, 0);
        self.harness.faults.set_enabled(false);
        let mut options = self.options.clone();
        options.fresh = self.last.is_none();
        options.next_sequence = self.last.as_ref().map_or(0, |(committed, _)| committed.next_sequence);
        self.next_sequence = options.next_sequence;
        self.model = self.last.as_ref().map(|(_, model)| model.clone()).unwrap_or_default();
        let source = self.last.as_ref().map(|(committed, _)| &committed.commit.version);
        self.engine = self.harness.open(source, options, &self.budget);
        self.harness.faults.set_enabled(true);
    }
}

/// Of a list or of a map.
fn group_prefix(key: u64) -> Vec<u8> {
    if key.is_multiple_of(2) { list_prefix(key % 10) } else { map_prefix(key % 20) }
}

struct Case {
    keys: u64,
    value_len: usize,
    budget: usize,
    max_dirty: usize,
    batch_rows: usize,
    faulty: bool,
    /// Another engine of the slot evicts rows of this one at any time.
    neighbour: bool,
    steps: u64,
}

/// Writes rows of its own for as long as it lives.
struct Neighbour {
    engine: Arc<KeyedEngine>,
    writer: Option<std::thread::JoinHandle<()>>,
}

impl Neighbour {
    fn start(harness: &Harness, budget: &Arc<MemoryBudget>) -> Self {
        let mut options = options();
        options.max_dirty_bytes = 4_000;
        let engine: Arc<KeyedEngine> =
            KeyedEngine::new(Arc::new(NoStore), options, budget.clone(), harness.runtime.handle().clone());
        let writer = std::thread::spawn({
            let engine = engine.clone();
            move || (0..).take_while(|&i| engine.put(&value_key(i), &[0; 50]).is_ok()).for_each(drop)
        });
        Self { engine, writer: Some(writer) }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.engine.close();
        self.writer.take().map(std::thread::JoinHandle::join);
    }
}

/// Runs a program; returns what was found wrong.
fn run(seed: u64, case: &Case, change: impl Fn(&mut EngineOptions)) -> Result<(), String> {
    let harness = Harness::new(seed);
    let budget = MemoryBudget::new(case.budget);
    let mut options = options();
    options.max_dirty_bytes = case.max_dirty;
    options.flush_batch_rows = case.batch_rows;
    options.stores = Some(harness.memory.clone());
    change(&mut options);
    let engine = harness.open(None, options.clone(), &budget);
    if case.faulty {
        for (operation, probability) in [
            (Operation::Write, 0.1),
            (Operation::BeginCommit, 0.1),
            (Operation::AwaitCommit, 0.1),
            (Operation::GetMany, 0.02),
            (Operation::Scan, 0.02),
        ] {
            harness.faults.chance(Chance { operation, probability, fault: Fault::Fail(ErrorKind::Unavailable) });
        }
        harness.faults.chance(Chance {
            operation: Operation::Write,
            probability: 0.1,
            fault: Fault::Tear(ErrorKind::Unavailable),
        });
        harness.faults.chance(Chance { operation: Operation::Write, probability: 0.2, fault: Fault::Yield(3) });
    }
    // Answers take their time, so that the pipeline and the neighbour get between question and answer.
    for operation in [Operation::Scan, Operation::GetMany] {
        harness.faults.chance(Chance { operation, probability: 0.2, fault: Fault::Yield(5) });
    }
    let neighbour = case.neighbour.then(|| Neighbour::start(&harness, &budget));
    let mut program = Program {
        harness: &harness,
        rng: SmallRng::seed_from_u64(seed),
        engine,
        budget: budget.clone(),
        options,
        model: Model::new(),
        next_sequence: 0,
        checkpoint: 0,
        pending: VecDeque::new(),
        last: None,
        keys: case.keys,
        value_len: case.value_len,
        faulty: case.faulty,
        commits: 0,
        checked: Ok(()),
    };
    for step in 0..case.steps {
        program.step();
        if program.rng.random_bool(0.001) {
            program.restore();
        }
        if let Err(wrong) = &program.checked {
            return Err(format!("seed {seed}, step {step}: {wrong}"));
        }
    }
    harness.faults.clear();
    while !program.pending.is_empty() {
        program.end_epoch();
    }
    let epoch = program.engine.freeze(1_000_000).unwrap();
    let model = program.model.clone();
    let committed = program.engine.await_commit(epoch).map_err(|error| format!("seed {seed}: {error:?}"))?;
    program.check_version(&committed, &model);
    program.engine.close();
    drop(neighbour);
    assert_eq!(budget.used(), 0, "seed {seed}");
    program.checked.map_err(|wrong| format!("seed {seed}, end: {wrong}"))
}

fn few_rows(faulty: bool) -> Case {
    Case {
        keys: 500,
        value_len: 20,
        budget: 20_000,
        max_dirty: 4_000,
        batch_rows: 16,
        faulty,
        neighbour: false,
        steps: 3_000,
    }
}

fn all_rows(faulty: bool) -> Case {
    Case { budget: 64 << 20, max_dirty: 1 << 20, batch_rows: 64, ..few_rows(faulty) }
}

/// `WEIR_SEEDS=40..80` runs those.
fn seeds() -> std::ops::Range<u64> {
    let asked = std::env::var("WEIR_SEEDS").ok();
    let range = asked.as_deref().and_then(|seeds| seeds.split_once(".."));
    range.map_or(0..6, |(first, end)| first.parse().unwrap()..end.parse().unwrap())
}

#[test]
fn a_working_set_of_a_few_rows() {
    for seed in seeds() {
        run(seed, &few_rows(false), |_| {}).unwrap();
    }
}

#[test]
fn a_working_set_of_all_rows() {
    for seed in seeds() {
        run(seed, &all_rows(false), |_| {}).unwrap();
    }
}

#[test]
fn a_few_rows_and_a_failing_store() {
    for seed in seeds() {
        run(seed, &few_rows(true), |_| {}).unwrap();
    }
}

#[test]
fn all_rows_and_a_failing_store() {
    for seed in seeds() {
        run(seed, &all_rows(true), |_| {}).unwrap();
    }
}

#[test]
fn an_engine_that_does_not_know_what_is_absent() {
    for seed in seeds() {
        run(seed, &few_rows(false), |options| options.fresh = false).unwrap();
        run(seed, &all_rows(false), |options| options.fresh = false).unwrap();
    }
}

#[test]
fn values_larger_than_the_working_set() {
    let case = Case { keys: 60, value_len: 3_000, max_dirty: 8_000, steps: 2_500, ..few_rows(false) };
    for seed in seeds() {
        run(seed, &case, |_| {}).unwrap();
    }
}

#[test]
fn a_neighbour_that_wants_the_memory() {
    let case = Case { budget: 60_000, neighbour: true, ..few_rows(false) };
    for seed in seeds() {
        run(seed, &case, |_| {}).unwrap();
        run(seed, &case, |options| options.fresh = false).unwrap();
    }
}

#[cfg(feature = "seeded-defects")]
#[test]
fn seeded_defects_are_found() {
    use weir_engine::Defect;
    for defect in [Defect::FreezeCopiesNothing, Defect::DroppedTombstone, Defect::FlushOutOfEpochOrder] {
        let found = (0..20).any(|seed| {
            let ran = std::panic::catch_unwind(|| run(seed, &all_rows(false), |options| options.defect = Some(defect)));
            !matches!(ran, Ok(Ok(())))
        });
        assert!(found, "{defect:?} was not found");
    }
}
