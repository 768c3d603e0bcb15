//! Random programs of state operations, checkpoints, crashes and rescales, run on the real engine and a real store, and
//! checked against an ordered map.
//!
//! A program is its seed: step `n` draws from a generator of its own, made of the seed and `n`, so that a program cut
//! short is a prefix of itself. Threads and their timing are real, so a failure that needs a race may take several runs
//! of one seed.
//!
//! * [`rows`]: the keys that programs use, and the oracle.
//! * [`attempts`]: a decorator of any store that lets an attempt crash, and knows what it committed.
//! * [`stale`]: a store that is wrong on purpose.
//! * [`job`]: one job: subtasks, checkpoints, restores.
//! * [`program`]: draws and runs the steps.
//! * [`report`]: what programs did, added up.

pub mod attempts;
pub mod job;
pub mod program;
pub mod report;
pub mod rows;
pub mod stale;
