//! What programs did, added up.

use std::fmt;
use std::ops::AddAssign;

macro_rules! counts {
    ($($name:ident: $label:literal,)*) => {
        /// Counts of one program, or of many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Report { $(pub $name: u64,)* }

        impl AddAssign for Report {
            fn add_assign(&mut self, other: Self) { $(self.$name += other.$name;)* }
        }

        impl fmt::Display for Report {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(writeln!(f, "  {:<28} {:>12}", $label, self.$name)?;)*
                Ok(())
            }
        }
    };
}

counts! {
    programs: "programs",
    restored_or_rescaled: "… with a restore or rescale",
    steps: "steps",
    operations: "state operations",
    checked_rows: "rows compared",
    evictions: "evictions",
    store_reads: "store reads (keys)",
    store_scans: "store scans (pages)",
    flushed_rows: "rows flushed",
    displaced_values: "values displaced",
    writer_waits: "writer waits",
    commits: "commits of a subtask",
    failed_commits: "… failed",
    most_in_flight: "epochs in flight, added up",
    aborts: "aborts",
    crashes: "crashes",
    zombie_writes: "writes of zombies",
    orphans: "orphans of zombies",
    restores: "restores",
    earlier_restores: "… at an earlier version",
    rescales: "… rescaled",
    forks: "… forked",
    expired_rows: "expired rows found dropped",
    releases: "checkpoints released",
    faults: "faults injected",
    failovers: "failovers after a fault",
}
