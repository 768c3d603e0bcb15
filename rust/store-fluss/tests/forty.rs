//! A slot with ten operators, each in four subtasks, opens forty branches at once, and a second time after a failure.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use weir_fluss_cluster::Cluster;
use weir_store::promises::{branch, commit, put, run};
use weir_store::{KeyGroupRange, Source, Stores};
use weir_store_fluss::{FlussConfig, FlussStores};

const OPERATORS: u16 = 10;
const SUBTASKS: u16 = 4;
const GROUPS: u16 = 32;
/// What tasks wait for a store by default.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn forty_branches_open_at_once() {
    let cluster = Cluster::shared();
    run(async {
        let database = format!("forty-{}", std::process::id());
        let config = FlussConfig { buckets: 2, timeout: LIMIT, ..FlussConfig::new(cluster.bootstrap(), database) };
        let mut sources: Vec<Vec<Source>> = vec![Vec::new(); usize::from(OPERATORS * SUBTASKS)];
        for attempt in 1..=2u64 {
            // Another process.
            let stores = FlussStores::new(config.clone());
            let began = Instant::now();
            let opened = (0..OPERATORS * SUBTASKS).map(|at| {
                let (operator, subtask) = (at / SUBTASKS, at % SUBTASKS);
                let range = KeyGroupRange::new(subtask * GROUPS, subtask * GROUPS + GROUPS - 1);
                let (stores, sources) = (stores.clone(), sources[usize::from(at)].clone());
                async move {
                    let name = branch(&format!("job/operator{operator}/{subtask}-of-{SUBTASKS}/graph_{attempt}-1"));
                    stores.open(&name, range, &sources, attempt - 1).await.map(|store| (range, store))
                }
            });
            let opened = try_join_all(opened).await.unwrap();
            let took = began.elapsed();
            println!("forty branches opened in {took:?}, attempt {attempt}");
            assert!(took < LIMIT, "{took:?}");
            for (at, (range, store)) in opened.iter().enumerate() {
                store.write(vec![put(range.first, "key", &attempt.to_string())]).await.unwrap();
                let version = commit(&**store, attempt).await.version;
                sources[at] = vec![Source { version, range: *range }];
            }
            for (_, store) in &opened {
                store.close().await.unwrap();
            }
        }
    });
}
