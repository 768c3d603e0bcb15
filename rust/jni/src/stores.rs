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
use weir_store_fluss::{Credentials, FlussConfig, FlussStores};
use weir_store_slatedb::{BlockCache, SlateConfig, SlateStores};

use crate::config::{Config, FLUSS_PASSWORD, FLUSS_PREFIX, SLATEDB_PREFIX, STORE_TIMEOUT, Settings, number, unknown};
use crate::error::{Failure, Result};

/// What the root of a store on Fluss begins with.
const FLUSS_SCHEME: &str = "fluss://";

/// A root and the settings of its store.
type Key = (String, Settings);

static SHARED: Mutex<Option<HashMap<Key, Weak<dyn Stores>>>> = Mutex::new(None);
/// Kept for the life of the process: what a memory store holds must outlive the backends of a test.
static MEMORY: Mutex<BTreeMap<String, MemoryStores>> = Mutex::new(BTreeMap::new());

/// The stores at `root`.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](weir_store::ErrorKind::InvalidArgument) if `root` is no URI of a scheme that has a
/// store, naming the scheme and those that have.
pub fn at(root: &str, config: &Config, runtime: &Handle) -> Result<Arc<dyn Stores>> {
    // A list of servers is no host of a URL.
    if let Some(place) = root.strip_prefix(FLUSS_SCHEME) {
        let settings = config.store(FLUSS_PREFIX);
        return shared(root, settings, |settings| Ok(FlussStores::new(fluss_config(root, place, config, settings)?)));
    }
    let url =
        Url::parse(root).map_err(|error| Failure::invalid(format!("store root '{root}' is not a URI: {error}")))?;
    match url.scheme() {
        "file" => shared(url.as_str().trim_end_matches('/'), config.store(SLATEDB_PREFIX), |settings| {
            // Its background work belongs to the process's runtime.
            let _entered = runtime.enter();
            Ok(SlateStores::new(root, slate_config(config, settings)?)?)
        }),
        "memory" => memory(root, &url),
        scheme => Err(Failure::invalid(format!(
            "store root '{root}' has scheme '{scheme}'; allowed are file:///absolute/directory, \
             fluss://server:port,…/database and memory://name"
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

/// The stores that the process has at this root with these settings, or else new ones.
fn shared<S: Stores>(
    root: &str,
    settings: Settings,
    new: impl FnOnce(&Settings) -> Result<S>,
) -> Result<Arc<dyn Stores>> {
    let key = (root.to_owned(), settings);
    let mut all = SHARED.lock();
    let all = all.get_or_insert_default();
    if let Some(stores) = all.get(&key).and_then(Weak::upgrade) {
        return Ok(stores);
    }
    all.retain(|_, stores| stores.strong_count() > 0);
    let stores: Arc<dyn Stores> = Arc::new(LongKeyStores::new(Arc::new(new(&key.1)?)));
    all.insert(key, Arc::downgrade(&stores));
    Ok(stores)
}

fn slate_config(config: &Config, settings: &Settings) -> Result<SlateConfig> {
    let mut slate = SlateConfig { store_timeout: config.store_timeout, ..SlateConfig::default() };
    for (key, value) in settings.iter() {
        let millis = || number(key, value).map(Duration::from_millis);
        match key {
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

/// `place`: `server:port,…/database`.
fn fluss_config(root: &str, place: &str, config: &Config, settings: &Settings) -> Result<FlussConfig> {
    let (servers, database) = match place.split_once('/') {
        Some((servers, database)) if !servers.is_empty() && !database.is_empty() && !database.contains('/') => {
            (servers, database)
        }
        _ => {
            let message =
                format!("store root '{root}' names no database of Fluss: expected fluss://server:port,…/database");
            return Err(Failure::invalid(message));
        }
    };
    let mut fluss = FlussConfig { timeout: config.store_timeout, ..FlussConfig::new(servers, database) };
    let (mut user, mut password) = (None, None);
    for (key, value) in settings.iter() {
        match key {
            STORE_TIMEOUT => {}
            "fluss.buckets" => fluss.buckets = number(key, value)?,
            "fluss.replication" => fluss.replication = number(key, value)?,
            "fluss.remembered-keys" => fluss.remembered_keys = number(key, value)?,
            "fluss.user" => user = Some(value.to_owned()),
            FLUSS_PASSWORD => password = Some(value.to_owned()),
            _ => return Err(unknown(key)),
        }
    }
    fluss.credentials = match (user, password) {
        (Some(user), Some(password)) => Some(Credentials { user, password }),
        (None, None) => None,
        (user, _) => {
            let (given, missing) = if user.is_some() { ("user", "password") } else { ("password", "user") };
            return Err(Failure::invalid(format!("fluss.{given} is set, but not fluss.{missing}")));
        }
    };
    Ok(fluss)
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

    #[test]
    fn a_root_on_fluss_names_servers_and_database() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let at = |root: &str, pairs: &[&str]| super::at(root, &config(pairs), runtime.handle());
        let sasl = ["fluss.user", "flink", "fluss.password", "hunter2"];
        // Nothing connects before a branch is opened.
        let first = at("fluss://one:9123,two:9123/weir", &sasl).unwrap();
        assert!(Arc::ptr_eq(&first, &at("fluss://one:9123,two:9123/weir", &sasl).unwrap()));
        assert!(!Arc::ptr_eq(&first, &at("fluss://one:9123,two:9123/weir", &[]).unwrap()));
        assert!(!Arc::ptr_eq(&first, &at("fluss://one:9123,two:9123/other", &sasl).unwrap()));

        let pairs = ["store.timeout-ms", "1500", "fluss.buckets", "4", "fluss.replication", "3"];
        let pairs = config(&[&pairs[..], &["fluss.remembered-keys", "7"], &sasl].concat());
        let read = fluss_config("", "[::1]:9123,two:9123/weir", &pairs, &pairs.store(FLUSS_PREFIX)).unwrap();
        assert_eq!((read.bootstrap_servers.as_str(), read.database.as_str()), ("[::1]:9123,two:9123", "weir"));
        assert_eq!((read.buckets, read.replication, read.remembered_keys), (4, 3, 7));
        assert_eq!(read.timeout, Duration::from_millis(1500));
        let credentials = read.credentials.as_ref().unwrap();
        assert_eq!((credentials.user.as_str(), credentials.password.as_str()), ("flink", "hunter2"));
        assert!(!format!("{read:?}").contains("hunter2"));

        for root in ["fluss://one:9123", "fluss://one:9123/", "fluss:///weir", "fluss://one:9123/weir/more"] {
            let refusal = refusal(at(root, &[]));
            assert!(refusal.contains(root) && refusal.contains("/database"), "{refusal}");
        }
        assert!(refusal(at("fluss://one:9123/weir", &["fluss.no-such", "1"])).contains("fluss.no-such"));
        let alone = refusal(at("fluss://one:9123/weir", &sasl[2..]));
        assert!(alone.contains("fluss.user") && !alone.contains("hunter2"), "{alone}");
    }
}
