//! `weir-sim`: runs programs, or shows that seeded defects are found. `weir-sim --help` says how.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weir_engine::Defect;
use weir_fluss_cluster::Cluster;
use weir_sim::program::{Failure, Program, Seeded, Store};
use weir_sim::report::Report;

const HELP: &str = "\
weir-sim: random programs of state operations, crashes and rescales, checked against an ordered map

  weir-sim                        2,000 programs, 250 of them on SlateDB
    --programs N --slatedb N      how many, and how many of them on SlateDB
    --first SEED                  the first seed (default 1)
  weir-sim --fluss N              so many programs, on a real Fluss cluster that is started for them
  weir-sim --seed N               one program
    --steps N                     cut short after so many steps
    --store memory|slatedb|fluss
    --repeat N                    run it so many times: threads are real
    --trace                       print the steps
  weir-sim --defects              runs with each seeded defect; fails if one is not found
    --programs N                  how many programs each may take (default 300)
  --jobs N                        programs side by side (default 2)
  --defect NAME                   with --seed: FreezeCopiesNothing, DroppedTombstone, FlushOutOfEpochOrder, StaleClone
";

const STEPS: u64 = 120;
const SLATEDB_STEPS: u64 = 60;
const FLUSS_STEPS: u64 = 60;
const STUCK: Duration = Duration::from_secs(120);
/// On Fluss, where a flush of one row is a request.
const STUCK_ON_FLUSS: Duration = Duration::from_secs(600);
const DEFECTS: [(&str, Seeded); 4] = [
    ("FreezeCopiesNothing", Seeded::Engine(Defect::FreezeCopiesNothing)),
    ("DroppedTombstone", Seeded::Engine(Defect::DroppedTombstone)),
    ("FlushOutOfEpochOrder", Seeded::Engine(Defect::FlushOutOfEpochOrder)),
    ("StaleClone", Seeded::StaleClone),
];

struct Arguments {
    seed: Option<u64>,
    steps: Option<u64>,
    store: Store,
    repeat: u64,
    trace: bool,
    defects: bool,
    defect: Option<Seeded>,
    programs: Option<u64>,
    slatedb: Option<u64>,
    fluss: Option<u64>,
    first: u64,
    jobs: usize,
}

fn arguments() -> Result<Arguments, String> {
    let mut arguments = Arguments {
        seed: None,
        steps: None,
        store: Store::Memory,
        repeat: 1,
        trace: false,
        defects: false,
        defect: None,
        programs: None,
        slatedb: None,
        fluss: None,
        first: 1,
        jobs: 2,
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let mut value = || given.next().ok_or_else(|| format!("{name} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("'{text}' is not a number"));
        match name.as_str() {
            "--seed" => arguments.seed = Some(number(value()?)?),
            "--steps" => arguments.steps = Some(number(value()?)?),
            "--repeat" => arguments.repeat = number(value()?)?,
            "--programs" => arguments.programs = Some(number(value()?)?),
            "--slatedb" => arguments.slatedb = Some(number(value()?)?),
            "--fluss" => arguments.fluss = Some(number(value()?)?),
            "--first" => arguments.first = number(value()?)?,
            "--jobs" => arguments.jobs = number(value()?)?.max(1) as usize,
            "--trace" => arguments.trace = true,
            "--defects" => arguments.defects = true,
            "--store" => {
                arguments.store = match value()?.as_str() {
                    "memory" => Store::Memory,
                    "slatedb" => Store::Slatedb,
                    // Its cluster is started later.
                    "fluss" => Store::Fluss(""),
                    other => return Err(format!("no store '{other}'")),
                }
            }
            "--defect" => {
                let wanted = value()?;
                let found = DEFECTS.iter().find(|(name, _)| *name == wanted);
                arguments.defect = Some(found.ok_or_else(|| format!("no defect '{wanted}'"))?.1);
            }
            "--help" | "-h" => return Err(String::new()),
            other => return Err(format!("unknown argument '{other}'")),
        }
    }
    Ok(arguments)
}

fn default_steps(store: Store) -> u64 {
    match store {
        Store::Memory => STEPS,
        Store::Slatedb => SLATEDB_STEPS,
        Store::Fluss(_) => FLUSS_STEPS,
    }
}

fn replay(program: &Program) -> String {
    let defect = program.seeded.map_or(String::new(), |seeded| {
        let name = DEFECTS.iter().find(|(_, known)| *known == seeded).map_or("?", |(name, _)| name);
        format!(" --defect {name}")
    });
    format!(
        "cargo run --release -p weir-sim -- --seed {} --steps {} --store {}{defect}",
        program.seed,
        program.steps,
        program.store.name()
    )
}

fn main() -> ExitCode {
    let mut arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("{text}\n{HELP}");
            return ExitCode::from(2);
        }
    };
    // Ends with the process.
    let cluster = (arguments.fluss.is_some() || matches!(arguments.store, Store::Fluss(_))).then(Cluster::shared);
    if let Some(cluster) = &cluster {
        arguments.store = Store::Fluss(cluster.bootstrap().to_owned().leak());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("weir-sim-store")
        .enable_all()
        .build()
        .expect("a runtime can be started");
    let found = if arguments.defects {
        defects(&arguments, runtime.handle())
    } else if let Some(seed) = arguments.seed {
        one(&arguments, seed, runtime.handle())
    } else {
        many(&arguments, runtime.handle())
    };
    runtime.shutdown_timeout(Duration::from_secs(5));
    if found { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn one(arguments: &Arguments, seed: u64, runtime: &tokio::runtime::Handle) -> bool {
    let store = arguments.store;
    let program = Program {
        seed,
        steps: arguments.steps.unwrap_or(default_steps(store)),
        store,
        seeded: arguments.defect,
        trace: arguments.trace,
    };
    for round in 1..=arguments.repeat {
        match run(&program, runtime) {
            Ok(report) if round == arguments.repeat => print!("ok\n{report}"),
            Ok(_) => {}
            Err(failure) => {
                show(&program, &failure);
                return true;
            }
        }
    }
    false
}

/// A panic of the program is a failure like any other.
fn run(program: &Program, runtime: &tokio::runtime::Handle) -> Result<Report, Failure> {
    std::panic::catch_unwind(|| program.run(runtime)).unwrap_or_else(|payload| {
        let text = payload
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        Err(Failure { step: None, text: format!("panic: {text}") })
    })
}

fn show(program: &Program, failure: &Failure) {
    let step = failure.step.map_or("the end".to_owned(), |step| format!("step {step}"));
    eprintln!("FAILED seed {} on {} at {step}: {}", program.seed, program.store.name(), failure.text);
    eprintln!("  replay: {}", replay(program));
}

/// The shortest program that is still seen to fail, of those that are cut short.
fn shrink(program: &Program, failure: &Failure, runtime: &tokio::runtime::Handle) -> (Program, Option<Failure>) {
    let mut shortest = program.clone();
    let mut last = None;
    if let Some(step) = failure.step {
        shortest.steps = step + 1;
    }
    let until = Instant::now() + Duration::from_secs(10);
    let (mut passes, mut fails) = (0, shortest.steps);
    while passes + 1 < fails && Instant::now() < until {
        let middle = (passes + fails) / 2;
        let shorter = Program { steps: middle, ..shortest.clone() };
        match run(&shorter, runtime) {
            Ok(_) => passes = middle,
            Err(failure) => (fails, last) = (middle, Some(failure)),
        }
    }
    shortest.steps = fails;
    (shortest, last)
}

/// Runs the programs of `queue` on several threads; those that fail, and what the others did.
fn side_by_side(
    queue: VecDeque<Program>,
    jobs: usize,
    runtime: &tokio::runtime::Handle,
    enough: usize,
) -> (Vec<(Program, Failure)>, Report) {
    let queue = Mutex::new(queue);
    let results = Mutex::new((Vec::new(), Report::default()));
    let running: Vec<Mutex<Option<(Instant, Program)>>> = (0..jobs).map(|_| Mutex::new(None)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let workers: Vec<_> = running
            .iter()
            .map(|mine| {
                let (queue, results) = (&queue, &results);
                threads.spawn(move || {
                    loop {
                        if results.lock().0.len() >= enough {
                            return;
                        }
                        let Some(program) = queue.lock().pop_front() else { return };
                        *mine.lock() = Some((Instant::now(), program.clone()));
                        let outcome = run(&program, runtime);
                        *mine.lock() = None;
                        let mut results = results.lock();
                        match outcome {
                            Ok(report) => results.1 += report,
                            Err(failure) => {
                                if program.seeded.is_none() {
                                    show(&program, &failure);
                                }
                                results.0.push((program, failure));
                            }
                        }
                    }
                })
            })
            .collect();
        let (over, running) = (&over, &running);
        threads.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                for slot in running {
                    if let Some((since, program)) = &*slot.lock()
                        && let limit = if matches!(program.store, Store::Fluss(_)) { STUCK_ON_FLUSS } else { STUCK }
                        && since.elapsed() > limit
                    {
                        eprintln!("STUCK seed {}: no end after {limit:?}\n  replay: {}", program.seed, replay(program));
                        std::process::exit(3);
                    }
                }
            }
        });
        for worker in workers {
            worker.join().expect("workers catch panics");
        }
        over.store(true, Ordering::Relaxed);
    });
    results.into_inner()
}

fn many(arguments: &Arguments, runtime: &tokio::runtime::Handle) -> bool {
    let programs = arguments.fluss.or(arguments.programs).unwrap_or(2000);
    let slatedb = arguments.slatedb.unwrap_or(programs / 8).min(programs);
    let started = Instant::now();
    // Spread evenly, so that both kinds run side by side.
    let queue = (0..programs).map(|i| {
        let store = match arguments.store {
            on_fluss @ Store::Fluss(_) => on_fluss,
            _ if (i + 1) * slatedb / programs > i * slatedb / programs => Store::Slatedb,
            _ => Store::Memory,
        };
        let steps = arguments.steps.unwrap_or(default_steps(store));
        Program { seed: arguments.first + i, steps, store, seeded: None, trace: false }
    });
    let (failures, report) = side_by_side(queue.collect(), arguments.jobs, runtime, 10);
    for (program, failure) in failures.iter().take(3) {
        let (shortest, last) = shrink(program, failure, runtime);
        eprintln!("shrunk seed {}: {}", program.seed, last.as_ref().unwrap_or(failure).text);
        eprintln!("  replay: {}", replay(&shortest));
    }
    println!("{report}  {:<28} {:>12.1}", "seconds", started.elapsed().as_secs_f64());
    let mut found = !failures.is_empty();
    if found {
        eprintln!("{} programs failed", failures.len());
    } else {
        for (what, count, least) in [
            ("programs with a restore or rescale", report.restored_or_rescaled, programs / 2),
            ("evictions", report.evictions, 1),
            ("store reads", report.store_reads, 1),
        ] {
            if count < least {
                eprintln!("{count} {what}, expected {least} at least: the programs do not reach what they are for");
                found = true;
            }
        }
    }
    found
}

fn defects(arguments: &Arguments, runtime: &tokio::runtime::Handle) -> bool {
    let mut survived = false;
    let default_hook = std::panic::take_hook();
    // A defect may well end in a panic.
    std::panic::set_hook(Box::new(|_| {}));
    for (name, seeded) in DEFECTS {
        let programs = arguments.programs.unwrap_or(300);
        let queue = (0..programs).map(|i| Program {
            seed: arguments.first + i,
            steps: arguments.steps.unwrap_or(STEPS),
            store: Store::Memory,
            seeded: Some(seeded),
            trace: false,
        });
        let (failures, _) = side_by_side(queue.collect(), arguments.jobs, runtime, 1);
        match failures.first() {
            Some((program, failure)) => {
                println!("{name}: found by seed {}: {}", program.seed, failure.text);
                println!("  replay: {}", replay(program));
            }
            None => {
                println!("{name}: NOT FOUND in {programs} programs");
                survived = true;
            }
        }
    }
    std::panic::set_hook(default_hook);
    survived
}
