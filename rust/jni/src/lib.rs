//! The bridge: every native method of `io.weir.flink.nativelib.NativeEngine`, and nothing that a reader of the engine
//! or of a store would look for.
//!
//! * [`native_engine`]: the exported functions, one a native method.
//! * [`guard`]: what stands around each of them (panics, errors to exceptions).
//! * [`handles`]: what a `long` on the Java side means; makes a call during or after `close` or `free` an exception.
//! * [`scratch`]: the native memory through which keys, values and pages cross.
//! * [`config`], [`stores`], [`runtime`]: the strings of `open`, the stores they name, the threads they run on.
//! * [`logging`]: native log records to a Java class.
//! * [`memory`]: the allocator, counted.

mod config;
mod error;
mod guard;
mod handles;
mod logging;
mod memory;
mod native_engine;
mod runtime;
mod scratch;
mod stores;

use std::ffi::c_void;

use jni::sys::{JNI_VERSION_1_8, JavaVM, jint};

#[global_allocator]
static ALLOCATOR: memory::Counted<std::alloc::System> = memory::Counted(std::alloc::System);

/// Called by the JVM when a class loader loads the library.
#[unsafe(no_mangle)]
pub extern "system" fn JNI_OnLoad(vm: *mut JavaVM, _reserved: *mut c_void) -> jint {
    guard::install_panic_hook();
    logging::set_vm(vm);
    JNI_VERSION_1_8
}

/// Called when that class loader is collected. The library stays mapped (it is linked with `nodelete`), for its threads
/// may still run; they are told to end.
#[unsafe(no_mangle)]
pub extern "system" fn JNI_OnUnload(_vm: *mut JavaVM, _reserved: *mut c_void) {
    logging::stop();
    runtime::shut_down();
}
