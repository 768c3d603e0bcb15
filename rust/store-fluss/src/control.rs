//! The control table: which branches there are, who writes to them, which versions they have, and who reads.
//!
//! An entry has a group `t` and a name `k`. It lies in the group of its branch's home ([`crate::tables::home`]) and of each
//! table that its lineage names, so that one answer holds all that concerns an operator or a table. All groups lie in
//! one bucket, whose log orders every change, and a reader first writes a fence row that it must see in the answer: so
//! of two who each write, then read, at least one sees the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use weir_store::{BranchName, ErrorKind, KeyGroupRange, Result, StoreError, VersionRef};

use crate::client::{Ask, Lookups, RETRY_PAUSE, Unfinished, Writer};
use crate::encoding::{Reader, put_bytes, put_varint};
use crate::lineage::Lineage;
use crate::random;
use crate::tables::{Table, home};

/// First byte of every entry.
const FORMAT: u64 = 1;
/// The group of fence rows.
const FENCES: &str = "_fence";

/// What an entry says; the name of the entry begins with its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// There may be rows of this branch's generation. Goes last.
    Branch,
    /// An attempt writes to the branch.
    Pin,
    /// A committed version.
    Version,
    /// Somebody reads a version, until `expires`.
    Reader,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    pub branch: BranchName,
    /// Which version or reader, else empty.
    pub id: String,
    pub generation: u64,
    /// The key groups of the branch.
    pub range: KeyGroupRange,
    /// Nanoseconds since 1970.
    pub born: u64,
    pub expires: u64,
    /// Flink's number of a version.
    pub checkpoint: u64,
    pub bytes: u64,
    /// What the version or reader sees, or the branch started from.
    pub lineage: Lineage,
}

impl Entry {
    pub fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Branch => "branch",
            Kind::Pin => "pin",
            Kind::Version => "version",
            Kind::Reader => "reader",
        };
        format!("{kind}/{}/{}", self.branch.path(), self.id)
    }

    /// All groups that the entry lies in.
    pub fn groups(&self) -> BTreeSet<String> {
        let tables = self.lineage.tables.iter().map(|table| table.name.to_string());
        tables.chain([home(&self.branch)]).collect()
    }

    pub fn version(&self) -> VersionRef {
        VersionRef { branch: self.branch.clone(), version: self.id.clone() }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        put_varint(&mut out, FORMAT);
        put_varint(&mut out, self.kind as u64);
        put_bytes(&mut out, self.branch.path().as_bytes());
        put_bytes(&mut out, self.id.as_bytes());
        out.extend_from_slice(&self.generation.to_be_bytes());
        put_varint(&mut out, u64::from(self.range.first));
        put_varint(&mut out, u64::from(self.range.last));
        for number in [self.born, self.expires, self.checkpoint, self.bytes] {
            put_varint(&mut out, number);
        }
        self.lineage.encode(&mut out);
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.varint()? != FORMAT {
            return None;
        }
        let kind =
            [Kind::Branch, Kind::Pin, Kind::Version, Kind::Reader].get(usize::try_from(reader.varint()?).ok()?)?;
        let branch = BranchName::parse(std::str::from_utf8(reader.bytes()?).ok()?).ok()?;
        let id = std::str::from_utf8(reader.bytes()?).ok()?.to_owned();
        let generation = u64::from_be_bytes(reader.take(8)?.try_into().ok()?);
        let (first, last) = (reader.varint()?.try_into().ok()?, reader.varint()?.try_into().ok()?);
        let range = (first <= last).then(|| KeyGroupRange::new(first, last))?;
        let (born, expires) = (reader.varint()?, reader.varint()?);
        let (checkpoint, bytes) = (reader.varint()?, reader.varint()?);
        let lineage = Lineage::decode(&mut reader)?;
        Some(Self { kind: *kind, branch, id, generation, range, born, expires, checkpoint, bytes, lineage })
    }
}

/// Nanoseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// The control table of one database.
pub struct Control {
    table: Arc<Table>,
    writer: Arc<Writer>,
    lookups: Arc<Lookups>,
    /// Names the fences of this process.
    process: u64,
    fences: AtomicU64,
}

impl Control {
    pub fn new(table: Arc<Table>, writer: Arc<Writer>, lookups: Arc<Lookups>, process: u64) -> Self {
        Self { table, writer, lookups, process, fences: AtomicU64::new(0) }
    }

    pub fn writer(&self) -> &Arc<Writer> {
        &self.writer
    }

    /// Writes a pin, for a generation that is chosen here; durable on return. Each try is for another generation: a copy of
    /// an earlier one that arrives after the pin was removed does not tell a replaced attempt that it is none. Such a
    /// copy of any other entry is no more than garbage.
    pub async fn put_pin(&self, pin: Entry, timeout: Duration) -> Result<Entry> {
        let deadline = Instant::now() + timeout;
        loop {
            let pin = Entry { generation: random(), ..pin.clone() };
            let (name, value) = (pin.name(), pin.encode());
            let mut writes = Unfinished::default();
            for group in pin.groups() {
                self.send(&group, &name, Some(&value), &mut writes)?;
            }
            match self.writer.finish_once(&self.table, &writes, deadline).await {
                Ok(()) => return Ok(pin),
                Err(error) if error.kind() != ErrorKind::Unavailable || Instant::now() >= deadline => {
                    return Err(error);
                }
                Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
            }
            self.writer.prepare(&self.table).await?;
        }
    }

    /// Writes an entry, other than a pin, to all its groups; durable on return.
    pub async fn put(&self, entry: &Entry) -> Result<()> {
        let (name, value) = (entry.name(), entry.encode());
        let mut writes = Unfinished::default();
        for group in entry.groups() {
            self.send(&group, &name, Some(&value), &mut writes)?;
        }
        self.writer.finish(&self.table, writes).await
    }

    /// Removes entries from all their groups; durable on return.
    pub async fn remove(&self, entries: impl IntoIterator<Item = &Entry>) -> Result<()> {
        let mut writes = Unfinished::default();
        for entry in entries {
            for group in entry.groups() {
                self.send(&group, &entry.name(), None, &mut writes)?;
            }
        }
        self.writer.finish(&self.table, writes).await
    }

    /// All entries of a group: whatever was acknowledged to anyone before the call is in the answer.
    pub async fn read(&self, group: &str) -> Result<Vec<Entry>> {
        let mut prefix = Vec::new();
        put_bytes(&mut prefix, group.as_bytes());
        self.read_prefixes(vec![prefix]).await
    }

    /// All entries of several groups, each once.
    pub async fn read_all(&self, groups: impl IntoIterator<Item = String>) -> Result<Vec<Entry>> {
        let prefix = |group: String| {
            let mut prefix = Vec::new();
            put_bytes(&mut prefix, group.as_bytes());
            prefix
        };
        let groups: BTreeSet<String> = groups.into_iter().collect();
        let entries = self.read_prefixes(groups.into_iter().map(prefix).collect()).await?;
        let unique: BTreeMap<String, Entry> = entries.into_iter().map(|entry| (entry.name(), entry)).collect();
        Ok(unique.into_values().collect())
    }

    /// The entries of the whole database, each once.
    pub async fn read_database(&self) -> Result<Vec<Entry>> {
        let entries = self.read_prefixes((1..128).map(|len| vec![len]).collect()).await?;
        let long =
            self.read_prefixes((1..=2).flat_map(|high| (0..128).map(move |low| vec![0x80 | low, high])).collect());
        let unique: BTreeMap<String, Entry> =
            entries.into_iter().chain(long.await?).map(|entry| (entry.name(), entry)).collect();
        Ok(unique.into_values().collect())
    }

    async fn read_prefixes(&self, prefixes: Vec<Vec<u8>>) -> Result<Vec<Entry>> {
        let name = format!("{:016x}-{}", self.process, self.fences.fetch_add(1, Ordering::Relaxed));
        let mut writes = Unfinished::default();
        self.send(FENCES, &name, Some(b""), &mut writes)?;
        self.writer.finish(&self.table, writes).await?;
        let proofs = HashMap::from([(0, vec![Bytes::from(key(FENCES, &name))])]);
        let asks = prefixes.into_iter().map(|prefix| Ask { bucket: 0, prefix: prefix.into() }).collect();
        let answers = self.lookups.get(&self.table, &proofs, asks).await;
        // Not waited for: a fence that stays harms nobody.
        self.send(FENCES, &name, None, &mut Unfinished::default())?;
        let mut entries = Vec::new();
        for row in answers?.iter().flatten() {
            match parse(row) {
                Some((FENCES, _)) => {}
                Some((_, value)) => entries.push(Entry::decode(value).ok_or_else(|| self.corrupt())?),
                None => return Err(self.corrupt()),
            }
        }
        Ok(entries)
    }

    fn corrupt(&self) -> StoreError {
        let message = format!("table {} holds an entry that this version of Weir did not write", self.table.path);
        StoreError::new(ErrorKind::Corrupt, message)
    }

    fn send(&self, group: &str, name: &str, value: Option<&[u8]>, to: &mut Unfinished) -> Result<()> {
        let key = key(group, name);
        let row = value.map(|value| {
            let mut row = vec![0];
            row.extend_from_slice(&key);
            put_bytes(&mut row, value);
            row
        });
        // There is one bucket: the bucket key only has to be one.
        let mut bucket_key = Vec::new();
        put_bytes(&mut bucket_key, group.as_bytes());
        self.writer.send(&self.table, bucket_key.into(), key, row, to)
    }
}

fn key(group: &str, name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(group.len() + name.len() + 4);
    put_bytes(&mut key, group.as_bytes());
    put_bytes(&mut key, name.as_bytes());
    key
}

/// Group and value of a row, as a lookup returns it.
fn parse(row: &[u8]) -> Option<(&str, &[u8])> {
    let mut reader = Reader(row);
    reader.take(3)?;
    let group = std::str::from_utf8(reader.bytes()?).ok()?;
    reader.bytes()?;
    Some((group, reader.bytes()?))
}
