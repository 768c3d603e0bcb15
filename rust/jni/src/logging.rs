//! Native log records to a static method of a Java class, `log(int level, String target, String message)`.
//!
//! Records of `tracing` and of `log` (SlateDB writes both) go the same way, on the thread that makes them; a thread of
//! the native runtime is attached to the JVM as a daemon at its first record, and detached when it ends. The class is
//! held weakly: its class loader can be collected, and records are dropped from then on.

use std::cell::Cell;
use std::ffi::c_void;
use std::fmt::{self, Write};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use jni::strings::JNIString;
use jni::sys::{_jmethodID, _jobject, JNI_OK, JNI_VERSION_1_8, JNIEnv, JavaVM, JavaVMAttachArgs, jclass, jvalue};
use parking_lot::RwLock;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::error::Result;

/// Records of this level and below pass, as in [`level_number`]; 0: none.
static LEVEL: AtomicI32 = AtomicI32::new(0);
static VM: AtomicPtr<JavaVM> = AtomicPtr::new(ptr::null_mut());
static SINK: RwLock<Option<Sink>> = RwLock::new(None);

const DEFAULT_LEVEL: i32 = 3;

/// A weak global reference to the class, and its method.
struct Sink {
    class: *mut _jobject,
    log: *mut _jmethodID,
}

// SAFETY: weak global references and method ids are valid on every thread.
unsafe impl Send for Sink {}
unsafe impl Sync for Sink {}

pub fn set_vm(vm: *mut JavaVM) {
    VM.store(vm, Ordering::Release);
}

/// Sends records to `class` from now on. If the class has a static method `int level()`, it says down to which level
/// (1 error to 5 trace); else it is 3, info.
pub fn start(env: *mut JNIEnv, class: jclass) -> Result<()> {
    if class.is_null() {
        return Err(crate::error::Failure::invalid("the class to log to is null"));
    }
    // SAFETY: called inside a native method with its `env` and an argument of it; no exception is pending.
    let (sink, level) = unsafe {
        let f = (**env).v1_2;
        let log =
            (f.GetStaticMethodID)(env, class, c"log".as_ptr(), c"(ILjava/lang/String;Ljava/lang/String;)V".as_ptr());
        if log.is_null() {
            // NoSuchMethodError is pending.
            return Err(crate::error::Failure::JavaException);
        }
        let mut level = DEFAULT_LEVEL;
        let ask = (f.GetStaticMethodID)(env, class, c"level".as_ptr(), c"()I".as_ptr());
        if ask.is_null() {
            (f.ExceptionClear)(env);
        } else {
            level = (f.CallStaticIntMethodA)(env, class, ask, ptr::null());
            if (f.ExceptionCheck)(env) {
                return Err(crate::error::Failure::JavaException);
            }
        }
        (Sink { class: (f.NewWeakGlobalRef)(env, class), log }, level.clamp(0, 5))
    };
    let old = SINK.write().replace(sink);
    if let Some(old) = old {
        // SAFETY: the reference was made above, in an earlier call, and nobody holds it any more.
        unsafe { ((**env).v1_2.DeleteWeakGlobalRef)(env, old.class) }
    }
    LEVEL.store(level, Ordering::Relaxed);
    // Refused when set before, by an earlier call: then it is this one already.
    let _ = tracing::subscriber::set_global_default(ToJava);
    let _ = log::set_logger(&ToJava);
    log::set_max_level(match level {
        0 => log::LevelFilter::Off,
        1 => log::LevelFilter::Error,
        2 => log::LevelFilter::Warn,
        3 => log::LevelFilter::Info,
        4 => log::LevelFilter::Debug,
        _ => log::LevelFilter::Trace,
    });
    tracing::callsite::rebuild_interest_cache();
    Ok(())
}

/// Drops every record from now on.
pub fn stop() {
    LEVEL.store(0, Ordering::Relaxed);
    log::set_max_level(log::LevelFilter::Off);
    VM.store(ptr::null_mut(), Ordering::Release);
}

fn level_number(level: Level) -> i32 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

/// SlateDB's dispatcher calls it an error that its tasks end when a branch is closed under them, which every cancelled
/// task does. What such an end means to a caller comes back as the error of its call.
fn record_level(metadata: &log::Metadata<'_>) -> i32 {
    let level = metadata.level() as i32;
    if metadata.target() == "slatedb::dispatcher" { level.max(level_number(Level::DEBUG)) } else { level }
}

fn passes(level: i32) -> bool {
    level <= LEVEL.load(Ordering::Relaxed)
}

struct ToJava;

impl Subscriber for ToJava {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.is_event() && passes(level_number(*metadata.level())) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && passes(level_number(*metadata.level()))
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        use tracing::level_filters::LevelFilter;
        Some(match LEVEL.load(Ordering::Relaxed) {
            0 => LevelFilter::OFF,
            1 => LevelFilter::ERROR,
            2 => LevelFilter::WARN,
            3 => LevelFilter::INFO,
            4 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    // Spans are not enabled; a record stands for itself.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        deliver(level_number(*event.metadata().level()), event.metadata().target(), text.message + &text.fields);
    }
}

impl log::Log for ToJava {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        // The `jni` crate traces each call that delivers a record.
        passes(record_level(metadata)) && !metadata.target().starts_with("jni::")
    }

    fn log(&self, record: &log::Record<'_>) {
        if log::Log::enabled(self, record.metadata()) {
            deliver(record_level(record.metadata()), record.target(), record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// `message` first, then ` name=value` for each other field.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

thread_local! {
    /// A record is being delivered: one made meanwhile, for instance by a callback, is dropped.
    static DELIVERING: Cell<bool> = const { Cell::new(false) };
    static ATTACHED: Attachment = const { Attachment(Cell::new(false)) };
}

/// Detaches a thread that was attached here when the thread ends.
struct Attachment(Cell<bool>);

impl Drop for Attachment {
    fn drop(&mut self) {
        let vm = VM.load(Ordering::Acquire);
        if self.0.get() && !vm.is_null() {
            // SAFETY: the thread was attached by `environment` and no Java frame is on it, for it is ending.
            unsafe {
                ((**vm).v1_4.DetachCurrentThread)(vm);
            }
        }
    }
}

fn deliver(level: i32, target: &str, message: String) {
    // The thread-locals are gone while a thread ends: then the record is, too.
    if DELIVERING.try_with(|delivering| delivering.replace(true)).unwrap_or(true) {
        return;
    }
    if let Some(env) = environment()
        && let Some(sink) = &*SINK.read()
    {
        // SAFETY: `env` is this thread's.
        unsafe { call(env, sink, level, target, message) }
    }
    let _ = DELIVERING.try_with(|delivering| delivering.set(false));
}

/// This thread's environment; attaches it as a daemon where it is not a thread of the JVM.
fn environment() -> Option<*mut JNIEnv> {
    let vm = VM.load(Ordering::Acquire);
    if vm.is_null() {
        return None;
    }
    let mut env: *mut c_void = ptr::null_mut();
    // SAFETY: `vm` was given by the JVM and lives as long as the process.
    unsafe {
        if ((**vm).v1_4.GetEnv)(vm, &raw mut env, JNI_VERSION_1_8) == JNI_OK {
            return Some(env.cast());
        }
        let thread = std::thread::current();
        let name = JNIString::from(thread.name().unwrap_or("weir"));
        let mut args =
            JavaVMAttachArgs { version: JNI_VERSION_1_8, name: name.as_ptr().cast_mut(), group: ptr::null_mut() };
        // Registered first, so that an attached thread is detached for certain.
        ATTACHED.try_with(|attached| attached.0.set(true)).ok()?;
        if ((**vm).v1_4.AttachCurrentThreadAsDaemon)(vm, &raw mut env, (&raw mut args).cast()) != JNI_OK {
            let _ = ATTACHED.try_with(|attached| attached.0.set(false));
            return None;
        }
    }
    Some(env.cast())
}

/// # Safety
/// `env` is the calling thread's.
unsafe fn call(env: *mut JNIEnv, sink: &Sink, level: i32, target: &str, message: String) {
    let target = JNIString::from(target);
    let message = JNIString::from(message);
    unsafe {
        let f = (**env).v1_2;
        // Nothing may be called while an exception is on its way, and it must not be lost.
        if (f.ExceptionCheck)(env) {
            return;
        }
        if (f.PushLocalFrame)(env, 4) != JNI_OK {
            (f.ExceptionClear)(env);
            return;
        }
        // Null once the class is collected.
        let class = (f.NewLocalRef)(env, sink.class);
        if !class.is_null() {
            let target = (f.NewStringUTF)(env, target.as_ptr());
            let message = if target.is_null() { target } else { (f.NewStringUTF)(env, message.as_ptr()) };
            if !message.is_null() {
                let arguments = [jvalue { i: level }, jvalue { l: target }, jvalue { l: message }];
                (f.CallStaticVoidMethodA)(env, class, sink.log, arguments.as_ptr());
            }
        }
        // An exception of the logger is the logger's own affair.
        (f.ExceptionClear)(env);
        (f.PopLocalFrame)(env, ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_jvm_records_are_dropped() {
        deliver(1, "weir", "nobody listens".to_owned());
        assert!(environment().is_none());
    }

    #[test]
    fn levels_are_those_of_the_java_side() {
        let numbers = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE].map(level_number);
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        assert_eq!(log::Level::Error as i32, 1);
        let record = |target| record_level(&log::Metadata::builder().level(log::Level::Error).target(target).build());
        assert_eq!((record("slatedb::dispatcher"), record("slatedb::compactor")), (4, 1));
        assert_eq!(log::Level::Trace as i32, 5);
    }
}
