//! Just enough HTTP/1.1: requests as bytes that are written once, and the few things that matter
//! in a response.
//!
//! Names and tokens are replaced in place, where the bytes of a request have them at a fixed
//! position. It reads only what these services send, and fails at everything else.

use std::io::Write as _;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Result;

/// How many bytes a name has.
const NAME: usize = 24;
const PATH: &str = "/v1/locks/";
/// Locks that outlive the run: 24 h.
const LONG_SET: &str = r#"{"ttl_ms":86400000,"names":["#;
const ORDER: &str =
    r#"{"amount":1999,"currency":"EUR","items":[{"name":"coffee","quantity":2}],"cart":""#;
/// What a client of webdis proves its lock with: as long as a token of keylatch.
const WEBDIS_TOKEN: &str = "aPbOQ2c1kG0x3nN7mYw5RzT4vL8sJdEf";
/// Where the status is in the first line of a response.
const STATUS: Range<usize> = 9..12;

/// Names that were never given before, in no order, so that no store gains by one.
#[derive(Debug, Default)]
pub(crate) struct Names(AtomicU32);

impl Names {
    fn next(&self) -> Result<[u8; NAME]> {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        // Multiplying by an odd constant scatters the numbers; the number itself keeps them apart.
        let scattered = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut name = [0; NAME];
        write!(&mut name[..], "{:016x}{number:08x}", scattered ^ (scattered >> 32))?;
        Ok(name)
    }
}

/// A create and the delete that follows it, as bytes in which only name and token change.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) create: Vec<u8>,
    pub(crate) delete: Vec<u8>,
    /// Where the token begins in `delete`.
    token: usize,
}

impl Pair {
    /// `header` is a further line in each head, and `body` the JSON to create with; without one,
    /// all is by default.
    pub(crate) fn new(header: &str, body: &str) -> Self {
        let name = "-".repeat(NAME);
        let create = format!(
            "POST /v1/locks/{name} HTTP/1.1\r\nHost: localhost\r\n{header}Content-Length: {}\r\n\r\n\
             {body}",
            body.len()
        );
        let delete =
            format!("DELETE /v1/locks/{name} HTTP/1.1\r\nHost: localhost\r\n{header}Lock-Token: ");
        let token = delete.len();
        Self { create: create.into_bytes(), delete: delete.into_bytes(), token }
    }

    pub(crate) fn rename(&mut self, names: &Names) -> Result<()> {
        let name = names.next()?;
        for (request, method) in [(&mut self.create, "POST "), (&mut self.delete, "DELETE ")] {
            let start = method.len() + PATH.len();
            request[start..start + NAME].copy_from_slice(&name);
        }
        Ok(())
    }

    pub(crate) fn set_token(&mut self, token: &[u8]) {
        self.delete.truncate(self.token);
        self.delete.extend_from_slice(token);
        self.delete.extend_from_slice(b"\r\n\r\n");
    }
}

/// The requests that set a lock by a webdis, if it is free, and that compare and delete it.
pub(crate) fn webdis_lock(names: &Names, script: &str) -> Result<[Vec<u8>; 2]> {
    let name = names.next()?;
    let name = std::str::from_utf8(&name)?;
    let get =
        |path: String| format!("GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes();
    Ok([
        get(format!("SET/{name}/{WEBDIS_TOKEN}/NX/PX/30000")),
        get(format!("EVALSHA/{script}/1/{name}/{WEBDIS_TOKEN}")),
    ])
}

/// The request for `count` new locks that are held together.
pub(crate) fn lock_set(names: &Names, count: usize) -> Result<Vec<u8>> {
    let mut body = LONG_SET.to_owned();
    for place in 0..count {
        body.push_str(if place == 0 { "\"" } else { ",\"" });
        body.push_str(std::str::from_utf8(&names.next()?)?);
        body.push('"');
    }
    body.push_str("]}");
    let head = "POST /v1/locks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json";
    Ok(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes())
}

/// An order, as bytes in which only the key and the cart change, which is in the body.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) request: Vec<u8>,
    /// Where the key and the cart begin.
    names: [usize; 2],
}

impl Order {
    pub(crate) fn new(names: &Names) -> Result<Self> {
        let head = "POST /v1/orders HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: ";
        let name = "-".repeat(NAME);
        let body = format!("{ORDER}{name}\"}}");
        let fields = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
        let request = format!("{head}{name}\r\n{fields}\r\n\r\n{body}").into_bytes();
        let cart = request.len() - NAME - "\"}".len();
        let mut order = Self { names: [head.len(), cart], request };
        order.rename(names)?;
        Ok(order)
    }

    pub(crate) fn rename(&mut self, names: &Names) -> Result<()> {
        let name = names.next()?;
        for start in self.names {
            self.request[start..start + NAME].copy_from_slice(&name);
        }
        Ok(())
    }
}

/// What the load generator reads in a response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Where the token is, if there is one.
    pub(crate) token: Option<Range<usize>>,
    /// Whether it is an earlier one's.
    pub(crate) replayed: bool,
    /// Head and body together.
    pub(crate) bytes: usize,
}

/// The response that `bytes` begin with, once its head and body are there.
pub(crate) fn response(bytes: &[u8]) -> Result<Option<Response>> {
    let mut found = Response { status: 0, token: None, replayed: false, bytes: 0 };
    let (mut at, mut length) = (0, 0);
    while let Some(end) = bytes[at..].windows(2).position(|pair| pair == b"\r\n") {
        let line = &bytes[at..at + end];
        if line.is_empty() {
            found.bytes = at + 2 + length;
            return Ok((bytes.len() >= found.bytes).then_some(found));
        }
        if at == 0 {
            found.status = number(line.get(STATUS).unwrap_or_default())?;
        } else if let Some(value) = header(line, b"content-length: ") {
            length = number(value)?;
        } else if let Some(value) = header(line, b"lock-token: ") {
            found.token = Some(at + end - value.len()..at + end);
        } else if header(line, b"idempotent-replayed: ").is_some() {
            found.replayed = true;
        }
        at += end + 2;
    }
    Ok(None)
}

/// The value of the header line, if it begins with `name`, which includes the colon and a space.
fn header<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, value) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then_some(value)
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Result<T> {
    let number = std::str::from_utf8(digits)?.parse();
    number.map_err(|_| format!("not a number: {:?}", String::from_utf8_lossy(digits)).into())
}
