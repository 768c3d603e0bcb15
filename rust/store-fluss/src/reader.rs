//! A version that is open to be read.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use weir_store::{KeyGroupRange, Page, PageLimit, Result, StateReader};

use crate::control::{Entry, now};
use crate::view::{Remainder, View};
use crate::{Shared, groups_of};

/// How long a reader's entry holds after the reader's process died.
const LIFETIME: Duration = Duration::from_secs(15 * 60);

pub struct FlussReader {
    shared: Arc<Shared>,
    entry: Entry,
    view: View,
    remainder: Remainder,
    renewal: JoinHandle<()>,
}

fn renewed(entry: &Entry) -> Entry {
    Entry { expires: now() + LIFETIME.as_nanos() as u64, ..entry.clone() }
}

impl FlussReader {
    /// Writes the reader's entry. The caller looks afterwards whether the version is still there.
    pub async fn open(shared: Arc<Shared>, entry: Entry, view: View) -> Result<Self> {
        shared.control.put(&renewed(&entry)).await?;
        let (of, renewing) = (shared.clone(), entry.clone());
        let renewal = shared.runtime.spawn(async move {
            loop {
                tokio::time::sleep(LIFETIME / 3).await;
                if let Err(error) = of.control.put(&renewed(&renewing)).await {
                    tracing::warn!(%error, version = %renewing.version(), "the hold of a reader is not renewed");
                }
            }
        });
        let reader = Self { shared, entry, view, remainder: Remainder::default(), renewal };
        reader.view.verify(&reader.shared.lookups).await?;
        Ok(reader)
    }

    fn range(&self) -> KeyGroupRange {
        self.entry.range
    }
}

impl StateReader for FlussReader {
    fn get_many<'a>(&'a self, keys: &'a [Bytes]) -> BoxFuture<'a, Result<Vec<Option<Bytes>>>> {
        async move {
            let mut values = self.view.get_many(&self.shared.lookups, keys).await?;
            for (key, value) in keys.iter().zip(&mut values) {
                if !self.range().contains_key(key) {
                    *value = None;
                }
            }
            Ok(values)
        }
        .boxed()
    }

    fn scan<'a>(&'a self, prefix: &'a [u8], after: Option<&'a [u8]>, limit: PageLimit) -> BoxFuture<'a, Result<Page>> {
        self.view.scan(&self.shared.lookups, &self.remainder, 0, prefix, after, limit).boxed()
    }
}

impl Drop for FlussReader {
    fn drop(&mut self) {
        self.renewal.abort();
        let (shared, entry) = (self.shared.clone(), self.entry.clone());
        self.shared.runtime.spawn(async move {
            match shared.control.remove([&entry]).await {
                Ok(()) => drop(shared.collect_later(groups_of([&entry]))),
                Err(error) => tracing::warn!(%error, "the hold of a reader stays until it expires"),
            }
        });
    }
}
