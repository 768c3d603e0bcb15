//! The library's allocator, with a count of live bytes, so that a leak of native memory is a figure in Java's tests.
//!
//! It is the C library's: allocators with thread-local heaps of their own do not get along with a library that is loaded
//! late, beside threads that are there already (mimalloc 3 crashed in a thread of the JVM).

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicI64, Ordering};

const SHARDS: usize = 16;

#[repr(align(128))]
struct Shard(AtomicI64);

/// Live bytes by shard: a block may be freed on another thread than it was made on, so only the sum means anything.
static LIVE: [Shard; SHARDS] = [const { Shard(AtomicI64::new(0)) }; SHARDS];

/// Threads have stacks of their own, so the address of a local tells them apart without thread-local storage, which a
/// shared library pays a call for.
#[inline]
fn count(bytes: i64) {
    let local = 0u8;
    let page = (&raw const local as usize) >> 18;
    LIVE[(page ^ (page >> 4)) % SHARDS].0.fetch_add(bytes, Ordering::Relaxed);
}

/// Bytes that were asked of the allocator and not yet given back.
pub fn live_bytes() -> i64 {
    LIVE.iter().map(|shard| shard.0.load(Ordering::Relaxed)).sum()
}

pub struct Counted<A>(pub A);

// SAFETY: every call is passed on unchanged.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counted<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = unsafe { self.0.alloc(layout) };
        if !block.is_null() {
            count(layout.size() as i64);
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        unsafe { self.0.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = unsafe { self.0.alloc_zeroed(layout) };
        if !block.is_null() {
            count(layout.size() as i64);
        }
        block
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let new = unsafe { self.0.realloc(block, layout, new_size) };
        if !new.is_null() {
            count(new_size as i64 - layout.size() as i64);
        }
        new
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn live_bytes_rise_and_fall_with_a_large_block() {
        const BLOCK: usize = 64 << 20;
        let before = super::live_bytes();
        let block = vec![1u8; BLOCK];
        let during = super::live_bytes();
        drop(block);
        let after = super::live_bytes();
        // Other tests allocate meanwhile, but nothing of this size.
        assert!(during - before > BLOCK as i64 / 2, "{before} -> {during}");
        assert!(during - after > BLOCK as i64 / 2, "{during} -> {after}");
    }
}
