//! Which generations a branch or version sees, and up to which epoch of each.

use std::collections::BTreeSet;
use std::sync::Arc;

use weir_store::KeyGroupRange;

use crate::encoding::{Reader, Stored, put_bytes, put_varint};

/// A table of rows, by name and the id it had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRef {
    pub name: Arc<str>,
    pub id: i64,
}

/// Rows of `generation` up to `last_epoch`, in `tables[table]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ancestor {
    pub table: usize,
    pub generation: u64,
    pub last_epoch: u64,
}

/// Key groups that see the same generations, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub range: KeyGroupRange,
    pub ancestors: Vec<Ancestor>,
}

/// A chain row that must be in a bucket, for all that it stands for to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    pub table: usize,
    pub bucket: i32,
    pub generation: u64,
    pub number: u64,
}

/// What a branch or version sees; segments are disjoint and ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    pub tables: Vec<TableRef>,
    pub segments: Vec<Segment>,
    pub proofs: Vec<Proof>,
}

impl Lineage {
    /// The place of a table, added if it is not there.
    pub fn table(&mut self, table: &TableRef) -> usize {
        self.tables.iter().position(|known| known == table).unwrap_or_else(|| {
            self.tables.push(table.clone());
            self.tables.len() - 1
        })
    }

    /// Newest first; empty outside of every segment.
    pub fn ancestors(&self, group: u16) -> &[Ancestor] {
        let at = self.segments.partition_point(|segment| segment.range.last < group);
        match self.segments.get(at) {
            Some(segment) if segment.range.first <= group => &segment.ancestors,
            _ => &[],
        }
    }

    pub fn sees(&self, generation: u64) -> bool {
        let mut ancestors = self.segments.iter().flat_map(|segment| &segment.ancestors);
        ancestors.any(|ancestor| ancestor.generation == generation)
    }

    /// Takes over what `other` sees of `range`, with the proofs of the range's buckets, which `in_range` tells. Neighbours
    /// in a bucket may have proofs of generations that the range does not see, and that may go: those are left out.
    pub fn add(&mut self, other: &Lineage, range: KeyGroupRange, in_range: impl Fn(&Proof) -> bool) {
        let places: Vec<usize> = other.tables.iter().map(|table| self.table(table)).collect();
        let mut seen = BTreeSet::new();
        for segment in &other.segments {
            let Some(range) = segment.range.intersection(range) else { continue };
            seen.extend(segment.ancestors.iter().map(|ancestor| ancestor.generation));
            let moved = |ancestor: &Ancestor| Ancestor { table: places[ancestor.table], ..*ancestor };
            self.segments.push(Segment { range, ancestors: segment.ancestors.iter().map(moved).collect() });
        }
        for proof in other.proofs.iter().filter(|proof| in_range(proof) && seen.contains(&proof.generation)) {
            let proof = Proof { table: places[proof.table], ..*proof };
            if !self.proofs.contains(&proof) {
                self.proofs.push(proof);
            }
        }
        self.segments.sort_by_key(|segment| segment.range.first);
    }

    /// The lineage of a version that also holds `own` in all of `range`.
    pub fn extended(&self, range: KeyGroupRange, own: Ancestor) -> Vec<Segment> {
        let mut segments: Vec<Segment> = Vec::new();
        let mut next = u32::from(range.first);
        let mut push = |first: u32, last: u32, ancestors: Vec<Ancestor>| {
            let range = KeyGroupRange::new(first as u16, last as u16);
            segments.push(Segment { range, ancestors });
        };
        for segment in &self.segments {
            let (first, last) = (u32::from(segment.range.first), u32::from(segment.range.last));
            if next < first && next <= u32::from(range.last) {
                push(next, (first - 1).min(u32::from(range.last)), vec![own]);
            }
            let mut ancestors = segment.ancestors.clone();
            if range.intersection(segment.range).is_some() {
                ancestors.insert(0, own);
            }
            push(first, last, ancestors);
            next = next.max(last + 1);
        }
        if next <= u32::from(range.last) {
            push(next, u32::from(range.last), vec![own]);
        }
        segments
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.tables.len() as u64);
        for table in &self.tables {
            put_bytes(out, table.name.as_bytes());
            put_varint(out, table.id as u64);
        }
        put_varint(out, self.segments.len() as u64);
        for Segment { range, ancestors } in &self.segments {
            put_varint(out, u64::from(range.first));
            put_varint(out, u64::from(range.last));
            put_varint(out, ancestors.len() as u64);
            for ancestor in ancestors {
                put_varint(out, ancestor.table as u64);
                out.extend_from_slice(&ancestor.generation.to_be_bytes());
                put_varint(out, ancestor.last_epoch);
            }
        }
        put_varint(out, self.proofs.len() as u64);
        for proof in &self.proofs {
            put_varint(out, proof.table as u64);
            put_varint(out, proof.bucket as u64);
            out.extend_from_slice(&proof.generation.to_be_bytes());
            put_varint(out, proof.number);
        }
    }

    pub fn decode(reader: &mut Reader) -> Option<Self> {
        let generation = |reader: &mut Reader| Some(u64::from_be_bytes(reader.take(8)?.try_into().ok()?));
        let mut lineage = Self::default();
        for _ in 0..reader.varint()? {
            let name = std::str::from_utf8(reader.bytes()?).ok()?.into();
            lineage.tables.push(TableRef { name, id: reader.varint()? as i64 });
        }
        let table = |at: u64| usize::try_from(at).ok().filter(|at| *at < lineage.tables.len());
        for _ in 0..reader.varint()? {
            let (first, last) = (reader.varint()?.try_into().ok()?, reader.varint()?.try_into().ok()?);
            let mut ancestors = Vec::new();
            for _ in 0..reader.varint()? {
                let table = table(reader.varint()?)?;
                ancestors.push(Ancestor { table, generation: generation(reader)?, last_epoch: reader.varint()? });
            }
            let range = (first <= last).then(|| KeyGroupRange::new(first, last))?;
            lineage.segments.push(Segment { range, ancestors });
        }
        for _ in 0..reader.varint()? {
            let table = table(reader.varint()?)?;
            let bucket = reader.varint()?.try_into().ok()?;
            lineage.proofs.push(Proof { table, bucket, generation: generation(reader)?, number: reader.varint()? });
        }
        Some(lineage)
    }
}

/// The place in `rows`, all of one key, of the version that `ancestors` see: of the newest generation, the newest epoch.
pub fn visible(rows: &[Stored], ancestors: &[Ancestor]) -> Option<usize> {
    ancestors.iter().find_map(|ancestor| {
        let seen = |row: &Stored| row.generation == ancestor.generation && row.epoch <= ancestor.last_epoch;
        let seen = rows.iter().enumerate().filter(|(_, row)| seen(row));
        seen.max_by_key(|(_, row)| row.epoch).map(|(at, _)| at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ancestor(generation: u64, last_epoch: u64) -> Ancestor {
        Ancestor { table: 0, generation, last_epoch }
    }

    fn segment(first: u16, last: u16, ancestors: &[Ancestor]) -> Segment {
        Segment { range: KeyGroupRange::new(first, last), ancestors: ancestors.to_vec() }
    }

    #[test]
    fn gaps_are_filled_and_parts_extended() {
        let own = ancestor(9, 4);
        let old = ancestor(1, 2);
        let mut lineage = Lineage::default();
        assert_eq!(lineage.extended(KeyGroupRange::new(3, 7), own), [segment(3, 7, &[own])]);
        lineage.segments = vec![segment(10, 20, &[old]), segment(30, 30, &[old])];
        let all = KeyGroupRange::new(0, u16::MAX);
        assert_eq!(
            lineage.extended(all, own),
            [
                segment(0, 9, &[own]),
                segment(10, 20, &[own, old]),
                segment(21, 29, &[own]),
                segment(30, 30, &[own, old]),
                segment(31, u16::MAX, &[own]),
            ]
        );
        lineage.segments = lineage.extended(all, own);
        assert_eq!(lineage.ancestors(20), [own, old]);
        assert_eq!(lineage.ancestors(21), [own]);
        assert_eq!(lineage.ancestors(u16::MAX), [own]);
    }

    #[test]
    fn a_part_takes_the_proofs_of_what_it_sees() {
        let table = TableRef { name: "t".into(), id: 1 };
        let proof = |bucket, generation| Proof { table: 0, bucket, generation, number: 1 };
        let whole = Lineage {
            tables: vec![table.clone()],
            segments: vec![segment(0, 3, &[ancestor(1, 1)]), segment(4, 20, &[ancestor(2, 1), ancestor(3, 1)])],
            proofs: vec![proof(0, 1), proof(0, 2), proof(1, 2), proof(2, 3)],
        };
        let mut part = Lineage::default();
        part.table(&TableRef { name: "own".into(), id: 2 });
        part.add(&whole, KeyGroupRange::new(2, 3), |proof| proof.bucket == 0);
        assert_eq!(part.tables.len(), 2);
        assert_eq!(part.segments, [segment(2, 3, &[Ancestor { table: 1, ..ancestor(1, 1) }])]);
        assert_eq!(part.proofs, [Proof { table: 1, ..proof(0, 1) }]);
    }

    #[test]
    fn lineages_come_back_from_bytes() {
        let lineage = Lineage {
            tables: vec![TableRef { name: "job__op".into(), id: 7 }, TableRef { name: "x".into(), id: 1 << 40 }],
            segments: vec![segment(0, 63, &[ancestor(u64::MAX, 1), ancestor(1, 300)]), segment(64, 127, &[])],
            proofs: vec![Proof { table: 1, bucket: 7, generation: 5, number: 1000 }],
        };
        let mut bytes = Vec::new();
        lineage.encode(&mut bytes);
        assert_eq!(Lineage::decode(&mut Reader(&bytes)), Some(lineage));
        for cut in 0..bytes.len() {
            assert_eq!(Lineage::decode(&mut Reader(&bytes[..cut])), None);
        }
    }

    #[test]
    fn the_newest_epoch_of_the_newest_generation_is_seen() {
        let row = |generation, epoch| Stored { key: "k".into(), generation, slot: 0, epoch, value: None };
        let rows = [row(1, 5), row(2, 1), row(2, 3), row(8, 2), row(1, 2)];
        assert_eq!(visible(&rows, &[ancestor(2, 3), ancestor(1, 9)]), Some(2));
        assert_eq!(visible(&rows, &[ancestor(2, 2), ancestor(1, 9)]), Some(1));
        assert_eq!(visible(&rows, &[ancestor(2, 0), ancestor(1, 4)]), Some(4));
        assert_eq!(visible(&rows, &[ancestor(3, 9)]), None);
        assert_eq!(visible(&rows, &[]), None);
    }
}
