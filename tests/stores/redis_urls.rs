//! Goal: every URL that names a Redis works, and the permissions in the documents suffice.
//!
//! Method: sockets, users, passwords, databases and users with the documented permissions alone, on
//! one Redis, Sentinel, Cluster and Redlock.

use keylatch_testkit::{Answer, RedisServer, Service, eventually, soon};
#[cfg(feature = "test-engines")]
use keylatch_testkit::{Cluster, RedlockNodes, Sentinels, config, with_generous_timeouts};
use redis::Value;
use reqwest::{Method, RequestBuilder};
use serde_json::json;

#[cfg(feature = "test-engines")]
use crate::redlock::lives_through_its_life;

#[tokio::test]
async fn socket_user_password_and_database_are_used() {
    let socket = tempfile::tempdir().unwrap().keep().join("redis.sock");
    let path = socket.display().to_string();
    let redis = RedisServer::start_with(&["--unixsocket", &path]).await;
    let () = redis.run(&["ACL", "SETUSER", "locks", "on", ">s3cret", "~*", "&*", "+@all"]).await;
    let () = redis.run(&["ACL", "SETUSER", "default", "resetpass", "nopass"]).await;
    let address = redis.address();
    for (url, way) in [
        (format!("redis://locks:s3cret@{address}/3"), &*address),
        (format!("redis+unix://{path}?db=3&user=locks&pass=s3cret"), &*path),
    ] {
        let service = Service::start(&url).await;
        let lease = service.create("deploy", &json!({})).await;
        assert_eq!(lease.status, 201, "{url}: {lease:?}");
        let keys: String = redis.run(&["INFO", "keyspace"]).await;
        assert!(keys.contains("db3:") && !keys.contains("db0:"), "{url}: {keys}");
        assert_eq!(service.release("deploy", &lease.token()).await.status, 204, "{url}");
        // What is heard of turns comes the same way.
        eventually(async || {
            let listening: String = redis.run(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
            let mut listening = listening.lines().filter(|client| client.contains("user=locks"));
            listening.find(|client| client.contains("db=3") && client.contains(way)).map(drop)
        })
        .await;
    }
    std::fs::remove_dir_all(socket.parent().unwrap()).unwrap();
}

#[tokio::test]
async fn documented_permissions_suffice_for_one_redis() {
    let redis = RedisServer::start().await;
    let () = redis.run(&from_readme("~keylatch:*")).await;
    let service = Service::start(&format!("redis://keylatch:PASSWORD@{}/1", redis.address())).await;
    everything_works(&service, [&redis]).await;
}

#[cfg(feature = "test-engines")]
#[tokio::test]
async fn documented_permissions_suffice_for_sentinel() {
    let set = Sentinels::start(1, 1).await;
    for server in &set.servers {
        let () = server.run(&from_readme("~keylatch:*")).await;
        let () = server.run(&from_readme("+wait")).await;
    }
    let master = &set.servers[0];
    for url in [master.url(), set.url()] {
        let mut config = config(&url.replace("://", "://keylatch:PASSWORD@"));
        config.redis.min_replicas = 1;
        let service = Service::start_with(config).await;
        everything_works(&service, [master]).await;
        let waits: String = master.run(&["INFO", "commandstats"]).await;
        assert!(waits.contains("cmdstat_wait:"), "{waits}");
        set.flush().await;
    }
}

#[cfg(feature = "test-engines")]
#[tokio::test]
async fn documented_permissions_suffice_for_cluster() {
    let cluster = Cluster::start(3, 0).await;
    for node in &cluster.nodes {
        let () = node.run(&from_readme("~keylatch:*")).await;
        let () = node.run(&from_readme("+asking")).await;
    }
    let service = Service::start(&cluster.url().replace("://", "://keylatch:PASSWORD@")).await;
    everything_works(&service, &cluster.nodes).await;
    // A lock whose slot is on its way is asked for behind an `ASKING`.
    let lease = service.create("moving", &json!({"ttl_ms": 60_000})).await;
    let tag = format!(
        "{{{:02x}}}",
        keylatch_core::lock::LockName::parse("moving").expect("a name").bucket()
    );
    let slot: u16 = cluster.nodes[0].run(&["CLUSTER", "KEYSLOT", &tag]).await;
    let from = cluster.home(slot);
    let (from, to) = (&cluster.nodes[from], &cluster.nodes[(from + 1) % 3]);
    let source: String = from.run(&["CLUSTER", "MYID"]).await;
    let target: String = to.run(&["CLUSTER", "MYID"]).await;
    let (slot, port) = (slot.to_string(), to.port().to_string());
    let () = to.run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]).await;
    let () = from.run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]).await;
    let keys: Vec<String> = from.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).await;
    for key in keys {
        let _: String = from.run(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]).await;
    }
    let renewed = service.renew("moving", &lease.token(), &json!({})).await;
    assert_eq!((renewed.status.as_u16(), renewed.fencing_token()), (200, lease.fencing_token()));
    nothing_was_denied(&cluster.nodes).await;
}

#[cfg(feature = "test-engines")]
#[tokio::test]
async fn documented_permissions_suffice_for_redlock() {
    let nodes = RedlockNodes::start().await;
    for node in nodes.iter() {
        let () = node.run(&from_readme("~keylatch:*")).await;
        let () = node.run(&from_readme("+hmget")).await;
    }
    let url = nodes.url().replace("://", "://keylatch:PASSWORD@");
    let service = Service::start_with(with_generous_timeouts(config(&url))).await;
    lives_through_its_life(&service).await;
    nothing_was_denied(nodes.iter()).await;
}

/// The README's command on a user of Redis that has this permission in it.
fn from_readme(permission: &str) -> Vec<&'static str> {
    let readme = include_str!("../../docs/stores/redis.md").lines();
    let mut commands = readme.filter(|line| line.starts_with("ACL SETUSER "));
    let command = commands.find(|line| line.split(' ').any(|word| word == permission));
    command.expect("a command with this permission").split(' ').collect()
}

/// Has the service do all that it does on a Redis, none of which any of its servers denies.
async fn everything_works(
    service: &Service,
    servers: impl IntoIterator<Item = &RedisServer> + Clone,
) {
    eventually(async || {
        for server in servers.clone() {
            let listening: String = server.run(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
            if listening.contains("user=keylatch") {
                return Some(());
            }
        }
        None
    })
    .await;
    // A replica on a busy machine may be late: the service withdraws a grant that it lacks.
    let lease = service.granted("deploy").await;
    let request = service.request(Method::POST, "/v1/locks/deploy");
    let waiter = soon("the waiter", Answer::of(request.json(&json!({"wait_ms": 60_000}))));
    let holder = async {
        let seen = async || (service.look("deploy").await.json["waiting"] == 1).then_some(());
        eventually(seen).await;
        assert_eq!(service.renew("deploy", &lease.token(), &json!({})).await.status, 200);
        assert_eq!(service.get("/v1/locks").await.json["locks"][0]["name"], "deploy");
        assert_eq!(service.release("deploy", &lease.token()).await.status, 204);
    };
    let (waiter, ()) = tokio::join!(waiter, holder);
    assert_eq!(waiter.status, 201, "{waiter:?}");
    for _ in 0..2 {
        let bought = Answer::of(purchase(service)).await;
        assert_eq!(bought.status, 201, "{bought:?}");
    }
    assert_eq!(service.get("/readyz").await.status, 200);
    nothing_was_denied(servers).await;
}

/// An order under a key.
fn purchase(service: &Service) -> RequestBuilder {
    let order =
        json!({"amount": 1999, "currency": "EUR", "items": [{"name": "tea", "quantity": 1}]});
    service.request(Method::POST, "/v1/orders").header("Idempotency-Key", "a-key").json(&order)
}

async fn nothing_was_denied(servers: impl IntoIterator<Item = &RedisServer>) {
    for server in servers {
        let denied: Vec<Value> = server.run(&["ACL", "LOG"]).await;
        assert!(denied.is_empty(), "{denied:?}");
    }
}
