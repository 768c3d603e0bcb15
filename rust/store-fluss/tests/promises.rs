//! The promises of every store, on a real Fluss cluster.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use weir_fluss_cluster::Cluster;
use weir_store::Stores;
use weir_store::promises::Subject;
use weir_store_fluss::{FlussConfig, FlussStores};

/// One for all promises; ends with the process.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(Cluster::shared);
static DATABASES: AtomicU32 = AtomicU32::new(0);

struct Fluss(FlussStores);

/// A database of its own for each.
fn subject() -> Fluss {
    let database = format!("promise-{}-{}", std::process::id(), DATABASES.fetch_add(1, Ordering::Relaxed));
    let timeout = Duration::from_secs(120);
    let config = FlussConfig { buckets: 4, timeout, ..FlussConfig::new(CLUSTER.bootstrap(), database) };
    Fluss(FlussStores::new(config))
}

impl Subject for Fluss {
    fn stores(&self) -> Arc<dyn Stores> {
        Arc::new(self.0.clone())
    }

    fn branches(&self) -> BoxFuture<'_, Vec<String>> {
        async move { self.0.branches().await.unwrap() }.boxed()
    }

    /// Rows leave at once.
    fn buffers(&self) -> bool {
        false
    }
}

weir_store::promises::suite!(subject, without expiry);
