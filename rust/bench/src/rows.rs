//! The rows that every subject holds, the same for all: 15 bytes of key, 100 of value.

use bytes::Bytes;
use weir_store::{KeyGroupRange, Row};

/// Flink's default for a small job.
pub const ALL: KeyGroupRange = KeyGroupRange { first: 0, last: 127 };
const GROUPS: u64 = 128;
const VALUE_BYTES: usize = 100;
/// State ids of the values and of the maps.
const VALUES: [u8; 4] = [0, 0, 0, 1];
const MAPS: [u8; 4] = [0, 0, 0, 2];

/// A BIGINT in arrow-row's encoding.
fn bigint(value: u64) -> [u8; 9] {
    let mut out = [1; 9];
    out[1..].copy_from_slice(&(value ^ 1 << 63).to_be_bytes());
    out
}

fn group(key: u64) -> [u8; 2] {
    (mix(key) % GROUPS).to_be_bytes()[6..].try_into().expect("two bytes")
}

/// Scatters numbers (the finalizer of splitmix64).
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The row of a value state's key `i`.
pub fn key(i: u64) -> Bytes {
    [&group(i)[..], &VALUES, &bigint(i)].concat().into()
}

/// Below which the entries of the map of key `map` lie.
pub fn map_prefix(map: u64) -> Bytes {
    [&group(map)[..], &MAPS, &bigint(map)].concat().into()
}

pub fn map_rows(map: u64, entries: u64) -> Vec<Row> {
    (0..entries).map(|i| Row { key: [&map_prefix(map)[..], &bigint(i)].concat().into(), value: value(i) }).collect()
}

fn value(seed: u64) -> Option<Bytes> {
    Some(vec![seed as u8; VALUE_BYTES].into())
}

/// Rows of these keys, each key once, in order.
pub fn rows(keys: impl Iterator<Item = u64>, seed: u64) -> Vec<Row> {
    let mut rows: Vec<Row> = keys.map(|i| Row { key: key(i), value: value(i ^ seed) }).collect();
    rows.sort_by(|a, b| a.key.cmp(&b.key));
    rows.dedup_by(|a, b| a.key == b.key);
    rows
}

/// `count` different keys out of `all`, others for each `round`.
pub fn some(count: u64, all: u64, round: u64) -> impl Iterator<Item = u64> {
    // A step that shares no factor with `all`, a power of ten, meets every key once.
    let start = mix(round) % all;
    (0..count).map(move |i| (start + i * 7_919) % all)
}
