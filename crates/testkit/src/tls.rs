//! Certificates of the test's own, and the client's side of TLS.
//!
//! Each authority is made for the test and signs what it needs, so no certificate in the repository
//! expires. Names in certificates are those of loopback unless a test says otherwise.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use keylatch::http::TlsSettings;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256,
    date_time_ymd,
};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::{RawConnection, soon};

/// An authority that signs certificates; its files are gone with the test.
#[derive(Debug)]
pub struct Authority {
    directory: TempDir,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate.
    pub cert: String,
    /// Its key.
    pub key: String,
}

impl Default for Authority {
    fn default() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority of a test");
        let key = new_key();
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Self { directory, pem, issuer: Issuer::new(params, key) };
        std::fs::write(authority.ca_file(), &authority.pem).expect("a file");
        authority
    }
}

impl Authority {
    /// A certificate for these names of a server or a client, with a common name.
    pub fn sign(&self, common_name: &str, names: &[&str]) -> Certificate {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        self.sign_params(common_name, CertificateParams::new(names).expect("names"))
    }

    /// The same of a client, which expires so soon, to the second.
    pub fn sign_for(&self, common_name: &str, lasts: Duration) -> Certificate {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        let now = UNIX_EPOCH.elapsed().expect("a clock after 1970");
        params.not_after = date_time_ymd(1970, 1, 1) + (now + lasts);
        self.sign_params(common_name, params)
    }

    fn sign_params(&self, common_name: &str, mut params: CertificateParams) -> Certificate {
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = new_key();
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Certificate { cert, key: key.serialize_pem() }
    }

    /// The file of the authority's own certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// A file beside it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a certificate for `localhost` and 127.0.0.1, and the settings of a service that has
    /// it.
    pub fn serve(&self) -> TlsSettings {
        self.serve_with(&self.sign("the service", &["localhost", "127.0.0.1"]))
    }

    /// The same, where the authority also vouches for clients.
    pub fn serve_clients(&self) -> TlsSettings {
        TlsSettings { client_ca: self.ca_file().display().to_string(), ..self.serve() }
    }

    /// The same with a certificate of the test's.
    pub fn serve_with(&self, certificate: &Certificate) -> TlsSettings {
        let (cert, key) = (self.file("cert.pem"), self.file("key.pem"));
        std::fs::write(&cert, &certificate.cert).expect("a file");
        std::fs::write(&key, &certificate.key).expect("a file");
        let text = |path: PathBuf| path.display().to_string();
        TlsSettings { cert: text(cert), key: text(key), ..TlsSettings::default() }
    }

    /// A client that trusts the authority, offers these protocols and shows a certificate, if it
    /// has one.
    pub fn client(&self, alpn: &[&str], certificate: Option<&Certificate>) -> Arc<ClientConfig> {
        self.client_of(rustls::DEFAULT_VERSIONS, alpn, certificate)
    }

    /// The same with these versions of TLS.
    pub fn client_of(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        alpn: &[&str],
        certificate: Option<&Certificate>,
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(self.pem.as_bytes()).expect("a certificate");
        roots.add(ca).expect("an authority");
        let config = ClientConfig::builder_with_provider(default_provider().into())
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots);
        let mut config = match certificate {
            None => config.with_no_client_auth(),
            Some(Certificate { cert, key }) => {
                let cert = CertificateDer::from_pem_slice(cert.as_bytes()).expect("a certificate");
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
                config.with_client_auth_cert(vec![cert], key).expect("a pair")
            }
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

fn new_key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key")
}

/// A connection with TLS to `localhost`, or why there is none.
pub async fn handshake(
    address: SocketAddr,
    client: &Arc<ClientConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = soon("a connection", TcpStream::connect(address)).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    soon("a handshake", TlsConnector::from(Arc::clone(client)).connect(name, stream)).await
}

/// HTTP by hand on a connection with TLS.
pub async fn connect_tls(address: SocketAddr, client: &Arc<ClientConfig>) -> RawConnection {
    RawConnection::over(handshake(address, client).await.expect("TLS"))
}
