//! Goal: a body in gzip or deflate counts as what it contains, and the upstream gets it as it was
//! sent.
//!
//! Method: one content in streams of other times and levels, streams that readers read in different
//! ways, and streams that contain more than a body may have.

use std::io::Write as _;

use flate2::write::ZlibEncoder;
use flate2::{Compression, GzBuilder};
use keylatch::http::{KeySource, MissingKey};
use keylatch_testkit::{Answer, Shop};
use reqwest::{Method, RequestBuilder};

const JSON: &str = "application/json";

/// The content in a gzip stream that was made at this time.
fn gzip(content: &[u8], time: u32) -> Vec<u8> {
    let mut stream = GzBuilder::new().mtime(time).write(Vec::new(), Compression::new(time % 10));
    stream.write_all(content).expect("memory");
    stream.finish().expect("memory")
}

fn deflate(content: &[u8], level: u32) -> Vec<u8> {
    let mut stream = ZlibEncoder::new(Vec::new(), Compression::new(level));
    stream.write_all(content).expect("memory");
    stream.finish().expect("memory")
}

fn coded(shop: &Shop, coding: &str, kind: &str, body: &[u8]) -> RequestBuilder {
    let request = shop.request(Method::POST, "/orders").header("Content-Type", kind);
    request.header("Content-Encoding", coding).body(body.to_owned())
}

/// The answer to a request with the key `k` and a body in gzip.
async fn keyed(shop: &Shop, body: &[u8]) -> Answer {
    Answer::of(coded(shop, "gzip", JSON, body).header("Idempotency-Key", "k")).await
}

#[tokio::test]
async fn coded_body_counts_as_what_it_contains() {
    let shop = Shop::open("memory:").await;
    let first = gzip(br#"{"a":1,"b":2}"#, 1);
    keyed(&shop, &first).await.is_run(1);
    let received = shop.upstream.last();
    assert_eq!(received.body, first, "the upstream gets what was sent");
    assert_eq!(received.headers["content-encoding"], "gzip");
    assert_eq!(received.headers["content-length"], first.len().to_string());
    keyed(&shop, &gzip(br#"{"b":2, "a":1}"#, 2)).await.is_replay_of(1);
    for (coding, body) in [
        ("X-GZip", gzip(br#"{"a":1,"b":2}"#, 3)),
        ("deflate", deflate(br#"{"a":1,"b":2}"#, 0)),
        ("deflate", deflate(br#"{"a":1,"b":2}"#, 9)),
        ("identity", br#"{"a":1,"b":2}"#.to_vec()),
    ] {
        let again = coded(&shop, coding, JSON, &body).header("Idempotency-Key", "k");
        Answer::of(again).await.is_replay_of(1);
    }
    let other = keyed(&shop, &gzip(br#"{"a":1,"b":3}"#, 1)).await;
    other.is_refusal(422, "idempotency-key-reused", "new-key");
    assert_eq!(shop.upstream.runs(), 1);
}

/// Readers differ in what these contain, and a new key would run the same content twice.
#[tokio::test]
async fn stream_that_is_not_one_whole_stream_counts_as_its_bytes() {
    let shop = Shop::open("memory:").await;
    let content = br#"{"a":1}"#;
    let whole = gzip(content, 1);
    let raw = &deflate(content, 6)[2..];
    let (gone, zlib) = (&whole[..whole.len() - 1], deflate(content, 6));
    let broken = {
        let mut broken = whole.clone();
        broken[whole.len() - 6] ^= 1;
        broken
    };
    for (place, (coding, body)) in [
        ("gzip", gone.to_vec()),
        ("gzip", [&whole[..], &gzip(b" ", 1)].concat()),
        ("gzip", [&whole[..], b"\0"].concat()),
        ("gzip", broken),
        ("gzip", zlib.clone()),
        ("gzip", Vec::new()),
        ("deflate", zlib[..zlib.len() - 1].to_vec()),
        ("deflate", raw.to_vec()),
        ("gzip, gzip", gzip(&whole, 1)),
        ("br", whole.clone()),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("k-{place}");
        let send = |coding, body: &[u8]| {
            Answer::of(coded(&shop, coding, JSON, body).header("Idempotency-Key", &key))
        };
        send(coding, &body).await.is_run(place + 1);
        send(coding, &body).await.is_replay_of(place + 1);
        let other = send(coding, &[b"\0", &body[..]].concat()).await;
        other.is_refusal(422, "idempotency-key-reused", "never");
        send("identity", content).await.is_refusal(422, "idempotency-key-reused", "new-key");
    }
}

#[tokio::test]
async fn content_beyond_the_limit_of_the_body_is_not_decoded() {
    let shop = Shop::open_with("memory:", |guard| guard.body_limit_bytes = 1000).await;
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2)).into_bytes();
    for (place, stream) in [gzip, deflate].into_iter().enumerate() {
        let coding = ["gzip", "deflate"][place];
        let send = |key: &str, body: Vec<u8>| {
            let request = coded(&shop, coding, JSON, &body);
            Answer::of(request.header("Idempotency-Key", format!("{coding}-{key}")))
        };
        let run = place * 3;
        send("just", stream(&text(1000), 1)).await.is_run(run + 1);
        send("just", stream(&text(1000), 9)).await.is_replay_of(run + 1);
        send("over", stream(&text(1001), 1)).await.is_run(run + 2);
        send("over", stream(&text(1001), 9)).await.is_refusal(
            422,
            "idempotency-key-reused",
            "never",
        );
        let bomb = stream(&vec![b'0'; 500_000], 9);
        assert!(bomb.len() < 1000);
        send("bomb", bomb.clone()).await.is_run(run + 3);
        send("bomb", bomb).await.is_replay_of(run + 3);
    }
}

#[tokio::test]
async fn key_is_found_in_what_a_coded_body_contains() {
    let sources = ["json:/no", "form:no"].map(|name| name.to_owned().try_into().expect("a source"));
    let sources: Vec<KeySource> = sources.to_vec();
    let shop = Shop::open_with("memory:", |guard| guard.key = sources).await;
    Answer::of(coded(&shop, "gzip", JSON, &gzip(br#"{"no":7}"#, 1))).await.is_run(1);
    Answer::of(coded(&shop, "deflate", JSON, &deflate(br#"{"no":7}"#, 1))).await.is_replay_of(1);
    let form = "application/x-www-form-urlencoded";
    Answer::of(coded(&shop, "gzip", form, &gzip(b"no=7", 1))).await.is_run(2);
    assert_eq!(shop.upstream.last().headers["idempotency-key"], "7");
    Answer::of(coded(&shop, "gzip", form, &gzip(b"no=7", 9))).await.is_replay_of(2);
    let refused = Answer::of(coded(&shop, "gzip", JSON, b"{\"no\":7}")).await;
    refused.is_refusal(400, "invalid-key", "new-key");
}

/// Of bytes that differ with each try no key can be made.
#[tokio::test]
async fn derived_key_is_made_of_the_content_or_not_at_all() {
    let shop = Shop::open_with("memory:", |guard| {
        guard.body_limit_bytes = 1000;
        guard.missing_key = MissingKey::Derive;
        guard.derive.anonymous = true;
    });
    let shop = shop.await;
    Answer::of(coded(&shop, "gzip", JSON, &gzip(b"{}", 1))).await.is_run(1);
    Answer::of(coded(&shop, "gzip", JSON, &gzip(b"{}", 2))).await.is_replay_of(1);
    let large = Answer::of(coded(&shop, "gzip", JSON, &gzip(&[b'0'; 1001], 1))).await;
    large.is_refusal(413, "payload-too-large", "never");
    let broken = Answer::of(coded(&shop, "gzip", JSON, b"{}")).await;
    broken.is_refusal(400, "invalid-body", "new-key");
    assert_eq!(shop.upstream.runs(), 1);
}
