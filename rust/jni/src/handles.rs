//! What a `long` on the Java side means.
//!
//! A handle is a slot number and a generation, not an address: whatever number Java passes, and in whatever order calls,
//! `close` and `free` meet, a call either works on the backend that it names or fails with
//! [`ErrorKind::Closed`](weir_store::ErrorKind::Closed). Slots are reused and never given back, so a stale handle reads
//! a slot of a younger generation, not freed memory.
//!
//! Three ways in:
//! * [`Table::enter`], for the task thread: exclusive, a few nanoseconds, lends the scratch region too. It is the hot
//!   path. A second thread in the same slot is refused, not made to wait.
//! * [`Table::visit`], for another thread that has to read the state: takes turns with the task thread.
//! * [`Table::share`], for any thread: clones the `Arc`, so that the call may block without holding anything.
//!
//! [`Table::close`] empties a slot; the scratch region stays, for Java may still write to it or read the last answer.
//! [`Table::free`] takes the scratch region and lets the slot be used again; the Java owner's cleaner calls it, once
//! nothing on the Java side can reach the addresses any more.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weir_store::ErrorKind;

use crate::error::{Failure, Result};
use crate::scratch::Scratch;

/// Open handles of a process at most.
const SLOTS: usize = 1 << 16;
/// How long a call waits for another one that is just leaving, before it says that two threads meet.
const LEAVING: Duration = Duration::from_millis(2);
/// How long a visitor waits for its turn.
const TURN: Duration = Duration::from_secs(60);
/// How long `close` and `free` wait for a running call to notice that its backend is closed. The engine promises 100 ms.
const LAST_CALL: Duration = Duration::from_secs(10);

pub struct Table<T: 'static> {
    slots: [AtomicPtr<Slot<T>>; SLOTS],
    /// Numbers of slots to use again, and the first number never used.
    unused: Mutex<(Vec<u32>, u32)>,
    open: AtomicU32,
}

struct Slot<T> {
    /// Held by the one call that is inside; guards `inner`.
    busy: AtomicBool,
    /// While there are any, the task thread waits for its turn.
    visitors: Visitors,
    /// Set when a call panicked: what it left behind is not to be trusted.
    broken: AtomicBool,
    inner: UnsafeCell<Inner<T>>,
    /// Never held while anything else is done.
    shared: Mutex<Shared<T>>,
}

struct Inner<T> {
    generation: u32,
    value: Option<Arc<T>>,
    scratch: Option<Scratch>,
}

struct Shared<T> {
    generation: u32,
    value: Option<Arc<T>>,
}

// SAFETY: `inner` is only touched by the holder of `busy`.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T: Send + Sync> Table<T> {
    pub const fn new() -> Self {
        Self {
            slots: [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS],
            unused: Mutex::new((Vec::new(), 0)),
            open: AtomicU32::new(0),
        }
    }

    /// Handles that were made and not closed.
    pub fn open_handles(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// A handle for `value`; never 0.
    pub fn insert(&self, value: Arc<T>) -> Result<i64> {
        let scratch = Scratch::new()?;
        let number = {
            let mut unused = self.unused.lock();
            match unused.0.pop() {
                Some(number) => number,
                None if (unused.1 as usize) < SLOTS => {
                    unused.1 += 1;
                    unused.1 - 1
                }
                None => {
                    return Err(Failure::new(
                        ErrorKind::Internal,
                        format!("{SLOTS} state backends are open in this process; no more fit"),
                    ));
                }
            }
        };
        let entry = &self.slots[number as usize];
        let mut slot = entry.load(Ordering::Acquire);
        if slot.is_null() {
            slot = Box::into_raw(Box::new(Slot {
                busy: AtomicBool::new(false),
                visitors: Visitors::default(),
                broken: AtomicBool::new(false),
                inner: UnsafeCell::new(Inner { generation: 0, value: None, scratch: None }),
                shared: Mutex::new(Shared { generation: 0, value: None }),
            }));
            entry.store(slot, Ordering::Release);
        }
        // SAFETY: slots are never freed.
        let slot = unsafe { &*slot };
        let mut inner = slot.lock(Instant::now() + LAST_CALL).ok_or_else(|| {
            Failure::new(ErrorKind::Internal, format!("slot {number} is in use although it was given back"))
        })?;
        // Zero is left out, so that no handle is 0; the sign bit too.
        let generation = (inner.get().generation % (i32::MAX as u32)) + 1;
        slot.broken.store(false, Ordering::Relaxed);
        *inner.get() = Inner { generation, value: Some(Arc::clone(&value)), scratch: Some(scratch) };
        *slot.shared.lock() = Shared { generation, value: Some(value) };
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok((i64::from(generation) << 32) | i64::from(number))
    }

    #[inline]
    fn slot(&self, handle: i64) -> Result<(&'static Slot<T>, u32)> {
        let slot = match self.slots.get(handle as u32 as usize) {
            Some(entry) => entry.load(Ordering::Acquire),
            None => ptr::null_mut(),
        };
        // SAFETY: a slot once made is never freed.
        match unsafe { slot.as_ref() } {
            Some(slot) => Ok((slot, (handle >> 32) as u32)),
            None => Err(Failure::closed()),
        }
    }

    /// Enters the slot as its task thread.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after `close` or `free`; [`ErrorKind::InvalidArgument`] while another thread is inside;
    /// [`ErrorKind::Internal`] after a call that panicked.
    #[inline]
    pub fn enter(&self, handle: i64) -> Result<Entered<'static, T>> {
        let (slot, generation) = self.slot(handle)?;
        let mut entered = match slot.try_lock() {
            Some(entered) => entered,
            None => slot.lock_late(generation)?,
        };
        let inner = entered.get();
        if inner.generation != generation || inner.value.is_none() {
            return Err(Failure::closed());
        }
        if slot.broken.load(Ordering::Relaxed) {
            return Err(broken());
        }
        Ok(entered)
    }

    /// Enters the slot from another thread than the task's, between two of its calls.
    ///
    /// # Errors
    /// As of [`Self::enter`]; [`ErrorKind::Unavailable`] if the task thread stays inside for long.
    pub fn visit(&self, handle: i64) -> Result<Visit<'static, T>> {
        let (slot, generation) = self.slot(handle)?;
        let visitor = slot.visitors.arrive();
        let Some(mut entered) = slot.lock(Instant::now() + TURN) else {
            return Err(Failure::new(
                ErrorKind::Unavailable,
                format!("the task did not leave its state for {} s", TURN.as_secs()),
            ));
        };
        let inner = entered.get();
        if inner.generation != generation || inner.value.is_none() {
            return Err(Failure::closed());
        }
        if slot.broken.load(Ordering::Relaxed) {
            return Err(broken());
        }
        Ok(Visit { entered, _visitor: visitor })
    }

    /// What the handle names, for a call from any thread that may block.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after `close` or `free`; [`ErrorKind::Internal`] after a call that panicked.
    pub fn share(&self, handle: i64) -> Result<Arc<T>> {
        let (slot, generation) = self.slot(handle)?;
        if slot.broken.load(Ordering::Relaxed) {
            return Err(broken());
        }
        slot.shared.lock().get(generation).map(Arc::clone).ok_or_else(Failure::closed)
    }

    /// Empties the slot: runs `close` on what it held, which ends a call that blocks inside, and drops it once that call
    /// has left. Only the first call does anything.
    pub fn close(&self, handle: i64, close: impl FnOnce(&T)) {
        let Ok((slot, generation)) = self.slot(handle) else { return };
        let Some(value) = slot.shared.lock().take(generation) else { return };
        self.open.fetch_sub(1, Ordering::Relaxed);
        close(&value);
        drop(value);
        if let Some(mut entered) = slot.lock(Instant::now() + LAST_CALL) {
            let inner = entered.get();
            if inner.generation == generation {
                let last = inner.value.take();
                // Dropping may take a while; nobody need wait for it.
                drop(entered);
                drop(last);
            }
        }
    }

    /// Gives the slot up, with its scratch region; closes it first if nobody has. A handle freed before is left alone.
    pub fn free(&self, handle: i64, close: impl FnOnce(&T)) {
        self.close(handle, close);
        let Ok((slot, generation)) = self.slot(handle) else { return };
        let Some(mut entered) = slot.lock(Instant::now() + LAST_CALL) else {
            tracing::error!(
                "a call is still inside a state backend that was closed and freed; its memory is not given back"
            );
            return;
        };
        let inner = entered.get();
        if inner.generation != generation || inner.scratch.is_none() {
            return;
        }
        let last = (inner.value.take(), inner.scratch.take());
        drop(entered);
        drop(last);
        self.unused.lock().0.push(handle as u32);
    }
}

#[cold]
fn broken() -> Failure {
    Failure::new(ErrorKind::Internal, "an earlier call panicked inside this state backend; restart the task")
}

impl<T> Shared<T> {
    fn get(&self, generation: u32) -> Option<&Arc<T>> {
        self.value.as_ref().filter(|_| self.generation == generation)
    }

    fn take(&mut self, generation: u32) -> Option<Arc<T>> {
        if self.generation == generation { self.value.take() } else { None }
    }
}

impl<T> Slot<T> {
    #[inline]
    fn try_lock(&self) -> Option<Entered<'_, T>> {
        // Not `then_some`: an `Entered` that is made and dropped would let the other call's hold go.
        if self.busy.swap(true, Ordering::Acquire) { None } else { Some(Entered { slot: self }) }
    }

    fn lock(&self, deadline: Instant) -> Option<Entered<'_, T>> {
        loop {
            // Asked before the last try: a thread may be away from its core for longer than it is willing to wait.
            let late = Instant::now() > deadline;
            if let Some(entered) = self.try_lock() {
                return Some(entered);
            }
            if late {
                return None;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Somebody is inside: `close` for a moment, or a stale handle, or a second thread.
    #[cold]
    fn lock_late(&self, generation: u32) -> Result<Entered<'_, T>> {
        let entered = loop {
            let before = self.visitors.look();
            let entered = self.lock(Instant::now() + LEAVING);
            // Somebody else is to blame only if there was no visitor all the time.
            if entered.is_some() || (before.inside() == 0 && before == self.visitors.look()) {
                break entered;
            }
        };
        if self.shared.lock().get(generation).is_none() {
            return Err(Failure::closed());
        }
        entered.ok_or_else(|| {
            Failure::invalid("two threads called the same state backend at once; it belongs to its task thread")
        })
    }
}

/// Counts a visitor until it is dropped.
/// How many visitors have arrived so far (the upper half), and are inside or wait to be.
#[derive(Default)]
struct Visitors(AtomicU64);

#[derive(Clone, Copy, PartialEq)]
struct Visited(u64);

struct Visitor<'a>(&'a Visitors);

impl Visitors {
    fn arrive(&self) -> Visitor<'_> {
        self.0.fetch_add(1 << 32 | 1, Ordering::AcqRel);
        Visitor(self)
    }

    fn look(&self) -> Visited {
        Visited(self.0.load(Ordering::Acquire))
    }
}

impl Visited {
    fn inside(self) -> u32 {
        self.0 as u32
    }
}

impl Drop for Visitor<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A visitor's call inside a slot; leaves when dropped.
pub struct Visit<'a, T> {
    // In this order: the task thread waits until both are gone.
    entered: Entered<'a, T>,
    _visitor: Visitor<'a>,
}

impl<T> Visit<'_, T> {
    /// What the handle names. The scratch region is the task thread's alone.
    pub fn value(&mut self) -> Result<&T> {
        Ok(self.entered.parts()?.0)
    }
}

/// A call inside a slot; leaves when dropped.
pub struct Entered<'a, T> {
    slot: &'a Slot<T>,
}

impl<T> Entered<'_, T> {
    #[inline]
    fn get(&mut self) -> &mut Inner<T> {
        // SAFETY: this value holds `busy`.
        unsafe { &mut *self.slot.inner.get() }
    }

    /// What the handle names, and its scratch region.
    #[inline]
    pub fn parts(&mut self) -> Result<(&T, &mut Scratch)> {
        match self.get() {
            Inner { value: Some(value), scratch: Some(scratch), .. } => Ok((value, scratch)),
            _ => Err(Failure::closed()),
        }
    }
}

impl<T> Drop for Entered<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.slot.broken.store(true, Ordering::Relaxed);
        }
        self.slot.busy.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts its instances, and says in `value` whether it was closed.
    struct Backend {
        live: Arc<AtomicUsize>,
        closed: AtomicBool,
    }

    impl Backend {
        fn new(live: &Arc<AtomicUsize>) -> Arc<Self> {
            live.fetch_add(1, Ordering::SeqCst);
            Arc::new(Self { live: Arc::clone(live), closed: AtomicBool::new(false) })
        }

        fn close(&self) {
            assert!(!self.closed.swap(true, Ordering::SeqCst), "closed twice");
        }
    }

    impl Drop for Backend {
        fn drop(&mut self) {
            self.live.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
        match result {
            Ok(_) => None,
            Err(Failure::Weir(error)) => Some(error.kind()),
            Err(Failure::JavaException) => panic!("no JVM here"),
        }
    }

    #[test]
    fn calls_after_close_and_free_are_closed_errors() {
        static TABLE: Table<Backend> = Table::new();
        let live = Arc::default();
        let handle = TABLE.insert(Backend::new(&live)).unwrap();
        assert_ne!(handle, 0);
        assert!(TABLE.enter(handle).unwrap().parts().is_ok());
        assert_eq!(TABLE.open_handles(), 1);
        TABLE.close(handle, Backend::close);
        TABLE.close(handle, Backend::close);
        assert_eq!(live.load(Ordering::SeqCst), 0);
        assert_eq!(TABLE.open_handles(), 0);
        assert_eq!(kind(TABLE.enter(handle)), Some(ErrorKind::Closed));
        assert_eq!(kind(TABLE.share(handle)), Some(ErrorKind::Closed));
        TABLE.free(handle, Backend::close);
        TABLE.free(handle, Backend::close);
        assert_eq!(kind(TABLE.enter(handle)), Some(ErrorKind::Closed));

        // The slot is used again; the old handle does not reach the new backend, nor does freeing it again.
        let next = TABLE.insert(Backend::new(&live)).unwrap();
        assert_eq!(next as u32, handle as u32);
        assert_eq!(kind(TABLE.enter(handle)), Some(ErrorKind::Closed));
        assert_eq!(kind(TABLE.share(handle)), Some(ErrorKind::Closed));
        TABLE.free(handle, Backend::close);
        assert_eq!(kind(TABLE.enter(next)), None);
        TABLE.free(next, Backend::close);
        assert_eq!(live.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn numbers_that_never_were_handles_are_closed_errors() {
        static TABLE: Table<Backend> = Table::new();
        for handle in [0, 1, -1, i64::MIN, i64::MAX, 0x7fff_0000_0000_0000, 65_535, 65_536] {
            assert_eq!(kind(TABLE.enter(handle)), Some(ErrorKind::Closed));
            assert_eq!(kind(TABLE.share(handle)), Some(ErrorKind::Closed));
            TABLE.close(handle, Backend::close);
            TABLE.free(handle, Backend::close);
        }
    }

    #[test]
    fn a_second_thread_inside_is_refused() {
        static TABLE: Table<Backend> = Table::new();
        let live = Arc::default();
        let handle = TABLE.insert(Backend::new(&live)).unwrap();
        let inside = TABLE.enter(handle).unwrap();
        assert_eq!(kind(TABLE.enter(handle)), Some(ErrorKind::InvalidArgument));
        drop(inside);
        assert_eq!(kind(TABLE.enter(handle)), None);
        TABLE.free(handle, Backend::close);
    }

    #[test]
    fn visitors_take_turns_with_the_task_thread() {
        static TABLE: Table<Backend> = Table::new();
        let live = Arc::default();
        let handle = TABLE.insert(Backend::new(&live)).unwrap();
        let inside = AtomicUsize::new(0);
        let alone = |inside: &AtomicUsize| {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
            std::hint::black_box((0..100).sum::<u32>());
            inside.fetch_sub(1, Ordering::SeqCst);
        };
        std::thread::scope(|threads| {
            for visitor in 0..2 {
                let inside = &inside;
                threads.spawn(move || {
                    for visits in 0..200 {
                        let mut visit = TABLE.visit(handle).unwrap();
                        visit.value().unwrap();
                        alone(inside);
                        if visitor == 0 {
                            // Now and then about as long as the task thread waits for anyone else, so that its wait ends
                            // while one visitor leaves and before the next arrives.
                            std::thread::sleep(if visits % 4 == 0 { LEAVING } else { LEAVING / 10 });
                        }
                    }
                });
            }
            for _ in 0..5_000 {
                let call = TABLE.enter(handle).unwrap();
                alone(&inside);
                drop(call);
            }
        });
        TABLE.close(handle, Backend::close);
        assert_eq!(kind(TABLE.visit(handle)), Some(ErrorKind::Closed));
        TABLE.free(handle, Backend::close);
    }

    #[test]
    fn a_visitor_that_came_and_went_is_seen() {
        let visitors = Visitors::default();
        let before = visitors.look();
        let visitor = visitors.arrive();
        assert_eq!((before.inside(), visitors.look().inside()), (0, 1));
        drop(visitor);
        assert_eq!(visitors.look().inside(), 0);
        assert!(before != visitors.look());
    }

    #[test]
    fn a_panic_inside_breaks_the_backend_but_not_its_end() {
        static TABLE: Table<Backend> = Table::new();
        let live = Arc::default();
        let handle = TABLE.insert(Backend::new(&live)).unwrap();
        let result = std::panic::catch_unwind(|| {
            let _inside = TABLE.enter(handle);
            panic!("on purpose");
        });
        assert!(result.is_err());
        assert_eq!(kind(TABLE.enter(handle)), Some(ErrorKind::Internal));
        assert_eq!(kind(TABLE.share(handle)), Some(ErrorKind::Internal));
        TABLE.free(handle, Backend::close);
        assert_eq!(live.load(Ordering::SeqCst), 0);
        let next = TABLE.insert(Backend::new(&live)).unwrap();
        assert_eq!(kind(TABLE.enter(next)), None);
        TABLE.free(next, Backend::close);
    }

    #[test]
    fn calls_race_with_close_and_free() {
        static TABLE: Table<Backend> = Table::new();
        let live: Arc<AtomicUsize> = Arc::default();
        for round in 0..200 {
            let handle = TABLE.insert(Backend::new(&live)).unwrap();
            let ended = AtomicUsize::new(0);
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    // The task thread: until it is told that the backend is closed.
                    loop {
                        match TABLE.enter(handle) {
                            Ok(mut call) => {
                                let (backend, scratch) = call.parts().unwrap();
                                std::hint::black_box(backend.closed.load(Ordering::Relaxed));
                                scratch.reserve(64).unwrap();
                            }
                            failure => {
                                assert_eq!(kind(failure), Some(ErrorKind::Closed));
                                break;
                            }
                        }
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                });
                threads.spawn(|| {
                    // The thread of an asynchronous snapshot.
                    loop {
                        match TABLE.share(handle) {
                            Ok(backend) => drop(std::hint::black_box(backend)),
                            failure => {
                                assert_eq!(kind(failure), Some(ErrorKind::Closed));
                                break;
                            }
                        }
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                });
                threads.spawn(|| {
                    for _ in 0..round % 50 {
                        std::thread::yield_now();
                    }
                    TABLE.close(handle, Backend::close);
                });
                if round % 2 == 0 {
                    threads.spawn(|| TABLE.free(handle, Backend::close));
                }
            });
            TABLE.free(handle, Backend::close);
            assert_eq!(ended.load(Ordering::SeqCst), 2);
            assert_eq!(live.load(Ordering::SeqCst), 0, "round {round}");
        }
        assert_eq!(TABLE.open_handles(), 0);
    }
}
