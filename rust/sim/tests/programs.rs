//! A sample of what the binary `weir-sim` runs in full: some programs on each store, and every seeded defect.

use weir_engine::Defect;
use weir_sim::program::{Program, Seeded, Store};
use weir_sim::report::Report;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn run(seeds: std::ops::Range<u64>, steps: u64, store: Store) -> Report {
    let runtime = runtime();
    let mut report = Report::default();
    for seed in seeds {
        let program = Program { seed, steps, store, seeded: None, trace: false };
        match program.run(runtime.handle()) {
            Ok(ran) => report += ran,
            Err(failure) => panic!("seed {seed} on {store:?}, steps {steps}: {failure:?}"),
        }
    }
    report
}

#[test]
fn programs_on_the_memory_store_agree_with_the_oracle() {
    let report = run(10_000..10_040, 120, Store::Memory);
    assert!(report.evictions > 0 && report.store_reads > 0 && report.rescales > 0, "{report}");
}

#[test]
fn programs_on_slatedb_agree_with_the_oracle() {
    let report = run(10_000..10_006, 60, Store::Slatedb);
    assert!(report.commits > 0 && report.restores > 0, "{report}");
}

#[test]
fn seeded_defects_are_found() {
    let runtime = runtime();
    for seeded in [
        Seeded::Engine(Defect::FreezeCopiesNothing),
        Seeded::Engine(Defect::DroppedTombstone),
        Seeded::Engine(Defect::FlushOutOfEpochOrder),
        Seeded::StaleClone,
    ] {
        let found = (1..300).any(|seed| {
            let program = Program { seed, steps: 120, store: Store::Memory, seeded: Some(seeded), trace: false };
            let handle = runtime.handle().clone();
            std::panic::catch_unwind(move || program.run(&handle).is_err()).unwrap_or(true)
        });
        assert!(found, "{seeded:?} was not found");
    }
}
