//! Every way to a Redis that a URL can name.

use serde_json::json;

use crate::support::{RedisServer, Service, eventually};

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
