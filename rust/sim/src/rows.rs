//! The keys that programs use, and the oracle: an ordered map of whole keys.

use std::collections::BTreeMap;
use std::ops::Bound;

use rand::Rng;
use rand::rngs::SmallRng;

/// Key groups of every job.
pub const KEY_GROUPS: u16 = 8;

/// The states of every job. Value state is one row a key; a map or a list is a group of rows under one prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    FirstValue = 1,
    SecondValue = 2,
    Map = 3,
    /// With a namespace between key and user key.
    WindowedMap = 4,
    List = 5,
    /// Of value rows that expire; not of [`STATES`], since such a row may be there or not.
    Expiring = 6,
}

pub const VALUES: [State; 2] = [State::FirstValue, State::SecondValue];
pub const GROUPS: [State; 3] = [State::Map, State::WindowedMap, State::List];
pub const STATES: [State; 5] = [State::FirstValue, State::SecondValue, State::Map, State::WindowedMap, State::List];

/// A list's row grows no further.
const MAX_GROWN_BYTES: usize = 1024;

/// Milliseconds that a row of [`State::Expiring`] lives after the timestamp that its value begins with.
pub const TTL_MS: i64 = 50;

/// The value of an expiring row.
pub fn expiring_value(timestamp: i64, number: u64) -> Vec<u8> {
    [timestamp.to_be_bytes(), number.to_be_bytes()].concat()
}

/// Whether an expiring row with this value may have been dropped.
pub fn may_be_gone(value: &[u8], now_ms: i64) -> bool {
    i64::from_be_bytes(value[..8].try_into().expect("a timestamp")) + TTL_MS <= now_ms
}

pub fn is_expiring(key: &[u8]) -> bool {
    key[2..6] == (State::Expiring as u32).to_be_bytes()
}

/// `[key group][state id]`, which the keys of one state and key group begin with.
pub fn state_prefix(key_group: u16, state: State) -> Vec<u8> {
    let mut bytes = key_group.to_be_bytes().to_vec();
    bytes.extend_from_slice(&(state as u32).to_be_bytes());
    bytes
}

/// The whole key of a value row, or the prefix of a group.
pub fn key(key_group: u16, state: State, key: u64) -> Vec<u8> {
    let mut bytes = state_prefix(key_group, state);
    if key.is_multiple_of(3) {
        // As a string is encoded: one block, its last byte the number of bytes in it.
        bytes.push(2);
        bytes.extend_from_slice(&key.to_be_bytes());
        bytes.push(8);
    } else {
        bytes.push(1);
        bytes.extend_from_slice(&key.to_be_bytes());
    }
    if state == State::WindowedMap {
        bytes.push(1);
        bytes.extend_from_slice(&(key % 2).to_be_bytes());
    }
    bytes
}

/// The suffix of a map entry.
pub fn map_suffix(user_key: u32) -> Vec<u8> {
    let mut bytes = vec![1];
    bytes.extend_from_slice(&user_key.to_be_bytes());
    bytes
}

/// The suffix of a list element.
pub fn list_suffix(sequence: u64) -> Vec<u8> {
    let mut bytes = vec![1];
    bytes.extend_from_slice(&sequence.to_be_bytes());
    bytes
}

/// A value that no other write of the program has, of a random length.
pub fn value(rng: &mut SmallRng, number: u64) -> Vec<u8> {
    let length = match rng.random_range(0..100) {
        0..5 => 0,
        5..85 => rng.random_range(8..48),
        85..98 => rng.random_range(48..300),
        _ => rng.random_range(300..3000),
    };
    let mut bytes: Vec<u8> = number.to_be_bytes().into_iter().cycle().take(length).collect();
    if let Some(last) = bytes.last_mut() {
        *last = rng.random();
    }
    bytes
}

/// What the rows of one subtask must be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oracle {
    pub rows: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Rows of [`State::Expiring`] as they were written last, dropped or not.
    pub expiring: BTreeMap<Vec<u8>, Vec<u8>>,
    pub next_sequence: u64,
}

impl Oracle {
    /// An element behind the others, in a row of its own if one was `begun`, else in the list's last row; false: it has none
    /// that an element may go into.
    pub fn append(&mut self, prefix: &[u8], element: &[u8], begun: bool) -> bool {
        let mut value = (element.len() as u32).to_be_bytes().to_vec();
        value.extend_from_slice(element);
        if begun {
            let key = [prefix, &list_suffix(self.next_sequence)].concat();
            self.next_sequence += 1;
            self.rows.insert(key, value);
            return true;
        }
        let last = self.range(prefix, None).last().map(|(key, _)| key.clone());
        let Some(row) = last.and_then(|key| self.rows.get_mut(&key)) else { return false };
        row.extend(value);
        row.len() <= MAX_GROWN_BYTES
    }

    /// Rows under `prefix`, after `after`.
    pub fn range<'a>(
        &'a self,
        prefix: &'a [u8],
        after: Option<&[u8]>,
    ) -> impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)> + use<'a> {
        let start = match after {
            Some(after) => Bound::Excluded(after.to_vec()),
            None => Bound::Included(prefix.to_vec()),
        };
        self.rows.range((start, Bound::Unbounded)).take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// Removes the rows under `prefix`; how many there were.
    pub fn remove(&mut self, prefix: &[u8]) -> u64 {
        let keys: Vec<Vec<u8>> = self.range(prefix, None).map(|(key, _)| key.clone()).collect();
        for key in &keys {
            self.rows.remove(key);
        }
        keys.len() as u64
    }
}

/// Bytes for people: hexadecimal, cut short.
pub fn show(bytes: &[u8]) -> String {
    let mut text: String = bytes.iter().take(24).map(|byte| format!("{byte:02x}")).collect();
    if bytes.len() > 24 {
        text += &format!("… ({} bytes)", bytes.len());
    }
    text
}

/// The two for people, or absence.
pub fn show_option(bytes: Option<&[u8]>) -> String {
    bytes.map_or("absent".to_owned(), |bytes| if bytes.is_empty() { "empty".to_owned() } else { show(bytes) })
}
