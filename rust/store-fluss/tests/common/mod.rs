//! What the tests on real clusters share: databases of their own, and a job that is compared with an ordered map.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use weir_fluss_cluster::Cluster;
use weir_store::promises::{ALL, branch, delete, key, put, rows, whole};
use weir_store::{Commit, ErrorKind, Result, Row, Source, StateReader, StateStore, Stores};
use weir_store_fluss::{FlussConfig, FlussStores};

/// What a store must hold; nothing that happens to a server happens to it.
pub type Oracle = BTreeMap<Bytes, Bytes>;

/// A database that nobody else uses, in tables of two buckets.
pub fn config(cluster: &Cluster, what: &str) -> FlussConfig {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let database = format!("{what}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let timeout = Duration::from_secs(60);
    FlussConfig { buckets: 2, timeout, ..FlussConfig::new(cluster.bootstrap(), database) }
}

/// Applies a batch to the oracle too.
pub fn change(oracle: &mut Oracle, batch: &[Row]) -> Vec<Row> {
    for row in batch {
        match &row.value {
            Some(value) => oracle.insert(row.key.clone(), value.clone()),
            None => oracle.remove(&row.key),
        };
    }
    batch.to_vec()
}

/// The kind of the error that a call ended with.
pub fn kind_of<T>(result: Result<T>) -> ErrorKind {
    result.err().map(|error| error.kind()).expect("an error")
}

/// The error that a call ended with.
pub fn error_of<T>(result: Result<T>) -> (ErrorKind, String) {
    result.err().map(|error| (error.kind(), error.to_string())).expect("an error")
}

/// One subtask of a job: whenever an attempt fails, the next one starts from the last checkpoint.
pub struct Job {
    pub stores: FlussStores,
    pub config: FlussConfig,
    name: &'static str,
    pub random: SmallRng,
    store: Option<Arc<dyn StateStore>>,
    attempts: u32,
    checkpoint: u64,
    /// What the running attempt must show.
    now: Oracle,
    /// The checkpoints that are kept, with what each must show for ever.
    kept: Vec<(Commit, Oracle)>,
    /// How many attempts failed.
    pub failures: u32,
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Flush,
    Commit,
    Scan,
    Get,
    Open,
}

/// Checkpoints that a job keeps.
const KEPT: usize = 3;
/// How long a cluster may take to serve again.
const RECOVERY: Duration = Duration::from_secs(180);

impl Job {
    pub async fn start(config: FlussConfig, name: &'static str, seed: u64) -> Self {
        let stores = FlussStores::new(config.clone());
        let random = SmallRng::seed_from_u64(seed);
        let (now, kept) = (Oracle::new(), Vec::new());
        let mut job =
            Self { stores, config, name, random, store: None, attempts: 0, checkpoint: 0, now, kept, failures: 0 };
        job.recover().await;
        job
    }

    /// Does one thing; the next attempt takes over if it fails. What is read must be what was written.
    ///
    /// # Panics
    /// If a result differs from the oracle's, or an error is none that says "try again".
    pub async fn step(&mut self, phase: Phase) {
        if let Err(error) = self.attempt(phase).await {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "while {phase:?}: {error}");
            println!("attempt {} ends while {phase:?}: {error}", self.attempts);
            self.failures += 1;
            self.recover().await;
        }
    }

    async fn attempt(&mut self, phase: Phase) -> Result<()> {
        let store = self.store.clone().expect("an attempt runs");
        match phase {
            Phase::Flush => {
                let batch = self.batch(300);
                store.write(batch.clone()).await?;
                change(&mut self.now, &batch);
            }
            Phase::Commit => {
                self.checkpoint += 1;
                let commit = store.begin_commit(self.checkpoint).await?.await?;
                self.kept.push((commit, self.now.clone()));
                while self.kept.len() > KEPT {
                    let (subsumed, _) = self.kept.remove(0);
                    self.stores.release(&subsumed.version).await?;
                }
                store.upkeep(self.checkpoint);
            }
            Phase::Scan => {
                let prefix = self.random.random_range(0..16u16).to_be_bytes();
                let page = store.scan(&prefix, None, weir_store::promises::NO_LIMIT).await?;
                let expected: Vec<_> = self
                    .now
                    .iter()
                    .filter(|(key, _)| key.starts_with(&prefix))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect();
                assert_eq!(page.rows, expected, "attempt {}", self.attempts);
            }
            Phase::Get => {
                let keys: Vec<Bytes> = (0..40).map(|_| self.key()).collect();
                let expected: Vec<Option<Bytes>> = keys.iter().map(|key| self.now.get(key).cloned()).collect();
                assert_eq!(store.get_many(&keys).await?, expected, "attempt {}", self.attempts);
            }
            Phase::Open => {
                let _ = store.close().await;
                self.recover().await;
            }
        }
        Ok(())
    }

    /// Flush, reads, commit, reads.
    pub async fn round(&mut self) {
        for phase in [Phase::Flush, Phase::Get, Phase::Scan, Phase::Commit, Phase::Get, Phase::Scan] {
            self.step(phase).await;
        }
    }

    /// Starts the next attempt from the last checkpoint, however often that takes.
    async fn recover(&mut self) {
        let began = Instant::now();
        if let Some(store) = self.store.take() {
            // Every other attempt stays as a zombie until the test ends.
            if self.attempts.is_multiple_of(2) {
                let _ = store.close().await;
            }
        }
        let sources: Vec<Source> = self.kept.last().map(|(commit, _)| whole(commit)).into_iter().collect();
        self.now = self.kept.last().map(|(_, oracle)| oracle.clone()).unwrap_or_default();
        loop {
            self.attempts += 1;
            let name = branch(&format!("{}/op/0/g_{}-1", self.name, self.attempts));
            let opened = match self.stores.open(&name, ALL, &sources, self.checkpoint).await {
                // In one scan, which must fail rather than show a part.
                Ok(store) => all_rows(&*store).await.map(|rows| (store, rows)),
                Err(error) => Err(error),
            };
            match opened {
                Ok((store, rows)) => {
                    assert_eq!(rows, self.now, "attempt {}, right after it opened", self.attempts);
                    self.store = Some(store);
                    return;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "while opening: {error}");
                    println!("attempt {} does not open: {error}", self.attempts);
                    assert!(began.elapsed() < RECOVERY, "no attempt opens: {error}");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }

    /// Every checkpoint that is kept still shows what it did.
    pub async fn end(mut self) {
        self.recover().await;
        for (commit, oracle) in &self.kept {
            let reader = self.stores.open_read_only(&whole(commit)).await.expect("a version that is kept");
            assert_eq!(&rows(&*reader).await, oracle, "{}", commit.version);
        }
        self.store.take().expect("an attempt runs").close().await.expect("it closes");
        println!("{}: {} attempts, {} failed", self.name, self.attempts, self.failures);
    }

    fn key(&mut self) -> Bytes {
        let (group, name) = (self.random.random_range(0..16u16), self.random.random_range(0..200u32));
        key(group * 8, &format!("key-{name:05}"))
    }

    /// Puts, blind deletes among them.
    fn batch(&mut self, size: usize) -> Vec<Row> {
        let mut batch = Oracle::new();
        for _ in 0..size {
            batch.insert(self.key(), Bytes::new());
        }
        let rows = batch.into_keys().map(|key| {
            let (group, name) = (u16::from_be_bytes([key[0], key[1]]), String::from_utf8_lossy(&key[2..]).into_owned());
            if self.random.random_ratio(1, 5) {
                delete(group, &name)
            } else {
                put(group, &name, &format!("{:0>60}", self.random.random::<u64>()))
            }
        });
        rows.collect()
    }
}

/// All rows in one page.
pub async fn all_rows(reader: &(impl StateReader + ?Sized)) -> Result<Oracle> {
    let page = reader.scan(&[], None, weir_store::promises::NO_LIMIT).await?;
    assert!(page.done);
    Ok(page.rows.into_iter().collect())
}
