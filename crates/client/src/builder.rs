//! How a client is made: where the service is, who the client is, and whom it trusts.
//!
//! What is wrong is an error when the client is made, and not at its first request: a URL, an API key that no header may
//! have, a file that cannot be read. No error text has the key. Tested in `tests/api/rust_client.rs`,
//! `tests/api/client_certificates.rs` and `tests/api/tls.rs`.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::connection::Connection;
use crate::settings::Settings;
use crate::transport::ClientCertificate;
use crate::{Client, Error};
#[cfg(feature = "testing")]
use crate::{clock::Clock, transport::Exchange};

/// What a client is made of.
///
/// ```
/// use keylatch_client::Client;
///
/// # fn main() -> Result<(), keylatch_client::Error> {
/// let client = Client::builder("http://10.0.0.1:7070,http://10.0.0.2:7070")
///     .api_key("kl_H2kCQ0Wq0m2Vn5t9lW8sVJYx3o1D6zZr0bGfUeTq7PcXa1Ni")
///     .owner("nightly report")
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[must_use]
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "it has functions and a secret")]
pub struct Builder(Settings);

impl Client {
    /// A client of the service at `url`, such as `http://127.0.0.1:7070`, or `unix:/run/keylatch.sock` where it
    /// listens on a Unix socket. It does not connect yet.
    ///
    /// # Errors
    ///
    /// The text is not a URL with `http`, `https` or `unix`, or the system's certificates cannot be read.
    pub fn new(url: &str) -> Result<Self, Error> {
        Self::builder(url).build()
    }

    /// A client of the service at `url`, with more to say. Several URLs of one service have commas between them.
    pub fn builder(url: &str) -> Builder {
        Builder(Settings::new(url))
    }

    /// A client of the service that the environment names: [`Builder::from_env`].
    ///
    /// # Errors
    ///
    /// As [`Builder::from_env`] and [`Builder::build`].
    pub fn from_env() -> Result<Self, Error> {
        Builder::from_env()?.build()
    }
}

impl Builder {
    /// For the service at `KEYLATCH_URL`, or at `http://127.0.0.1:7070`, with what [`with_env`](Self::with_env) reads.
    ///
    /// # Errors
    ///
    /// As [`with_env`](Self::with_env).
    pub fn from_env() -> Result<Self, Error> {
        let url = variable("KEYLATCH_URL").unwrap_or_else(|| "http://127.0.0.1:7070".into());
        Self(Settings::new(&url.to_string_lossy())).with_env()
    }

    /// With the API key in `KEYLATCH_API_KEY`, the file of authorities that `KEYLATCH_CA` names, and the certificate in
    /// the files that `KEYLATCH_CLIENT_CERT` and `KEYLATCH_CLIENT_KEY` name, as far as they are set and not empty; and by the
    /// proxy that `HTTP_PROXY` or `HTTPS_PROXY` names, unless the service is on this machine or `NO_PROXY` has its host.
    ///
    /// # Errors
    ///
    /// There is a certificate without a key or a key without one.
    pub fn with_env(mut self) -> Result<Self, Error> {
        self.0.certificate =
            match (variable("KEYLATCH_CLIENT_CERT"), variable("KEYLATCH_CLIENT_KEY")) {
                (Some(cert), Some(key)) => {
                    Some(ClientCertificate { cert: cert.into(), key: key.into() })
                }
                (None, None) => self.0.certificate,
                _ => {
                    let both = "KEYLATCH_CLIENT_CERT and KEYLATCH_CLIENT_KEY belong together";
                    return Err(Error::Certificates(io::Error::other(both)));
                }
            };
        // What a file of the key ends with is not part of it.
        let key = variable("KEYLATCH_API_KEY");
        let key = key.map(|key| key.to_string_lossy().trim().to_owned());
        self.0.api_key = key.filter(|key| !key.is_empty()).or(self.0.api_key);
        self.0.has_env = true;
        self.0.authorities = variable("KEYLATCH_CA").map(PathBuf::from).or(self.0.authorities);
        Ok(self)
    }

    /// With what the client says who it is.
    pub fn api_key(self, key: impl Into<String>) -> Self {
        Self(Settings { api_key: Some(key.into()), ..self.0 })
    }

    /// With a PEM file of the authorities that vouch for a service with `https`, in place of the system's.
    pub fn authorities(self, file: impl Into<PathBuf>) -> Self {
        Self(Settings { authorities: Some(file.into()), ..self.0 })
    }

    /// With what the client shows to a service with `https` that asks for a certificate.
    pub fn certificate(self, certificate: ClientCertificate) -> Self {
        Self(Settings { certificate: Some(certificate), ..self.0 })
    }

    /// By the proxy at this URL, such as `http://user:password@proxy:3128`, which tunnels `https` (`CONNECT`).
    pub fn proxy(self, url: impl Into<String>) -> Self {
        Self(Settings { proxy: Some(url.into()), ..self.0 })
    }

    /// With the `traceparent` that `of` gives for each request (W3C Trace Context). A value that is no header is left
    /// out.
    pub fn traceparent(mut self, of: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.0.traceparent = Some(Arc::new(of));
        self
    }

    /// With a label for the locks whose options have none, in place of host and process. An empty one is none.
    pub fn owner(mut self, label: impl Into<String>) -> Self {
        self.0.owner = Some(label.into()).filter(|label| !label.is_empty());
        self
    }

    /// With another time for a response than 5 s, beyond what the service was asked to wait. An outage is outlasted for as
    /// long.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = timeout;
        self
    }

    /// Opens a watch again, and gives the wait of a hold up, where nothing comes for so long, not even a comment: 90 s unless
    /// this is called. The service sends a comment every 15 s unless it is configured otherwise.
    pub fn silence(mut self, silence: Duration) -> Self {
        self.0.silence = silence;
        self
    }

    /// Sends every request by this function in place of connections, as the fake does.
    #[cfg(feature = "testing")]
    pub(crate) fn transport(self, exchange: Exchange, clock: Clock) -> Self {
        Self(Settings { transport: Some(exchange), clock, ..self.0 })
    }

    /// A client that is not connected yet.
    ///
    /// # Errors
    ///
    /// A text is not a URL with `http`, `https` or `unix`, or that of a proxy not one with `http`; the API key has characters that no key has; a file or the
    /// system's certificates cannot be read.
    pub fn build(self) -> Result<Client, Error> {
        Ok(Client::over(Connection::open(self.0)?))
    }
}

fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
