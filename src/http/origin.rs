//! Which requests are refused before a handler sees them: those that a web page can make a browser send.
//!
//! A browser carries requests of every page that it shows to every address that its machine reaches, so
//! listening on loopback keeps no page out. One rule holds:
//!
//! - **The host** of a request is one that the service has. A page whose name an attacker lets lead to
//!   127.0.0.1 (DNS rebinding) shares that name's origin with the service, and could read what it answers.
//!
//! The check is a step of the one middleware and costs no layer. It reads the head alone: no body, no
//! store, no clock. Tested over HTTP in `tests/it/hosts.rs`.

use std::net::{IpAddr, Ipv6Addr};

use axum::body::Body;
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Request, Version, header};

use super::problem::{Code, Problem};

/// How a request came in; an extension of each request that came over a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    /// Whether the listener has a loopback address.
    pub(super) on_loopback: bool,
}

/// What the head of a request must be for the service to answer it.
#[derive(Debug, Default)]
pub struct OriginPolicy {
    hosts: Vec<String>,
}

impl OriginPolicy {
    /// Serves requests for these hosts: names, or addresses without a port.
    pub fn new(hosts: &[String]) -> Self {
        Self { hosts: hosts.to_vec() }
    }

    /// Whether each host is a name or an address, without a scheme and without a port.
    pub(crate) fn are_hosts(hosts: &[String]) -> bool {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let is_name = |host: &str| !host.is_empty() && host.chars().all(plain);
        hosts.iter().all(|host| is_name(host) || address(host).is_some())
    }

    /// Whether the request may be answered.
    ///
    /// # Errors
    ///
    /// It has no Host, two, or one that is none (400), or is for a host that this service is not (421).
    pub(super) fn check(&self, request: &Request<Body>) -> Result<(), Problem> {
        let host = host_of(request)?;
        let arrival = request.extensions().get::<Arrival>();
        let on_loopback = arrival.is_some_and(|arrival| arrival.on_loopback);
        if host.is_none_or(|host| self.serves(host.host(), on_loopback)) {
            return Ok(());
        }
        let detail = "The service does not go by this host. `server.hosts` in its configuration \
                      lists those that it goes by. Nothing was done.";
        Err(Problem::new(Code::MisdirectedRequest, detail).with_field("Host"))
    }

    /// On loopback: loopback names and what is listed. Elsewhere only names can be refused, and only
    /// where some are listed: an attacker has names, and no address of another's machine.
    fn serves(&self, host: &str, on_loopback: bool) -> bool {
        let may_be_any = match address(host) {
            Some(address) => address.is_loopback() || !on_loopback,
            None => host.eq_ignore_ascii_case("localhost") || !on_loopback && self.hosts.is_empty(),
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        may_be_any || self.hosts.iter().any(|listed| listed.eq_ignore_ascii_case(bare))
    }
}

/// The host that a request is for; `None` where HTTP/1.0 names none.
fn host_of(request: &Request<Body>) -> Result<Option<Authority>, Problem> {
    let mut lines = request.headers().get_all(header::HOST).iter();
    let named = match (lines.next(), lines.next()) {
        (Some(_), Some(_)) => return Err(invalid_host("there is more than one Host header")),
        (None, _) if request.version() == Version::HTTP_11 => {
            return Err(invalid_host("there is no Host header"));
        }
        (line, _) => line.map(authority).transpose()?,
    };
    // A target in absolute form says itself for whom it is (RFC 9112, section 3.2.2).
    Ok(request.uri().authority().cloned().or(named))
}

fn authority(line: &HeaderValue) -> Result<Authority, Problem> {
    let authority = Authority::try_from(line.as_bytes()).ok().filter(|authority| {
        let port = authority.as_str().strip_prefix(authority.host());
        port.is_some_and(|port| {
            let digits = port.strip_prefix(':').unwrap_or(port);
            digits.bytes().all(|byte| byte.is_ascii_digit())
        })
    });
    authority.ok_or_else(|| invalid_host("it is not a host with or without a port"))
}

fn invalid_host(why: &str) -> Problem {
    let detail = format!("The Host is not valid: {why}. Nothing was done.");
    Problem::new(Code::InvalidHost, detail).with_field("Host")
}

/// The address that a host is, in brackets or without: an IPv4 address also where IPv6 writes it.
fn address(host: &str) -> Option<IpAddr> {
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let address = match bracketed {
        Some(host) => host.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host.parse().ok(),
    };
    address.map(|address| address.to_canonical())
}
