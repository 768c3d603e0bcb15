//! What happens when the storage fails: every error is typed, names the file and the cause, and comes in time.

use std::fmt;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use tempfile::TempDir;
use weir_store::promises::{ALL, branch, commit, expect, get, key, put, rows, run, whole};
use weir_store::{Commit, ErrorKind, KeyGroupRange, PageLimit, Row, Source, StateStore, StoreError, Stores};

use crate::{SlateConfig, SlateStores};

/// The timeout of the stores under test.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A disk that can be full, or unreadable.
#[derive(Debug)]
struct BadDisk {
    inner: Arc<dyn ObjectStore>,
    full: AtomicBool,
    unreadable: AtomicBool,
}

impl BadDisk {
    fn check(&self, flag: &AtomicBool, os_error: i32) -> object_store::Result<()> {
        if !flag.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Error::Generic { store: "LocalFileSystem", source: std::io::Error::from_raw_os_error(os_error).into() })
    }

    fn write(&self) -> object_store::Result<()> {
        self.check(&self.full, 28)
    }

    fn read(&self) -> object_store::Result<()> {
        self.check(&self.unreadable, 5)
    }
}

impl fmt::Display for BadDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for BadDisk {
    async fn put_opts(&self, at: &Path, payload: PutPayload, opts: PutOptions) -> object_store::Result<PutResult> {
        self.write()?;
        self.inner.put_opts(at, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        opts: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.write()?;
        self.inner.put_multipart_opts(at, opts).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.read()?;
        self.inner.get_opts(at, options).await
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> object_store::Result<Vec<Bytes>> {
        self.read()?;
        self.inner.get_ranges(at, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.write()?;
        self.inner.copy_opts(from, to, options).await
    }
}

fn config() -> SlateConfig {
    SlateConfig {
        store_timeout: TIMEOUT,
        close_timeout: Duration::from_secs(2),
        write_buffer_bytes: 1 << 20,
        fsync: false,
        ..SlateConfig::default()
    }
}

fn stores_at(directory: &FilePath) -> SlateStores {
    SlateStores::new(&format!("file://{}", directory.display()), config()).unwrap()
}

fn on_bad_disk(directory: &TempDir) -> (SlateStores, Arc<BadDisk>) {
    let stores = stores_at(directory.path());
    let inner = stores.root.object(true).unwrap().unwrap();
    let disk = Arc::new(BadDisk { inner, full: AtomicBool::new(false), unreadable: AtomicBool::new(false) });
    stores.root.replace_object(disk.clone());
    (stores, disk)
}

async fn open(stores: &SlateStores, path: &str) -> Arc<dyn StateStore> {
    stores.open(&branch(path), ALL, &[], 0).await.unwrap()
}

async fn try_commit(store: &dyn StateStore, checkpoint: u64) -> Result<Commit, StoreError> {
    store.begin_commit(checkpoint).await?.await
}

fn assert_error<T>(result: Result<T, StoreError>, kind: ErrorKind, parts: &[&str]) -> String {
    let error = result.err().expect("an error");
    assert_eq!(error.kind(), kind, "{error}");
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "'{message}' does not say '{part}'");
    }
    message
}

/// The files of a kind under a directory, anywhere.
fn files(directory: &FilePath, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|of_file| of_file == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn only_file_roots_are_taken() {
    run(async {
        for (root, why) in [
            ("s3://bucket/path", "'s3'"),
            ("hdfs://name/path", "'hdfs'"),
            ("/plain/path", "relative URL"),
            ("file://host/path", "host"),
            ("file:///", "root directory"),
            ("", "relative URL"),
        ] {
            let refused = SlateStores::new(root, config());
            assert_error(refused, ErrorKind::InvalidArgument, &[root, why, "file:///absolute/directory"]);
        }
        let stores = SlateStores::new("file:///tmp/with%20space/", config()).unwrap();
        assert_eq!(stores.directory(), FilePath::new("/tmp/with space/"));
    });
}

#[test]
fn root_that_cannot_be_made_is_unavailable() {
    run(async {
        let directory = TempDir::new().unwrap();
        std::fs::write(directory.path().join("file"), "not a directory").unwrap();
        let stores = stores_at(&directory.path().join("file/root"));
        let opened = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await;
        assert_error(opened, ErrorKind::Unavailable, &["file/root", "Not a directory"]);
        // Releasing and restoring do not make it.
        let stores = stores_at(&directory.path().join("absent"));
        let version = weir_store::VersionRef { branch: branch("job/op/0/a"), version: uuid::Uuid::nil().to_string() };
        stores.release(&version).await.unwrap();
        let source = weir_store::Source { version, range: ALL };
        let opened = stores.open(&branch("job/op/0/b"), ALL, std::slice::from_ref(&source), 1).await;
        assert_error(opened, ErrorKind::MissingVersion, &["absent"]);
        assert_error(stores.open_read_only(&source).await, ErrorKind::MissingVersion, &["absent"]);
        assert!(!directory.path().join("absent").exists());
    });
}

#[test]
fn full_disk_ends_with_its_cause_and_heals() {
    run(async {
        let directory = TempDir::new().unwrap();
        let (stores, disk) = on_bad_disk(&directory);
        let store = open(&stores, "job/op/0/a").await;
        store.write(vec![put(1, "a", "1")]).await.unwrap();
        disk.full.store(true, Ordering::Release);
        let start = Instant::now();
        let root = directory.path().to_str().unwrap();
        let failed = try_commit(&*store, 1).await;
        let message = assert_error(failed, ErrorKind::Unavailable, &[root, "No space left on device (os error 28)"]);
        println!("after {:?}: {message}", start.elapsed());
        assert!(start.elapsed() < TIMEOUT * 4, "{:?}", start.elapsed());
        // Rows can be written and read as long as they fit in memory; then writing ends in time too.
        assert_eq!(get(&*store, key(1, "a")).await, Some("1".into()));
        let mut refused = None;
        for i in 0..16 {
            let row = Row { key: key(2, &format!("{i:02}")), value: Some(vec![i; 1 << 20].into()) };
            if let Err(error) = store.write(vec![row]).await {
                refused = Some(error);
                break;
            }
        }
        assert_error(refused.map_or(Ok(()), Err), ErrorKind::Unavailable, &["No space left on device"]);
        // A new attempt fails at once.
        let start = Instant::now();
        let opened = stores.open(&branch("job/op/1/a"), ALL, &[], 0).await;
        assert_error(opened, ErrorKind::Unavailable, &["No space left on device", root]);
        assert!(start.elapsed() < TIMEOUT * 4);

        disk.full.store(false, Ordering::Release);
        store.write(vec![put(1, "b", "2")]).await.unwrap();
        let version = commit(&*store, 2).await;
        store.close().await.unwrap();
        let child = stores.open(&branch("job/op/1/b"), ALL, &[whole(&version)], 2).await.unwrap();
        assert_eq!(get(&*child, key(1, "a")).await, Some("1".into()));
        assert_eq!(get(&*child, key(1, "b")).await, Some("2".into()));
        child.close().await.unwrap();
        stores.release(&version.version).await.unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "the failed commit left nothing");
    });
}

#[test]
fn closing_on_a_full_disk_is_bounded() {
    run(async {
        let directory = TempDir::new().unwrap();
        let (stores, disk) = on_bad_disk(&directory);
        let store = open(&stores, "job/op/0/a").await;
        store.write(vec![put(1, "a", "1")]).await.unwrap();
        disk.full.store(true, Ordering::Release);
        let pending = store.begin_commit(1).await.unwrap();
        let start = Instant::now();
        let _ = store.close().await;
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        assert_error(pending.await, ErrorKind::Closed, &["job/op/0/a"]);
        assert_error(store.write(vec![put(1, "a", "1")]).await, ErrorKind::Closed, &[]);
    });
}

#[test]
fn unreadable_disk_ends_with_its_cause_and_heals() {
    run(async {
        let directory = TempDir::new().unwrap();
        let (stores, disk) = on_bad_disk(&directory);
        let store = open(&stores, "job/op/0/a").await;
        store.write(vec![put(1, "a", "1")]).await.unwrap();
        let version = commit(&*store, 1).await;
        store.close().await.unwrap();
        let child = stores.open(&branch("job/op/1/b"), ALL, &[whole(&version)], 1).await.unwrap();
        disk.unreadable.store(true, Ordering::Release);
        let start = Instant::now();
        let failed = child.get_many(&[key(1, "a")]).await;
        assert_error(failed, ErrorKind::Unavailable, &[directory.path().to_str().unwrap(), "Input/output error"]);
        let failed = child.scan(&[], None, PageLimit { rows: 1, bytes: 1 }).await;
        assert_error(failed, ErrorKind::Unavailable, &["Input/output error"]);
        assert!(start.elapsed() < TIMEOUT * 8, "{:?}", start.elapsed());
        disk.unreadable.store(false, Ordering::Release);
        assert_eq!(get(&*child, key(1, "a")).await, Some("1".into()));
        child.close().await.unwrap();
    });
}

/// A version of two files' worth of rows, closed.
async fn version(stores: &SlateStores) -> Commit {
    let store = open(stores, "job/op/0/a").await;
    let batch = (0..2000).map(|i| put(1, &format!("{i:04}"), &format!("value {i}"))).collect();
    store.write(batch).await.unwrap();
    let version = commit(&*store, 1).await;
    store.close().await.unwrap();
    version
}

#[test]
fn damaged_sst_is_corrupt_and_named() {
    run(async {
        for damage in ["cut to nothing", "cut in half", "flipped bit", "removed"] {
            let directory = TempDir::new().unwrap();
            let stores = stores_at(directory.path());
            let version = version(&stores).await;
            let ssts = files(&directory.path().join("branches/job/op/0/a/compacted"), "sst");
            let [file] = &ssts[..] else { panic!("one file, not {ssts:?}") };
            let whole_file = std::fs::read(file).unwrap();
            let mut bytes = whole_file.clone();
            match damage {
                "cut to nothing" => bytes.clear(),
                "cut in half" => bytes.truncate(bytes.len() / 2),
                "flipped bit" => bytes[300] ^= 1,
                _ => {}
            }
            std::fs::write(file, &bytes).unwrap();
            if damage == "removed" {
                std::fs::remove_file(file).unwrap();
            }
            let start = Instant::now();
            let failed = match stores.open(&branch("job/op/1/b"), ALL, &[whole(&version)], 1).await {
                Ok(child) => {
                    let failed = child.get_many(&[key(1, "0001")]).await;
                    child.close().await.unwrap();
                    failed.map(drop)
                }
                Err(error) => Err(error),
            };
            let name = file.file_name().unwrap().to_str().unwrap();
            let message = assert_error(failed, ErrorKind::Corrupt, &[name, "Restore another checkpoint"]);
            println!("{damage}: after {:?}: {message}", start.elapsed());
            assert_eq!(message.contains("is cut: it has"), damage.starts_with("cut"), "{message}");
            assert!(damage == "removed" || !message.contains("not found"), "{message}");
            assert!(start.elapsed() < TIMEOUT * 4);
            // Mended, it opens again.
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, &whole_file).unwrap();
            let child = stores.open(&branch("job/op/1/c"), ALL, &[whole(&version)], 1).await.unwrap();
            assert_eq!(rows(&*child).await.len(), 2000);
            child.close().await.unwrap();
        }
    });
}

#[test]
fn damaged_manifest_is_corrupt_and_named() {
    run(async {
        for damage in ["cut to nothing", "cut in half", "garbage"] {
            let directory = TempDir::new().unwrap();
            let stores = stores_at(directory.path());
            let version = version(&stores).await;
            let manifests = files(directory.path(), "manifest");
            let file = manifests.last().unwrap();
            let whole_file = std::fs::read(file).unwrap();
            let bytes = match damage {
                "cut to nothing" => Vec::new(),
                "cut in half" => whole_file[..whole_file.len() / 2].to_vec(),
                _ => vec![0xA5; whole_file.len()],
            };
            std::fs::write(file, bytes).unwrap();
            let start = Instant::now();
            let opened = stores.open(&branch("job/op/1/b"), ALL, &[whole(&version)], 1).await;
            let name = file.file_name().unwrap().to_str().unwrap();
            let message = assert_error(opened, ErrorKind::Corrupt, &[name, "Restore another checkpoint"]);
            println!("{damage}: after {:?}: {message}", start.elapsed());
            let (said, cause) = (message.find("is damaged").unwrap(), message.find("Cause: ").unwrap());
            assert!(said < cause, "leads with what happened: {message}");
            assert_error(stores.open_read_only(&whole(&version)).await, ErrorKind::Corrupt, &[name]);
            assert!(start.elapsed() < TIMEOUT * 4);
            std::fs::write(file, &whole_file).unwrap();
            let child = stores.open(&branch("job/op/1/b"), ALL, &[whole(&version)], 1).await.unwrap();
            assert_eq!(rows(&*child).await.len(), 2000);
            child.close().await.unwrap();
        }
    });
}

#[test]
fn a_missing_version_says_what_is_missing() {
    run(async {
        let directory = TempDir::new().unwrap();
        let root = directory.path().join("root");
        let stores = stores_at(&root);
        let version = version(&stores).await;
        let gone = |name: &'static str, said: &'static str| {
            let (stores, source) = (stores_at(&root), whole(&version));
            async move {
                let opened = stores.open(&branch(name), ALL, &[source], 1).await;
                assert_error(opened, ErrorKind::MissingVersion, &["version job/op/0/a@", said]);
            }
        };
        let moved = directory.path().join("moved");
        std::fs::rename(&root, &moved).unwrap();
        gone("job/op/0/b", "is not there: was it moved").await;
        assert!(!root.exists());
        std::fs::create_dir(&root).unwrap();
        gone("job/op/0/c", "holds no state").await;
        std::fs::remove_dir_all(&root).unwrap();
        std::fs::rename(&moved, &root).unwrap();
        // Held, so that the branch stays when the version goes.
        let reader = stores.open_read_only(&whole(&version)).await.unwrap();
        stores.release(&version.version).await.unwrap();
        gone("job/op/0/d", "no longer has this version").await;
        drop(reader);
        let branch = root.join("branches/job/op/0/a");
        let start = Instant::now();
        while branch.exists() {
            assert!(start.elapsed() < TIMEOUT * 20, "the branch stays");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        std::fs::create_dir_all(root.join("branches/job/op/0/other")).unwrap();
        gone("job/op/0/e", "holds nothing of job/op/0/a any more").await;
    });
}

#[test]
fn after_a_rescale_only_own_key_groups_count() {
    run(async {
        let directory = TempDir::new().unwrap();
        let stores = stores_at(directory.path());
        let parent = open(&stores, "job/op/0-of-1/a").await;
        let rows: Vec<Row> =
            (0..128).flat_map(|group| (0..20).map(move |i| put(group, &format!("{i:04}"), &"x".repeat(100)))).collect();
        parent.write(rows).await.unwrap();
        let version = try_commit(&*parent, 1).await.unwrap();
        let mut of_parts = 0;
        for (i, (first, last)) in [(0, 31), (32, 95), (96, 127)].into_iter().enumerate() {
            let range = KeyGroupRange::new(first, last);
            let source = Source { version: version.version.clone(), range };
            let name = format!("job/op/{i}-of-3/b");
            let part = stores.open(&branch(&name), range, &[source], 1).await.unwrap();
            let bytes = try_commit(&*part, 2).await.unwrap().total_bytes;
            let groups = u64::from(last - first + 1);
            let expected = version.total_bytes * groups / 128;
            assert!(
                bytes.abs_diff(expected) * 10 < expected,
                "{bytes} bytes for {groups} of 128 key groups, not {expected}"
            );
            of_parts += bytes;
            part.close().await.unwrap();
        }
        assert!(of_parts.abs_diff(version.total_bytes) * 10 < version.total_bytes, "{of_parts}");
        parent.close().await.unwrap();
    });
}

#[test]
fn any_flipped_bit_in_a_versions_manifest_is_seen() {
    run(async {
        let directory = TempDir::new().unwrap();
        let stores = stores_at(directory.path());
        let version = version(&stores).await;
        let manifests = files(directory.path(), "manifest");
        let (mut refused, mut tried) = (0, 0);
        let mut opened = 0;
        for file in &manifests {
            let whole_file = std::fs::read(file).unwrap();
            for byte in (0..whole_file.len()).step_by(whole_file.len() / 40 + 1) {
                let mut bytes = whole_file.clone();
                bytes[byte] ^= 1 << (byte % 8);
                std::fs::write(file, &bytes).unwrap();
                tried += 1;
                opened += 1;
                let name = format!("job/op/{opened}/b");
                match stores.open(&branch(&name), ALL, &[whole(&version)], 1).await {
                    Ok(child) => {
                        assert_eq!(rows(&*child).await.len(), 2000, "{} byte {byte}", file.display());
                        child.close().await.unwrap();
                    }
                    Err(error) => {
                        // A flip in the list of versions cannot be told from a version that was released.
                        let kinds = [ErrorKind::Corrupt, ErrorKind::MissingVersion];
                        assert!(kinds.contains(&error.kind()), "{error}");
                        refused += 1;
                    }
                }
            }
            std::fs::write(file, &whole_file).unwrap();
        }
        println!("{tried} flips in {} manifests, {refused} refused", manifests.len());
        assert!(refused >= 20, "{refused} of {tried}");
    });
}

#[test]
fn versions_of_before_checksums_are_read_and_released() {
    run(async {
        let directory = TempDir::new().unwrap();
        let stores = stores_at(directory.path());
        let mut old = version(&stores).await;
        let (id, checksum) = old.version.version.rsplit_once('-').unwrap();
        assert_eq!(checksum.len(), 8);
        old.version.version = id.to_owned();
        let child = stores.open(&branch("job/op/0/b"), ALL, &[whole(&old)], 1).await.unwrap();
        assert_eq!(rows(&*child).await.len(), 2000);
        let reader = stores.open_read_only(&whole(&old)).await.unwrap();
        assert_eq!(rows(&*reader).await.len(), 2000);
        drop(reader);
        child.close().await.unwrap();
        stores.release(&old.version).await.unwrap();
        let gone = stores.open(&branch("job/op/0/c"), ALL, &[whole(&old)], 1).await;
        assert_eq!(gone.err().unwrap().kind(), ErrorKind::MissingVersion);
    });
}

fn copy_folder(from: &FilePath, to: &FilePath) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn a_sweep_removes_what_a_zombie_brought_back_and_nothing_else() {
    run(async {
        let directory = TempDir::new().unwrap();
        let url = format!("file://{}", directory.path().display());
        let interval = Duration::from_millis(300);
        let stores = SlateStores::new(&url, SlateConfig { sweep_interval: interval, ..config() }).unwrap();
        let branches = directory.path().join("branches");
        // A version that somebody keeps, without an attempt; one with an attempt; an attempt that has written nothing yet.
        let kept = version(&stores).await;
        let living = open(&stores, "job1/op/0/a").await;
        living.write(vec![put(1, "a", "1")]).await.unwrap();
        let of_living = try_commit(&*living, 1).await.unwrap();
        let empty = open(&stores, "job2/op/0/a").await;
        // A version that wrote nothing itself: its rows are the kept one's.
        let child = stores.open(&branch("job3/op/0/a"), ALL, &[whole(&kept)], 1).await.unwrap();
        let of_child = try_commit(&*child, 2).await.unwrap();
        child.close().await.unwrap();
        // Branches that were removed, of which a manifest, or a file, came back.
        for (name, back) in [("job4/op/0/a", "manifest"), ("job5/op/0/a", "compacted")] {
            let store = open(&stores, name).await;
            store.write(vec![put(1, "a", "1")]).await.unwrap();
            let version = try_commit(&*store, 1).await.unwrap();
            store.close().await.unwrap();
            let folder = directory.path().join("branches").join(name);
            let copy = directory.path().join("copy").join(name);
            copy_folder(&folder, &copy);
            stores.release(&version.version).await.unwrap();
            assert!(!folder.exists());
            copy_folder(&copy.join(back), &folder.join(back));
        }
        assert_eq!(stores.sweep().await.unwrap(), 0, "found once");
        let start = Instant::now();
        let mut removed = 0;
        while removed < 2 {
            assert!(start.elapsed() < TIMEOUT * 20, "{removed} removed");
            tokio::time::sleep(interval / 4).await;
            removed += stores.sweep().await.unwrap();
        }
        assert!(!branches.join("job4").exists() && !branches.join("job5").exists());
        tokio::time::sleep(interval).await;
        assert_eq!(stores.sweep().await.unwrap(), 0);
        assert_eq!(rows(&*stores.open_read_only(&whole(&kept)).await.unwrap()).await.len(), 2000);
        assert_eq!(rows(&*stores.open_read_only(&whole(&of_child)).await.unwrap()).await.len(), 2000);
        assert_eq!(rows(&*stores.open_read_only(&whole(&of_living)).await.unwrap()).await.len(), 1);
        empty.write(vec![put(1, "a", "1")]).await.unwrap();
        try_commit(&*empty, 1).await.unwrap();
        living.close().await.unwrap();
        empty.close().await.unwrap();
    });
}

#[test]
fn root_removed_under_a_writer_is_an_error() {
    run(async {
        let directory = TempDir::new().unwrap();
        let stores = stores_at(directory.path());
        let store = open(&stores, "job/op/0/a").await;
        store.write(vec![put(1, "a", "1")]).await.unwrap();
        commit(&*store, 1).await;
        std::fs::remove_dir_all(directory.path()).unwrap();
        store.write(vec![put(1, "b", "1")]).await.unwrap();
        let failed = try_commit(&*store, 2).await;
        println!("{:?}", failed.as_ref().err());
        assert!(failed.is_err(), "a commit whose branch was removed");
        store.close().await.unwrap();
        let fresh = open(&stores, "job/op/0/b").await;
        fresh.write(vec![put(1, "c", "1")]).await.unwrap();
        commit(&*fresh, 1).await;
        assert_eq!(rows(&*fresh).await, expect([put(1, "c", "1")]));
        fresh.close().await.unwrap();
    });
}

/// A process that dies while it opens leaves a pin and perhaps half a clone; the next attempt clears that up.
#[test]
fn opening_that_died_is_reaped() {
    run(async {
        let directory = TempDir::new().unwrap();
        let stores = stores_at(directory.path());
        let version = version(&stores).await;
        let access = crate::root::Access::new(&stores.root, true).unwrap().unwrap();
        access.write_pin(&branch("job/op/0/dead"), crate::root::Pin::now(ALL)).await.unwrap();
        let stray = directory.path().join("branches/job/op/0/dead/compacted");
        std::fs::create_dir_all(&stray).unwrap();
        std::fs::write(stray.join("01ARZ3NDEKTSV4RRFFQ69G5FAV.sst"), "half").unwrap();
        let store = stores.open(&branch("job/op/0/next"), ALL, &[whole(&version)], 1).await.unwrap();
        assert!(!directory.path().join("branches/job/op/0/dead").exists());
        assert!(!directory.path().join("pins/job/op/0/dead").exists());
        assert_eq!(rows(&*store).await.len(), 2000);
        store.close().await.unwrap();
    });
}

/// An attempt that starts late must not take its successor's versions for those of an earlier one.
#[test]
fn zombie_that_opens_late_does_not_reap_its_successor() {
    run(async {
        let directory = TempDir::new().unwrap();
        let stores = stores_at(directory.path());
        let version = version(&stores).await;
        let access = crate::root::Access::new(&stores.root, true).unwrap().unwrap();
        let late = (branch("job/op/0/late"), crate::root::Pin::now(ALL));
        access.write_pin(&late.0, late.1).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let store = stores.open(&branch("job/op/0/next"), ALL, &[whole(&version)], 1).await.unwrap();
        store.write(vec![put(2, "x", "2")]).await.unwrap();
        let kept = commit(&*store, 2).await;
        // It wakes after the successor dropped its pin, or just before.
        let _ = access.reap(&late.0, late.1, 1).await;
        access.write_pin(&late.0, late.1).await.unwrap();
        access.reap(&late.0, late.1, 1).await.unwrap();
        access.remove_pin(&late.0).await.unwrap();
        store.write(vec![put(2, "x", "3")]).await.unwrap();
        commit(&*store, 3).await;
        let reader = stores.open_read_only(&whole(&kept)).await.unwrap();
        assert_eq!(get(&*reader, key(2, "x")).await, Some("2".into()));
        store.close().await.unwrap();
    });
}
