//! One error type for every store: a kind that says what the caller can do, and a message that says what happened.

use std::fmt;

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// What the caller can do about an error. Decided where the error is made, never from its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The version or branch is not there: restore from another checkpoint.
    MissingVersion,
    /// Bytes read are not what was written: restore from another checkpoint, look at the storage.
    Corrupt,
    /// The store cannot be reached, read or written (also: disk full, permission): mend it, then the attempt can restart.
    Unavailable,
    /// Another writer took the branch: this attempt must end.
    Fenced,
    /// The caller closed it.
    Closed,
    /// The caller gave up waiting: the task was cancelled.
    Cancelled,
    /// A name, path, option or argument that can never work.
    InvalidArgument,
    /// A defect of Weir: report it.
    Internal,
}

/// What happened, to which file, key group or version, and what to do.
#[derive(Clone, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    kind: ErrorKind,
    message: String,
}

impl StoreError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same error with `context` before its message.
    pub fn context(self, context: impl fmt::Display) -> Self {
        Self { kind: self.kind, message: format!("{context}: {}", self.message) }
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}
