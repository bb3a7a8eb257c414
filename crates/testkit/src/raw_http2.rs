//! HTTP/2 by hand: frames on a connection, for what no HTTP client would send or leave out.
//!
//! The preface and the settings are those of a client that behaves; each frame after them is the
//! test's. Heads are coded without a table, so that a frame means the same wherever it is.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};

use crate::soon;

/// The kinds of frames that tests send or wait for.
#[expect(missing_docs, reason = "RFC 9113 has them")]
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const CONTINUATION: u8 = 9;
}

/// The stream ends with this frame.
pub const END_STREAM: u8 = 1;
/// The head ends with this frame.
pub const END_HEADERS: u8 = 4;

/// A connection whose frames a test writes.
#[derive(Debug)]
pub struct RawHttp2<S> {
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "RFC 9113 has them")]
pub struct RawFrame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> RawHttp2<S> {
    /// A connection with these settings, each an identifier and its value.
    pub async fn begin(stream: S, settings: &[(u16, u32)]) -> Self {
        let (reader, writer) = split(stream);
        let mut wire = Self { reader, writer };
        assert!(wire.try_write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await, "it is open");
        let settings = settings.iter().flat_map(|(id, value)| {
            id.to_be_bytes().into_iter().chain(value.to_be_bytes()).collect::<Vec<_>>()
        });
        wire.send(kind::SETTINGS, 0, 0, &settings.collect::<Vec<_>>()).await;
        wire
    }

    /// Sends a frame to a service that has to take it.
    pub async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        assert!(self.try_send(kind, flags, stream, payload).await, "the service has closed");
    }

    /// Sends a frame; `false` where the service has closed the connection.
    pub async fn try_send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.try_write(&frame(kind, flags, stream, payload)).await
    }

    /// Sends a request without a body.
    pub async fn get(&mut self, stream: u32, path: &str) {
        let head = head("GET", path, &[]);
        self.send(kind::HEADERS, END_HEADERS | END_STREAM, stream, &head).await;
    }

    /// Sends a request with a body of JSON.
    pub async fn post(&mut self, stream: u32, path: &str, body: &str) {
        self.send(kind::HEADERS, END_HEADERS, stream, &head("POST", path, &[])).await;
        self.send(kind::DATA, END_STREAM, stream, body.as_bytes()).await;
    }

    /// Sends bytes that may be no frame.
    pub async fn write(&mut self, bytes: &[u8]) {
        assert!(self.try_write(bytes).await, "the service has closed");
    }

    /// Sends bytes that may be no frame, or several; `false` where the service has closed the
    /// connection.
    pub async fn try_write(&mut self, bytes: &[u8]) -> bool {
        let write = async {
            self.writer.write_all(bytes).await?;
            self.writer.flush().await
        };
        soon("sending", write).await.is_ok()
    }

    /// Ends a stream before its answer.
    pub async fn reset(&mut self, stream: u32) -> bool {
        self.try_send(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes()).await
    }

    /// The next frame for which `is` holds; others are passed over.
    pub async fn frame(&mut self, is: impl Fn(&RawFrame) -> bool) -> RawFrame {
        soon("a frame", async {
            loop {
                let frame = self.read().await.expect("the service closed the connection");
                if is(&frame) {
                    return frame;
                }
            }
        })
        .await
    }

    /// Waits for a frame for which `is` holds; `false` where the service closes the connection
    /// instead.
    pub async fn answers(&mut self, is: impl Fn(&RawFrame) -> bool) -> bool {
        soon("a frame", async {
            loop {
                match self.read().await {
                    Some(frame) if is(&frame) => return true,
                    Some(_) => {}
                    None => return false,
                }
            }
        })
        .await
    }

    /// Waits until the service closes the connection, and gives the frames that it sent before.
    pub async fn rest(&mut self) -> Vec<RawFrame> {
        soon("the end of the connection", async {
            let mut frames = Vec::new();
            while let Some(frame) = self.read().await {
                frames.push(frame);
            }
            frames
        })
        .await
    }

    async fn read(&mut self) -> Option<RawFrame> {
        let mut head = [0; 9];
        self.reader.read_exact(&mut head).await.ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.reader.read_exact(&mut payload).await.ok()?;
        Some(RawFrame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }
}

/// The bytes of a frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a length").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a request for `localhost`, in HPACK without its table and without Huffman's code.
pub fn head(method: &str, path: &str, lines: &[(&str, &str)]) -> Vec<u8> {
    let mut head = Vec::new();
    let own = [(":method", method), (":scheme", "https"), (":path", path)];
    for (name, value) in own.iter().chain(&[(":authority", "localhost")]).chain(lines) {
        head.push(0);
        text(&mut head, name);
        text(&mut head, value);
    }
    head
}

/// A text behind its length, which is a number with a prefix of seven bits.
fn text(head: &mut Vec<u8>, text: &str) {
    let mut rest = text.len();
    if rest < 127 {
        head.push(u8::try_from(rest).expect("a small length"));
    } else {
        head.push(127);
        rest -= 127;
        while rest >= 128 {
            head.push(u8::try_from(rest % 128 + 128).expect("seven bits and one"));
            rest /= 128;
        }
        head.push(u8::try_from(rest).expect("seven bits"));
    }
    head.extend(text.as_bytes());
}
