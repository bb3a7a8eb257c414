//! Just enough HTTP/1.1: requests as bytes that are written once, and the three things that
//! matter in a response.

use std::io::Write as _;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Result;

/// How many bytes a name has.
const NAME: usize = 24;
const PATH: &str = "/v1/locks/";
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
    /// `body` is the JSON to create with; without one, all is by default.
    pub(crate) fn new(body: &str) -> Self {
        let name = "-".repeat(NAME);
        let create = format!(
            "POST /v1/locks/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let delete = format!("DELETE /v1/locks/{name} HTTP/1.1\r\nHost: localhost\r\nLock-Token: ");
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

/// What the load generator reads in a response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Where the token is, if there is one.
    pub(crate) token: Option<Range<usize>>,
    /// Head and body together.
    pub(crate) bytes: usize,
}

/// The response that `bytes` begin with, once its head and body are there.
pub(crate) fn response(bytes: &[u8]) -> Result<Option<Response>> {
    let mut found = Response { status: 0, token: None, bytes: 0 };
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
