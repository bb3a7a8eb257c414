//! Who a request is from and which origin it was for, as the upstream reads it: `X-Forwarded-For`, `-Host` and
//! `-Proto`, and `Forwarded` (RFC 7239); and where an upstream's redirect leads.
//!
//! What a trusted proxy says is continued, and what any other client says is replaced, because upstreams believe
//! it. `Forwarded` is always made of the other three: most proxies set these and pass on the `Forwarded` that a
//! client wrote. Tested in `tests/api/gateway_headers.rs`.

use std::borrow::Cow;
use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::uri::Authority;

use super::headers::remove_those;
use crate::http::origin::{Arrival, TrustedProxy};

pub(super) const FORWARDED: HeaderName = header::FORWARDED;
pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(super) const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(super) const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// What else says who a client is or what it asked for, and is a proxy's to say.
const OTHERS: [&str; 5] =
    ["x-real-ip", "x-client-ip", "true-client-ip", "x-original-url", "x-rewrite-url"];

/// Removes what a client that is no trusted proxy says of where its request comes from.
pub(super) fn remove_claims(request: &mut Request) {
    if request.extensions().get::<TrustedProxy>().is_some() {
        return;
    }
    remove_those(request.headers_mut(), |name| {
        // A name with `_` is another to this service, and the same to many an upstream.
        let name = match name.as_str() {
            name if name.contains('_') => Cow::Owned(name.replace('_', "-")),
            name => Cow::Borrowed(name),
        };
        name.starts_with("x-forwarded-") || OTHERS.contains(&&*name) || *name == FORWARDED
    });
}

/// Writes down where a request comes from, for the upstream.
pub(super) fn write_source(request: &mut Request) {
    let arrival = Arrival::of(request);
    let scheme = arrival.map_or("http", Arrival::scheme);
    let peer = arrival.and_then(|arrival| arrival.peer);
    let peer = peer.map_or_else(|| "unknown".to_owned(), |peer: IpAddr| peer.to_string());
    let host = request.uri().authority().map(|host| host.as_str().to_owned());
    let headers = request.headers_mut();
    let host = host.or_else(|| text(headers, &header::HOST));
    let clients = [text(headers, &X_FORWARDED_FOR), Some(peer)];
    let clients: Vec<_> = clients.into_iter().flatten().filter(|list| !list.is_empty()).collect();
    let clients = clients.join(", ");
    let host = text(headers, &X_FORWARDED_HOST).or(host).unwrap_or_default();
    let proto = text(headers, &X_FORWARDED_PROTO).unwrap_or_else(|| scheme.to_owned());
    let forwarded = forwarded(&clients, &host, &proto);
    for (name, value) in [
        (X_FORWARDED_FOR, clients),
        (X_FORWARDED_HOST, host),
        (X_FORWARDED_PROTO, proto),
        (FORWARDED, forwarded),
    ] {
        headers.remove(&name);
        let value = HeaderValue::try_from(value).ok().filter(|value| !value.is_empty());
        headers.extend(value.map(|value| (name, value)));
    }
}

/// The lines of a header as one list. `None` where it has none, or what is no text.
fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let lines: Result<Vec<_>, _> = headers.get_all(name).iter().map(HeaderValue::to_str).collect();
    lines.ok().filter(|lines| !lines.is_empty()).map(|lines| lines.join(", "))
}

/// `Forwarded` with an element for each client; the first has the origin that it asked for.
fn forwarded(clients: &str, host: &str, proto: &str) -> String {
    let first = |list: &str| list.split(',').next().unwrap_or_default().trim().to_owned();
    let (host, proto) = (first(host), first(proto));
    let is_token = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._+".contains(c))
    };
    let mut elements: Vec<_> = clients.split(',').map(|client| node(client.trim())).collect();
    if let Some(element) = elements.first_mut() {
        if !host.is_empty() && !host.contains(['"', '\\']) {
            element.push_str(&format!(";host=\"{host}\""));
        }
        if is_token(&proto) {
            element.push_str(&format!(";proto={proto}"));
        }
    }
    elements.join(", ")
}

/// A client as `Forwarded` writes it: an IPv6 address in brackets, and in quotes what is no token.
fn node(client: &str) -> String {
    match client.parse() {
        Ok(IpAddr::V4(address)) => format!("for={address}"),
        Ok(IpAddr::V6(address)) => format!("for=\"[{address}]\""),
        Err(_) if client.is_empty() || client.contains(['"', '\\']) => "for=unknown".to_owned(),
        Err(_) => format!("for=\"{client}\""),
    }
}

/// Makes a redirect of the upstream to itself one within the service, whose clients do not reach the upstream.
pub(super) fn hide_upstream(headers: &mut HeaderMap, upstream: &Authority) {
    for name in [header::LOCATION, header::CONTENT_LOCATION] {
        let inner = headers.get(&name).and_then(|value| within(value.to_str().ok()?, upstream));
        if let Some(inner) = inner.and_then(|inner| HeaderValue::try_from(inner).ok()) {
            headers.insert(name, inner);
        }
    }
}

/// The path of a reference, with what follows it, if it is one to the upstream.
fn within(reference: &str, upstream: &Authority) -> Option<String> {
    let (scheme, rest) = reference.split_once("//")?;
    let port = match scheme.to_ascii_lowercase().as_str() {
        "http:" | "" => ":80",
        "https:" => ":443",
        _ => return None,
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let bare = |authority: &str| {
        let authority = authority.to_ascii_lowercase();
        authority.strip_suffix(port).map(str::to_owned).unwrap_or(authority)
    };
    if bare(authority) != bare(upstream.as_str()) {
        return None;
    }
    Some(match rest.as_bytes() {
        // Two slashes would begin another host.
        [b'/', b'/', ..] => format!("/.{rest}"),
        [b'/', ..] => rest.to_owned(),
        _ => format!("/{rest}"),
    })
}
