//! One tokio runtime a process: its size is set by whoever comes first.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use weir_store::ErrorKind;

use crate::error::{Failure, Result};

/// Worker threads, if nobody says otherwise.
pub const DEFAULT_THREADS: usize = 2;
/// A local file system is read and written on blocking threads; more of them than this gain nothing.
const BLOCKING_THREADS: usize = 8;
/// A blocking thread ends after this long without work.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);
static LIVE_THREADS: AtomicUsize = AtomicUsize::new(0);

/// The process's runtime, started with `threads` workers if there is none yet.
pub fn handle(threads: usize) -> Result<Handle> {
    let mut runtime = RUNTIME.lock();
    if let Some(runtime) = &*runtime {
        return Ok(runtime.handle().clone());
    }
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let started = Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(KEEP_ALIVE)
        .thread_name_fn(|| format!("weir-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
        .on_thread_start(|| {
            LIVE_THREADS.fetch_add(1, Ordering::Relaxed);
        })
        .on_thread_stop(|| {
            LIVE_THREADS.fetch_sub(1, Ordering::Relaxed);
        })
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::new(ErrorKind::Internal, format!("cannot start {threads} native threads: {error}"))
        })?;
    Ok(runtime.insert(started).handle().clone())
}

/// How much longer than the store's own time-out a call may take, so that the store's error, which names a path and a
/// cause, comes first.
const GRACE: Duration = Duration::from_secs(5);

/// Runs `future` on the calling thread, which is a thread of the JVM, for `limit` and a little longer at most.
///
/// # Errors
/// Those of the future; [`ErrorKind::Unavailable`] naming `what` once the time is over.
pub fn block_on<T>(
    runtime: &Handle,
    limit: Duration,
    what: impl FnOnce() -> String,
    future: impl Future<Output = weir_store::Result<T>>,
) -> Result<T> {
    match runtime.block_on(async { tokio::time::timeout(limit + GRACE, future).await }) {
        Ok(result) => Ok(result?),
        Err(_) => Err(Failure::new(
            ErrorKind::Unavailable,
            format!("{} took longer than {} ms (store.timeout-ms)", what(), limit.as_millis()),
        )),
    }
}

/// Threads of the runtime that are alive, workers and blocking ones.
pub fn live_threads() -> usize {
    LIVE_THREADS.load(Ordering::Relaxed)
}

/// Tells the threads to end and does not wait for them.
pub fn shut_down() {
    if let Some(runtime) = RUNTIME.lock().take() {
        runtime.shutdown_background();
    }
}
