//! Pooled HTTP/1.1 connections, over TCP or TLS.
//!
//! The client of locks and the gateway of the service, which sends guarded requests on, both speak
//! HTTP by what is built here, so timeouts and trust are the same. A connection that was idle for
//! 1 s is not used again: servers close theirs later (gunicorn after 2 s), and a request on a connection
//! that the other side is just closing has an unknown outcome.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::body::Body;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may stay unused.
pub(crate) const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections to any number of servers. Clones share them.
pub type HttpsClient<B> = legacy::Client<HttpsConnector<HttpConnector>, B>;

/// Which servers of `https` URLs are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trust {
    /// Those that the system's certificates vouch for.
    System,
    /// Those that an authority in this PEM file vouches for.
    Authorities(PathBuf),
    /// None, for a client that speaks plain HTTP alone: a machine without certificates will do.
    None,
}

/// A client without connections.
///
/// # Errors
///
/// The certificates of the system or of the file are to be trusted and cannot be read.
pub fn https_client<B>(trust: &Trust) -> io::Result<HttpsClient<B>>
where
    B: Body + Send,
    B::Data: Send,
{
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_nodelay(true);
    let tls = HttpsConnectorBuilder::new();
    let tls = match trust {
        Trust::System => tls.with_provider_and_native_roots(default_provider())?,
        Trust::Authorities(file) => tls.with_tls_config(config(authorities(file)?)?),
        Trust::None => tls.with_tls_config(config(RootCertStore::empty())?),
    };
    let connector = tls.https_or_http().enable_http1().wrap_connector(connector);
    Ok(legacy::Client::builder(TokioExecutor::new())
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .pool_timer(TokioTimer::new())
        .build(connector))
}

fn config(roots: RootCertStore) -> io::Result<ClientConfig> {
    let config = ClientConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// The authorities in a PEM file, of which there is at least one.
fn authorities(file: &Path) -> io::Result<RootCertStore> {
    let wrong = |why: &str| io::Error::other(format!("{}: {why}", file.display()));
    let pem = std::fs::read(file).map_err(|error| wrong(&error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|_| wrong("it is not certificates in PEM"))?;
        roots.add(certificate).map_err(|_| wrong("a certificate is not one of an authority"))?;
    }
    if roots.is_empty() {
        return Err(wrong("it has no certificate"));
    }
    Ok(roots)
}
