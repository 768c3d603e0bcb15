//! What every store owes, as tests that run on any [`Stores`].
//!
//! ```ignore
//! fn subject() -> impl weir_store::promises::Subject { … }
//! weir_store::promises::suite!(subject);
//! ```
//! makes one `#[test]` of each promise. The values are exact: a store that keeps a promise nearly fails it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::{
    BranchName, Commit, ErrorKind, Expiry, ExpiryClock, ExpiryRule, KeyGroupRange, MAX_KEY_BYTES, PageLimit, Result,
    Row, RowValue, Source, StateReader, StateStore, StoreError, Stores, VersionRef,
};

pub use crate::promise_suite as suite;

/// A store under test: one root with nothing in it.
pub trait Subject: Send + Sync + 'static {
    fn stores(&self) -> Arc<dyn Stores>;

    /// The longest key that it takes, in bytes.
    fn longest_key(&self) -> usize {
        MAX_KEY_BYTES
    }

    /// The paths of all branches that the root still holds anything of.
    fn branches(&self) -> BoxFuture<'_, Vec<String>>;

    /// Whether what was written and not committed lies in the store's own memory.
    fn buffers(&self) -> bool {
        true
    }
}

/// Makes one `#[test]` of each promise; the argument is a function that makes a fresh [`Subject`], called inside a
/// Tokio runtime. `without expiry` is for a subject that keeps rows which have expired.
#[macro_export]
macro_rules! promise_suite {
    ($subject:expr) => {
        $crate::promise_suite!($subject, without expiry);
        $crate::promise_suite!(@each $subject;
            expired_rows_leave_and_no_others,
            versions_keep_what_expires_later,
            what_expired_hides_what_is_older,
        );
    };
    ($subject:expr, without expiry) => {
        $crate::promise_suite!(@each $subject;
            reads_see_writes,
            many_keys_are_answered_in_their_order,
            extreme_keys_and_values_are_kept,
            bad_batches_are_refused_whole,
            scans_are_ordered_and_paged,
            scans_keep_to_their_prefix,
            commit_holds_what_was_written_before_it,
            version_stays_the_same_whatever_is_written_later,
            two_openings_of_a_version_are_independent,
            deletes_hold_across_versions,
            commits_without_writes_are_versions,
            pending_commits_are_awaited_in_any_order,
            dropped_commit_leaves_nothing,
            two_sources_split_into_three,
            three_sources_unite_into_two,
            sources_are_clipped_to_their_ranges,
            a_rescale_there_and_back_keeps_every_row,
            overlapping_sources_are_refused,
            missing_version_is_typed,
            branch_name_is_used_once,
            branch_goes_with_its_last_version,
            branch_stays_while_its_attempt_writes,
            release_is_idempotent,
            released_parent_leaves_the_child_whole,
            release_reaches_the_grandparent,
            read_only_shows_the_version,
            reader_keeps_its_version,
            closed_store_refuses_calls,
            close_drops_what_no_version_needs,
            successor_reaps_later_versions,
            successor_fences_the_zombie,
            successor_after_rescale_reaps_what_starts_in_its_range,
            siblings_are_not_reaped,
            versions_of_another_run_are_kept,
            openings_of_one_attempt_leave_each_other_alone,
            commit_counts_bytes,
        );
    };
    (@each $subject:expr; $($promise:ident),+ $(,)?) => {
        $(
            #[test]
            fn $promise() {
                $crate::promises::run(async {
                    let subject = ($subject)();
                    $crate::promises::$promise(&subject).await;
                });
            }
        )+
    };
}

/// Runs one promise on a runtime of its own.
pub fn run(promise: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime for the test");
    runtime.block_on(promise);
    runtime.shutdown_timeout(Duration::from_secs(5));
}

pub const ALL: KeyGroupRange = KeyGroupRange { first: 0, last: 127 };

pub fn branch(path: &str) -> BranchName {
    BranchName::parse(path).expect("a branch name")
}

/// The key of `name` in key group `group`.
pub fn key(group: u16, name: &str) -> Bytes {
    [&group.to_be_bytes(), name.as_bytes()].concat().into()
}

pub fn put(group: u16, name: &str, value: &str) -> Row {
    Row { key: key(group, name), value: Some(Bytes::copy_from_slice(value.as_bytes())) }
}

pub fn delete(group: u16, name: &str) -> Row {
    Row { key: key(group, name), value: None }
}

pub const NO_LIMIT: PageLimit = PageLimit { rows: usize::MAX, bytes: usize::MAX };

/// All rows that a reader shows, by pages of few rows.
pub async fn rows(reader: &(impl StateReader + ?Sized)) -> BTreeMap<Bytes, Bytes> {
    let mut all = BTreeMap::new();
    let mut after: Option<Bytes> = None;
    loop {
        let page = reader.scan(&[], after.as_deref(), PageLimit { rows: 7, bytes: 1 << 20 }).await.expect("a page");
        after = page.rows.last().map(|(key, _)| key.clone()).or(after);
        for (key, value) in page.rows {
            assert!(all.insert(key, value).is_none(), "a row came twice");
        }
        if page.done {
            return all;
        }
    }
}

/// What [`rows`] returns for these puts.
pub fn expect(rows: impl IntoIterator<Item = Row>) -> BTreeMap<Bytes, Bytes> {
    rows.into_iter().map(|row| (row.key, row.value.expect("a put"))).collect()
}

pub async fn get(reader: &(impl StateReader + ?Sized), key: Bytes) -> Option<Bytes> {
    let mut values = reader.get_many(&[key]).await.expect("a value");
    assert_eq!(values.len(), 1);
    values.remove(0)
}

pub async fn commit(store: &(impl StateStore + ?Sized), checkpoint: u64) -> Commit {
    store.begin_commit(checkpoint).await.expect("a commit begins").await.expect("a commit")
}

pub fn whole(commit: &Commit) -> Source {
    clipped(commit, ALL)
}

pub fn clipped(commit: &Commit, range: KeyGroupRange) -> Source {
    Source { version: commit.version.clone(), range }
}

async fn open_fresh(stores: &Arc<dyn Stores>, path: &str) -> Arc<dyn StateStore> {
    stores.open(&branch(path), ALL, &[], 0).await.expect("a fresh branch")
}

async fn open_at(stores: &Arc<dyn Stores>, path: &str, source: &Commit, restored: u64) -> Arc<dyn StateStore> {
    stores.open(&branch(path), ALL, &[whole(source)], restored).await.expect("a branch at a version")
}

fn kind_of<T>(result: Result<T>) -> ErrorKind {
    result.err().map(|error| error.kind()).expect("an error")
}

/// Waits until the root holds exactly these branches: cleaning up may go on after the call that caused it.
async fn until_branches(subject: &impl Subject, expected: &[&str]) {
    let start = Instant::now();
    loop {
        let branches = subject.branches().await;
        if branches == expected {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "branches {branches:?}, expected {expected:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub async fn reads_see_writes(subject: &impl Subject) {
    let store = open_fresh(&subject.stores(), "job/op/0/a").await;
    assert_eq!(get(&*store, key(1, "a")).await, None);
    store.write(vec![put(1, "a", "1"), put(1, "b", "2")]).await.unwrap();
    assert_eq!(get(&*store, key(1, "a")).await, Some(Bytes::from("1")));
    store.write(vec![put(1, "a", "3"), delete(1, "b"), put(2, "c", "4")]).await.unwrap();
    assert_eq!(rows(&*store).await, expect([put(1, "a", "3"), put(2, "c", "4")]));
    // An error leaves it open what was taken; the same batch again makes it whole, and so does it without one.
    store.write(vec![put(1, "a", "3"), delete(1, "b"), put(2, "c", "4")]).await.unwrap();
    store.write(Vec::new()).await.unwrap();
    assert_eq!(rows(&*store).await, expect([put(1, "a", "3"), put(2, "c", "4")]));
    store.close().await.unwrap();
}

pub async fn many_keys_are_answered_in_their_order(subject: &impl Subject) {
    let store = open_fresh(&subject.stores(), "job/op/0/a").await;
    let batch: Vec<Row> = (0..500).map(|i| put(i / 50, &format!("{i:04}"), &format!("v{i}"))).collect();
    store.write(batch).await.unwrap();
    for committed in [false, true] {
        if committed {
            commit(&*store, 1).await;
        }
        // Backwards, with a duplicate and an absent key between each.
        let asked: Vec<Bytes> = (0..500u16)
            .rev()
            .flat_map(|i| {
                let present = key(i / 50, &format!("{i:04}"));
                [present.clone(), key(i / 50, &format!("{i:04}x")), present]
            })
            .collect();
        let expected: Vec<Option<Bytes>> =
            (0..500).rev().flat_map(|i| [Some(format!("v{i}").into()), None, Some(format!("v{i}").into())]).collect();
        assert_eq!(store.get_many(&asked).await.unwrap(), expected);
        assert_eq!(store.get_many(&[]).await.unwrap(), Vec::<Option<Bytes>>::new());
    }
    store.close().await.unwrap();
}

pub async fn extreme_keys_and_values_are_kept(subject: &impl Subject) {
    let stores = subject.stores();
    let everything = KeyGroupRange::new(0, u16::MAX);
    let store = stores.open(&branch("job/op/0/a"), everything, &[], 0).await.unwrap();
    let longest: Bytes = [&3u16.to_be_bytes()[..], &vec![0xFF; MAX_KEY_BYTES - 2]].concat().into();
    let large: Vec<Bytes> = (0..3u8).map(|i| (0..1 << 20).map(|at| i ^ (at % 251) as u8).collect()).collect();
    let batch = vec![
        Row { key: key(0, ""), value: Some(Bytes::new()) },
        Row { key: key(0, "\0"), value: Some("zero".into()) },
        Row { key: key(1, "large"), value: Some(large[0].clone()) },
        Row { key: key(1, "larger"), value: Some(large[1].clone()) },
        Row { key: key(1, "largest"), value: Some(large[2].clone()) },
        Row { key: longest.clone(), value: Some("long".into()) },
        Row { key: vec![0xFF; 40].into(), value: Some("last".into()) },
    ];
    store.write(batch.clone()).await.unwrap();
    assert_eq!(rows(&*store).await, expect(batch.clone()));
    let version = commit(&*store, 1).await;
    assert_eq!(rows(&*store).await, expect(batch.clone()));
    let child = stores.open(&branch("job/op/0/b"), everything, &[clipped(&version, everything)], 1).await.unwrap();
    assert_eq!(rows(&*child).await, expect(batch));
    assert_eq!(get(&*child, longest).await, Some(Bytes::from("long")));
    assert_eq!(get(&*child, key(0, "")).await, Some(Bytes::new()), "an empty value is a value");
    // A page of one large row at a time.
    let limit = PageLimit { rows: 10, bytes: 1 << 20 };
    let page = child.scan(&key(1, ""), None, limit).await.unwrap();
    assert_eq!(page.rows, [(key(1, "large"), large[0].clone())]);
    assert!(!page.done);
    child.close().await.unwrap();
    store.close().await.unwrap();
}

pub async fn bad_batches_are_refused_whole(subject: &impl Subject) {
    let store = open_fresh(&subject.stores(), "job/op/0/a").await;
    let too_long = Row { key: vec![1; subject.longest_key() + 1].into(), value: None };
    for bad in [
        vec![put(1, "b", "x"), put(1, "a", "x")],
        vec![put(1, "a", "x"), put(1, "a", "y")],
        vec![put(0, "a", "x"), too_long],
        vec![Row { key: Bytes::new(), value: Some("x".into()) }],
        vec![Row { key: Bytes::from_static(b"1"), value: Some("x".into()) }],
    ] {
        assert_eq!(kind_of(store.write(bad).await), ErrorKind::InvalidArgument);
    }
    assert_eq!(rows(&*store).await, BTreeMap::new());
    store.close().await.unwrap();
}

pub async fn scans_are_ordered_and_paged(subject: &impl Subject) {
    let store = open_fresh(&subject.stores(), "job/op/0/a").await;
    // In three layers: one committed, one committed over it, one only written.
    let name = |i: u32| format!("{i:03}");
    store.write((0..100).step_by(2).map(|i| put(5, &name(i), "old")).collect()).await.unwrap();
    commit(&*store, 1).await;
    store.write((0..100).step_by(5).map(|i| put(5, &name(i), "new")).collect()).await.unwrap();
    commit(&*store, 2).await;
    store.write((0..100).step_by(10).map(|i| delete(5, &name(i))).collect()).await.unwrap();
    let expected: Vec<(Bytes, Bytes)> = (0..100)
        .filter(|i| i % 10 != 0 && (i % 2 == 0 || i % 5 == 0))
        .map(|i| (key(5, &name(i)), Bytes::from(if i % 5 == 0 { "new" } else { "old" })))
        .collect();
    let prefix = key(5, "");

    let page = store.scan(&prefix, None, NO_LIMIT).await.unwrap();
    assert_eq!((page.rows, page.done), (expected.clone(), true));
    for page_rows in [1, 3, expected.len() - 1, expected.len(), expected.len() + 1] {
        let limit = PageLimit { rows: page_rows, bytes: usize::MAX };
        let mut got = Vec::new();
        loop {
            let after = got.last().map(|(key, _): &(Bytes, Bytes)| key.clone());
            let page = store.scan(&prefix, after.as_deref(), limit).await.unwrap();
            assert!(page.rows.len() <= page_rows);
            assert_eq!(page.done, got.len() + page.rows.len() == expected.len(), "done with the last row, not before");
            got.extend(page.rows);
            if page.done {
                break;
            }
        }
        assert_eq!(got, expected);
    }
    // A row has 2 + 3 + 3 bytes: the page is cut after the row that reaches the bound.
    for (bytes, count) in [(0, 1), (8, 1), (9, 2), (16, 2), (17, 3)] {
        let page = store.scan(&prefix, None, PageLimit { rows: usize::MAX, bytes }).await.unwrap();
        assert_eq!((page.rows.len(), page.done), (count, false), "{bytes} bytes");
    }
    assert_eq!(store.scan(&prefix, None, PageLimit { rows: 0, bytes: 0 }).await.unwrap().rows, expected[..1]);
    // After a key that is not there, between two rows; before the prefix; at and after the last row.
    let after = key(5, "003");
    assert_eq!(store.scan(&prefix, Some(&after), NO_LIMIT).await.unwrap().rows, expected[1..]);
    assert_eq!(store.scan(&prefix, Some(&key(4, "z")), NO_LIMIT).await.unwrap().rows, expected);
    for past in [expected.last().unwrap().0.clone(), key(5, "zzz"), key(6, ""), key(9, "a")] {
        let page = store.scan(&prefix, Some(&past), NO_LIMIT).await.unwrap();
        assert_eq!((page.rows, page.done), (Vec::new(), true));
    }
    store.close().await.unwrap();
}

pub async fn scans_keep_to_their_prefix(subject: &impl Subject) {
    let everything = KeyGroupRange::new(0, u16::MAX);
    let store = subject.stores().open(&branch("job/op/0/a"), everything, &[], 0).await.unwrap();
    let raw = |key: &[u8]| Row { key: Bytes::copy_from_slice(key), value: Some("v".into()) };
    let keys: [&[u8]; 8] = [
        &[0, 1],
        &[0, 1, 7],
        &[0, 1, 7, 0],
        &[0, 1, 7, 0xFF],
        &[0, 1, 7, 0xFF, 0xFF, 3],
        &[0, 1, 8],
        &[0xFF, 0xFF],
        &[0xFF, 0xFF, 0xFF],
    ];
    store.write(keys.iter().map(|key| raw(key)).collect()).await.unwrap();
    for committed in [false, true] {
        if committed {
            commit(&*store, 1).await;
        }
        for (prefix, expected) in [
            (&[][..], 0..8),
            (&[0][..], 0..6),
            (&[0, 1, 7], 1..5),
            (&[0, 1, 7, 0xFF], 3..5),
            (&[0, 1, 7, 0xFF, 0xFF], 4..5),
            (&[0xFF, 0xFF], 6..8),
            (&[0xFF, 0xFF, 0xFF, 0xFF], 8..8),
            (&[0, 2], 6..6),
        ] {
            let page = store.scan(prefix, None, NO_LIMIT).await.unwrap();
            let got: Vec<&[u8]> = page.rows.iter().map(|(key, _)| &key[..]).collect();
            assert_eq!(got, keys[expected], "prefix {prefix:?}");
            assert!(page.done);
        }
    }
    store.close().await.unwrap();
}

pub async fn commit_holds_what_was_written_before_it(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    store.write(vec![put(1, "a", "1")]).await.unwrap();
    let pending = store.begin_commit(7).await.unwrap();
    // Before the commit is awaited, and of the same key.
    store.write(vec![put(1, "a", "2"), put(1, "b", "2")]).await.unwrap();
    let first = pending.await.unwrap();
    assert_eq!(first.version.branch, branch("job/op/0/a"));
    assert!(first.version.version.len() <= 64);
    assert!(first.version.version.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'));
    assert_eq!(rows(&*store).await, expect([put(1, "a", "2"), put(1, "b", "2")]));
    let child = open_at(&stores, "job/op/1/b", &first, 7).await;
    assert_eq!(rows(&*child).await, expect([put(1, "a", "1")]));
    child.close().await.unwrap();
    store.close().await.unwrap();
}

pub async fn version_stays_the_same_whatever_is_written_later(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    store.write((0..200).map(|i| put(1, &format!("{i:03}"), "first")).collect()).await.unwrap();
    let first = commit(&*store, 1).await;
    let expected = expect((0..200).map(|i| put(1, &format!("{i:03}"), "first")));
    // By the same attempt, for many versions; by a child; by a child of a later version.
    let child = open_at(&stores, "other/op/0/b", &first, 1).await;
    child.write((0..200).map(|i| delete(1, &format!("{i:03}"))).collect()).await.unwrap();
    commit(&*child, 2).await;
    let mut later = None;
    for checkpoint in 2..12 {
        store.write((0..200).map(|i| put(1, &format!("{i:03}"), &format!("{checkpoint}"))).collect()).await.unwrap();
        later = Some(commit(&*store, checkpoint).await);
        store.upkeep(checkpoint);
    }
    let grandchild = open_at(&stores, "another/op/0/c", &later.unwrap(), 11).await;
    grandchild.write(vec![delete(1, "000")]).await.unwrap();
    commit(&*grandchild, 12).await;
    let again = open_at(&stores, "third/op/0/d", &first, 1).await;
    assert_eq!(rows(&*again).await, expected);
    for store in [again, grandchild, child, store] {
        store.close().await.unwrap();
    }
}

pub async fn two_openings_of_a_version_are_independent(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    store.write(vec![put(1, "a", "1"), put(1, "b", "1")]).await.unwrap();
    let version = commit(&*store, 1).await;
    let (left_name, right_name) = (branch("left/op/0/b"), branch("right/op/0/b"));
    let source = [whole(&version)];
    let (left, right) =
        futures::future::join(stores.open(&left_name, ALL, &source, 1), stores.open(&right_name, ALL, &source, 1))
            .await;
    let (left, right) = (left.unwrap(), right.unwrap());
    left.write(vec![put(1, "a", "left"), delete(1, "b")]).await.unwrap();
    right.write(vec![put(1, "c", "right")]).await.unwrap();
    store.write(vec![put(1, "a", "2")]).await.unwrap();
    assert_eq!(rows(&*left).await, expect([put(1, "a", "left")]));
    assert_eq!(rows(&*right).await, expect([put(1, "a", "1"), put(1, "b", "1"), put(1, "c", "right")]));
    let (of_left, of_right) = (commit(&*left, 2).await, commit(&*right, 2).await);
    left.close().await.unwrap();
    right.close().await.unwrap();
    let left = open_at(&stores, "left/op/0/c", &of_left, 2).await;
    let right = open_at(&stores, "right/op/0/c", &of_right, 2).await;
    assert_eq!(rows(&*left).await, expect([put(1, "a", "left")]));
    assert_eq!(rows(&*right).await, expect([put(1, "a", "1"), put(1, "b", "1"), put(1, "c", "right")]));
    for store in [left, right, store] {
        store.close().await.unwrap();
    }
}

pub async fn deletes_hold_across_versions(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    store.write((0..50).map(|i| put(1, &format!("{i:02}"), "1")).collect()).await.unwrap();
    let first = commit(&*store, 1).await;
    // Blind deletes too: of what is not there.
    store.write((0..60).step_by(2).map(|i| delete(1, &format!("{i:02}"))).collect()).await.unwrap();
    let second = commit(&*store, 2).await;
    store.write(vec![put(1, "00", "3"), delete(1, "01"), delete(1, "99")]).await.unwrap();
    let third = commit(&*store, 3).await;
    let odd = || (0..50).filter(|i| i % 2 == 1).map(|i| put(1, &format!("{i:02}"), "1"));
    let expected = [
        expect((0..50).map(|i| put(1, &format!("{i:02}"), "1"))),
        expect(odd()),
        expect(odd().filter(|row| row.key != key(1, "01")).chain([put(1, "00", "3")])),
    ];
    for (i, (version, expected)) in [first, second, third].iter().zip(expected).enumerate() {
        let child = open_at(&stores, &format!("child{i}/op/0/b"), version, i as u64 + 1).await;
        assert_eq!(rows(&*child).await, expected, "version {i}");
        let present = expected.contains_key(&key(1, "00"));
        assert_eq!(get(&*child, key(1, "00")).await.is_some(), present);
        child.close().await.unwrap();
    }
    store.close().await.unwrap();
}

pub async fn commits_without_writes_are_versions(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    let empty = commit(&*store, 1).await;
    store.write(vec![put(1, "a", "1")]).await.unwrap();
    let first = commit(&*store, 2).await;
    let same = commit(&*store, 3).await;
    assert_ne!(first.version, same.version);
    let child = open_at(&stores, "x/op/0/b", &empty, 1).await;
    assert_eq!(rows(&*child).await, BTreeMap::new());
    child.write(vec![put(1, "b", "1")]).await.unwrap();
    let of_child = commit(&*child, 2).await;
    child.close().await.unwrap();
    let child = open_at(&stores, "x/op/0/c", &of_child, 2).await;
    assert_eq!(rows(&*child).await, expect([put(1, "b", "1")]));
    child.close().await.unwrap();
    let child = open_at(&stores, "y/op/0/b", &same, 3).await;
    assert_eq!(rows(&*child).await, expect([put(1, "a", "1")]));
    child.close().await.unwrap();
    store.close().await.unwrap();
}

pub async fn pending_commits_are_awaited_in_any_order(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    let mut pending = Vec::new();
    for checkpoint in 1..=4u64 {
        store.write(vec![put(1, "a", &format!("{checkpoint}"))]).await.unwrap();
        pending.push((checkpoint, store.begin_commit(checkpoint).await.unwrap()));
    }
    // 3 is never awaited.
    let mut commits = BTreeMap::new();
    for checkpoint in [4, 1, 2] {
        let at = pending.iter().position(|(of, _)| *of == checkpoint).unwrap();
        commits.insert(checkpoint, pending.remove(at).1.await.unwrap());
    }
    drop(pending);
    for (checkpoint, version) in &commits {
        let child = open_at(&stores, &format!("c{checkpoint}/op/0/b"), version, *checkpoint).await;
        assert_eq!(rows(&*child).await, expect([put(1, "a", &format!("{checkpoint}"))]));
        child.close().await.unwrap();
    }
    store.close().await.unwrap();
    for version in commits.values() {
        stores.release(&version.version).await.unwrap();
    }
    until_branches(subject, &[]).await;
}

pub async fn dropped_commit_leaves_nothing(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    store.write(vec![put(1, "a", "1")]).await.unwrap();
    drop(store.begin_commit(1).await.unwrap());
    store.write(vec![put(1, "a", "2")]).await.unwrap();
    let pending = store.begin_commit(2).await.unwrap();
    // Long enough to be durable before it is dropped.
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(pending);
    // Nothing of it is lost: it belongs to the next version.
    store.write(vec![put(1, "b", "3")]).await.unwrap();
    let third = commit(&*store, 3).await;
    store.close().await.unwrap();
    until_branches(subject, &["job/op/0/a"]).await;
    let child = open_at(&stores, "job/op/1/b", &third, 3).await;
    assert_eq!(rows(&*child).await, expect([put(1, "a", "2"), put(1, "b", "3")]));
    child.close().await.unwrap();
    stores.release(&third.version).await.unwrap();
    until_branches(subject, &[]).await;
}

/// Two branches of one checkpoint, with two rows a key group, on key groups 0..=63 and 64..=127.
async fn two_halves(stores: &Arc<dyn Stores>, checkpoint: u64) -> (Vec<Commit>, BTreeMap<Bytes, Bytes>) {
    let mut commits = Vec::new();
    let mut all = BTreeMap::new();
    for (i, first) in [0u16, 64].into_iter().enumerate() {
        let range = KeyGroupRange::new(first, first + 63);
        let store = stores.open(&branch(&format!("job/op/{i}-of-2/a")), range, &[], 0).await.unwrap();
        let batch: Vec<Row> = (first..first + 64)
            .flat_map(|group| [put(group, "x", &format!("x{group}")), put(group, "y", &format!("y{group}"))])
            .collect();
        all.extend(expect(batch.clone()));
        store.write(batch).await.unwrap();
        commits.push(commit(&*store, checkpoint).await);
        // Later than the version.
        store.write(vec![put(first, "z", "late")]).await.unwrap();
        store.close().await.unwrap();
    }
    (commits, all)
}

fn within(all: &BTreeMap<Bytes, Bytes>, range: KeyGroupRange) -> BTreeMap<Bytes, Bytes> {
    let rows = all.iter().filter(|(key, _)| range.contains_key(key));
    rows.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Opens `ranges.len()` subtasks over sources, each source with the range it holds.
async fn rescale(
    stores: &Arc<dyn Stores>,
    sources: &[(Commit, KeyGroupRange)],
    ranges: &[KeyGroupRange],
    attempt: &str,
    restored: u64,
) -> Vec<Arc<dyn StateStore>> {
    let mut opened = Vec::new();
    for (i, range) in ranges.iter().enumerate() {
        let clipped: Vec<Source> =
            sources.iter().filter_map(|(commit, held)| Some(clipped(commit, held.intersection(*range)?))).collect();
        let name = branch(&format!("job/op/{i}-of-{}/{attempt}", ranges.len()));
        opened.push(stores.open(&name, *range, &clipped, restored).await.expect("a rescaled branch"));
    }
    opened
}

const HALVES: [KeyGroupRange; 2] = [KeyGroupRange { first: 0, last: 63 }, KeyGroupRange { first: 64, last: 127 }];
const THIRDS: [KeyGroupRange; 3] = [
    KeyGroupRange { first: 0, last: 42 },
    KeyGroupRange { first: 43, last: 85 },
    KeyGroupRange { first: 86, last: 127 },
];

pub async fn two_sources_split_into_three(subject: &impl Subject) {
    let stores = subject.stores();
    let (commits, all) = two_halves(&stores, 5).await;
    let sources: Vec<_> = commits.into_iter().zip(HALVES).collect();
    let thirds = rescale(&stores, &sources, &THIRDS, "b", 5).await;
    for (store, range) in thirds.iter().zip(THIRDS) {
        assert_eq!(rows(&**store).await, within(&all, range), "range {range}");
        for group in [range.first, range.last] {
            assert_eq!(get(&**store, key(group, "x")).await, Some(format!("x{group}").into()));
        }
        for group in [range.first.wrapping_sub(1), range.last + 1] {
            assert_eq!(get(&**store, key(group, "x")).await, None, "a row of a neighbour's key group");
        }
        store.close().await.unwrap();
    }
}

pub async fn three_sources_unite_into_two(subject: &impl Subject) {
    let stores = subject.stores();
    let (commits, mut all) = two_halves(&stores, 5).await;
    let sources: Vec<_> = commits.into_iter().zip(HALVES).collect();
    let thirds = rescale(&stores, &sources, &THIRDS, "b", 5).await;
    let mut sources = Vec::new();
    for (store, range) in thirds.iter().zip(THIRDS) {
        let group = range.first;
        store.write(vec![delete(group, "x"), put(group, "y", "changed")]).await.unwrap();
        all.remove(&key(group, "x"));
        all.insert(key(group, "y"), "changed".into());
        sources.push((commit(&**store, 6).await, range));
        store.close().await.unwrap();
    }
    let halves = rescale(&stores, &sources, &HALVES, "c", 6).await;
    for (store, range) in halves.iter().zip(HALVES) {
        assert_eq!(rows(&**store).await, within(&all, range), "range {range}");
        store.close().await.unwrap();
    }
}

pub async fn sources_are_clipped_to_their_ranges(subject: &impl Subject) {
    let stores = subject.stores();
    let (commits, all) = two_halves(&stores, 5).await;
    // Only a part of each, leaving a gap; the rest is hidden although the files hold it.
    let parts = [KeyGroupRange::new(10, 20), KeyGroupRange::new(100, 100)];
    let sources: Vec<Source> = commits.iter().zip(parts).map(|(commit, part)| clipped(commit, part)).collect();
    let store = stores.open(&branch("fork/op/0/a"), ALL, &sources, 5).await.unwrap();
    let expected: BTreeMap<_, _> = parts.iter().flat_map(|part| within(&all, *part)).collect();
    assert_eq!(rows(&*store).await, expected);
    assert_eq!(get(&*store, key(9, "x")).await, None);
    assert_eq!(get(&*store, key(21, "x")).await, None);
    assert_eq!(get(&*store, key(20, "x")).await, Some("x20".into()));
    // What lies outside can be written anew.
    store.write(vec![put(21, "x", "own"), delete(100, "y")]).await.unwrap();
    let own = commit(&*store, 6).await;
    store.close().await.unwrap();
    let store = stores.open(&branch("fork/op/0/b"), ALL, &[whole(&own)], 6).await.unwrap();
    let mut expected = expected;
    expected.insert(key(21, "x"), "own".into());
    expected.remove(&key(100, "y"));
    assert_eq!(rows(&*store).await, expected);
    store.close().await.unwrap();
}

pub async fn a_rescale_there_and_back_keeps_every_row(subject: &impl Subject) {
    let stores = subject.stores();
    let (commits, mut all) = two_halves(&stores, 1).await;
    let mut sources: Vec<_> = commits.into_iter().zip(HALVES).collect();
    let mut checkpoint = 1;
    for (round, ranges) in [&[ALL][..], &THIRDS, &HALVES, &[ALL], &HALVES].iter().enumerate() {
        let opened = rescale(&stores, &sources, ranges, &format!("r{round}"), checkpoint).await;
        checkpoint += 1;
        let mut next = Vec::new();
        for (store, range) in opened.iter().zip(ranges.iter()) {
            assert_eq!(rows(&**store).await, within(&all, *range), "round {round}, range {range}");
            let group = range.last;
            store.write(vec![put(group, "r", &format!("{round}")), delete(group, "x")]).await.unwrap();
            all.insert(key(group, "r"), format!("{round}").into());
            all.remove(&key(group, "x"));
            next.push((commit(&**store, checkpoint).await, *range));
            store.close().await.unwrap();
        }
        for (version, _) in &sources {
            stores.release(&version.version).await.unwrap();
        }
        sources = next;
    }
    for (version, range) in &sources {
        let reader = stores.open_read_only(&clipped(version, *range)).await.unwrap();
        assert_eq!(rows(&*reader).await, within(&all, *range));
    }
    for (version, _) in &sources {
        stores.release(&version.version).await.unwrap();
    }
    until_branches(subject, &[]).await;
}

pub async fn overlapping_sources_are_refused(subject: &impl Subject) {
    let stores = subject.stores();
    let (commits, _) = two_halves(&stores, 1).await;
    let sources = [clipped(&commits[0], KeyGroupRange::new(0, 64)), clipped(&commits[1], HALVES[1])];
    let refused = stores.open(&branch("job/op/0/c"), ALL, &sources, 1).await;
    assert_eq!(kind_of(refused), ErrorKind::InvalidArgument);
    assert!(!subject.branches().await.contains(&"job/op/0/c".to_owned()));
}

pub async fn missing_version_is_typed(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    store.write(vec![put(1, "a", "1")]).await.unwrap();
    let version = commit(&*store, 1).await;
    stores.release(&version.version).await.unwrap();
    let never = VersionRef { branch: branch("job/op/0/never"), version: version.version.version.clone() };
    let garbled = VersionRef { branch: branch("job/op/0/a"), version: "no-such-version".into() };
    for missing in [version.version.clone(), never, garbled] {
        let source = Source { version: missing.clone(), range: ALL };
        let check = |error: Option<StoreError>| {
            let error = error.expect("an error");
            assert_eq!(error.kind(), ErrorKind::MissingVersion);
            assert!(error.to_string().contains(&missing.to_string()), "'{error}' does not name {missing}");
        };
        check(stores.open(&branch("job/op/1/b"), ALL, std::slice::from_ref(&source), 1).await.err());
        check(stores.open_read_only(&source).await.err());
        // The name is free again after a failed opening.
        stores.open(&branch("job/op/1/b"), ALL, &[], 0).await.unwrap().close().await.unwrap();
    }
    store.close().await.unwrap();
    until_branches(subject, &[]).await;
}

pub async fn branch_name_is_used_once(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    assert_eq!(kind_of(stores.open(&branch("job/op/0/a"), ALL, &[], 0).await), ErrorKind::InvalidArgument);
    store.write(vec![put(1, "a", "1")]).await.unwrap();
    let version = commit(&*store, 1).await;
    store.close().await.unwrap();
    assert_eq!(kind_of(stores.open(&branch("job/op/0/a"), ALL, &[], 0).await), ErrorKind::InvalidArgument);
    let reader = stores.open_read_only(&whole(&version)).await.unwrap();
    assert_eq!(rows(&*reader).await, expect([put(1, "a", "1")]));
}

pub async fn branch_goes_with_its_last_version(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    store.write(vec![put(1, "a", "1")]).await.unwrap();
    let (first, second) = (commit(&*store, 1).await, commit(&*store, 2).await);
    store.close().await.unwrap();
    until_branches(subject, &["job/op/0/a"]).await;
    stores.release(&first.version).await.unwrap();
    until_branches(subject, &["job/op/0/a"]).await;
    let reader = stores.open_read_only(&whole(&second)).await.unwrap();
    assert_eq!(rows(&*reader).await, expect([put(1, "a", "1")]));
    drop(reader);
    stores.release(&second.version).await.unwrap();
    until_branches(subject, &[]).await;
}

pub async fn branch_stays_while_its_attempt_writes(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    store.write((0..100).map(|i| put(1, &format!("{i:02}"), "1")).collect()).await.unwrap();
    // The first checkpoint times out: Flink discards its handle while the task goes on.
    let first = commit(&*store, 1).await;
    stores.release(&first.version).await.unwrap();
    until_branches(subject, &["job/op/0/a"]).await;
    assert_eq!(rows(&*store).await.len(), 100);
    store.write(vec![put(1, "00", "2")]).await.unwrap();
    let second = commit(&*store, 2).await;
    let child = open_at(&stores, "job/op/1/b", &second, 2).await;
    assert_eq!(get(&*child, key(1, "00")).await, Some("2".into()));
    assert_eq!(get(&*child, key(1, "01")).await, Some("1".into()));
    child.close().await.unwrap();
    store.close().await.unwrap();
}

pub async fn release_is_idempotent(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    store.write(vec![put(1, "a", "1")]).await.unwrap();
    let (first, second) = (commit(&*store, 1).await, commit(&*store, 2).await);
    store.close().await.unwrap();
    let never = VersionRef { branch: branch("no/such/branch/x"), version: second.version.version.clone() };
    let garbled = VersionRef { branch: branch("job/op/0/a"), version: "garbled".into() };
    stores.release(&never).await.unwrap();
    stores.release(&garbled).await.unwrap();
    stores.release(&first.version).await.unwrap();
    stores.release(&first.version).await.unwrap();
    until_branches(subject, &["job/op/0/a"]).await;
    // Side by side too.
    let (left, right) = futures::future::join(stores.release(&second.version), stores.release(&second.version)).await;
    left.unwrap();
    right.unwrap();
    stores.release(&second.version).await.unwrap();
    until_branches(subject, &[]).await;
}

pub async fn released_parent_leaves_the_child_whole(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    let batch: Vec<Row> = (0..300).map(|i| put(1, &format!("{i:03}"), &format!("v{i}"))).collect();
    store.write(batch.clone()).await.unwrap();
    let version = commit(&*store, 1).await;
    store.close().await.unwrap();
    let child = open_at(&stores, "job/op/1/b", &version, 1).await;
    stores.release(&version.version).await.unwrap();
    assert_eq!(rows(&*child).await, expect(batch.clone()));
    child.write(vec![put(1, "000", "child")]).await.unwrap();
    let of_child = commit(&*child, 2).await;
    child.upkeep(2);
    child.close().await.unwrap();
    assert_eq!(
        kind_of(stores.open(&branch("job/op/1/c"), ALL, &[whole(&version)], 1).await),
        ErrorKind::MissingVersion,
        "released, although its files may still be there"
    );
    let again = open_at(&stores, "job/op/1/d", &of_child, 2).await;
    let mut expected = expect(batch);
    expected.insert(key(1, "000"), "child".into());
    assert_eq!(rows(&*again).await, expected);
    again.close().await.unwrap();
    stores.release(&of_child.version).await.unwrap();
    until_branches(subject, &[]).await;
}

pub async fn release_reaches_the_grandparent(subject: &impl Subject) {
    let stores = subject.stores();
    let mut store = open_fresh(&stores, "job/op/0/g0").await;
    let mut expected = BTreeMap::new();
    let mut versions: Vec<Commit> = Vec::new();
    for generation in 0..4u64 {
        if generation > 0 {
            let parent = versions.last().unwrap();
            store = open_at(&stores, &format!("job/op/0/g{generation}"), parent, generation).await;
        }
        let row = put(1, &format!("{generation}"), "v");
        expected.extend(expect([row.clone()]));
        store.write(vec![row]).await.unwrap();
        versions.push(commit(&*store, generation + 1).await);
        store.close().await.unwrap();
    }
    for version in &versions[..3] {
        stores.release(&version.version).await.unwrap();
    }
    let reader = stores.open_read_only(&whole(&versions[3])).await.unwrap();
    assert_eq!(rows(&*reader).await, expected);
    drop(reader);
    stores.release(&versions[3].version).await.unwrap();
    until_branches(subject, &[]).await;
}

pub async fn read_only_shows_the_version(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    store.write((0..10).map(|group| put(group, "a", &format!("{group}"))).collect()).await.unwrap();
    let version = commit(&*store, 1).await;
    store.write(vec![put(3, "a", "late"), put(3, "b", "late")]).await.unwrap();
    commit(&*store, 2).await;
    let range = KeyGroupRange::new(2, 4);
    let reader = stores.open_read_only(&clipped(&version, range)).await.unwrap();
    assert_eq!(rows(&*reader).await, expect([put(2, "a", "2"), put(3, "a", "3"), put(4, "a", "4")]));
    assert_eq!(
        reader.get_many(&[key(1, "a"), key(3, "a"), key(3, "b"), key(5, "a")]).await.unwrap(),
        [None, Some("3".into()), None, None]
    );
    let page = reader.scan(&key(3, ""), None, NO_LIMIT).await.unwrap();
    assert_eq!((page.rows, page.done), (vec![(key(3, "a"), "3".into())], true));
    assert_eq!(reader.scan(&key(5, ""), None, NO_LIMIT).await.unwrap().rows, []);
    assert_eq!(reader.scan(&[], Some(&key(3, "a")), NO_LIMIT).await.unwrap().rows, [(key(4, "a"), "4".into())]);
    store.close().await.unwrap();
}

pub async fn reader_keeps_its_version(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    let batch: Vec<Row> = (0..300).map(|i| put(1, &format!("{i:03}"), &format!("v{i}"))).collect();
    store.write(batch.clone()).await.unwrap();
    let version = commit(&*store, 1).await;
    store.close().await.unwrap();
    let reader = stores.open_read_only(&whole(&version)).await.unwrap();
    stores.release(&version.version).await.unwrap();
    assert_eq!(rows(&*reader).await, expect(batch));
    drop(reader);
    until_branches(subject, &[]).await;
}

pub async fn closed_store_refuses_calls(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    store.write(vec![put(1, "a", "1")]).await.unwrap();
    let version = commit(&*store, 1).await;
    let (left, right) = futures::future::join(store.close(), store.close()).await;
    left.unwrap();
    right.unwrap();
    store.close().await.unwrap();
    assert_eq!(kind_of(store.get_many(&[key(1, "a")]).await), ErrorKind::Closed);
    assert_eq!(kind_of(store.scan(&[], None, NO_LIMIT).await), ErrorKind::Closed);
    assert_eq!(kind_of(store.write(vec![put(1, "b", "1")]).await), ErrorKind::Closed);
    assert_eq!(kind_of(store.begin_commit(2).await), ErrorKind::Closed);
    store.upkeep(2);
    store.memory_bytes();
    let child = open_at(&stores, "job/op/1/b", &version, 1).await;
    assert_eq!(rows(&*child).await, expect([put(1, "a", "1")]));
    child.close().await.unwrap();
}

pub async fn close_drops_what_no_version_needs(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    store.write(vec![put(1, "a", "1")]).await.unwrap();
    let version = commit(&*store, 1).await;
    // A restored attempt that dies before its first checkpoint, with a commit under way.
    let child = open_at(&stores, "job/op/1/b", &version, 1).await;
    child.write((0..1000).map(|i| put(1, &format!("{i:04}"), "x")).collect()).await.unwrap();
    let pending = child.begin_commit(2).await.unwrap();
    child.close().await.unwrap();
    assert_eq!(kind_of(pending.await), ErrorKind::Closed);
    until_branches(subject, &["job/op/0/a"]).await;
    stores.release(&version.version).await.unwrap();
    store.close().await.unwrap();
    until_branches(subject, &[]).await;
}

pub async fn successor_reaps_later_versions(subject: &impl Subject) {
    let stores = subject.stores();
    let first = open_fresh(&stores, "job/op/0/a").await;
    first.write(vec![put(1, "a", "1")]).await.unwrap();
    let kept = commit(&*first, 1).await;
    first.write(vec![put(1, "a", "2")]).await.unwrap();
    let lost = commit(&*first, 2).await;
    // The process dies: nothing is closed. A crash loop of attempts that die before their first checkpoint.
    std::mem::forget(first);
    for attempt in ["b", "c", "d"] {
        let store = open_at(&stores, &format!("job/op/0/{attempt}"), &kept, 1).await;
        std::mem::forget(store);
    }
    let last = open_at(&stores, "job/op/0/e", &kept, 1).await;
    until_branches(subject, &["job/op/0/a", "job/op/0/e"]).await;
    assert_eq!(
        kind_of(stores.open(&branch("fork/op/0/x"), ALL, &[whole(&lost)], 2).await),
        ErrorKind::MissingVersion,
        "a version later than what was restored is released"
    );
    assert_eq!(rows(&*last).await, expect([put(1, "a", "1")]));
    stores.release(&kept.version).await.unwrap();
    last.close().await.unwrap();
    until_branches(subject, &[]).await;
}

pub async fn successor_fences_the_zombie(subject: &impl Subject) {
    let stores = subject.stores();
    let zombie = open_fresh(&stores, "job/op/0/a").await;
    zombie.write(vec![put(1, "a", "1")]).await.unwrap();
    let kept = commit(&*zombie, 1).await;
    zombie.write(vec![put(1, "a", "zombie")]).await.unwrap();
    let under_way = zombie.begin_commit(2).await.unwrap();
    let successor = open_at(&stores, "job/op/0/b", &kept, 1).await;
    zombie.write(vec![put(1, "a", "zombie2")]).await.unwrap();
    let late = zombie.begin_commit(3).await.unwrap();
    assert_eq!(kind_of(under_way.await), ErrorKind::Fenced);
    assert_eq!(kind_of(late.await), ErrorKind::Fenced);
    assert_eq!(rows(&*successor).await, expect([put(1, "a", "1")]));
    successor.write(vec![put(1, "b", "2")]).await.unwrap();
    let next = commit(&*successor, 2).await;
    zombie.close().await.unwrap();
    assert_eq!(rows(&*successor).await, expect([put(1, "a", "1"), put(1, "b", "2")]));
    successor.close().await.unwrap();
    stores.release(&kept.version).await.unwrap();
    let again = open_at(&stores, "job/op/0/c", &next, 2).await;
    assert_eq!(rows(&*again).await, expect([put(1, "a", "1"), put(1, "b", "2")]));
    again.close().await.unwrap();
    stores.release(&next.version).await.unwrap();
    until_branches(subject, &[]).await;
}

pub async fn successor_after_rescale_reaps_what_starts_in_its_range(subject: &impl Subject) {
    let stores = subject.stores();
    let (commits, all) = two_halves(&stores, 1).await;
    let sources: Vec<_> = commits.into_iter().zip(HALVES).collect();
    // Three attempts that commit, are not acknowledged, and die.
    let mut lost = Vec::new();
    for (store, range) in rescale(&stores, &sources, &THIRDS, "b", 1).await.into_iter().zip(THIRDS) {
        store.write(vec![put(range.first, "x", "lost")]).await.unwrap();
        lost.push(commit(&*store, 2).await);
        std::mem::forget(store);
    }
    let halves = rescale(&stores, &sources, &HALVES, "c", 1).await;
    until_branches(subject, &["job/op/0-of-2/a", "job/op/0-of-2/c", "job/op/1-of-2/a", "job/op/1-of-2/c"]).await;
    for version in &lost {
        assert_eq!(kind_of(stores.open_read_only(&whole(version)).await), ErrorKind::MissingVersion);
    }
    for (store, range) in halves.iter().zip(HALVES) {
        assert_eq!(rows(&**store).await, within(&all, range));
        store.close().await.unwrap();
    }
}

pub async fn siblings_are_not_reaped(subject: &impl Subject) {
    let stores = subject.stores();
    let (commits, _) = two_halves(&stores, 1).await;
    let sources: Vec<_> = commits.iter().cloned().zip(HALVES).collect();
    let halves = rescale(&stores, &sources, &HALVES, "b", 1).await;
    let kept = commit(&*halves[1], 2).await;
    // Other operators and jobs with the same subtask, and the same subtask again, which is this one's successor only.
    for path in ["job/other/1-of-2/a", "other/op/1-of-2/a", "job/op/0-of-2/c"] {
        let range = if path.contains("0-of-2") { HALVES[0] } else { HALVES[1] };
        stores.open(&branch(path), range, &[], 0).await.unwrap().close().await.unwrap();
    }
    let reader = stores.open_read_only(&whole(&kept)).await.unwrap();
    assert_eq!(rows(&*reader).await.len(), 128);
    halves[1].write(vec![put(64, "x", "on")]).await.unwrap();
    commit(&*halves[1], 3).await;
    for store in halves {
        store.close().await.unwrap();
    }
}

pub async fn versions_of_another_run_are_kept(subject: &impl Subject) {
    let stores = subject.stores();
    let first = open_fresh(&stores, "job/op/0/g1_v_0_0-1").await;
    first.write(vec![put(1, "a", "1")]).await.unwrap();
    let older = commit(&*first, 1).await;
    first.write(vec![put(1, "a", "2")]).await.unwrap();
    let retained = commit(&*first, 2).await;
    std::mem::forget(first);
    // The job is deployed again under its id, from the older checkpoint, and dies before its first commit.
    let second = open_at(&stores, "job/op/0/g2_v_0_0-1", &older, 1).await;
    std::mem::forget(second);
    let third = open_at(&stores, "job/op/0/g3_v_0_0-1", &retained, 2).await;
    assert_eq!(rows(&*third).await, expect([put(1, "a", "2")]));
    until_branches(subject, &["job/op/0/g1_v_0_0-1", "job/op/0/g3_v_0_0-1"]).await;
    third.close().await.unwrap();
    stores.release(&older.version).await.unwrap();
    stores.release(&retained.version).await.unwrap();
    until_branches(subject, &[]).await;
}

pub async fn openings_of_one_attempt_leave_each_other_alone(subject: &impl Subject) {
    let stores = subject.stores();
    let first = open_fresh(&stores, "job/op/0/g_v_0_0-1").await;
    first.write(vec![put(1, "a", "1")]).await.unwrap();
    let older = commit(&*first, 1).await;
    first.write(vec![put(1, "a", "2")]).await.unwrap();
    let newer = commit(&*first, 2).await;
    let second = open_at(&stores, "job/op/0/g_v_0_0-2", &older, 1).await;
    first.write(vec![put(1, "a", "3")]).await.unwrap();
    let newest = commit(&*first, 3).await;
    assert_eq!(rows(&*second).await, expect([put(1, "a", "1")]));
    for (version, value) in [(&newer, "2"), (&newest, "3")] {
        let reader = stores.open_read_only(&whole(version)).await.unwrap();
        assert_eq!(rows(&*reader).await, expect([put(1, "a", value)]));
    }
    first.close().await.unwrap();
    second.close().await.unwrap();
}

pub async fn commit_counts_bytes(subject: &impl Subject) {
    let store = open_fresh(&subject.stores(), "job/op/0/a").await;
    let value = "v".repeat(1000);
    store.write((0..1000).map(|i| put(1, &format!("{i:04}"), &value)).collect()).await.unwrap();
    assert!(!subject.buffers() || store.memory_bytes() >= 1_000_000);
    let first = commit(&*store, 1).await;
    store.write((0..100).map(|i| put(2, &format!("{i:04}"), &value)).collect()).await.unwrap();
    let second = commit(&*store, 2).await;
    // Files have overheads, and may be compressed a little or not at all; these are the sizes of the rows.
    for (bytes, rows) in [(first.written_bytes, 1000), (first.total_bytes, 1000), (second.total_bytes, 1100)] {
        assert!((rows * 1000..rows * 1100).contains(&bytes), "{bytes} bytes for {rows} rows of 1006");
    }
    assert!((100_000..110_000).contains(&second.written_bytes), "{} bytes written", second.written_bytes);
    store.close().await.unwrap();
}

/// A row of a state whose four bytes are `state`, last accessed at `timestamp`.
pub fn timed(group: u16, state: &str, name: &str, timestamp: i64, value: &str) -> Row {
    assert_eq!(state.len(), 4);
    let value = [&timestamp.to_be_bytes(), value.as_bytes()].concat();
    Row { key: key(group, &format!("{state}{name}")), value: Some(value.into()) }
}

/// The rule that rows of `state` expire `ttl_ms` after their timestamp, and the time.
pub fn expiry(state: &str, ttl_ms: u64, now_ms: i64) -> Expiry {
    let mut expiry = Expiry::new(ExpiryClock::At(now_ms));
    let state = u32::from_be_bytes(state.as_bytes().try_into().expect("four bytes"));
    expiry.set(state, Some(ExpiryRule { ttl_ms, value: RowValue::Whole, timestamp_at: 0, stay_ms: None }));
    expiry
}

/// Commits so often that a store has reason to merge, until it holds exactly `expected`; each commit replaces the one
/// before, and the last one is returned.
async fn until_rows(
    stores: &Arc<dyn Stores>,
    store: &Arc<dyn StateStore>,
    checkpoint: &mut u64,
    expected: &BTreeMap<Bytes, Bytes>,
) -> Commit {
    let start = Instant::now();
    let mut last: Option<Commit> = None;
    loop {
        *checkpoint += 1;
        let next = commit(&**store, *checkpoint).await;
        store.upkeep(*checkpoint);
        if let Some(last) = last.replace(next) {
            stores.release(&last.version).await.unwrap();
        }
        if rows(&**store).await == *expected {
            *checkpoint += 1;
            stores.release(&last.expect("a commit").version).await.unwrap();
            return commit(&**store, *checkpoint).await;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{} rows, not as expected", rows(&**store).await.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub async fn expired_rows_leave_and_no_others(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    let filler = "x".repeat(100);
    let expiring: Vec<Row> = (0..800).map(|i| timed(1, "ttl.", &format!("{i:04}"), i, &filler)).collect();
    let mut staying: Vec<Row> = (0..100).map(|i| timed(2, "none", &format!("{i:04}"), i, &filler)).collect();
    // Too short for a timestamp, and for a state.
    staying.push(put(3, "ttl.short", "1234567"));
    staying.push(put(3, "ttl", &filler));
    for rows in expiring.chunks(100).chain([&staying[..100], &staying[100..]]) {
        let mut rows = rows.to_vec();
        rows.sort_by(|a, b| a.key.cmp(&b.key));
        store.write(rows).await.unwrap();
        stores.release(&commit(&*store, 1).await.version).await.unwrap();
    }
    let mut checkpoint = 1;
    let all = expect(expiring.iter().chain(&staying).cloned());
    store.set_expiry(expiry("ttl.", 1000, 999));
    let before = until_rows(&stores, &store, &mut checkpoint, &all).await;
    // The 700th expires at 1700.
    store.set_expiry(expiry("ttl.", 1000, 1699));
    let left = expect(expiring[700..].iter().chain(&staying).cloned());
    let start = Instant::now();
    loop {
        let after = until_rows(&stores, &store, &mut checkpoint, &left).await;
        stores.release(&after.version).await.unwrap();
        let (before, after) = (before.total_bytes, after.total_bytes);
        if after * 10 < before * 4 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{before} bytes of 902 rows, then {after} of 202");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(rows(&*store).await, left);
    store.close().await.unwrap();
}

pub async fn versions_keep_what_expires_later(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    let expiring: Vec<Row> = (0..300).map(|i| timed(1, "ttl.", &format!("{i:04}"), i, "value")).collect();
    for rows in expiring.chunks(60) {
        store.write(rows.to_vec()).await.unwrap();
        stores.release(&commit(&*store, 1).await.version).await.unwrap();
    }
    let kept = commit(&*store, 2).await;
    store.set_expiry(expiry("ttl.", 10, 10_000));
    let mut checkpoint = 2;
    until_rows(&stores, &store, &mut checkpoint, &BTreeMap::new()).await;
    let all = expect(expiring);
    assert_eq!(rows(&*stores.open_read_only(&whole(&kept)).await.unwrap()).await, all);
    // A branch has no rules of its own until they are set.
    let child = open_at(&stores, "job/op/0/b", &kept, checkpoint).await;
    until_rows(&stores, &child, &mut checkpoint, &all).await;
    child.set_expiry(expiry("ttl.", 10, 10_000));
    until_rows(&stores, &child, &mut checkpoint, &BTreeMap::new()).await;
    assert_eq!(rows(&*stores.open_read_only(&whole(&kept)).await.unwrap()).await, all);
    // And what has lost all its rows can be opened too.
    let empty = commit(&*child, checkpoint + 1).await;
    let grandchild = open_at(&stores, "job/op/0/c", &empty, checkpoint + 1).await;
    assert_eq!(rows(&*grandchild).await, BTreeMap::new());
    grandchild.write(vec![put(1, "a", "1")]).await.unwrap();
    assert_eq!(rows(&*grandchild).await, expect([put(1, "a", "1")]));
    for store in [store, child, grandchild] {
        store.close().await.unwrap();
    }
}

pub async fn what_expired_hides_what_is_older(subject: &impl Subject) {
    let stores = subject.stores();
    let store = open_fresh(&stores, "job/op/0/a").await;
    let name = |i: i64| format!("{i:04}");
    let base: Vec<Row> = (0..200)
        .map(|i| match i % 4 {
            // Older than the state's time to live: no timestamp, and what stands in its place seems old.
            0 => put(1, &format!("ttl.{}", name(i)), "\0\0\0\0\0\0\0\0 of the older form"),
            // The same, seemingly of the far future.
            1 => put(1, &format!("ttl.{}", name(i)), "zzzzzzzz of the older form"),
            2 => timed(1, "ttl.", &name(i), 1_000_000, "does not expire, but is overwritten"),
            _ => timed(1, "ttl.", &name(i), 0, "expires, and is not overwritten"),
        })
        .collect();
    store.write(base).await.unwrap();
    let mut version = commit(&*store, 1).await;
    let mut checkpoint = 1;
    let newer: Vec<Row> = (0..200)
        .filter_map(|i| match i % 4 {
            0 => Some(timed(1, "ttl.", &name(i), 1_000_000, "migrated")),
            1 | 2 => Some(timed(1, "ttl.", &name(i), 5, "expires")),
            _ => None,
        })
        .collect();
    // The rule is set when what replaces the older form has been handed over but is not all written yet.
    let (first, second) = newer.split_at(70);
    store.write(first.to_vec()).await.unwrap();
    store.set_expiry(expiry("ttl.", 100, 500));
    for rows in second.chunks(20) {
        store.write(rows.to_vec()).await.unwrap();
        checkpoint += 1;
        stores.release(&version.version).await.unwrap();
        version = commit(&*store, checkpoint).await;
    }
    let expected = expect((0..50).map(|i| timed(1, "ttl.", &name(i * 4), 1_000_000, "migrated")));
    until_rows(&stores, &store, &mut checkpoint, &expected).await;
    store.close().await.unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryStores;

    struct Memory(MemoryStores);

    impl Subject for Memory {
        fn stores(&self) -> Arc<dyn Stores> {
            Arc::new(self.0.clone())
        }

        fn branches(&self) -> BoxFuture<'_, Vec<String>> {
            let paths = self.0.branches().iter().map(|name| name.path().to_owned()).collect();
            Box::pin(async move { paths })
        }
    }

    suite!(|| Memory(MemoryStores::new()));
}
