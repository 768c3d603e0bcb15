//! With one replica a server that crashes loses rows that it had acknowledged. The loss is provoked, then grown over by new
//! writes; it is seen by the attempt that runs, and by whoever restores.

mod common;

use std::time::{Duration, Instant};

use common::{config, error_of};
use fluss::client::FlussConnection;
use fluss::config::Config;
use fluss::metadata::{TableBucket, TablePath};
use weir_fluss_cluster::{Cluster, Options};
use weir_store::promises::{ALL, branch, commit, key, put, run, whole};
use weir_store::{ErrorKind, Result, Row, Stores};
use weir_store_fluss::{FlussConfig, FlussStores};

/// The servers that lead the buckets of a table.
async fn leaders(config: &FlussConfig, table: &str) -> Vec<i32> {
    let client = Config { bootstrap_servers: config.bootstrap_servers.clone(), ..Config::default() };
    let connection = FlussConnection::new(client).await.unwrap();
    let path = TablePath::new(config.database.clone(), table);
    let info = connection.get_admin().unwrap().get_table_info(&path).await.unwrap();
    connection.get_metadata().update_table_metadata(&path).await.unwrap();
    let cluster = connection.get_metadata().get_cluster();
    let leader = |bucket| cluster.leader_for(&TableBucket::new(info.get_table_id(), bucket)).unwrap().id();
    (0..info.get_num_buckets()).map(leader).collect()
}

/// What a call says once the servers answer again.
async fn until_answered<T>(mut call: impl AsyncFnMut() -> Result<T>) -> (ErrorKind, String) {
    let began = Instant::now();
    loop {
        let (kind, message) = error_of(call().await);
        if kind != ErrorKind::Unavailable || began.elapsed() > Duration::from_secs(120) {
            return (kind, message);
        }
    }
}

fn rows_of(value: &str, count: u16) -> Vec<Row> {
    (0..128u16)
        .flat_map(|group| (0..count).map(move |at| (group, at)))
        .map(|(group, at)| put(group, &format!("{at:03}"), value))
        .collect()
}

#[test]
fn lost_rows_are_missed_also_after_the_log_has_grown_over_them() {
    let settings = [
        // Its crash then loses all that came since it began.
        "log.replica.high-watermark.checkpoint-interval=1h",
        "log.replica.min-in-sync-replicas-number=1",
    ];
    let cluster =
        Cluster::start(Options { tablets: 3, settings: settings.map(str::to_owned).into(), ..Options::default() });
    run(async {
        let config = FlussConfig { timeout: Duration::from_secs(8), ..config(&cluster, "loss") };
        let stores = FlussStores::new(config.clone());
        let store = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        store.write(rows_of("first", 4)).await.unwrap();
        let version = commit(&*store, 1).await;
        store.write(rows_of("second", 2)).await.unwrap();

        // The crash of a server that has rows, and not the control table: the version is still known.
        let control = leaders(&config, "weir-control").await[0];
        let victim = leaders(&config, "job__op").await.into_iter().find(|leader| *leader != control);
        let victim = format!("tablet-{}", victim.expect("two buckets lie on two servers"));
        cluster.kill(&victim);
        cluster.restart(&victim);

        let keys: Vec<_> = (0..128u16).map(|group| key(group, "000")).collect();
        for grown in [false, true] {
            let lost = |(kind, message): (ErrorKind, String)| {
                assert_eq!(kind, ErrorKind::Corrupt, "grown over: {grown}; {message}");
                assert!(message.contains("has lost rows") && message.contains("job__op"), "{message}");
            };
            lost(until_answered(|| store.get_many(&keys)).await);
            let sources = [whole(&version)];
            let fresh = FlussStores::new(config.clone());
            let name = branch(&format!("job/op/2/restored-{grown}"));
            lost(until_answered(|| fresh.open(&name, ALL, &sources, 1)).await);
            lost(until_answered(|| fresh.open_read_only(&sources[0])).await);
            if !grown {
                // By another subtask, in the same buckets, with more rows than were lost.
                // At checkpoint 1, so that it does not take the version for one that came after its own.
                let other = fresh.open(&branch("job/op/1/b"), ALL, &[], 1).await.unwrap();
                other.write(rows_of("grown", 16)).await.unwrap();
                commit(&*other, 1).await;
            }
        }
        let committed = async { store.begin_commit(2).await?.await };
        let (kind, message) = error_of(committed.await);
        assert!(matches!(kind, ErrorKind::Corrupt | ErrorKind::Fenced), "{message}");
    });
}
