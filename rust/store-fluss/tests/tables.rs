//! A table that cannot hold what exactness needs is refused by name before the first record, and the tables stay as small as
//! what lives in them.

mod common;

use common::{Oracle, change, config, error_of, kind_of};
use fluss::client::FlussConnection;
use fluss::config::Config;
use fluss::metadata::{DataTypes, Schema, TableDescriptor, TableDescriptorBuilder, TablePath};
use weir_fluss_cluster::Cluster;
use weir_store::promises::{ALL, branch, commit, delete, put, rows, run, whole};
use weir_store::{ErrorKind, KeyGroupRange, StateStore, Stores};
use weir_store_fluss::FlussStores;

/// The table of job `job`, operator `op`.
const TABLE: &str = "job__op";

async fn admin_connection(cluster: &Cluster) -> FlussConnection {
    let config = Config { bootstrap_servers: cluster.bootstrap().to_owned(), ..Config::default() };
    FlussConnection::new(config).await.expect("the cluster answers")
}

/// The columns of a table of rows, with the last one named and typed.
fn schema(last: &str, text: bool) -> Schema {
    let key = ["bucket", "key_group", "state", "key1", "key2", "key3", "key4", "key_rest", "generation", "slot"];
    let mut builder = Schema::builder();
    for name in key {
        let number = matches!(name, "bucket" | "key_group" | "slot");
        builder = builder.column(name, if number { DataTypes::int() } else { DataTypes::bytes() });
    }
    builder = builder.column("epoch", DataTypes::bigint());
    builder = builder.column(last, if text { DataTypes::string() } else { DataTypes::bytes() });
    builder.primary_key(key.to_vec()).unwrap().build().unwrap()
}

/// A table as this store makes it.
fn sound(schema: Schema, buckets: i32) -> TableDescriptorBuilder {
    TableDescriptor::builder()
        .schema(schema)
        .distributed_by(Some(buckets), vec!["bucket".to_owned()])
        .property("table.changelog.image", "wal")
        .property("table.kv.format", "COMPACTED")
        .property("table.replication.factor", "1")
}

#[test]
fn what_exactness_needs_is_looked_for_before_the_first_record() {
    let cluster = Cluster::shared();
    run(async {
        let connection = admin_connection(&cluster).await;
        let admin = connection.get_admin().unwrap();
        let normal = || sound(schema("state_value", false), 2);
        let cases: Vec<(&str, TableDescriptorBuilder)> = vec![
            ("table.changelog.image", normal().property("table.changelog.image", "full")),
            ("table.kv.format", normal().property("table.kv.format", "INDEXED")),
            ("table.merge-engine", normal().property("table.merge-engine", "first_row")),
            ("table.delete.behavior", normal().property("table.delete.behavior", "ignore")),
            ("17 buckets", sound(schema("state_value", false), 17)),
            ("its columns are", sound(schema("value", false), 2)),
            ("have the types", sound(schema("state_value", true), 2)),
            (
                "bucket.key",
                sound(schema("state_value", false), 2)
                    .distributed_by(Some(2), vec!["bucket".to_owned(), "key_group".to_owned()]),
            ),
        ];
        for (named, descriptor) in cases {
            let config = config(&cluster, "refused");
            let path = TablePath::new(config.database.clone(), TABLE);
            admin.create_database(path.database(), None, true).await.unwrap();
            admin.create_table(&path, &descriptor.build().unwrap(), false).await.expect(named);
            let opened = FlussStores::new(config).open(&branch("job/op/0/a"), ALL, &[], 0).await;
            assert!(opened.is_err(), "a table with {named} was taken");
            let (kind, message) = error_of(opened);
            assert_eq!(kind, ErrorKind::InvalidArgument, "{named}: {message}");
            assert!(message.contains(named) && message.contains(TABLE), "{named}: {message}");
        }
        // One that is sound is taken, with as many buckets as it has.
        let config = config(&cluster, "taken");
        let path = TablePath::new(config.database.clone(), TABLE);
        admin.create_database(path.database(), None, true).await.unwrap();
        admin.create_table(&path, &sound(schema("state_value", false), 3).build().unwrap(), false).await.unwrap();
        let store = FlussStores::new(config).open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        store.write(vec![put(1, "a", "1")]).await.unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn rows_that_are_gone_are_missed_before_the_first_record() {
    let (cluster, other) = (Cluster::shared(), Cluster::start(weir_fluss_cluster::Options::default()));
    run(async {
        let config = config(&cluster, "gone");
        let stores = FlussStores::new(config.clone());
        let store = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        store.write(vec![put(1, "a", "1")]).await.unwrap();
        let version = commit(&*store, 1).await;
        let sources = [whole(&version)];
        let name = branch("job/op/0/b");

        // Another cluster, and a database that is not there: both are empty.
        let mut elsewhere = config.clone();
        elsewhere.bootstrap_servers = other.bootstrap().to_owned();
        let mut nowhere = config.clone();
        nowhere.database += "-2";
        for wrong in [elsewhere, nowhere] {
            let (kind, message) = error_of(FlussStores::new(wrong).open(&name, ALL, &sources, 1).await);
            assert_eq!(kind, ErrorKind::MissingVersion, "{message}");
            assert!(message.contains(&version.version.to_string()), "{message}");
        }

        // The table, dropped.
        let connection = admin_connection(&cluster).await;
        let admin = connection.get_admin().unwrap();
        let path = TablePath::new(config.database.clone(), TABLE);
        admin.drop_table(&path, false).await.unwrap();
        let (kind, message) = error_of(FlussStores::new(config.clone()).open(&name, ALL, &sources, 1).await);
        assert_eq!(kind, ErrorKind::MissingVersion, "{message}");
        assert!(message.contains(TABLE) && message.contains("is gone"), "{message}");

        // And made again under its name, by an attempt at checkpoint 1, which reaps nothing of it: neither a restore nor who knew the old one takes it for that.
        let fresh = FlussStores::new(config.clone());
        let new = fresh.open(&branch("job/op/1/a"), KeyGroupRange::new(0, 0), &[], 1).await.unwrap();
        let (kind, message) = error_of(FlussStores::new(config.clone()).open(&name, ALL, &sources, 1).await);
        assert_eq!(kind, ErrorKind::MissingVersion, "{message}");
        assert!(message.contains("made again"), "{message}");
        let (kind, message) = error_of(store.write(vec![put(1, "a", "2")]).await);
        assert!(matches!(kind, ErrorKind::MissingVersion | ErrorKind::Unavailable), "{message}");
        assert_ne!(kind_of(store.begin_commit(2).await), ErrorKind::Closed);
        new.close().await.unwrap();
    });
}

/// What `upkeep` has to do is done when it says no more that anything is there that nobody sees.
async fn until_rows(stores: &FlussStores, store: &dyn StateStore, most: usize, checkpoint: u64) -> usize {
    let began = std::time::Instant::now();
    loop {
        store.upkeep(checkpoint);
        let rows = stores.stored_rows(&branch("job/op/0/a")).await.unwrap();
        if rows <= most || began.elapsed().as_secs() > 60 {
            return rows;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[test]
fn hot_keys_take_two_rows_and_dead_ones_none() {
    let cluster = Cluster::shared();
    run(async {
        let stores = FlussStores::new(config(&cluster, "purged"));
        let store = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        let mut oracle = Oracle::new();
        let mut last = None;
        for checkpoint in 1..=200u64 {
            // 100 keys that are always written, and 20 new ones, which are deleted at the next checkpoint.
            let hot = (0..100).map(|i| (i % 16, format!("hot {i:03}"), Some(format!("{checkpoint}"))));
            let name = |at: u64, i: u64| format!("passing {at:03} {i:02}");
            let passing = (0..20).map(|i| (i as u16 % 16, name(checkpoint, i), Some("x".to_owned())));
            let gone = (0..20).map(|i| (i as u16 % 16, name(checkpoint - 1, i), None));
            let mut batch: Vec<_> = hot
                .chain(passing)
                .chain(gone)
                .map(|(group, name, value)| {
                    value.map_or_else(|| delete(group, &name), |value| put(group, &name, &value))
                })
                .collect();
            batch.sort_by(|a, b| a.key.cmp(&b.key));
            store.write(change(&mut oracle, &batch)).await.unwrap();
            let version = commit(&*store, checkpoint).await;
            if let Some(subsumed) = last.replace(version) {
                stores.release(&subsumed.version).await.unwrap();
            }
            store.upkeep(checkpoint);
        }
        assert_eq!(oracle.len(), 120);
        // The newest version's 120 rows, and of hot keys the slot that the next one goes to.
        let rows_stored = until_rows(&stores, &*store, 240, 200).await;
        assert!(rows_stored <= 240, "{rows_stored} rows for 120 keys");
        assert_eq!(rows(&*store).await, oracle);
        store.close().await.unwrap();
        let child = stores.open(&branch("job/op/0/b"), ALL, &[whole(&last.unwrap())], 200).await.unwrap();
        assert_eq!(rows(&*child).await, oracle);
        child.close().await.unwrap();
    });
}
