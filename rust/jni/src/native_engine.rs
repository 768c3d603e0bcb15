//! The native methods of `io.weir.flink.nativelib.NativeEngine`, in the order of the Java class.
//!
//! Calls of the task thread that come once a record use the raw interface of the JVM and touch no Java object; the
//! others use the safe one.

use std::collections::HashMap;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use jni::Env;
use jni::objects::{JByteArray, JIntArray, JObjectArray, JString};
use jni::sys::{JNIEnv, jboolean, jbyteArray, jclass, jint, jintArray, jlong, jlongArray, jobjectArray, jstring};
use parking_lot::Mutex;
use weir_engine::{EngineOptions, EpochId, KeyedEngine, MemoryBudget, SmallBytes, Stats};
use weir_store::{BranchName, ErrorKind, ExpiryClock, ExpiryRule, KeyGroupRange, RowValue, Source, VersionRef};

use crate::config::Config;
use crate::error::{Failure, Result};
use crate::guard::{guard, guard_env};
use crate::handles::Table;
use crate::{logging, memory, runtime, stores};

/// Raised whenever a native method changes its meaning.
const ABI: jint = 2;

/// Rows are kept as the bytes that the Java serialisers wrote.
type Engine = KeyedEngine<SmallBytes>;

static ENGINES: Table<Engine> = Table::new();
static BUDGETS: Mutex<Option<HashMap<jlong, Arc<MemoryBudget>>>> = Mutex::new(None);

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_abi(_: *mut JNIEnv, _: jclass) -> jint {
    ABI
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_initLogging(
    env: *mut JNIEnv,
    _: jclass,
    sink: jclass,
) {
    guard(env, || logging::start(env, sink));
}

// Budgets.

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_budgetCreate(
    env: *mut JNIEnv,
    _: jclass,
    bytes: jlong,
) -> jlong {
    guard(env, || {
        static NEXT: AtomicI64 = AtomicI64::new(1);
        let limit = usize::try_from(bytes)
            .ok()
            .filter(|limit| *limit > 0)
            .ok_or_else(|| Failure::invalid(format!("a memory budget of {bytes} bytes")))?;
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        BUDGETS.lock().get_or_insert_default().insert(handle, MemoryBudget::new(limit));
        Ok(handle)
    })
}

/// The budget itself lives as long as an engine that shares it.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_budgetDestroy(
    env: *mut JNIEnv,
    _: jclass,
    budget: jlong,
) {
    guard(env, || {
        let removed = BUDGETS.lock().get_or_insert_default().remove(&budget);
        drop(removed);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_budgetUsed(
    env: *mut JNIEnv,
    _: jclass,
    budget: jlong,
) -> jlong {
    guard(env, || Ok(to_java(find_budget(budget)?.used() as u64)))
}

fn find_budget(handle: jlong) -> Result<Arc<MemoryBudget>> {
    let budgets = BUDGETS.lock();
    budgets
        .as_ref()
        .and_then(|budgets| budgets.get(&handle))
        .map(Arc::clone)
        .ok_or_else(|| Failure::new(ErrorKind::Closed, "the memory budget is closed"))
}

// A backend's life.

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_open(
    env: *mut JNIEnv,
    _: jclass,
    budget: jlong,
    root: jstring,
    config: jobjectArray,
    branch: jstring,
    first_key_group: jint,
    last_key_group: jint,
    source_branches: jobjectArray,
    source_versions: jobjectArray,
    source_ranges: jintArray,
    restored_checkpoint: jlong,
    next_sequence: jlong,
) -> jlong {
    guard_env(env, |env| {
        let budget = find_budget(budget)?;
        let root = string(env, root, "root")?;
        let config = Config::parse(&strings(env, config, "config")?)?;
        let branch = BranchName::parse(&string(env, branch, "branch")?)?;
        let range = key_groups(first_key_group, last_key_group)?;
        let sources = sources(env, source_branches, source_versions, source_ranges)?;
        let restored_checkpoint = not_negative(restored_checkpoint, "restoredCheckpoint")?;
        let runtime = runtime::handle(config.runtime_threads)?;
        let stores = stores::at(&root, &config, &runtime)?;

        let mut options = EngineOptions::new(range);
        options.working_set_bytes = config.working_set_bytes;
        options.max_dirty_bytes = config.max_dirty_bytes.unwrap_or(options.max_dirty_bytes.min(budget.limit() / 4));
        options.fresh = sources.is_empty();
        options.next_sequence = not_negative(next_sequence, "nextSequence")?;
        options.stores = Some(Arc::clone(&stores));

        let what = || format!("opening branch {branch} at {root}");
        let store = runtime::block_on(
            &runtime,
            config.store_timeout,
            what,
            stores.open(&branch, range, &sources, restored_checkpoint),
        )?;
        let engine = Engine::new(store, options, budget, runtime);
        let handle = ENGINES.insert(Arc::clone(&engine));
        if handle.is_err() {
            engine.close();
        }
        handle
    })
}

/// The scratch region's address, with room for `min_bytes` of input.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_scratch(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    min_bytes: jlong,
) -> jlong {
    guard(env, || ENGINES.enter(handle)?.parts()?.1.reserve(min_bytes))
}

// Value rows.

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_get(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    key_len: jint,
) -> jlong {
    guard(env, || {
        let mut call = ENGINES.enter(handle)?;
        let (engine, scratch) = call.parts()?;
        let ([key], mut answer) = scratch.split([key_len])?;
        Ok(engine.get(key, |value| answer.value(value))?)
    })
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_put(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    key_len: jint,
    value_len: jint,
) {
    guard(env, || {
        let mut call = ENGINES.enter(handle)?;
        let (engine, scratch) = call.parts()?;
        let [key, value] = scratch.input([key_len, value_len])?;
        Ok(engine.put(key, value)?)
    });
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_delete(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    key_len: jint,
) {
    guard(env, || {
        let mut call = ENGINES.enter(handle)?;
        let (engine, scratch) = call.parts()?;
        let [key] = scratch.input([key_len])?;
        Ok(engine.delete(key)?)
    });
}

// Groups: map and list state.

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_groupGet(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    prefix_len: jint,
    suffix_len: jint,
) -> jlong {
    guard(env, || {
        let mut call = ENGINES.enter(handle)?;
        let (engine, scratch) = call.parts()?;
        let ([prefix, suffix], mut answer) = scratch.split([prefix_len, suffix_len])?;
        Ok(engine.group_get(prefix, suffix, |value| answer.value(value))?)
    })
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_groupPut(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    prefix_len: jint,
    suffix_len: jint,
    value_len: jint,
) {
    guard(env, || {
        let mut call = ENGINES.enter(handle)?;
        let (engine, scratch) = call.parts()?;
        let [prefix, suffix, value] = scratch.input([prefix_len, suffix_len, value_len])?;
        Ok(engine.group_put(prefix, suffix, value)?)
    });
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_groupDelete(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    prefix_len: jint,
    suffix_len: jint,
) {
    guard(env, || {
        let mut call = ENGINES.enter(handle)?;
        let (engine, scratch) = call.parts()?;
        let [prefix, suffix] = scratch.input([prefix_len, suffix_len])?;
        Ok(engine.group_delete(prefix, suffix)?)
    });
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_groupContains(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    prefix_len: jint,
    suffix_len: jint,
) -> bool {
    guard(env, || {
        let mut call = ENGINES.enter(handle)?;
        let (engine, scratch) = call.parts()?;
        let [prefix, suffix] = scratch.input([prefix_len, suffix_len])?;
        Ok(engine.group_contains(prefix, suffix)?)
    })
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_groupIsEmpty(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    prefix_len: jint,
) -> bool {
    guard(env, || {
        let mut call = ENGINES.enter(handle)?;
        let (engine, scratch) = call.parts()?;
        let [prefix] = scratch.input([prefix_len])?;
        Ok(engine.group_is_empty(prefix)?)
    })
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_groupClear(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    prefix_len: jint,
) {
    guard(env, || {
        let mut call = ENGINES.enter(handle)?;
        let (engine, scratch) = call.parts()?;
        let [prefix] = scratch.input([prefix_len])?;
        Ok(engine.group_clear(prefix)?)
    });
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_listAppend(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    prefix_len: jint,
    value_len: jint,
) {
    guard(env, || {
        let mut call = ENGINES.enter(handle)?;
        let (engine, scratch) = call.parts()?;
        let [prefix, value] = scratch.input([prefix_len, value_len])?;
        Ok(engine.list_append(prefix, value)?)
    });
}

/// The values of a list's rows, if all of it is in memory and has at most `max_bytes`; else 0, and pages read it.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_listElements(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    prefix_len: jint,
    max_bytes: jint,
) -> jlong {
    guard(env, || {
        let mut call = ENGINES.enter(handle)?;
        let (engine, scratch) = call.parts()?;
        let max_bytes = page_bytes(max_bytes)?;
        let ([prefix], mut answer) = scratch.split([prefix_len])?;
        answer.elements(|out| engine.group_values(prefix, max_bytes, out))
    })
}

// Scans.

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_groupPage(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    prefix_len: jint,
    after_len: jint,
    max_bytes: jint,
) -> jlong {
    guard(env, || page(handle, prefix_len, after_len, max_bytes, Engine::group_page))
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_rowPage(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    prefix_len: jint,
    after_len: jint,
    max_bytes: jint,
) -> jlong {
    guard(env, || page(handle, prefix_len, after_len, max_bytes, Engine::row_page))
}

/// A page of rows under a prefix; `after_len` is -1 to begin with the first row.
fn page(
    handle: jlong,
    prefix_len: jint,
    after_len: jint,
    max_bytes: jint,
    scan: impl FnOnce(&Engine, &[u8], Option<&[u8]>, usize, &mut Vec<u8>) -> weir_engine::Result<bool>,
) -> Result<jlong> {
    let mut call = ENGINES.enter(handle)?;
    let (engine, scratch) = call.parts()?;
    let max_bytes = page_bytes(max_bytes)?;
    let from_start = after_len == -1;
    let ([prefix, after], mut answer) = scratch.split([prefix_len, if from_start { 0 } else { after_len }])?;
    answer.page(|out| scan(engine, prefix, (!from_start).then_some(after), max_bytes, out))
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_deleteRows(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    prefix_len: jint,
) -> jlong {
    guard(env, || {
        let mut call = ENGINES.enter(handle)?;
        let (engine, scratch) = call.parts()?;
        let [prefix] = scratch.input([prefix_len])?;
        Ok(to_java(engine.delete_rows(prefix)?))
    })
}

// Reads of another thread than the task's: a Java array in, a Java array out, between two calls of the task.

/// The value of a row, or null.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_visitGet(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    key: jbyteArray,
) -> jbyteArray {
    guard_env(env, |env| {
        let key = bytes(env, key, "key")?;
        let value = ENGINES.visit(handle)?.value()?.get(&key, |value| value.map(<[u8]>::to_vec))?;
        match value {
            Some(value) => Ok(env.byte_array_from_slice(&value)?.into_raw()),
            None => Ok(ptr::null_mut()),
        }
    })
}

/// A page of a group, behind one byte that is 1 if more follows; `after` is null to begin with the first row.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_visitGroupPage(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    prefix: jbyteArray,
    after: jbyteArray,
    max_bytes: jint,
) -> jbyteArray {
    guard_env(env, |env| {
        let prefix = bytes(env, prefix, "prefix")?;
        let after = if after.is_null() { None } else { Some(bytes(env, after, "after")?) };
        let max_bytes = page_bytes(max_bytes)?;
        let mut page = vec![0];
        let more = ENGINES.visit(handle)?.value()?.group_page(&prefix, after.as_deref(), max_bytes, &mut page)?;
        page[0] = u8::from(more);
        Ok(env.byte_array_from_slice(&page)?.into_raw())
    })
}

// Epochs.

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_freeze(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    checkpoint: jlong,
) -> jlong {
    guard(env, || {
        let checkpoint = not_negative(checkpoint, "checkpointId")?;
        let mut call = ENGINES.enter(handle)?;
        let (engine, _) = call.parts()?;
        Ok(to_java(engine.freeze(checkpoint)?.0))
    })
}

/// `{branch, version, bytes written for it, bytes of all of it, next sequence number}`.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_awaitCommit(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    epoch: jlong,
) -> jobjectArray {
    guard_env(env, |env| {
        let epoch = EpochId(not_negative(epoch, "epoch")?);
        let engine = ENGINES.share(handle)?;
        let committed = engine.await_commit(epoch)?;
        let fields = [
            committed.commit.version.branch.path().to_owned(),
            committed.commit.version.version,
            committed.commit.written_bytes.to_string(),
            committed.commit.total_bytes.to_string(),
            committed.next_sequence.to_string(),
        ];
        string_array(env, &fields)
    })
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_abort(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    epoch: jlong,
) {
    guard(env, || {
        let epoch = EpochId(not_negative(epoch, "epoch")?);
        ENGINES.share(handle)?.abort(epoch);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_checkpointComplete(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    checkpoint: jlong,
) {
    guard(env, || {
        let checkpoint = not_negative(checkpoint, "checkpointId")?;
        ENGINES.share(handle)?.checkpoint_complete(checkpoint);
        Ok(())
    });
}

// Expiry.

/// Rows of the state expire `ttl_millis` after the timestamp at `timestamp_at` in their value, or in the last of their
/// elements. `stay_millis` below 0: for any time thereafter.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_setExpiry(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    state: jint,
    ttl_millis: jlong,
    elements: jboolean,
    timestamp_at: jint,
    stay_millis: jlong,
) {
    guard(env, || {
        let rule = ExpiryRule {
            ttl_ms: not_negative(ttl_millis, "ttlMillis")?,
            value: if elements { RowValue::Elements } else { RowValue::Whole },
            timestamp_at: not_negative(timestamp_at.into(), "timestampAt")? as usize,
            stay_ms: u64::try_from(stay_millis).ok(),
        };
        Ok(ENGINES.share(handle)?.change_expiry(|expiry| expiry.set(state.cast_unsigned(), Some(rule)))?)
    });
}

/// Rows of the state do not expire.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_clearExpiry(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    state: jint,
) {
    guard(env, || Ok(ENGINES.share(handle)?.change_expiry(|expiry| expiry.set(state.cast_unsigned(), None))?));
}

/// From now on the wall clock counts, so many milliseconds behind.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_expireByWallClock(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    behind_millis: jlong,
) {
    guard(env, || {
        let behind_ms = not_negative(behind_millis, "behindMillis")?;
        let clock = ExpiryClock::Wall { behind_ms };
        Ok(ENGINES.share(handle)?.change_expiry(|expiry| expiry.clock = clock)?)
    });
}

/// It is this time until another is handed over.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_expireAt(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
    now_millis: jlong,
) {
    guard(env, || {
        let clock = ExpiryClock::At(now_millis);
        Ok(ENGINES.share(handle)?.change_expiry(|expiry| expiry.clock = clock)?)
    });
}

// A backend's end.

/// Of a closed backend: nothing is left to cancel.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_cancel(env: *mut JNIEnv, _: jclass, handle: jlong) {
    guard(env, || {
        if let Ok(engine) = ENGINES.share(handle) {
            engine.cancel();
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_close(env: *mut JNIEnv, _: jclass, handle: jlong) {
    guard(env, || {
        ENGINES.close(handle, Engine::close);
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_free(env: *mut JNIEnv, _: jclass, handle: jlong) {
    guard(env, || {
        ENGINES.free(handle, Engine::close);
        Ok(())
    });
}

// Figures.

/// In the order of `statNames`.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_stats(
    env: *mut JNIEnv,
    _: jclass,
    handle: jlong,
) -> jlongArray {
    guard_env(env, |env| {
        let figures = ENGINES.share(handle)?.stats().values().map(to_java);
        long_array(env, &figures)
    })
}

#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_statNames(
    env: *mut JNIEnv,
    _: jclass,
) -> jobjectArray {
    guard_env(env, |env| string_array(env, Stats::NAMES))
}

/// For the JobManager: deletes what a checkpoint kept alive.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_releaseVersion(
    env: *mut JNIEnv,
    _: jclass,
    root: jstring,
    config: jobjectArray,
    branch: jstring,
    version: jstring,
) {
    guard_env(env, |env| {
        let root = string(env, root, "root")?;
        let config = Config::parse(&strings(env, config, "config")?)?;
        let branch = BranchName::parse(&string(env, branch, "branch")?)?;
        let version = VersionRef { branch, version: string(env, version, "version")? };
        let runtime = runtime::handle(config.runtime_threads)?;
        let stores = stores::at(&root, &config, &runtime)?;
        let what = || format!("releasing {version} at {root}");
        runtime::block_on(&runtime, config.store_timeout, what, stores.release(&version))
    });
}

/// `{open backends, native threads, native bytes allocated}`.
#[unsafe(no_mangle)]
pub extern "system" fn Java_io_weir_flink_nativelib_NativeEngine_processStats(
    env: *mut JNIEnv,
    _: jclass,
) -> jlongArray {
    guard_env(env, |env| {
        let figures = [i64::from(ENGINES.open_handles()), runtime::live_threads() as i64, memory::live_bytes()];
        long_array(env, &figures)
    })
}

// Java's types and ours.

/// Counters stop at what a Java `long` can hold.
fn to_java(figure: u64) -> jlong {
    jlong::try_from(figure).unwrap_or(jlong::MAX)
}

fn page_bytes(max_bytes: jint) -> Result<usize> {
    usize::try_from(max_bytes).map_err(|_| Failure::invalid(format!("a page of {max_bytes} bytes")))
}

fn not_negative(number: jlong, what: &str) -> Result<u64> {
    u64::try_from(number).map_err(|_| Failure::invalid(format!("{what} is {number}; it cannot be negative")))
}

fn key_groups(first: jint, last: jint) -> Result<KeyGroupRange> {
    match (u16::try_from(first), u16::try_from(last)) {
        (Ok(first), Ok(last)) if first <= last => Ok(KeyGroupRange { first, last }),
        _ => Err(Failure::invalid(format!("[{first}, {last}] is not a range of key groups"))),
    }
}

fn sources(
    env: &mut Env<'_>,
    branches: jobjectArray,
    versions: jobjectArray,
    ranges: jintArray,
) -> Result<Vec<Source>> {
    let branches = strings(env, branches, "sourceBranches")?;
    let versions = strings(env, versions, "sourceVersions")?;
    let ranges = ints(env, ranges, "sourceRanges")?;
    if branches.len() != versions.len() || ranges.len() != 2 * branches.len() {
        return Err(Failure::invalid(format!(
            "{} source branches, {} versions and {} bounds of ranges do not go together",
            branches.len(),
            versions.len(),
            ranges.len()
        )));
    }
    let named = branches.iter().zip(versions).zip(ranges.chunks_exact(2));
    named
        .map(|((branch, version), bounds)| {
            let version = VersionRef { branch: BranchName::parse(branch)?, version };
            Ok(Source { version, range: key_groups(bounds[0], bounds[1])? })
        })
        .collect()
}

fn string(env: &mut Env<'_>, string: jstring, what: &str) -> Result<String> {
    if string.is_null() {
        return Err(Failure::invalid(format!("{what} is null")));
    }
    // SAFETY: a parameter of the running native method, declared as a string.
    let string = unsafe { JString::from_raw(env, string) };
    Ok(string.try_to_string(env)?)
}

fn strings(env: &mut Env<'_>, array: jobjectArray, what: &str) -> Result<Vec<String>> {
    if array.is_null() {
        return Err(Failure::invalid(format!("{what} is null")));
    }
    // SAFETY: a parameter of the running native method, declared as an array of strings.
    let array = unsafe { JObjectArray::<JString<'_>>::from_raw(env, array) };
    let length = array.len(env)?;
    let mut strings = Vec::with_capacity(length);
    for index in 0..length {
        let element = array.get_element(env, index)?;
        if element.is_null() {
            return Err(Failure::invalid(format!("{what}[{index}] is null")));
        }
        strings.push(element.try_to_string(env)?);
        env.delete_local_ref(element);
    }
    Ok(strings)
}

fn ints(env: &mut Env<'_>, array: jintArray, what: &str) -> Result<Vec<jint>> {
    if array.is_null() {
        return Err(Failure::invalid(format!("{what} is null")));
    }
    // SAFETY: a parameter of the running native method, declared as an array of ints.
    let array = unsafe { JIntArray::from_raw(env, array) };
    let mut ints = vec![0; array.len(env)?];
    array.get_region(env, 0, &mut ints)?;
    Ok(ints)
}

fn bytes(env: &mut Env<'_>, array: jbyteArray, what: &str) -> Result<Vec<u8>> {
    if array.is_null() {
        return Err(Failure::invalid(format!("{what} is null")));
    }
    // SAFETY: a parameter of the running native method, declared as an array of bytes.
    let array = unsafe { JByteArray::from_raw(env, array) };
    Ok(env.convert_byte_array(&array)?)
}

fn string_array(env: &mut Env<'_>, strings: &[impl AsRef<str>]) -> Result<jobjectArray> {
    let array = JObjectArray::<JString<'_>>::new(env, strings.len(), JString::null())?;
    for (index, string) in strings.iter().enumerate() {
        let string = env.new_string(string)?;
        array.set_element(env, index, &string)?;
        env.delete_local_ref(string);
    }
    Ok(array.into_raw())
}

fn long_array(env: &mut Env<'_>, longs: &[jlong]) -> Result<jlongArray> {
    let array = env.new_long_array(longs.len())?;
    array.set_region(env, 0, longs)?;
    Ok(array.into_raw())
}
