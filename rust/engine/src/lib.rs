//! The working set of one operator's keyed state: the rows in memory, what of them the store does not have yet, and the
//! pipeline that brings it there, epoch by epoch.
//!
//! [`KeyedEngine`] is the whole surface. It knows the store only as [`weir_store::StateStore`], and neither Flink nor
//! the JVM.

mod absence;
mod batch;
mod budget;
mod commits;
mod engine;
mod epochs;
mod error;
mod flush;
mod groups;
mod index;
mod options;
mod resident;
mod rows;
mod scan;
mod slab;
mod stats;
mod stop;
mod working_set;

pub mod encoding;

pub use budget::MemoryBudget;
pub use engine::{Committed, EpochId, KeyedEngine};
pub use error::{EngineError, ErrorKind, Result};
#[cfg(any(test, feature = "seeded-defects"))]
pub use options::Defect;
pub use options::EngineOptions;
pub use resident::{Resident, SmallBytes};
pub use stats::Stats;
