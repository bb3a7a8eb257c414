//! `keylatch healthcheck`: asks a service on this machine whether it is alive, for an image that
//! has no curl.
//!
//! It asks the listener that the configuration names, over TLS without checking the certificate,
//! because the certificate is for the names of clients and not for loopback. It sends no secret.
//! Tested in `tests/cli/commands.rs`.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_rustls::TlsConnector;

use crate::config::Config;
use crate::error::Error;
use crate::http::{ListenerSettings, reachable};

const LIMIT: Duration = Duration::from_secs(3);

/// Whether the service of this configuration says by 200 at this listener within 3 s that it is
/// alive.
pub async fn check(config: &Config, listener: &ListenerSettings) -> Result<(), Error> {
    let (place, has_certificate) = (listener.place(), config.tls.is_on());
    let path = config.gateway.liveness_at(listener);
    let asked = request_liveness(listener, has_certificate, path);
    let asked = tokio::time::timeout(LIMIT, asked).await;
    match asked {
        Ok(Ok(status)) if status.is_success() => Ok(()),
        Ok(Ok(status)) => Err(Error::Unhealthy(format!("{place} answered {status}"))),
        Ok(Err(error)) => Err(Error::Unhealthy(format!("{place}: {error}"))),
        Err(_) => Err(Error::Unhealthy(format!("{place} gave no response within {LIMIT:?}"))),
    }
}

type AskError = Box<dyn std::error::Error + Send + Sync>;

async fn request_liveness(
    listener: &ListenerSettings,
    has_certificate: bool,
    path: &str,
) -> Result<StatusCode, AskError> {
    if let Some(socket) = listener.path() {
        return ask_over(UnixStream::connect(socket).await?, "localhost", path).await;
    }
    let address = lookup_host(&listener.address).await?.next().ok_or("no such address")?;
    let address = reachable(address);
    // The address and not the name of the listener, which a service on loopback need not go by.
    let host = address.to_string();
    let stream = TcpStream::connect(address).await?;
    if !listener.is_tls(has_certificate) {
        return ask_over(stream, &host, path).await;
    }
    let connector = TlsConnector::from(Arc::new(any_service()?));
    ask_over(connector.connect(address.ip().into(), stream).await?, &host, path).await
}

async fn ask_over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    host: &str,
    path: &str,
) -> Result<StatusCode, AskError> {
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let request =
        Request::get(path).header(hyper::header::HOST, host).body(Empty::<Bytes>::new())?;
    // The connection ends when the sender is gone, if not before.
    let asking = async move { sender.send_request(request).await.map(|answer| answer.status()) };
    let (status, _) = tokio::join!(asking, connection);
    Ok(status?)
}

/// TLS with a service whose certificate is not checked.
///
/// The check asks whether the service of this machine lives, tells it nothing, and believes nothing
/// but that. A certificate that has expired or is for other names than an address is no reason to
/// restart the service.
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
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
