//! TLS for the service's own listeners: the certificate, its key, and their replacement while the
//! service runs.
//!
//! TLS 1.2 and 1.3 by rustls with ring. A handshake takes the certificate that was current when it
//! began, and a connection keeps it, so that a replacement ends no connection; but for one whose
//! client showed a certificate that is good no more. A new pair that is wrong changes nothing: the
//! pair of before stays, and the log says what is wrong. Invariant: there is a pair that fits at
//! every moment. Tested in `tests/api/tls.rs`, `client_certificates.rs` and `tests/cli/tls.rs`.

use std::future::pending;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use serde::Deserialize;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

use crate::followed_files::{FollowedFiles, UnreadableFile};

/// The name of HTTP/2 in a handshake (ALPN).
pub(super) const HTTP2: &[u8] = b"h2";
/// How often the certificate of a client is looked at again.
const PERIOD: Duration = Duration::from_secs(8);

/// The section `tls` of the configuration, which says what each setting means.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the file of defaults documents every setting")]
pub struct TlsSettings {
    pub cert: String,
    pub key: String,
    pub client_ca: String,
}

impl TlsSettings {
    /// Whether the service has a certificate.
    pub fn is_on(&self) -> bool {
        !self.cert.is_empty()
    }

    /// What types alone do not rule out.
    pub(crate) fn check(&self) -> Result<(), (&'static str, &'static str)> {
        match (self.cert.is_empty(), self.key.is_empty()) {
            (false, true) => {
                Err(("tls.key", "must name the file of the key where `tls.cert` is set"))
            }
            (true, false) => Err(("tls.cert", "must name a certificate where `tls.key` is set")),
            (true, true) if !self.client_ca.is_empty() => {
                Err(("tls.cert", "must name a certificate where `tls.client_ca` is set"))
            }
            _ => Ok(()),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        let all = [&self.cert, &self.key, &self.client_ca].into_iter();
        all.filter(|file| !file.is_empty()).map(PathBuf::from).collect()
    }
}

/// The files of TLS, and what they are worth now.
#[derive(Debug)]
pub struct TlsFiles {
    files: FollowedFiles,
    current: RwLock<Handshakes>,
}

/// How hands are shaken, and who checks the certificates of clients, if anyone does.
type Handshakes = (Arc<ServerConfig>, Option<Arc<dyn ClientCertVerifier>>);

/// Why files are of no use for TLS. It repeats nothing of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFileError {
    /// One cannot be read.
    #[error("TLS: {0}")]
    Unreadable(#[from] UnreadableFile),
    /// The certificates are none.
    #[error("TLS: `tls.cert` is not a chain of certificates in PEM")]
    Certificate,
    /// The key is none.
    #[error("TLS: `tls.key` is not a private key in PEM")]
    Key,
    /// The authorities of clients are none.
    #[error("TLS: `tls.client_ca` is not certificates of authorities in PEM")]
    ClientAuthority,
    /// The two do not fit, or are of a kind that is not known.
    #[error("TLS: the certificate and its key cannot be used: {0}")]
    Pair(#[from] rustls::Error),
}

impl TlsFiles {
    /// Reads the files.
    pub fn open(settings: &TlsSettings) -> Result<Self, TlsFileError> {
        let files = FollowedFiles::read(settings.files())?;
        let current = RwLock::new(handshakes(files.first())?);
        Ok(Self { files, current })
    }

    /// Follows the files until it is dropped.
    pub async fn follow(self: Arc<Self>) {
        self.files.follow(|read| self.replace(read)).await;
    }

    /// Shakes hands as is right now.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current().0)
    }

    fn current(&self) -> Handshakes {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the certificate of a client, with those that lead to its authority, is good no
    /// more: the authority is none now, or the certificate has expired.
    pub(super) async fn until_refused(self: Arc<Self>, chain: Vec<CertificateDer<'static>>) {
        let Some((certificate, others)) = chain.split_first() else { return pending().await };
        let is_good = |clients: Arc<dyn ClientCertVerifier>| {
            clients.verify_client_cert(certificate, others, UnixTime::now()).is_ok()
        };
        while self.current().1.is_some_and(is_good) {
            sleep(PERIOD).await;
        }
    }

    /// Takes the pair of the files, or keeps the one that there is.
    fn replace(&self, read: Result<&[Vec<u8>], &str>) {
        let made = match read {
            Ok(files) => handshakes(files).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_owned()),
        };
        match made {
            Ok(handshakes) => {
                tracing::info!("the certificate is read again");
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = handshakes;
            }
            Err(error) => {
                tracing::error!(error, "the certificate is not read: that of before stays");
            }
        }
    }
}

/// What the files are worth: the certificate, its key and, if there is a third, the authorities of
/// clients.
fn handshakes(files: &[Vec<u8>]) -> Result<Handshakes, TlsFileError> {
    let chain = certificates(&files[0]).ok_or(TlsFileError::Certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&files[1]).map_err(|_| TlsFileError::Key)?;
    let provider = Arc::new(default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let clients = files.get(2).map(|pem| client_verifier(pem, provider)).transpose()?;
    let config = match &clients {
        None => config.with_no_client_auth(),
        Some(clients) => config.with_client_cert_verifier(Arc::clone(clients)),
    };
    let mut config = config.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
    if files.len() > 2 {
        // A session that is resumed is not checked again: its certificate may have expired.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok((Arc::new(config), clients))
}

/// Checks the certificate of a client that shows one. A client may show none, and send an API key.
fn client_verifier(
    pem: &[u8],
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsFileError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(pem).ok_or(TlsFileError::ClientAuthority)? {
        roots.add(authority).map_err(|_| TlsFileError::ClientAuthority)?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let verifier = verifier.allow_unauthenticated().build();
    verifier.map_err(|_| TlsFileError::ClientAuthority)
}

/// The certificates of a PEM file, of which there is at least one.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(pem).collect();
    all.ok().filter(|all| !all.is_empty())
}
