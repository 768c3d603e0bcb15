//! The configuration strings of `open` and `releaseVersion`: `key, value, key, value, …`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Failure, Result};
use crate::runtime;

/// How long a store call may keep failing before it is given up: a number of milliseconds.
pub const STORE_TIMEOUT: &str = "store.timeout-ms";
/// A bound of an operator's own on the bytes it holds in memory.
pub const WORKING_SET_BYTES: &str = "engine.working-set-bytes";
/// Bytes of rows that the store has not acknowledged, above which a writer waits.
pub const MAX_DIRTY_BYTES: &str = "engine.max-dirty-bytes";
/// Worker threads of the process's native runtime; counts where it is not running yet.
pub const RUNTIME_THREADS: &str = "runtime.threads";

/// Settings of the embedded store begin so; `stores` knows their names.
pub const SLATEDB_PREFIX: &str = "slatedb.";
/// Settings of the store on Fluss begin so.
pub const FLUSS_PREFIX: &str = "fluss.";
/// The one setting that is never printed.
pub const FLUSS_PASSWORD: &str = "fluss.password";

const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, PartialEq, Eq)]
pub struct Config {
    pub store_timeout: Duration,
    pub working_set_bytes: Option<usize>,
    pub max_dirty_bytes: Option<usize>,
    pub runtime_threads: usize,
    /// Every setting of a store, and the time-out.
    store: Settings,
}

/// What tells two stores of one root apart. The password among them is never printed.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.iter().map(|(key, value)| (key, if key == FLUSS_PASSWORD { "***" } else { value }));
        f.debug_map().entries(shown).finish()
    }
}

impl Config {
    /// The settings of the store whose settings begin with `prefix`, and the time-out.
    pub fn store(&self, prefix: &str) -> Settings {
        let of_store = self.store.iter().filter(|(key, _)| *key == STORE_TIMEOUT || key.starts_with(prefix));
        Settings(of_store.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// # Errors
    /// [`ErrorKind::InvalidArgument`](weir_store::ErrorKind::InvalidArgument) naming the key, if it is unknown, is given
    /// twice, has no value, or has one that is not what it takes.
    pub fn parse(pairs: &[String]) -> Result<Self> {
        let mut config = Self {
            store_timeout: DEFAULT_STORE_TIMEOUT,
            working_set_bytes: None,
            max_dirty_bytes: None,
            runtime_threads: runtime::DEFAULT_THREADS,
            store: Settings::default(),
        };
        let mut seen = BTreeMap::new();
        for pair in pairs.chunks(2) {
            let [key, value] = pair else {
                return Err(Failure::invalid(format!("configuration key '{}' has no value", pair[0])));
            };
            if seen.insert(key.as_str(), ()).is_some() {
                return Err(Failure::invalid(format!("configuration key '{key}' is given twice")));
            }
            match key.as_str() {
                STORE_TIMEOUT => config.store_timeout = Duration::from_millis(number(key, value)?),
                WORKING_SET_BYTES => config.working_set_bytes = Some(number(key, value)?),
                MAX_DIRTY_BYTES => config.max_dirty_bytes = Some(number(key, value)?),
                RUNTIME_THREADS => {
                    config.runtime_threads = number(key, value)?;
                    if !(1..=256).contains(&config.runtime_threads) {
                        return Err(Failure::invalid(format!(
                            "{key} is {value}: between 1 and 256 threads are possible"
                        )));
                    }
                }
                _ if key.starts_with(SLATEDB_PREFIX) || key.starts_with(FLUSS_PREFIX) => {}
                _ => return Err(unknown(key)),
            }
            if key == STORE_TIMEOUT || key.starts_with(SLATEDB_PREFIX) || key.starts_with(FLUSS_PREFIX) {
                config.store.0.insert(key.clone(), value.clone());
            }
        }
        Ok(config)
    }
}

pub fn unknown(key: &str) -> Failure {
    Failure::invalid(format!("unknown configuration key '{key}'"))
}

/// Also of a truth value.
pub fn number<T: FromStr>(key: &str, value: &str) -> Result<T> {
    value.trim().parse().map_err(|_| Failure::invalid(format!("{key} is '{value}', which it cannot be")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[&str]) -> Result<Config> {
        Config::parse(&pairs.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn keys_are_read_and_the_rest_has_defaults() {
        let pairs = ["store.timeout-ms", "1500", "slatedb.block-cache-bytes", "7", "runtime.threads", "3"];
        let config = parse(&[&pairs[..], &["fluss.buckets", "4"]].concat()).unwrap();
        assert_eq!(config.store_timeout, Duration::from_millis(1500));
        assert_eq!(config.runtime_threads, 3);
        assert_eq!(config.working_set_bytes, None);
        let of = |prefix| {
            let settings = config.store(prefix);
            settings.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(of(SLATEDB_PREFIX), ["slatedb.block-cache-bytes=7", "store.timeout-ms=1500"]);
        assert_eq!(of(FLUSS_PREFIX), ["fluss.buckets=4", "store.timeout-ms=1500"]);
        assert_eq!(parse(&[]).unwrap().store_timeout, DEFAULT_STORE_TIMEOUT);
    }

    #[test]
    fn a_password_is_never_printed() {
        let pairs = ["fluss.user", "flink", FLUSS_PASSWORD, "hunter2"];
        let config = parse(&pairs).unwrap();
        let printed = format!("{config:?} {:?}", config.store(FLUSS_PREFIX));
        assert!(printed.contains("flink") && printed.contains("***") && !printed.contains("hunter2"), "{printed}");
        let twice = parse(&[&pairs[..], &pairs[2..]].concat()).unwrap_err().to_string();
        assert!(twice.contains(FLUSS_PASSWORD) && !twice.contains("hunter2"), "{twice}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (pairs, named) in [
            (vec!["store.timeout-ms"], "store.timeout-ms"),
            (vec!["store.timeout-ms", "soon"], "soon"),
            (vec!["engine.max-dirty-bytes", "-1"], "-1"),
            (vec!["runtime.threads", "0"], "runtime.threads"),
            (vec!["no.such-key", "1"], "no.such-key"),
            (vec!["runtime.threads", "1", "runtime.threads", "2"], "twice"),
        ] {
            let failure = parse(&pairs).unwrap_err().to_string();
            assert!(failure.contains(named), "{failure}");
        }
    }
}
