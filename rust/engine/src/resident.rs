//! What a row's value is while it is in memory.

use std::borrow::Cow;

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
}

impl Resident for Box<[u8]> {
    #[inline]
    fn from_bytes(bytes: &[u8]) -> Self {
        Box::from(bytes)
    }

    #[inline]
    fn as_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }

    #[inline]
    fn heap_bytes(&self) -> usize {
        self.len()
    }

    /// In place if the length stays.
    #[inline]
    fn assign(&mut self, bytes: &[u8]) {
        if self.len() == bytes.len() {
            self.copy_from_slice(bytes);
        } else {
            *self = Box::from(bytes);
        }
    }
}
