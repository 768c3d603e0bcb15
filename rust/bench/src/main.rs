//! `weir-bench`: what the stores cost. `weir-bench --help` says what is measured.

mod bare;
mod figures;
mod meter;
mod rows;
mod subject;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use weir_fluss_cluster::Cluster;
use weir_store::{StateStore, StoreError, Stores, VersionRef};
use weir_store_fluss::{FlussConfig, FlussStores};
use weir_store_slatedb::{SlateConfig, SlateStores};

use bare::Bare;
use figures::{CLIENT, Figures};
use meter::{Cost, Meter};
use rows::{key, map_prefix, map_rows, mix, some};
use subject::Subject;

const HELP: &str = "\
weir bench store: what the stores cost, beside the bare client of Fluss on plain primary-key tables, in one run

  --store embedded|fluss    one of them only
  --json FILE               write every figure as a JSON object a line
  --seconds S               measure each kind of read for about so long (default 3)
  --rounds N                measure each kind of write so often, small ones more often (default 5)
  --most N                  rows of the larger restore (default 1000000)

get          rows that the engine does not have, alone and in batches, from a branch that was restored; read once before
flush        dirty rows written and committed; bare: upserted, all acknowledged
tidied       the same, with the release of the version before and the store's upkeep
purge        a branch and all its rows go with the last version; bare: as many deletes
scan         a map, page by page; bare: a prefix lookup
restore      a branch is opened at a version and one row read

Fluss runs as a real cluster of one tablet server on this machine. Client: CPU of this process, server: of the tablet
server. The CPU ratio is both together, by row, to the bare client's. Clocks of the CPU tick every 10 ms.
";

const EMBEDDED: &str = "embedded";
const FLUSS: &str = "fluss";

/// Rows that reads and flushes choose from.
const ROWS: u64 = 100_000;
const GETS: [usize; 3] = [1, 64, 1024];
const FLUSHES: [u64; 3] = [1_000, 10_000, 100_000];
const SCANS: [u64; 3] = [10, 1_000, 10_000];
const PURGED: u64 = 10_000;
const FEW: u64 = 10_000;
/// Rows that are loaded at once.
const LOAD: u64 = 100_000;
/// Parts that reads are measured in, the backends by turns.
const TURNS: u32 = 3;

type Fallible<T> = Result<T, Box<dyn Error>>;

struct Arguments {
    embedded: bool,
    fluss: bool,
    json: Option<PathBuf>,
    seconds: f64,
    rounds: u64,
    most: u64,
}

fn arguments() -> Result<Arguments, String> {
    let mut arguments = Arguments { embedded: true, fluss: true, json: None, seconds: 3.0, rounds: 5, most: 1_000_000 };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let mut value = || given.next().ok_or_else(|| format!("{name} needs a value"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("'{text}' is not a number"));
        match name.as_str() {
            "--json" => arguments.json = Some(value()?.into()),
            "--seconds" => {
                let text = value()?;
                arguments.seconds = text.parse().map_err(|_| format!("'{text}' is not a number"))?;
            }
            "--rounds" => arguments.rounds = number(value()?)?.max(1),
            "--most" => arguments.most = number(value()?)?.max(FEW),
            "--store" => {
                let store = value()?;
                (arguments.embedded, arguments.fluss) = (store == EMBEDDED, store == FLUSS);
                if !arguments.embedded && !arguments.fluss {
                    return Err(format!("no store '{store}': {EMBEDDED} or {FLUSS}"));
                }
            }
            "--help" | "-h" => return Err(String::new()),
            other => return Err(format!("unknown argument '{other}'")),
        }
    }
    Ok(arguments)
}

/// One store under measurement, with the bare client by turns where there is one.
struct Bench<'a> {
    name: &'static str,
    arguments: &'a Arguments,
    meter: Meter,
    subject: Subject,
    bare: Option<Bare>,
    figures: &'a mut Figures,
}

impl Bench<'_> {
    async fn run(&mut self) -> Fallible<()> {
        let store = self.subject.open("values", None).await?;
        let loaded = self.load(&*store, ROWS).await?;
        store.close().await?;
        // Reads are those of a job that was restored.
        let store = self.subject.open("values", Some(&loaded)).await?;
        // What lies on disk is read once before: the store's own caches are warm.
        for first in (0..ROWS).step_by(GETS[2]) {
            let keys: Vec<Bytes> = (first..(first + GETS[2] as u64).min(ROWS)).map(key).collect();
            subject::get(&*store, &keys).await?;
        }
        self.meter.quiet().await;
        for batch in GETS {
            self.gets(&*store, batch).await?;
        }
        let mut last = loaded;
        for rows in FLUSHES {
            last = self.flushes(&*store, rows, last).await?;
        }
        store.close().await?;
        self.scans().await?;
        self.purges().await?;
        self.restores().await
    }

    /// Writes the first `count` keys; returns the version.
    async fn load(&mut self, store: &dyn StateStore, count: u64) -> Fallible<VersionRef> {
        let mut last: Option<VersionRef> = None;
        for first in (0..count).step_by(LOAD as usize) {
            let rows = rows::rows(first..(first + LOAD).min(count), 0);
            let version = self.subject.flush(store, &rows).await?;
            if let Some(before) = last.replace(version) {
                self.subject.complete(store, &before).await?;
            }
            if let Some(bare) = self.bare.as_ref().filter(|_| count == ROWS) {
                bare.upsert(&rows).await?;
            }
        }
        Ok(last.ok_or("nothing to load")?)
    }

    async fn gets(&mut self, store: &dyn StateStore, batch: usize) -> Fallible<()> {
        let keys = |call: u64| -> Vec<Bytes> { (0..batch as u64).map(|i| key(mix(mix(call) ^ i) % ROWS)).collect() };
        let turn = Duration::from_secs_f64(self.arguments.seconds / f64::from(TURNS));
        let (mut own, mut bare_cost) = (Cost::default(), Cost::default());
        // The first turn warms up.
        for turn_number in 0..=TURNS {
            if turn_number == 1 {
                (own, bare_cost) = (Cost::default(), Cost::default());
            }
            if let Some(bare) = &mut self.bare {
                let call = async |number| bare.get(&keys(number)).await.expect("the bare client reads");
                self.meter.measure_many(&mut bare_cost, batch as u64, turn, call).await;
            }
            let call = async |number| subject::get(store, &keys(number)).await.expect("the store reads");
            self.meter.measure_many(&mut own, batch as u64, turn, call).await;
        }
        let work = if batch == 1 { "get alone".to_owned() } else { format!("get in batches of {batch}") };
        self.add(&work, own, bare_cost);
        Ok(())
    }

    async fn flushes(&mut self, store: &dyn StateStore, count: u64, mut last: VersionRef) -> Fallible<VersionRef> {
        let (mut own, mut tidied, mut bare_cost) = (Cost::default(), Cost::default(), Cost::default());
        // Small ones more often: the clocks of the CPU are coarse.
        let rounds = self.arguments.rounds * (FLUSHES[2] / count).isqrt();
        for round in 0..=rounds {
            if round == 1 {
                (own, tidied, bare_cost) = (Cost::default(), Cost::default(), Cost::default());
            }
            let rows = rows::rows(some(count, ROWS, round ^ count), round + 1);
            if let Some(bare) = &self.bare {
                self.meter.quiet().await;
                self.meter.measure(&mut bare_cost, count, bare.upsert(&rows)).await?;
            }
            self.meter.quiet().await;
            let (meter, subject, before) = (&self.meter, &self.subject, last.clone());
            let flush = async {
                let version = meter.measure(&mut own, count, subject.flush(store, &rows)).await?;
                subject.complete(store, &before).await?;
                meter.quiet().await;
                Ok::<_, StoreError>(version)
            };
            last = meter.measure(&mut tidied, count, flush).await?;
        }
        let work = format!("flush of {count} rows");
        self.add(&work, own, bare_cost);
        self.figures.add(&format!("{work}, tidied"), self.name, tidied);
        Ok(last)
    }

    async fn scans(&mut self) -> Fallible<()> {
        let store = self.subject.open("maps", None).await?;
        // Two of each size by turns: a store may keep the one that was read last.
        let maps: Vec<(u64, u64)> =
            SCANS.iter().flat_map(|entries| [(*entries * 2, *entries), (*entries * 2 + 1, *entries)]).collect();
        let mut all = Vec::new();
        for (map, entries) in &maps {
            let rows = map_rows(*map, *entries);
            if let Some(bare) = &self.bare {
                bare.upsert_entries(&rows).await?;
            }
            all.extend(rows);
        }
        all.sort_by(|a, b| a.key.cmp(&b.key));
        let version = self.subject.flush(&*store, &all).await?;
        store.close().await?;
        let store = self.subject.open("maps", Some(&version)).await?;
        self.meter.quiet().await;
        let turn = Duration::from_secs_f64(self.arguments.seconds / f64::from(TURNS));
        for entries in SCANS {
            let prefix = |number: u64| map_prefix(entries * 2 + number % 2);
            let (mut own, mut bare_cost) = (Cost::default(), Cost::default());
            for turn_number in 0..=TURNS {
                if turn_number == 1 {
                    (own, bare_cost) = (Cost::default(), Cost::default());
                }
                if let Some(bare) = &mut self.bare {
                    let call = async |number| {
                        bare.scan(&prefix(number), entries).await.expect("the bare client scans");
                    };
                    self.meter.measure_many(&mut bare_cost, entries, turn, call).await;
                }
                let call = async |number| {
                    subject::scan(&*store, &prefix(number), entries).await.expect("the store scans");
                };
                self.meter.measure_many(&mut own, entries, turn, call).await;
            }
            self.add(&format!("scan of {entries} rows"), own, bare_cost);
        }
        store.close().await?;
        Ok(())
    }

    async fn purges(&mut self) -> Fallible<()> {
        let (mut own, mut bare_cost) = (Cost::default(), Cost::default());
        for round in 0..=self.arguments.rounds {
            if round == 1 {
                (own, bare_cost) = (Cost::default(), Cost::default());
            }
            let store = self.subject.open("purged", None).await?;
            let mut rows = rows::rows(0..PURGED, round);
            let version = self.subject.flush(&*store, &rows).await?;
            store.close().await?;
            self.meter.quiet().await;
            self.meter.measure(&mut own, PURGED, self.subject.release(&version)).await?;
            if let Some(bare) = &self.bare {
                bare.upsert(&rows).await?;
                rows.iter_mut().for_each(|row| row.value = None);
                self.meter.quiet().await;
                self.meter.measure(&mut bare_cost, PURGED, bare.upsert(&rows)).await?;
            }
        }
        self.add(&format!("purge of {PURGED} rows"), own, bare_cost);
        Ok(())
    }

    async fn restores(&mut self) -> Fallible<()> {
        let sizes = [("few", FEW), ("most", self.arguments.most)];
        let mut versions = Vec::new();
        for (operator, count) in sizes {
            let store = self.subject.open(operator, None).await?;
            versions.push(self.load(&*store, count).await?);
            store.close().await?;
        }
        let mut costs = [Cost::default(), Cost::default()];
        for round in 0..=self.arguments.rounds {
            if round == 1 {
                costs = [Cost::default(), Cost::default()];
            }
            for (((operator, count), version), cost) in sizes.iter().zip(&versions).zip(&mut costs) {
                self.meter.quiet().await;
                let restore = async {
                    let store = self.subject.open(operator, Some(version)).await?;
                    subject::get(&*store, &[key(mix(round) % count)]).await?;
                    Ok::<_, StoreError>(store)
                };
                self.meter.measure(cost, 1, restore).await?.close().await?;
            }
        }
        let [few, most] = costs;
        let work = |count: u64| format!("restore of {count} rows, first read");
        self.figures.add(&work(FEW), self.name, few);
        self.figures.add(&work(self.arguments.most), self.name, most);
        let median = |count: u64| self.figures.median(&work(count), self.name);
        if let (Some(few), Some(most)) = (median(FEW), median(self.arguments.most)) {
            println!("{:<52}{:>22.2}", "  the larger to the smaller, by the clock", most / few);
        }
        Ok(())
    }

    /// The bare client's figure first, so that the other is held against it.
    fn add(&mut self, work: &str, own: Cost, bare: Cost) {
        if self.bare.is_some() {
            self.figures.add(work, CLIENT, bare);
        }
        self.figures.add(work, self.name, own);
    }
}

async fn run(arguments: &Arguments) -> Fallible<()> {
    let mut figures = Figures::default();
    Figures::header();
    if arguments.fluss {
        // Dropped last, so that the servers outlive their clients.
        let cluster = Cluster::start(weir_fluss_cluster::Options::default());
        let config = FlussConfig { remembered_keys: 2 << 20, ..FlussConfig::new(cluster.bootstrap(), "weir") };
        let stores: Arc<dyn Stores> = Arc::new(FlussStores::new(config));
        let bare = Bare::new(cluster.bootstrap(), &GETS).await?;
        let (subject, meter) = (Subject::new(stores), Meter { server: Some(cluster.process("tablet-0")) });
        let mut bench = Bench { name: FLUSS, arguments, meter, subject, bare: Some(bare), figures: &mut figures };
        bench.run().await?;
    }
    if arguments.embedded {
        let directory = TempDir::new()?;
        let url = format!("file://{}", directory.path().display());
        let stores: Arc<dyn Stores> = Arc::new(SlateStores::new(&url, SlateConfig::default())?);
        let (subject, meter) = (Subject::new(stores), Meter { server: None });
        let mut bench = Bench { name: EMBEDDED, arguments, meter, subject, bare: None, figures: &mut figures };
        bench.run().await?;
    }
    if let Some(file) = &arguments.json {
        figures.write(file)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(wrong) => {
            print!("{HELP}");
            if wrong.is_empty() {
                return ExitCode::SUCCESS;
            }
            eprintln!("weir-bench: {wrong}");
            return ExitCode::FAILURE;
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match runtime.map_err(Box::from).and_then(|runtime| runtime.block_on(run(&arguments))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
