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

/// Blocks from this size on begin at a huge page and ask the kernel for such: rows are read at random, and with pages of
/// 4 KiB most reads would also miss the processor's table of addresses. The kernel may refuse, and nothing changes.
const HUGE: usize = 2 << 20;

/// The layout with which a huge block is asked for; `None` for others.
#[inline]
fn huge(layout: Layout) -> Option<Layout> {
    if layout.size() < HUGE { None } else { layout.align_to(HUGE).ok() }
}

#[cold]
fn advise(block: *mut u8, bytes: usize) {
    unsafe extern "C" {
        fn madvise(address: *mut u8, length: usize, advice: i32) -> i32;
    }
    const MADV_HUGEPAGE: i32 = 14;
    if !block.is_null() {
        // SAFETY: the whole pages of a live block, whose content the call leaves as it is.
        unsafe { madvise(block, bytes / HUGE * HUGE, MADV_HUGEPAGE) };
    }
}

pub struct Counted<A>(pub A);

// SAFETY: every call is passed on; that of a huge block with a greater alignment, which follows from its size, so that it
// is given back as it was asked for.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counted<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = match huge(layout) {
            None => unsafe { self.0.alloc(layout) },
            Some(aligned) => {
                let block = unsafe { self.0.alloc(aligned) };
                advise(block, layout.size());
                block
            }
        };
        if !block.is_null() {
            count(layout.size() as i64);
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        unsafe { self.0.dealloc(block, huge(layout).unwrap_or(layout)) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = match huge(layout) {
            None => unsafe { self.0.alloc_zeroed(layout) },
            Some(aligned) => {
                let block = unsafe { self.0.alloc(aligned) };
                advise(block, layout.size());
                if !block.is_null() {
                    unsafe { block.write_bytes(0, layout.size()) };
                }
                block
            }
        };
        if !block.is_null() {
            count(layout.size() as i64);
        }
        block
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if layout.size() < HUGE && new_size < HUGE {
            let new = unsafe { self.0.realloc(block, layout, new_size) };
            if !new.is_null() {
                count(new_size as i64 - layout.size() as i64);
            }
            return new;
        }
        // SAFETY: the caller promises that the new size is valid for this alignment.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        let new = unsafe { self.alloc(new_layout) };
        if !new.is_null() {
            // SAFETY: both blocks hold the smaller size, and are distinct.
            unsafe {
                new.copy_from_nonoverlapping(block, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
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

    #[test]
    fn blocks_keep_their_bytes_as_they_become_huge_and_small_again() {
        let mut block: Vec<u8> = (0..1 << 20).map(|i| i as u8).collect();
        for size in [3 << 20, 9 << 20, 2 << 20, 100] {
            block.resize(size.max(block.len()), 7);
            block.truncate(size);
            block.shrink_to_fit();
            assert!(size < super::HUGE || (block.as_ptr() as usize).is_multiple_of(super::HUGE));
            assert!(block.iter().take(1 << 20).enumerate().all(|(i, &byte)| byte == i as u8));
        }
        let zeroed = vec![0_u8; 5 << 20];
        assert!(zeroed.iter().all(|&byte| byte == 0));
    }
}
