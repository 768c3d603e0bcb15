//! A running branch keeps itself small, frequent commits do not stall it, and many branches share one process.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use tempfile::TempDir;
use weir_store::promises::{ALL, branch, commit, get, key, put, rows, run, whole};
use weir_store::{Commit, Row, StateStore, Stores};
use weir_store_slatedb::{BlockCache, CompactionPolicy, SlateConfig, SlateStores};

/// The tests of this file count what the process holds, or what the disk does: one at a time.
fn alone() -> impl Drop {
    static ONE_AT_A_TIME: parking_lot::Mutex<()> = parking_lot::Mutex::new(());
    ONE_AT_A_TIME.lock()
}

fn stores(directory: &TempDir, config: SlateConfig) -> Arc<dyn Stores> {
    let url = format!("file://{}", directory.path().display());
    Arc::new(SlateStores::new(&url, config).unwrap())
}

/// Bytes of all files under a directory.
fn disk_bytes(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => disk_bytes(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn row(i: u64, value: u8) -> Row {
    let group = (mix(i) % 128) as u16;
    Row { key: key(group, &format!("{i:08}")), value: Some(vec![value; 100].into()) }
}

async fn write(store: &dyn StateStore, ids: impl Iterator<Item = u64>, value: u8) {
    let mut batch: Vec<Row> = ids.map(|i| row(i, value)).collect();
    batch.sort_by(|a, b| a.key.cmp(&b.key));
    batch.dedup_by(|a, b| a.key == b.key);
    for batch in batch.chunks(1000) {
        store.write(batch.to_vec()).await.unwrap();
    }
}

/// Commits, and releases the version before.
async fn replace(stores: &Arc<dyn Stores>, store: &dyn StateStore, checkpoint: u64, last: &mut Option<Commit>) {
    let next = commit(store, checkpoint).await;
    if let Some(before) = last.replace(next) {
        stores.release(&before.version).await.unwrap();
    }
    store.upkeep(checkpoint);
}

async fn until(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn store_holds_what_the_last_version_needs() {
    let _alone = alone();
    run(async {
        let directory = TempDir::new().unwrap();
        let min_age = Duration::from_millis(500);
        let config = SlateConfig {
            gc_min_age: min_age,
            compaction_poll: Duration::from_millis(100),
            fsync: false,
            ..SlateConfig::default()
        };
        let stores = stores(&directory, config);
        let store = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        write(&*store, 0..20_000, 0).await;
        let mut last = None;
        for checkpoint in 1..=100 {
            write(&*store, (0..2_000).map(|i| mix(checkpoint << 32 | i) % 20_000), checkpoint as u8).await;
            replace(&stores, &*store, checkpoint, &mut last).await;
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        let live = 20_000 * 112u64;
        let at_once = disk_bytes(directory.path());
        // Quiet, but for the checkpoints that go on.
        let mut checkpoint = 100;
        let start = Instant::now();
        let mut most = u64::MAX;
        let needed = |last: &Option<Commit>| last.as_ref().map_or(0, |version| version.total_bytes);
        while (most > 3 * live || needed(&last) > 2 * live) && start.elapsed() < Duration::from_secs(60) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            checkpoint += 1;
            write(&*store, checkpoint..checkpoint + 1, 0).await;
            replace(&stores, &*store, checkpoint, &mut last).await;
            most = disk_bytes(directory.path());
        }
        let version = last.unwrap();
        println!(
            "live {live} bytes; the last version needs {}; on disk {at_once} after 100 commits, {most} when quiet",
            version.total_bytes
        );
        assert!(version.total_bytes <= live * 2, "the version needs {} bytes", version.total_bytes);
        assert!(most <= live * 3, "{most} bytes on disk for {live} live ones");
        assert_eq!(rows(&*store).await.len(), 20_000);
        store.close().await.unwrap();
        stores.release(&version.version).await.unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "no folder is left behind");
    });
}

#[test]
fn frequent_commits_do_not_stall() {
    let _alone = alone();
    run(async {
        let directory = TempDir::new().unwrap();
        let stores = stores(&directory, SlateConfig::default());
        let store = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        let mut last = None;
        let mut slowest = Duration::ZERO;
        let start = Instant::now();
        for checkpoint in 1..=200 {
            write(&*store, (0..2_000).map(|i| mix(checkpoint << 32 | i) % 100_000), checkpoint as u8).await;
            let begun = Instant::now();
            replace(&stores, &*store, checkpoint, &mut last).await;
            slowest = slowest.max(begun.elapsed());
        }
        println!("200 commits of 2000 rows: {:?}, the slowest {slowest:?}", start.elapsed());
        assert!(slowest < Duration::from_secs(5), "a commit took {slowest:?}");
        store.close().await.unwrap();
    });
}

#[test]
fn parent_is_let_go_when_its_rows_are_rewritten() {
    let _alone = alone();
    run(async {
        let directory = TempDir::new().unwrap();
        let config = SlateConfig {
            gc_min_age: Duration::from_millis(300),
            compaction_poll: Duration::from_millis(100),
            compaction: CompactionPolicy { adopt_after: Duration::from_millis(500), ..CompactionPolicy::default() },
            fsync: false,
            ..SlateConfig::default()
        };
        let stores = stores(&directory, config);
        let parent = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        write(&*parent, 0..20_000, 1).await;
        let version = commit(&*parent, 1).await;
        parent.close().await.unwrap();
        let child = stores.open(&branch("job/op/0/b"), ALL, &[whole(&version)], 1).await.unwrap();
        stores.release(&version.version).await.unwrap();
        let parent_folder = directory.path().join("branches/job/op/0/a");
        assert!(parent_folder.exists());
        // The child changes other rows only: merging alone would never touch the parent's.
        let mut last = None;
        let start = Instant::now();
        for checkpoint in 2.. {
            write(&*child, 30_000 + checkpoint..30_001 + checkpoint, 2).await;
            replace(&stores, &*child, checkpoint, &mut last).await;
            if !parent_folder.exists() {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "the parent stays");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        println!("the parent went after {:?}", start.elapsed());
        assert_eq!(get(&*child, row(7, 0).key).await, row(7, 1).value);
        assert!(rows(&*child).await.len() > 20_000);
        // A version of the child from before would have kept the parent; the last one is whole without it.
        let version = last.unwrap();
        child.close().await.unwrap();
        let reader = stores.open_read_only(&whole(&version)).await.unwrap();
        assert_eq!(get(&*reader, row(19_999, 0).key).await, row(19_999, 1).value);
    });
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.count())
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count())
}

#[test]
fn forty_branches_share_threads_and_files() {
    let _alone = alone();
    // As in the task manager: file I/O runs on Tokio's blocking threads, and the runtime bounds them.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(16)
        .enable_all()
        .build()
        .unwrap();
    let idle = threads();
    runtime.block_on(async {
        let directory = TempDir::new().unwrap();
        let config = SlateConfig { block_cache: BlockCache::new(32 << 20), fsync: false, ..SlateConfig::default() };
        let stores = stores(&directory, config);
        let before = (threads(), open_files());
        let mut opened = Vec::new();
        for i in 0..40 {
            opened.push(stores.open(&branch(&format!("job/op{i}/0/a")), ALL, &[], 0).await.unwrap());
        }
        let mut most = (0, 0);
        for checkpoint in 1..=5 {
            for store in &opened {
                write(&**store, 0..500, checkpoint as u8).await;
            }
            let commits = futures::future::join_all(opened.iter().map(|store| commit(&**store, checkpoint))).await;
            assert_eq!(commits.len(), 40);
            most = (most.0.max(threads()), most.1.max(open_files()));
            for store in &opened {
                store.upkeep(checkpoint);
            }
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let quiet = (threads(), open_files());
        println!("threads and open files: {before:?} before, at most {most:?} with 40 branches, {quiet:?} quiet");
        // 16 of the runtime, and the test harness's own, which come and go.
        assert!(most.0.max(quiet.0) <= idle + 16 + 4, "a branch has no thread of its own");
        assert!(quiet.1 <= before.1 + 10, "a quiet branch holds no file open");
        for store in &opened {
            assert_eq!(get(&**store, row(1, 0).key).await, row(1, 5).value);
        }
        futures::future::join_all(opened.iter().map(|store| store.close())).await;
    });
}

#[test]
fn warm_get_is_ready_at_once() {
    let _alone = alone();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let directory = TempDir::new().unwrap();
    let store = runtime.block_on(async {
        let stores = stores(&directory, SlateConfig::default());
        let store = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        write(&*store, 0..5_000, 1).await;
        commit(&*store, 1).await;
        store.write(vec![put(1, "written", "only")]).await.unwrap();
        rows(&*store).await;
        let keys: Vec<Bytes> = (0..5_000).map(|i| row(i, 0).key).collect();
        store.get_many(&keys).await.unwrap();
        store
    });
    // From a thread that is not of the runtime.
    for i in 0..5_000 {
        let value = store.get_many(&[row(i, 0).key]).now_or_never().expect("a warm get waits").unwrap();
        assert_eq!(value, [row(i, 1).value]);
    }
    for key in [key(1, "written"), key(1, "absent")] {
        store.get_many(&[key]).now_or_never().expect("a get of what is in memory, or nowhere, waits").unwrap();
    }
    runtime.block_on(store.close()).unwrap();
}

#[test]
fn reads_during_merging_are_exact() {
    let _alone = alone();
    run(async {
        let directory = TempDir::new().unwrap();
        let config = SlateConfig {
            gc_min_age: Duration::from_millis(500),
            compaction_poll: Duration::from_millis(50),
            fsync: false,
            ..SlateConfig::default()
        };
        let stores = stores(&directory, config);
        let store = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        let mut last = None;
        let mut expected = vec![0u8; 3_000];
        for checkpoint in 1..=60u64 {
            let changed: Vec<u64> = (0..500).map(|i| mix(checkpoint << 32 | i) % 3_000).collect();
            for i in &changed {
                expected[*i as usize] = checkpoint as u8;
            }
            write(&*store, changed.into_iter(), checkpoint as u8).await;
            replace(&stores, &*store, checkpoint, &mut last).await;
            for i in 0..50 {
                let i = mix(checkpoint << 40 | i) % 3_000;
                let value = get(&*store, row(i, 0).key).await;
                let wanted = expected[i as usize];
                assert_eq!(value.map(|value| value[0]), (wanted != 0).then_some(wanted));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let all = rows(&*store).await;
        assert_eq!(all.len(), expected.iter().filter(|value| **value != 0).count());
        until("merged", Duration::from_secs(60), || {
            store.upkeep(60);
            disk_bytes(directory.path()) < 3_000_000
        })
        .await;
        store.close().await.unwrap();
    });
}
