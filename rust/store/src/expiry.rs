//! Which rows a store may drop because their time is up.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::long_keys::is_bundle;

/// What the value of a state's row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowValue {
    /// One value.
    Whole,
    /// Elements of a list, `[u32 BE length][element]` each. The row expires with the last of them.
    Elements,
}

/// When the rows of one state expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiryRule {
    /// Milliseconds that a row lives from its last access on.
    pub ttl_ms: u64,
    pub value: RowValue,
    /// Where in the value, or in each element, the time of the last access lies: 8 bytes, big-endian, signed, milliseconds
    /// since 1970.
    pub timestamp_at: usize,
    /// For how many milliseconds after its expiry a row may stay because there is little else to drop; `None`: for any.
    pub stay_ms: Option<u64>,
}

/// What time it is for the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryClock {
    /// This process's wall clock, so many milliseconds behind: a clock that is set back by less drops nothing early.
    Wall { behind_ms: u64 },
    /// Milliseconds, until another time is handed over.
    At(i64),
}

impl Default for ExpiryClock {
    /// The beginning of time: nothing has expired.
    fn default() -> Self {
        Self::At(i64::MIN)
    }
}

/// The rules of one open branch, each for the rows of one state: those with its four bytes behind their key group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expiry {
    pub clock: ExpiryClock,
    rules: BTreeMap<u32, ExpiryRule>,
}

impl Expiry {
    /// Without a rule.
    pub fn new(clock: ExpiryClock) -> Self {
        Self { clock, rules: BTreeMap::new() }
    }

    /// Sets or removes the rule of a state.
    pub fn set(&mut self, state: u32, rule: Option<ExpiryRule>) {
        match rule {
            Some(rule) => self.rules.insert(state, rule),
            None => self.rules.remove(&state),
        };
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    pub fn rules(&self) -> &BTreeMap<u32, ExpiryRule> {
        &self.rules
    }

    /// The shortest time to live of any state, in milliseconds.
    pub fn least_ttl_ms(&self) -> Option<u64> {
        self.rules.values().map(|rule| rule.ttl_ms).min()
    }

    /// Milliseconds, by the clock that counts.
    pub fn now_ms(&self) -> i64 {
        match self.clock {
            ExpiryClock::At(now) => now,
            ExpiryClock::Wall { behind_ms } => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
                i64::try_from(now).unwrap_or(i64::MAX).saturating_sub_unsigned(behind_ms)
            }
        }
    }

    /// The rule of a row's state; none for a bundle of rows, whose value is no state's.
    pub fn rule(&self, key: &[u8]) -> Option<&ExpiryRule> {
        if is_bundle(key) {
            return None;
        }
        let state = key.get(2..6)?;
        self.rules.get(&u32::from_be_bytes(state.try_into().expect("four bytes")))
    }

    /// The first millisecond at which a row has expired; `None` for a row that never does: one of a state without a rule,
    /// or whose value is too short to hold a timestamp.
    pub fn expires_at(&self, key: &[u8], value: &[u8]) -> Option<i64> {
        self.rule(key)?.expires_at(value)
    }

    /// Whether a row has expired at `now_ms`.
    pub fn is_expired(&self, key: &[u8], value: &[u8], now_ms: i64) -> bool {
        self.expires_at(key, value).is_some_and(|at| at <= now_ms)
    }
}

impl ExpiryRule {
    /// As Flink's `TtlUtils`: the last access and the time to live, at most the end of time.
    pub fn expires_at(&self, value: &[u8]) -> Option<i64> {
        let timestamp = match self.value {
            RowValue::Whole => self.timestamp(value),
            RowValue::Elements => self.last_timestamp(value),
        }?;
        Some(timestamp.saturating_add_unsigned(self.ttl_ms))
    }

    fn timestamp(&self, value: &[u8]) -> Option<i64> {
        let timestamp = value.get(self.timestamp_at..self.timestamp_at.checked_add(8)?)?;
        Some(i64::from_be_bytes(timestamp.try_into().expect("eight bytes")))
    }

    /// `None` also if an element is cut or too short: then nothing is known of it.
    fn last_timestamp(&self, mut elements: &[u8]) -> Option<i64> {
        let mut last = None;
        while let Some((length, rest)) = elements.split_first_chunk() {
            let (element, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
            last = last.max(Some(self.timestamp(element)?));
            elements = rest;
        }
        if elements.is_empty() { last } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_KEY_BYTES;

    #[test]
    fn rows_expire_by_the_rule_of_their_state() {
        let mut expiry = Expiry::default();
        expiry.set(7, Some(ExpiryRule { ttl_ms: 100, value: RowValue::Whole, timestamp_at: 1, stay_ms: None }));
        let key = |state: u32| [&[0, 1][..], &state.to_be_bytes(), b"key"].concat();
        let value = |timestamp: i64| [&[0][..], &timestamp.to_be_bytes(), b"value"].concat();
        assert_eq!(expiry.expires_at(&key(7), &value(50)), Some(150));
        assert!(!expiry.is_expired(&key(7), &value(50), 149));
        assert!(expiry.is_expired(&key(7), &value(50), 150));
        assert_eq!(expiry.expires_at(&key(8), &value(50)), None);
        assert_eq!(expiry.expires_at(&[0, 1, 0, 0, 7], &value(50)), None, "no whole state");
        assert_eq!(expiry.expires_at(&key(7), &value(50)[..8]), None, "no whole timestamp");
        assert_eq!(expiry.expires_at(&key(7), &[]), None);
        let mut longest = key(7);
        longest.resize(MAX_KEY_BYTES - 1, 0);
        assert_eq!(expiry.expires_at(&longest, &value(50)), Some(150));
        longest.push(0);
        assert_eq!(expiry.expires_at(&longest, &value(50)), None, "a bundle of longer keys");
        assert_eq!(expiry.expires_at(&key(7), &value(i64::MAX - 5)), Some(i64::MAX));
        assert_eq!(expiry.expires_at(&key(7), &value(i64::MIN)), Some(i64::MIN + 100));
        expiry.set(7, None);
        assert_eq!(expiry.expires_at(&key(7), &value(50)), None);
        assert!(expiry.is_empty());
    }

    #[test]
    fn a_row_of_elements_expires_with_the_last_of_them() {
        let rule = ExpiryRule { ttl_ms: 100, value: RowValue::Elements, timestamp_at: 1, stay_ms: None };
        let element = |timestamp: i64, more: &[u8]| {
            let element = [&[0][..], &timestamp.to_be_bytes(), more].concat();
            [&(element.len() as u32).to_be_bytes()[..], &element].concat()
        };
        assert_eq!(rule.expires_at(&element(50, b"value")), Some(150));
        let row = [element(50, b""), element(70, b"longer"), element(60, b"x")].concat();
        assert_eq!(rule.expires_at(&row), Some(170));
        for cut in 1..row.len() {
            let whole = [13, 13 + 19].contains(&cut);
            assert_eq!(rule.expires_at(&row[..cut]).is_some(), whole, "cut at {cut}");
        }
        assert_eq!(rule.expires_at(&[]), None);
        assert_eq!(rule.expires_at(&[&row[..], &[0, 0, 0, 2, 0, 0]].concat()), None, "an element without a timestamp");
        assert_eq!(rule.expires_at(&element(i64::MIN, b"")), Some(i64::MIN + 100));
    }

    #[test]
    fn nothing_expires_before_a_clock_is_set_and_the_wall_clock_runs_behind() {
        let mut expiry = Expiry::default();
        assert_eq!(expiry.now_ms(), i64::MIN);
        expiry.clock = ExpiryClock::Wall { behind_ms: 10_000 };
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
        assert!(expiry.now_ms() <= wall - 5_000, "{} at {wall}", expiry.now_ms());
    }
}
