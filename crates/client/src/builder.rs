//! How a client is made: where the service is, who the client is, and whom it trusts.
//!
//! What is wrong is an error when the client is made, and not at its first request: a URL, an API
//! key that no header may have, a file that cannot be read. No error text has the key. Tested in
//! `tests/api/rust_client.rs`, `tests/api/client_certificates.rs` and `tests/api/tls.rs`.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response};
use keylatch_core::retry::random_part_of;

use crate::clock::Clock;
use crate::transport::{Body, ClientCertificate, Exchange};
use crate::{Error, Result};

const PAUSE_MIN: Duration = Duration::from_millis(100);
const JITTER: Duration = Duration::from_millis(300);

/// What a client is made of.
///
/// ```
/// # use keylatch_client::Client;
/// let client = Client::builder("http://10.0.0.1:7070,http://10.0.0.2:7070").owner("report");
/// let client = client.build()?;
/// # Ok::<(), keylatch_client::Error>(())
/// ```
#[must_use]
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "it has functions and a secret")]
pub struct Builder {
    pub(crate) urls: String,
    pub(crate) api_key: Option<String>,
    pub(crate) authorities: Option<PathBuf>,
    pub(crate) certificate: Option<ClientCertificate>,
    pub(crate) proxy: Option<String>,
    /// Whether the environment says of proxies where the program does not.
    pub(crate) has_env: bool,
    pub(crate) transport: Option<Exchange>,
    pub(crate) traceparent: Option<Arc<dyn Fn() -> Option<String> + Send + Sync>>,
    pub(crate) owner: Option<String>,
    pub(crate) silence: Duration,
    pub(crate) timeout: Duration,
    pub(crate) retries: u32,
    pub(crate) pause: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// Whether a connection ends with its response.
    pub(crate) closes: bool,
    pub(crate) clock: Clock,
    /// Whether the last moment of a runtime was too short.
    pub(crate) given_up: Arc<AtomicBool>,
}

impl Builder {
    pub(crate) fn new(urls: &str) -> Self {
        let machine = nix::unistd::gethostname().unwrap_or_default();
        let owner = format!("{}/{}", machine.to_string_lossy(), std::process::id());
        Self {
            urls: urls.to_owned(),
            api_key: None,
            authorities: None,
            certificate: None,
            proxy: None,
            has_env: false,
            transport: None,
            traceparent: None,
            owner: Some(owner),
            silence: Duration::from_secs(90),
            timeout: Duration::from_secs(5),
            retries: u32::MAX,
            pause: Arc::new(|| PAUSE_MIN + random_part_of(JITTER)),
            closes: false,
            clock: Clock::Boot,
            given_up: Arc::default(),
        }
    }

    /// With the API key in `KEYLATCH_API_KEY`, and the files that `KEYLATCH_CA`,
    /// `KEYLATCH_CLIENT_CERT` and `KEYLATCH_CLIENT_KEY` name, as far as they are set; and by the
    /// proxy that `HTTP_PROXY` or `HTTPS_PROXY` names, unless the service is on this machine or
    /// `NO_PROXY` has its host.
    ///
    /// # Errors
    ///
    /// There is a certificate without a key or a key without one.
    pub fn with_env(mut self) -> Result<Self> {
        let file = |name| variable(name).map(PathBuf::from);
        match (file("KEYLATCH_CLIENT_CERT"), file("KEYLATCH_CLIENT_KEY")) {
            (Some(cert), Some(key)) => self.certificate = Some(ClientCertificate { cert, key }),
            (None, None) => {}
            _ => {
                let both = "KEYLATCH_CLIENT_CERT and KEYLATCH_CLIENT_KEY belong together";
                return Err(Error::Certificates(io::Error::other(both)));
            }
        }
        // What a file of the key ends with is not part of it.
        let key = variable("KEYLATCH_API_KEY");
        let key = key.map(|key| key.to_string_lossy().trim().to_owned());
        self.api_key = key.filter(|key| !key.is_empty()).or(self.api_key);
        self.has_env = true;
        self.authorities = file("KEYLATCH_CA").or(self.authorities);
        Ok(self)
    }

    /// With what the client says who it is.
    pub fn api_key(self, key: impl Into<String>) -> Self {
        Self { api_key: Some(key.into()), ..self }
    }

    /// Trusts the authorities in this PEM file, and not those of the system.
    pub fn authorities(self, file: impl Into<PathBuf>) -> Self {
        Self { authorities: Some(file.into()), ..self }
    }

    /// With what the client shows to a service with `https` that asks for a certificate.
    pub fn certificate(self, certificate: ClientCertificate) -> Self {
        Self { certificate: Some(certificate), ..self }
    }

    /// By the proxy at this URL, such as `http://user:password@proxy:3128`, which tunnels `https`
    /// (`CONNECT`).
    pub fn proxy(self, url: impl Into<String>) -> Self {
        Self { proxy: Some(url.into()), ..self }
    }

    /// With the `traceparent` that `of` gives for each request (W3C Trace Context). A value that is
    /// no header is left out.
    pub fn traceparent(self, of: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self { traceparent: Some(Arc::new(of)), ..self }
    }

    /// Sets the label of locks whose options have none. The default is host and process; an empty
    /// label is none.
    pub fn owner(self, label: impl Into<String>) -> Self {
        Self { owner: Some(label.into()).filter(|label| !label.is_empty()), ..self }
    }

    /// With another time for a response than 5 s, beyond what the service was asked to wait. An
    /// outage is outlasted for as long.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Retries a request that fails so many times at most; by default as often as there is time.
    pub fn retries(self, retries: u32) -> Self {
        Self { retries, ..self }
    }

    /// With this pause before each retry, beyond what the service asks for. The default is one of
    /// 100 to 400 ms, at random, so that clients that lost a service do not all come back at once.
    pub fn pause(self, pause: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { pause: Arc::new(pause), ..self }
    }

    /// Closes each connection with its response, for a program that asks every few seconds and is
    /// not to wake for an unused connection meanwhile.
    pub fn closing(self) -> Self {
        Self { closes: true, ..self }
    }

    /// Opens a watch again, and gives the wait of a hold up, where nothing comes for so long, not
    /// even a comment, as there is every 15 s: 90 s unless this is called.
    pub fn silence(self, silence: Duration) -> Self {
        Self { silence, ..self }
    }

    /// Has this function send every request. The client then opens no connection.
    pub fn transport<F>(
        self,
        send: impl Fn(Request<Full<Bytes>>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Response<Body>>> + Send + 'static,
    {
        Self { transport: Some(Arc::new(move |request| Box::pin(send(request)))), ..self }
    }
}

pub(crate) fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}
