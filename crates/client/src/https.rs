//! Pooled HTTP/1.1 connections, over TCP or TLS.
//!
//! The client of locks and the gateway of the service, which sends guarded requests on, both speak
//! HTTP by what is built here, so timeouts and trust are the same. A connection that was idle for 1
//! s is not used again: servers close theirs later (gunicorn after 2 s), and a request on a
//! connection that the other side is just closing has an unknown outcome.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use hyper::body::Body;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::transport::{CONNECT_TIMEOUT, ClientCertificate, http_connector, pooled};

/// Connections to any number of servers. Clones share them.
pub type HttpsClient<B> = Client<HttpsConnector<HttpConnector>, B>;

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
    Ok(pooled(https_connector(trust, None, http_connector(CONNECT_TIMEOUT))?))
}

/// Connects to any server as `connector` does, or by TLS over that.
pub(crate) fn https_connector<C>(
    trust: &Trust,
    certificate: Option<&ClientCertificate>,
    connector: C,
) -> io::Result<HttpsConnector<C>> {
    let config = ClientConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let config = match trust {
        Trust::System => config.with_native_roots()?,
        Trust::Authorities(file) => config.with_root_certificates(authorities(file)?),
        Trust::None => config.with_root_certificates(RootCertStore::empty()),
    };
    let config = match certificate {
        Some(ClientCertificate { cert, key }) => {
            let found = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, error))?;
            config
                .with_client_auth_cert(certificates(cert)?, found)
                .map_err(|error| wrong(cert, format!("it and its key do not fit: {error}")))?
        }
        None => config.with_no_client_auth(),
    };
    let tls = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    Ok(tls.enable_http1().wrap_connector(connector))
}

fn authorities(file: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| wrong(file, error))?;
    }
    Ok(roots)
}

/// The certificates in a PEM file, of which there is at least one.
fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let all: Vec<_> = found.map_err(|error| wrong(file, error))?;
    if all.is_empty() { Err(wrong(file, "it has no certificate")) } else { Ok(all) }
}

fn wrong(file: &Path, why: impl Display) -> io::Error {
    io::Error::other(format!("{}: {why}", file.display()))
}
