//! Which files to merge, and when.
//!
//! SlateDB's own scheduler lets several runs of one size gather, and each costs every read a look. This one keeps the
//! runs growing geometrically, so that there are few: what is new is merged with every run that is not much larger than
//! it, and files of another branch are rewritten by age, so that they do not pin their branch for ever. Where rows expire,
//! all runs are merged as soon as enough of them has: so what has expired is never more than a share of what is stored.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use slatedb::compactor::{
    CompactionScheduler, CompactionSchedulerSupplier, CompactionSpec, CompactorStateView, SourceId,
};
use slatedb::config::CompactorOptions;

use crate::expiry::{Expiring, Profile, wall_ms};

/// How the scheduler trades work for short reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompactionPolicy {
    /// New files are merged when there are so many of them.
    pub l0_trigger: usize,
    /// A run is merged with what is newer when it is at most so many times as large: each run is then more than this
    /// many times as large as the next newer one, and a row is rewritten about so many times on each of few levels.
    pub growth: f64,
    /// New files are merged, however few, when none was added for so long: reads of a quiet branch become short. Longer
    /// than the time between checkpoints of most jobs, or each of them would have a run rewritten for one more file.
    pub idle: Duration,
    /// The same where rows expire, if it is less: when they do is known only of merged files.
    pub idle_expiring: Duration,
    /// Files of another branch are rewritten so long after opening, to let that branch go.
    pub adopt_after: Duration,
    /// Bytes a second that rewriting files of another branch may read, on average.
    pub adopt_bytes_per_second: u64,
    /// All runs are merged when so large a part of their bytes has expired or was deleted, in branches with expiring
    /// rows. Each byte that goes so has cost at most the reading of one over this, and the writing of that less one.
    pub expired_share: f64,
}

impl Default for CompactionPolicy {
    fn default() -> Self {
        Self {
            l0_trigger: 4,
            growth: 4.0,
            idle: Duration::from_secs(300),
            idle_expiring: Duration::from_secs(10),
            adopt_after: Duration::from_secs(600),
            adopt_bytes_per_second: 4 << 20,
            expired_share: 0.2,
        }
    }
}

impl CompactionPolicy {
    fn idle_after(&self, expiring: bool) -> Duration {
        if expiring { self.idle.min(self.idle_expiring) } else { self.idle }
    }
}

/// A file or run that can be merged, newest first in any list.
#[derive(Clone, Debug, PartialEq)]
struct Candidate {
    source: SourceId,
    bytes: u64,
    /// Holds a file of another branch.
    external: bool,
    /// In a merge that runs already, as a source or as the target.
    busy: bool,
    /// When the newest file was written: milliseconds since 1970.
    written_ms: u64,
    /// What is known of a run's rows.
    profile: Option<Arc<Profile>>,
}

/// What counts as expired.
#[derive(Clone, Copy)]
struct Look {
    now_ms: i64,
    wall_ms: u64,
    least_ttl_ms: u64,
}

/// What the scheduler remembers between looks.
struct Memory {
    opened: Instant,
    newest: Option<SourceId>,
    newest_since: Instant,
    adopt_not_before: Instant,
}

struct Scheduler {
    policy: CompactionPolicy,
    expiring: Arc<Expiring>,
    memory: Mutex<Memory>,
}

impl CompactionScheduler for Scheduler {
    fn propose(&self, state: &CompactorStateView) -> Vec<CompactionSpec> {
        let active: Vec<_> = state
            .compactions()
            .into_iter()
            .flat_map(|compactions| compactions.recent_compactions())
            .filter(|compaction| compaction.active())
            .map(|compaction| compaction.spec().clone())
            .collect();
        let busy: HashSet<SourceId> = active
            .iter()
            .flat_map(|spec| spec.sources().iter().copied().chain(spec.destination().map(SourceId::SortedRun)))
            .collect();
        let l0_busy = active.iter().any(|spec| spec.has_l0_sources());
        let manifest = state.manifest();
        let expiry = self.expiring.get();
        let look = expiry.least_ttl_ms().map(|least_ttl_ms| Look {
            now_ms: expiry.now_ms(),
            wall_ms: wall_ms(),
            least_ttl_ms,
        });
        let external: HashSet<_> = manifest.external_dbs().iter().flat_map(|db| db.sst_ids.iter().copied()).collect();
        let l0: Vec<Candidate> = manifest
            .l0()
            .iter()
            .map(|view| {
                let source = SourceId::SstView(view.id);
                Candidate {
                    source,
                    bytes: view.estimate_size(),
                    external: external.contains(&view.sst.id),
                    busy: busy.contains(&source),
                    written_ms: view.sst.id.value().timestamp_ms(),
                    profile: None,
                }
            })
            .collect();
        let runs: Vec<Candidate> = manifest
            .compacted()
            .iter()
            .map(|run| {
                let source = SourceId::SortedRun(run.id);
                Candidate {
                    source,
                    bytes: run.estimate_size(),
                    external: run.sst_views().iter().any(|view| external.contains(&view.sst.id)),
                    busy: busy.contains(&source),
                    written_ms: run
                        .sst_views()
                        .iter()
                        .map(|view| view.sst.id.value().timestamp_ms())
                        .max()
                        .unwrap_or(0),
                    profile: look.and_then(|_| self.expiring.profile(run, expiry.rules())),
                }
            })
            .collect();
        let next_run = runs
            .iter()
            .map(|run| run.source)
            .chain(active.iter().filter_map(|spec| spec.destination()).map(SourceId::SortedRun))
            .filter_map(|source| if let SourceId::SortedRun(id) = source { Some(id + 1) } else { None })
            .max()
            .unwrap_or(0);

        let now = Instant::now();
        let mut memory = self.memory.lock();
        let newest = l0.first().or(runs.first()).map(|candidate| candidate.source);
        if newest != memory.newest {
            memory.newest = newest;
            memory.newest_since = now;
        }
        let idle = now - memory.newest_since >= self.policy.idle_after(look.is_some());
        let mut specs = Vec::new();
        if !l0_busy {
            specs.extend(merge_new(&self.policy, &l0, &runs, idle, look.is_some(), next_run));
        }
        if specs.is_empty() {
            specs.extend(merge_runs(&self.policy, &runs));
        }
        if specs.is_empty()
            && active.is_empty()
            && let Some(look) = look
        {
            specs.extend(merge_expired(&self.policy, look, &runs));
        }
        let mut rewritten = None;
        if specs.is_empty()
            && active.is_empty()
            && now >= memory.adopt_not_before
            && let Some(look) = look
        {
            rewritten = rewrite_unknown(look, &runs);
        }
        let may_adopt = now - memory.opened >= self.policy.adopt_after && now >= memory.adopt_not_before;
        if specs.is_empty() && rewritten.is_none() && active.is_empty() && may_adopt {
            rewritten = adopt(&l0, &runs, next_run);
        }
        if let Some((spec, bytes)) = rewritten {
            let pause = bytes as f64 / self.policy.adopt_bytes_per_second.max(1) as f64;
            memory.adopt_not_before = now + Duration::from_secs_f64(pause.min(1e6));
            specs.push(spec);
        }
        specs
    }
}

fn total(candidates: &[Candidate]) -> u64 {
    candidates.iter().map(|candidate| candidate.bytes).sum()
}

/// A merge of neighbours: SlateDB demands that the result takes the place of the oldest run among them.
fn spec(sources: &[&Candidate], next_run: u32) -> CompactionSpec {
    let oldest = sources.iter().filter_map(|candidate| match candidate.source {
        SourceId::SortedRun(id) => Some(id),
        SourceId::SstView(_) => None,
    });
    let target = oldest.min().unwrap_or(next_run);
    CompactionSpec::new(sources.iter().map(|candidate| candidate.source).collect(), target)
}

/// Merges all new files, and with them every run, from the newest on, that is not much larger than what is taken.
fn merge_new(
    policy: &CompactionPolicy,
    l0: &[Candidate],
    runs: &[Candidate],
    idle: bool,
    expiring: bool,
    next_run: u32,
) -> Option<CompactionSpec> {
    if l0.is_empty() || (l0.len() < policy.l0_trigger && !idle) {
        return None;
    }
    let mut sources: Vec<&Candidate> = l0.iter().collect();
    let mut bytes = total(l0);
    for run in runs {
        if run.busy || run.bytes as f64 > bytes as f64 * policy.growth {
            break;
        }
        bytes += run.bytes;
        sources.push(run);
    }
    // Moving a single file into a run of its own shortens no read; but only a run tells when its rows expire.
    (sources.len() >= 2 || expiring).then(|| spec(&sources, next_run))
}

/// Merges all runs when enough of what they hold is known to have expired or to be deleted; and a run in which a row has
/// stayed for too long with all that are older.
fn merge_expired(policy: &CompactionPolicy, look: Look, runs: &[Candidate]) -> Option<CompactionSpec> {
    if runs.iter().any(|run| run.busy) {
        return None;
    }
    let dead = |run: &Candidate| {
        run.profile.as_ref().map_or(0.0, |profile| profile.dead_share(look.now_ms) * run.bytes as f64)
    };
    let dead: f64 = runs.iter().map(dead).sum();
    let enough = dead > 0.0 && dead >= total(runs) as f64 * policy.expired_share;
    let overdue = |run: &Candidate| run.profile.as_ref().is_some_and(|profile| profile.is_overdue(look.now_ms));
    let newest = if enough { 0 } else { runs.iter().position(overdue)? };
    Some(spec(&runs[newest..].iter().collect::<Vec<_>>(), 0))
}

/// Rewrites the newest run of which nothing is known, once its rows may have expired, to know it then; and the bytes that
/// takes. Each run that came with another branch is met once.
fn rewrite_unknown(look: Look, runs: &[Candidate]) -> Option<(CompactionSpec, u64)> {
    let old = |run: &&Candidate| {
        run.profile.is_none()
            && !run.busy
            && run.bytes > 0
            && run.written_ms.saturating_add(look.least_ttl_ms) <= look.wall_ms
    };
    let run = runs.iter().find(old)?;
    Some((spec(&[run], 0), run.bytes))
}

/// Merges neighbouring runs that are not far enough apart in size: what is left when a run was busy.
fn merge_runs(policy: &CompactionPolicy, runs: &[Candidate]) -> Option<CompactionSpec> {
    for start in 0..runs.len() {
        let mut end = start;
        let mut bytes = 0;
        while end < runs.len()
            && !runs[end].busy
            && (end == start || runs[end].bytes as f64 <= bytes as f64 * policy.growth)
        {
            bytes += runs[end].bytes;
            end += 1;
        }
        if end - start >= 2 {
            return Some(spec(&runs[start..end].iter().collect::<Vec<_>>(), 0));
        }
    }
    None
}

/// Rewrites the newest files that belong to another branch, and the bytes that takes. A run is rewritten alone; new
/// files all together, since merges of them may not leave older ones behind.
fn adopt(l0: &[Candidate], runs: &[Candidate], next_run: u32) -> Option<(CompactionSpec, u64)> {
    if l0.iter().any(|candidate| candidate.external) {
        return Some((spec(&l0.iter().collect::<Vec<_>>(), next_run), total(l0)));
    }
    let run = runs.iter().find(|run| run.external && !run.busy)?;
    Some((spec(&[run], 0), run.bytes))
}

pub(crate) struct Supplier {
    policy: CompactionPolicy,
    expiring: Arc<Expiring>,
}

impl CompactionSchedulerSupplier for Supplier {
    fn compaction_scheduler(&self, _options: &CompactorOptions) -> Box<dyn CompactionScheduler + Send + Sync> {
        let now = Instant::now();
        let memory = Memory { opened: now, newest: None, newest_since: now, adopt_not_before: now };
        Box::new(Scheduler { policy: self.policy, expiring: self.expiring.clone(), memory: Mutex::new(memory) })
    }
}

pub(crate) fn supplier(policy: CompactionPolicy, expiring: Arc<Expiring>) -> Arc<dyn CompactionSchedulerSupplier> {
    Arc::new(Supplier { policy, expiring })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: u32, bytes: u64) -> Candidate {
        let source = SourceId::SortedRun(id);
        Candidate { source, bytes, external: false, busy: false, written_ms: 0, profile: None }
    }

    fn files(count: usize, bytes: u64) -> Vec<Candidate> {
        vec![run(1000, bytes); count]
    }

    fn sources(spec: Option<CompactionSpec>) -> Option<(usize, Option<u32>)> {
        spec.map(|spec| (spec.sources().len(), spec.destination()))
    }

    #[test]
    fn new_files_wait_for_the_trigger_or_for_quiet() {
        let policy = CompactionPolicy::default();
        assert_eq!(sources(merge_new(&policy, &files(3, 10), &[], false, false, 5)), None);
        assert_eq!(sources(merge_new(&policy, &files(1, 10), &[], true, false, 5)), None);
        assert_eq!(sources(merge_new(&policy, &files(1, 10), &[run(3, 20)], true, false, 5)), Some((2, Some(3))));
        assert_eq!(merge_new(&policy, &files(4, 10), &[], false, false, 5).unwrap().sources().len(), 4);
        assert_eq!(sources(merge_new(&policy, &[], &[run(1, 1)], true, false, 5)), None);
    }

    #[test]
    fn a_quiet_branch_is_merged_sooner_where_rows_expire() {
        let policy = CompactionPolicy::default();
        assert!(policy.idle_after(true) < policy.idle_after(false));
        let policy = CompactionPolicy { idle: Duration::ZERO, ..policy };
        assert_eq!((policy.idle_after(true), policy.idle_after(false)), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn new_files_take_runs_that_are_not_much_larger() {
        let policy = CompactionPolicy::default();
        let runs = [run(7, 160), run(5, 800), run(2, 5000)];
        // 40 new bytes take 160, then 200 take 800, then 1000 do not take 5000.
        assert_eq!(sources(merge_new(&policy, &files(4, 10), &runs, false, false, 8)), Some((6, Some(5))));
        let mut runs = runs;
        runs[0].busy = true;
        assert_eq!(merge_new(&policy, &files(4, 10), &runs, false, false, 8).unwrap().sources().len(), 4);
    }

    #[test]
    fn runs_left_too_close_are_merged() {
        let policy = CompactionPolicy::default();
        assert_eq!(sources(merge_runs(&policy, &[run(3, 10), run(2, 50), run(1, 260)])), None);
        assert_eq!(sources(merge_runs(&policy, &[run(3, 10), run(2, 50), run(1, 200)])), Some((2, Some(1))));
    }

    #[test]
    fn files_of_another_branch_are_rewritten_newest_first() {
        let mut runs = [run(3, 10), run(2, 50), run(1, 260)];
        assert_eq!(adopt(&[], &runs, 4), None);
        runs[1].external = true;
        runs[2].external = true;
        let (spec, bytes) = adopt(&[], &runs, 4).unwrap();
        assert_eq!((sources(Some(spec)), bytes), (Some((1, Some(2))), 50));
    }

    fn known(id: u32, bytes: u64, profile: Arc<Profile>) -> Candidate {
        Candidate { profile: Some(profile), ..run(id, bytes) }
    }

    const LOOK: Look = Look { now_ms: 1000, wall_ms: 50_000, least_ttl_ms: 100 };

    #[test]
    fn runs_are_merged_once_enough_of_them_has_expired() {
        let policy = CompactionPolicy::default();
        let merged = |runs: &[Candidate]| sources(merge_expired(&policy, LOOK, runs));
        let live = Profile::of(0, &[(1001, 100)], None);
        assert_eq!(merged(&[]), None);
        assert_eq!(merged(&[known(1, 0, live.clone())]), None);
        assert_eq!(merged(&[known(2, 50, live.clone()), known(1, 500, live.clone())]), None);
        // 19 bytes of 100, then 20.
        let some = |bytes: u64| [known(2, 50, live.clone()), known(1, 50, Profile::of(0, &[(7, bytes)], None))];
        assert_eq!(merged(&some(39)), None);
        assert_eq!(merged(&some(40)), Some((2, Some(1))));
        // Tombstones count too; nothing is known of a run without a profile.
        assert_eq!(merged(&[known(2, 50, Profile::of(40, &[], None)), run(1, 50)]), Some((2, Some(1))));
        let mut busy = some(100);
        busy[0].busy = true;
        assert_eq!(merged(&busy), None);
    }

    #[test]
    fn an_overdue_row_takes_its_run_and_what_is_older_along() {
        let policy = CompactionPolicy::default();
        let (live, overdue) = (Profile::of(0, &[(2000, 100)], Some(1001)), Profile::of(0, &[(900, 1)], Some(1000)));
        let runs = [known(3, 10, live.clone()), known(2, 100, overdue), known(1, 1000, live.clone())];
        assert_eq!(sources(merge_expired(&policy, LOOK, &runs)), Some((2, Some(1))));
        assert_eq!(merge_expired(&policy, LOOK, &[known(3, 10, live.clone()), known(1, 1000, live)]), None);
    }

    #[test]
    fn unknown_runs_are_rewritten_when_their_rows_may_have_expired() {
        let mut runs = [known(3, 10, Profile::of(0, &[], None)), run(2, 100), run(1, 1000)];
        runs[1].written_ms = 49_901;
        runs[2].written_ms = 49_900;
        let (spec, bytes) = rewrite_unknown(LOOK, &runs).unwrap();
        assert_eq!((sources(Some(spec)), bytes), (Some((1, Some(1))), 1000));
        runs[2].busy = true;
        assert_eq!(rewrite_unknown(LOOK, &runs), None);
        runs[1].written_ms = 0;
        assert_eq!(rewrite_unknown(LOOK, &runs).map(|(_, bytes)| bytes), Some(100));
    }

    #[test]
    fn a_lone_file_becomes_a_run_where_rows_expire() {
        let policy = CompactionPolicy::default();
        let merged = |runs: &[Candidate]| merge_new(&policy, &files(1, 10), runs, true, true, 5);
        assert_eq!(merged(&[run(3, 2000)]).unwrap().sources().len(), 1);
        assert_eq!(merged(&[]).unwrap().sources().len(), 1);
        assert_eq!(merged(&[run(3, 20)]).unwrap().sources().len(), 2);
        assert_eq!(merge_new(&policy, &files(1, 10), &[], false, true, 0), None);
    }
}
