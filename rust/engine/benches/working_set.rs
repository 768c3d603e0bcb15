//! The working set: reads and writes that hit, scans of groups, timers, freezes, flushes and evictions. The store keeps nothing,
//! so that what is measured is the engine. Times are those of the task thread on a processor, which other load on the
//! machine disturbs less than the clock on the wall; only `flush_100k` is the pipeline's work and measured by that clock.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BatchSize, Throughput, criterion_group, criterion_main};
use weir_engine::encoding::{sequence_suffix, state_prefix};
use weir_engine::{EngineOptions, KeyedEngine, MemoryBudget};
use weir_store::KeyGroupRange;

#[path = "../tests/common/mod.rs"]
mod common;

use common::{NoStore, map_prefix};

const RANGE: KeyGroupRange = KeyGroupRange { first: 0, last: 127 };
const ROWS: u64 = 1_000_000;

/// Time that this thread was on a processor.
struct ThreadTime;

type Criterion = criterion::Criterion<ThreadTime>;

impl ThreadTime {
    fn now() -> Duration {
        #[repr(C)]
        struct Time {
            seconds: i64,
            nanos: i64,
        }
        unsafe extern "C" {
            fn clock_gettime(clock: i32, time: *mut Time) -> i32;
        }
        const THREAD_CPUTIME: i32 = 3;
        let mut time = Time { seconds: 0, nanos: 0 };
        // SAFETY: `time` is a timespec of 64-bit Linux, and lives through the call.
        assert_eq!(unsafe { clock_gettime(THREAD_CPUTIME, &mut time) }, 0);
        Duration::new(time.seconds as u64, time.nanos as u32)
    }
}

impl Measurement for ThreadTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        Self::now()
    }

    fn end(&self, start: Duration) -> Duration {
        Self::now() - start
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

struct Bench {
    runtime: tokio::runtime::Runtime,
}

impl Bench {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { runtime }
    }

    fn engine(&self, budget: usize, max_dirty: usize) -> Arc<KeyedEngine> {
        let mut options = EngineOptions::new(RANGE);
        options.fresh = true;
        options.max_dirty_bytes = max_dirty;
        KeyedEngine::new(Arc::new(NoStore), options, MemoryBudget::new(budget), self.runtime.handle().clone())
    }
}

/// A row key as BIGINT keys have it, 15 bytes; consecutive numbers are far apart.
fn key(i: u64) -> [u8; 15] {
    let h = i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut key = [1; 15];
    key[..2].copy_from_slice(&((h % 128) as u16).to_be_bytes());
    key[7..].copy_from_slice(&i.to_be_bytes());
    key
}

fn random(i: &mut u64) -> u64 {
    *i = i.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *i >> 33
}

fn points(c: &mut Criterion) {
    let bench = Bench::new();
    let engine = bench.engine(1 << 30, 1 << 30);
    for i in 0..ROWS {
        engine.put(&key(i), &[7; 100]).unwrap();
    }
    let keys: Vec<_> = (0..ROWS).map(key).collect();
    let mut group = c.benchmark_group("points");
    let mut i = 0;
    group.bench_function("get_hot_1k", |b| {
        b.iter(|| {
            i = (i + 7) % 1000;
            engine.get(&keys[i], |value| value.map(|value| value[0])).unwrap()
        })
    });
    let mut state = 1;
    group.bench_function("get_random_1M", |b| {
        b.iter(|| {
            let i = random(&mut state) % ROWS;
            engine.get(&keys[i as usize], |value| value.map(|value| value[0])).unwrap()
        })
    });
    group.bench_function("put_over_hot_1k", |b| {
        b.iter(|| {
            i = (i + 7) % 1000;
            engine.put(&keys[i], &[8; 100]).unwrap();
        })
    });
    group.bench_function("put_over_random_1M", |b| {
        b.iter(|| {
            let i = random(&mut state) % ROWS;
            engine.put(&keys[i as usize], &[8; 100]).unwrap();
        })
    });
    group.bench_function("get_absent", |b| {
        b.iter(|| engine.get(&key(ROWS + random(&mut state)), |value| value.is_none()).unwrap())
    });
    group.throughput(Throughput::Elements(1024));
    group.bench_function("get_many_1024_random", |b| {
        b.iter_batched(
            || (0..1024).map(|_| &keys[(random(&mut state) % ROWS) as usize][..]).collect::<Vec<_>>(),
            |keys| {
                let mut sum = 0;
                engine.get_many(&keys, |_, value| sum += value.map_or(0, |value| u64::from(value[0]))).unwrap();
                sum
            },
            BatchSize::SmallInput,
        )
    });
    group.finish();
    engine.close();
}

fn groups(c: &mut Criterion) {
    let bench = Bench::new();
    let engine = bench.engine(1 << 30, 1 << 30);
    for i in 0..10_000 {
        for j in 0..10_u64 {
            engine.group_put(&map_prefix(i), &[&[1][..], &j.to_be_bytes()].concat(), &[7; 50]).unwrap();
        }
    }
    for j in 0..1000_u64 {
        engine.group_put(&map_prefix(20_000), &[&[1][..], &j.to_be_bytes()].concat(), &[7; 50]).unwrap();
    }
    for j in 0..1_000_000_u64 {
        engine.group_put(&map_prefix(30_000), &[&[1][..], &j.to_be_bytes()].concat(), &[7; 50]).unwrap();
    }
    let mut group = c.benchmark_group("groups");
    let mut state = 1;
    let mut out = Vec::new();
    group.bench_function("scan_10_hot", |b| {
        b.iter(|| {
            out.clear();
            engine.group_page(&map_prefix(random(&mut state) % 100), None, 1 << 20, &mut out).unwrap();
            out.len()
        })
    });
    group.bench_function("scan_10_random", |b| {
        b.iter(|| {
            out.clear();
            engine.group_page(&map_prefix(random(&mut state) % 10_000), None, 1 << 20, &mut out).unwrap();
            out.len()
        })
    });
    group.bench_function("scan_1000", |b| {
        b.iter(|| {
            out.clear();
            engine.group_page(&map_prefix(20_000), None, 1 << 20, &mut out).unwrap();
            out.len()
        })
    });
    for (name, prefix, rows) in [("get_of_10", 7, 10), ("get_of_1000", 20_000, 1000), ("get_of_1M", 30_000, 1_000_000)]
    {
        let prefix = map_prefix(prefix);
        let mut suffix = [1; 9];
        group.bench_function(name, |b| {
            b.iter(|| {
                suffix[1..].copy_from_slice(&(random(&mut state) % rows).to_be_bytes());
                engine.group_get(&prefix, &suffix, |value| value.map(|value| value[0])).unwrap()
            })
        });
    }
    for i in 0..30_000 {
        engine.list_append(&map_prefix(50_000 + i % 1000), &[7; 8]).unwrap();
    }
    group.bench_function("list_values_of_30", |b| {
        b.iter(|| {
            out.clear();
            engine.group_values(&map_prefix(50_000 + random(&mut state) % 1000), 1 << 20, &mut out).unwrap()
        })
    });
    group.bench_function("list_append_and_clear_of_10", |b| {
        let prefix = map_prefix(40_000);
        b.iter(|| {
            for _ in 0..10 {
                engine.list_append(&prefix, &[1; 50]).unwrap();
            }
            engine.group_clear(&prefix).unwrap();
        })
    });
    group.finish();
    engine.close();
}

/// Rows in the shape of timers: a group a key group, whose suffixes are a timestamp and a key, polled in their order.
fn timers(c: &mut Criterion) {
    const QUEUED: u64 = 1_000_000;
    const HORIZON: u64 = 3_600_000;
    let bench = Bench::new();
    let engine = bench.engine(1 << 30, 1 << 30);
    let prefix = |key_group: u16| state_prefix(key_group, 7);
    let add = |now: u64, state: &mut u64| {
        let key = random(state);
        let mut suffix = sequence_suffix(now + 1 + random(state) % HORIZON).to_vec();
        suffix.extend(sequence_suffix(key));
        engine.group_put(&prefix((key % 128) as u16), &suffix, &[]).unwrap();
    };
    let (mut state, mut now) = (1, 0);
    (0..QUEUED).for_each(|_| add(0, &mut state));
    let mut group = c.benchmark_group("timers");
    // The head of every key group, as a queue over them keeps it, a page at a time.
    let mut heads: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 128];
    let mut page = Vec::new();
    group.bench_function("poll_and_add_of_1M", |b| {
        b.iter(|| {
            let key_group = (random(&mut state) % 128) as u16;
            let head = &mut heads[usize::from(key_group)];
            if head.is_empty() {
                page.clear();
                engine.group_page(&prefix(key_group), None, 32 * 26, &mut page).unwrap();
                head.extend(common::parse_page(&page).into_iter().map(|(suffix, _)| suffix).rev());
            }
            if let Some(suffix) = head.pop() {
                engine.group_delete(&prefix(key_group), &suffix).unwrap();
                now += 1;
            }
            add(now + HORIZON, &mut state);
        })
    });
    group.finish();
    engine.close();
}

fn epochs(c: &mut Criterion) {
    const DIRTY: u64 = 100_000;
    let bench = Bench::new();
    let engine = bench.engine(1 << 30, 1 << 30);
    let mut group = c.benchmark_group("epochs");
    let dirty = |round: u64| {
        for i in 0..DIRTY {
            engine.put(&key(i), &[round as u8; 100]).unwrap();
        }
    };
    dirty(0);
    let flushed = |epoch| drop(engine.await_commit(epoch).unwrap());
    group.bench_function("freeze_100k_dirty", |b| {
        b.iter_custom(|rounds| {
            let mut took = Duration::ZERO;
            for round in 0..rounds {
                dirty(round);
                let began = ThreadTime::now();
                let epoch = engine.freeze(round).unwrap();
                took += ThreadTime::now() - began;
                flushed(epoch);
            }
            took
        })
    });
    group.throughput(Throughput::Elements(DIRTY));
    group.bench_function("flush_100k", |b| {
        b.iter_custom(|rounds| {
            let mut took = Duration::ZERO;
            for round in 0..rounds {
                dirty(round);
                let began = Instant::now();
                flushed(engine.freeze(round).unwrap());
                took += began.elapsed();
            }
            took
        })
    });
    // While the flush runs beside it, some of the rows are displaced.
    group.bench_function("overwrite_100k_while_frozen", |b| {
        b.iter_custom(|rounds| {
            let mut took = Duration::ZERO;
            for round in 0..rounds {
                dirty(round);
                let epoch = engine.freeze(round).unwrap();
                let began = ThreadTime::now();
                dirty(round + 1);
                took += ThreadTime::now() - began;
                flushed(epoch);
            }
            took
        })
    });
    group.finish();
    engine.close();
}

fn evictions(c: &mut Criterion) {
    let bench = Bench::new();
    let engine = bench.engine(32 << 20, 8 << 20);
    let mut i = 0;
    let mut put = || {
        i += 1;
        engine.put(&key(i), &[7; 100]).unwrap();
    };
    (0..300_000).for_each(|_| put());
    let mut group = c.benchmark_group("evictions");
    group.bench_function("insert_flush_evict", |b| b.iter(&mut put));
    black_box(engine.stats());
    group.finish();
    engine.close();
}

fn short() -> Criterion {
    criterion::Criterion::default()
        .with_measurement(ThreadTime)
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500))
        .without_plots()
}

criterion_group!(name = benches; config = short(); targets = points, groups, timers, epochs, evictions);
criterion_main!(benches);
