//! What a native method can fail with, and the Java exception it becomes.

use std::fmt;

use weir_store::{ErrorKind, StoreError};

/// Why a native method returns nothing.
#[derive(Debug)]
pub enum Failure {
    /// Becomes the exception of its kind.
    Weir(StoreError),
    /// An exception is pending already: it goes on unchanged.
    JavaException,
}

pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Weir(StoreError::new(kind, message))
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    pub fn closed() -> Self {
        Self::new(ErrorKind::Closed, "the state backend is closed")
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Weir(error)
    }
}

impl From<jni::errors::Error> for Failure {
    fn from(error: jni::errors::Error) -> Self {
        match error {
            jni::errors::Error::JavaException => Self::JavaException,
            jni::errors::Error::NullPtr(what) => Self::invalid(format!("null where an object is needed: {what}")),
            other => Self::new(ErrorKind::Internal, format!("the JVM refused a call of the bridge: {other}")),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weir(error) => error.fmt(f),
            Self::JavaException => f.write_str("a Java exception is pending"),
        }
    }
}

/// The exception class of a kind, as `FindClass` wants it. Each has a constructor `(String)`.
pub fn exception_class(kind: ErrorKind) -> &'static std::ffi::CStr {
    match kind {
        ErrorKind::MissingVersion => c"io/weir/flink/errors/MissingVersionException",
        ErrorKind::Corrupt => c"io/weir/flink/errors/CorruptStateException",
        ErrorKind::Unavailable => c"io/weir/flink/errors/StoreUnavailableException",
        ErrorKind::Fenced => c"io/weir/flink/errors/FencedException",
        ErrorKind::Closed => c"io/weir/flink/errors/BackendClosedException",
        ErrorKind::Cancelled => c"io/weir/flink/errors/WeirCancelledException",
        ErrorKind::InvalidArgument => c"io/weir/flink/errors/InvalidArgumentException",
        // Internal, and any kind that is newer than this list.
        _ => c"io/weir/flink/errors/WeirInternalException",
    }
}
