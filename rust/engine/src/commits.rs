//! The commits of frozen epochs, from the freeze until somebody takes the result.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use weir_store::{Commit, PendingCommit, Stores};

use crate::engine::{Committed, EpochId};
use crate::error::{EngineError, ErrorKind, Result, cancelled, invalid};
use crate::stop::Stop;

pub(crate) struct Commits {
    states: Mutex<HashMap<u32, State>>,
    changed: Condvar,
    stop: Arc<Stop>,
    stores: Option<Arc<dyn Stores>>,
    runtime: Handle,
}

enum State {
    /// The epoch's rows are being written, or the version is being made durable by the task of the handle.
    Pending {
        next_sequence: u64,
        task: Option<AbortHandle>,
    },
    Done(Result<Committed>),
}

impl Commits {
    pub fn new(stop: Arc<Stop>, stores: Option<Arc<dyn Stores>>, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { states: Mutex::default(), changed: Condvar::new(), stop, stores, runtime })
    }

    pub fn freeze(&self, epoch: u32, next_sequence: u64) {
        self.states.lock().insert(epoch, State::Pending { next_sequence, task: None });
    }

    /// Makes a version durable beside whatever else the engine does.
    pub fn run(self: &Arc<Self>, epoch: u32, pending: PendingCommit) {
        let mut states = self.states.lock();
        // Without an entry nobody wants the result: `pending` is dropped, and the store leaves nothing behind.
        let Some(State::Pending { task, .. }) = states.get_mut(&epoch) else { return drop(states) };
        let ending = Ending { commits: Arc::clone(self), epoch, result: None };
        let stop = Arc::clone(&self.stop);
        let work = self.runtime.spawn(async move { ending.end(stop.or(pending).await) });
        *task = Some(work.abort_handle());
    }

    pub fn finish(&self, epoch: u32, result: Result<Commit>) {
        let mut states = self.states.lock();
        match states.get_mut(&epoch) {
            Some(state @ State::Pending { .. }) => {
                let State::Pending { next_sequence, .. } = *state else { return };
                *state = State::Done(result.map(|commit| Committed { commit, next_sequence }));
                self.changed.notify_all();
            }
            _ => {
                drop(states);
                if let Ok(commit) = result {
                    self.release(commit);
                }
            }
        }
    }

    /// Every commit that is not done ends with `error`.
    pub fn fail_all(&self, error: &EngineError) {
        let mut states = self.states.lock();
        for state in states.values_mut() {
            if let State::Pending { task, .. } = state {
                if let Some(task) = task.take() {
                    task.abort();
                }
                *state = State::Done(Err(error.clone()));
            }
        }
        self.changed.notify_all();
    }

    pub fn wait(&self, epoch: EpochId) -> Result<Committed> {
        let key = u32::try_from(epoch.0).map_err(|_| unknown(epoch))?;
        let mut states = self.states.lock();
        let mut seen = false;
        loop {
            match states.get(&key) {
                Some(State::Done(_)) => {
                    let Some(State::Done(result)) = states.remove(&key) else { continue };
                    return result;
                }
                Some(State::Pending { .. }) => seen = true,
                None if seen => return Err(cancelled().context(format!("the commit of epoch {} was aborted", epoch.0))),
                None => {
                    self.stop.check()?;
                    return Err(unknown(epoch));
                }
            }
            if let Err(error) = self.stop.check() {
                drop(states);
                self.abort(epoch);
                return Err(error);
            }
            self.changed.wait(&mut states);
        }
    }

    /// The result is no longer wanted; a version that exists already is released.
    pub fn abort(&self, epoch: EpochId) {
        let Ok(epoch) = u32::try_from(epoch.0) else { return };
        let state = self.states.lock().remove(&epoch);
        match state {
            Some(State::Pending { task: Some(task), .. }) => task.abort(),
            Some(State::Done(Ok(committed))) => self.release(committed.commit),
            _ => {}
        }
        self.wake();
    }

    /// Lets waiting threads look whether they should stop.
    pub fn wake(&self) {
        drop(self.states.lock());
        self.changed.notify_all();
    }

    fn release(&self, commit: Commit) {
        let Some(stores) = self.stores.clone() else {
            tracing::debug!(version = %commit.version, "a version that nobody wants stays until a successor reaps it");
            return;
        };
        self.runtime.spawn(async move {
            if let Err(error) = stores.release(&commit.version).await {
                tracing::warn!(version = %commit.version, %error, "could not release a version that nobody wants");
            }
        });
    }
}

fn unknown(epoch: EpochId) -> EngineError {
    invalid(format!("epoch {} has no commit to wait for: it was never frozen, was aborted, or was waited for", epoch.0))
}

/// Ends a commit with its result, also if its task is aborted or panics.
struct Ending {
    commits: Arc<Commits>,
    epoch: u32,
    result: Option<Result<Commit>>,
}

impl Ending {
    fn end(mut self, result: Result<Commit>) {
        self.result = Some(result);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let result = self.result.take().unwrap_or_else(|| {
            if std::thread::panicking() {
                Err(EngineError::new(ErrorKind::Internal, "the store panicked while it made a version durable"))
            } else {
                Err(cancelled())
            }
        });
        self.commits.finish(self.epoch, result);
    }
}
