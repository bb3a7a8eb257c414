//! `keylatch healthcheck`: asks a service on this machine whether it is alive, for an image that
//! has no curl.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

use crate::error::Error;

const LIMIT: Duration = Duration::from_secs(3);

/// Whether the service that listens on `listen`, with TLS or without, answers `/livez` with 200 within 3 s.
///
/// # Errors
///
/// It does not, and why.
pub async fn check(listen: &str, is_tls: bool) -> Result<(), Error> {
    let asked = tokio::time::timeout(LIMIT, ask(listen, is_tls)).await;
    match asked {
        Ok(Ok(status)) if status.is_success() => Ok(()),
        Ok(Ok(status)) => Err(Error::Unhealthy(format!("{listen} answered {status}"))),
        Ok(Err(error)) => Err(Error::Unhealthy(format!("{listen}: {error}"))),
        Err(_) => Err(Error::Unhealthy(format!("{listen} gave no answer within {LIMIT:?}"))),
    }
}

type AskError = Box<dyn std::error::Error + Send + Sync>;

async fn ask(listen: &str, is_tls: bool) -> Result<StatusCode, AskError> {
    let address = lookup_host(listen).await?.next().ok_or("no such address")?;
    let address = reachable(address);
    let stream = TcpStream::connect(address).await?;
    if !is_tls {
        return ask_over(stream, address).await;
    }
    let connector = TlsConnector::from(Arc::new(any_service()?));
    ask_over(connector.connect(address.ip().into(), stream).await?, address).await
}

async fn ask_over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
) -> Result<StatusCode, AskError> {
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    // The address and not the name in `listen`, which a service on loopback need not go by.
    let host = address.to_string();
    let request =
        Request::get("/livez").header(hyper::header::HOST, host).body(Empty::<Bytes>::new())?;
    // The connection ends when the sender is gone, if not before.
    let asking = async move { sender.send_request(request).await.map(|answer| answer.status()) };
    let (status, _) = tokio::join!(asking, connection);
    Ok(status?)
}

/// TLS with a service whose certificate is not checked.
///
/// The check asks whether the service of this machine lives, tells it nothing, and believes nothing but that. A
/// certificate that has expired or is for other names than an address is no reason to restart the service.
fn any_service() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let verifier = Arc::new(AnyCertificate(provider));
    Ok(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Where a service of this machine that listens on `address` is reached: on loopback, if it listens on every
/// address.
pub fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}
