//! How an engine is told to stop.

use std::future::Future;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

use crate::error::{self, EngineError, Result};

const RUNNING: u8 = 0;
const CANCELLED: u8 = 1;
const CLOSED: u8 = 2;

/// Set once to *cancelled*, and once, at any time, to *closed*.
pub(crate) struct Stop {
    state: AtomicU8,
    changed: Notify,
}

impl Stop {
    pub fn new() -> Self {
        Self { state: AtomicU8::new(RUNNING), changed: Notify::new() }
    }

    pub fn cancel(&self) {
        let _ = self.state.compare_exchange(RUNNING, CANCELLED, Ordering::AcqRel, Ordering::Acquire);
        self.changed.notify_waiters();
    }

    /// False if it was closed before.
    pub fn close(&self) -> bool {
        let before = self.state.swap(CLOSED, Ordering::AcqRel);
        self.changed.notify_waiters();
        before != CLOSED
    }

    #[inline]
    pub fn check(&self) -> Result<()> {
        match self.state.load(Ordering::Acquire) {
            RUNNING => Ok(()),
            state => Err(stopped(state)),
        }
    }

    /// Ends with the error that calls end with, once there is one.
    pub async fn wait(&self) -> EngineError {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Err(error) = self.check() {
                return error;
            }
            changed.await;
        }
    }

    /// The result of `work`, or the reason to stop if that comes first.
    pub async fn or<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            error = self.wait() => Err(error),
            result = work => result,
        }
    }

    /// Waits for `event`, or until there is a reason to stop.
    pub async fn or_until(&self, event: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            _ = self.wait() => {}
            () = event => {}
        }
    }
}

#[cold]
fn stopped(state: u8) -> EngineError {
    if state == CLOSED { error::closed() } else { error::cancelled() }
}
