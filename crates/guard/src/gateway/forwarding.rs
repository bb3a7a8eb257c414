//! Who a request is from and which origin it was for, as the upstream reads it: `X-Forwarded-For`,
//! `-Host` and `-Proto`, and `Forwarded` (RFC 7239); and where an upstream's redirect leads.
//!
//! What a trusted proxy says is continued, and what any other client says is replaced, because
//! upstreams believe it. `Forwarded` is always made of the other three: most proxies set these and
//! pass on the `Forwarded` that a client wrote. Tested in `tests/api/gateway_headers.rs`.

use std::borrow::Cow;
use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::uri::Authority;

use super::principal::TrustedProxy;

pub(super) const FORWARDED: HeaderName = header::FORWARDED;
pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(super) const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(super) const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// What a trusted proxy is believed in.
const OF_PROXIES: [HeaderName; 3] = [X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO];
/// What else upstreams believe of who a client is or what it asked for. A proxy that sets one of
/// these passes on the others as the client wrote them.
const CLAIMS: [&str; 14] = [
    "proxy",
    "client-ip",
    "x-client-ip",
    "true-client-ip",
    "x-real-ip",
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "fastly-client-ip",
    "fly-client-ip",
    "x-azure-clientip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "remote-user",
    "x-rewrite-url",
];
/// What the names of further ones begin with.
const CLAIMS_BEGIN: [&str; 3] = ["x-forwarded", "x-original-", "x-remote-"];

/// The connection that a request came on.
#[derive(Debug, Clone, Copy)]
pub struct ClientConnection {
    /// The address of the other end, where it has one.
    pub peer: Option<IpAddr>,
    /// The scheme by which the client asked: `http` or `https`.
    pub scheme: &'static str,
}

/// The address of the client, as a trusted proxy says or else the connection; of IPv6 the network,
/// of which a client has every address.
pub fn client_address(request: &Request, peer: Option<IpAddr>) -> Option<IpAddr> {
    let clients = text(request.headers(), &X_FORWARDED_FOR);
    let trusted = clients.filter(|_| request.extensions().get::<TrustedProxy>().is_some());
    let last = trusted.and_then(|clients| clients.rsplit(',').next()?.trim().parse().ok());
    Some(match last.or(peer)? {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address @ IpAddr::V4(_) => address,
    })
}

/// Whether a header claims where its request comes from or who sends it. Only a trusted proxy may
/// claim that.
pub(super) fn is_claim(name: &HeaderName, is_trusted: bool) -> bool {
    if OF_PROXIES.contains(name) {
        return !is_trusted;
    }
    CLAIMS.contains(&name.as_str())
        || CLAIMS_BEGIN.iter().any(|begin| name.as_str().starts_with(begin))
}

/// Writes down where a request comes from, for the upstream. Each guarded request says it, so what
/// is one line of a header is not copied.
pub(super) fn write_source(request: &mut Request, connection: ClientConnection) {
    let headers = request.headers();
    let mut clients = text(headers, &X_FORWARDED_FOR).unwrap_or_default().into_owned();
    if !clients.is_empty() {
        clients.push_str(", ");
    }
    match connection.peer {
        Some(peer) => clients.push_str(&peer.to_string()),
        None => clients.push_str("unknown"),
    }
    let target = || request.uri().authority().map(|host| host.as_str().into());
    let host = text(headers, &X_FORWARDED_HOST).or_else(target);
    let host = host.or_else(|| text(headers, &header::HOST)).unwrap_or_default();
    let proto = text(headers, &X_FORWARDED_PROTO).unwrap_or(connection.scheme.into());
    let values = [
        (FORWARDED, HeaderValue::try_from(forwarded(&clients, first(&host), first(&proto)))),
        (X_FORWARDED_FOR, HeaderValue::try_from(clients)),
        (X_FORWARDED_HOST, HeaderValue::from_str(&host)),
        (X_FORWARDED_PROTO, HeaderValue::from_str(&proto)),
    ];
    let headers = request.headers_mut();
    for (name, value) in values {
        match value {
            Ok(value) if !value.is_empty() => headers.insert(name, value),
            _ => headers.remove(name),
        };
    }
}

/// The value of `Forwarded`: an element for each client; the first has the origin that it asked
/// for.
fn forwarded(clients: &str, host: &str, proto: &str) -> String {
    let is_token = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._+".contains(&b))
    };
    let mut list = String::with_capacity(80);
    for (index, client) in clients.split(',').enumerate() {
        list.push_str(if index == 0 { "for=" } else { ", for=" });
        push_node(&mut list, client.trim());
        if index == 0 && !host.is_empty() && !host.contains(['"', '\\']) {
            list.extend([";host=\"", host, "\""]);
        }
        if index == 0 && is_token(proto) {
            list.extend([";proto=", proto]);
        }
    }
    list
}

fn first(list: &str) -> &str {
    list.split(',').next().unwrap_or_default().trim()
}

/// The lines of a header as one list. `None` where it has none, or what is no text.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, str>> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next()?.to_str().ok()?;
    lines.try_fold(first.into(), |list, line| {
        Some(format!("{list}, {}", line.to_str().ok()?).into())
    })
}

/// Adds a client as `Forwarded` writes it: an IPv6 address in brackets, and in quotes what is no
/// token.
fn push_node(list: &mut String, client: &str) {
    match client.parse() {
        // There is one way to write it.
        Ok(IpAddr::V4(_)) => list.push_str(client),
        Ok(IpAddr::V6(address)) => list.push_str(&format!("\"[{address}]\"")),
        Err(_) if client.is_empty() || client.contains(['"', '\\']) => list.push_str("unknown"),
        Err(_) => list.extend(["\"", client, "\""]),
    }
}

/// Makes a redirect of the upstream to itself one within the service, whose clients do not reach
/// the upstream.
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
