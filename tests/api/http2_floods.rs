//! Goal: what HTTP/2 lets a client send or leave unread beyond HTTP/1.1 is bounded as requests and
//! connections are, and hinders no other client.
//!
//! Method: frames by hand, on a service with one limit short and all others long.

use keylatch::config::Config;
use keylatch_testkit::raw_http2::{END_HEADERS, END_STREAM, head, kind};
use keylatch_testkit::{RawConnection, connect_tls, eventually, soon};

use crate::http2::SecureService;

const SHORT_MS: u64 = 1000;
const LONG_MS: u64 = 3_600_000;
/// The setting of the window with which each stream begins.
const INITIAL_WINDOW: u16 = 4;
/// The code of a stream that was refused before anything was done.
const REFUSED_STREAM: [u8; 4] = 7_u32.to_be_bytes();
const WAIT: &str = r#"{"wait_ms":300000}"#;

/// A service whose other limits are long.
async fn start(change: impl FnOnce(&mut Config)) -> SecureService {
    let patient = |config: &mut Config| {
        config.server.first_byte_timeout_ms = LONG_MS;
        config.server.header_timeout_ms = LONG_MS;
        config.server.keep_alive_timeout_ms = LONG_MS;
        config.server.write_timeout_ms = LONG_MS;
        change(config);
    };
    SecureService::start(patient).await
}

impl SecureService {
    async fn http1(&self) -> RawConnection {
        connect_tls(self.service.address, &self.authority.client(&[], None)).await
    }

    /// Waits until the service serves this client alone.
    async fn is_left_alone(&self) {
        let mut wire = self.http1().await;
        eventually(async || {
            let metrics = wire.get("/metrics").await.text;
            let one = |name| metrics.lines().any(|line| line == format!("{name} 1"));
            (one("keylatch_http_connections") && one("keylatch_http_in_flight")).then_some(())
        })
        .await;
    }
}

/// Whether a frame is the head of the answer on a stream.
fn is_answer(stream: u32) -> impl Fn(&keylatch_testkit::raw_http2::RawFrame) -> bool {
    move |frame| frame.kind == kind::HEADERS && frame.stream == stream
}

#[tokio::test]
async fn stream_above_the_limit_is_refused() {
    let place = start(|config| config.server.max_concurrent_streams = 3).await;
    let mut wire = place.raw(&[]).await;
    wire.post(1, "/v1/locks/a", "{}").await;
    wire.frame(is_answer(1)).await;
    for stream in [3, 5, 7, 9] {
        wire.post(stream, "/v1/locks/a", WAIT).await;
    }
    let refused = wire.frame(|frame| frame.kind == kind::RST_STREAM).await;
    assert_eq!((refused.stream, refused.payload.as_slice()), (9, &REFUSED_STREAM[..]));
    let mut other = place.http1().await;
    assert_eq!(other.get("/v1/locks/a").await.json["waiting"], 3);
}

#[tokio::test]
async fn rapid_resets_end_the_connection_and_leave_nothing() {
    let place = start(|config| config.server.max_concurrent_streams = 10).await;
    let mut wire = place.raw(&[]).await;
    wire.post(1, "/v1/locks/a", "{}").await;
    wire.frame(is_answer(1)).await;
    let mut stream = 3;
    let mut resets = 0;
    loop {
        let headers = head("POST", "/v1/locks/a", &[]);
        let is_open = wire.try_send(kind::HEADERS, END_HEADERS, stream, &headers).await
            && wire.try_send(kind::DATA, END_STREAM, stream, WAIT.as_bytes()).await
            && wire.reset(stream).await;
        if !is_open {
            break;
        }
        resets += 1;
        assert!(resets < 100_000, "the connection stays open");
        stream += 2;
    }
    drop(wire);
    place.is_left_alone().await;
}

/// Each reset comes when the service is at work on its stream, so that h2 does not count it.
#[tokio::test]
async fn resets_of_streams_that_were_begun_end_the_connection() {
    let place = start(|config| config.server.max_concurrent_streams = 4).await;
    let mut other = place.http1().await;
    let mut wire = place.raw(&[]).await;
    wire.post(1, "/v1/locks/a", "{}").await;
    wire.frame(is_answer(1)).await;
    let mut stream = 3;
    for _ in 0..=8 {
        wire.post(stream, "/v1/locks/a", WAIT).await;
        has_waiting(&mut other, 1).await;
        wire.reset(stream).await;
        has_waiting(&mut other, 0).await;
        stream += 2;
    }
    wire.rest().await;
    drop(other);
    place.is_left_alone().await;
}

async fn has_waiting(wire: &mut RawConnection, waiting: u64) {
    eventually(async || (wire.get("/v1/locks/a").await.json["waiting"] == waiting).then_some(()))
        .await;
}

/// `:status: 431` in HPACK: the name by its index in the static table, the value in Huffman's code.
const STATUS_431: [u8; 5] = [0x48, 0x83, 0x69, 0x90, 0xff];

#[tokio::test]
async fn head_above_the_limits_is_refused() {
    let place = start(|config| {
        config.server.max_headers = 10;
        config.server.header_limit_bytes = 4096;
    })
    .await;
    let many: Vec<_> = (0..20).map(|line| format!("x-{line}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "x")).collect();
    let large = "x".repeat(8000);
    for lines in [many, vec![("x-large", large.as_str())]] {
        let mut wire = place.raw(&[]).await;
        let head = head("GET", "/livez", &lines);
        wire.send(kind::HEADERS, END_HEADERS | END_STREAM, 1, &head).await;
        let refused = wire.frame(is_answer(1)).await;
        assert!(refused.payload.starts_with(&STATUS_431), "{:02x?}", refused.payload);
        wire.get(3, "/livez").await;
        assert_eq!(
            wire.frame(is_answer(3)).await.payload[0] & 0x80,
            0x80,
            "the next one is served"
        );
    }
}

#[tokio::test]
async fn flood_of_continuations_ends_the_connection() {
    let place = start(|_| {}).await;
    for line in [&[][..], &[0, 1, b'a', 1, b'b'].repeat(2000)] {
        let mut wire = place.raw(&[]).await;
        wire.send(kind::HEADERS, END_STREAM, 1, &head("GET", "/livez", &[])).await;
        for _ in 0..1000 {
            wire.try_send(kind::CONTINUATION, 0, 1, line).await;
        }
        let rest = wire.rest().await;
        assert!(rest.iter().all(|frame| frame.kind != kind::HEADERS), "answered: {rest:?}");
    }
    place.is_left_alone().await;
}

#[tokio::test]
async fn half_a_head_is_closed_at_its_timeout() {
    let place = start(|config| config.server.header_timeout_ms = SHORT_MS).await;
    let mut half = place.raw(&[]).await;
    half.send(kind::HEADERS, END_STREAM, 1, &head("GET", "/livez", &[])).await;
    half.rest().await;
    // Nor does one that sends no request at all.
    place.raw(&[]).await.rest().await;
}

#[tokio::test]
async fn stream_that_is_not_read_is_reset_and_others_go_on() {
    let place = start(|config| config.server.write_timeout_ms = SHORT_MS).await;
    let mut wire = place.raw(&[(INITIAL_WINDOW, 0)]).await;
    wire.get(1, "/docs/swagger-ui-bundle.js").await;
    wire.get(3, "/livez").await;
    for _ in 0..2 {
        wire.frame(|frame| frame.kind == kind::RST_STREAM).await;
    }
    // An answer without a body needs no window.
    wire.send(kind::HEADERS, END_HEADERS | END_STREAM, 5, &head("HEAD", "/livez", &[])).await;
    wire.frame(is_answer(5)).await;
    drop(wire);
    place.is_left_alone().await;
}

#[tokio::test]
async fn watch_on_which_nothing_happens_outlives_the_timeouts() {
    let place = start(|config| {
        config.server.write_timeout_ms = SHORT_MS;
        config.server.keep_alive_timeout_ms = SHORT_MS;
        config.server.header_timeout_ms = 5000;
        config.stream.heartbeat_ms = 4 * SHORT_MS;
    })
    .await;
    let mut wire = place.raw(&[]).await;
    wire.get(1, "/v1/locks/a/events").await;
    // The present state, and two heartbeats.
    for _ in 0..3 {
        wire.frame(|frame| frame.kind == kind::DATA && frame.stream == 1).await;
    }
}

#[tokio::test]
async fn pings_do_not_keep_an_idle_connection() {
    let place = start(|config| config.server.keep_alive_timeout_ms = SHORT_MS).await;
    let mut wire = place.raw(&[]).await;
    wire.get(1, "/livez").await;
    wire.frame(is_answer(1)).await;
    let mut pings = 0_u64;
    let pinging = async {
        while wire.try_send(kind::PING, 0, 0, &pings.to_be_bytes()).await
            && wire.answers(|frame| frame.kind == kind::PING).await
        {
            pings += 1;
        }
    };
    soon("the end of the connection", pinging).await;
    assert!(pings > 0, "the service answers pings");
    place.is_left_alone().await;
}

#[tokio::test]
async fn pings_whose_answers_are_not_read_end_the_connection() {
    let place = start(|config| config.server.write_timeout_ms = SHORT_MS).await;
    let mut wire = place.raw(&[]).await;
    wire.get(1, "/livez").await;
    wire.frame(is_answer(1)).await;
    // One by one they take a slow machine longer than the test has, until the buffers are full.
    let ping = [&[0, 0, 8, kind::PING, 0][..], &[0; 4], &[0; 8]].concat();
    let pings = ping.repeat(1024);
    let pinging = async { while wire.try_write(&pings).await {} };
    soon("the end of the connection", pinging).await;
    place.is_left_alone().await;
}
