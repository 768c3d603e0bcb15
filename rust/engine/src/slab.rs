//! A slab that grows and shrinks by chunks, so that it neither copies on growth nor keeps its high-water mark.

use std::ops::{Index, IndexMut};

/// What fills an unused place of a [`Slab`].
pub(crate) trait Vacant {
    fn vacant() -> Self;
}

/// Places named by `u32`, `N` a chunk (at most 128). The lowest free place is used first, so that the last chunk empties.
pub(crate) struct Slab<T, const N: usize> {
    chunks: Vec<Box<[T]>>,
    /// A bit a free place, a word a chunk.
    free: Vec<u128>,
    /// No chunk below this one has a free place.
    lowest_free: usize,
    used: usize,
}

impl<T: Vacant, const N: usize> Slab<T, N> {
    const ALL_FREE: u128 = if N == 128 { u128::MAX } else { (1 << N) - 1 };

    pub fn new() -> Self {
        const { assert!(N.is_power_of_two() && N <= 128) };
        Self { chunks: Vec::new(), free: Vec::new(), lowest_free: 0, used: 0 }
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
            self.chunks.push(std::iter::repeat_with(T::vacant).take(N).collect());
            self.free.push(Self::ALL_FREE);
        }
        let place = self.free[chunk].trailing_zeros();
        self.free[chunk] &= !(1 << place);
        self.used += 1;
        (chunk * N) as u32 + place
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
        #[cfg(target_arch = "x86_64")]
        for id in ids {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: the address is that of a place; a prefetch reads nothing that the program sees.
            unsafe { _mm_prefetch((&raw const self[id]).cast(), _MM_HINT_T0) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        drop(ids);
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
        self.chunks.pop();
        self.free.pop();
        if self.chunks.capacity() > 4 * self.chunks.len() + 16 {
            self.chunks.shrink_to(2 * self.chunks.len());
            self.free.shrink_to(2 * self.free.len());
        }
        self.lowest_free = self.lowest_free.min(self.chunks.len());
        true
    }

    pub fn bytes(&self) -> usize {
        self.chunks.len() * N * size_of::<T>()
            + self.chunks.capacity() * size_of::<Box<[T]>>()
            + self.free.capacity() * size_of::<u128>()
    }
}

impl<T, const N: usize> Index<u32> for Slab<T, N> {
    type Output = T;

    #[inline]
    fn index(&self, id: u32) -> &T {
        &self.chunks[id as usize / N][id as usize % N]
    }
}

impl<T, const N: usize> IndexMut<u32> for Slab<T, N> {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut T {
        &mut self.chunks[id as usize / N][id as usize % N]
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
}
