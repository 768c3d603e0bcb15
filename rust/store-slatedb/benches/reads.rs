//! What a get costs on one file, and after 200 checkpoints of 10,000 rows: merging must keep up with commits.
//!
//! Prints the ratio, which is to stay below 2. Warm: the block cache holds everything.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::Criterion;
use futures::FutureExt;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use weir_store::{BranchName, KeyGroupRange, PageLimit, Row, StateStore, Stores};
use weir_store_slatedb::{BlockCache, SlateConfig, SlateStores};

const ROWS: u64 = 500_000;
const CHECKPOINTS: u64 = 200;
const ROWS_A_CHECKPOINT: u64 = 10_000;
const GETS: u64 = 200_000;

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn key(i: u64) -> Bytes {
    let hash = mix(i);
    [&(hash as u16 % 128).to_be_bytes()[..], &hash.to_be_bytes(), &i.to_be_bytes()].concat().into()
}

fn write(runtime: &Runtime, store: &dyn StateStore, ids: impl Iterator<Item = u64>, seed: u8) {
    let mut rows: Vec<Row> = ids.map(|i| Row { key: key(i), value: Some(vec![seed ^ i as u8; 100].into()) }).collect();
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    rows.dedup_by(|a, b| a.key == b.key);
    for batch in rows.chunks(1000) {
        runtime.block_on(store.write(batch.to_vec())).unwrap();
    }
}

fn commit(runtime: &Runtime, store: &dyn StateStore, checkpoint: u64) -> weir_store::Commit {
    runtime.block_on(async { store.begin_commit(checkpoint).await.unwrap().await.unwrap() })
}

/// Nanoseconds that this thread has been on a core: on a shared machine the time to trust.
fn thread_cpu_nanos() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
}

/// Mean nanoseconds, on a core, of a get that is polled once.
fn time_gets(runtime: &Runtime, store: &dyn StateStore) -> f64 {
    let get = |i: u64| {
        let key = [key(mix(i ^ 77) % ROWS)];
        match store.get_many(&key).now_or_never() {
            Some(value) => (value.unwrap(), 0),
            None => (runtime.block_on(store.get_many(&key)).unwrap(), 1),
        }
    };
    // One pass brings every block into the cache, and leaves merging little time to catch up.
    let mut after: Option<Bytes> = None;
    loop {
        let limit = PageLimit { rows: 10_000, bytes: usize::MAX };
        let page = runtime.block_on(store.scan(&[], after.as_deref(), limit)).unwrap();
        after = page.rows.last().map(|(key, _)| key.clone());
        if page.done {
            break;
        }
    }
    let (start, start_cpu) = (Instant::now(), thread_cpu_nanos());
    let mut waited = 0;
    for i in 0..GETS {
        let (value, pending) = get(i);
        assert!(black_box(value)[0].is_some());
        waited += pending;
    }
    let cpu = (thread_cpu_nanos() - start_cpu) as f64 / GETS as f64;
    let wall = start.elapsed().as_nanos() as f64 / GETS as f64;
    println!("  {cpu:.0} ns of CPU a get, {wall:.0} ns by the clock; {waited} of {GETS} had to wait");
    cpu
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let directory = TempDir::new().unwrap();
    let url = format!("file://{}", directory.path().display());
    let config =
        SlateConfig { write_buffer_bytes: 256 << 20, block_cache: BlockCache::new(1 << 30), ..SlateConfig::default() };
    let stores = runtime.block_on(async { SlateStores::new(&url, config).unwrap() });
    let open = |path: &str| -> Arc<dyn StateStore> {
        let range = KeyGroupRange::new(0, 127);
        runtime.block_on(stores.open(&BranchName::parse(path).unwrap(), range, &[], 0)).unwrap()
    };

    let one = open("bench/op/0/one-file");
    write(&runtime, &*one, 0..ROWS, 0);
    commit(&runtime, &*one, 1);
    println!("one file of {ROWS} rows of 118 bytes:");
    let of_one = time_gets(&runtime, &*one);

    let many = open("bench/op/1/many-commits");
    write(&runtime, &*many, 0..ROWS, 0);
    let mut last = commit(&runtime, &*many, 1);
    let mut slowest = Duration::ZERO;
    let start = Instant::now();
    for checkpoint in 2..2 + CHECKPOINTS {
        write(&runtime, &*many, (0..ROWS_A_CHECKPOINT).map(|i| mix(checkpoint << 32 | i) % ROWS), checkpoint as u8);
        let begun = Instant::now();
        let next = commit(&runtime, &*many, checkpoint);
        slowest = slowest.max(begun.elapsed());
        runtime.block_on(stores.release(&std::mem::replace(&mut last, next).version)).unwrap();
        many.upkeep(checkpoint);
    }
    let took = start.elapsed().as_secs_f64();
    println!("{CHECKPOINTS} checkpoints of {ROWS_A_CHECKPOINT} rows took {took:.1} s, the slowest commit {slowest:?}");
    println!("at once after them:");
    let at_once = time_gets(&runtime, &*many);
    std::thread::sleep(Duration::from_secs(15));
    println!("15 s later:");
    let later = time_gets(&runtime, &*many);
    println!("ratio to one file, by CPU: {:.2} at once, {:.2} later", at_once / of_one, later / of_one);

    let mut criterion = Criterion::default().configure_from_args().sample_size(20);
    for (name, store) in [("get/one_file", &one), ("get/after_200_checkpoints", &many)] {
        let mut i = 0;
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| {
                i += 1;
                let key = [key(mix(i ^ 77) % ROWS)];
                match store.get_many(&key).now_or_never() {
                    Some(value) => value.unwrap(),
                    None => runtime.block_on(store.get_many(&key)).unwrap(),
                }
            });
        });
    }
    criterion.final_summary();
    runtime.block_on(async {
        one.close().await.unwrap();
        many.close().await.unwrap();
    });
}
