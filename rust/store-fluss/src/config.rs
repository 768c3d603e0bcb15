//! What can be set.

use std::fmt;
use std::time::Duration;

/// How to reach a Fluss cluster, and what tables look like that are created there.
#[derive(Clone)]
pub struct FlussConfig {
    /// `host:port` of one or more servers, separated by commas.
    pub bootstrap_servers: String,
    /// The database that holds all tables; created if it is missing.
    pub database: String,
    /// Buckets of a new table of rows.
    pub buckets: i32,
    /// Replicas of a new table; an existing one with fewer is refused.
    pub replication: i32,
    /// User and password for SASL/PLAIN.
    pub credentials: Option<Credentials>,
    /// How long a call may fail and be tried again before it is an error.
    pub timeout: Duration,
    /// Keys whose place a branch remembers, about 60 bytes each; for others it asks before it overwrites.
    pub remembered_keys: usize,
}

/// A user's name and password; the password is never printed.
#[derive(Clone)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

impl FlussConfig {
    pub fn new(bootstrap_servers: impl Into<String>, database: impl Into<String>) -> Self {
        Self {
            bootstrap_servers: bootstrap_servers.into(),
            database: database.into(),
            buckets: 8,
            replication: 1,
            credentials: None,
            timeout: Duration::from_secs(30),
            remembered_keys: 1 << 20,
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:***", self.user)
    }
}

impl fmt::Debug for FlussConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlussConfig")
            .field("bootstrap_servers", &self.bootstrap_servers)
            .field("database", &self.database)
            .field("buckets", &self.buckets)
            .field("replication", &self.replication)
            .field("credentials", &self.credentials)
            .field("timeout", &self.timeout)
            .field("remembered_keys", &self.remembered_keys)
            .finish()
    }
}
