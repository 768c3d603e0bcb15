//! What a row's value is while it is in memory.

use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::num::NonZeroU8;

/// The form in which a value is resident. The bridge keeps bytes; an operator written in Rust can keep its decoded state
/// and pay for the encoding only when the row is flushed.
///
/// `from_bytes(as_bytes(v))` must equal `v` to every reader.
pub trait Resident: Sized + Send + 'static {
    fn from_bytes(bytes: &[u8]) -> Self;

    /// The bytes that go to the store.
    fn as_bytes(&self) -> Cow<'_, [u8]>;

    /// Bytes on the heap that belong to this value, as the memory budget counts them.
    fn heap_bytes(&self) -> usize;

    /// Replaces the value; an implementation may reuse what it has allocated.
    fn assign(&mut self, bytes: &[u8]) {
        *self = Self::from_bytes(bytes);
    }

    /// Appends these bytes, one after the other, to those of the value; an implementation may reuse what it has allocated.
    fn append(&mut self, parts: [&[u8]; 2]) {
        let bytes = [&self.as_bytes(), parts[0], parts[1]].concat();
        self.assign(&bytes);
    }
}

/// Bytes of which up to 15 lie in the row itself, so that reading a small value costs no second access to memory; more
/// are on the heap.
#[repr(C, align(8))]
pub struct SmallBytes {
    /// The bytes, or the address and the `u32` length of a boxed slice.
    data: [MaybeUninit<u8>; SmallBytes::INLINE],
    /// One more than the number of bytes in `data`, or [`HEAP`].
    tag: NonZeroU8,
}

const HEAP: NonZeroU8 = NonZeroU8::MAX;

// SAFETY: the slice on the heap belongs to the value alone.
unsafe impl Send for SmallBytes {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for SmallBytes {}

impl SmallBytes {
    const INLINE: usize = 15;

    #[inline]
    fn new(bytes: &[u8]) -> Self {
        if bytes.len() > Self::INLINE {
            return Self::on_heap(Box::from(bytes));
        }
        let mut data = [MaybeUninit::uninit(); Self::INLINE];
        let target: *mut u8 = data.as_mut_ptr().cast();
        // SAFETY: there is room, and `data` is new.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Self { data, tag: NonZeroU8::MIN.saturating_add(bytes.len() as u8) }
    }

    #[inline]
    fn on_heap(bytes: Box<[u8]>) -> Self {
        let mut data = [MaybeUninit::uninit(); Self::INLINE];
        let target: *mut u8 = data.as_mut_ptr().cast();
        let len = u32::try_from(bytes.len()).expect("a value has less than 4 GiB");
        let start: *mut u8 = Box::into_raw(bytes).cast();
        // SAFETY: 12 of 15 bytes; unaligned, since only the finished value is aligned for sure.
        unsafe {
            target.cast::<*mut u8>().write_unaligned(start);
            target.add(8).cast::<u32>().write_unaligned(len);
        }
        Self { data, tag: HEAP }
    }

    /// Takes the slice on the heap out, which leaves an empty value.
    #[inline]
    fn take_heap(&mut self) -> Option<Box<[u8]>> {
        let slice = self.heap()?;
        self.tag = NonZeroU8::MIN;
        // SAFETY: made by `Box::into_raw`, and no longer this value's.
        Some(unsafe { Box::from_raw(slice) })
    }

    /// The slice on the heap, if there is one.
    #[inline]
    fn heap(&self) -> Option<*mut [u8]> {
        (self.tag == HEAP).then(|| {
            let data: *const u8 = self.data.as_ptr().cast();
            // SAFETY: `new` has written both; the type is aligned for them.
            unsafe {
                let (start, len) = (data.cast::<*mut u8>().read(), data.add(8).cast::<u32>().read());
                std::ptr::slice_from_raw_parts_mut(start, len as usize)
            }
        })
    }

    #[inline]
    fn as_slice(&self) -> &[u8] {
        match self.heap() {
            // SAFETY: it lives as long as this value.
            Some(slice) => unsafe { &*slice },
            // SAFETY: so many bytes have been written.
            None => unsafe { std::slice::from_raw_parts(self.data.as_ptr().cast(), usize::from(self.tag.get()) - 1) },
        }
    }
}

impl Drop for SmallBytes {
    #[inline]
    fn drop(&mut self) {
        drop(self.take_heap());
    }
}

impl Resident for SmallBytes {
    #[inline]
    fn from_bytes(bytes: &[u8]) -> Self {
        Self::new(bytes)
    }

    #[inline]
    fn as_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.as_slice())
    }

    #[inline]
    fn heap_bytes(&self) -> usize {
        self.heap().map_or(0, |slice| slice.len())
    }

    /// In place if the length stays.
    #[inline]
    fn assign(&mut self, bytes: &[u8]) {
        match self.heap() {
            // SAFETY: the slice is this value's alone.
            Some(slice) if slice.len() == bytes.len() => unsafe { (*slice).copy_from_slice(bytes) },
            _ => *self = Self::new(bytes),
        }
    }

    /// The allocation grows, often in its place.
    #[inline]
    fn append(&mut self, [first, second]: [&[u8]; 2]) {
        let len = self.as_slice().len();
        let more = first.len() + second.len();
        let mut bytes = match self.take_heap() {
            Some(bytes) => {
                let mut bytes = bytes.into_vec();
                bytes.reserve_exact(more);
                bytes
            }
            None if len + more <= Self::INLINE => {
                let target: *mut u8 = self.data.as_mut_ptr().cast();
                // SAFETY: there is room behind the `len` bytes that have been written.
                unsafe {
                    target.add(len).copy_from_nonoverlapping(first.as_ptr(), first.len());
                    target.add(len + first.len()).copy_from_nonoverlapping(second.as_ptr(), second.len());
                }
                self.tag = NonZeroU8::MIN.saturating_add((len + more) as u8);
                return;
            }
            None => {
                let mut bytes = Vec::with_capacity(len + more);
                bytes.extend_from_slice(self.as_slice());
                bytes
            }
        };
        bytes.extend_from_slice(first);
        bytes.extend_from_slice(second);
        *self = Self::on_heap(bytes.into_boxed_slice());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_what_a_row_has_for_a_value() {
        assert_eq!(size_of::<Option<SmallBytes>>(), 16);
    }

    #[test]
    fn keeps_bytes_on_both_sides_of_the_inline_bound_through_every_assignment() {
        let bytes = |len: usize, seed: usize| (0..len).map(|i| (i * 7 + seed) as u8).collect::<Vec<_>>();
        let lengths = [0, 1, 8, 14, 15, 16, 17, 300, 70_000];
        for before in lengths {
            for after in lengths {
                let mut value = SmallBytes::from_bytes(&bytes(before, 1));
                assert_eq!(value.as_bytes(), bytes(before, 1));
                value.assign(&bytes(after, 2));
                assert_eq!(value.as_bytes(), bytes(after, 2));
                assert_eq!(value.heap_bytes(), if after > 15 { after } else { 0 });
                let appended = bytes(before, 3);
                let (first, second) = appended.split_at(before / 3);
                value.append([first, second]);
                assert_eq!(value.as_bytes(), [bytes(after, 2), appended.clone()].concat());
                assert_eq!(value.heap_bytes(), if before + after > 15 { before + after } else { 0 });
            }
        }
    }
}
