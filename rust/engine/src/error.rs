//! The engine's errors are the store's: a kind that says what the caller can do, and a message that says what happened.

pub use weir_store::ErrorKind;

pub type EngineError = weir_store::StoreError;
pub type Result<T, E = EngineError> = std::result::Result<T, E>;

pub(crate) fn cancelled() -> EngineError {
    EngineError::new(ErrorKind::Cancelled, "the call was given up because the task is being cancelled")
}

pub(crate) fn closed() -> EngineError {
    EngineError::new(ErrorKind::Closed, "the state backend is closed")
}

pub(crate) fn invalid(message: impl Into<String>) -> EngineError {
    EngineError::new(ErrorKind::InvalidArgument, message)
}
