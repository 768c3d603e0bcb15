//! What versions cost: a commit after so many written rows, opening a branch at one version (a clone, as a restore does),
//! at a half of it (a split), and at the two halves of a rescaled operator (a union). By the clock, files on local disk.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use weir_store::{BranchName, KeyGroupRange, Row, Source, StateStore, Stores, VersionRef};
use weir_store_slatedb::{SlateConfig, SlateStores};

const ROWS: u64 = 100_000;
const ALL: KeyGroupRange = KeyGroupRange { first: 0, last: 127 };
const LOWER: KeyGroupRange = KeyGroupRange { first: 0, last: 63 };
const UPPER: KeyGroupRange = KeyGroupRange { first: 64, last: 127 };

struct Bench {
    runtime: Runtime,
    stores: SlateStores,
    openings: Cell<u64>,
    checkpoints: Cell<u64>,
    _directory: TempDir,
}

impl Bench {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let directory = TempDir::new().unwrap();
        let url = format!("file://{}", directory.path().display());
        let stores = runtime.block_on(async { SlateStores::new(&url, SlateConfig::default()).unwrap() });
        Self { runtime, stores, openings: Cell::new(0), checkpoints: Cell::new(0), _directory: directory }
    }

    /// A branch of its own for every call; nothing that an earlier one left is reaped.
    fn open(&self, range: KeyGroupRange, sources: &[Source]) -> Arc<dyn StateStore> {
        self.openings.set(self.openings.get() + 1);
        let branch = BranchName::parse(&format!("bench/operator-{}/0/attempt", self.openings.get())).unwrap();
        let restored = if sources.is_empty() { 0 } else { u64::MAX };
        self.runtime.block_on(self.stores.open(&branch, range, sources, restored)).unwrap()
    }

    /// Writes rows of 16 B keys and 100 B values, sorted, in batches of 1000.
    fn write(&self, store: &dyn StateStore, range: KeyGroupRange, rows: u64, seed: u64) {
        let groups = u64::from(range.last - range.first) + 1;
        let mut batch: Vec<Row> = (0..rows)
            .map(|i| {
                let group = range.first + (i % groups) as u16;
                let key = [&group.to_be_bytes()[..], &[0, 0, 0, 1, 1, 0], &i.to_be_bytes()].concat();
                Row { key: key.into(), value: Some(Bytes::from(vec![(i ^ seed) as u8; 100])) }
            })
            .collect();
        batch.sort_by(|a, b| a.key.cmp(&b.key));
        for batch in batch.chunks(1000) {
            self.runtime.block_on(store.write(batch.to_vec())).unwrap();
        }
    }

    fn commit(&self, store: &dyn StateStore) -> VersionRef {
        self.checkpoints.set(self.checkpoints.get() + 1);
        let checkpoint = self.checkpoints.get();
        let commit = self.runtime.block_on(async { store.begin_commit(checkpoint).await.unwrap().await.unwrap() });
        commit.version
    }

    fn version(&self, range: KeyGroupRange) -> VersionRef {
        let store = self.open(range, &[]);
        self.write(&*store, range, ROWS, 0);
        let version = self.commit(&*store);
        self.runtime.block_on(store.close()).unwrap();
        version
    }

    /// Time of opening a branch; closing it is not counted.
    fn time_open(&self, range: KeyGroupRange, sources: &[Source]) -> Duration {
        let began = Instant::now();
        let store = self.open(range, sources);
        let took = began.elapsed();
        self.runtime.block_on(store.close()).unwrap();
        took
    }
}

fn commits(c: &mut Criterion) {
    let bench = Bench::new();
    let mut group = c.benchmark_group("commit");
    for rows in [1_000, 10_000, 100_000] {
        let store = bench.open(ALL, &[]);
        bench.write(&*store, ALL, ROWS, 0);
        let mut last = bench.commit(&*store);
        group.bench_function(format!("after_{rows}_rows"), |b| {
            b.iter_custom(|rounds| {
                let mut took = Duration::ZERO;
                for round in 0..rounds {
                    bench.write(&*store, ALL, rows, round);
                    let began = Instant::now();
                    let next = bench.commit(&*store);
                    took += began.elapsed();
                    bench.runtime.block_on(bench.stores.release(&std::mem::replace(&mut last, next))).unwrap();
                }
                took
            });
        });
        bench.runtime.block_on(store.close()).unwrap();
    }
    group.finish();
}

fn openings(c: &mut Criterion) {
    let bench = Bench::new();
    let whole = bench.version(ALL);
    let (lower, upper) = (bench.version(LOWER), bench.version(UPPER));
    let clone = [Source { version: whole.clone(), range: ALL }];
    let half = [Source { version: whole, range: LOWER }];
    let union = [Source { version: lower, range: LOWER }, Source { version: upper, range: UPPER }];
    let mut group = c.benchmark_group("open");
    for (name, range, sources) in
        [("fresh", ALL, &[][..]), ("clone", ALL, &clone), ("split", LOWER, &half), ("union", ALL, &union)]
    {
        group.bench_function(name, |b| {
            b.iter_custom(|rounds| (0..rounds).map(|_| bench.time_open(range, sources)).sum());
        });
    }
    group.finish();
}

fn short() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500))
        .without_plots()
}

criterion_group!(name = benches; config = short(); targets = commits, openings);
criterion_main!(benches);
