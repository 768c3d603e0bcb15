//! The client of Fluss alone, on plain primary-key tables: what any store in Fluss has to pay at least.

use std::collections::HashMap;

use bytes::Bytes;
use fluss::client::{FlussConnection, Lookuper, PrefixKeyLookuper, UpsertWriter};
use fluss::config::Config;
use fluss::error::Result;
use fluss::metadata::{DataTypes, Schema, TableDescriptor, TablePath};
use fluss::row::GenericRow;
use weir_store::Row;

const DATABASE: &str = "plain";
const BUCKETS: i32 = 8;
/// Lookups in a request of a large batch: larger requests wait for a packet's acknowledgement.
const LARGEST_BATCH: usize = 128;
/// Where a map's key ends in the key of its entries.
const MAP_KEY_BYTES: usize = 15;

/// The tables, and connections whose lookups are sent in batches of one size.
pub struct Bare {
    by_batch: HashMap<usize, Reading>,
    writer: UpsertWriter,
    map_writer: UpsertWriter,
    map_reader: PrefixKeyLookuper,
}

/// Kept alive with the connection that they belong to.
struct Reading {
    lookupers: Vec<Lookuper>,
    _connection: FlussConnection,
}

impl Bare {
    /// Makes the tables and connects, once for each size of batch that is to be read.
    pub async fn new(bootstrap: &str, batches: &[usize]) -> Result<Self> {
        let connection = connect(bootstrap, 1).await?;
        let admin = connection.get_admin()?;
        admin.create_database(DATABASE, None, true).await?;
        let values = Schema::builder().column("k", DataTypes::bytes()).column("v", DataTypes::bytes());
        create(&connection, "values", values.primary_key(vec!["k"])?.build()?, "k").await?;
        let maps = Schema::builder().column("m", DataTypes::bytes()).column("u", DataTypes::bytes());
        let maps = maps.column("v", DataTypes::bytes()).primary_key(vec!["m", "u"])?.build()?;
        create(&connection, "maps", maps, "m").await?;
        let table = |name| TablePath::new(DATABASE, name);
        let writer = connection.get_table(&table("values")).await?.new_upsert()?.create_writer()?;
        let map_table = connection.get_table(&table("maps")).await?;
        let map_writer = map_table.new_upsert()?.create_writer()?;
        let map_reader = map_table.new_lookup()?.lookup_by(vec!["m".to_owned()]).create_lookuper()?;
        let mut by_batch = HashMap::new();
        for batch in batches {
            let connection = connect(bootstrap, (*batch).min(LARGEST_BATCH)).await?;
            let values = connection.get_table(&table("values")).await?;
            let lookupers = (0..*batch).map(|_| values.new_lookup()?.create_lookuper()).collect::<Result<_>>()?;
            drop(values);
            by_batch.insert(*batch, Reading { lookupers, _connection: connection });
        }
        Ok(Self { by_batch, writer, map_writer, map_reader })
    }

    /// Writes rows and waits for every acknowledgement.
    pub async fn upsert(&self, rows: &[Row]) -> Result<()> {
        let mut written = Vec::with_capacity(rows.len());
        for row in rows {
            let mut columns = GenericRow::new(2);
            columns.set_field(0, &row.key[..]);
            match &row.value {
                Some(value) => {
                    columns.set_field(1, &value[..]);
                    written.push(self.writer.upsert(&columns)?);
                }
                None => written.push(self.writer.delete(&columns)?),
            }
        }
        self.writer.flush().await?;
        futures::future::try_join_all(written).await?;
        Ok(())
    }

    /// The same for the entries of maps.
    pub async fn upsert_entries(&self, rows: &[Row]) -> Result<()> {
        let mut written = Vec::with_capacity(rows.len());
        for row in rows {
            let mut columns = GenericRow::new(3);
            columns.set_field(0, &row.key[..MAP_KEY_BYTES]);
            columns.set_field(1, &row.key[MAP_KEY_BYTES..]);
            columns.set_field(2, &row.value.as_ref().expect("entries are not deleted")[..]);
            written.push(self.map_writer.upsert(&columns)?);
        }
        self.map_writer.flush().await?;
        futures::future::try_join_all(written).await?;
        Ok(())
    }

    /// Looks all keys up at once; there is a row of each.
    pub async fn get(&mut self, keys: &[Bytes]) -> Result<()> {
        let reading = self.by_batch.get_mut(&keys.len()).expect("a size that was announced");
        let lookups = reading.lookupers.iter_mut().zip(keys).map(async |(lookuper, key)| {
            let mut columns = GenericRow::new(1);
            columns.set_field(0, &key[..]);
            let found = lookuper.lookup(&columns).await?;
            assert!(found.get_single_row()?.is_some(), "no row of {key:?}");
            Result::Ok(())
        });
        futures::future::try_join_all(lookups).await?;
        Ok(())
    }

    /// Reads a map of so many entries.
    pub async fn scan(&mut self, map: &[u8], entries: u64) -> Result<()> {
        let mut columns = GenericRow::new(1);
        columns.set_field(0, map);
        let found = self.map_reader.lookup(&columns).await?;
        assert_eq!(found.get_rows()?.len() as u64, entries);
        Ok(())
    }
}

async fn connect(bootstrap: &str, batch: usize) -> Result<FlussConnection> {
    let config = Config {
        bootstrap_servers: bootstrap.to_owned(),
        lookup_max_batch_size: batch,
        // The default adds 100 ms to whatever does not fill a batch.
        lookup_batch_timeout_ms: 1,
        ..Config::default()
    };
    FlussConnection::new(config).await
}

async fn create(connection: &FlussConnection, name: &str, schema: Schema, bucket_key: &str) -> Result<()> {
    let table = TableDescriptor::builder()
        .schema(schema)
        .distributed_by(Some(BUCKETS), vec![bucket_key.to_owned()])
        .property("table.changelog.image", "wal")
        .build()?;
    connection.get_admin()?.create_table(&TablePath::new(DATABASE, name), &table, true).await
}
