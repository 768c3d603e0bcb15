//! A slab that grows and shrinks by chunks, so that it neither copies on growth nor keeps its high-water mark.

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};
use std::ptr::NonNull;

/// What fills an unused place of a [`Slab`].
pub(crate) trait Vacant {
    fn vacant() -> Self;
}

/// Places named by `u32`, `N` a chunk (at most 128). The lowest free place is used first, so that the last chunk empties.
pub(crate) struct Slab<T, const N: usize> {
    /// Where each chunk begins; all places of all of them hold a value.
    chunks: Vec<NonNull<T>>,
    /// What the chunks lie in, in their order. Of a large slab the last one may be empty, so that a slab whose size goes
    /// to and fro does not ask for memory each time.
    regions: Vec<Region>,
    /// A bit a free place, a word a chunk.
    free: Vec<u128>,
    /// No chunk below this one has a free place.
    lowest_free: usize,
    used: usize,
    owns: PhantomData<T>,
}

/// One allocation: a single chunk of a small slab; of a large one as many as fill a huge page, which spare the processor
/// most of its look-ups of addresses.
struct Region {
    start: NonNull<u8>,
    layout: Layout,
    /// Number of the first chunk, and how many fit.
    first: usize,
    chunks: usize,
}

/// From this size on a slab grows by huge pages.
const LARGE: usize = 16 << 20;
const HUGE: usize = 2 << 20;

// SAFETY: the slab owns its values as a `Vec<T>` would.
unsafe impl<T: Send, const N: usize> Send for Slab<T, N> {}
// SAFETY: as above.
unsafe impl<T: Sync, const N: usize> Sync for Slab<T, N> {}

impl<T: Vacant, const N: usize> Slab<T, N> {
    const ALL_FREE: u128 = if N == 128 { u128::MAX } else { (1 << N) - 1 };
    const CHUNK_BYTES: usize = N * size_of::<T>();

    pub fn new() -> Self {
        const { assert!(N.is_power_of_two() && N <= 128 && size_of::<T>() > 0) };
        Self { chunks: Vec::new(), regions: Vec::new(), free: Vec::new(), lowest_free: 0, used: 0, owns: PhantomData }
    }

    /// Takes a place; what it holds is vacant, or what its last user left in it.
    pub fn alloc(&mut self) -> u32 {
        let mut chunk = self.lowest_free;
        while chunk < self.free.len() && self.free[chunk] == 0 {
            chunk += 1;
        }
        self.lowest_free = chunk;
        if chunk == self.chunks.len() {
            assert!(chunk < (u32::MAX as usize) / N, "more rows than a u32 names");
            self.push_chunk();
        }
        let place = self.free[chunk].trailing_zeros();
        self.free[chunk] &= !(1 << place);
        self.used += 1;
        (chunk * N) as u32 + place
    }

    fn push_chunk(&mut self) {
        let chunk = self.chunks.len();
        if self.regions.last().is_none_or(|last| chunk == last.first + last.chunks) {
            let chunks = if chunk * Self::CHUNK_BYTES < LARGE { 1 } else { HUGE.div_ceil(Self::CHUNK_BYTES) };
            let layout = Layout::array::<T>(chunks * N).expect("a region has a few MiB at most");
            // SAFETY: the size is not zero.
            let start = NonNull::new(unsafe { std::alloc::alloc(layout) });
            let start = start.unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
            self.regions.push(Region { start, layout, first: chunk, chunks });
        }
        let region = &self.regions[self.regions.len() - 1];
        // SAFETY: the region has room for this chunk, and nothing lies there yet.
        let start = unsafe {
            let start = region.start.cast::<T>().add((chunk - region.first) * N);
            (0..N).for_each(|place| start.add(place).write(T::vacant()));
            start
        };
        self.chunks.push(start);
        self.free.push(Self::ALL_FREE);
    }

    pub fn release(&mut self, id: u32) {
        let (chunk, place) = (id as usize / N, id as usize % N);
        debug_assert_eq!(self.free[chunk] >> place & 1, 0, "released twice");
        self.free[chunk] |= 1 << place;
        self.lowest_free = self.lowest_free.min(chunk);
        self.used -= 1;
    }

    pub fn used(&self) -> usize {
        self.used
    }

    /// One more than the greatest name.
    pub fn end(&self) -> u32 {
        (self.chunks.len() * N) as u32
    }

    pub fn unused(&self) -> usize {
        self.chunks.len() * N - self.used
    }

    pub fn is_used(&self, id: u32) -> bool {
        let (chunk, place) = (id as usize / N, id as usize % N);
        self.free.get(chunk).is_some_and(|free| free >> place & 1 == 0)
    }

    /// Has the processor read so many places side by side rather than one after the other.
    #[inline]
    pub fn prefetch(&self, ids: impl Iterator<Item = u32>) {
        ids.for_each(|id| prefetch(&raw const self[id]));
    }

    /// The names of the last chunk.
    pub fn last_chunk(&self) -> std::ops::Range<u32> {
        self.end().saturating_sub(N as u32)..self.end()
    }

    /// Gives the last chunk back if nothing is in it.
    pub fn pop_chunk(&mut self) -> bool {
        if self.free.last() != Some(&Self::ALL_FREE) {
            return false;
        }
        if let Some(chunk) = self.chunks.pop() {
            // SAFETY: all its places hold values, which nobody reaches any more.
            unsafe { std::ptr::slice_from_raw_parts_mut(chunk.as_ptr(), N).drop_in_place() };
        }
        self.free.pop();
        self.give_back();
        if self.chunks.capacity() > 4 * self.chunks.len() + 16 {
            self.chunks.shrink_to(2 * self.chunks.len());
            self.free.shrink_to(2 * self.free.len());
            self.regions.shrink_to(2 * self.regions.len());
        }
        self.lowest_free = self.lowest_free.min(self.chunks.len());
        true
    }

    /// Bytes of the chunks, and of what regions may hold beyond them.
    pub fn bytes(&self) -> usize {
        let beyond = if self.regions.last().is_some_and(|last| last.chunks > 1) { 2 * HUGE } else { 0 };
        self.chunks.len() * Self::CHUNK_BYTES
            + beyond
            + self.chunks.capacity() * size_of::<NonNull<T>>()
            + self.regions.capacity() * size_of::<Region>()
            + self.free.capacity() * size_of::<u128>()
    }
}

/// Has the processor read the line of the cache at an address, and goes on meanwhile.
#[inline]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program sees, and does nothing at an address that cannot be read.
        unsafe { _mm_prefetch(address.cast(), _MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

impl<T, const N: usize> Slab<T, N> {
    /// Returns the regions without a chunk, but for one of a large slab.
    fn give_back(&mut self) {
        let chunks = self.chunks.len();
        while let [.., before, last] = self.regions.as_slice() {
            let superfluous = if last.chunks > 1 { before.first >= chunks } else { last.first >= chunks };
            if !superfluous {
                return;
            }
            self.pop_region();
        }
        if chunks == 0 {
            self.pop_region();
        }
    }

    fn pop_region(&mut self) {
        if let Some(region) = self.regions.pop() {
            // SAFETY: allocated with this layout; no chunk is left in it.
            unsafe { std::alloc::dealloc(region.start.as_ptr(), region.layout) };
        }
    }
}

impl<T, const N: usize> Drop for Slab<T, N> {
    fn drop(&mut self) {
        for chunk in self.chunks.drain(..) {
            // SAFETY: all its places hold values, which nobody reaches any more.
            unsafe { std::ptr::slice_from_raw_parts_mut(chunk.as_ptr(), N).drop_in_place() };
        }
        while !self.regions.is_empty() {
            self.pop_region();
        }
    }
}

impl<T, const N: usize> Index<u32> for Slab<T, N> {
    type Output = T;

    #[inline]
    fn index(&self, id: u32) -> &T {
        // SAFETY: the chunk has `N` places, all of which hold values, and is borrowed with the slab.
        unsafe { self.chunks[id as usize / N].add(id as usize % N).as_ref() }
    }
}

impl<T, const N: usize> IndexMut<u32> for Slab<T, N> {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut T {
        // SAFETY: as above; the slab is borrowed mutably.
        unsafe { self.chunks[id as usize / N].add(id as usize % N).as_mut() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Vacant for u64 {
        fn vacant() -> Self {
            0
        }
    }

    #[test]
    fn uses_the_lowest_place_and_gives_the_last_chunk_back() {
        let mut slab: Slab<u64, 4> = Slab::new();
        let ids: Vec<u32> = (0..10).map(|_| slab.alloc()).collect();
        assert_eq!(ids, (0..10).collect::<Vec<_>>());
        assert_eq!((slab.used(), slab.unused(), slab.end()), (10, 2, 12));
        slab.release(3);
        slab.release(1);
        assert!(!slab.pop_chunk());
        assert_eq!(slab.alloc(), 1);
        slab.release(8);
        slab.release(9);
        assert!(slab.pop_chunk());
        assert!(!slab.pop_chunk());
        assert_eq!((slab.used(), slab.end()), (7, 8));
        assert!(!slab.is_used(3) && slab.is_used(4) && !slab.is_used(100));
        assert_eq!(slab.alloc(), 3);
        assert_eq!(slab.alloc(), 8);
    }

    #[test]
    fn bytes_follow_the_chunks() {
        let mut slab: Slab<u64, 128> = Slab::new();
        assert_eq!(slab.bytes(), 0);
        let ids: Vec<u32> = (0..1000).map(|_| slab.alloc()).collect();
        let full = slab.bytes();
        assert!(full >= 1024 * 8);
        for id in ids {
            slab.release(id);
        }
        while slab.pop_chunk() {}
        assert!(slab.bytes() < full / 8);
        assert_eq!(slab.used(), 0);
    }

    /// 1 KiB, which counts its living values.
    struct Large(Option<std::rc::Rc<()>>, #[allow(dead_code)] [u8; 1016]);

    impl Vacant for Large {
        fn vacant() -> Self {
            Self(None, [0; 1016])
        }
    }

    #[test]
    fn a_large_slab_grows_by_huge_pages_and_gives_them_back() {
        let living = std::rc::Rc::new(());
        let mut slab: Slab<Large, 32> = Slab::new();
        let mut ids = Vec::new();
        for _ in 0..20 << 10 {
            let id = slab.alloc();
            slab[id].0 = Some(living.clone());
            ids.push(id);
        }
        assert_eq!(std::rc::Rc::strong_count(&living), 1 + (20 << 10));
        // 16 MiB in chunks, then two huge pages.
        assert_eq!(slab.regions.iter().map(|region| region.chunks).collect::<Vec<_>>()[510..], [1, 1, 64, 64]);
        let allocated = |slab: &Slab<Large, 32>| slab.regions.iter().map(|region| region.layout.size()).sum::<usize>();
        assert!(allocated(&slab) <= slab.bytes());
        for (left, id) in ids.into_iter().enumerate().rev() {
            slab.release(id);
            while slab.pop_chunk() {}
            assert!(allocated(&slab) <= slab.bytes(), "{left} left");
            assert_eq!(slab.used(), left);
            if left % 4096 == 0 {
                let id = slab.alloc();
                assert!(slab[id].0.is_none());
                slab.release(id);
            }
        }
        while slab.pop_chunk() {}
        assert_eq!((slab.regions.len(), std::rc::Rc::strong_count(&living)), (0, 1));
        let id = slab.alloc();
        slab[id].0 = Some(living.clone());
        drop(slab);
        assert_eq!(std::rc::Rc::strong_count(&living), 1);
    }
}
