//! Headers on their way through the gateway: which go no further, and which are keylatch's to
//! write.
//!
//! A client names in `Connection` what belongs to its own connection (RFC 9110, section 7.6.1). It
//! does not get rid of a header of keylatch's in that way, nor of one that a proxy wrote. Tested in
//! `tests/api/gateway_headers.rs` and `idempotency_gateway.rs`.

use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::response::{HOP_BY_HOP, named_in_connection};

/// The other protocols that a message names for its connection; `None` where it names none. An
/// offer of HTTP/2, as some libraries make it with every request, is none that has to be taken.
pub(super) fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(header::CONNECTION)?;
    let items = |name: &HeaderName| {
        let lines = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        let items = lines.flat_map(|list| list.split(',')).map(str::trim);
        items.filter(|item| !item.is_empty()).collect::<Vec<_>>()
    };
    if !items(&header::CONNECTION).iter().any(|item| item.eq_ignore_ascii_case("upgrade")) {
        return None;
    }
    let mut protocols = items(&header::UPGRADE);
    protocols.retain(|protocol| !protocol.eq_ignore_ascii_case("h2c"));
    HeaderValue::try_from(protocols.join(", ")).ok().filter(|protocols| !protocols.is_empty())
}

/// Names other protocols for the connection of a message.
pub(super) fn offer_upgrade(headers: &mut HeaderMap, protocols: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocols);
}

/// Removes what belongs to the connection that a message came on, but for the `own` headers.
pub(super) fn strip(headers: &mut HeaderMap, own: &[HeaderName]) {
    let named = named_in_connection(headers);
    remove_those(headers, |name| {
        HOP_BY_HOP.contains(&name.as_str()) || named.contains(name) && !own.contains(name)
    });
}

/// Removes the headers whose names `goes` admits.
pub(super) fn remove_those(headers: &mut HeaderMap, goes: impl Fn(&HeaderName) -> bool) {
    let gone: Vec<_> = headers.keys().filter(|name| goes(name)).cloned().collect();
    for name in gone {
        headers.remove(name);
    }
}

/// Leaves the one length that was parsed, or none: a reader behind may take another of two. Beside
/// a `Transfer-Encoding` there is none, because the body was read by that (RFC 9112, section 6.3).
pub(super) fn keep_parsed_length(headers: &mut HeaderMap) {
    let lines = headers.get_all(header::CONTENT_LENGTH).iter();
    let texts = lines.flat_map(|line| line.to_str().unwrap_or_default().split(',')).map(str::trim);
    let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
    let mut lengths = texts.map(|text| Some(text).filter(is_number)?.parse::<u64>().ok());
    let length = lengths.next().flatten().filter(|first| lengths.all(|one| one == Some(*first)));
    headers.remove(header::CONTENT_LENGTH);
    if let Some(length) = length.filter(|_| !headers.contains_key(header::TRANSFER_ENCODING)) {
        headers.insert(header::CONTENT_LENGTH, length.into());
    }
}
