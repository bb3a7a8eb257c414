//! The engines that `make test` does without: PostgreSQL, etcd, ZooKeeper, and a Redis of several
//! nodes.
//!
//! The feature `engines` compiles them. An engine takes writes when its constructor returns, and
//! its processes end with the value, or with the process where its tests share one.

mod cluster;
mod etcd;
mod full_disk;
mod postgres;
mod postgres_pair;
mod redlock;
mod sentinel;
pub mod stores;
mod zookeeper;

pub use cluster::Cluster;
pub use etcd::{EtcdCluster, EtcdServer, empty_etcd};
pub use postgres::{PgBouncer, PostgresDatabase, PostgresServer};
pub use postgres_pair::{PostgresPair, Replication};
pub use prost;
pub use redlock::{RedlockNodes, open_redlock, redlock_url, with_generous_timeouts};
pub use sentinel::Sentinels;
pub use tonic;
pub use tonic_prost;
pub use zookeeper::{Ensemble, ZookeeperRoot, ZookeeperServer};
pub use {opentelemetry_proto, zookeeper_client};
