//! The one wrapper around every exported function: a panic or an error ends as a Java exception, never as an unwind
//! into the JVM.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use jni::strings::JNIString;
use jni::sys::JNIEnv;
use jni::{Env, EnvUnowned, Outcome};
use weir_store::ErrorKind;

use crate::error::{Failure, Result, exception_class};

/// What a native method returns while its exception is on its way; the JVM ignores it.
pub trait Nothing {
    const NOTHING: Self;
}

impl Nothing for () {
    const NOTHING: Self = ();
}

impl Nothing for bool {
    const NOTHING: Self = false;
}

impl Nothing for i32 {
    const NOTHING: Self = 0;
}

impl Nothing for i64 {
    const NOTHING: Self = 0;
}

impl<T> Nothing for *mut T {
    const NOTHING: Self = std::ptr::null_mut();
}

/// Runs `call`; throws what it fails with.
#[inline]
pub fn guard<T: Nothing>(env: *mut JNIEnv, call: impl FnOnce() -> Result<T>) -> T {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => {
            throw(env, &failure);
            T::NOTHING
        }
        Err(payload) => {
            throw(env, &panicked(&*payload));
            T::NOTHING
        }
    }
}

/// The same for a call that works with the JVM's objects.
pub fn guard_env<T: Nothing>(env: *mut JNIEnv, call: impl FnOnce(&mut Env<'_>) -> Result<T>) -> T {
    guard(env, || {
        // SAFETY: `env` is what the JVM passed to the native method that is running, and does not outlive it.
        let outcome = unsafe { EnvUnowned::from_raw(env) }.with_env_no_catch(call).into_outcome();
        match outcome {
            Outcome::Ok(value) => Ok(value),
            Outcome::Err(failure) => Err(failure),
            Outcome::Panic(payload) => std::panic::resume_unwind(payload),
        }
    })
}

/// Makes `failure` the pending exception, unless one is pending already.
///
/// The class is looked up here, by the class loader of the native method's own class, and not kept: a global reference
/// to it would keep that class loader, and with it the library, alive for ever.
#[cold]
#[inline(never)]
fn throw(env: *mut JNIEnv, failure: &Failure) {
    let Failure::Weir(error) = failure else { return };
    // SAFETY: `env` belongs to this thread and to a running native method; every call is allowed while no exception is
    // pending, which is checked first.
    unsafe {
        let functions = (**env).v1_2;
        if ((**env).v1_2.ExceptionCheck)(env) {
            return;
        }
        let name = exception_class(error.kind());
        let mut class = (functions.FindClass)(env, name.as_ptr());
        let mut message = error.to_string();
        if class.is_null() {
            ((**env).v1_2.ExceptionClear)(env);
            message = format!("{}: {message}", name.to_string_lossy());
            class = (functions.FindClass)(env, c"java/lang/RuntimeException".as_ptr());
            if class.is_null() {
                return;
            }
        }
        let message = JNIString::from(message);
        (functions.ThrowNew)(env, class, message.as_ptr());
        (functions.DeleteLocalRef)(env, class);
    }
}

thread_local! {
    /// Text and place of the last panic of this thread, put down by the hook.
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Panics are reported by the exception and a log record, not on standard error.
pub fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let text = format!("{} at {place}", panic_text(info.payload()));
        tracing::error!("panic: {text}");
        let _ = LAST_PANIC.try_with(|last| *last.borrow_mut() = Some(text));
    }));
}

fn panicked(payload: &(dyn Any + Send)) -> Failure {
    let text = LAST_PANIC.with(|last| last.borrow_mut().take()).unwrap_or_else(|| panic_text(payload).to_owned());
    Failure::new(ErrorKind::Internal, format!("panic in Weir's native library: {text}"))
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without text")
}
