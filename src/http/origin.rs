//! Refuses requests that a foreign web page can make a browser send, also to loopback; and says
//! which pages may use the service ([`Cors`]). Four rules hold:
//!
//! - **The host** of a request is one that the service goes by. A page whose name leads to
//!   127.0.0.1 (DNS rebinding) shares its origin with the service, and could read its responses.
//! - **The origin** of a request that changes something, or takes a place that others need, is the
//!   service's own or an allowed one. A page cannot choose what a browser says in `Sec-Fetch-Site`
//!   and `Origin`; no other client says either.
//! - **The page of a guarded service** gets nothing that is for identities where it shares the
//!   origin: a browser sends the key that it knows for one page of an origin for every other.
//! - **The media type** of a body from a page is one that the route reads, so that no form and no
//!   `text/plain` passes for JSON: a page sends those to a foreign service without asking it first.
//!
//! The check reads the head alone. Tested in `tests/api/hosts.rs`, `foreign_pages.rs`,
//! `shared_origins.rs` and `cors.rs`.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Version, header,
};
use axum::response::Response;
use ipnet::IpNet;
use serde::Deserialize;
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::parts::ServedParts;
use super::problem::{Code, Problem};
use super::server::Settings;
use crate::access::{CertificateNames, Identity};
use keylatch_axum::CrossOrigin;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// How long a browser may remember what it is allowed.
const MAX_AGE: Duration = Duration::from_secs(60 * 60);

/// How a request came in, and of whom; an extension of each request that came over a connection of
/// this server. By default it is that of another server's: over plain HTTP, as far as is known.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectionInfo {
    /// Whether only programs of this machine reach the listener.
    pub(super) is_local: bool,
    /// Whether the connection is encrypted.
    pub(super) is_tls: bool,
    /// Whether the service has as many connections as it may beside this one.
    pub(super) is_surplus: bool,
    /// What the listener serves.
    pub(super) serves: ServedParts,
    /// The address of the other end.
    pub(super) peer: Option<IpAddr>,
    /// The names in the certificate that the client showed.
    pub(super) certificate: Option<Arc<CertificateNames>>,
    /// The identity that sends the request, once the layer around all routes has found it. It is no
    /// extension of its own: that would be the fourth of a request, and the map of extensions grows
    /// with the fourth.
    pub(super) identity: Option<Arc<Identity>>,
}

impl ConnectionInfo {
    /// How this request came in.
    pub(super) fn of<B>(request: &Request<B>) -> Option<&Self> {
        request.extensions().get()
    }

    /// The identity that sends the request with these extensions, if it is known.
    pub(super) fn identity(extensions: &Extensions) -> Option<&Arc<Identity>> {
        extensions.get::<Self>()?.identity.as_ref()
    }

    /// The scheme by which the client asked.
    pub(super) fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }
}

/// Of the listener that the request came to.
impl<S: Sync> FromRequestParts<S> for ServedParts {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<ConnectionInfo>().map_or(Self::ALL, |info| info.serves))
    }
}

/// What a route takes from web pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteClass {
    /// JSON, from own and allowed pages.
    Api,
    /// Forms as well, and whatever a browser sends to a foreign service only if that allows it.
    Guard,
    /// Everything from every page.
    Callback,
}

impl From<CrossOrigin> for RouteClass {
    fn from(setting: CrossOrigin) -> Self {
        match setting {
            CrossOrigin::Refuse => Self::Guard,
            CrossOrigin::Pass => Self::Callback,
        }
    }
}

/// What the head of a request must be for the service to answer it.
#[derive(Debug, Default)]
pub struct OriginPolicy {
    hosts: Vec<String>,
    cors: Cors,
    proxies: Vec<IpNet>,
}

impl OriginPolicy {
    /// The policy of these settings.
    pub fn new(settings: &Settings, cors: &Cors) -> Self {
        let proxies = settings.trusted_proxies.iter().filter_map(|proxy| network(proxy));
        Self { hosts: settings.hosts.clone(), cors: cors.clone(), proxies: proxies.collect() }
    }

    /// Whether each host is a name or an address, without a scheme and without a port.
    pub(crate) fn are_hosts(hosts: &[String]) -> bool {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let is_name = |host: &str| !host.is_empty() && host.chars().all(plain);
        hosts.iter().all(|host| is_name(host) || address(host).is_some())
    }

    /// Whether each is an address, or a network like `10.0.0.0/8`.
    pub(crate) fn are_networks(proxies: &[String]) -> bool {
        proxies.iter().all(|proxy| network(proxy).is_some())
    }

    /// Whether a route of this kind may answer the request. A request has one Host (400) that is of
    /// this service (421). Nothing is changed and no place is taken for a foreign page (403), nor
    /// anything changed by a body of a media type that the route does not take from a page (415).
    pub(super) fn check(
        &self,
        request: &Request<Body>,
        class: RouteClass,
        route: Option<&str>,
    ) -> Result<(), Problem> {
        let (headers, host) = (request.headers(), host_of(request)?);
        self.check_host(request, host)?;
        // A browser opens a WebSocket for every page, and asks no service before it does.
        let has_upgrade = headers.contains_key(header::UPGRADE);
        let takes_place = class == RouteClass::Api && route.is_some_and(takes_place);
        let is_safe = request.method().is_safe() && !has_upgrade && !takes_place;
        if is_safe || class == RouteClass::Callback {
            return Ok(());
        }
        let origin = said(headers, &header::ORIGIN);
        self.check_origin(request, (origin, said(headers, &SEC_FETCH_SITE)), host)?;
        if origin.is_some() { check_media_type(request, class) } else { Ok(()) }
    }

    /// Whether a page of the host that the request is for made a browser send it, as far as the
    /// browser says.
    pub(super) fn is_of_own_page(&self, request: &Request<Body>) -> bool {
        if let Some(site) = said(request.headers(), &SEC_FETCH_SITE) {
            return site == "same-origin";
        }
        let own = self.own_authority(request, host_of(request).ok().flatten());
        let pages = [header::ORIGIN, header::REFERER];
        pages.iter().filter_map(|name| said(request.headers(), name)).any(|page| {
            let Some((scheme, rest)) = page.split_once("://") else { return false };
            let of_page = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let bare = |host| without_default_port(host, scheme);
            own.is_some_and(|own| bare(own).eq_ignore_ascii_case(bare(of_page)))
        })
    }

    /// Whether a request comes from a proxy whose word for others counts.
    pub(super) fn trusts(&self, request: &Request<Body>) -> bool {
        let peer = ConnectionInfo::of(request).and_then(|connection| connection.peer);
        peer.is_some_and(|peer| self.proxies.iter().any(|net| net.contains(&peer)))
    }

    fn check_host(&self, request: &Request<Body>, host: Option<Host<'_>>) -> Result<(), Problem> {
        let is_local = ConnectionInfo::of(request).is_some_and(|connection| connection.is_local);
        if host.is_none_or(|host| self.serves(host.name, is_local)) {
            return Ok(());
        }
        let detail = "The service does not go by this host. `server.hosts` in its configuration \
                      lists those that it goes by. Nothing was done.";
        Err(Problem::new(Code::MisdirectedRequest, detail).with_field("Host"))
    }

    /// `Sec-Fetch-Site` decides where a browser sends it, and `Origin` where it does not: over
    /// plain HTTP from elsewhere than loopback, and before 2023.
    fn check_origin(
        &self,
        request: &Request<Body>,
        (origin, fetch_site): (Option<&str>, Option<&str>),
        host: Option<Host<'_>>,
    ) -> Result<(), Problem> {
        let is_own = match fetch_site {
            Some(site) => matches!(site, "same-origin" | "none"),
            None => origin.is_none_or(|origin| self.is_own(origin, request, host)),
        };
        if is_own || origin.is_some_and(|origin| self.cors.allows(origin)) {
            return Ok(());
        }
        let detail = "A web page of another origin made the browser send this, and \
                      `cors.allow_origins` does not list that origin. Nothing was done.";
        Err(Problem::new(Code::CrossOrigin, detail).with_field("Origin"))
    }

    /// Whether an origin is the service's: the scheme and the host at which the client asked for
    /// it, as a trusted proxy says or as the request itself does.
    fn is_own(&self, origin: &str, request: &Request<Body>, host: Option<Host<'_>>) -> bool {
        let own_scheme = ConnectionInfo::of(request).map_or("http", ConnectionInfo::scheme);
        let scheme = self.forwarded(request, &X_FORWARDED_PROTO).unwrap_or(own_scheme);
        let own = self.own_authority(request, host);
        let Some((of_scheme, of_host)) = origin.split_once("://") else { return false };
        let own = own.map(|own| without_default_port(own, scheme));
        of_scheme == scheme && own.is_some_and(|own| own.eq_ignore_ascii_case(of_host))
    }

    /// The host and port at which the client asked.
    fn own_authority<'a>(
        &self,
        request: &'a Request<Body>,
        host: Option<Host<'a>>,
    ) -> Option<&'a str> {
        self.forwarded(request, &X_FORWARDED_HOST).or(host.map(|host| host.authority))
    }

    /// The path below which the client found the service.
    pub(super) fn prefix(&self, request: &Request<Body>) -> Option<String> {
        let path = self.forwarded(request, &X_FORWARDED_PREFIX)?.trim_end_matches('/');
        let is_plain =
            path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte));
        (path.starts_with('/') && !path.contains("//") && is_plain).then(|| path.to_owned())
    }

    /// What a trusted proxy says of the request of its client.
    fn forwarded<'a>(&self, request: &'a Request<Body>, name: &HeaderName) -> Option<&'a str> {
        let list = said(request.headers(), name).filter(|_| self.trusts(request))?;
        list.split(',').next().map(str::trim)
    }

    /// On loopback and on Unix sockets: loopback names and what is listed. Elsewhere only names can
    /// be refused, and only where some are listed: an attacker has names, and no address of
    /// another's machine.
    fn serves(&self, host: &str, is_local: bool) -> bool {
        // As most clients of a loopback address write it: to read an address is 1 % of a request.
        if host == "127.0.0.1" {
            return true;
        }
        let may_be_any = match address(host) {
            Some(address) => address.is_loopback() || !is_local,
            None => host.eq_ignore_ascii_case("localhost") || !is_local && self.hosts.is_empty(),
        };
        may_be_any || {
            let bare = host.trim_start_matches('[').trim_end_matches(']');
            self.hosts.iter().any(|listed| listed.eq_ignore_ascii_case(bare))
        }
    }
}

/// Whether a request by GET takes a place of which there are few: a copy, or a stream of events. A
/// page takes it by an image whose response it never reads.
fn takes_place(route: &str) -> bool {
    matches!(route, "/v1/backup" | "/v1/locks/{name}/events" | "/console/locks")
}

/// The address or network that a setting names.
fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse().ok().map(|address: IpAddr| address.into()))
}

/// A body that a page sends is of a type that the route reads. A browser sends forms, `text/plain`
/// and untyped bodies to a foreign service unasked, and asks before it sends anything else (CORS).
fn check_media_type(request: &Request<Body>, class: RouteClass) -> Result<(), Problem> {
    if request.body().is_end_stream() {
        return Ok(());
    }
    let media_type = said(request.headers(), &header::CONTENT_TYPE).unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    let is = |other: &str| media_type.eq_ignore_ascii_case(other);
    let (is_taken, detail) = match class {
        RouteClass::Api => {
            (is("application/json"), "A body from a web page has to be `application/json`.")
        }
        RouteClass::Guard | RouteClass::Callback => (
            !is("") && !is("text/plain"),
            "A body from a web page has to be `application/json` or a form, or of another type that \
             is not `text/plain`.",
        ),
    };
    if is_taken {
        return Ok(());
    }
    let problem = Problem::new(Code::UnsupportedMediaType, format!("{detail} Nothing was done."));
    Err(problem.with_field("Content-Type"))
}

/// What a header says; two lines of it say nothing, which is no value of any of them.
fn said<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next()?, lines.next()) {
        (line, None) => Some(line.to_str().unwrap_or_default()),
        (_, Some(_)) => Some(""),
    }
}

/// The host and port without the port that the scheme has anyway, which browsers leave out.
fn without_default_port<'a>(authority: &'a str, scheme: &str) -> &'a str {
    let port = if scheme == "https" { ":443" } else { ":80" };
    authority.strip_suffix(port).unwrap_or(authority)
}

/// The host that a request is for, as the client wrote it.
#[derive(Debug, Clone, Copy)]
struct Host<'a> {
    /// With its port, if it has one.
    authority: &'a str,
    /// Without it.
    name: &'a str,
}

impl<'a> Host<'a> {
    /// The host of a name or of an address in brackets, and perhaps a port (RFC 9110, section 7.2).
    /// Read here, since `http::uri::Authority` copies what it reads, and each request has a host.
    fn parse(authority: &'a str) -> Option<Self> {
        let end = match authority.strip_prefix('[') {
            Some(address) => address.find(']')? + 2,
            None => authority.bytes().position(|byte| byte == b':').unwrap_or(authority.len()),
        };
        let (name, port) = authority.split_at(end);
        let is_name = name.bytes().all(is_of_name) || address(name).is_some();
        let is_port = match port.as_bytes() {
            [] => true,
            [colon, digits @ ..] => *colon == b':' && digits.iter().all(u8::is_ascii_digit),
        };
        (is_name && is_port && !name.is_empty()).then_some(Self { authority, name })
    }
}

/// Whether a registered name may have this byte (RFC 3986, section 3.2.2).
fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'$'..=b'.' | b'!' | b';' | b'=' | b'_' | b'~')
}

/// The host that a request is for; `None` where HTTP/1.0 names none.
fn host_of(request: &Request<Body>) -> Result<Option<Host<'_>>, Problem> {
    let mut lines = request.headers().get_all(header::HOST).iter();
    let named = match (lines.next(), lines.next()) {
        (_, Some(_)) => return Err(invalid_host("there is more than one Host header")),
        (None, _) if request.version() == Version::HTTP_11 => {
            return Err(invalid_host("there is no Host header"));
        }
        (None, _) => None,
        (Some(line), None) => Some(host(line.to_str().unwrap_or_default())?),
    };
    // A target in absolute form names the host itself (RFC 9112, section 3.2.2).
    let of_target = request.uri().authority().map(|target| host(target.as_str())).transpose()?;
    Ok(of_target.or(named))
}

fn host(authority: &str) -> Result<Host<'_>, Problem> {
    let host = Host::parse(authority);
    host.ok_or_else(|| invalid_host("it is not a host with or without a port"))
}

fn invalid_host(why: &str) -> Problem {
    let detail = format!("The Host is not valid: {why}. Nothing was done.");
    Problem::new(Code::InvalidHost, detail).with_field("Host")
}

/// The address that a host is, in brackets or without: an IPv4 address also where IPv6 writes it.
fn address(host: &str) -> Option<IpAddr> {
    // Most hosts are names, and trying to read them as addresses costs more than this look.
    if !host.starts_with(|first: char| first.is_ascii_hexdigit() || "[:".contains(first)) {
        return None;
    }
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let address = match bracketed {
        Some(host) => host.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host.parse().ok(),
    };
    address.map(|address| address.to_canonical())
}

/// Which web pages may use the service. `config/keylatch.toml` says what each setting means.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the file of defaults documents every setting")]
pub struct Cors {
    pub allow_origins: Vec<String>,
}

impl Cors {
    /// Whether each origin is `*`, or a scheme and an authority, as browsers send them.
    pub fn is_valid(&self) -> bool {
        self.allow_origins.iter().all(|origin| origin == "*" || is_origin(origin))
    }

    /// Whether the pages of an origin, as a browser sends it, may use the service.
    fn allows(&self, origin: &str) -> bool {
        self.allow_origins.iter().any(|allowed| allowed == "*" || allowed == origin)
    }

    /// The layer that answers for browsers; `None` where no page is allowed.
    pub(super) fn layer(&self) -> Option<CorsLayer> {
        if self.allow_origins.is_empty() {
            return None;
        }
        let any = self.allow_origins.iter().any(|origin| origin == "*");
        let origins = self.allow_origins.iter().filter_map(|origin| origin.parse().ok());
        let origins = origins.collect::<Vec<HeaderValue>>();
        let origins = if any { AllowOrigin::any() } else { AllowOrigin::list(origins) };
        let named = HeaderName::from_static;
        Some(
            CorsLayer::new()
                .allow_origin(origins)
                .allow_methods([
                    Method::GET,
                    Method::POST,
                    Method::PUT,
                    Method::PATCH,
                    Method::DELETE,
                ])
                .allow_headers([
                    header::CONTENT_TYPE,
                    header::ACCEPT,
                    header::AUTHORIZATION,
                    named("idempotency-key"),
                    named("lock-token"),
                    named("prefer"),
                    named("x-request-id"),
                ])
                .expose_headers([
                    header::LOCATION,
                    header::RETRY_AFTER,
                    named("idempotency-key-expires"),
                    named("idempotency-key-source"),
                    named("idempotent-replayed"),
                    named("idempotent-body"),
                    named("lock-token"),
                    named("x-request-id"),
                ])
                .max_age(MAX_AGE),
        )
    }
}

/// Removes what an upstream wrote for pages of other origins: [`Cors`] answers for it, and a header
/// of the one beside a header of the other could allow what neither does.
pub(super) fn remove_cors_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let names = headers.keys().filter(|name| name.as_str().starts_with("access-control-"));
    let names: Vec<_> = names.cloned().collect();
    for name in names {
        headers.remove(name);
    }
    response
}

fn is_origin(origin: &str) -> bool {
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.is_some_and(|authority| {
        !authority.is_empty() && !authority.contains(['/', '?', '#', '@', '*', ' '])
    }) && HeaderValue::from_str(origin).is_ok()
}
