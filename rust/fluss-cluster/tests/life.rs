//! A cluster answers when it is said to be ready, and is gone with its test.

use std::net::TcpStream;

use weir_fluss_cluster::{Cluster, Options};

#[test]
fn lives_as_long_as_its_owner() {
    let cluster = Cluster::start(Options::default());
    let bootstrap = cluster.bootstrap().to_owned();
    TcpStream::connect(&bootstrap).expect("the coordinator answers");
    cluster.kill("coordinator");
    TcpStream::connect(&bootstrap).expect_err("the coordinator is gone");
    cluster.restart("coordinator");
    TcpStream::connect(&bootstrap).expect("the coordinator answers again");
    drop(cluster);
    TcpStream::connect(&bootstrap).expect_err("nothing is left");
}
