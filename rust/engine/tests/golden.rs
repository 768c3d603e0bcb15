//! `tests/golden/row_encodings.txt` holds what crate `arrow-row` writes; the engine's encoders write the same, and a test
//! of the Java side reads the same file. `WEIR_BLESS=1` writes it anew.
//!
//! A line: name, type, value and hex of the encoding, separated by tabs. Types: `tinyint`, `smallint`, `int`, `bigint`,
//! `string` (the value is UTF-8, with `\xHH` for bytes below 32, tabs and backslashes), `binary` (hex), `sequence`, columns joined
//! by `+` with values joined by `|`, `state` (a name; the encoding is its id), `row` (key group | state name | key |
//! user key or sequence, each written `type:value`) and `timer` (key group | name of the queue | timestamp | key | namespace).
//! A null is `NULL`, unlike the string that is written `\x4eULL`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, Int8Array, Int16Array, Int32Array, Int64Array, StringArray, UInt64Array};
use arrow_row::{RowConverter, SortField};
use weir_engine::encoding;

#[derive(Clone)]
enum Column {
    TinyInt(Option<i8>),
    SmallInt(Option<i16>),
    Int(Option<i32>),
    BigInt(Option<i64>),
    Utf8(Option<String>),
    Binary(Option<Vec<u8>>),
    Sequence(u64),
}

use Column::*;

impl Column {
    fn array(&self) -> ArrayRef {
        match self {
            TinyInt(value) => Arc::new(Int8Array::from(vec![*value])),
            SmallInt(value) => Arc::new(Int16Array::from(vec![*value])),
            Int(value) => Arc::new(Int32Array::from(vec![*value])),
            BigInt(value) => Arc::new(Int64Array::from(vec![*value])),
            Utf8(value) => Arc::new(StringArray::from(vec![value.as_deref()])),
            Binary(value) => Arc::new(BinaryArray::from(vec![value.as_deref()])),
            Sequence(value) => Arc::new(UInt64Array::from(vec![*value])),
        }
    }

    fn type_name(&self) -> &'static str {
        match self {
            TinyInt(_) => "tinyint",
            SmallInt(_) => "smallint",
            Int(_) => "int",
            BigInt(_) => "bigint",
            Utf8(_) => "string",
            Binary(_) => "binary",
            Sequence(_) => "sequence",
        }
    }

    fn text(&self) -> String {
        let null = || "NULL".to_owned();
        match self {
            TinyInt(value) => value.map_or_else(null, |value| value.to_string()),
            SmallInt(value) => value.map_or_else(null, |value| value.to_string()),
            Int(value) => value.map_or_else(null, |value| value.to_string()),
            BigInt(value) => value.map_or_else(null, |value| value.to_string()),
            Utf8(value) => value.as_deref().map_or_else(null, escape),
            Binary(value) => value.as_deref().map_or_else(null, hex),
            Sequence(value) => value.to_string(),
        }
    }

    /// As the engine's own encoders write it.
    fn push(&self, out: &mut Vec<u8>) {
        match self {
            TinyInt(value) => encoding::push_i8(out, *value),
            SmallInt(value) => encoding::push_i16(out, *value),
            Int(value) => encoding::push_i32(out, *value),
            BigInt(value) => encoding::push_i64(out, *value),
            Utf8(value) => encoding::push_bytes(out, value.as_deref().map(str::as_bytes)),
            Binary(value) => encoding::push_bytes(out, value.as_deref()),
            Sequence(value) => out.extend(encoding::sequence_suffix(*value)),
        }
    }
}

fn escape(value: &str) -> String {
    let mut out = String::new();
    for c in value.chars() {
        if (c as u32) < 32 || matches!(c, '\\' | '|' | ':' | '\u{7f}') || value == "NULL" && c == 'N' {
            write!(out, "\\x{:02x}", c as u32).unwrap();
        } else {
            out.push(c);
        }
    }
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One row of the columns, by crate arrow-row.
fn arrow_row(columns: &[Column]) -> Vec<u8> {
    if columns.is_empty() {
        return Vec::new();
    }
    let arrays: Vec<ArrayRef> = columns.iter().map(Column::array).collect();
    let fields = arrays.iter().map(|array| SortField::new(array.data_type().clone())).collect();
    let rows = RowConverter::new(fields).unwrap().convert_columns(&arrays).unwrap();
    rows.row(0).as_ref().to_vec()
}

fn columns() -> Vec<(String, Vec<Column>)> {
    let mut all: Vec<(String, Vec<Column>)> = Vec::new();
    let mut one = |name: String, column: Column| all.push((name, vec![column]));
    for (name, value) in [
        ("null", None),
        ("min", Some(i8::MIN)),
        ("minus-one", Some(-1)),
        ("zero", Some(0)),
        ("one", Some(1)),
        ("max", Some(i8::MAX)),
    ] {
        one(format!("tinyint-{name}"), TinyInt(value));
    }
    for (name, value) in [
        ("null", None),
        ("min", Some(i16::MIN)),
        ("minus-one", Some(-1)),
        ("zero", Some(0)),
        ("one", Some(1)),
        ("max", Some(i16::MAX)),
        ("some", Some(0x1234)),
    ] {
        one(format!("smallint-{name}"), SmallInt(value));
    }
    for (name, value) in [
        ("null", None),
        ("min", Some(i32::MIN)),
        ("minus-one", Some(-1)),
        ("zero", Some(0)),
        ("one", Some(1)),
        ("max", Some(i32::MAX)),
        ("some", Some(0x1234_5678)),
        ("negative", Some(-123_456_789)),
    ] {
        one(format!("int-{name}"), Int(value));
    }
    for (name, value) in [
        ("null", None),
        ("min", Some(i64::MIN)),
        ("minus-one", Some(-1)),
        ("zero", Some(0)),
        ("one", Some(1)),
        ("max", Some(i64::MAX)),
        ("some", Some(0x1234_5678_9abc_def0)),
        ("negative", Some(-1_234_567_890_123)),
    ] {
        one(format!("bigint-{name}"), BigInt(value));
    }
    const LENGTHS: [usize; 16] = [1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 200];
    one("string-null".into(), Utf8(None));
    one("string-empty".into(), Utf8(Some("".into())));
    one("string-four-letters-null".into(), Utf8(Some("NULL".into())));
    one("string-zero".into(), Utf8(Some("\0".into())));
    one("string-controls".into(), Utf8(Some("a\tb\nc\\d|e:f".into())));
    one("string-umlauts".into(), Utf8(Some("Wehr, Schütz, größer".into())));
    one("string-astral".into(), Utf8(Some("水门 🌊 \u{10ffff}".into())));
    one("binary-null".into(), Binary(None));
    one("binary-empty".into(), Binary(Some(vec![])));
    one("binary-zero".into(), Binary(Some(vec![0])));
    one("binary-zeros".into(), Binary(Some(vec![0; 9])));
    one("binary-ff".into(), Binary(Some(vec![255; 33])));
    for len in LENGTHS {
        let letters = (0..len).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
        one(format!("string-{len}"), Utf8(Some(letters)));
        one(format!("binary-{len}"), Binary(Some((0..len).map(|i| (i * 37 + 129) as u8).collect())));
    }
    for sequence in [0, 1, 255, 256, u64::from(u32::MAX), 1 << 63, u64::MAX] {
        one(format!("sequence-{sequence}"), Sequence(sequence));
    }
    let text = |text: &str| Utf8(Some(text.into()));
    all.push(("columns-ints".into(), vec![Int(Some(-7)), BigInt(Some(42)), SmallInt(None), TinyInt(Some(3))]));
    all.push((
        "columns-strings".into(),
        vec![text("user"), text(""), Utf8(None), text("a much longer second column of text")],
    ));
    all.push((
        "columns-mixed".into(),
        vec![text("auction"), BigInt(Some(1001)), Binary(Some(vec![1, 2, 3])), Int(None)],
    ));
    all.push(("columns-nulls".into(), vec![Utf8(None), Int(None), Binary(None)]));
    all
}

const EVENT_TIMERS: &str = "_timer_state/event_user-timers";

/// The first four bytes of the SHA-256 of the name.
fn state_id(name: &str) -> u32 {
    u32::from_be_bytes(sha256(name.as_bytes())[..4].try_into().unwrap())
}

struct WholeRow {
    name: &'static str,
    key_group: u16,
    state: &'static str,
    /// Key, then namespace (none if void), then user key or sequence (none for a value); of a timer its timestamp, key and
    /// namespace.
    parts: Vec<Vec<Column>>,
}

fn whole_rows() -> Vec<WholeRow> {
    let text = |text: &str| Utf8(Some(text.into()));
    let row = |name, key_group, state, parts| WholeRow { name, key_group, state, parts };
    vec![
        row("row-value-bigint", 0, "count", vec![vec![BigInt(Some(42))]]),
        row("row-value-string", 127, "count", vec![vec![text("alice")]]),
        row("row-value-last-group", 32767, "count", vec![vec![Int(Some(-1))]]),
        row(
            "row-value-namespace",
            5,
            "window-contents",
            vec![vec![text("bob")], vec![Binary(Some((0..16).collect()))]],
        ),
        row("row-map", 17, "visits", vec![vec![BigInt(Some(7))], vec![], vec![text("page/1")]]),
        row("row-map-null-user-key", 17, "visits", vec![vec![BigInt(Some(7))], vec![], vec![Utf8(None)]]),
        row(
            "row-map-namespace",
            17,
            "visits",
            vec![vec![BigInt(Some(7))], vec![Binary(Some(vec![9; 16]))], vec![Int(Some(3))]],
        ),
        row("row-list", 99, "events", vec![vec![text("carol")], vec![], vec![Sequence(12_345)]]),
        row("row-key-binary", 3, "größe", vec![vec![Binary(Some(vec![0, 255, 0, 1]))]]),
        row("row-key-columns", 64, "join-left", vec![vec![text("x"), BigInt(Some(1)), Int(None)]]),
        row("row-queue-element", 9, "queue", vec![vec![Binary(Some(vec![128, 0, 0, 7, 255]))]]),
        row(
            "timer-void",
            12,
            EVENT_TIMERS,
            vec![vec![BigInt(Some(1_700_000_000_000))], vec![BigInt(Some(-5))], vec![]],
        ),
        row("timer-first", 0, EVENT_TIMERS, vec![vec![BigInt(Some(i64::MIN))], vec![text("")], vec![]]),
        row("timer-last", 127, EVENT_TIMERS, vec![vec![BigInt(Some(i64::MAX))], vec![text("dave")], vec![text("ns")]]),
        row(
            "timer-window",
            31,
            EVENT_TIMERS,
            vec![
                vec![BigInt(Some(59_999))],
                vec![Int(Some(6))],
                // The window's serializer: start and end.
                vec![Binary(Some([0_i64, 60_000].iter().flat_map(|time| time.to_be_bytes()).collect()))],
            ],
        ),
    ]
}

fn lines(encode: impl Fn(&[Column]) -> Vec<u8>) -> String {
    let mut out = String::new();
    for (name, columns) in columns() {
        let types: Vec<_> = columns.iter().map(Column::type_name).collect();
        let values: Vec<_> = columns.iter().map(Column::text).collect();
        writeln!(out, "{name}\t{}\t{}\t{}", types.join("+"), values.join("|"), hex(&encode(&columns))).unwrap();
    }
    for name in
        ["count", "visits", "events", "window-contents", "join-left", "größe", "", "_timer_state/event_user-timers"]
    {
        writeln!(out, "state-{}\tstate\t{}\t{:08x}", name.replace('/', "-"), escape(name), state_id(name)).unwrap();
    }
    for row in whole_rows() {
        let mut bytes = encoding::state_prefix(row.key_group, state_id(row.state)).to_vec();
        let mut values = vec![row.key_group.to_string(), escape(row.state)];
        for part in &row.parts {
            bytes.extend(encode(part));
            let texts: Vec<_> = part.iter().map(|column| format!("{}:{}", column.type_name(), column.text())).collect();
            values.push(texts.join("+"));
        }
        let kind = if row.name.starts_with("timer") { "timer" } else { "row" };
        writeln!(out, "{}\t{kind}\t{}\t{}", row.name, values.join("|"), hex(&bytes)).unwrap();
    }
    out
}

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/row_encodings.txt")
}

#[test]
fn the_file_is_what_arrow_row_writes() {
    let lines = lines(arrow_row);
    if std::env::var_os("WEIR_BLESS").is_some() {
        std::fs::create_dir_all(golden().parent().unwrap()).unwrap();
        std::fs::write(golden(), &lines).unwrap();
    }
    assert_eq!(std::fs::read_to_string(golden()).unwrap(), lines);
}

#[test]
fn the_engine_writes_the_same() {
    let own = lines(|columns| {
        let mut out = Vec::new();
        columns.iter().for_each(|column| column.push(&mut out));
        out
    });
    assert_eq!(std::fs::read_to_string(golden()).unwrap(), own);
}

#[test]
fn sha256_is_sha256() {
    assert_eq!(hex(&sha256(b"abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(hex(&sha256(b"")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

/// FIPS 180-4, for names shorter than 56 bytes.
fn sha256(message: &[u8]) -> [u8; 32] {
    assert!(message.len() < 56);
    let primes: Vec<u64> = (2..312).filter(|n| (2..*n).all(|d| n % d != 0)).collect();
    // The first 32 bits of the fractional part of a root, by bisection on integers.
    let root = |p: u64, degree: u32| {
        let (mut low, mut high) = (0_u128, 1_u128 << 40);
        while high - low > 1 {
            let middle = (low + high) / 2;
            if middle.pow(degree) <= u128::from(p) << (32 * degree) { low = middle } else { high = middle }
        }
        low as u32
    };
    let mut block = [0; 64];
    block[..message.len()].copy_from_slice(message);
    block[message.len()] = 0x80;
    block[56..].copy_from_slice(&(message.len() as u64 * 8).to_be_bytes());
    let mut w: Vec<u32> = block.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
    for i in 16..64 {
        let (a, b) = (w[i - 15], w[i - 2]);
        let s0 = a.rotate_right(7) ^ a.rotate_right(18) ^ a >> 3;
        let s1 = b.rotate_right(17) ^ b.rotate_right(19) ^ b >> 10;
        w.push(w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1));
    }
    let start: [u32; 8] = std::array::from_fn(|i| root(primes[i], 2));
    let mut h = start;
    for i in 0..64 {
        let s1 = h[4].rotate_right(6) ^ h[4].rotate_right(11) ^ h[4].rotate_right(25);
        let choice = h[4] & h[5] ^ !h[4] & h[6];
        let t1 = h[7].wrapping_add(s1).wrapping_add(choice).wrapping_add(root(primes[i], 3)).wrapping_add(w[i]);
        let s0 = h[0].rotate_right(2) ^ h[0].rotate_right(13) ^ h[0].rotate_right(22);
        let majority = h[0] & h[1] ^ h[0] & h[2] ^ h[1] & h[2];
        h = [t1.wrapping_add(s0).wrapping_add(majority), h[0], h[1], h[2], h[3].wrapping_add(t1), h[4], h[5], h[6]];
    }
    let mut digest = [0; 32];
    for (i, word) in h.iter().enumerate() {
        digest[4 * i..4 * i + 4].copy_from_slice(&word.wrapping_add(start[i]).to_be_bytes());
    }
    digest
}
