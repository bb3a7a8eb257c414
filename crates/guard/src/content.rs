//! What the body of a request contains, where it is coded for its transfer.
//!
//! Encoders write the time and their own version, so two tries of one request have other bytes and
//! the same content. The content is what keys are read from and what the fingerprint covers; the
//! handler gets the bytes as they were sent. Invariant: never more than the limit of the body is
//! decoded, and only what is one whole stream, which every reader reads alike; else the bytes are
//! the content. Tested in `tests/api/coded_bodies.rs`.

use axum::body::Bytes;
use axum::http::HeaderMap;
use flate2::{Decompress, FlushDecompress, Status};

use crate::media_type::content_coding;
use crate::worker::off_worker;
use crate::{Code, Problem};

/// How many bytes one byte of a stream stands for at most.
const MAX_RATIO: usize = 1032;

#[derive(Debug, Clone)]
pub(crate) struct Content {
    /// The content, or the body as it was sent where that is not known.
    pub(crate) bytes: Bytes,
    /// The coding of these bytes; empty where they are the content.
    pub(crate) coding: String,
    /// What a coded body is that could be read, and was not.
    unread: Option<Unread>,
}

/// The problem of a key that is made of such a body.
type Unread = (Code, &'static str);

const TOO_LARGE: Unread = (
    Code::PayloadTooLarge,
    "The key is made of what the body contains, and that has more bytes than a body may have. \
     Nothing was run.",
);
const BROKEN: Unread = (
    Code::InvalidBody,
    "The key is made of what the body contains, and it is not one whole stream of its \
     Content-Encoding. Nothing was run.",
);

impl Content {
    /// That of a body with these headers, if it has at most so many bytes.
    pub(crate) async fn read(headers: &HeaderMap, body: &Bytes, limit: usize) -> Self {
        let coding = content_coding(headers);
        let stream = match coding.as_str() {
            "gzip" | "x-gzip" => Decompress::new_gzip(15),
            "deflate" => Decompress::new(true),
            _ => return Self { bytes: body.clone(), coding, unread: None },
        };
        let coded = body.clone();
        let longest = limit.saturating_add(1).min(coded.len().saturating_mul(MAX_RATIO));
        let decoded = off_worker(longest, async move { decode(stream, &coded, limit, longest) });
        match decoded.await {
            Ok(bytes) => Self { bytes, coding: String::new(), unread: None },
            Err(unread) => Self { bytes: body.clone(), coding, unread: Some(unread) },
        }
    }

    /// What a key may be read from: nothing where the upstream may read something else.
    pub(crate) fn readable(&self) -> Bytes {
        if self.coding.is_empty() { self.bytes.clone() } else { Bytes::new() }
    }

    /// Refuses to make a key of bytes that are others with each try.
    pub(crate) fn check_whole(&self) -> Result<(), Problem> {
        self.unread.map_or(Ok(()), |(code, detail)| Err(Problem::new(code, detail)))
    }
}

fn decode(
    mut stream: Decompress,
    coded: &[u8],
    limit: usize,
    longest: usize,
) -> Result<Bytes, Unread> {
    // The last byte shows that there is more.
    let mut content = Vec::with_capacity(longest.saturating_add(1));
    let status = stream.decompress_vec(coded, &mut content, FlushDecompress::Finish);
    match status.map_err(|_| BROKEN)? {
        _ if content.len() > limit => Err(TOO_LARGE),
        Status::StreamEnd if stream.total_in() == coded.len() as u64 => Ok(content.into()),
        Status::StreamEnd | Status::Ok | Status::BufError => Err(BROKEN),
    }
}
