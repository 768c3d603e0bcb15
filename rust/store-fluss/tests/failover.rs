//! Servers are killed, suspended and started again under a job: every result is exact, or the attempt fails loudly and the
//! next one goes on from the last checkpoint.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Job, Phase, config};
use rand::Rng;
use weir_fluss_cluster::{Cluster, Options};
use weir_store::promises::run;
use weir_store_fluss::FlussConfig;

/// Three tablet servers, everything on all three.
async fn start(name: &'static str, seed: u64) -> (Arc<Cluster>, Job) {
    let cluster = Arc::new(Cluster::start(Options { tablets: 3, ..Options::default() }));
    let config = FlussConfig { replication: 3, ..config(&cluster, name) };
    let job = Job::start(config, name, seed).await;
    (cluster, job)
}

/// Does something to the cluster, on a thread of its own.
async fn strike(cluster: &Arc<Cluster>, act: impl FnOnce(&Cluster) + Send + 'static) {
    let cluster = cluster.clone();
    tokio::task::spawn_blocking(move || act(&cluster)).await.expect("the cluster obeys");
}

/// Lets a job do one thing over and over, until something is done to the cluster in the middle of it.
async fn strike_during(
    cluster: &Arc<Cluster>,
    job: &mut Job,
    phase: Phase,
    act: impl FnOnce(&Cluster) + Send + 'static,
) {
    let delay = Duration::from_millis(job.random.random_range(1..120));
    let struck = AtomicBool::new(false);
    let striking = async {
        tokio::time::sleep(delay).await;
        strike(cluster, act).await;
        struck.store(true, Ordering::Release);
    };
    let working = async {
        while !struck.load(Ordering::Acquire) {
            if phase == Phase::Commit {
                job.step(Phase::Flush).await;
            }
            job.step(phase).await;
        }
        job.step(phase).await;
    };
    tokio::join!(striking, working);
    println!("{phase:?}: struck after {delay:?}, {} failures so far", job.failures);
}

async fn kill_and_restart(cluster: &Arc<Cluster>, job: &mut Job, name: String, phase: Phase) {
    let victim = name.clone();
    strike_during(cluster, job, phase, move |cluster| cluster.kill(&victim)).await;
    job.round().await;
    strike(cluster, move |cluster| cluster.restart(&name)).await;
    job.round().await;
}

#[test]
fn each_server_killed_once() {
    run(async {
        let (cluster, mut job) = start("killed", 1).await;
        job.round().await;
        for (server, phase) in [("tablet-0", Phase::Flush), ("tablet-1", Phase::Commit), ("tablet-2", Phase::Open)] {
            kill_and_restart(&cluster, &mut job, server.to_owned(), phase).await;
        }
        kill_and_restart(&cluster, &mut job, "coordinator".to_owned(), Phase::Scan).await;
        job.end().await;
    });
}
