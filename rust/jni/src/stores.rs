//! Which store a root URI names. One [`Stores`] a root and configuration in a process, so that all its backends share
//! the caches; it goes with the last backend that uses it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use url::Url;
use weir_store::Stores;
use weir_store::long_keys::LongKeyStores;
use weir_store::memory::MemoryStores;
use weir_store_slatedb::{BlockCache, SlateConfig, SlateStores};

use crate::config::{Config, STORE_TIMEOUT, number, unknown};
use crate::error::{Failure, Result};

type Key = (String, BTreeMap<String, String>);

static EMBEDDED: Mutex<Option<HashMap<Key, Weak<dyn Stores>>>> = Mutex::new(None);
/// Kept for the life of the process: what a memory store holds must outlive the backends of a test.
static MEMORY: Mutex<BTreeMap<String, MemoryStores>> = Mutex::new(BTreeMap::new());

/// The stores at `root`.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](weir_store::ErrorKind::InvalidArgument) if `root` is no URI of a scheme that has a
/// store, naming the scheme and those that have.
pub fn at(root: &str, config: &Config, runtime: &Handle) -> Result<Arc<dyn Stores>> {
    let url =
        Url::parse(root).map_err(|error| Failure::invalid(format!("store root '{root}' is not a URI: {error}")))?;
    match url.scheme() {
        "file" => embedded(root, &url, config, runtime),
        "memory" => memory(root, &url),
        scheme => Err(Failure::invalid(format!(
            "store root '{root}' has scheme '{scheme}'; allowed are file:///absolute/directory and memory://name"
        ))),
    }
}

fn memory(root: &str, url: &Url) -> Result<Arc<dyn Stores>> {
    let name = format!("{}{}", url.host_str().unwrap_or_default(), url.path().trim_end_matches('/'));
    if name.is_empty() {
        return Err(Failure::invalid(format!("store root '{root}' names no memory store: expected memory://name")));
    }
    let stores = MEMORY.lock().entry(name).or_default().clone();
    Ok(Arc::new(LongKeyStores::new(Arc::new(stores))))
}

fn embedded(root: &str, url: &Url, config: &Config, runtime: &Handle) -> Result<Arc<dyn Stores>> {
    let key = (url.as_str().trim_end_matches('/').to_owned(), config.store.clone());
    let mut all = EMBEDDED.lock();
    let all = all.get_or_insert_default();
    if let Some(stores) = all.get(&key).and_then(Weak::upgrade) {
        return Ok(stores);
    }
    all.retain(|_, stores| stores.strong_count() > 0);
    let slate = slate_config(config)?;
    // Its background work belongs to the process's runtime.
    let _entered = runtime.enter();
    let stores: Arc<dyn Stores> = Arc::new(LongKeyStores::new(Arc::new(SlateStores::new(root, slate)?)));
    all.insert(key, Arc::downgrade(&stores));
    Ok(stores)
}

fn slate_config(config: &Config) -> Result<SlateConfig> {
    let mut slate = SlateConfig { store_timeout: config.store_timeout, ..SlateConfig::default() };
    for (key, value) in &config.store {
        let millis = || number(key, value).map(Duration::from_millis);
        match key.as_str() {
            STORE_TIMEOUT => {}
            "slatedb.write-buffer-bytes" => slate.write_buffer_bytes = number(key, value)?,
            "slatedb.block-cache-bytes" => slate.block_cache = BlockCache::new(number(key, value)?),
            "slatedb.gc.min-age-ms" => slate.gc_min_age = millis()?,
            "slatedb.close-timeout-ms" => slate.close_timeout = millis()?,
            "slatedb.reader-lease-ms" => slate.reader_lease = millis()?,
            "slatedb.fsync" => slate.fsync = number(key, value)?,
            "slatedb.compaction.poll-ms" => slate.compaction_poll = millis()?,
            "slatedb.compaction.l0-trigger" => slate.compaction.l0_trigger = number(key, value)?,
            "slatedb.compaction.growth" => slate.compaction.growth = number(key, value)?,
            "slatedb.compaction.idle-ms" => slate.compaction.idle = millis()?,
            "slatedb.compaction.adopt-after-ms" => slate.compaction.adopt_after = millis()?,
            "slatedb.compaction.adopt-bytes-per-second" => {
                slate.compaction.adopt_bytes_per_second = number(key, value)?;
            }
            _ => return Err(unknown(key)),
        }
    }
    Ok(slate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[&str]) -> Config {
        Config::parse(&pairs.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap()
    }

    fn refusal<T>(result: Result<T>) -> String {
        match result {
            Ok(_) => panic!("was accepted"),
            Err(failure) => failure.to_string(),
        }
    }

    #[test]
    fn a_root_names_one_store_and_others_are_refused_by_name() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let at = |root: &str, pairs: &[&str]| super::at(root, &config(pairs), runtime.handle());
        let shared = at("memory://shared", &[]).unwrap();
        drop(at("memory://shared", &[]).unwrap());
        drop(shared);
        for root in ["s3://bucket/x", "hdfs://host/x", "s3a://bucket/x"] {
            let refusal = refusal(at(root, &[]));
            assert!(refusal.contains("file:///") && refusal.contains(&root[..root.find(':').unwrap()]), "{refusal}");
        }
        assert!(refusal(at("relative/directory", &[])).contains("relative/directory"));
        assert!(refusal(at("memory://", &[])).contains("memory://name"));
        assert!(refusal(at("file:///tmp/x", &["slatedb.no-such", "1"])).contains("slatedb.no-such"));

        let first = at("file:///tmp/weir-stores-test", &["slatedb.fsync", "false"]).unwrap();
        let second = at("file:///tmp/weir-stores-test/", &["slatedb.fsync", "false"]).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        let other = at("file:///tmp/weir-stores-test", &[]).unwrap();
        assert!(!Arc::ptr_eq(&first, &other));
    }
}
