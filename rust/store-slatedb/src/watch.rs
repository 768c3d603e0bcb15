//! An object store that remembers what fails, so that a call into SlateDB, which retries for ever by itself, can end
//! with the cause; and that can be switched off, so that what retries in the background ends with its branch.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::{Either, select};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};
use parking_lot::Mutex;
use slatedb::{CloseReason, ErrorKind as SlateKind};
use tokio::runtime::Handle;
use weir_store::{ErrorKind, StoreError};

/// How often a waiting call looks whether the store still answers.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// What one branch's I/O came to lately. One per open branch, reader or administrative call.
pub(crate) struct Watch {
    /// For messages: the root, as the user wrote it.
    root: String,
    /// How long calls may keep failing.
    timeout: Duration,
    runtime: Handle,
    off: AtomicBool,
    succeeded: AtomicU64,
    any_failing: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By direction and folder: a full disk stops SSTs while small manifests may still fit.
    failing: HashMap<(Direction, String), Failing>,
    last_read: Option<Path>,
    /// What was said of a file that is cut.
    cut: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Direction {
    Read,
    Write,
}

/// A row of failures without a success between them.
struct Failing {
    since: Instant,
    last: Instant,
    path: String,
    cause: String,
}

/// What can be done about a damaged file.
pub(crate) const RESTORE: &str = "Restore another checkpoint, or put the file back from a copy of the directory.";
/// In the message for a file that is shorter than it was.
const IS_CUT: &str = "is cut: it has";

/// An error and its sources, the innermost last; sources that only repeat are left out.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let text = error.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        source = error.source();
    }
    message
}

impl Watch {
    pub(crate) fn new(root: String, timeout: Duration, runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            root,
            timeout,
            runtime,
            off: AtomicBool::new(false),
            succeeded: AtomicU64::new(0),
            any_failing: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    /// From here on every operation fails for good, so that retries end.
    pub(crate) fn switch_off(&self) {
        self.off.store(true, Ordering::Release);
    }

    pub(crate) fn is_off(&self) -> bool {
        self.off.load(Ordering::Acquire)
    }

    fn check(&self) -> Result<()> {
        // Not retried by SlateDB, unlike most other kinds.
        let off = || Error::NotSupported { source: "the branch is closed".into() };
        if self.is_off() { Err(off()) } else { Ok(()) }
    }

    fn record<T>(&self, direction: Direction, path: &Path, result: Result<&T, &Error>) {
        match result {
            Ok(_)
            | Err(
                Error::NotFound { .. }
                | Error::AlreadyExists { .. }
                | Error::Precondition { .. }
                | Error::NotModified { .. },
            ) => {
                self.succeeded.fetch_add(1, Ordering::Relaxed);
                if self.any_failing.load(Ordering::Acquire) {
                    let mut state = self.state.lock();
                    state.failing.remove(&(direction, folder(path)));
                    self.any_failing.store(!state.failing.is_empty(), Ordering::Release);
                }
            }
            Err(error) if is_refusal(error) => {}
            Err(error) => {
                let now = Instant::now();
                let mut state = self.state.lock();
                let failing = state.failing.entry((direction, folder(path))).or_insert_with(|| Failing {
                    since: now,
                    last: now,
                    path: String::new(),
                    cause: String::new(),
                });
                if now - failing.last > self.timeout {
                    // Not one row of failures: nothing was tried between them.
                    failing.since = now;
                }
                failing.last = now;
                failing.path = path.to_string();
                failing.cause = chain(error);
                self.any_failing.store(true, Ordering::Release);
            }
        }
    }

    /// The failure that has lasted for the timeout and was met again since `start`.
    fn lasting_failure(&self, start: Instant) -> Option<StoreError> {
        if !self.any_failing.load(Ordering::Acquire) {
            return None;
        }
        let state = self.state.lock();
        // Retries may lie further apart than the timeout, so that waiting counts as well as failing.
        let waited = start.elapsed() >= self.timeout;
        let lasts = |f: &Failing| f.last - f.since >= self.timeout || waited && f.since.elapsed() >= self.timeout;
        let lasting = state.failing.values().find(|failing| failing.last >= start && lasts(failing))?;
        let Failing { since, path, cause, .. } = lasting;
        Some(StoreError::new(
            ErrorKind::Unavailable,
            format!("{}/{path} has failed for {:.1} s: {cause}", self.root, since.elapsed().as_secs_f32()),
        ))
    }

    /// The latest failure that lasts, for messages.
    fn any_failure(&self) -> Option<String> {
        let state = self.state.lock();
        let latest = state.failing.values().max_by_key(|failing| failing.last)?;
        Some(format!("{}/{}: {}", self.root, latest.path, latest.cause))
    }

    /// Runs a call into SlateDB. It polls straight through: a call that is ready at once costs no timer. A call that
    /// waits ends with [`ErrorKind::Unavailable`] when the store has kept failing, or has not answered, for too long.
    ///
    /// `what` could not be done to `subject`, should an error say.
    pub(crate) async fn run<T>(
        &self,
        what: &'static str,
        subject: &(dyn fmt::Display + Sync),
        call: impl Future<Output = Result<T, slatedb::Error>>,
    ) -> weir_store::Result<T> {
        let mut guarded = pin!(self.guard(what, subject, call));
        // The caller may poll from a thread outside the runtime.
        poll_fn(|context| {
            let _entered = self.runtime.enter();
            guarded.as_mut().poll(context)
        })
        .await
    }

    async fn guard<T>(
        &self,
        what: &'static str,
        subject: &(dyn fmt::Display + Sync),
        call: impl Future<Output = Result<T, slatedb::Error>>,
    ) -> weir_store::Result<T> {
        let mut call = pin!(call);
        if let Poll::Ready(result) = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await {
            return result.map_err(|error| self.describe(what, subject, &error));
        }
        let start = Instant::now();
        let mut progress = (self.succeeded.load(Ordering::Relaxed), start);
        loop {
            match select(call.as_mut(), pin!(tokio::time::sleep(LOOK_INTERVAL))).await {
                Either::Left((result, _)) => return result.map_err(|error| self.describe(what, subject, &error)),
                Either::Right(_) => {
                    if self.is_off() {
                        return Err(StoreError::new(
                            ErrorKind::Closed,
                            format!("{what} {subject}: the branch was closed"),
                        ));
                    }
                    if let Some(error) = self.lasting_failure(start) {
                        return Err(error.context(format_args!("{what} {subject}")));
                    }
                    let succeeded = self.succeeded.load(Ordering::Relaxed);
                    if succeeded != progress.0 {
                        progress = (succeeded, Instant::now());
                    } else if progress.1.elapsed() >= self.timeout * 2 {
                        let message =
                            format!("{what} {subject}: {} has not answered for {:?}", self.root, self.timeout * 2);
                        let cause = self.any_failure().map(|cause| format!(" ({cause})")).unwrap_or_default();
                        return Err(StoreError::new(ErrorKind::Unavailable, message + &cause));
                    }
                }
            }
        }
    }

    /// Like [`Watch::run`], for a call that reads manifests: SlateDB calls one that cannot be decoded an internal error.
    pub(crate) async fn run_opening<T>(
        &self,
        what: &'static str,
        subject: &(dyn fmt::Display + Sync),
        call: impl Future<Output = Result<T, slatedb::Error>>,
    ) -> weir_store::Result<T> {
        self.run(what, subject, call).await.map_err(|error| match error.kind() {
            ErrorKind::Internal | ErrorKind::Corrupt if !error.to_string().contains(".sst") => {
                let cause = error.to_string();
                let cause = cause.trim_end_matches(RESTORE).trim_end_matches(['.', ' ']);
                let manifest = self.state.lock().last_read.clone().filter(|path| path.as_ref().ends_with(".manifest"));
                let message = match manifest {
                    Some(path) => format!(
                        "{what} {subject}: the manifest {}/{path} is damaged and cannot be read. {RESTORE} Cause: {cause}",
                        self.root
                    ),
                    None => self.name_last_read(cause.to_owned()),
                };
                StoreError::new(ErrorKind::Corrupt, message)
            }
            _ => error,
        })
    }

    /// SlateDB does not always say which file it was.
    fn name_last_read(&self, message: String) -> String {
        match &self.state.lock().last_read {
            Some(path) if !message.contains(".sst") && !message.contains(".manifest") => {
                format!("{message}; the last file read was {}/{path}", self.root)
            }
            _ => message,
        }
    }

    /// SlateDB's error as one of ours.
    fn describe(&self, what: &str, subject: &dyn fmt::Display, error: &slatedb::Error) -> StoreError {
        let kind = match error.kind() {
            _ if self.is_off() => ErrorKind::Closed,
            SlateKind::Closed(CloseReason::Clean) => ErrorKind::Closed,
            SlateKind::Closed(CloseReason::Fenced) => ErrorKind::Fenced,
            SlateKind::Data => ErrorKind::Corrupt,
            SlateKind::Unavailable => ErrorKind::Unavailable,
            SlateKind::Invalid => ErrorKind::InvalidArgument,
            _ => ErrorKind::Internal,
        };
        let cause = chain(error);
        if kind != ErrorKind::Corrupt {
            return StoreError::new(kind, format!("{what} {subject}: {cause}"));
        }
        let cut = if cause.contains(IS_CUT) { self.state.lock().cut.clone() } else { None };
        let message = match cut {
            Some(cut) => format!("{what} {subject}: {cut}. {RESTORE}"),
            None => format!("{}. {RESTORE}", self.name_last_read(format!("{what} {subject}: {cause}"))),
        };
        StoreError::new(kind, message)
    }

    /// An error of the object store itself, from a call that SlateDB does not retry.
    pub(crate) fn describe_io(&self, what: &str, path: &Path, error: &Error) -> StoreError {
        StoreError::new(ErrorKind::Unavailable, format!("{what} {}/{path}: {}", self.root, chain(error)))
    }
}

/// Says nothing of the disk: SlateDB asks first for what local files do not have, and then again without it.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::NotSupported { .. } | Error::NotImplemented { .. })
}

/// The folder of a database that a file lies in: `manifest`, `compacted`, …
fn folder(path: &Path) -> String {
    let mut parts: Vec<_> = path.parts().collect();
    parts.pop();
    parts.pop().map(|part| part.as_ref().to_owned()).unwrap_or_default()
}

/// An object store seen through a [`Watch`].
pub(crate) struct WatchedStore {
    inner: Arc<dyn ObjectStore>,
    watch: Arc<Watch>,
}

impl WatchedStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, watch: Arc<Watch>) -> Arc<Self> {
        Arc::new(Self { inner, watch })
    }

    fn recorded<T>(&self, direction: Direction, path: &Path, result: Result<T>) -> Result<T> {
        self.watch.record(direction, path, result.as_ref());
        result
    }

    /// A read beyond the end of a file: the file was cut. SlateDB would retry it for ever.
    async fn cut<T>(&self, path: &Path, end: u64, result: Result<T>) -> Result<T> {
        let Err(Error::Generic { .. }) = &result else { return result };
        let head = GetOptions { head: true, ..GetOptions::default() };
        match self.inner.get_opts(path, head).await {
            Ok(found) if found.meta.size < end => {
                let (root, size) = (&self.watch.root, found.meta.size);
                let cut = format!("the file {root}/{path} {IS_CUT} {size} bytes, byte {end} was asked for");
                self.watch.state.lock().cut = Some(cut.clone());
                // Of the kinds that are not retried the one that is taken for damage.
                Err(Error::NotFound { path: path.to_string(), source: cut.into() })
            }
            _ => result,
        }
    }
}

impl fmt::Display for WatchedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for WatchedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for WatchedStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.watch.check()?;
        let result = self.inner.put_opts(location, payload, opts).await;
        self.recorded(Direction::Write, location, result)
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.watch.check()?;
        let result = self.inner.put_multipart_opts(location, opts).await;
        if result.is_err() {
            // Only the parts and the end of an upload show that writing works.
            self.watch.record(Direction::Write, location, result.as_ref());
        }
        let inner = result?;
        Ok(Box::new(WatchedUpload { inner, location: location.clone(), watch: self.watch.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.watch.check()?;
        if !options.head {
            self.watch.state.lock().last_read = Some(location.clone());
        }
        let end = match &options.range {
            Some(object_store::GetRange::Bounded(range)) => range.start + 1,
            Some(object_store::GetRange::Offset(start)) => start + 1,
            _ => 0,
        };
        let result = self.inner.get_opts(location, options).await;
        let result = self.cut(location, end, result).await;
        self.recorded(Direction::Read, location, result)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.watch.check()?;
        self.watch.state.lock().last_read = Some(location.clone());
        let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        let result = self.inner.get_ranges(location, ranges).await;
        let result = self.cut(location, end, result).await;
        self.recorded(Direction::Read, location, result)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        if let Err(error) = self.watch.check() {
            return futures::stream::once(async { Err(error) }).boxed();
        }
        let watch = self.watch.clone();
        let deleted = self.inner.delete_stream(locations);
        deleted.inspect(move |result| watch.record(Direction::Write, &Path::default(), result.as_ref())).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if let Err(error) = self.watch.check() {
            return futures::stream::once(async { Err(error) }).boxed();
        }
        let (watch, location) = (self.watch.clone(), prefix.cloned().unwrap_or_default().join("list"));
        self.inner.list(prefix).inspect(move |result| watch.record(Direction::Read, &location, result.as_ref())).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.watch.check()?;
        let result = self.inner.list_with_delimiter(prefix).await;
        self.recorded(Direction::Read, &prefix.cloned().unwrap_or_default().join("list"), result)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.watch.check()?;
        let result = self.inner.copy_opts(from, to, options).await;
        self.recorded(Direction::Write, to, result)
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.watch.check()?;
        let result = self.inner.rename_opts(from, to, options).await;
        self.recorded(Direction::Write, to, result)
    }
}

struct WatchedUpload {
    inner: Box<dyn MultipartUpload>,
    location: Path,
    watch: Arc<Watch>,
}

impl fmt::Debug for WatchedUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl MultipartUpload for WatchedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        if let Err(error) = self.watch.check() {
            return async { Err(error) }.boxed();
        }
        let (watch, location) = (self.watch.clone(), self.location.clone());
        self.inner
            .put_part(data)
            .inspect(move |result| watch.record(Direction::Write, &location, result.as_ref()))
            .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.watch.check()?;
        let result = self.inner.complete().await;
        self.watch.record(Direction::Write, &self.location, result.as_ref());
        result
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}
