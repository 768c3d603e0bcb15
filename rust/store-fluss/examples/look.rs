//! What Weir has in a database of Fluss: `cargo run --release -p weir-store-fluss --example look -- BOOTSTRAP DATABASE`.
//! `WEIR_FLUSS_SASL=USER:PASSWORD` for servers that ask for it.
//!
//! Prints `branch <job>/<operator>/<subtask>/<attempt>` for each branch of which anything is left.

use weir_store_fluss::{Credentials, FlussConfig, FlussStores};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [bootstrap, database] = &arguments[..] else { return Err("arguments: BOOTSTRAP DATABASE".into()) };
    let credentials = match std::env::var("WEIR_FLUSS_SASL") {
        Ok(sasl) => {
            let (user, password) = sasl.split_once(':').ok_or("WEIR_FLUSS_SASL is not USER:PASSWORD")?;
            Some(Credentials { user: user.to_owned(), password: password.to_owned() })
        }
        Err(_) => None,
    };
    let stores = FlussStores::new(FlussConfig { credentials, ..FlussConfig::new(bootstrap, database) });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    for branch in runtime.block_on(stores.branches())? {
        println!("branch {branch}");
    }
    Ok(())
}
