//! The native memory through which keys, values and pages cross.
//!
//! Java writes a call's input straight to the scratch address and passes lengths only; an answer comes back as an
//! address, with its length in the header. Input and answers have memory of their own, so that writing the next input
//! leaves the last answer alone.

use std::alloc::Layout;
use std::ptr::NonNull;

use weir_store::ErrorKind;

use crate::error::{Failure, Result};

/// Header before the input: the answer's length, then flags or a number.
pub const HEADER_BYTES: usize = 16;
/// Flag bit: a page has a successor.
pub const FLAG_MORE: i64 = 1;

/// Bytes behind an answer that Java may read, so that it can copy eight at a time.
const BEHIND: usize = 8;
const ALIGN: usize = 16;
const FIRST_INPUT_BYTES: usize = 4 << 10;
/// Buffers above this size are given back once they are no longer needed at that size.
const KEEP_BYTES: usize = 1 << 20;

/// The scratch memory of one backend. Not for use by two threads at once; see [`crate::handles`].
pub struct Scratch {
    /// Header and input room: raw memory, for Java writes to it behind the compiler's back between two calls.
    base: NonNull<u8>,
    input_bytes: usize,
    /// The last value answered, at rest until the next call.
    value: Vec<u8>,
    /// The last page answered, at rest until the next page.
    page: Vec<u8>,
}

// SAFETY: the memory behind `base` belongs to the value alone.
unsafe impl Send for Scratch {}

impl Scratch {
    pub fn new() -> Result<Self> {
        let (base, input_bytes) = allocate(FIRST_INPUT_BYTES)?;
        Ok(Self { base, input_bytes, value: Vec::new(), page: Vec::new() })
    }

    /// Makes room for `min_bytes` of input and returns the address of the header. What was in the input room is kept as
    /// far as it fits; a room that a huge input left behind shrinks back.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `min_bytes` is negative; [`ErrorKind::Internal`] if memory is out.
    pub fn reserve(&mut self, min_bytes: i64) -> Result<i64> {
        let wanted = usize::try_from(min_bytes)
            .map_err(|_| Failure::invalid(format!("a scratch region cannot hold {min_bytes} bytes")))?;
        let shrink = self.input_bytes > KEEP_BYTES && wanted <= KEEP_BYTES / 2;
        if wanted > self.input_bytes || shrink {
            let (base, input_bytes) = allocate(wanted.max(FIRST_INPUT_BYTES))?;
            // SAFETY: both regions hold at least the header and the smaller of the two inputs, and are distinct.
            unsafe {
                let kept = HEADER_BYTES + self.input_bytes.min(input_bytes);
                base.copy_from_nonoverlapping(self.base, kept);
                release(self.base, self.input_bytes);
            }
            (self.base, self.input_bytes) = (base, input_bytes);
        }
        Ok(self.base.as_ptr() as i64)
    }

    /// The parts of the input, back to back, of the lengths that Java passed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if a length is negative or the parts reach beyond the input room.
    #[inline]
    pub fn input<const N: usize>(&self, lengths: [i32; N]) -> Result<[&[u8]; N]> {
        let mut parts: [&[u8]; N] = [&[]; N];
        let mut offset = 0;
        for (part, length) in parts.iter_mut().zip(lengths) {
            let end = match usize::try_from(length) {
                Ok(length) if length <= self.input_bytes - offset => offset + length,
                _ => return Err(self.out_of_bounds(&lengths)),
            };
            // SAFETY: `offset..end` lies in the input room, which lives as long as `self` is borrowed; the caller of
            // the native method is the one who writes there, and waits for it.
            *part = unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(HEADER_BYTES + offset), end - offset) };
            offset = end;
        }
        Ok(parts)
    }

    #[cold]
    fn out_of_bounds(&self, lengths: &[i32]) -> Failure {
        Failure::invalid(format!("input of {lengths:?} bytes in a scratch region of {}", self.input_bytes))
    }

    /// The input room and, beside it, where the answer goes.
    #[inline]
    pub fn split<const N: usize>(&mut self, lengths: [i32; N]) -> Result<([&[u8]; N], Answer<'_>)> {
        let base = self.base;
        // The borrows of the input and of the two buffers are disjoint; the input is raw memory, so the compiler cannot
        // see it.
        let this: *const Self = self;
        // SAFETY: as in `input`; `Answer` touches the header and the buffers only.
        let parts = unsafe { &*this }.input(lengths)?;
        Ok((parts, Answer { base, value: &mut self.value, page: &mut self.page }))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: made by `allocate` with this size.
        unsafe { release(self.base, self.input_bytes) }
    }
}

/// Where a call leaves what it found.
pub struct Answer<'a> {
    base: NonNull<u8>,
    value: &'a mut Vec<u8>,
    page: &'a mut Vec<u8>,
}

impl Answer<'_> {
    /// Keeps a copy of `value` until the next call; its address, or 0 for none.
    #[inline]
    pub fn value(&mut self, value: Option<&[u8]>) -> i64 {
        let Some(value) = value else { return 0 };
        if self.value.capacity() > KEEP_BYTES && value.len() < KEEP_BYTES / 2 {
            *self.value = Vec::new();
        }
        self.value.clear();
        self.value.reserve(value.len() + BEHIND);
        self.value.extend_from_slice(value);
        self.header(value.len(), 0);
        // An empty value must still be told from an absent one.
        if value.is_empty() { self.base.as_ptr() as i64 } else { self.value.as_ptr() as i64 }
    }

    /// Fills the page by `fill`, which says whether more follows; the page's address.
    pub fn page<E>(&mut self, fill: impl FnOnce(&mut Vec<u8>) -> std::result::Result<bool, E>) -> Result<i64>
    where
        Failure: From<E>,
    {
        self.page.clear();
        self.page.shrink_to(KEEP_BYTES);
        let more = fill(self.page)?;
        Ok(self.page_address(if more { FLAG_MORE } else { 0 }))
    }

    /// As [`Self::page`], but where `fill` says that it could not, 0 is returned.
    pub fn elements<E>(&mut self, fill: impl FnOnce(&mut Vec<u8>) -> std::result::Result<bool, E>) -> Result<i64>
    where
        Failure: From<E>,
    {
        self.page.clear();
        self.page.shrink_to(KEEP_BYTES);
        Ok(if fill(self.page)? { self.page_address(0) } else { 0 })
    }

    #[inline]
    fn page_address(&mut self, second: i64) -> i64 {
        self.page.reserve(BEHIND);
        self.header(self.page.len(), second);
        if self.page.is_empty() { self.base.as_ptr() as i64 } else { self.page.as_ptr() as i64 }
    }

    #[inline]
    fn header(&self, length: usize, second: i64) {
        // SAFETY: every region begins with an aligned header.
        unsafe {
            let header = self.base.cast::<i64>();
            header.write(length as i64);
            header.add(1).write(second);
        }
    }
}

fn layout(input_bytes: usize) -> Option<Layout> {
    Layout::from_size_align(input_bytes.checked_add(HEADER_BYTES)?, ALIGN).ok()
}

fn allocate(input_bytes: usize) -> Result<(NonNull<u8>, usize)> {
    let rounded = input_bytes.checked_next_power_of_two().unwrap_or(input_bytes);
    let region = layout(rounded).and_then(|layout| {
        // SAFETY: the size is not zero. Zeroed, so that reading room that Java has not written is defined.
        NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
    });
    match region {
        Some(base) => Ok((base, rounded)),
        None => {
            Err(Failure::new(ErrorKind::Internal, format!("no native memory for a scratch region of {rounded} bytes")))
        }
    }
}

/// # Safety
/// `base` comes from `allocate` with this size and is not used again.
unsafe fn release(base: NonNull<u8>, input_bytes: usize) {
    let layout = layout(input_bytes).expect("the layout was valid when the region was made");
    unsafe { std::alloc::dealloc(base.as_ptr(), layout) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(scratch: &mut Scratch, bytes: &[u8]) {
        let base = scratch.reserve(bytes.len() as i64).unwrap() as *mut u8;
        unsafe { base.add(HEADER_BYTES).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    fn header(scratch: &Scratch) -> (i64, i64) {
        let header = scratch.base.cast::<i64>();
        unsafe { (header.read(), header.add(1).read()) }
    }

    fn read(address: i64, length: i64) -> Vec<u8> {
        unsafe { std::slice::from_raw_parts(address as *const u8, length as usize) }.to_vec()
    }

    #[test]
    fn input_is_cut_by_the_lengths() {
        let mut scratch = Scratch::new().unwrap();
        write(&mut scratch, b"prefixsuffixvalue");
        assert_eq!(scratch.input([6, 6, 5]).unwrap(), [b"prefix".as_slice(), b"suffix", b"value"]);
        assert_eq!(scratch.input([0, 6]).unwrap(), [b"".as_slice(), b"prefix"]);
    }

    #[test]
    fn lengths_beyond_the_region_are_refused() {
        let scratch = Scratch::new().unwrap();
        let room = scratch.input_bytes as i32;
        assert!(scratch.input([room]).is_ok());
        for lengths in [[room + 1, 0], [room, 1], [-1, 0], [0, -1], [i32::MIN, i32::MAX], [i32::MAX, i32::MAX]] {
            let Err(Failure::Weir(error)) = scratch.input(lengths) else { panic!("{lengths:?} were taken") };
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }

    #[test]
    fn a_room_grows_keeps_its_content_and_shrinks_back() {
        let mut scratch = Scratch::new().unwrap();
        write(&mut scratch, b"key");
        scratch.reserve(8 << 20).unwrap();
        assert_eq!(scratch.input([3]).unwrap(), [b"key"]);
        assert!(scratch.input_bytes >= 8 << 20);
        scratch.reserve(100).unwrap();
        assert_eq!(scratch.input([3]).unwrap(), [b"key"]);
        assert!(scratch.input_bytes < KEEP_BYTES);
        assert!(scratch.reserve(-1).is_err());
        assert!(scratch.reserve(i64::MAX).is_err());
        assert_eq!(scratch.input([3]).unwrap(), [b"key"]);
    }

    #[test]
    fn an_answer_survives_the_next_input_and_an_empty_value_is_not_absent() {
        let mut scratch = Scratch::new().unwrap();
        write(&mut scratch, b"k1");
        let (_, mut answer) = scratch.split([2]).unwrap();
        let address = answer.value(Some(b"value"));
        assert_eq!(header(&scratch), (5, 0));
        write(&mut scratch, b"another key");
        assert_eq!(read(address, 5), b"value");

        let (_, mut answer) = scratch.split([2]).unwrap();
        assert_eq!(answer.value(None), 0);
        assert_ne!(answer.value(Some(b"")), 0);
        assert_eq!(header(&scratch).0, 0);
    }

    #[test]
    fn a_page_survives_a_value_and_carries_its_flag() {
        let mut scratch = Scratch::new().unwrap();
        let (_, mut answer) = scratch.split([0]).unwrap();
        let page = answer
            .page(|out| {
                out.extend_from_slice(b"page");
                Ok::<_, Failure>(true)
            })
            .unwrap();
        assert_eq!(header(&scratch), (4, FLAG_MORE));
        let (_, mut answer) = scratch.split([0]).unwrap();
        answer.value(Some(b"value"));
        assert_eq!(header(&scratch), (5, 0));
        assert_eq!(read(page, 4), b"page");
    }
}
