//! The promises of every store, on SlateDB and a local directory.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tempfile::TempDir;
use weir_store::Stores;
use weir_store::promises::Subject;
use weir_store_slatedb::{SlateConfig, SlateStores};

struct Slate {
    directory: TempDir,
    stores: SlateStores,
}

fn subject() -> Slate {
    let directory = TempDir::new().unwrap();
    let url = format!("file://{}", directory.path().display());
    let stores = SlateStores::new(&url, SlateConfig::default()).unwrap();
    Slate { directory, stores }
}

impl Subject for Slate {
    fn stores(&self) -> Arc<dyn Stores> {
        Arc::new(self.stores.clone())
    }

    /// Whatever folder is left at the depth of a branch, in both trees, empty or not.
    fn branches(&self) -> BoxFuture<'_, Vec<String>> {
        let mut found = std::collections::BTreeSet::new();
        for tree in ["branches", "pins"] {
            let mut level = vec![(self.directory.path().join(tree), String::new())];
            for depth in 0..4 {
                let mut next = Vec::new();
                for (folder, path) in level {
                    let Ok(entries) = std::fs::read_dir(&folder) else { continue };
                    let before = next.len();
                    for entry in entries.flatten() {
                        let name = entry.file_name().into_string().unwrap();
                        if name.contains('#') {
                            continue;
                        }
                        next.push((entry.path(), if depth == 0 { name } else { format!("{path}/{name}") }));
                    }
                    if next.len() == before && folder.is_dir() {
                        found.insert(format!("empty folder {}", folder.display()));
                    }
                }
                level = next;
            }
            found.extend(level.into_iter().map(|(_, path)| path));
        }
        async move { found.into_iter().collect() }.boxed()
    }
}

weir_store::promises::suite!(subject);
