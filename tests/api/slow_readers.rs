//! Goal: a client that reads nothing of what it asked for is closed, and needs little memory until
//! then.
//!
//! Method: raw connections that stop reading; the memory of the process.

use std::net::SocketAddr;
use std::time::Duration;

use keylatch_testkit::raw_http2::{RawHttp2, kind};
use keylatch_testkit::{
    Api, Authority, Process, Service, config, eventually, get_request, handshake, post_head,
};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

use crate::KEYLATCH;

/// How much the kernel keeps for a client that does not read, at most.
const SMALL: u32 = 4096;
/// The setting of HTTP/2 of the window with which each stream begins.
const INITIAL_WINDOW: u16 = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hold_that_does_not_read_is_closed_and_released() {
    let mut config = config("memory:");
    config.server.write_timeout_ms = 1000;
    // Fills the buffers between the two quickly.
    config.stream.heartbeat_ms = 1;
    let service = Service::start_with(config).await;
    let body = json!({"ttl_ms": 60_000, "owner": "a zombie"}).to_string();
    let request = post_head("/v1/locks/deploy/hold", body.len()) + &body;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_do_not_read_are_closed_and_need_little_memory() {
    const CLIENTS: usize = 100;
    const WATCHES: &str = "keylatch_http_streams{kind=\"watch\"}";
    let environment = [("KEYLATCH_SERVER_WRITE_TIMEOUT_MS", "1000")];
    let process = KEYLATCH.serve(&[], &environment).await;
    let api = Api::at(process.address);
    let token = api.create("deploy", &json!({})).await.token();
    let body = json!({"ttl_ms": 60_000});
    let before = memory(&process);
    let mut silent = Vec::new();
    for _ in 0..CLIENTS {
        silent.push(deaf(process.address, &get_request("/v1/locks/deploy/events")).await);
    }
    api.reaches(WATCHES, CLIENTS as u64).await;
    let mut largest = 0;
    let closed = async {
        while api.metric(WATCHES).await > 0 {
            for _ in 0..100 {
                assert_eq!(api.renew("deploy", &token, &body).await.status, 200);
            }
            largest = largest.max(memory(&process));
        }
    };
    tokio::time::timeout(Duration::from_secs(120), closed).await.expect("they are closed");
    let each = largest.saturating_sub(before) / CLIENTS;
    assert!(each < 256, "{each} KiB for each that reads nothing");
    drop(silent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_the_same_for_all_is_in_memory_once_however_many_do_not_read_it() {
    const CONNECTIONS: usize = 3;
    const STREAMS: u32 = 100;
    let authority = Authority::default();
    let tls = authority.serve();
    let tls = [("KEYLATCH_TLS_CERT", tls.cert.as_str()), ("KEYLATCH_TLS_KEY", tls.key.as_str())];
    let process = KEYLATCH.serve(&[], &tls).await;
    let client = authority.client(&["h2"], None);
    for path in [
        "/docs/swagger-ui-bundle.js",
        "/docs/swagger-ui.css",
        "/openapi.json",
        "/problems",
        "/problems/lock-held",
        "/assets/console/lock.js",
    ] {
        let mut silent = Vec::new();
        let before = memory(&process);
        for _ in 0..CONNECTIONS {
            let tls = handshake(process.address, &client).await.expect("TLS");
            let mut wire = RawHttp2::begin(tls, &[(INITIAL_WINDOW, 0)]).await;
            for stream in (0..STREAMS).map(|number| 2 * number + 1) {
                wire.get(stream, path).await;
                wire.frame(|frame| frame.kind == kind::HEADERS && frame.stream == stream).await;
            }
            silent.push(wire);
        }
        let streams = CONNECTIONS * STREAMS as usize;
        let each = memory(&process).saturating_sub(before) / streams;
        assert!(each < 48, "{each} KiB for each that does not read {path}");
    }
}

/// What the process has in memory, in KiB.
pub(crate) fn memory(process: &Process) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id()));
    let status = status.expect("its status");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|text| text.trim().strip_suffix(" kB"));
    resident.expect("a size").parse().expect("a number")
}

/// A connection that sends a request and then reads nothing, with a small window.
async fn deaf(address: SocketAddr, request: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(SMALL).expect("a small buffer");
    let mut stream = socket.connect(address).await.expect("the service accepts connections");
    stream.write_all(request.as_bytes()).await.expect("the request is sent");
    stream
}
