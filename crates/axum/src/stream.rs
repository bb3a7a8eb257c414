//! Answers that are streams: their bytes go through, and are not stored.
//!
//! A stream has no end to wait for, so the record keeps its status alone. The body is read to its
//! end also when the client goes away, for at most a minute: the work behind it may stop where no
//! client reads.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use keylatch_core::idempotency::IdempotencyService;

/// Media types whose answers last as long as their connection.
const STREAM_MEDIA_TYPES: [&str; 3] =
    ["text/event-stream", "multipart/x-mixed-replace", "application/x-ndjson"];
/// How long the rest of an answer is read after its client went away.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

/// Whether an answer is a stream, which has no end to wait for.
pub(crate) fn is_stream(headers: &HeaderMap) -> bool {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type.and_then(|text| text.split(';').next()).unwrap_or_default().trim();
    STREAM_MEDIA_TYPES.iter().any(|stream| media_type.eq_ignore_ascii_case(stream))
}

/// A body of what was read and what is still to come, which a task of the service relays.
pub(crate) fn relayed_body(read: Vec<Bytes>, rest: Body, service: &IdempotencyService) -> Body {
    let (sender, receiver) = mpsc::channel(8);
    service.spawn(relay(read, rest, sender));
    Body::new(StreamBody::new(ReceiverStream::new(receiver)))
}

async fn relay(
    read: Vec<Bytes>,
    mut rest: Body,
    client: mpsc::Sender<Result<Frame<Bytes>, axum::Error>>,
) {
    for chunk in read {
        drop(client.send(Ok(Frame::data(chunk))).await);
    }
    loop {
        let frame = tokio::select! {
            biased;
            () = client.closed() => break,
            frame = rest.frame() => frame,
        };
        let Some(frame) = frame else { return };
        let broken = frame.is_err();
        if client.send(frame).await.is_err() || broken {
            break;
        }
    }
    let drain = async { while let Some(Ok(_)) = rest.frame().await {} };
    if tokio::time::timeout(DRAIN_LIMIT, drain).await.is_err() {
        tracing::debug!("the rest of an answer was not read: its client is gone");
    }
}
