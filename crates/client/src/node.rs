//! The URLs of a service, and what sends requests to them, perhaps by a proxy.
//!
//! A request for an `http` URL goes to the proxy with its whole URL, one for `https` through a
//! tunnel (`CONNECT`), so that the proxy sees neither token nor key. What is wrong is an error
//! before the first request. Tested in `tests/api/rust_client_proxy.rs` and `tests/api/tls.rs`.

use std::env;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hyper::Uri;
use hyper::header::PROXY_AUTHORIZATION;
use hyper::http::uri::Authority;
#[cfg(feature = "tls")]
use hyper_rustls::HttpsConnector;
#[cfg(feature = "tls")]
use hyper_util::client::legacy::connect::Connect;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::ServiceExt as _;

use crate::builder::Builder;
#[cfg(feature = "tls")]
use crate::https::{Trust, https_connector};
use crate::transport::{CONNECT_TIMEOUT, Exchange, exchange, http_connector, unix_exchange};
use crate::{Error, Result};

const NO_PROXY: Error =
    Error::Settings("the URL of a proxy must begin with http:// and have a host");

/// How long connecting may take where there is another URL to go to.
const SHORT_CONNECT: Duration = Duration::from_secs(1);

pub(crate) struct Node {
    /// The URL without the path of a request and without a slash at its end.
    pub(crate) base: String,
    pub(crate) exchange: Exchange,
    /// Whether its store is known to be that of the others.
    pub(crate) is_known: AtomicBool,
}

impl Builder {
    pub(crate) fn nodes(&self) -> Result<Vec<Node>> {
        let urls: Vec<_> = self.urls.split(',').map(str::trim).collect();
        let connect_timeout = if urls.len() > 1 { SHORT_CONNECT } else { CONNECT_TIMEOUT };
        urls.iter().map(|url| self.node(url, connect_timeout)).collect()
    }

    fn node(&self, url: &str, connect_timeout: Duration) -> Result<Node> {
        let (base, exchange) = match url.strip_prefix("unix:") {
            Some("") => {
                return Err(Error::Settings(
                    "the URL of the service must have the path of a socket behind unix:",
                ));
            }
            Some(path) => ("http://localhost".to_owned(), unix_exchange(Path::new(path).into())),
            None => {
                let (base, uri) = parse(url)?;
                (base, self.network(&uri, http_connector(connect_timeout))?)
            }
        };
        let exchange = self.transport.clone().unwrap_or(exchange);
        Ok(Node { base, exchange, is_known: AtomicBool::new(false) })
    }

    fn network(&self, uri: &Uri, tcp: HttpConnector) -> Result<Exchange> {
        let proxy = proxy_of(uri, self.proxy.as_deref(), self.has_env)?;
        let is_https = uri.scheme_str() == Some("https");
        match proxy {
            Some(proxy) if is_https => {
                let tunnel = Tunnel::new(proxy.uri().clone(), tcp);
                let auth = proxy.basic_auth().cloned();
                self.tls(is_https, auth.map_or(tunnel.clone(), |auth| tunnel.with_auth(auth)))
            }
            Some(proxy) => Ok(forwarding(&proxy, tcp)),
            None if is_https || self.authorities.is_some() || self.certificate.is_some() => {
                self.tls(is_https, tcp)
            }
            None => Ok(exchange(tcp)),
        }
    }

    #[cfg(feature = "tls")]
    fn tls<C>(&self, is_https: bool, connector: C) -> Result<Exchange>
    where
        HttpsConnector<C>: Connect + Clone + Send + Sync + 'static,
    {
        let trust = match &self.authorities {
            Some(file) => Trust::Authorities(file.clone()),
            None if is_https => Trust::System,
            None => Trust::None,
        };
        let connector = https_connector(&trust, self.certificate.as_ref(), connector);
        Ok(exchange(connector.map_err(Error::Certificates)?))
    }

    #[cfg(not(feature = "tls"))]
    fn tls<C>(&self, _is_https: bool, _connector: C) -> Result<Exchange> {
        Err(Error::Settings("the URL of the service needs the feature `tls` of keylatch-client"))
    }
}

/// A URL without a slash at its end; `http` where it has no scheme.
fn parse(url: &str) -> Result<(String, Uri)> {
    let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let uri: Uri =
        url.parse().map_err(|_| Error::Settings("the URL of the service is not a URL"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(Error::Settings(
            "the URL of the service must begin with http://, https:// or unix:",
        ));
    }
    let authority = uri.authority().map_or("", Authority::as_str);
    if authority.contains('@') {
        return Err(Error::Settings("the URL of the service must not hold a user or a password"));
    }
    // What stands behind the host is a port.
    if uri.port().is_none() && uri.host() != Some(authority) {
        return Err(Error::Settings("the URL of the service is not a URL"));
    }
    if uri.query().is_some() || url.contains('#') {
        return Err(Error::Settings("the URL of the service must end with its path"));
    }
    Ok((url.trim_end_matches('/').to_owned(), uri))
}

/// The proxy for a service: the one of the program, or else that of the environment.
fn proxy_of(service: &Uri, url: Option<&str>, has_env: bool) -> Result<Option<Intercept>> {
    let proxy = match url {
        Some(url) => {
            let all = Matcher::builder().all(url).build();
            Some(all.intercept(service).ok_or(NO_PROXY)?)
        }
        None => has_env.then(from_env).and_then(|matcher| matcher.intercept(service)),
    };
    match proxy.as_ref().and_then(|proxy| proxy.uri().scheme_str()) {
        None | Some("http") => Ok(proxy),
        Some(_) => Err(NO_PROXY),
    }
}

/// What `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` say. None leads to this machine.
fn from_env() -> Matcher {
    let value = |name: &str| {
        let value = env::var(name).or_else(|_| env::var(name.to_lowercase()));
        value.unwrap_or_default()
    };
    let none = format!("{},localhost,127.0.0.0/8,::1", value("NO_PROXY"));
    Matcher::builder().http(value("HTTP_PROXY")).https(value("HTTPS_PROXY")).no(none).build()
}

/// What sends requests to the proxy, which forwards them.
fn forwarding(proxy: &Intercept, connector: HttpConnector) -> Exchange {
    let (uri, auth) = (proxy.uri().clone(), proxy.basic_auth().cloned());
    let send = exchange(
        connector.map_request(move |_: Uri| uri.clone()).map_response(|tcp| Pin::new(Proxied(tcp))),
    );
    Arc::new(move |mut request| {
        if let Some(auth) = &auth {
            request.headers_mut().insert(PROXY_AUTHORIZATION, auth.clone());
        }
        send(request)
    })
}

/// A connection to a proxy, by which hyper sends whole URLs. Pinned, it reads and writes as what it
/// derefs to.
struct Proxied(TokioIo<TcpStream>);

impl Deref for Proxied {
    type Target = TokioIo<TcpStream>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Proxied {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Connection for Pin<Proxied> {
    fn connected(&self) -> Connected {
        (**self).connected().proxy(true)
    }
}
