//! An attempt that was replaced goes on writing, deleting, committing and purging: none of it may show in its successor.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weir_fluss_cluster::Cluster;
use weir_store::promises::{ALL, branch, commit, delete, put, rows, run, whole};
use weir_store::{ErrorKind, Row, StateStore, Stores};
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

fn change(oracle: &mut BTreeMap<Bytes, Bytes>, batch: &[Row]) -> Vec<Row> {
    for row in batch {
        match &row.value {
            Some(value) => oracle.insert(row.key.clone(), value.clone()),
            None => oracle.remove(&row.key),
        };
    }
    batch.to_vec()
}

#[test]
fn a_zombie_shows_nowhere() {
    let cluster = Cluster::shared();
    run(async {
        let database = format!("zombies-{}", std::process::id());
        let config = FlussConfig {
            buckets: 2,
            timeout: Duration::from_secs(120),
            ..FlussConfig::new(cluster.bootstrap(), database)
        };
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
