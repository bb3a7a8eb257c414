//! What an engine does without keylatch: two writes of a value under its key, in turn, by its own
//! protocol; and for etcd also its own lock API, over HTTP.
//!
//! PostgreSQL has a connection for each task. The clients of etcd, ZooKeeper and Redis send what
//! all tasks write over one, as their protocols are made for.

use std::net::SocketAddr;

use keylatch_testkit::prost::Message;
use keylatch_testkit::tonic::client::Grpc;
use keylatch_testkit::tonic::codegen::http::uri::PathAndQuery;
use keylatch_testkit::tonic::transport::{Channel, Endpoint};
use keylatch_testkit::tonic_prost::ProstCodec;
use keylatch_testkit::zookeeper_client::{Acls, Client, CreateMode, Error};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::net::lookup_host;
use tokio::sync::Mutex;
use tokio_postgres::{NoTls, Statement};

use crate::Result;
use crate::load::{CONNECTIONS, Connection};

const TABLE: &str = "DROP TABLE IF EXISTS keylatch_bench;
    CREATE TABLE keylatch_bench (key int PRIMARY KEY, value bigint NOT NULL);
    INSERT INTO keylatch_bench SELECT key, 0 FROM generate_series(0, 63) AS key";
const UPDATE: &str = "UPDATE keylatch_bench SET value = value + 1 WHERE key = $1";
/// About as much as a lock takes.
const VALUE: [u8; 64] = [b'v'; 64];

/// An engine as its own clients use it.
pub(crate) enum EngineAlone {
    Postgres(Vec<(tokio_postgres::Client, Statement)>),
    Etcd(Channel),
    Zookeeper(Client),
    Redis(MultiplexedConnection),
}

impl EngineAlone {
    /// Connects to the engine that a store's URL names, without TLS.
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        match url.split_once("://") {
            Some(("postgres" | "postgresql", _)) => connect_postgres(url).await,
            Some(("etcd", rest)) => {
                let endpoint = Endpoint::from_shared(format!("http://{}", first_host(rest)))?;
                Ok(Self::Etcd(endpoint.connect().await?))
            }
            Some(("zookeeper", rest)) => connect_zookeeper(hosts(rest)).await,
            Some(("redis", _)) => connect_redis(url).await,
            _ => Err("--store takes a postgres:, an etcd:, a zookeeper: or a redis: URL".into()),
        }
    }

    /// One task's cycle.
    pub(crate) async fn write_twice(&self, task: usize) -> Result<()> {
        for _ in 0..2 {
            match self {
                Self::Postgres(connections) => {
                    let (client, update) = &connections[task];
                    client.execute(update, &[&i32::try_from(task)?]).await?;
                }
                Self::Etcd(channel) => put(channel, task).await?,
                Self::Zookeeper(client) => {
                    client.set_data(&node(task), &VALUE, None).await?;
                }
                Self::Redis(connection) => {
                    let mut set = redis::cmd("SET");
                    set.arg(key(task)).arg(&VALUE[..]);
                    set.exec_async(&mut connection.clone()).await?;
                }
            }
        }
        Ok(())
    }
}

/// The hosts of a URL after its scheme.
fn hosts(rest: &str) -> &str {
    let authority = rest.split('/').next().unwrap_or_default();
    authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts)
}

fn first_host(rest: &str) -> &str {
    hosts(rest).split(',').next().unwrap_or_default()
}

async fn connect_postgres(url: &str) -> Result<EngineAlone> {
    let mut connections = Vec::new();
    for number in 0..CONNECTIONS {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        if number == 0 {
            client.batch_execute(TABLE).await?;
        }
        let update = client.prepare(UPDATE).await?;
        connections.push((client, update));
    }
    Ok(EngineAlone::Postgres(connections))
}

async fn connect_zookeeper(hosts: &str) -> Result<EngineAlone> {
    let client = Client::connector().connect(hosts).await?;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for task in 0..CONNECTIONS {
        match client.create(&node(task), &VALUE, &options).await {
            Ok(_) | Err(Error::NodeExists) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(EngineAlone::Zookeeper(client))
}

fn node(task: usize) -> String {
    format!("/{}", key(task))
}

async fn connect_redis(url: &str) -> Result<EngineAlone> {
    // A disk that is slow to sync is to be measured, and no failure.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(url)?;
    let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    Ok(EngineAlone::Redis(connection))
}

fn key(task: usize) -> String {
    format!("keylatch-bench-{task}")
}

/// `PutRequest` of etcd's `rpc.proto`.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(prost_path = "::keylatch_testkit::prost")]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// What is read of its answer.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
#[prost(prost_path = "::keylatch_testkit::prost")]
struct PutResponse {}

async fn put(channel: &Channel, task: usize) -> Result<()> {
    let request = PutRequest { key: key(task).into_bytes(), value: VALUE.to_vec() };
    let request = keylatch_testkit::tonic::Request::new(request);
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await?;
    let codec = ProstCodec::<PutRequest, PutResponse>::default();
    grpc.unary(request, PathAndQuery::from_static("/etcdserverpb.KV/Put"), codec).await?;
    Ok(())
}

/// etcd's own locks by its JSON gateway: a connection and a lease for each task, which it keeps.
pub(crate) struct EtcdGateway(Vec<Mutex<(Connection, String)>>);

impl EtcdGateway {
    /// Connects to the first host of a store's URL.
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let (_, rest) = url.split_once("://").ok_or("not a URL")?;
        let mut addresses = lookup_host(first_host(rest)).await?;
        let address: SocketAddr = addresses.next().ok_or("the host has no address")?;
        let mut tasks = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut connection = Connection::open(address).await?;
            let lease = post(&mut connection, "lease/grant", r#"{"TTL":"3600"}"#, "ID").await?;
            tasks.push(Mutex::new((connection, lease)));
        }
        Ok(Self(tasks))
    }

    /// One task's cycle.
    pub(crate) async fn lock_and_unlock(&self, task: usize) -> Result<()> {
        let mut connection = self.0[task].lock().await;
        let (connection, lease) = &mut *connection;
        // Eight letters and digits are base64 of some name.
        let body = format!(r#"{{"name":"name{task:04}","lease":"{lease}"}}"#);
        let key = post(connection, "lock/lock", &body, "key").await?;
        post(connection, "lock/unlock", &format!(r#"{{"key":"{key}"}}"#), "header").await?;
        Ok(())
    }
}

/// Calls a method of the gateway; the text of one member of the answer, as it stands there.
async fn post(
    connection: &mut Connection,
    method: &str,
    body: &str,
    member: &str,
) -> Result<String> {
    let request = format!(
        "POST /v3/{method} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = connection.exchange(request.as_bytes(), 200).await?;
    let text = std::str::from_utf8(&connection.buffer[..answer.bytes])?;
    let (_, value) =
        text.rsplit_once(&format!("\"{member}\":")).ok_or("the answer lacks a member")?;
    let value = value.trim_start_matches('"');
    Ok(value.split('"').next().unwrap_or_default().to_owned())
}
