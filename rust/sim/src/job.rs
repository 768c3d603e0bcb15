//! One job: its subtasks with their engines and oracles, its checkpoints, and how it is restored.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use parking_lot::Mutex;

use bytes::Bytes;
use rand::Rng;
use rand::rngs::SmallRng;
use weir_engine::{EngineError, EngineOptions, EpochId, KeyedEngine, MemoryBudget};
use weir_store::{
    BranchName, ErrorKind, ExpiryClock, ExpiryRule, KeyGroupRange, PageLimit, RowValue, Source, StateStore, Stores,
    VersionRef,
};

use crate::attempts::{Attempt, Crash};
use crate::report::Report;
use crate::rows::{self, GROUPS, KEY_GROUPS, Oracle, STATES, State, VALUES, show, show_option};

/// Why a call did not end as the oracle says.
#[derive(Debug)]
pub enum Trouble {
    /// The engine or the store said so.
    Refused(EngineError),
    /// Something is not what it must be.
    Wrong(String),
}

impl From<EngineError> for Trouble {
    fn from(error: EngineError) -> Self {
        Self::Refused(error)
    }
}

pub type Outcome<T = ()> = Result<T, Trouble>;

/// A `Wrong` with a formatted text.
#[macro_export]
macro_rules! wrong {
    ($($text:tt)*) => { return Err($crate::job::Trouble::Wrong(format!($($text)*))) };
}

/// How large the program's world is.
#[derive(Clone, Debug)]
pub struct Size {
    /// Keys of each state in each key group.
    pub keys: u64,
    /// User keys of a map.
    pub user_keys: u32,
    /// Whether operations scan rows by any prefix, which flushes all that is dirty.
    pub scans: bool,
    pub budget_bytes: usize,
    pub working_set_bytes: Option<usize>,
    pub max_dirty_bytes: usize,
    pub flush_batch_rows: usize,
    pub flush_batch_bytes: usize,
}

impl Size {
    pub fn draw(rng: &mut SmallRng) -> Self {
        let few = rng.random_bool(0.5);
        let pick = |rng: &mut SmallRng, choices: &[usize]| choices[rng.random_range(0..choices.len())];
        Self {
            keys: if few { rng.random_range(1..5) } else { rng.random_range(5..40) },
            scans: rng.random_bool(0.5),
            user_keys: if few { rng.random_range(1..8) } else { rng.random_range(8..64) },
            budget_bytes: pick(rng, &[2 << 10, 16 << 10, 1 << 20]),
            working_set_bytes: match pick(rng, &[0, 512, 1024, 2048, 8192]) {
                0 => None,
                bytes => Some(bytes),
            },
            max_dirty_bytes: pick(rng, &[256, 1024, 16 << 10, 1 << 20]),
            flush_batch_rows: pick(rng, &[1, 3, 64, 4096]),
            flush_batch_bytes: pick(rng, &[64, 1024, 1 << 20]),
        }
    }
}

/// What all jobs of a program share.
pub struct Shared {
    pub stores: Arc<dyn Stores>,
    pub budget: Arc<MemoryBudget>,
    pub runtime: tokio::runtime::Handle,
    pub size: Size,
    pub defect: Option<weir_engine::Defect>,
    /// Numbers every write and every attempt.
    pub numbers: AtomicU64,
    /// The time by which rows expire, in milliseconds; only grows.
    pub clock: AtomicI64,
    /// Branches and stores of attempts that crashed.
    pub crashed: Mutex<Vec<(BranchName, Arc<dyn StateStore>)>>,
}

impl Shared {
    pub fn now_ms(&self) -> i64 {
        self.clock.load(Ordering::SeqCst)
    }

    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}

pub struct Subtask {
    pub engine: Arc<KeyedEngine>,
    pub range: KeyGroupRange,
    pub oracle: Oracle,
    branch: BranchName,
    crash: Crash,
}

/// A part of a checkpoint: what one subtask committed.
#[derive(Clone, Debug)]
pub struct Part {
    pub version: VersionRef,
    pub range: KeyGroupRange,
    pub oracle: Oracle,
}

/// A completed checkpoint whose lease lives.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub id: u64,
    /// Of the graph that made it.
    pub graph: u64,
    pub parts: Vec<Part>,
}

/// A checkpoint that was triggered and is neither complete nor aborted.
pub struct Pending {
    pub id: u64,
    pub graph: u64,
    pub parts: Vec<(Arc<KeyedEngine>, EpochId, KeyGroupRange, Oracle)>,
}

impl Pending {
    /// No part of it is wanted any more.
    pub fn abort(self) {
        for (engine, epoch, ..) in self.parts {
            engine.abort(epoch);
        }
    }
}

pub struct Job {
    pub name: String,
    /// Which execution graph of the job this is: restarts within one are Flink's own, another is a redeployment.
    pub graph: u64,
    pub subtasks: Vec<Subtask>,
    pub pending: Vec<Pending>,
    /// Oldest first.
    pub completed: Vec<Checkpoint>,
    /// What the job was forked from, to restore from until it has a checkpoint of its own; its lease is another job's.
    pub origin: Option<Checkpoint>,
    pub next_checkpoint: u64,
}

/// The key groups of subtask `index` of `parallelism`, as Flink assigns them.
pub fn assigned(index: u16, parallelism: u16) -> KeyGroupRange {
    let first = (index * KEY_GROUPS).div_ceil(parallelism);
    let last = ((index + 1) * KEY_GROUPS - 1) / parallelism;
    KeyGroupRange::new(first, last)
}

impl Job {
    pub fn new(name: String) -> Self {
        Self {
            name,
            graph: 1,
            subtasks: Vec::new(),
            pending: Vec::new(),
            completed: Vec::new(),
            origin: None,
            next_checkpoint: 1,
        }
    }

    /// Opens all subtasks from `checkpoint`, or empty.
    pub fn start(&mut self, shared: &Shared, checkpoint: Option<&Checkpoint>, parallelism: u16) -> Outcome {
        assert!(self.subtasks.is_empty());
        let parts = checkpoint.map_or(&[][..], |checkpoint| &checkpoint.parts);
        let restored = checkpoint.map_or(0, |checkpoint| checkpoint.id);
        for index in 0..parallelism {
            let subtask = open(shared, self, index, parallelism, parts, restored)?;
            self.subtasks.push(subtask);
        }
        self.next_checkpoint = self.next_checkpoint.max(restored + 1);
        Ok(())
    }

    /// Freezes every subtask.
    pub fn freeze(&mut self) -> Outcome {
        let id = self.next_checkpoint;
        self.next_checkpoint += 1;
        let mut parts = Vec::new();
        for subtask in &self.subtasks {
            let epoch = subtask.engine.freeze(id)?;
            parts.push((subtask.engine.clone(), epoch, subtask.range, subtask.oracle.clone()));
        }
        self.pending.push(Pending { id, graph: self.graph, parts });
        Ok(())
    }

    /// Gives up what is pending when the job fails. A checkpoint that a later one has overtaken is aborted first, as the
    /// JobManager does on completing the later one: a successor reaps only versions later than what it restores. With
    /// `all` every one is, for a successor of another graph reaps none.
    pub fn abandon_pending(&mut self, all: bool) {
        let latest = self.completed.last().map_or(0, |checkpoint| checkpoint.id);
        for pending in self.pending.extract_if(.., |pending| all || pending.id < latest) {
            pending.abort();
        }
    }

    /// Ends every subtask and takes its figures; with `crash` the store is not told.
    pub fn stop(&mut self, shared: &Shared, crash: bool, report: &mut Report) {
        self.abandon_pending(false);
        self.pending.clear();
        for subtask in self.subtasks.drain(..) {
            subtask.stop(shared, crash, report);
        }
    }
}

impl Subtask {
    pub fn stop(self, shared: &Shared, crash: bool, report: &mut Report) {
        let stats = self.engine.stats();
        report.evictions += stats.evictions;
        report.store_reads += stats.store_reads;
        report.store_scans += stats.scans;
        report.flushed_rows += stats.flushed_rows;
        report.displaced_values += stats.displaced_values;
        report.writer_waits += stats.writer_waits;
        if crash {
            shared.crashed.lock().push((self.branch, self.crash.crash()));
        } else {
            self.engine.close();
        }
    }
}

fn open(shared: &Shared, job: &Job, index: u16, parallelism: u16, parts: &[Part], restored: u64) -> Outcome<Subtask> {
    let range = assigned(index, parallelism);
    let mut oracle = Oracle::default();
    let mut sources = Vec::new();
    for part in parts {
        let Some(clipped) = part.range.intersection(range) else { continue };
        sources.push(Source { version: part.version.clone(), range: clipped });
        oracle.next_sequence = oracle.next_sequence.max(part.oracle.next_sequence);
        let held = part.oracle.rows.iter().filter(|(key, _)| clipped.contains_key(key));
        oracle.rows.extend(held.map(|(key, value)| (key.clone(), value.clone())));
        let expiring = part.oracle.expiring.iter().filter(|(key, _)| clipped.contains_key(key));
        oracle.expiring.extend(expiring.map(|(key, value)| (key.clone(), value.clone())));
    }
    // As Flink names attempts, `<graph>_<vertex>_<subtask>_<attempt>`, and the number of the opening.
    let (name, graph, attempt) = (&job.name, job.graph, shared.number());
    let branch = format!("{name}/op/{index}-of-{parallelism}/g{graph}_v_{index}_{attempt}-1");
    let branch = BranchName::parse(&branch).expect("made of allowed characters");
    let store = shared.runtime.block_on(shared.stores.open(&branch, range, &sources, restored))?;
    let (store, crash) = Attempt::wrap(store);
    let size = &shared.size;
    let mut options = EngineOptions::new(range);
    options.working_set_bytes = size.working_set_bytes;
    options.max_dirty_bytes = size.max_dirty_bytes;
    options.flush_batch_rows = size.flush_batch_rows;
    options.flush_batch_bytes = size.flush_batch_bytes;
    options.fresh = sources.is_empty();
    options.next_sequence = oracle.next_sequence;
    options.stores = Some(shared.stores.clone());
    options.defect = shared.defect;
    let engine = KeyedEngine::new(store, options, shared.budget.clone(), shared.runtime.clone());
    // Some attempts set no rule: they drop nothing, and an earlier one may have.
    if !attempt.is_multiple_of(4) {
        let rule = ExpiryRule { ttl_ms: rows::TTL_MS as u64, value: RowValue::Whole, timestamp_at: 0, stay_ms: None };
        engine.change_expiry(|expiry| {
            expiry.clock = ExpiryClock::At(shared.now_ms());
            expiry.set(State::Expiring as u32, Some(rule));
        })?;
    }
    Ok(Subtask { engine, range, oracle, branch, crash })
}

/// A whole key, and where the prefix of its group ends; the whole length for a value row.
fn parse(key: &[u8]) -> (State, usize) {
    let id = u32::from_be_bytes(key[2..6].try_into().expect("four bytes"));
    let state = *STATES.iter().find(|state| **state as u32 == id).expect("a state of the programs");
    let key_end = 6 + if key[6] == 2 { 10 } else { 9 };
    (state, if state == State::WindowedMap { key_end + 9 } else { key_end })
}

/// The rows of a page: `[u32 suffix length][u32 value length][suffix][value]*`.
pub fn parse_page(mut page: &[u8]) -> Outcome<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut rows = Vec::new();
    while !page.is_empty() {
        let Some((header, rest)) = page.split_at_checked(8) else { wrong!("a page ends within a header") };
        let suffix = u32::from_le_bytes(header[..4].try_into().expect("four bytes")) as usize;
        let value = u32::from_le_bytes(header[4..].try_into().expect("four bytes")) as usize;
        if rest.len() < suffix + value {
            wrong!("a page ends within a row");
        }
        rows.push((rest[..suffix].to_vec(), rest[suffix..suffix + value].to_vec()));
        page = &rest[suffix + value..];
    }
    Ok(rows)
}

fn same_value(what: &str, key: &[u8], found: Option<&[u8]>, expected: Option<&[u8]>) -> Outcome {
    if found != expected {
        wrong!("{what} of {}: found {}, expected {}", show(key), show_option(found), show_option(expected));
    }
    Ok(())
}

/// Compares a page with the next rows that the oracle has.
fn same_page<'a>(
    what: &str,
    page: &[u8],
    more: bool,
    cut: usize,
    mut expected: impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)>,
) -> Outcome<Vec<Vec<u8>>> {
    let rows = parse_page(page)?;
    if more && rows.is_empty() {
        wrong!("{what}: an empty page that says there is more");
    }
    let mut seen = Vec::new();
    for (suffix, value) in rows {
        if cut == 0 && rows::is_expiring(&suffix) {
            // Looked at one by one elsewhere.
            seen.push(suffix);
            continue;
        }
        match expected.next() {
            Some((key, other)) if key[cut..] == suffix && *other == value => seen.push(suffix),
            Some((key, other)) => wrong!(
                "{what}: row {} = {}, expected {} = {}",
                show(&suffix),
                show(&value),
                show(&key[cut..]),
                show(other)
            ),
            None => wrong!("{what}: row {} = {}, expected none", show(&suffix), show(&value)),
        }
    }
    if !more && let Some((key, value)) = expected.next() {
        wrong!("{what}: ended, expected {} = {}", show(&key[cut..]), show(value));
    }
    Ok(seen)
}

impl Subtask {
    fn draw_key_group(&self, rng: &mut SmallRng) -> u16 {
        rng.random_range(self.range.first..=self.range.last)
    }

    /// One random operation, on the engine and on the oracle.
    pub fn operate(&mut self, shared: &Shared, rng: &mut SmallRng, report: &mut Report) -> Outcome {
        report.operations += 1;
        let engine = self.engine.clone();
        let size = &shared.size;
        let key_group = self.draw_key_group(rng);
        let number = rng.random_range(0..size.keys);
        let value_key = rows::key(key_group, VALUES[rng.random_range(0..2)], number);
        let group = GROUPS[rng.random_range(0..3)];
        let prefix = rows::key(key_group, group, number);
        let suffix = match group {
            // An element that may be there, gone, or yet to come.
            State::List => rows::list_suffix(rng.random_range(0..=self.oracle.next_sequence)),
            _ => rows::map_suffix(rng.random_range(0..size.user_keys)),
        };
        let row = [prefix.as_slice(), &suffix].concat();
        if rng.random_bool(0.08) {
            return self.operate_expiring(shared, rng, &rows::key(key_group, State::Expiring, number), report);
        }
        match rng.random_range(0..100) {
            0..16 => {
                let value = rows::value(rng, shared.number());
                engine.put(&value_key, &value)?;
                self.oracle.rows.insert(value_key, value);
            }
            16..32 => {
                let expected = self.oracle.rows.get(&value_key).map(Vec::as_slice);
                let found = engine.get(&value_key, |found| same_value("get", &value_key, found, expected))?;
                found?;
            }
            32..36 => self.get_many(shared, rng)?,
            36..42 => {
                engine.delete(&value_key)?;
                self.oracle.rows.remove(&value_key);
            }
            42..54 if group != State::List => {
                let value = rows::value(rng, shared.number());
                engine.group_put(&prefix, &suffix, &value)?;
                self.oracle.rows.insert(row, value);
            }
            42..54 => {
                for _ in 0..rng.random_range(1..4) {
                    let value = rows::value(rng, shared.number());
                    let begun = engine.list_append(&prefix, &value)?;
                    if !self.oracle.append(&prefix, &value, begun) {
                        wrong!("list_append to {} found a row to append to", show(&prefix));
                    }
                }
            }
            54..62 => {
                let expected = self.oracle.rows.get(&row).map(Vec::as_slice);
                engine.group_get(&prefix, &suffix, |found| same_value("group_get", &row, found, expected))??;
            }
            62..66 => {
                let (found, expected) = (engine.group_contains(&prefix, &suffix)?, self.oracle.rows.contains_key(&row));
                if found != expected {
                    wrong!("group_contains of {}: {found}, expected {expected}", show(&row));
                }
            }
            66..70 => {
                let found = engine.group_is_empty(&prefix)?;
                let expected = self.oracle.range(&prefix, None).next().is_none();
                if found != expected {
                    wrong!("group_is_empty of {}: {found}, expected {expected}", show(&prefix));
                }
            }
            70..77 => {
                engine.group_delete(&prefix, &suffix)?;
                self.oracle.rows.remove(&row);
            }
            77..80 => {
                engine.group_clear(&prefix)?;
                self.oracle.remove(&prefix);
            }
            80..92 => self.scan_group(shared, rng, &prefix, group)?,
            92..98 if size.scans => self.scan_rows(rng, &prefix, key_group, group)?,
            98.. if size.scans || rng.random_bool(0.1) => {
                let prefix = if rng.random_bool(0.5) { prefix } else { rows::state_prefix(key_group, group) };
                let (found, expected) = (engine.delete_rows(&prefix)?, self.oracle.remove(&prefix));
                if found != expected {
                    wrong!("delete_rows of {}: {found} rows, expected {expected}", show(&prefix));
                }
            }
            _ => {
                let value = rows::value(rng, shared.number());
                engine.put(&value_key, &value)?;
                self.oracle.rows.insert(value_key, value);
            }
        }
        Ok(())
    }

    /// An operation on a row that expires, or some time goes by.
    fn operate_expiring(&mut self, shared: &Shared, rng: &mut SmallRng, key: &[u8], report: &mut Report) -> Outcome {
        match rng.random_range(0..6) {
            0..3 => {
                // Not always later than what it overwrites.
                let timestamp = shared.now_ms() + rng.random_range(-20..20);
                let value = rows::expiring_value(timestamp, shared.number());
                self.engine.put(key, &value)?;
                self.oracle.expiring.insert(key.to_vec(), value);
            }
            3 => {
                self.engine.delete(key)?;
                self.oracle.expiring.remove(key);
            }
            4 => {
                let now = shared.clock.fetch_add(rng.random_range(0..20), Ordering::SeqCst);
                self.engine.change_expiry(|expiry| expiry.clock = ExpiryClock::At(now))?;
            }
            _ => self.check_expiring(shared, key, report)?,
        }
        Ok(())
    }

    /// The newest value, or none if it has expired.
    fn check_expiring(&self, shared: &Shared, key: &[u8], report: &mut Report) -> Outcome {
        let expected = self.oracle.expiring.get(key).map(Vec::as_slice);
        let found = self.engine.get(key, |found| found.map(<[u8]>::to_vec))?;
        match expected {
            Some(value) if found.is_none() && rows::may_be_gone(value, shared.now_ms()) => report.expired_rows += 1,
            expected => same_value("get of an expiring row", key, found.as_deref(), expected)?,
        }
        Ok(())
    }

    fn get_many(&self, shared: &Shared, rng: &mut SmallRng) -> Outcome {
        let count = rng.random_range(1..12);
        let keys: Vec<Vec<u8>> = (0..count)
            .map(|_| {
                let (key_group, state) = (self.draw_key_group(rng), VALUES[rng.random_range(0..2)]);
                rows::key(key_group, state, rng.random_range(0..shared.size.keys))
            })
            .collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut outcome = Ok(());
        let mut seen = 0;
        self.engine.get_many(&keys, |i, found| {
            if i != seen {
                outcome = Err(Trouble::Wrong(format!("get_many passes key {i} when {seen} is due")));
            }
            seen += 1;
            let expected = self.oracle.rows.get(keys[i]).map(Vec::as_slice);
            if outcome.is_ok() {
                outcome = same_value("get_many", keys[i], found, expected);
            }
        })?;
        if outcome.is_ok() && seen != keys.len() {
            wrong!("get_many passes {seen} of {} keys", keys.len());
        }
        outcome
    }

    /// All pages of a group; sometimes the group changes between two of them.
    fn scan_group(&mut self, shared: &Shared, rng: &mut SmallRng, prefix: &[u8], group: State) -> Outcome {
        let max_bytes = rng.random_range(1..600);
        let changing = rng.random_bool(0.3);
        let mut after: Option<Vec<u8>> = None;
        loop {
            let mut page = Vec::new();
            let more = self.engine.group_page(prefix, after.as_deref(), max_bytes, &mut page)?;
            let whole = after.as_ref().map(|after| [prefix, after].concat());
            let expected = self.oracle.range(prefix, whole.as_deref());
            let seen = same_page("group_page", &page, more, prefix.len(), expected)?;
            after = seen.last().cloned().or(after);
            if !more {
                return Ok(());
            }
            if changing && group != State::List {
                let suffix = rows::map_suffix(rng.random_range(0..shared.size.user_keys));
                let row = [prefix, &suffix].concat();
                if rng.random_bool(0.5) {
                    let value = rows::value(rng, shared.number());
                    self.engine.group_put(prefix, &suffix, &value)?;
                    self.oracle.rows.insert(row, value);
                } else {
                    self.engine.group_delete(prefix, &suffix)?;
                    self.oracle.rows.remove(&row);
                }
            }
            if rng.random_bool(0.1) {
                return Ok(());
            }
        }
    }

    /// All pages under a prefix of rows.
    fn scan_rows(&self, rng: &mut SmallRng, prefix: &[u8], key_group: u16, state: State) -> Outcome {
        let under = match rng.random_range(0..3) {
            0 => key_group.to_be_bytes().to_vec(),
            1 => rows::state_prefix(key_group, state),
            _ => prefix.to_vec(),
        };
        self.pages_of_rows(&under, rng.random_range(1..4000)).map(drop)
    }

    /// Compares every row under `prefix`; how many there are.
    fn pages_of_rows(&self, prefix: &[u8], max_bytes: usize) -> Outcome<u64> {
        let mut after: Option<Vec<u8>> = None;
        let mut count = 0;
        loop {
            let mut page = Vec::new();
            let more = self.engine.row_page(prefix, after.as_deref(), max_bytes, &mut page)?;
            let expected = self.oracle.range(prefix, after.as_deref());
            let seen = same_page("row_page", &page, more, 0, expected)?;
            count += seen.len() as u64;
            after = seen.last().cloned().or(after);
            if !more {
                return Ok(count);
            }
        }
    }

    /// Compares every row: by pages of all rows, by group, and one by one, absent ones included.
    pub fn verify(&mut self, shared: &Shared, rng: &mut SmallRng, report: &mut Report) -> Outcome {
        let mut order = [0, 1, 2];
        for i in (1..order.len()).rev() {
            order.swap(i, rng.random_range(0..=i));
        }
        for way in order {
            match way {
                0 => {
                    for key_group in self.range.first..=self.range.last {
                        report.checked_rows += self.pages_of_rows(&key_group.to_be_bytes(), 4096)?;
                    }
                }
                1 => {
                    for key_group in self.range.first..=self.range.last {
                        for group in GROUPS {
                            for number in 0..shared.size.keys {
                                self.scan_group(shared, rng, &rows::key(key_group, group, number), State::List)?;
                            }
                        }
                        for number in 0..shared.size.keys {
                            self.check_expiring(shared, &rows::key(key_group, State::Expiring, number), report)?;
                        }
                        for state in VALUES {
                            for number in 0..shared.size.keys {
                                let key = rows::key(key_group, state, number);
                                let expected = self.oracle.rows.get(&key).map(Vec::as_slice);
                                self.engine.get(&key, |found| same_value("get", &key, found, expected))??;
                            }
                        }
                    }
                }
                _ => {
                    for (key, value) in &self.oracle.rows {
                        let (_, end) = parse(key);
                        let check = |found: Option<&[u8]>| same_value("get", key, found, Some(value));
                        if end == key.len() {
                            self.engine.get(key, check)??;
                        } else {
                            self.engine.group_get(&key[..end], &key[end..], check)??;
                        }
                        report.checked_rows += 1;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Reads a version as a restore would, and compares all of it.
pub fn verify_version(shared: &Shared, part: &Part, report: &mut Report) -> Outcome {
    let source = Source { version: part.version.clone(), range: part.range };
    let reader = shared.runtime.block_on(shared.stores.open_read_only(&source))?;
    let mut expected = part.oracle.rows.iter();
    let mut expiring = part.oracle.expiring.clone();
    for key_group in part.range.first..=part.range.last {
        let prefix = key_group.to_be_bytes();
        let mut after: Option<Bytes> = None;
        loop {
            let limit = PageLimit { rows: 100, bytes: 1 << 16 };
            let page = shared.runtime.block_on(reader.scan(&prefix, after.as_deref(), limit))?;
            for (key, value) in &page.rows {
                report.checked_rows += 1;
                if rows::is_expiring(key) {
                    let known = expiring.remove(&key[..]);
                    same_value("version's expiring row", key, Some(value), known.as_deref())?;
                    continue;
                }
                match expected.next() {
                    Some((other, known)) if other == key && known == value => {}
                    Some((other, known)) => wrong!(
                        "version {} holds {} = {}, expected {} = {}",
                        part.version,
                        show(key),
                        show(value),
                        show(other),
                        show(known)
                    ),
                    None => wrong!("version {} holds {} = {}, expected none", part.version, show(key), show(value)),
                }
            }
            if page.done {
                break;
            }
            after = page.rows.last().map(|(key, _)| key.clone());
        }
    }
    for (key, value) in expiring {
        if !rows::may_be_gone(&value, shared.now_ms()) {
            wrong!("version {} lacks {}, which has not expired", part.version, show(&key));
        }
        report.expired_rows += 1;
    }
    match expected.next() {
        Some((key, value)) => wrong!("version {} lacks {} = {}", part.version, show(key), show(value)),
        None => Ok(()),
    }
}

/// Gives a version up.
pub fn release(shared: &Shared, version: &VersionRef) -> Outcome {
    Ok(shared.runtime.block_on(shared.stores.release(version))?)
}

/// Waits for every part of a checkpoint; the versions of those that came are released unless all did.
pub fn complete(shared: &Shared, pending: Pending, report: &mut Report) -> Outcome<Checkpoint> {
    let mut parts = Vec::new();
    let mut trouble = None;
    for (engine, epoch, range, oracle) in pending.parts {
        match engine.await_commit(epoch) {
            Ok(committed) => {
                report.commits += 1;
                if committed.next_sequence != oracle.next_sequence && trouble.is_none() {
                    trouble = Some(Trouble::Wrong(format!(
                        "checkpoint {} has next sequence {}, expected {}",
                        pending.id, committed.next_sequence, oracle.next_sequence
                    )));
                }
                parts.push(Part { version: committed.commit.version, range, oracle });
            }
            Err(error) => {
                report.failed_commits += 1;
                trouble = trouble.or(Some(Trouble::Refused(error)));
            }
        }
    }
    match trouble {
        None => Ok(Checkpoint { id: pending.id, graph: pending.graph, parts }),
        Some(trouble) => {
            for part in parts {
                release(shared, &part.version)?;
            }
            Err(trouble)
        }
    }
}

/// Whether a store that is made to fail may have caused it.
pub fn is_injected(trouble: &Trouble) -> bool {
    matches!(trouble, Trouble::Refused(error) if error.kind() == ErrorKind::Unavailable)
}
