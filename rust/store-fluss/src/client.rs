//! Connections to a Fluss cluster, and every way round a defect of its client.
//!
//! | the client (fluss-rs 1.0.0) | here |
//! |---|---|
//! | `flush` is `Ok` though writes were refused | every write's own result is awaited ([`Writer::finish`]) |
//! | no request has a time limit, and both ways retry for ever | each call ends after [`FlussConfig::timeout`]; lookups are tried again here, writes of rows never |
//! | metadata without a leader for a bucket leave the last one in one of its two maps and take it out of the other: a writer then finds a server ready and nothing to send to it, asks for no other metadata, and never sends again; closed or dropped in that state it spins for ever, holding a thread of the runtime | it tries nothing again: [`Writer::finish`] does, once [`Writer::prepare`] has made the client forget the leaders and has seen new ones, and over a new connection if there is no answer; leaders are forgotten before a writer is closed ([`forget_leaders`]) |
//! | two fetches of metadata at once may each leave out what the other has learnt | a writer fetches one at a time ([`Writer::prepare`]) |
//! | a bootstrap server that takes the connection and does not answer is waited for without end, and the others are not asked | each try has a limit and begins with the next one ([`connect`]) |
//! | a lookup keeps asking a dead leader | after an error the table's metadata is fetched again ([`Lookups::refresh`]) |
//! | batches of lookups are cut by a timer, so what was asked together may be answered apart | a lane takes batches of one fixed size only and has no timer ([`Lookups::ask`]) |
//! | one batch in flight a lookup client | one client a lane, as many lanes as run side by side |
//! | no TCP_NODELAY: a request over 8 KiB waits 40 ms | batches stay below [`MAX_REQUEST_BYTES`] |
//! | a write blocks its thread, without end, when the buffer of 64 MiB is full, of which each bucket takes a whole batch however little is in it | never more than [`MAX_UNSENT_BYTES`] are unsent; a writer that many branches share has small batches ([`SHARED_BATCH_BYTES`]); the wait has an end |
//! | batches of one bucket may overtake each other unless the client may send them again | what must stay in order goes in one batch ([`MAX_BATCH_BYTES`]), which nothing but [`Writer::finish`] sends off |
//! | writes right after a table was made fail for about a second | [`crate::tables`] writes a first row to each bucket, which may be retried |
//! | a tablet server that is asked for a table before its buckets have leaders may never learn of them (the server's defect) | the coordinator is asked first ([`crate::tables`]) |
//! | a table that is there may be "not found" while servers restart | creating says so itself, and looking is tried again |

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fluss::client::{FlussConnection, LookupClient, ResultHandle, RowBytes, WriteFormat, WriteRecord};
use fluss::config::Config;
use fluss::metadata::{PhysicalTablePath, TableBucket};
use fluss::rpc::FlussError;
use parking_lot::Mutex;
use weir_store::{ErrorKind, Result, StoreError};

use crate::config::FlussConfig;
use crate::tables::Table;

/// A request of more than 8 KiB is sent in two segments, of which the second waits for the first's acknowledgement.
const MAX_REQUEST_BYTES: usize = 7_000;
/// Lookups in one request.
const MAX_REQUEST_KEYS: usize = 224;
/// What the answer to one lookup adds to a request beside the key.
const KEY_OVERHEAD: usize = 4;
/// Rows handed to the client and not yet acknowledged; its buffer holds 64 MiB, of which each bucket takes a batch.
pub const MAX_UNSENT_BYTES: usize = 8 << 20;
/// Rows of one bucket that surely fit into one batch of the client, which holds 2 MiB.
pub const MAX_BATCH_BYTES: usize = 3 << 19;
/// Of the writer that all branches share: ten operators' tables of 16 buckets each take 10 MiB of the buffer.
const SHARED_BATCH_BYTES: i32 = 64 << 10;
/// How long one request may take before it is asked again elsewhere.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// After this time a write that may be sent again is: a leader that has to wait for a lost follower takes a few seconds.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);
/// How long what is cancelled may go on.
const CANCEL_WAIT: Duration = Duration::from_millis(200);
/// For what is sent when it is waited for.
const NEVER: Duration = Duration::from_secs(3_600);
/// Between two tries.
pub const RETRY_PAUSE: Duration = Duration::from_millis(50);

pub fn unavailable(what: impl std::fmt::Display, cause: impl std::fmt::Display) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, format!("{what}: {cause}"))
}

/// Opens a connection. A batch of rows that nobody waits for is sent after `linger`. Nothing is sent twice: the client's own
/// numbering of batches, which would make that harmless, starts anew after some errors.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] at once if the servers refuse the credentials; [`ErrorKind::Unavailable`] after
/// [`FlussConfig::timeout`] if none can be reached.
pub async fn connect(config: &FlussConfig, linger: Duration) -> Result<FlussConnection> {
    let mut client = Config {
        writer_batch_timeout_ms: linger.as_millis() as i64,
        writer_dynamic_batch_size_enabled: false,
        writer_buffer_wait_timeout_ms: REQUEST_TIMEOUT.as_millis() as u64,
        writer_acks: "all".to_owned(),
        writer_enable_idempotence: false,
        writer_retries: 0,
        // A lane is full or idle: see `Lookups`.
        lookup_batch_timeout_ms: u64::from(u32::MAX),
        lookup_max_retries: 0,
        connect_timeout_ms: REQUEST_TIMEOUT.as_millis() as u64,
        ..Config::default()
    };
    if linger < NEVER {
        client.writer_batch_size = SHARED_BATCH_BYTES;
        client.writer_dynamic_batch_size_min = SHARED_BATCH_BYTES;
    }
    if let Some(credentials) = &config.credentials {
        client.security_protocol = "sasl".to_owned();
        client.security_sasl_username = credentials.user.clone();
        client.security_sasl_password = credentials.password.clone();
    }
    let what = || format!("cannot connect to Fluss at {}", config.bootstrap_servers);
    let deadline = Instant::now() + config.timeout;
    let mut servers: Vec<&str> = config.bootstrap_servers.split(',').collect();
    loop {
        client.bootstrap_servers = servers.join(",");
        servers.rotate_left(1);
        let limit = config.timeout.min(2 * REQUEST_TIMEOUT);
        let error = match tokio::time::timeout(limit, FlussConnection::new(client.clone())).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) if error.api_error() == Some(FlussError::AuthenticateException) => {
                let advice = "check the user's name and password";
                return Err(StoreError::new(ErrorKind::InvalidArgument, format!("{}: {error} {advice}", what())));
            }
            Ok(Err(error @ fluss::error::Error::IllegalArgument { .. })) => {
                return Err(StoreError::new(ErrorKind::InvalidArgument, format!("{}: {error}", what())));
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {limit:?}"),
        };
        if Instant::now() >= deadline {
            return Err(unavailable(what(), error));
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// One lookup: all rows of a bucket whose encoded key starts with `prefix`.
#[derive(Clone, Debug)]
pub struct Ask {
    pub bucket: i32,
    pub prefix: Bytes,
}

/// Lookups whose answers can be trusted to come from one request each.
pub struct Lookups {
    connection: FlussConnection,
    timeout: Duration,
    /// Counts the fetches of metadata that have begun. A fetch can cut batches apart, so answers over it do not count.
    view: AtomicU64,
    /// Idle ones, by the number of lookups that they send.
    lanes: Mutex<HashMap<usize, Vec<Lane>>>,
    refreshing: tokio::sync::Mutex<()>,
}

/// A lookup client that sends whenever it has a certain number of lookups.
struct Lane {
    client: Arc<LookupClient>,
    view: u64,
}

impl Lookups {
    pub async fn new(config: &FlussConfig) -> Result<Self> {
        Ok(Self {
            connection: connect(config, NEVER).await?,
            timeout: config.timeout,
            view: AtomicU64::new(0),
            lanes: Mutex::default(),
            refreshing: tokio::sync::Mutex::default(),
        })
    }

    /// Answers `asks` of one table in their order. Before those of a bucket, the `proofs` of that bucket are asked in the
    /// same request, so by the same server: only if each is there is that server known to have all that was
    /// acknowledged before.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if a proof is still missing after the time limit: acknowledged rows are lost.
    /// [`ErrorKind::Unavailable`] if the servers do not answer.
    pub async fn get(
        &self,
        table: &Table,
        proofs: &HashMap<i32, Vec<Bytes>>,
        asks: Vec<Ask>,
    ) -> Result<Vec<Vec<Vec<u8>>>> {
        let none = Vec::new();
        let mut by_bucket: Vec<usize> = (0..asks.len()).collect();
        by_bucket.sort_by_key(|at| asks[*at].bucket);
        let mut groups: Vec<Group> = Vec::new();
        let mut group = Group::default();
        for at in by_bucket {
            let ask = &asks[at];
            let proofs = proofs.get(&ask.bucket).unwrap_or(&none);
            let size = |key: &Bytes| key.len() + KEY_OVERHEAD;
            let proof_bytes: usize = proofs.iter().map(size).sum();
            let full = group.bytes + size(&ask.prefix) + proof_bytes > MAX_REQUEST_BYTES
                || group.asks.len() + proofs.len() + 1 > MAX_REQUEST_KEYS;
            if full && !group.wanted.is_empty() {
                groups.push(std::mem::take(&mut group));
            }
            if group.bucket != Some(ask.bucket) {
                group.bucket = Some(ask.bucket);
                for proof in proofs {
                    group.bytes += size(proof);
                    group.proofs.push(group.asks.len());
                    group.asks.push(Ask { bucket: ask.bucket, prefix: proof.clone() });
                }
            }
            group.bytes += size(&ask.prefix);
            group.wanted.push((group.asks.len(), at));
            group.asks.push(ask.clone());
        }
        if !group.wanted.is_empty() {
            groups.push(group);
        }
        let mut answers: Vec<Vec<Vec<u8>>> = vec![Vec::new(); asks.len()];
        for done in futures::future::join_all(groups.iter().map(|group| self.prove(table, group))).await {
            for (at, rows) in done? {
                answers[at] = rows;
            }
        }
        Ok(answers)
    }

    /// Asks until an answer has its proofs.
    async fn prove(&self, table: &Table, group: &Group) -> Result<Vec<(usize, Vec<Vec<u8>>)>> {
        let deadline = Instant::now() + self.timeout;
        loop {
            let view = self.view.load(Ordering::Acquire);
            let error = match self.ask(table, &group.asks).await {
                Ok(mut answers) => match group.proofs.iter().find(|at| answers[**at].is_empty()) {
                    None => {
                        let wanted = group.wanted.iter();
                        return Ok(wanted.map(|(at, to)| (*to, std::mem::take(&mut answers[*at]))).collect());
                    }
                    Some(missing) => StoreError::new(
                        ErrorKind::Corrupt,
                        format!(
                            "bucket {} of table {} has lost rows that it had acknowledged (no chain row {:02x?}): restore \
                             from another checkpoint; use replication 3 and an in-sync minimum of 2",
                            group.asks[*missing].bucket,
                            table.path,
                            &group.asks[*missing].prefix[..],
                        ),
                    ),
                },
                Err(error) => {
                    self.refresh_unless_changed(table, view).await;
                    error
                }
            };
            if Instant::now() >= deadline {
                return Err(error);
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// One request to each leader of the buckets asked, once. The answers of one bucket are in the order of the asks.
    async fn ask(&self, table: &Table, asks: &[Ask]) -> Result<Vec<Vec<Vec<u8>>>> {
        let view = self.view.load(Ordering::Acquire);
        let cluster = self.connection.get_metadata().get_cluster();
        let bucket = |ask: &Ask| TableBucket::new(table.id, ask.bucket);
        if let Some(ask) = asks.iter().find(|ask| cluster.leader_for(&bucket(ask)).is_none()) {
            // The client would fetch the metadata itself, which cuts the batches of others.
            return Err(unavailable(format!("table {}", table.path), format!("bucket {} has no leader", ask.bucket)));
        }
        let size = lane_size(asks.len());
        let lane = self.lane(size, view);
        // In a task, so that a caller that gives up does not leave a part of a batch in the lane.
        let lookups: Vec<_> = asks.iter().chain(std::iter::repeat_n(&asks[0], size - asks.len())).cloned().collect();
        let (path, id, client) = (table.path.clone(), table.id, lane.client.clone());
        let task = tokio::spawn(async move {
            let calls = lookups
                .into_iter()
                .map(|ask| client.prefix_lookup(path.clone(), TableBucket::new(id, ask.bucket), ask.prefix));
            tokio::time::timeout(REQUEST_TIMEOUT, futures::future::join_all(calls)).await
        });
        let what = || format!("table {} cannot be read", table.path);
        let answers = match task.await {
            Ok(Ok(answers)) => answers,
            Ok(Err(_)) => return Err(unavailable(what(), format!("no answer within {REQUEST_TIMEOUT:?}"))),
            Err(error) => return Err(StoreError::new(ErrorKind::Internal, format!("{}: {error}", what()))),
        };
        if self.view.load(Ordering::Acquire) != lane.view {
            return Err(unavailable(what(), "the cluster changed meanwhile"));
        }
        let answers: fluss::error::Result<Vec<_>> = answers.into_iter().take(asks.len()).collect();
        let answers = answers.map_err(|error| unavailable(what(), error))?;
        self.lanes.lock().entry(size).or_default().push(lane);
        Ok(answers)
    }

    fn lane(&self, size: usize, view: u64) -> Lane {
        while let Some(lane) = self.lanes.lock().get_mut(&size).and_then(Vec::pop) {
            if lane.view == view {
                return lane;
            }
        }
        let config = Config { lookup_max_batch_size: size, ..self.connection.config().clone() };
        let client = Arc::new(LookupClient::new(&config, self.connection.get_metadata()));
        Lane { client, view }
    }

    /// Fetches anew who leads the buckets of a table.
    pub async fn refresh(&self, table: &Table) {
        let _one = self.refreshing.lock().await;
        self.fetch(table).await;
    }

    /// Only if there was no fetch since `view`. Who is told of a change tries again before it makes one: each fetch spoils
    /// the answers of all that ask meanwhile, and if each of them fetched in turn, none would ever be answered.
    async fn refresh_unless_changed(&self, table: &Table, view: u64) {
        let _one = self.refreshing.lock().await;
        if self.view.load(Ordering::Acquire) == view {
            self.fetch(table).await;
        }
    }

    async fn fetch(&self, table: &Table) {
        self.view.fetch_add(1, Ordering::AcqRel);
        let update = self.connection.get_metadata();
        let update = update.update_table_metadata(&table.path);
        match tokio::time::timeout(REQUEST_TIMEOUT, update).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(table = %table.path, %error, "cannot fetch metadata"),
            Err(_) => tracing::warn!(table = %table.path, "fetching metadata takes too long"),
        }
        // Lanes made before or during the fetch may have been told of it in the middle of a batch.
        self.view.fetch_add(1, Ordering::AcqRel);
        self.lanes.lock().clear();
    }
}

#[derive(Default)]
struct Group {
    asks: Vec<Ask>,
    /// Places of the proofs in `asks`.
    proofs: Vec<usize>,
    /// Places in `asks`, and in what was asked for.
    wanted: Vec<(usize, usize)>,
    bucket: Option<i32>,
    bytes: usize,
}

/// Few sizes, so that lanes are shared; what is missing to one is filled with repetitions.
fn lane_size(asks: usize) -> usize {
    match asks {
        0..=8 => asks,
        9..=64 => asks.next_multiple_of(8),
        _ => asks.next_multiple_of(32),
    }
}

/// Sends rows to tables.
pub struct Writer {
    config: FlussConfig,
    /// What was not acknowledged is never sent again.
    once: bool,
    connection: Mutex<Arc<FlussConnection>>,
    replacing: tokio::sync::Mutex<()>,
    /// Held while metadata is fetched.
    preparing: tokio::sync::Mutex<()>,
    closed: AtomicBool,
}

/// Writes on their way.
#[derive(Default)]
pub struct Unfinished(Vec<Write>);

struct Write {
    /// Empty where the row is sent once only.
    row: Option<Sent>,
    handle: Result<ResultHandle>,
}

struct Sent {
    bucket_key: Bytes,
    key: Bytes,
    row: Option<Bytes>,
}

impl Writer {
    /// `once`: nothing is sent before it is waited for, so that a batch holds all that was handed over for its bucket, and
    /// nothing is sent again, so that no copy of it arrives late.
    pub async fn new(config: &FlussConfig, once: bool) -> Result<Self> {
        let connection = Mutex::new(Arc::new(connect(config, Self::linger(once)).await?));
        Ok(Self {
            config: config.clone(),
            once,
            connection,
            replacing: tokio::sync::Mutex::default(),
            preparing: tokio::sync::Mutex::default(),
            closed: AtomicBool::new(false),
        })
    }

    fn linger(once: bool) -> Duration {
        if once { NEVER } else { Duration::from_secs(1) }
    }

    pub fn connection(&self) -> Arc<FlussConnection> {
        self.connection.lock().clone()
    }

    /// Makes a table and who leads its buckets known to this connection.
    pub async fn prepare(&self, table: &Table) -> Result<()> {
        self.prepare_on(&self.connection(), table, Instant::now() + self.config.timeout).await
    }

    async fn prepare_on(&self, connection: &FlussConnection, table: &Table, deadline: Instant) -> Result<()> {
        loop {
            let alone = self.preparing.lock().await;
            forget_leaders(connection, |path| path == &*table.physical);
            let error = match tokio::time::timeout(REQUEST_TIMEOUT, connection.get_table(&table.path)).await {
                Ok(Ok(found)) if found.get_table_info().get_table_id() == table.id => {
                    let cluster = connection.get_metadata().get_cluster();
                    let is_led = |bucket: &i32| cluster.leader_for(&TableBucket::new(table.id, *bucket)).is_some();
                    match (0..table.buckets()).find(|bucket| !is_led(bucket)) {
                        None => return Ok(()),
                        Some(bucket) => format!("bucket {bucket} has no leader"),
                    }
                }
                Ok(Ok(_)) => return Err(replaced(table)),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {REQUEST_TIMEOUT:?}"),
            };
            drop(alone);
            if Instant::now() >= deadline {
                return Err(unavailable(format!("table {} cannot be written", table.path), error));
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    /// Hands a row to the client: `row` replaces what `key` had, `None` removes it. `bucket_key`: the encoded column that
    /// chooses the bucket.
    pub fn send(
        &self,
        table: &Table,
        bucket_key: Bytes,
        key: Vec<u8>,
        row: Option<Vec<u8>>,
        to: &mut Unfinished,
    ) -> Result<()> {
        // The client would make itself a new sender.
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::new(ErrorKind::Closed, format!("writing to table {} was cancelled", table.path)));
        }
        let sent = Sent { bucket_key, key: key.into(), row: row.map(Bytes::from) };
        let handle = hand_over(&self.connection(), table, &sent);
        match (self.once, handle) {
            (true, handle) => to.0.push(Write { row: None, handle: Ok(handle?) }),
            (false, handle) => to.0.push(Write { row: Some(sent), handle }),
        }
        Ok(())
    }

    /// Waits until every write is acknowledged. Unless the writer sends `once`, what is not is sent again.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`]: which of them have arrived, or will, is unknown.
    pub async fn finish(&self, table: &Table, mut writes: Unfinished) -> Result<()> {
        let deadline = Instant::now() + self.config.timeout;
        loop {
            let error = match self.finish_once(table, &writes, deadline).await {
                Err(error) if error.kind() == ErrorKind::Unavailable && !self.once && Instant::now() < deadline => {
                    error
                }
                done => return done,
            };
            tracing::debug!(%error, "sent again");
            tokio::time::sleep(RETRY_PAUSE).await;
            // Fetches the metadata too, with the new leader.
            let connection = self.connection();
            self.prepare_on(&connection, table, deadline).await?;
            for write in &mut writes.0 {
                if let Some(sent) = &write.row {
                    write.handle = hand_over(&connection, table, sent);
                }
            }
        }
    }

    /// Waits for what was sent, and sends nothing again.
    ///
    /// # Errors
    /// As [`Writer::finish`].
    pub async fn finish_once(&self, table: &Table, writes: &Unfinished, deadline: Instant) -> Result<()> {
        if writes.0.is_empty() {
            return Ok(());
        }
        let connection = self.connection();
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = if self.once { left } else { left.min(ACKNOWLEDGED_WITHIN) };
        let error = match tokio::time::timeout(limit, acknowledged(&connection, writes)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) if error.api_error() == Some(FlussError::TableNotExist) => return Err(replaced(table)),
            Ok(Err(error)) => error.to_string(),
            Err(_) => {
                if !self.once {
                    self.replace(&connection).await;
                }
                format!("no answer within {limit:?}")
            }
        };
        Err(unavailable(format!("rows of table {} are not acknowledged", table.path), error))
    }

    /// Gives up a connection, unless somebody did already. If there is no other, it stays.
    async fn replace(&self, old: &Arc<FlussConnection>) {
        let _one = self.replacing.lock().await;
        if self.closed.load(Ordering::Acquire) || !Arc::ptr_eq(old, &self.connection()) {
            return;
        }
        match connect(&self.config, Self::linger(self.once)).await {
            Ok(new) => {
                *self.connection.lock() = Arc::new(new);
                let old = old.clone();
                tokio::spawn(async move { cancel(&old).await });
            }
            Err(error) => tracing::warn!(%error, "no new connection"),
        }
    }

    /// Cancels what is being sent.
    pub async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        cancel(&self.connection()).await;
    }
}

/// Makes a connection ask anew who leads the buckets of some tables.
fn forget_leaders(connection: &FlussConnection, of: impl Fn(&PhysicalTablePath) -> bool) {
    let metadata = connection.get_metadata();
    let cluster = metadata.get_cluster();
    let paths = cluster.get_bucket_locations_by_path().keys().filter(|path| of(path));
    metadata.invalidate_physical_table_meta(&paths.map(|path| PhysicalTablePath::clone(path)).collect());
}

async fn cancel(connection: &FlussConnection) {
    forget_leaders(connection, |_| true);
    let _ = connection.close(CANCEL_WAIT).await;
}

fn hand_over(connection: &FlussConnection, table: &Table, sent: &Sent) -> Result<ResultHandle> {
    let record = WriteRecord::for_upsert(
        table.info.clone(),
        table.physical.clone(),
        table.info.get_schema_id(),
        sent.key.clone(),
        Some(sent.bucket_key.clone()),
        WriteFormat::CompactedKv,
        None,
        sent.row.clone().map(RowBytes::Owned),
    );
    let handle = connection.get_or_create_writer_client().and_then(|client| client.send(&record));
    handle.map_err(|error| unavailable(format!("table {} cannot be written", table.path), error))
}

async fn acknowledged(connection: &FlussConnection, writes: &Unfinished) -> fluss::error::Result<()> {
    // Only to send at once; what it says of the outcome is not used.
    let _ = connection.get_or_create_writer_client()?.flush().await;
    for write in &writes.0 {
        let handle = write
            .handle
            .as_ref()
            .map_err(|error| fluss::error::Error::UnexpectedError { message: error.to_string(), source: None })?;
        handle.result(handle.wait().await?)?;
    }
    Ok(())
}

/// A table that has another id than the version says.
pub fn replaced(table: &Table) -> StoreError {
    StoreError::new(
        ErrorKind::MissingVersion,
        format!("table {} was dropped and made again: its rows are gone; restore from another checkpoint", table.path),
    )
}
