//! Draws the steps of a program and runs them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::runtime::Handle;
use weir_engine::{Defect, MemoryBudget};
use weir_store::faulty::{Chance, Fault, Faults, FaultyStores, Operation};
use weir_store::memory::MemoryStores;
use weir_store::{ErrorKind, Stores};
use weir_store_fluss::{FlussConfig, FlussStores};
use weir_store_slatedb::{BlockCache, CompactionPolicy, SlateConfig, SlateStores};

use crate::job::{
    Checkpoint, Job, Outcome, Pending, Shared, Size, Subtask, Trouble, complete, is_injected, release, verify_version,
};
use crate::report::Report;
use crate::rows;
use crate::stale::StaleStores;
use crate::wrong;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    Memory,
    Slatedb,
    /// A real cluster, by its bootstrap servers.
    Fluss(&'static str),
}

impl Store {
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Slatedb => "slatedb",
            Self::Fluss(_) => "fluss",
        }
    }
}

/// What is wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeded {
    Engine(Defect),
    StaleClone,
}

#[derive(Clone, Debug)]
pub struct Program {
    pub seed: u64,
    pub steps: u64,
    pub store: Store,
    pub seeded: Option<Seeded>,
    pub trace: bool,
}

/// A program that found something.
#[derive(Debug)]
pub struct Failure {
    /// The step that failed; `None` for what the end of the program checks.
    pub step: Option<u64>,
    pub text: String,
}

const LEASES: usize = 4;
const EPOCHS: usize = 8;
const JOBS: usize = 3;
/// How long deletions that go on by themselves may take.
const SETTLE: Duration = Duration::from_secs(10);
/// How long until what zombies left behind is taken for orphans.
const ORPHANED: Duration = Duration::from_secs(2);

/// An attempt that goes on although its job was restored elsewhere.
struct Zombie {
    thread: JoinHandle<(Vec<Subtask>, u64)>,
    stop: Arc<AtomicBool>,
}

struct World {
    program: Program,
    shared: Arc<Shared>,
    faults: Arc<Faults>,
    /// Faults are injected in this program.
    disturbed: bool,
    jobs: Vec<Job>,
    zombies: Vec<Zombie>,
    /// Checkpoints that nothing but their user holds.
    retained: Vec<Checkpoint>,
    forks: u64,
    report: Report,
}

/// The generator of a step: independent of how earlier steps went.
fn generator(seed: u64, step: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step.wrapping_mul(0xd1b5_4a32_d192_ed03))
}

impl Program {
    /// Runs the program on `runtime`, from a thread that is not its own.
    pub fn run(&self, runtime: &Handle) -> Result<Report, Failure> {
        let mut rng = generator(self.seed, u64::MAX);
        let place = Place::new(self, runtime);
        let inner = place.stores();
        let faults = Faults::new(self.seed);
        let mut stores: Arc<dyn Stores> = Arc::new(FaultyStores::new(inner, faults.clone()));
        if self.seeded == Some(Seeded::StaleClone) {
            stores = Arc::new(StaleStores::new(stores));
        }
        let size = Size::draw(&mut rng);
        let disturbed = rng.random_bool(0.4);
        let slow = rng.random_bool(0.5);
        if slow {
            // The task gets ahead of its flushes.
            for operation in [Operation::Write, Operation::BeginCommit, Operation::AwaitCommit] {
                let fault = Fault::Delay(Duration::from_micros(rng.random_range(500..3000)));
                let probability = match size.flush_batch_rows {
                    ..64 => 0.03,
                    _ if operation == Operation::Write && size.max_dirty_bytes > 1024 => 0.9,
                    _ => 0.4,
                };
                faults.chance(Chance { operation, probability, fault });
                faults.chance(Chance { operation, probability: 0.3, fault: Fault::Yield(20) });
            }
        }
        if self.trace {
            eprintln!("{size:?} disturbed: {disturbed}, slow: {slow}");
        }
        let shared = Arc::new(Shared {
            stores,
            budget: MemoryBudget::new(size.budget_bytes),
            runtime: runtime.clone(),
            size,
            defect: match self.seeded {
                Some(Seeded::Engine(defect)) => Some(defect),
                _ => None,
            },
            numbers: AtomicU64::new(1),
            clock: AtomicI64::new(1_000),
            crashed: Mutex::default(),
        });
        let mut world = World {
            program: self.clone(),
            shared,
            faults,
            disturbed,
            jobs: Vec::new(),
            zombies: Vec::new(),
            retained: Vec::new(),
            forks: 0,
            report: Report { programs: 1, ..Report::default() },
        };
        let mut at = Some(0);
        let mut outcome = world.begin(&mut rng);
        for step in 0..self.steps {
            if outcome.is_err() {
                break;
            }
            at = Some(step);
            world.report.steps += 1;
            let mut rng = generator(self.seed, step);
            outcome = world.step(step, &mut rng);
        }
        if outcome.is_ok() {
            at = None;
            outcome = world.end(&mut rng);
        }
        let mut outcome = outcome.and_then(|()| world.bury());
        // Also after a failure, so that nothing of this program runs beside the next.
        for job in &mut world.jobs {
            job.stop(&world.shared, false, &mut world.report);
        }
        if outcome.is_err() {
            let _ = world.bury();
        }
        if outcome.is_ok() {
            outcome = world.is_gone(&place);
        }
        world.report.faults += Operation::ALL.iter().map(|operation| world.faults.injected(*operation)).sum::<u64>();
        let report = &mut world.report;
        report.restored_or_rescaled = u64::from(report.restores > 0);
        match outcome {
            Ok(()) => Ok(world.report),
            Err(Trouble::Wrong(text)) => Err(Failure { step: at, text }),
            Err(Trouble::Refused(error)) => Err(Failure { step: at, text: format!("unexpected error: {error:?}") }),
        }
    }
}

trait AllOperations {
    const ALL: &'static [Operation];
}

impl AllOperations for Operation {
    const ALL: &'static [Operation] = &[
        Operation::Open,
        Operation::GetMany,
        Operation::Scan,
        Operation::Write,
        Operation::BeginCommit,
        Operation::AwaitCommit,
    ];
}

/// Where a program's rows are, and what is left of them.
enum Place {
    Memory(MemoryStores),
    Slatedb(tempfile::TempDir, SlateStores),
    Fluss(FlussStores),
}

impl Place {
    fn new(program: &Program, runtime: &Handle) -> Self {
        match program.store {
            Store::Memory => Self::Memory(MemoryStores::new()),
            Store::Slatedb => {
                let directory = scratch_directory();
                let stores = slate_stores(directory.path(), runtime);
                Self::Slatedb(directory, stores)
            }
            Store::Fluss(bootstrap) => Self::Fluss(fluss_stores(bootstrap, program.seed)),
        }
    }

    fn stores(&self) -> Arc<dyn Stores> {
        match self {
            Self::Memory(stores) => Arc::new(stores.clone()),
            Self::Slatedb(_, stores) => Arc::new(stores.clone()),
            Self::Fluss(stores) => Arc::new(stores.clone()),
        }
    }

    fn left(&self, runtime: &Handle) -> Outcome<Vec<String>> {
        Ok(match self {
            Self::Memory(stores) => stores.branches().iter().map(ToString::to_string).collect(),
            Self::Slatedb(directory, _) => files(directory.path()),
            Self::Fluss(stores) => runtime.block_on(stores.branches()).map_err(Trouble::Refused)?,
        })
    }
}

/// In a database of its own.
fn fluss_stores(bootstrap: &str, seed: u64) -> FlussStores {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let database = format!("sim-{}-{seed}-{number}", std::process::id());
    let config = FlussConfig {
        buckets: 1 + (seed % 3) as i32,
        // Few, so that what is forgotten has to be read again.
        remembered_keys: if seed.is_multiple_of(2) { 16 } else { 1 << 20 },
        timeout: Duration::from_secs(120),
        ..FlussConfig::new(bootstrap, database)
    };
    FlussStores::new(config)
}

/// In memory where there is such a file system.
fn scratch_directory() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    let directory = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() };
    directory.expect("a temporary directory can be made")
}

fn slate_stores(directory: &Path, runtime: &Handle) -> SlateStores {
    let _entered = runtime.enter();
    let config = SlateConfig {
        write_buffer_bytes: 64 << 10,
        block_cache: BlockCache::new(1 << 20),
        gc_min_age: Duration::from_secs(3),
        store_timeout: Duration::from_secs(20),
        compaction_poll: Duration::from_millis(50),
        compaction: CompactionPolicy { l0_trigger: 2, idle: Duration::from_millis(200), ..CompactionPolicy::default() },
        fsync: false,
        ..SlateConfig::default()
    };
    SlateStores::new(&format!("file://{}", directory.display()), config).expect("a file URL of an absolute path")
}

impl World {
    fn trace(&self, text: impl FnOnce() -> String) {
        if self.program.trace {
            eprintln!("{}", text());
        }
    }

    fn begin(&mut self, rng: &mut SmallRng) -> Outcome {
        let mut job = Job::new("job-0".to_owned());
        job.start(&self.shared, None, rng.random_range(1..=3))?;
        self.jobs.push(job);
        Ok(())
    }

    fn step(&mut self, step: u64, rng: &mut SmallRng) -> Outcome {
        let at = rng.random_range(0..self.jobs.len());
        let kind = rng.random_range(0..100);
        let outcome = match kind {
            0..66 => {
                let count = rng.random_range(1..24);
                self.trace(|| format!("{step}: {count} operations of {}", self.jobs[at].name));
                self.operate(at, count, rng)
            }
            66..76 if self.jobs[at].pending.len() < EPOCHS => {
                let job = &mut self.jobs[at];
                let outcome = job.freeze();
                self.report.most_in_flight += job.pending.len() as u64;
                self.trace(|| {
                    format!("{step}: freeze {} of {}", self.jobs[at].next_checkpoint - 1, self.jobs[at].name)
                });
                outcome
            }
            66..85 if !self.jobs[at].pending.is_empty() => {
                let which = rng.random_range(0..self.jobs[at].pending.len());
                self.trace(|| format!("{step}: await {} of {}", self.jobs[at].pending[which].id, self.jobs[at].name));
                self.complete(at, which, rng)
            }
            85..88 if !self.jobs[at].pending.is_empty() => {
                let which = rng.random_range(0..self.jobs[at].pending.len());
                let pending = self.jobs[at].pending.remove(which);
                self.trace(|| format!("{step}: abort {} of {}", pending.id, self.jobs[at].name));
                self.report.aborts += 1;
                pending.abort();
                Ok(())
            }
            88..92 => self.restart(step, at, false, rng),
            92..94 => self.restart(step, at, true, rng),
            94..96 => self.fork(step, at, rng),
            96..98 if self.jobs[at].completed.len() > 1 => {
                let which = rng.random_range(0..self.jobs[at].completed.len() - 1);
                self.trace(|| {
                    format!("{step}: release {} of {}", self.jobs[at].completed[which].id, self.jobs[at].name)
                });
                self.release(at, which)
            }
            98.. if self.disturbed => {
                self.trace(|| format!("{step}: faults"));
                self.disturb(rng);
                Ok(())
            }
            _ => self.operate(at, 1, rng),
        };
        self.or_failover(step, at, outcome, rng)
    }

    /// Restarts the job after an error that was injected, until none is.
    fn or_failover(&mut self, step: u64, at: usize, mut outcome: Outcome, rng: &mut SmallRng) -> Outcome {
        loop {
            match outcome {
                Err(trouble) if self.disturbed && is_injected(&trouble) => {
                    self.trace(|| format!("{step}: failover of {}: {trouble:?}", self.jobs[at].name));
                    self.report.failovers += 1;
                    outcome = self.restart(step, at, false, rng);
                }
                outcome => return outcome,
            }
        }
    }

    fn operate(&mut self, at: usize, count: usize, rng: &mut SmallRng) -> Outcome {
        let Some(job) = self.jobs.get_mut(at) else { return Ok(()) };
        for _ in 0..count {
            let subtask = rng.random_range(0..job.subtasks.len());
            job.subtasks[subtask].operate(&self.shared, rng, &mut self.report)?;
        }
        Ok(())
    }

    /// Waits for a checkpoint, sometimes on another thread while the task goes on.
    fn complete(&mut self, at: usize, which: usize, rng: &mut SmallRng) -> Outcome {
        let pending = self.jobs[at].pending.remove(which);
        let id = pending.id;
        let completed = if rng.random_bool(0.5) {
            let shared = self.shared.clone();
            let waiting = std::thread::spawn(move || {
                let mut report = Report::default();
                (complete(&shared, pending, &mut report), report)
            });
            let operated = self.operate(at, rng.random_range(1..30), rng);
            let (completed, report) = waiting.join().expect("waiting for a commit panicked");
            self.report += report;
            if let Err(trouble) = operated {
                // The job fails while its checkpoint completes: the JobManager may have it all the same.
                if let Ok(checkpoint) = completed {
                    self.add(at, checkpoint)?;
                }
                return Err(trouble);
            }
            completed
        } else {
            complete(&self.shared, pending, &mut self.report)
        };
        let checkpoint = match completed {
            Ok(checkpoint) => checkpoint,
            Err(trouble) if self.disturbed && is_injected(&trouble) => {
                self.trace(|| format!("   checkpoint {id} failed: {trouble:?}"));
                return Ok(());
            }
            Err(trouble) => return Err(trouble),
        };
        for subtask in &self.jobs[at].subtasks {
            subtask.engine.checkpoint_complete(id);
        }
        if rng.random_bool(0.3) {
            for part in &checkpoint.parts {
                retrying(self.disturbed, || verify_version(&self.shared, part, &mut self.report))?;
            }
        }
        self.add(at, checkpoint)
    }

    fn add(&mut self, at: usize, checkpoint: Checkpoint) -> Outcome {
        let job = &mut self.jobs[at];
        job.completed.push(checkpoint);
        job.completed.sort_by_key(|checkpoint| checkpoint.id);
        if job.completed.len() > LEASES {
            return self.release(at, 0);
        }
        Ok(())
    }

    fn release(&mut self, at: usize, which: usize) -> Outcome {
        let checkpoint = self.jobs[at].completed.remove(which);
        self.report.releases += 1;
        for part in &checkpoint.parts {
            release(&self.shared, &part.version)?;
        }
        Ok(())
    }

    /// Ends a job and restores it: from its latest checkpoint or an earlier one, perhaps at another parallelism. Its
    /// old attempts close, crash, or go on as zombies.
    fn restart(&mut self, step: u64, at: usize, rescale: bool, rng: &mut SmallRng) -> Outcome {
        let crash = rng.random_bool(0.6);
        let zombie = crash && rng.random_bool(0.4);
        let cancel = rng.random_bool(0.3);
        let earlier = rng.random_bool(0.25);
        let redeployed = rng.random_bool(0.3);
        let job = &mut self.jobs[at];
        job.abandon_pending(redeployed);
        let before = job.subtasks.len() as u16;
        if cancel {
            for subtask in &job.subtasks {
                subtask.engine.cancel();
            }
        }
        if zombie {
            let subtasks = std::mem::take(&mut job.subtasks);
            let pending = std::mem::take(&mut job.pending);
            self.zombies.push(Zombie::spawn(self.shared.clone(), subtasks, pending, job.next_checkpoint, rng.random()));
        } else {
            job.stop(&self.shared, crash, &mut self.report);
        }
        self.report.crashes += u64::from(crash);
        let parallelism = if rescale { before % 3 + 1 } else { before };
        self.report.rescales += u64::from(rescale);
        // Restoring an earlier checkpoint gives up the later ones of the same graph. The user may still hold those of
        // another, and must be able to read them.
        if earlier && job.completed.len() > 1 {
            self.report.earlier_restores += 1;
            let later = job.completed.split_off(rng.random_range(1..job.completed.len()));
            let graph = job.graph;
            self.retained.extend(later.into_iter().filter(|checkpoint| redeployed || checkpoint.graph != graph));
        }
        job.graph += u64::from(redeployed);
        let checkpoint = job.completed.last().or(job.origin.as_ref()).cloned();
        self.report.restores += u64::from(checkpoint.is_some());
        self.trace(|| {
            format!(
                "{step}: restart {} at {:?}, parallelism {before} -> {parallelism}, crash: {crash}, zombie: {zombie}, redeployed: {redeployed}",
                self.jobs[at].name,
                checkpoint.as_ref().map(|checkpoint| checkpoint.id)
            )
        });
        match self.start(at, checkpoint.as_ref(), parallelism) {
            // The fork has nothing of its own yet, and the other job no longer holds what it came from.
            Err(Trouble::Refused(error))
                if error.kind() == ErrorKind::MissingVersion && self.jobs[at].completed.is_empty() =>
            {
                self.jobs[at].origin = None;
                self.start(at, None, parallelism)?;
            }
            outcome => outcome?,
        }
        if rng.random_bool(0.4) {
            self.verify(at, rng)?;
        }
        Ok(())
    }

    /// Starts a job; what an injected fault stops is tried again, as Flink does.
    fn start(&mut self, at: usize, checkpoint: Option<&Checkpoint>, parallelism: u16) -> Outcome {
        for _ in 0..20 {
            let outcome = self.jobs[at].start(&self.shared, checkpoint, parallelism);
            match outcome {
                Err(trouble) if self.disturbed && is_injected(&trouble) => {
                    self.jobs[at].stop(&self.shared, false, &mut self.report);
                }
                outcome => return outcome,
            }
        }
        wrong!("{} could not be started in 20 attempts", self.jobs[at].name)
    }

    /// Starts another job from a checkpoint that is held; both go on.
    fn fork(&mut self, step: u64, at: usize, rng: &mut SmallRng) -> Outcome {
        if self.jobs.len() >= JOBS || self.jobs[at].completed.is_empty() {
            return self.operate(at, 1, rng);
        }
        let which = rng.random_range(0..self.jobs[at].completed.len());
        let checkpoint = self.jobs[at].completed[which].clone();
        let parallelism = rng.random_range(1..=3);
        self.forks += 1;
        self.report.forks += 1;
        self.report.restores += 1;
        self.report.rescales += u64::from(usize::from(parallelism) != checkpoint.parts.len());
        let mut job = Job::new(format!("job-{}", self.forks));
        self.trace(|| format!("{step}: fork {} of {} at {}", job.name, self.jobs[at].name, checkpoint.id));
        job.origin = Some(checkpoint.clone());
        self.jobs.push(job);
        let new = self.jobs.len() - 1;
        self.start(new, Some(&checkpoint), parallelism)?;
        if rng.random_bool(0.4) {
            let verified = self.verify(new, rng);
            return self.or_failover(step, new, verified, rng);
        }
        Ok(())
    }

    fn verify(&mut self, at: usize, rng: &mut SmallRng) -> Outcome {
        for subtask in &mut self.jobs[at].subtasks {
            subtask.verify(&self.shared, rng, &mut self.report)?;
        }
        Ok(())
    }

    fn disturb(&mut self, rng: &mut SmallRng) {
        for _ in 0..rng.random_range(1..4) {
            let operation = Operation::ALL[rng.random_range(0..Operation::ALL.len())];
            let fault = match rng.random_range(0..6) {
                0 | 1 => Fault::Fail(ErrorKind::Unavailable),
                2 => Fault::LoseAnswer(ErrorKind::Unavailable),
                3 => Fault::Tear(ErrorKind::Unavailable),
                4 => Fault::Yield(rng.random_range(1..20)),
                _ => Fault::Delay(Duration::from_micros(rng.random_range(50..3000))),
            };
            // An opening whose answer is lost leaves an attempt that nobody knows of, until a successor reaps it.
            let fault = match (operation, fault) {
                (Operation::Open, Fault::LoseAnswer(kind)) => Fault::Fail(kind),
                (_, fault) => fault,
            };
            self.faults.next(operation, rng.random_range(1..4), fault);
        }
    }

    /// The end of a program: every live row, a last checkpoint of each job and a restore from it.
    fn end(&mut self, rng: &mut SmallRng) -> Outcome {
        self.trace(|| "end".to_owned());
        self.faults.clear();
        for checkpoint in std::mem::take(&mut self.retained) {
            for part in &checkpoint.parts {
                verify_version(&self.shared, part, &mut self.report)?;
                release(&self.shared, &part.version)?;
            }
        }
        for at in 0..self.jobs.len() {
            while !self.jobs[at].pending.is_empty() {
                let which = rng.random_range(0..self.jobs[at].pending.len());
                self.complete(at, which, rng)?;
            }
            self.verify(at, rng)?;
            self.jobs[at].freeze()?;
            // Nothing is injected any more and nothing is left to fail.
            self.disturbed = false;
            self.complete(at, 0, rng)?;
            self.disturbed = true;
            let checkpoint = self.jobs[at].completed.last().cloned();
            for part in checkpoint.iter().flat_map(|checkpoint| &checkpoint.parts) {
                verify_version(&self.shared, part, &mut self.report)?;
            }
            let crash = rng.random_bool(0.5);
            self.jobs[at].stop(&self.shared, crash, &mut self.report);
            self.start(at, checkpoint.as_ref(), rng.random_range(1..=3))?;
            self.report.restores += 1;
            self.verify(at, rng)?;
        }
        Ok(())
    }

    /// Ends zombies and waits for them.
    fn bury(&mut self) -> Outcome {
        for zombie in self.zombies.drain(..) {
            zombie.stop.store(true, Ordering::SeqCst);
            let Ok((subtasks, writes)) = zombie.thread.join() else { wrong!("a zombie panicked") };
            self.report.zombie_writes += writes;
            for subtask in subtasks {
                subtask.stop(&self.shared, true, &mut self.report);
            }
        }
        Ok(())
    }

    /// After every engine is closed: with the last lease released, memory and store are empty.
    fn is_gone(&mut self, place: &Place) -> Outcome {
        for at in 0..self.jobs.len() {
            while !self.jobs[at].completed.is_empty() {
                self.release(at, 0)?;
            }
        }
        if self.shared.budget.used() != 0 {
            wrong!("{} bytes of the memory budget are not given back", self.shared.budget.used());
        }
        let crashed = std::mem::take(&mut *self.shared.crashed.lock());
        if !matches!(place, Place::Memory(_)) {
            // Nothing but closing stops the background work of a store in this process; left alone it would write to a
            // branch that is gone.
            for (_, store) in &crashed {
                self.shared.runtime.block_on(store.close()).map_err(Trouble::Refused)?;
            }
        }
        let until = Instant::now() + SETTLE;
        loop {
            let left = place.left(&self.shared.runtime)?;
            if left.is_empty() {
                return Ok(());
            }
            // A zombie on SlateDB can bring its branch back after a successor removed it: that is left to the sweep.
            let orphaned = |path: &String| crashed.iter().any(|(branch, _)| path.contains(branch.path()));
            let on_slatedb = matches!(place, Place::Slatedb(..));
            if on_slatedb && Instant::now() + SETTLE > until + ORPHANED && left.iter().any(orphaned) {
                self.report.orphans += 1;
                return Ok(());
            }
            if Instant::now() > until {
                wrong!("left in the store although nothing needs it: {:?}", &left[..left.len().min(8)]);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Tries again what an injected fault stops.
fn retrying(disturbed: bool, mut work: impl FnMut() -> Outcome) -> Outcome {
    for _ in 0..20 {
        match work() {
            Err(trouble) if disturbed && is_injected(&trouble) => {}
            outcome => return outcome,
        }
    }
    work()
}

fn files(directory: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let Ok(entries) = std::fs::read_dir(directory) else { return all };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() { all.extend(files(&path)) } else { all.push(path.display().to_string()) }
    }
    all
}

impl Zombie {
    /// Writes, reads, freezes and waits for commits until it is stopped or refused for good; what it commits is
    /// discarded, as the JobManager does with an acknowledgement that comes too late.
    fn spawn(shared: Arc<Shared>, subtasks: Vec<Subtask>, pending: Vec<Pending>, checkpoint: u64, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut writes = 0;
            let mut refused = 0;
            for round in 0..60 {
                if stopped.load(Ordering::SeqCst) || refused > 3 {
                    break;
                }
                let subtask = &subtasks[rng.random_range(0..subtasks.len())];
                let key_group = rng.random_range(subtask.range.first..=subtask.range.last);
                let key = rows::key(key_group, rows::VALUES[0], rng.random_range(0..shared.size.keys));
                let outcome = match rng.random_range(0..10) {
                    0..6 => subtask.engine.put(&key, b"written by a zombie"),
                    6 => subtask.engine.delete(&key),
                    7 | 8 => subtask.engine.get(&key, |_| ()),
                    _ => subtask.engine.freeze(checkpoint + round).and_then(|epoch| {
                        let committed = subtask.engine.await_commit(epoch)?;
                        shared.runtime.block_on(shared.stores.release(&committed.commit.version))
                    }),
                };
                match outcome {
                    Ok(()) => writes += 1,
                    Err(_) => refused += 1,
                }
                std::thread::sleep(Duration::from_micros(rng.random_range(0..500)));
            }
            // What it would still acknowledge, the JobManager discards.
            for pending in pending {
                pending.abort();
            }
            (subtasks, writes)
        });
        Self { thread, stop }
    }
}
