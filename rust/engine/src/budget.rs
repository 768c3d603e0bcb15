//! The memory of one slot, shared by its engines.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Bytes that the engines of one slot share. Every engine charges all it holds, as it holds it; one that goes over the
/// limit evicts its own rows down to its fair share, then those of others above theirs.
pub struct MemoryBudget {
    limit: usize,
    used: AtomicUsize,
    /// Number of engines, to read without the lock.
    engines: AtomicUsize,
    members: Mutex<Vec<Weak<dyn Member>>>,
}

/// An engine, as the others of its slot see it.
pub(crate) trait Member: Send + Sync {
    fn resident_bytes(&self) -> usize;

    /// Evicts down to `target` bytes if the engine is not busy. Never waits for a lock.
    fn try_evict(&self, target: usize);

    /// Asks for dirty rows to be flushed, so that they can be evicted. Never waits.
    fn nudge(&self);
}

impl MemoryBudget {
    pub fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            limit: limit_bytes,
            used: AtomicUsize::new(0),
            engines: AtomicUsize::new(0),
            members: Mutex::default(),
        })
    }

    /// Bytes that may be used.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes that the open engines hold.
    #[inline]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes above the limit.
    #[inline]
    pub(crate) fn excess(&self) -> usize {
        self.used().saturating_sub(self.limit)
    }

    /// What one engine may hold when all want more.
    #[inline]
    pub(crate) fn fair_share(&self) -> usize {
        self.limit / self.engines.load(Ordering::Relaxed).max(1)
    }

    pub(crate) fn join(&self, member: Weak<dyn Member>) {
        self.members.lock().push(member);
        self.engines.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self, member: &Weak<dyn Member>) {
        let mut members = self.members.lock();
        if let Some(at) = members.iter().position(|other| Weak::ptr_eq(other, member)) {
            members.swap_remove(at);
            self.engines.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Replaces an engine's charge.
    #[inline]
    pub(crate) fn charge(&self, before: usize, now: usize) {
        if now > before {
            self.used.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.used.fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    /// Evicts rows of engines above their fair share until the budget is kept; false if that was not enough.
    pub(crate) fn reclaim_from_others(&self, asking: &Weak<dyn Member>) -> bool {
        // Cloned out of the lock: the last handle of an engine may be dropped here, and it leaves.
        let others: Vec<Arc<dyn Member>> = {
            let members = self.members.lock();
            members.iter().filter(|other| !Weak::ptr_eq(other, asking)).filter_map(Weak::upgrade).collect()
        };
        let fair = self.fair_share();
        for other in &others {
            let excess = self.excess();
            if excess == 0 {
                return true;
            }
            let resident = other.resident_bytes();
            if resident > fair {
                other.try_evict(resident.saturating_sub(excess).max(fair));
                if self.excess() > 0 {
                    other.nudge();
                }
            }
        }
        self.excess() == 0
    }
}
