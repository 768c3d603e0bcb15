//! A decorator of any store that lets an attempt crash: its engine goes without a word to the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use weir_store::{Expiry, Page, PageLimit, PendingCommit, Result, Row, StateReader, StateStore};

/// A store whose `close` does nothing once the attempt has crashed.
pub struct Attempt {
    inner: Arc<dyn StateStore>,
    crashed: Arc<AtomicBool>,
}

impl Attempt {
    pub fn wrap(inner: Arc<dyn StateStore>) -> (Arc<dyn StateStore>, Crash) {
        let crashed = Arc::new(AtomicBool::new(false));
        (Arc::new(Self { inner: inner.clone(), crashed: crashed.clone() }), Crash { inner, crashed })
    }
}

/// Lets the attempt crash.
pub struct Crash {
    inner: Arc<dyn StateStore>,
    crashed: Arc<AtomicBool>,
}

impl Crash {
    /// From now on `close` does nothing: drop the engine next. Returns the store itself, whose threads in this process
    /// end no sooner than it is closed.
    pub fn crash(self) -> Arc<dyn StateStore> {
        self.crashed.store(true, Ordering::SeqCst);
        self.inner
    }
}

impl StateReader for Attempt {
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
        self.inner.get_many(keys)
    }

    fn scan<'a>(&'a self, prefix: &'a [u8], after: Option<&'a [u8]>, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        self.inner.scan(prefix, after, limit)
    }
}

impl StateStore for Attempt {
    fn write(&self, batch: Vec<Row>) -> BoxFuture<'_, Result<()>> {
        self.inner.write(batch)
    }

    fn begin_commit(&self, checkpoint: u64) -> BoxFuture<'_, Result<PendingCommit>> {
        self.inner.begin_commit(checkpoint)
    }

    fn upkeep(&self, completed_checkpoint: u64) {
        self.inner.upkeep(completed_checkpoint);
    }

    fn set_expiry(&self, expiry: Expiry) {
        self.inner.set_expiry(expiry);
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        if self.crashed.load(Ordering::SeqCst) {
            return futures::future::ready(Ok(())).boxed();
        }
        self.inner.close()
    }
}
