//! The tables: made with what exactness needs, and refused where it lacks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fluss::metadata::{DataTypes, PhysicalTablePath, Schema, TableDescriptor, TableInfo, TablePath};
use fluss::rpc::FlussError;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use weir_store::{BranchName, ErrorKind, Result, StoreError};

use crate::client::{Lookups, Unfinished, Writer, unavailable};
use crate::config::FlussConfig;
use crate::encoding::{self, MAX_BUCKETS, WIDTHS};

/// The table of what is open, committed and read: one bucket, so that all who change or read it do so in one order.
pub const CONTROL_TABLE: &str = "weir-control";
/// Key groups that lie side by side in a bucket.
const GROUPS_TOGETHER: u32 = 8;
/// A table of rows from which a bucket can be told is written to by its chain rows only; this one is for the first.
const FIRST: u64 = 0;
/// How long the election of leaders may take before a table is used all the same.
const ELECTION_WAIT: Duration = Duration::from_secs(3);
/// Between two looks for a table that is being made.
const PAUSE: Duration = Duration::from_millis(50);

/// A table and what its rows need.
pub struct Table {
    pub path: TablePath,
    pub id: i64,
    pub info: Arc<TableInfo>,
    pub physical: Arc<PhysicalTablePath>,
    /// The value of column `bucket` that lies in each bucket.
    pub bucket_keys: Vec<u32>,
}

impl Table {
    /// The bucket of a key group.
    pub fn bucket(&self, group: u16) -> i32 {
        (u32::from(group) / GROUPS_TOGETHER % self.bucket_keys.len() as u32) as i32
    }

    /// The value of column `bucket` in a bucket.
    pub fn b(&self, bucket: i32) -> u32 {
        self.bucket_keys[bucket as usize]
    }

    pub fn buckets(&self) -> i32 {
        self.bucket_keys.len() as i32
    }

    /// The bucket key as the client wants it.
    pub fn bucket_key(&self, bucket: i32) -> Bytes {
        vec![self.b(bucket) as u8].into()
    }
}

/// The table that an operator's first attempts write to, and the prefix of its entries in the control table:
/// `<job>__<operator>`, where `_xx` is any byte but letters, digits and `-`.
pub fn home(branch: &BranchName) -> String {
    let [job, operator, ..] = branch.components();
    let name = format!("{}__{}", escape(job), escape(operator));
    if name.len() <= 200 { name } else { format!("{}_{:016x}", &name[..180], fnv(name.as_bytes())) }
}

fn escape(part: &str) -> String {
    let mut out = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' {
            out.push(byte as char);
        } else {
            out.push_str(&format!("_{byte:02x}"));
        }
    }
    out
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

/// What exactness needs of a table; these are set, and looked for.
fn properties(config: &FlussConfig) -> Vec<(&'static str, String)> {
    vec![
        // The log is read by nobody but followers and recovery; old images of rows would double it.
        ("table.changelog.image", "wal".to_owned()),
        // The encoding that this store writes and reads by itself.
        ("table.kv.format", "COMPACTED".to_owned()),
        ("table.replication.factor", config.replication.to_string()),
    ]
}

/// Properties that must not be set to anything but this.
const FORBIDDEN: [(&str, Option<&str>); 5] = [
    ("table.merge-engine", None),
    ("table.auto-partition.enabled", Some("false")),
    ("table.datalake.format", None),
    ("table.datalake.enabled", Some("false")),
    ("table.delete.behavior", Some("allow")),
];

/// Columns of a table of rows after the bucket and the key group, by the widths of [`WIDTHS`].
const KEY_COLUMNS: [&str; WIDTHS.len()] = ["state", "key1", "key2", "key3", "key4"];

/// Their names and comments are for whoever looks into a table; Weir goes by their places.
fn rows_schema() -> fluss::error::Result<Schema> {
    let mut builder = Schema::builder()
        .column("bucket", DataTypes::int())
        .with_comment("chooses the bucket")
        .column("key_group", DataTypes::int())
        .with_comment("Flink's key group; 65536: rows by which Weir sees that nothing was lost");
    for name in KEY_COLUMNS {
        builder = builder.column(name, DataTypes::bytes());
        if name == "state" {
            builder = builder.with_comment("the first four bytes of the SHA-256 of the state's name");
        }
    }
    builder = builder
        .column("key_rest", DataTypes::bytes())
        .column("generation", DataTypes::bytes())
        .with_comment("who wrote the row")
        .column("slot", DataTypes::int())
        .column("epoch", DataTypes::bigint())
        .column("state_value", DataTypes::bytes())
        .with_comment("as Flink's serializer wrote it; NULL: deleted");
    let key = ["bucket", "key_group"].into_iter().chain(KEY_COLUMNS).chain(["key_rest", "generation", "slot"]);
    builder.primary_key(key.collect::<Vec<_>>())?.build()
}

fn control_schema() -> fluss::error::Result<Schema> {
    let builder = Schema::builder().column("t", DataTypes::string()).column("k", DataTypes::string());
    builder.column("v", DataTypes::bytes()).primary_key(vec!["t", "k"])?.build()
}

/// Why a look at a table showed nothing.
struct LookError {
    /// The coordinator said that there is none.
    missing: bool,
    cause: String,
}

/// The tables of one database, each looked at once a process.
pub struct Tables {
    config: FlussConfig,
    known: Mutex<HashMap<String, Arc<OnceCell<Arc<Table>>>>>,
}

impl Tables {
    pub fn new(config: FlussConfig) -> Self {
        Self { config, known: Mutex::default() }
    }

    /// The table of rows `name`, or `None` if it is not there.
    pub async fn rows(
        &self,
        writer: &Writer,
        lookups: &Lookups,
        name: &str,
        create: bool,
    ) -> Result<Option<Arc<Table>>> {
        self.table(writer, lookups, name, create, false).await
    }

    /// The control table, or `None` if it is not there.
    pub async fn control(&self, writer: &Writer, lookups: &Lookups, create: bool) -> Result<Option<Arc<Table>>> {
        self.table(writer, lookups, CONTROL_TABLE, create, true).await
    }

    async fn table(
        &self,
        writer: &Writer,
        lookups: &Lookups,
        name: &str,
        create: bool,
        control: bool,
    ) -> Result<Option<Arc<Table>>> {
        // Each alone: a job may have many, and making one takes a while.
        let known = self.known.lock().entry(name.to_owned()).or_default().clone();
        let find = async || self.find(writer, lookups, name, create, control).await.map_err(Some)?.ok_or(None);
        match known.get_or_try_init(find).await {
            Ok(table) => Ok(Some(table.clone())),
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
    }

    async fn find(
        &self,
        writer: &Writer,
        lookups: &Lookups,
        name: &str,
        create: bool,
        control: bool,
    ) -> Result<Option<Arc<Table>>> {
        let path = TablePath::new(self.config.database.clone(), name);
        let schema = if control { control_schema() } else { rows_schema() };
        let schema = schema.map_err(|error| StoreError::new(ErrorKind::Internal, format!("schema: {error}")))?;
        let buckets = if control { 1 } else { self.config.buckets };
        // A server refuses to make what it could not make, such as more replicas than there are servers, also where the
        // table is there already.
        let mut found = if create { self.look_once(writer, &path).await.ok() } else { None };
        if found.is_none() {
            if create {
                self.create(writer, &path, &schema, buckets, control).await?;
            }
            found = self.look(writer, &path, create).await?;
        }
        let Some(info) = found else { return Ok(None) };
        self.check(&path, &info, &schema, control)?;
        let buckets = info.get_num_buckets();
        let bucket_keys = if buckets <= MAX_BUCKETS { encoding::bucket_keys(buckets) } else { None };
        let bucket_keys = bucket_keys.ok_or_else(|| {
            let message = format!("table {path} has {buckets} buckets; at most {MAX_BUCKETS} are supported");
            StoreError::new(ErrorKind::InvalidArgument, message)
        })?;
        let table = Arc::new(Table {
            id: info.get_table_id(),
            physical: Arc::new(PhysicalTablePath::of(Arc::new(path.clone()))),
            path,
            info: Arc::new(info),
            bucket_keys,
        });
        if create {
            self.await_leaders(writer).await;
        }
        writer.prepare(&table).await?;
        if !control {
            // The first writes to a new table fail for a while; these may be sent again, as they say nothing.
            let mut writes = Unfinished::default();
            for bucket in 0..table.buckets() {
                let key = encoding::chain_key(table.b(bucket), FIRST, 0);
                let row = encoding::row(&key, 0, None);
                writer.send(&table, table.bucket_key(bucket), key, Some(row), &mut writes)?;
            }
            writer.finish(&table, writes).await?;
        }
        lookups.refresh(&table).await;
        Ok(Some(table))
    }

    async fn create(
        &self,
        writer: &Writer,
        path: &TablePath,
        schema: &Schema,
        buckets: i32,
        control: bool,
    ) -> Result<()> {
        let what = || format!("table {path} cannot be made");
        let keys = if control { "t" } else { "bucket" };
        let mut builder = TableDescriptor::builder()
            .schema(schema.clone())
            .distributed_by(Some(buckets), vec![keys.to_owned()])
            .comment("state of Apache Flink operators, kept by Weir");
        for (key, value) in properties(&self.config) {
            builder = builder.property(key, value);
        }
        let descriptor =
            builder.build().map_err(|error| StoreError::new(ErrorKind::Internal, format!("{}: {error}", what())))?;
        let deadline = Instant::now() + self.config.timeout;
        loop {
            let made = async {
                let connection = writer.connection();
                let admin = connection.get_admin()?;
                admin.create_database(path.database(), None, true).await?;
                admin.create_table(path, &descriptor, true).await
            };
            let error = match tokio::time::timeout(self.config.timeout, made).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {:?}", self.config.timeout),
            };
            if Instant::now() >= deadline {
                return Err(unavailable(what(), error));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits, not for long, until every bucket of the cluster has a leader.
    ///
    /// A tablet server that is asked for a new table before the election looks into ZooKeeper, and may put what it saw there
    /// over what the coordinator has told it meanwhile: it then knows of no leader until that changes (Fluss 1.0.0,
    /// `TabletServerMetadataProvider.getTablesMetadataFromZK`). The coordinator answers after it has handled what came before.
    async fn await_leaders(&self, writer: &Writer) {
        let waiting = async {
            loop {
                let connection = writer.connection();
                let health = match connection.get_admin() {
                    Ok(admin) => admin.get_cluster_health().await,
                    Err(error) => Err(error),
                };
                match health {
                    Ok(health) if health.active_leader_replicas < health.num_leader_replicas => {
                        tokio::time::sleep(PAUSE).await;
                    }
                    Ok(_) => return,
                    // Perhaps this user may not ask.
                    Err(error) => return tracing::debug!(%error, "the health of the cluster is unknown"),
                }
            }
        };
        let _ = tokio::time::timeout(ELECTION_WAIT, waiting).await;
    }

    async fn look_once(&self, writer: &Writer, path: &TablePath) -> Result<TableInfo, LookError> {
        let looked = async { writer.connection().get_admin()?.get_table_info(path).await };
        match tokio::time::timeout(self.config.timeout, looked).await {
            Ok(Ok(info)) => Ok(info),
            Ok(Err(error)) => {
                let missing =
                    matches!(error.api_error(), Some(FlussError::TableNotExist | FlussError::DatabaseNotExist));
                Err(LookError { missing, cause: error.to_string() })
            }
            Err(_) => Err(LookError { missing: false, cause: format!("no answer within {:?}", self.config.timeout) }),
        }
    }

    /// What the coordinator says of a table, which knows best; `None` if it says that there is none. `made`: there is.
    async fn look(&self, writer: &Writer, path: &TablePath, made: bool) -> Result<Option<TableInfo>> {
        let deadline = Instant::now() + self.config.timeout;
        loop {
            let error = match self.look_once(writer, path).await {
                Ok(info) => return Ok(Some(info)),
                Err(error) if error.missing && !made => return Ok(None),
                Err(error) => error.cause,
            };
            if Instant::now() >= deadline {
                return Err(unavailable(format!("table {path} cannot be looked at"), error));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn check(&self, path: &TablePath, info: &TableInfo, schema: &Schema, control: bool) -> Result<()> {
        let refuse = |message: String| {
            Err(StoreError::new(
                ErrorKind::InvalidArgument,
                format!("table {path} cannot hold Weir's state: {message}; drop it or name another database"),
            ))
        };
        let found = info.get_schema();
        if found.column_names() != schema.column_names()
            || found.primary_key_column_names() != schema.primary_key_column_names()
        {
            return refuse(format!("its columns are {:?}, expected {:?}", found.column_names(), schema.column_names()));
        }
        let types = |schema: &Schema| -> Vec<_> {
            schema.columns().iter().map(|column| column.data_type().to_string()).collect()
        };
        let nullable = |name: &String| name.replace(" NOT NULL", "");
        if types(found).iter().map(nullable).ne(types(schema).iter().map(nullable)) {
            return refuse(format!("its columns have the types {:?}, expected {:?}", types(found), types(schema)));
        }
        let bucket_key = [if control { "t" } else { "bucket" }];
        if info.get_bucket_keys() != bucket_key || control && info.get_num_buckets() != 1 {
            return refuse(format!("bucket.key is {:?} in {} buckets", info.get_bucket_keys(), info.get_num_buckets()));
        }
        if info.is_partitioned() {
            return refuse("it is partitioned".to_owned());
        }
        let found = info.get_properties();
        for (key, expected) in properties(&self.config) {
            let value = found.get(key).map(String::as_str).unwrap_or("not set");
            let enough = match key {
                "table.replication.factor" => value.parse::<i32>().is_ok_and(|found| found >= self.config.replication),
                _ => value.eq_ignore_ascii_case(&expected),
            };
            if !enough {
                return refuse(format!("property {key} is {value}, needed is {expected}"));
            }
        }
        for (key, harmless) in FORBIDDEN {
            if let Some(value) = found.get(key)
                && harmless.is_none_or(|harmless| !harmless.eq_ignore_ascii_case(value))
            {
                return refuse(format!("property {key} is {value}"));
            }
        }
        Ok(())
    }
}
