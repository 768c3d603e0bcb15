//! Rows of Weir as bytes of Fluss: the compacted encoding of keys and rows, and how a key is laid over the key columns.
//!
//! Fluss writes the length of a variable column before its bytes, so neighbours in Weir's order are not neighbours in
//! Fluss's. A key is therefore cut into columns of fixed widths ([`WIDTHS`]), each full but the last one that is used;
//! then the rows below any byte prefix lie below at most ten byte prefixes of Fluss, which [`prefixes`] lists.

use bytes::Bytes;

/// Widths of the key columns after the key group, in bytes. State id; then one that holds a BIGINT, or the first block
/// of a string; then one a further block of a string. The column after these takes the rest of any length.
pub const WIDTHS: [usize; 5] = [4, 10, 9, 9, 9];
/// The key group of the rows that a store keeps for itself in each bucket: beyond all of Flink's.
pub const INTERNAL_GROUP: u32 = 1 << 16;
/// The most buckets of a table.
pub const MAX_BUCKETS: i32 = 16;
/// Columns of the table of rows: bucket, key group, one a width, the key's rest, generation, slot, epoch, value.
const COLUMNS: usize = 2 + WIDTHS.len() + 1 + 4;
const NULL_BITS: usize = COLUMNS.div_ceil(8);

/// One version of a row, as the table has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Weir's key, key group first.
    pub key: Bytes,
    pub generation: u64,
    pub slot: u32,
    pub epoch: u64,
    /// `None`: the key was deleted.
    pub value: Option<Bytes>,
}

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads what [`put_varint`] and [`put_bytes`] write; `None` at the end of the bytes.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.varint()?).ok()?;
        self.take(len)
    }

    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }
}

/// The key group of a key, which has at least two bytes.
pub fn group_of(key: &[u8]) -> u16 {
    u16::from_be_bytes([key[0], key[1]])
}

/// Appends the columns from `bucket` on to those of the key itself: what all versions of the row share.
pub fn put_key(out: &mut Vec<u8>, b: u32, key: &[u8]) {
    put_varint(out, u64::from(b));
    put_varint(out, u64::from(group_of(key)));
    let mut rest = &key[2..];
    for width in WIDTHS {
        let (column, after) = rest.split_at(width.min(rest.len()));
        put_bytes(out, column);
        rest = after;
    }
    put_bytes(out, rest);
}

/// The whole key of one version.
pub fn version_key(b: u32, key: &[u8], generation: u64, slot: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 24);
    put_key(&mut out, b, key);
    put_bytes(&mut out, &generation.to_be_bytes());
    put_varint(&mut out, u64::from(slot));
    out
}

/// The row whose key columns are `encoded_key`.
pub fn row(encoded_key: &[u8], epoch: u64, value: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::with_capacity(NULL_BITS + encoded_key.len() + 20 + value.map_or(0, <[u8]>::len));
    out.resize(NULL_BITS, 0);
    if value.is_none() {
        out[(COLUMNS - 1) / 8] |= 1 << ((COLUMNS - 1) % 8);
    }
    out.extend_from_slice(encoded_key);
    put_varint(&mut out, epoch);
    if let Some(value) = value {
        put_bytes(&mut out, value);
    }
    out
}

/// Reads a row as a lookup returns it, behind its schema's number. `None` if it is not one of ours.
pub fn parse_row(bytes: &[u8]) -> Option<Stored> {
    let mut reader = Reader(bytes);
    reader.take(2)?;
    let nulls = reader.take(NULL_BITS)?;
    let no_value = nulls[(COLUMNS - 1) / 8] & (1 << ((COLUMNS - 1) % 8)) != 0;
    reader.varint()?;
    let group = reader.varint()?;
    let mut key = Vec::with_capacity(bytes.len().min(64));
    // Internal rows have no key group that fits; they are told by their shape.
    key.extend_from_slice(&(group.min(u64::from(u16::MAX)) as u16).to_be_bytes());
    for _ in 0..=WIDTHS.len() {
        key.extend_from_slice(reader.bytes()?);
    }
    let generation = u64::from_be_bytes(reader.bytes()?.try_into().ok()?);
    let slot = u32::try_from(reader.varint()?).ok()?;
    let epoch = reader.varint()?;
    let value = if no_value { None } else { Some(Bytes::copy_from_slice(reader.bytes()?)) };
    Some(Stored { key: key.into(), generation, slot, epoch, value })
}

/// The byte prefixes of Fluss that together hold all rows whose key starts with `prefix`, which has its key group. They
/// hold others too where `prefix` reaches into the last column.
pub fn prefixes(b: u32, prefix: &[u8]) -> Vec<Vec<u8>> {
    let mut head = Vec::with_capacity(prefix.len() + 8);
    put_varint(&mut head, u64::from(b));
    put_varint(&mut head, u64::from(group_of(prefix)));
    let mut rest = &prefix[2..];
    for width in WIDTHS {
        if rest.is_empty() {
            return vec![head];
        }
        if rest.len() >= width {
            put_bytes(&mut head, &rest[..width]);
            rest = &rest[width..];
            continue;
        }
        let ends = (rest.len()..=width).map(|len| {
            let mut end = head.clone();
            put_varint(&mut end, len as u64);
            end.extend_from_slice(rest);
            end
        });
        return ends.collect();
    }
    vec![head]
}

/// The row that proves what a generation has written to a bucket, number `number` of its chain.
pub fn chain_key(b: u32, generation: u64, number: u64) -> Vec<u8> {
    let mut out = chain_prefix(b, generation);
    put_bytes(&mut out, &number.to_be_bytes());
    for _ in 2..=WIDTHS.len() {
        put_bytes(&mut out, &[]);
    }
    put_bytes(&mut out, &generation.to_be_bytes());
    put_varint(&mut out, 0);
    out
}

/// Where all chain rows of a generation lie, in the order of their numbers.
pub fn chain_prefix(b: u32, generation: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    put_varint(&mut out, u64::from(b));
    put_varint(&mut out, u64::from(INTERNAL_GROUP));
    put_bytes(&mut out, &generation.to_be_bytes());
    out
}

/// Where all chain rows of a bucket lie.
pub fn chain_rows(b: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(8);
    put_varint(&mut out, u64::from(b));
    put_varint(&mut out, u64::from(INTERNAL_GROUP));
    out
}

/// Generation and number of a chain row.
pub fn parse_chain(row: &Stored) -> Option<(u64, u64)> {
    let (generation, number) = row.key[2..].split_at_checked(8)?;
    Some((u64::from_be_bytes(generation.try_into().ok()?), u64::from_be_bytes(number.try_into().ok()?)))
}

/// The bucket that Fluss's clients put a row into whose bucket key, the column `bucket`, has these bytes.
fn bucket_of(key: &[u8], buckets: i32) -> i32 {
    let code = murmur(key);
    let mut hash = step(code);
    hash = hash.rotate_left(13).wrapping_mul(5).wrapping_add(0xE654_6B64);
    (finish(hash, 4) as i32).checked_abs().unwrap_or(0) % buckets
}

/// For each bucket the smallest value of `bucket` that lies in it. Below 128 it is one byte, on which all clients agree.
pub fn bucket_keys(buckets: i32) -> Option<Vec<u32>> {
    (0..buckets).map(|bucket| (0..128u32).find(|b| bucket_of(&[*b as u8], buckets) == bucket)).collect()
}

fn step(key: u32) -> u32 {
    key.wrapping_mul(0xCC9E_2D51).rotate_left(15).wrapping_mul(0x1B87_3593)
}

fn finish(hash: u32, len: u32) -> u32 {
    let mut hash = hash ^ len;
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85EB_CA6B);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xC2B2_AE35);
    hash ^ (hash >> 16)
}

/// MurmurHash3 as Flink and Fluss have it, which take the bytes behind the last whole word one by one.
fn murmur(data: &[u8]) -> u32 {
    let round = |hash: u32, key: u32| (hash ^ step(key)).rotate_left(13).wrapping_mul(5).wrapping_add(0xE654_6B64);
    let words = data.chunks_exact(4);
    let tail = words.remainder().iter().map(|byte| u32::from(*byte));
    let words = words.map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
    finish(words.chain(tail).fold(42, round), data.len() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(key: &[u8]) -> Vec<u8> {
        version_key(7, key, 3, 1)
    }

    #[test]
    fn rows_come_back() {
        for key in
            [&b"\0\x05"[..], b"\0\x05abcd", b"\xFF\xFFabcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz"]
        {
            for value in [None, Some(&b""[..]), Some(&b"value"[..])] {
                let mut bytes = vec![0, 1];
                bytes.extend(row(&encoded(key), 300, value));
                let stored = parse_row(&bytes).unwrap();
                assert_eq!((&stored.key[..], stored.generation, stored.slot, stored.epoch), (key, 3, 1, 300));
                assert_eq!(stored.value.as_deref(), value);
                assert_eq!(parse_row(&bytes[..bytes.len() - 1]), None);
            }
        }
    }

    #[test]
    fn prefixes_hold_exactly_the_keys_below() {
        let long: Vec<u8> = (0..60).collect();
        let keys: Vec<Vec<u8>> =
            (2..=60).flat_map(|len| [long[..len].to_vec(), [&long[..len - 1], &[99]].concat()]).collect();
        for len in 2..=43 {
            let below = prefixes(7, &long[..len]);
            assert!(below.len() <= 10);
            for key in &keys {
                let found = below.iter().filter(|prefix| encoded(key).starts_with(prefix)).count();
                assert_eq!(found, usize::from(key.starts_with(&long[..len])), "prefix of {len}, key {key:?}");
            }
        }
        // Into the last column: the rows are among what is found.
        assert!(prefixes(7, &long[..50]).iter().any(|prefix| encoded(&long[..55]).starts_with(prefix)));
    }

    #[test]
    fn chain_rows_come_back_in_order() {
        let keys: Vec<Vec<u8>> = [1, 255, 256, 70_000].map(|number| chain_key(7, 9, number)).into();
        assert!(keys.is_sorted());
        for (key, number) in keys.iter().zip([1, 255, 256, 70_000]) {
            assert!(key.starts_with(&chain_prefix(7, 9)) && key.starts_with(&chain_rows(7)));
            let mut bytes = vec![0, 1];
            bytes.extend(row(key, 0, None));
            assert_eq!(parse_chain(&parse_row(&bytes).unwrap()), Some((9, number)));
        }
    }

    #[test]
    fn buckets_are_those_of_the_client() {
        // From the client's own tests.
        assert_eq!(bucket_of(&[0, 10], 7), 1);
        for buckets in 1..=MAX_BUCKETS {
            let keys = bucket_keys(buckets).expect("a value for each bucket");
            assert_eq!(keys.len(), buckets as usize);
        }
    }
}
