//! The URLs of a service, and what sends requests to them.
//!
//! What is wrong is an error here, before the first request. No error text has the key. Tested in
//! `tests/api/rust_client.rs`, `tests/api/client_certificates.rs` and `tests/api/tls.rs`.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::http::uri::Authority;
#[cfg(feature = "tls")]
use hyper_rustls::HttpsConnector;
#[cfg(feature = "tls")]
use hyper_util::client::legacy::connect::Connect;
use hyper_util::client::legacy::connect::HttpConnector;

use crate::builder::Builder;
#[cfg(feature = "tls")]
use crate::https::{Trust, https_connector};
use crate::transport::{CONNECT_TIMEOUT, Exchange, exchange, http_connector, unix_exchange};
use crate::{Error, proxy};

/// How long connecting may take where there is another URL to go to.
const SHORT_CONNECT: Duration = Duration::from_secs(1);

/// One URL of a service.
pub(crate) struct Node {
    /// The URL without the path of a request and without a slash at its end.
    pub(crate) base: String,
    pub(crate) exchange: Exchange,
    /// Whether its store is known to be that of the others.
    pub(crate) is_known: AtomicBool,
}

impl Builder {
    /// The value of `Authorization`, if there is an API key.
    pub(crate) fn authorization(&self) -> Result<Option<HeaderValue>, Error> {
        self.api_key.as_deref().map(bearer).transpose()
    }

    /// All URLs, with connections that are not opened yet.
    pub(crate) fn nodes(&self) -> Result<Vec<Node>, Error> {
        let urls: Vec<_> = self.urls.split(',').map(str::trim).collect();
        let connect_timeout = if urls.len() > 1 { SHORT_CONNECT } else { CONNECT_TIMEOUT };
        urls.iter().map(|url| self.node(url, connect_timeout)).collect()
    }

    fn node(&self, url: &str, connect_timeout: Duration) -> Result<Node, Error> {
        let (base, exchange) = match url.strip_prefix("unix:") {
            Some("") => return Err(Error::Url("must have the path of a socket behind unix:")),
            Some(path) => ("http://localhost".to_owned(), unix_exchange(Path::new(path).into())),
            None => {
                let (base, uri) = parse(url)?;
                (base, self.network(&uri, http_connector(connect_timeout))?)
            }
        };
        let exchange = self.transport.clone().unwrap_or(exchange);
        Ok(Node { base, exchange, is_known: AtomicBool::new(false) })
    }

    fn network(&self, uri: &Uri, tcp: HttpConnector) -> Result<Exchange, Error> {
        let proxy = proxy::of(uri, self.proxy.as_deref(), self.has_env)?;
        let is_https = uri.scheme_str() == Some("https");
        match proxy {
            Some(proxy) if is_https => self.tls(is_https, proxy::tunnel(&proxy, tcp)),
            Some(proxy) => Ok(proxy::forwarding(&proxy, tcp)),
            None if is_https || self.authorities.is_some() || self.certificate.is_some() => {
                self.tls(is_https, tcp)
            }
            None => Ok(exchange(tcp)),
        }
    }

    #[cfg(feature = "tls")]
    fn tls<C>(&self, is_https: bool, connector: C) -> Result<Exchange, Error>
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
    fn tls<C>(&self, _is_https: bool, _connector: C) -> Result<Exchange, Error> {
        Err(Error::Url("needs the feature `tls` of keylatch-client"))
    }
}

/// The value of `Authorization`.
fn bearer(key: &str) -> Result<HeaderValue, Error> {
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::ApiKey);
    }
    let mut bearer = HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| Error::ApiKey)?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

/// A URL without a slash at its end; `http` where it has no scheme.
fn parse(url: &str) -> Result<(String, Uri), Error> {
    let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let uri: Uri = url.parse().map_err(|_| Error::Url("is not a URL"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(Error::Url("must begin with http://, https:// or unix:"));
    }
    let authority = uri.authority().map_or("", Authority::as_str);
    if authority.contains('@') {
        return Err(Error::Url("must not hold a user or a password"));
    }
    // What stands behind the host is a port.
    if uri.port().is_none() && uri.host() != Some(authority) {
        return Err(Error::Url("is not a URL"));
    }
    if uri.query().is_some() || url.contains('#') {
        return Err(Error::Url("must end with its path"));
    }
    Ok((url.trim_end_matches('/').to_owned(), uri))
}
