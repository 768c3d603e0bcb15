//! Encodings of row keys, byte for byte those of crate `arrow-row` (ascending, nulls first), so that rows written here,
//! by Java and by operators on Arrow batches are the same. `tests/golden.rs` compares them.
//!
//! Each encoding is self-delimiting and orders as its values do, so that columns can be laid back to back.

/// The marker of a null of any type.
pub const NULL: u8 = 0;
/// The marker of a string or binary without bytes.
pub const EMPTY: u8 = 1;
/// The marker of a string or binary with bytes, and of no fixed-size value, whose marker is 1.
pub const NON_EMPTY: u8 = 2;

const VALID: u8 = 1;
const BLOCK: usize = 32;
const MINI_BLOCK: usize = 8;
const MINI_BLOCKS: usize = 4;

/// The suffix of a list element: `sequence` as arrow-row encodes a `UInt64`.
pub fn sequence_suffix(sequence: u64) -> [u8; 9] {
    let mut suffix = [VALID; 9];
    suffix[1..].copy_from_slice(&sequence.to_be_bytes());
    suffix
}

/// What stands before an element in the value of a list's row: its length, `u32` big-endian.
///
/// # Panics
///
/// If the element has 4 GiB or more.
pub fn element_length(element: &[u8]) -> [u8; 4] {
    u32::try_from(element.len()).expect("an element has less than 4 GiB").to_be_bytes()
}

/// The leading bytes of every row of a state: the key group, then the state's id.
pub fn state_prefix(key_group: u16, state_id: u32) -> [u8; 6] {
    let mut prefix = [0; 6];
    prefix[..2].copy_from_slice(&key_group.to_be_bytes());
    prefix[2..].copy_from_slice(&state_id.to_be_bytes());
    prefix
}

/// Appends an integer of `N` bytes, given as big-endian two's complement: the sign bit is flipped.
fn push_signed<const N: usize>(out: &mut Vec<u8>, value: Option<[u8; N]>) {
    match value {
        None => out.extend([NULL; 1].iter().chain(&[0; N])),
        Some(mut bytes) => {
            bytes[0] ^= 0x80;
            out.push(VALID);
            out.extend_from_slice(&bytes);
        }
    }
}

/// Appends a TINYINT, 2 bytes.
pub fn push_i8(out: &mut Vec<u8>, value: Option<i8>) {
    push_signed(out, value.map(i8::to_be_bytes));
}

/// Appends a SMALLINT, 3 bytes.
pub fn push_i16(out: &mut Vec<u8>, value: Option<i16>) {
    push_signed(out, value.map(i16::to_be_bytes));
}

/// Appends an INT, 5 bytes.
pub fn push_i32(out: &mut Vec<u8>, value: Option<i32>) {
    push_signed(out, value.map(i32::to_be_bytes));
}

/// Appends a BIGINT, 9 bytes.
pub fn push_i64(out: &mut Vec<u8>, value: Option<i64>) {
    push_signed(out, value.map(i64::to_be_bytes));
}

/// Appends a string's UTF-8 or a binary: up to four blocks of 8 bytes, then blocks of 32, each followed by 0xFF if
/// another follows, else by the number of its bytes that count; the last is filled with zeros.
pub fn push_bytes(out: &mut Vec<u8>, value: Option<&[u8]>) {
    let mut rest = match value {
        None => return out.push(NULL),
        Some([]) => return out.push(EMPTY),
        Some(bytes) => bytes,
    };
    out.push(NON_EMPTY);
    for block in 0.. {
        let size = if block < MINI_BLOCKS { MINI_BLOCK } else { BLOCK };
        if rest.len() > size {
            out.extend_from_slice(&rest[..size]);
            out.push(u8::MAX);
            rest = &rest[size..];
        } else {
            out.extend_from_slice(rest);
            out.resize(out.len() + size - rest.len(), 0);
            out.push(rest.len() as u8);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_order_as_their_encodings() {
        let mut values: Vec<Vec<u8>> = (0..80).map(|len| vec![7; len]).collect();
        values.extend((0..80).map(|len| [vec![7; len], vec![0]].concat()));
        values.extend((0..80).map(|len| [vec![7; len], vec![255]].concat()));
        values.sort();
        let encode = |value: &Vec<u8>| {
            let mut out = Vec::new();
            push_bytes(&mut out, Some(value));
            out
        };
        assert!(values.windows(2).all(|pair| pair[0] == pair[1] || encode(&pair[0]) < encode(&pair[1])));
    }

    #[test]
    fn integers_order_as_their_encodings() {
        let encode = |value| {
            let mut out = Vec::new();
            push_i64(&mut out, value);
            out
        };
        let values = [None, Some(i64::MIN), Some(-1), Some(0), Some(1), Some(i64::MAX)];
        assert!(values.windows(2).all(|pair| encode(pair[0]) < encode(pair[1])));
    }
}
