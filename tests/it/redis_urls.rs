//! Every way to a Redis that a URL can name, and what a user there has to be allowed.

use redis::Value;
use reqwest::Method;
use serde_json::json;

use crate::support::{Answer, RedisServer, Service, eventually, soon};

#[tokio::test]
async fn a_socket_a_user_a_password_and_a_database_are_used() {
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
async fn a_user_needs_no_other_permissions_than_the_readme_says() {
    let redis = RedisServer::start().await;
    let readme = include_str!("../../README.md");
    let user = readme.lines().find(|line| line.starts_with("ACL SETUSER ")).expect("a user");
    let () = redis.run(&user.split(' ').collect::<Vec<_>>()).await;
    let service = Service::start(&format!("redis://keylatch:PASSWORD@{}/1", redis.address())).await;
    eventually(async || {
        let listening: String = redis.run(&["CLIENT", "LIST", "TYPE", "pubsub"]).await;
        listening.contains("user=keylatch").then_some(())
    })
    .await;
    let lease = service.create("deploy", &json!({})).await;
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
    let order =
        json!({"amount": 1999, "currency": "EUR", "items": [{"name": "tea", "quantity": 1}]});
    for _ in 0..2 {
        let request =
            service.request(Method::POST, "/v1/orders").header("Idempotency-Key", "a-key");
        let bought = Answer::of(request.json(&order)).await;
        assert_eq!(bought.status, 201, "{bought:?}");
    }
    assert_eq!(service.get("/readyz").await.status, 200);
    let denied: Vec<Value> = redis.run(&["ACL", "LOG"]).await;
    assert!(denied.is_empty(), "{denied:?}");
}
