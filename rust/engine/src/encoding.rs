//! Encodings of row keys, byte for byte those of crate `arrow-row` (ascending, nulls first).

/// The suffix of a list element: `sequence` as arrow-row encodes a `UInt64`.
pub fn sequence_suffix(sequence: u64) -> [u8; 9] {
    let mut suffix = [1; 9];
    suffix[1..].copy_from_slice(&sequence.to_be_bytes());
    suffix
}
