//! An attempt that was replaced goes on writing, deleting, committing and purging: none of it may show in its successor.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{Oracle, change, config, kind_of};
use weir_fluss_cluster::{Cluster, Options};
use weir_store::promises::{ALL, branch, clipped, commit, delete, put, rows, run, whole};
use weir_store::{Commit, ErrorKind, KeyGroupRange, PageLimit, Row, StateStore, Stores};
use weir_store_fluss::{FlussConfig, FlussStores};

/// Whatever the zombie can still do to the keys of its successor, and to keys that nobody had. Whether its commit is
/// refused.
async fn haunt(zombie: &Arc<dyn StateStore>, round: u64) -> bool {
    let batch: Vec<Row> = (0..20u16)
        .flat_map(|group| {
            let value = format!("zombie {round}");
            [put(group, &format!("first {round}"), &value), delete(group, "gone"), put(group, "row", &value)]
        })
        .collect();
    zombie.write(batch).await.expect("nothing keeps a zombie from writing rows of its own");
    let refused = match zombie.begin_commit(100 + round).await {
        Ok(pending) => pending.await.err().map(|error| error.kind()),
        Err(error) => Some(error.kind()),
    };
    zombie.upkeep(100 + round);
    assert!(matches!(refused, None | Some(ErrorKind::Fenced)), "{refused:?}");
    refused.is_some()
}

#[test]
fn a_zombie_shows_nowhere() {
    let cluster = Cluster::shared();
    run(async {
        let config = config(&cluster, "zombies");
        // Two processes: nothing of what one remembers helps the other.
        let (old, new) = (FlussStores::new(config.clone()), FlussStores::new(config));
        let mut oracle = BTreeMap::new();
        let zombie = old.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        let batch: Vec<Row> = (0..20u16).flat_map(|group| [put(group, "gone", "1"), put(group, "row", "1")]).collect();
        zombie.write(change(&mut oracle, &batch)).await.unwrap();
        let restored = commit(&*zombie, 1).await;
        assert!(!haunt(&zombie, 1).await, "nobody has replaced it yet");

        // During the opening, at whatever point of it.
        let (name, sources) = (branch("job/op/0/b"), [whole(&restored)]);
        let (_, store) = tokio::join!(haunt(&zombie, 2), new.open(&name, ALL, &sources, 1));
        let store = store.unwrap();
        assert_eq!(rows(&*store).await, oracle, "right after the restore");
        assert!(haunt(&zombie, 3).await, "its pin is gone");
        assert_eq!(rows(&*store).await, oracle, "written to after the restore");

        let mut versions = Vec::new();
        for checkpoint in 2..=4 {
            // Some keys are overwritten, some deleted, some stay as they were restored.
            let value = format!("{checkpoint}");
            let group = checkpoint as u16 * 4;
            let batch = [put(group, "new", &value), put(group, "row", &value), delete(group + 1, "row")];
            store.write(change(&mut oracle, &batch)).await.unwrap();
            haunt(&zombie, checkpoint * 10).await;
            let (_, version) = tokio::join!(haunt(&zombie, checkpoint * 10 + 1), commit(&*store, checkpoint));
            versions.push((version, oracle.clone()));
            store.upkeep(checkpoint);
            haunt(&zombie, checkpoint * 10 + 2).await;
            assert_eq!(rows(&*store).await, oracle, "after checkpoint {checkpoint}");
        }
        // Each checkpoint, opened by two at once while the zombie lives.
        for (version, oracle) in &versions {
            // Forks: two jobs that go on from it.
            let names = ["fork1", "fork2"].map(|job| branch(&format!("{job}/op/0/{}", version.version.version)));
            let sources = [whole(version)];
            let stores = FlussStores::clone(&old);
            let (_, first, second) = tokio::join!(
                haunt(&zombie, 90),
                new.open(&names[0], ALL, &sources, 1000),
                stores.open(&names[1], ALL, &sources, 1000)
            );
            let (first, second) = (first.unwrap(), second.unwrap());
            first.write(vec![put(1, "row", "first")]).await.unwrap();
            assert_eq!(rows(&*second).await, *oracle);
            let mut own = oracle.clone();
            change(&mut own, &[put(1, "row", "first")]);
            assert_eq!(rows(&*first).await, own);
            first.close().await.unwrap();
            second.close().await.unwrap();
        }
        zombie.close().await.unwrap();
        store.close().await.unwrap();
        for (version, oracle) in &versions {
            let reader = new.open_read_only(&whole(version)).await.unwrap();
            assert_eq!(rows(&*reader).await, *oracle);
        }
    });
}

/// What a later attempt sees of a version.
async fn restored(stores: &FlussStores, version: &Commit, name: &str) -> Oracle {
    let child = stores.open(&branch(name), ALL, &[whole(version)], 1000).await.expect("a version that is kept");
    let found = rows(&*child).await;
    child.close().await.unwrap();
    found
}

/// Every key is rewritten in each of eight checkpoints that are in flight at once, twice in an epoch. Then some are taken,
/// some given up, some released early.
#[test]
fn eight_checkpoints_in_flight() {
    let cluster = Cluster::shared();
    run(async {
        let configured = config(&cluster, "flight");
        let stores = FlussStores::new(configured.clone());
        let store = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        let mut oracle = Oracle::new();
        let mut pending = Vec::new();
        for checkpoint in 1..=8u64 {
            for turn in 0..2 {
                let value = format!("{checkpoint}.{turn}");
                // A blind delete of a key that is there in every other epoch, and of one that never was.
                let odd = if checkpoint % 2 == 0 { delete(3, "odd") } else { put(3, "odd", &value) };
                let batch = [put(1, "a", &value), delete(1, "never"), odd, put(9, &value, "own")];
                store.write(change(&mut oracle, &batch)).await.unwrap();
            }
            pending.push((store.begin_commit(checkpoint).await.unwrap(), oracle.clone()));
        }
        // 2 and 5 are given up (aborted), the others end in another order than they began.
        let mut versions = Vec::new();
        for (at, (commit, oracle)) in pending.into_iter().enumerate().rev() {
            if at != 1 && at != 4 {
                versions.push((commit.await.unwrap(), oracle));
            }
        }
        // The first one timed out on the JobManager: discarded while the job goes on.
        let (discarded, _) = versions.pop().unwrap();
        stores.release(&discarded.version).await.unwrap();
        for turn in 0..3u64 {
            store
                .write(change(&mut oracle, &[put(1, "a", &format!("after {turn}")), put(3, "odd", "after")]))
                .await
                .unwrap();
            store.upkeep(8 + turn);
            versions.push((commit(&*store, 9 + turn).await, oracle.clone()));
        }
        assert_eq!(rows(&*store).await, oracle);
        // The attempt dies; each version that is kept is restored in another process, the oldest not last.
        for (at, (version, oracle)) in versions.iter().enumerate() {
            let other = FlussStores::new(configured.clone());
            assert_eq!(&restored(&other, version, &format!("x{at}/op/0/b")).await, oracle, "{}", version.version);
        }
        store.close().await.unwrap();
    });
}

/// A reader streams while the versions behind it complete and its own is released.
#[test]
fn a_reader_is_not_disturbed_by_what_comes_later() {
    let cluster = Cluster::shared();
    run(async {
        let configured = config(&cluster, "streams");
        let stores = FlussStores::new(configured.clone());
        let store = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        let mut oracle = Oracle::new();
        let name = |at: u16| format!("{at:03}");
        let batch: Vec<Row> = (0..400).map(|at| put(at / 50, &name(at), "first")).collect();
        store.write(change(&mut oracle, &batch)).await.unwrap();
        let version = commit(&*store, 1).await;
        let reader = stores.open_read_only(&whole(&version)).await.unwrap();
        let mut last = version;
        let mut found = Oracle::new();
        let mut after = None;
        for checkpoint in 2.. {
            let page = reader.scan(
                &[],
                after.as_ref().map(|key: &bytes::Bytes| &key[..]),
                PageLimit { rows: 40, bytes: 1 << 20 },
            );
            let page = page.await.unwrap();
            after = page.rows.last().map(|(key, _)| key.clone());
            found.extend(page.rows);
            if page.done {
                break;
            }
            let rewritten = (0..400)
                .map(|at| if at % 3 == 0 { delete(at / 50, &name(at)) } else { put(at / 50, &name(at), "later") });
            store.write(rewritten.collect()).await.unwrap();
            let next = commit(&*store, checkpoint).await;
            stores.release(&last.version).await.unwrap();
            store.upkeep(checkpoint);
            last = next;
        }
        assert_eq!(found, oracle);
        drop(reader);
        store.close().await.unwrap();
    });
}

/// Attempts that die in the middle of opening, at whatever step, and between a commit and its acknowledgement.
#[test]
fn crashes_in_every_step_leave_the_checkpoint_whole() {
    let cluster = Cluster::shared();
    run(async {
        let configured = config(&cluster, "crashes");
        let stores = FlussStores::new(configured.clone());
        let store = stores.open(&branch("job/op/0/g_1-1"), ALL, &[], 0).await.unwrap();
        let mut oracle = Oracle::new();
        let batch: Vec<Row> = (0..64u16).map(|group| put(group, "row", "1")).collect();
        store.write(change(&mut oracle, &batch)).await.unwrap();
        let version = commit(&*store, 1).await;
        // Committed, and never acknowledged to Flink: the next attempt restores the one before.
        store.write((0..64u16).map(|group| put(group, "row", "lost")).collect()).await.unwrap();
        let unacknowledged = commit(&*store, 2).await;
        let sources = [whole(&version)];
        let mut whole_openings = 0;
        for attempt in 0..24u64 {
            // Later and later, up to openings that end.
            let name = branch(&format!("job/op/0/g_{}-1", attempt + 2));
            let limit = Duration::from_millis(attempt * 4);
            if let Ok(opened) = tokio::time::timeout(limit, stores.open(&name, ALL, &sources, 1)).await {
                let opened = opened.unwrap();
                assert_eq!(rows(&*opened).await, oracle);
                opened.write(vec![put(5, "row", "crashed too"), delete(6, "row")]).await.unwrap();
                whole_openings += 1;
            }
        }
        println!("{whole_openings} openings ended");
        let other = FlussStores::new(configured.clone());
        let last = other.open(&branch("job/op/0/g_99-1"), ALL, &sources, 1).await.unwrap();
        assert_eq!(rows(&*last).await, oracle);
        assert_eq!(kind_of(other.open_read_only(&whole(&unacknowledged)).await), ErrorKind::MissingVersion, "reaped");
        let next = [put(7, "row", "2"), delete(8, "row")];
        last.write(change(&mut oracle, &next)).await.unwrap();
        let version = commit(&*last, 2).await;
        last.close().await.unwrap();
        assert_eq!(restored(&other, &version, "job/op/0/g_100-1").await, oracle);
    });
}

/// Two jobs go on from one version, each is restored again; one of two subtasks is restarted alone.
#[test]
fn forks_and_parts_go_on_alone() {
    let cluster = Cluster::shared();
    run(async {
        let configured = config(&cluster, "forks");
        let stores = FlussStores::new(configured.clone());
        let halves = [KeyGroupRange::new(0, 63), KeyGroupRange::new(64, 127)];
        let mut oracle = Oracle::new();
        let mut running = Vec::new();
        for (subtask, range) in halves.into_iter().enumerate() {
            let store = stores.open(&branch(&format!("job/op/{subtask}-of-2/g_1-1")), range, &[], 0).await.unwrap();
            let batch: Vec<Row> = (range.first..=range.last).map(|group| put(group, "row", "1")).collect();
            store.write(change(&mut oracle, &batch)).await.unwrap();
            let version = commit(&*store, 1).await;
            running.push((store, version, range));
        }
        // Only the second subtask fails: after its checkpoint, with rows that do not count.
        let (failed, version, range) = running.pop().unwrap();
        failed.write(vec![put(100, "row", "lost"), put(101, "new", "lost")]).await.unwrap();
        let name = branch("job/op/1-of-2/g_2-1");
        let restarted = stores.open(&name, range, &[clipped(&version, range)], 1).await.unwrap();
        running.push((restarted, version, range));
        let mut versions = Vec::new();
        for (store, _, range) in &running {
            store.write(change(&mut oracle, &[put(range.first, "row", "2"), delete(range.last, "row")])).await.unwrap();
            versions.push(clipped(&commit(&**store, 2).await, *range));
        }
        // Two jobs from these versions, at once and one after the other, each over several attempts.
        for job in ["left", "right"] {
            let mut own = oracle.clone();
            let mut sources = versions.clone();
            for attempt in 1..=3u64 {
                let name = branch(&format!("{job}/op/0/g_{attempt}-1"));
                let store = stores.open(&name, ALL, &sources, attempt + 1).await.unwrap();
                assert_eq!(rows(&*store).await, own, "{job}, attempt {attempt}");
                let value = format!("{job} {attempt}");
                store
                    .write(change(&mut own, &[put(3, "row", &value), delete(70 + attempt as u16, "row")]))
                    .await
                    .unwrap();
                sources = vec![whole(&commit(&*store, attempt + 2).await)];
                // Not counted.
                store.write(vec![put(3, "row", "late")]).await.unwrap();
            }
        }
        for (store, ..) in running {
            store.close().await.unwrap();
        }
    });
}

/// The server stands still for longer than a write may take; the write arrives when the next attempt is there.
#[test]
fn a_write_that_arrives_late_shows_nowhere() {
    let cluster = Cluster::start(Options::default());
    run(async {
        let config = FlussConfig { timeout: Duration::from_secs(4), ..config(&cluster, "late") };
        let stores = FlussStores::new(config.clone());
        let store = stores.open(&branch("job/op/0/g_1-1"), ALL, &[], 0).await.unwrap();
        let mut oracle = Oracle::new();
        let batch: Vec<Row> = (0..64u16).map(|group| put(group, "row", "1")).collect();
        store.write(change(&mut oracle, &batch)).await.unwrap();
        let version = commit(&*store, 1).await;
        cluster.suspend("tablet-0");
        let late = (0..64u16).flat_map(|group| [put(group, "first", "late"), delete(group, "row")]).collect();
        assert_eq!(kind_of(store.write(late).await), ErrorKind::Unavailable);
        assert_eq!(kind_of(store.begin_commit(2).await), ErrorKind::Unavailable, "the attempt is over");
        cluster.resume("tablet-0");
        let other = FlussStores::new(FlussConfig { timeout: Duration::from_secs(60), ..config });
        let next = other.open(&branch("job/op/0/g_2-1"), ALL, &[whole(&version)], 1).await.unwrap();
        for turn in 0..5 {
            assert_eq!(rows(&*next).await, oracle, "turn {turn}");
            next.write(change(&mut oracle, &[put(1, "turn", &format!("{turn}"))])).await.unwrap();
        }
        let version = commit(&*next, 2).await;
        assert_eq!(restored(&other, &version, "job/op/0/g_3-1").await, oracle);
        next.close().await.unwrap();
    });
}
