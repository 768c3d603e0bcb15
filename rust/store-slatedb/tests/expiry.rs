//! Expired rows leave while files are merged: by random programs, by the bytes that stay, and by what merging them costs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tempfile::TempDir;
use weir_store::promises::{ALL, branch, commit, key, put, rows, run, timed, whole};
use weir_store::{Commit, Expiry, ExpiryClock, ExpiryRule, Row, RowValue, StateStore, Stores};
use weir_store_slatedb::{CompactionPolicy, SlateConfig, SlateStores};

fn stores(directory: &TempDir, config: SlateConfig) -> Arc<dyn Stores> {
    let url = format!("file://{}", directory.path().display());
    Arc::new(SlateStores::new(&url, config).unwrap())
}

/// Merges whatever it finds, at once.
fn eager() -> SlateConfig {
    let compaction =
        CompactionPolicy { l0_trigger: 2, growth: 1.5, idle: Duration::ZERO, ..CompactionPolicy::default() };
    SlateConfig { compaction, ..quick() }
}

fn quick() -> SlateConfig {
    let compaction_poll = Duration::from_millis(20);
    SlateConfig { compaction_poll, gc_min_age: Duration::from_millis(500), fsync: false, ..SlateConfig::default() }
}

fn state(name: &str) -> u32 {
    u32::from_be_bytes(name.as_bytes().try_into().unwrap())
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Numbers from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % bound
    }
}

/// The rows as they were written last, and which of them may be missing.
#[derive(Default)]
struct Model {
    rows: BTreeMap<Bytes, Bytes>,
    may_miss: BTreeSet<Bytes>,
    expiry: Expiry,
}

impl Model {
    fn write(&mut self, batch: &[Row]) {
        for row in batch {
            self.may_miss.remove(&row.key);
            match &row.value {
                Some(value) => self.rows.insert(row.key.clone(), value.clone()),
                None => self.rows.remove(&row.key),
            };
        }
        self.look();
    }

    fn look(&mut self) {
        let now = self.expiry.now_ms();
        let expired = self.rows.iter().filter(|(key, value)| self.expiry.is_expired(key, value, now));
        self.may_miss.extend(expired.map(|(key, _)| key.clone()));
    }

    fn check(&self, found: &BTreeMap<Bytes, Bytes>, when: &str) {
        for (key, value) in found {
            assert_eq!(self.rows.get(key), Some(value), "{when}: {key:?} holds what is not its newest value");
        }
        for key in self.rows.keys() {
            assert!(found.contains_key(key) || self.may_miss.contains(key), "{when}: {key:?} is missing");
        }
    }
}

/// Random writes, rules and times, merged all the while: no row that has not expired is ever missing, no older value ever
/// shows, and a version reads for ever the same.
async fn program(seed: u64) -> (usize, usize) {
    let directory = TempDir::new().unwrap();
    let stores = stores(&directory, eager());
    let mut draw = Draw(seed);
    let mut store = stores.open(&branch("job/op/0/a0"), ALL, &[], 0).await.unwrap();
    let mut model = Model::default();
    let mut kept: Vec<(Commit, BTreeMap<Bytes, Bytes>)> = Vec::new();
    let (mut now, mut missing, mut openings) = (0i64, 0, 0);
    for step in 1..=120 {
        match draw.below(10) {
            0..=5 => {
                let mut batch: BTreeMap<Bytes, Row> = BTreeMap::new();
                for _ in 0..1 + draw.below(30) {
                    let name = format!("{:02}", draw.below(60));
                    let of = ["ttl1", "ttl2", "none"][draw.below(3) as usize];
                    let row = match draw.below(6) {
                        0 => Row { key: key(1, &format!("{of}{name}")), value: None },
                        // Not always in the form of the rule, and seldom later than what was written before.
                        1 => put(1, &format!("{of}{name}"), &format!("{}", draw.below(1 << 40))),
                        _ => timed(1, of, &name, now - 50 + draw.below(100) as i64, &format!("step {step}")),
                    };
                    batch.insert(row.key.clone(), row);
                }
                let batch: Vec<Row> = batch.into_values().collect();
                store.write(batch.clone()).await.unwrap();
                model.write(&batch);
            }
            6 => {
                now += draw.below(60) as i64;
                model.expiry.clock = ExpiryClock::At(now);
                store.set_expiry(model.expiry.clone());
                model.look();
            }
            7 => {
                let rule = ExpiryRule {
                    ttl_ms: 20 + draw.below(100),
                    value: RowValue::Whole,
                    timestamp_at: 0,
                    stay_ms: (draw.below(2) == 0).then_some(30),
                };
                let of = ["ttl1", "ttl2"][draw.below(2) as usize];
                model.expiry.set(state(of), (draw.below(4) > 0).then_some(rule));
                store.set_expiry(model.expiry.clone());
                model.look();
            }
            8 => {
                let next = commit(&*store, step).await;
                let held = rows(&*stores.open_read_only(&whole(&next)).await.unwrap()).await;
                model.check(&held, &format!("seed {seed}, step {step}, version"));
                kept.push((next, held));
            }
            _ if draw.below(4) == 0 && !kept.is_empty() => {
                // A new attempt at a version: what it lacks is gone for good.
                store.close().await.unwrap();
                openings += 1;
                let (version, held) = &kept[draw.below(kept.len() as u64) as usize];
                let name = format!("job/op/0/a{openings}");
                store = stores.open(&branch(&name), ALL, &[whole(version)], u64::MAX).await.unwrap();
                model.rows = held.clone();
                model.may_miss.clear();
                model.expiry = Expiry::default();
            }
            _ => tokio::time::sleep(Duration::from_millis(30)).await,
        }
        let found = rows(&*store).await;
        model.check(&found, &format!("seed {seed}, step {step}"));
        missing = missing.max(model.rows.len() - found.len());
    }
    for (version, held) in &kept {
        let found = rows(&*stores.open_read_only(&whole(version)).await.unwrap()).await;
        assert_eq!(found, *held, "seed {seed}: a version has changed");
    }
    store.close().await.unwrap();
    (missing, openings)
}

#[test]
fn random_programs_lose_only_what_has_expired() {
    run(async {
        let (mut missing, mut openings) = (0, 0);
        let programs: Vec<_> = (0..24).map(|seed| tokio::spawn(program(seed))).collect();
        for program in programs {
            let (of_program, opened) = program.await.unwrap();
            missing += of_program;
            openings += opened;
        }
        println!("{missing} rows missing at most at once, {openings} openings");
        assert!(missing > 24, "merging dropped {missing} rows: the programs prove nothing");
        assert!(openings > 12, "{openings} openings");
    });
}

fn disk_bytes(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => disk_bytes(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}

const ROWS: i64 = 20_000;

async fn write(store: &dyn StateStore, of: &str, ids: impl Iterator<Item = i64>, timestamp: impl Fn(i64) -> i64) {
    let filler = "x".repeat(100);
    let mut batch: Vec<Row> = ids.map(|i| timed(1, of, &format!("{i:08}"), timestamp(i), &filler)).collect();
    batch.sort_by(|a, b| a.key.cmp(&b.key));
    for batch in batch.chunks(1000) {
        store.write(batch.to_vec()).await.unwrap();
    }
}

/// Empty checkpoints, each in the place of the one before, until the last one holds no more than `bound`.
async fn until_stored(
    stores: &Arc<dyn Stores>,
    store: &Arc<dyn StateStore>,
    last: &mut Commit,
    checkpoint: &mut u64,
    bound: u64,
) {
    let start = Instant::now();
    while last.total_bytes > bound {
        assert!(start.elapsed() < Duration::from_secs(60), "{} bytes stay, more than {bound}", last.total_bytes);
        tokio::time::sleep(Duration::from_millis(20)).await;
        *checkpoint += 1;
        let next = commit(&**store, *checkpoint).await;
        store.upkeep(*checkpoint);
        stores.release(&std::mem::replace(last, next).version).await.unwrap();
    }
}

/// The bound of docs/design.md: expired rows are less than a share of what is stored, without a read or a write.
#[test]
fn stored_bytes_fall_when_input_stops() {
    run(async {
        let directory = TempDir::new().unwrap();
        let config = quick();
        let share = config.compaction.expired_share;
        let stores = stores(&directory, config);
        let store = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        let mut expiry = Expiry::new(ExpiryClock::At(0));
        expiry.set(
            state("ttl."),
            Some(ExpiryRule { ttl_ms: 1_000_000, value: RowValue::Whole, timestamp_at: 0, stay_ms: None }),
        );
        store.set_expiry(expiry.clone());
        write(&*store, "ttl.", 0..ROWS, |i| i * 100).await;
        write(&*store, "none", 0..ROWS / 10, |i| i).await;
        let mut checkpoint = 1;
        let mut last = commit(&*store, checkpoint).await;
        let first = last.total_bytes;
        let row = first / (ROWS + ROWS / 10) as u64;
        // A quarter, then three quarters, then all.
        for expired in [ROWS / 4, ROWS / 4 * 3, ROWS] {
            // The notes are as fine as a sixteenth of the time to live, rounded up to a power of two.
            expiry.clock = ExpiryClock::At(1_000_000 + expired * 100 + 65_536);
            store.set_expiry(expiry.clone());
            let live = (ROWS - expired + ROWS / 10) as u64 * row;
            let bound = (live as f64 / (1.0 - share)) as u64 + 64 * 1024;
            until_stored(&stores, &store, &mut last, &mut checkpoint, bound).await;
            let rows = rows(&*store).await.len();
            let most = (ROWS - expired + ROWS / 10) as usize;
            assert!(rows <= most && rows + 700 > most, "{rows} rows are left of {most}");
            println!("{expired} of {ROWS} rows expired: {} bytes of {first} stay, live {live}", last.total_bytes);
        }
        assert_eq!(rows(&*store).await.len(), (ROWS / 10) as usize);
        // And the files go, once no version needs them.
        let bound = 3 * (ROWS / 10) as u64 * row;
        let start = Instant::now();
        while disk_bytes(directory.path()) > bound {
            assert!(start.elapsed() < Duration::from_secs(60), "{} bytes on disk", disk_bytes(directory.path()));
            tokio::time::sleep(Duration::from_millis(50)).await;
            checkpoint += 1;
            let next = commit(&*store, checkpoint).await;
            store.upkeep(checkpoint);
            stores.release(&std::mem::replace(&mut last, next).version).await.unwrap();
        }
        store.close().await.unwrap();
    });
}

/// A state that is a small part of what is stored never reaches the share; its rule says how long a row may stay.
#[test]
fn rows_leave_in_time_though_they_are_few() {
    run(async {
        let directory = TempDir::new().unwrap();
        let stores = stores(&directory, quick());
        let store = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        let mut expiry = Expiry::new(ExpiryClock::At(0));
        expiry.set(
            state("ttl."),
            Some(ExpiryRule { ttl_ms: 1_600, value: RowValue::Whole, timestamp_at: 0, stay_ms: Some(1_000) }),
        );
        store.set_expiry(expiry.clone());
        write(&*store, "none", 0..ROWS, |i| i).await;
        write(&*store, "ttl.", 0..100, |_| 0).await;
        let mut checkpoint = 1;
        let mut last = commit(&*store, checkpoint).await;
        let all = rows(&*store).await.len();
        assert_eq!(all, ROWS as usize + 100);
        expiry.clock = ExpiryClock::At(2_500);
        store.set_expiry(expiry.clone());
        for _ in 0..25 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            checkpoint += 1;
            let next = commit(&*store, checkpoint).await;
            stores.release(&std::mem::replace(&mut last, next).version).await.unwrap();
        }
        expiry.clock = ExpiryClock::At(2_728);
        store.set_expiry(expiry.clone());
        let bound = last.total_bytes - 100 * 100;
        until_stored(&stores, &store, &mut last, &mut checkpoint, bound).await;
        assert_eq!(rows(&*store).await.len(), ROWS as usize);
        store.close().await.unwrap();
    });
}

/// Rows that came with a restored version leave too, though nothing is known of the files that they came in.
#[test]
fn restored_rows_leave() {
    run(async {
        let directory = TempDir::new().unwrap();
        let stores = stores(&directory, quick());
        let parent = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        write(&*parent, "ttl.", 0..ROWS, |i| i).await;
        let version = commit(&*parent, 1).await;
        parent.close().await.unwrap();
        let store = stores.open(&branch("job/op/0/b"), ALL, &[whole(&version)], 1).await.unwrap();
        let mut expiry = Expiry::new(ExpiryClock::Wall { behind_ms: 100 });
        expiry.set(
            state("ttl."),
            Some(ExpiryRule { ttl_ms: 200, value: RowValue::Whole, timestamp_at: 0, stay_ms: None }),
        );
        store.set_expiry(expiry);
        let mut checkpoint = 2;
        let mut last = commit(&*store, checkpoint).await;
        until_stored(&stores, &store, &mut last, &mut checkpoint, 64 * 1024).await;
        assert_eq!(rows(&*store).await.len(), 0);
        let held = rows(&*stores.open_read_only(&whole(&version)).await.unwrap()).await;
        assert_eq!(held.len(), ROWS as usize, "the version that was restored is as it was");
        store.close().await.unwrap();
    });
}
