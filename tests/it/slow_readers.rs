//! Clients that read nothing from a stream of events: they are closed, and cost little until then.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{Service, config, eventually, post};

/// How much the kernel keeps for a client that does not read, at most.
const SMALL: u32 = 4096;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_nothing_of_a_hold_is_closed_and_loses_the_lock() {
    let mut config = config("memory:");
    config.server.write_timeout_ms = 1000;
    // Fills the buffers between the two quickly.
    config.stream.heartbeat_ms = 1;
    let service = Service::start_with(config).await;
    let body = json!({"ttl_ms": 60_000, "owner": "a zombie"}).to_string();
    let request = post("/v1/locks/deploy/hold", body.len()) + &body;
    let silent = deaf(service.address, &request).await;
    eventually(async || (service.look("deploy").await.status == 200).then_some(())).await;
    let freed = async || (service.look("deploy").await.status == 404).then_some(());
    tokio::time::timeout(Duration::from_secs(120), async {
        while freed().await.is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the lock is released although the client never went away");
    drop(silent);
}

/// A connection that sends a request and then reads nothing, with a small window.
async fn deaf(address: SocketAddr, request: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(SMALL).expect("a small buffer");
    let mut stream = socket.connect(address).await.expect("the service accepts connections");
    stream.write_all(request.as_bytes()).await.expect("the request is sent");
    stream
}
