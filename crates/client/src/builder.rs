//! How a client is made: where the service is, who the client is, and whom it trusts.
//!
//! What is wrong is an error when the client is made, and not at its first request: a URL, an API key that no header may
//! have, a file that cannot be read. No error text has the key. Tested in `tests/api/rust_client.rs`,
//! `tests/api/client_certificates.rs` and `tests/api/tls.rs`.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderValue;

use crate::clock::Clock;
use crate::connection::{Connection, Exchange, Node, RESPONSE_TIMEOUT};
use crate::transport::{CONNECT_TIMEOUT, exchange, unix_exchange};
use crate::{Client, Error};

/// For how long nothing may come of a watch, where the program does not say.
const SILENCE: Duration = Duration::from_secs(90);
/// How long connecting may take where there is another URL to go to.
const SHORT_CONNECT: Duration = Duration::from_secs(1);

/// The certificate that a client shows to a service that asks for one, and its key: files in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, and those that lead from it to its root.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

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
pub struct Builder {
    urls: String,
    api_key: Option<String>,
    authorities: Option<PathBuf>,
    certificate: Option<ClientCertificate>,
    transport: Option<Exchange>,
    pub(crate) traceparent: Option<Arc<dyn Fn() -> Option<String> + Send + Sync>>,
    /// The label of acquires that have none.
    pub(crate) owner: Option<String>,
    /// For how long nothing may come of a watch.
    pub(crate) silence: Duration,
    /// How long an answer may take.
    pub(crate) timeout: Duration,
    pub(crate) clock: Clock,
    /// Whether the last moment of a runtime was too short for a client of this.
    pub(crate) given_up: Arc<AtomicBool>,
}

impl Builder {
    /// For the service at these URLs, with commas between them.
    pub(crate) fn new(urls: &str) -> Self {
        let machine = nix::unistd::gethostname().unwrap_or_default();
        let owner = format!("{}/{}", machine.to_string_lossy(), std::process::id());
        Self {
            urls: urls.to_owned(),
            api_key: None,
            authorities: None,
            certificate: None,
            transport: None,
            traceparent: None,
            owner: Some(owner),
            silence: SILENCE,
            timeout: RESPONSE_TIMEOUT,
            clock: Clock::Boot,
            given_up: Arc::default(),
        }
    }

    /// For the service at `KEYLATCH_URL`, or at `http://127.0.0.1:7070`, with what [`with_env`](Self::with_env) reads.
    ///
    /// # Errors
    ///
    /// As [`with_env`](Self::with_env).
    pub fn from_env() -> Result<Self, Error> {
        let url = variable("KEYLATCH_URL").unwrap_or_else(|| "http://127.0.0.1:7070".into());
        Self::new(&url.to_string_lossy()).with_env()
    }

    /// With the API key in `KEYLATCH_API_KEY`, the file of authorities that `KEYLATCH_CA` names, and the certificate in
    /// the files that `KEYLATCH_CLIENT_CERT` and `KEYLATCH_CLIENT_KEY` name, as far as they are set and not empty.
    ///
    /// # Errors
    ///
    /// There is a certificate without a key or a key without one.
    pub fn with_env(mut self) -> Result<Self, Error> {
        self.certificate = match (variable("KEYLATCH_CLIENT_CERT"), variable("KEYLATCH_CLIENT_KEY"))
        {
            (Some(cert), Some(key)) => {
                Some(ClientCertificate { cert: cert.into(), key: key.into() })
            }
            (None, None) => self.certificate,
            _ => {
                let both = "KEYLATCH_CLIENT_CERT and KEYLATCH_CLIENT_KEY belong together";
                return Err(Error::Certificates(io::Error::other(both)));
            }
        };
        // What a file of the key ends with is not part of it.
        let key = variable("KEYLATCH_API_KEY");
        let key = key.map(|key| key.to_string_lossy().trim().to_owned());
        self.api_key = key.filter(|key| !key.is_empty()).or(self.api_key);
        self.authorities = variable("KEYLATCH_CA").map(PathBuf::from).or(self.authorities);
        Ok(self)
    }

    /// With what the client says who it is.
    pub fn api_key(self, key: impl Into<String>) -> Self {
        Self { api_key: Some(key.into()), ..self }
    }

    /// With a PEM file of the authorities that vouch for a service with `https`, in place of the system's.
    pub fn authorities(self, file: impl Into<PathBuf>) -> Self {
        Self { authorities: Some(file.into()), ..self }
    }

    /// With what the client shows to a service with `https` that asks for a certificate.
    pub fn certificate(self, certificate: ClientCertificate) -> Self {
        Self { certificate: Some(certificate), ..self }
    }

    /// With the `traceparent` that `of` gives for each request (W3C Trace Context). A value that is no header is left
    /// out.
    pub fn traceparent(mut self, of: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.traceparent = Some(Arc::new(of));
        self
    }

    /// With a label for the locks whose options have none, in place of host and process. An empty one is none.
    pub fn owner(mut self, label: impl Into<String>) -> Self {
        self.owner = Some(label.into()).filter(|label| !label.is_empty());
        self
    }

    /// With another time for a response than 5 s, beyond what the service was asked to wait. An outage is outlasted for as
    /// long.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Opens a watch again on which nothing comes for so long, not even a comment: 90 s unless this is called. The service
    /// sends a comment every 15 s unless it is configured otherwise.
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Sends every request by this function in place of connections, as the fake does.
    #[cfg(feature = "testing")]
    pub(crate) fn transport(self, exchange: Exchange, clock: Clock) -> Self {
        Self { transport: Some(exchange), clock, ..self }
    }

    /// A client that is not connected yet.
    ///
    /// # Errors
    ///
    /// A text is not a URL with `http`, `https` or `unix`; the API key has characters that no key has; a file or the
    /// system's certificates cannot be read.
    pub fn build(self) -> Result<Client, Error> {
        Ok(Client::over(self.connect()?))
    }

    /// New connections to the service.
    pub(crate) fn connect(self) -> Result<Arc<Connection>, Error> {
        let authorization = self.api_key.as_deref().map(bearer).transpose()?;
        let urls: Vec<_> = self.urls.split(',').map(str::trim).collect();
        let connect_timeout = if urls.len() > 1 { SHORT_CONNECT } else { CONNECT_TIMEOUT };
        let nodes = urls.iter().map(|url| self.node(url, connect_timeout));
        let nodes = nodes.collect::<Result<_, _>>()?;
        Ok(Arc::new(Connection::new(nodes, self, authorization)))
    }

    fn node(&self, url: &str, connect_timeout: Duration) -> Result<Node, Error> {
        let (base, transport) = parse(url)?;
        let exchange = match (&self.transport, transport) {
            (Some(exchange), _) => Arc::clone(exchange),
            (None, Transport::Unix(path)) => unix_exchange(path.into()),
            (None, transport) => self.network(transport == Transport::Tls, connect_timeout)?,
        };
        Ok(Node { base, exchange, is_known: AtomicBool::new(false) })
    }

    #[cfg(feature = "tls")]
    fn network(&self, is_https: bool, connect_timeout: Duration) -> Result<Exchange, Error> {
        use crate::https::{Trust, https_connector};

        let trust = match &self.authorities {
            Some(file) => Trust::Authorities(file.clone()),
            None if is_https => Trust::System,
            None => Trust::None,
        };
        let connector = https_connector(&trust, self.certificate.as_ref(), connect_timeout);
        Ok(exchange(connector.map_err(Error::Certificates)?))
    }

    #[cfg(not(feature = "tls"))]
    fn network(&self, is_https: bool, connect_timeout: Duration) -> Result<Exchange, Error> {
        if is_https || self.authorities.is_some() || self.certificate.is_some() {
            return Err(Error::Url("needs the feature `tls` of keylatch-client"));
        }
        Ok(exchange(crate::transport::http_connector(connect_timeout)))
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

fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// How a service is reached.
#[derive(Debug, PartialEq, Eq)]
enum Transport {
    Clear,
    Tls,
    Unix(PathBuf),
}

/// A URL without a slash at its end, and how its service is reached; `http` where it has no scheme.
fn parse(url: &str) -> Result<(String, Transport), Error> {
    if let Some(path) = url.strip_prefix("unix:") {
        return match path {
            "" => Err(Error::Url("must have the path of a socket behind unix:")),
            path => Ok(("http://localhost".to_owned(), Transport::Unix(path.into()))),
        };
    }
    let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let uri: Uri = url.parse().map_err(|_| Error::Url("is not a URL"))?;
    let transport = match uri.scheme_str() {
        Some("http") => Transport::Clear,
        Some("https") => Transport::Tls,
        _ => return Err(Error::Url("must begin with http://, https:// or unix:")),
    };
    if uri.authority().is_none_or(|host| host.as_str().contains('@')) {
        return Err(Error::Url("must not hold a user or a password"));
    }
    if uri.query().is_some() || url.contains('#') {
        return Err(Error::Url("must end with its path"));
    }
    Ok((url.trim_end_matches('/').to_owned(), transport))
}
