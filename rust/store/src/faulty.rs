//! A decorator that makes any store fail, wait or block on purpose: for tests of what uses a store.
//!
//! Deterministic: what happens to a call depends on its operation and on how many calls of that operation came before
//! it, through scripted [`Rule`]s or a seed; never on time or on what other operations do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    BranchName, ErrorKind, Expiry, KeyGroupRange, Page, PageLimit, PendingCommit, Result, Row, Source, StateReader,
    StateStore, StoreError, Stores, VersionRef,
};

/// The calls that can be made to misbehave. Each is counted on its own, over all stores of one [`FaultyStores`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Open,
    OpenReadOnly,
    Release,
    GetMany,
    Scan,
    Write,
    BeginCommit,
    /// Awaiting what `begin_commit` returned.
    AwaitCommit,
    Close,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Fails without reaching the store.
    Fail(ErrorKind),
    /// Reaches the store and is done there; the answer is lost. A commit is released again, as its contract demands.
    LoseAnswer(ErrorKind),
    /// Of a write, only the first half of the batch reaches the store; any other call fails as by `Fail`.
    Tear(ErrorKind),
    /// Reaches the store after a while. Needs a runtime with time.
    Delay(Duration),
    /// Yields to the executor so many times, then reaches the store.
    Yield(u32),
    /// Reaches the store when [`Faults::unblock`] is called for its operation.
    Block,
}

/// Applies `fault` to calls number `from..from + times` of `operation`, counted from 0.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub operation: Operation,
    pub from: u64,
    pub times: u64,
    pub fault: Fault,
}

/// Applies `fault` to each call of `operation` with `probability`, drawn from `seed` and the call's number.
#[derive(Clone, Copy, Debug)]
pub struct Chance {
    pub operation: Operation,
    pub probability: f64,
    pub fault: Fault,
}

/// The plan and its counters; shared by all stores of one [`FaultyStores`], and changed while they run.
pub struct Faults {
    seed: u64,
    state: Mutex<State>,
    /// Raised by `unblock`.
    gates: watch::Sender<HashMap<Operation, u64>>,
}

#[derive(Default)]
struct State {
    enabled: bool,
    rules: Vec<Rule>,
    chances: Vec<Chance>,
    calls: HashMap<Operation, u64>,
    injected: HashMap<Operation, u64>,
    blocked: HashMap<Operation, u64>,
}

impl Faults {
    /// No fault until some are added.
    pub fn new(seed: u64) -> Arc<Self> {
        let state = Mutex::new(State { enabled: true, ..State::default() });
        Arc::new(Self { seed, state, gates: watch::channel(HashMap::new()).0 })
    }

    pub fn rule(&self, rule: Rule) -> &Self {
        self.state.lock().rules.push(rule);
        self
    }

    /// The next call of `operation` meets `fault`, and the `times - 1` calls after it.
    pub fn next(&self, operation: Operation, times: u64, fault: Fault) -> &Self {
        let mut state = self.state.lock();
        let from = state.calls.get(&operation).copied().unwrap_or(0);
        state.rules.push(Rule { operation, from, times, fault });
        drop(state);
        self
    }

    pub fn chance(&self, chance: Chance) -> &Self {
        self.state.lock().chances.push(chance);
        self
    }

    /// Forgets rules and chances; the counters go on. What is blocked stays so.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.rules.clear();
        state.chances.clear();
    }

    /// Switches all faults off or on; calls are counted all the same.
    pub fn set_enabled(&self, enabled: bool) {
        self.state.lock().enabled = enabled;
    }

    /// Lets every call of `operation` go on that is blocked now.
    pub fn unblock(&self, operation: Operation) {
        self.gates.send_modify(|gates| *gates.entry(operation).or_default() += 1);
    }

    /// Calls of `operation` so far, faulty or not.
    pub fn calls(&self, operation: Operation) -> u64 {
        self.state.lock().calls.get(&operation).copied().unwrap_or(0)
    }

    /// Calls of `operation` that met a fault so far.
    pub fn injected(&self, operation: Operation) -> u64 {
        self.state.lock().injected.get(&operation).copied().unwrap_or(0)
    }

    /// Calls of `operation` that are blocked now.
    pub fn blocked(&self, operation: Operation) -> u64 {
        self.state.lock().blocked.get(&operation).copied().unwrap_or(0)
    }

    /// Counts a call and says what happens to it.
    fn draw(&self, operation: Operation) -> Option<Fault> {
        let mut state = self.state.lock();
        let calls = state.calls.entry(operation).or_default();
        let number = *calls;
        *calls += 1;
        if !state.enabled {
            return None;
        }
        let scripted = state
            .rules
            .iter()
            .find(|rule| {
                rule.operation == operation && (rule.from..rule.from.saturating_add(rule.times)).contains(&number)
            })
            .map(|rule| rule.fault);
        let drawn = || {
            state.chances.iter().enumerate().find_map(|(i, chance)| {
                let hash = mix(mix(self.seed ^ ((operation as u64) << 32) ^ ((i as u64) << 48)) ^ number);
                let unit = (hash >> 11) as f64 / (1u64 << 53) as f64;
                (chance.operation == operation && unit < chance.probability).then_some(chance.fault)
            })
        };
        let fault = scripted.or_else(drawn);
        if fault.is_some() {
            *state.injected.entry(operation).or_default() += 1;
        }
        fault
    }

    /// Counts the call and waits as its fault says; `Ok(Some)` is a fault for the caller to play out after the call.
    async fn before(&self, operation: Operation) -> Result<Option<Fault>> {
        let fault = self.draw(operation);
        match fault {
            Some(Fault::Fail(kind)) => return Err(injected(kind, operation)),
            Some(Fault::Tear(kind)) if operation != Operation::Write => return Err(injected(kind, operation)),
            Some(Fault::Delay(duration)) => tokio::time::sleep(duration).await,
            Some(Fault::Yield(times)) => {
                for _ in 0..times {
                    tokio::task::yield_now().await;
                }
            }
            Some(Fault::Block) => {
                let mut gates = self.gates.subscribe();
                let seen = gates.borrow().get(&operation).copied().unwrap_or(0);
                let _blocked = Blocked::new(self, operation);
                let open = |gates: &HashMap<Operation, u64>| gates.get(&operation).copied().unwrap_or(0) > seen;
                gates.wait_for(open).await.map_err(|_| injected(ErrorKind::Closed, operation))?;
            }
            _ => return Ok(fault),
        }
        Ok(None)
    }
}

/// Counts a blocked call, also when it is dropped.
struct Blocked<'a> {
    faults: &'a Faults,
    operation: Operation,
}

impl<'a> Blocked<'a> {
    fn new(faults: &'a Faults, operation: Operation) -> Self {
        *faults.state.lock().blocked.entry(operation).or_default() += 1;
        Self { faults, operation }
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        *self.faults.state.lock().blocked.entry(self.operation).or_default() -= 1;
    }
}

fn injected(kind: ErrorKind, operation: Operation) -> StoreError {
    StoreError::new(kind, format!("injected fault in {operation:?}"))
}

/// splitmix64's finaliser.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The answer, or the error of the fault that loses it.
fn answer<T>(fault: Option<Fault>, operation: Operation, result: Result<T>) -> Result<T> {
    match fault {
        Some(Fault::LoseAnswer(kind)) => Err(injected(kind, operation)),
        _ => result,
    }
}

/// Any [`Stores`], made to misbehave by [`Faults`].
pub struct FaultyStores {
    inner: Arc<dyn Stores>,
    faults: Arc<Faults>,
}

impl FaultyStores {
    pub fn new(inner: Arc<dyn Stores>, faults: Arc<Faults>) -> Self {
        Self { inner, faults }
    }
}

impl Stores for FaultyStores {
    fn open<'a>(
        &'a self,
        branch: &'a BranchName,
        range: KeyGroupRange,
        sources: &'a [Source],
        restored_checkpoint: u64,
    ) -> BoxFuture<'a, Result<Arc<dyn StateStore>>> {
        async move {
            let fault = self.faults.before(Operation::Open).await?;
            let store = self.inner.open(branch, range, sources, restored_checkpoint).await?;
            let (stores, faults) = (self.inner.clone(), self.faults.clone());
            let store = answer(fault, Operation::Open, Ok(store))?;
            Ok(Arc::new(FaultyStore { inner: store, stores, faults }) as Arc<dyn StateStore>)
        }
        .boxed()
    }

    fn open_read_only<'a>(&'a self, source: &'a Source) -> BoxFuture<'a, Result<Arc<dyn StateReader>>> {
        async move {
            let fault = self.faults.before(Operation::OpenReadOnly).await?;
            let inner = answer(fault, Operation::OpenReadOnly, self.inner.open_read_only(source).await)?;
            Ok(Arc::new(FaultyReader { inner, faults: self.faults.clone() }) as Arc<dyn StateReader>)
        }
        .boxed()
    }

    fn release<'a>(&'a self, version: &'a VersionRef) -> BoxFuture<'a, Result<()>> {
        async move {
            let fault = self.faults.before(Operation::Release).await?;
            answer(fault, Operation::Release, self.inner.release(version).await)
        }
        .boxed()
    }
}

/// Any [`StateReader`], made to misbehave by [`Faults`].
pub struct FaultyReader {
    inner: Arc<dyn StateReader>,
    faults: Arc<Faults>,
}

impl StateReader for FaultyReader {
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
        async move {
            let fault = self.faults.before(Operation::GetMany).await?;
            answer(fault, Operation::GetMany, self.inner.get_many(keys).await)
        }
        .boxed()
    }

    fn scan<'a>(&'a self, prefix: &'a [u8], after: Option<&'a [u8]>, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        async move {
            let fault = self.faults.before(Operation::Scan).await?;
            answer(fault, Operation::Scan, self.inner.scan(prefix, after, limit).await)
        }
        .boxed()
    }
}

/// Any [`StateStore`], made to misbehave by [`Faults`].
pub struct FaultyStore {
    inner: Arc<dyn StateStore>,
    /// Releases the commits whose answer is lost.
    stores: Arc<dyn Stores>,
    faults: Arc<Faults>,
}

impl FaultyStore {
    /// `stores` is what `inner` was opened with.
    pub fn new(inner: Arc<dyn StateStore>, stores: Arc<dyn Stores>, faults: Arc<Faults>) -> Self {
        Self { inner, stores, faults }
    }
}

impl StateReader for FaultyStore {
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
        async move {
            let fault = self.faults.before(Operation::GetMany).await?;
            answer(fault, Operation::GetMany, self.inner.get_many(keys).await)
        }
        .boxed()
    }

    fn scan<'a>(&'a self, prefix: &'a [u8], after: Option<&'a [u8]>, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        async move {
            let fault = self.faults.before(Operation::Scan).await?;
            answer(fault, Operation::Scan, self.inner.scan(prefix, after, limit).await)
        }
        .boxed()
    }
}

impl StateStore for FaultyStore {
    fn write(&self, mut batch: Vec<Row>) -> BoxFuture<'_, Result<()>> {
        async move {
            let fault = self.faults.before(Operation::Write).await?;
            if let Some(Fault::Tear(kind)) = fault {
                batch.truncate(batch.len() / 2);
                self.inner.write(batch).await?;
                return Err(injected(kind, Operation::Write));
            }
            answer(fault, Operation::Write, self.inner.write(batch).await)
        }
        .boxed()
    }

    fn begin_commit(&self, checkpoint: u64) -> BoxFuture<'_, Result<PendingCommit>> {
        async move {
            let fault = self.faults.before(Operation::BeginCommit).await?;
            let pending = answer(fault, Operation::BeginCommit, self.inner.begin_commit(checkpoint).await)?;
            let (stores, faults) = (self.stores.clone(), self.faults.clone());
            Ok(async move {
                let fault = faults.before(Operation::AwaitCommit).await?;
                let commit = pending.await?;
                if let Some(Fault::LoseAnswer(kind)) = fault {
                    stores.release(&commit.version).await?;
                    return Err(injected(kind, Operation::AwaitCommit));
                }
                Ok(commit)
            }
            .boxed())
        }
        .boxed()
    }

    fn upkeep(&self, completed_checkpoint: u64) {
        self.inner.upkeep(completed_checkpoint);
    }

    fn set_expiry(&self, expiry: Expiry) {
        self.inner.set_expiry(expiry);
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        async move {
            let fault = self.faults.before(Operation::Close).await?;
            answer(fault, Operation::Close, self.inner.close().await)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryStores;
    use crate::promises::{ALL, branch, put, rows, run};

    async fn opened(faults: &Arc<Faults>) -> (MemoryStores, Arc<dyn StateStore>) {
        let memory = MemoryStores::new();
        let stores = FaultyStores::new(Arc::new(memory.clone()), faults.clone());
        let store = stores.open(&branch("job/op/0/a"), ALL, &[], 0).await.unwrap();
        (memory, store)
    }

    #[test]
    fn rules_meet_their_calls_only() {
        run(async {
            let faults = Faults::new(1);
            let fault = Fault::Fail(ErrorKind::Unavailable);
            faults.rule(Rule { operation: Operation::Write, from: 1, times: 2, fault });
            let (_, store) = opened(&faults).await;
            let mut outcomes = Vec::new();
            for _ in 0..4 {
                outcomes.push(store.write(vec![put(1, "a", "1")]).await.is_ok());
            }
            assert_eq!(outcomes, [true, false, false, true]);
            assert_eq!((faults.calls(Operation::Write), faults.injected(Operation::Write)), (4, 2));
        });
    }

    #[test]
    fn chances_are_the_same_for_the_same_seed() {
        let outcomes = |seed: u64| {
            let faults = Faults::new(seed);
            let fault = Fault::Fail(ErrorKind::Unavailable);
            faults.chance(Chance { operation: Operation::GetMany, probability: 0.3, fault });
            let draws: Vec<bool> = (0..1000).map(|_| faults.draw(Operation::GetMany).is_some()).collect();
            draws
        };
        assert_eq!(outcomes(7), outcomes(7));
        assert_ne!(outcomes(7), outcomes(8));
        let hits = outcomes(7).iter().filter(|hit| **hit).count();
        assert!((250..350).contains(&hits), "{hits} of 1000");
    }

    #[test]
    fn torn_write_takes_the_first_half() {
        run(async {
            let faults = Faults::new(1);
            let (_, store) = opened(&faults).await;
            faults.next(Operation::Write, 1, Fault::Tear(ErrorKind::Unavailable));
            let batch = vec![put(1, "a", "1"), put(1, "b", "2")];
            assert!(store.write(batch.clone()).await.is_err());
            assert_eq!(rows(&*store).await.len(), 1);
            store.write(batch).await.unwrap();
            assert_eq!(rows(&*store).await.len(), 2);
        });
    }

    #[test]
    fn lost_answer_of_a_commit_leaves_no_version() {
        run(async {
            let faults = Faults::new(1);
            let (memory, store) = opened(&faults).await;
            faults.next(Operation::AwaitCommit, 1, Fault::LoseAnswer(ErrorKind::Unavailable));
            assert!(store.begin_commit(1).await.unwrap().await.is_err());
            assert_eq!(memory.versions(), []);
            assert!(store.begin_commit(2).await.unwrap().await.is_ok());
        });
    }

    #[test]
    fn blocked_call_waits_for_unblock() {
        run(async {
            let faults = Faults::new(1);
            let (_, store) = opened(&faults).await;
            faults.next(Operation::Write, 1, Fault::Block);
            let blocked = tokio::spawn(async move { store.write(vec![put(1, "a", "1")]).await });
            while faults.blocked(Operation::Write) == 0 {
                tokio::task::yield_now().await;
            }
            assert!(!blocked.is_finished());
            faults.unblock(Operation::Write);
            blocked.await.unwrap().unwrap();
            assert_eq!(faults.blocked(Operation::Write), 0);
        });
    }
}
