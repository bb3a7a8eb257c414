//! The URL of an etcd:
//! `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST…][/PREFIX][?cacert=PATH][&cert=PATH&key=PATH][&servername=NAME]`.
//!
//! `etcds://` is the same with TLS. The parameters have the names of `etcdctl`'s flags. Each host
//! is an endpoint of its own, so that the engine decides which member it asks.
//!
//! An error says nothing of the URL's text, because the URL may hold a password. Tested below, and
//! with real servers in `tests/stores/etcd.rs`.

use std::time::Duration;

use percent_encoding::percent_decode_str;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::messages::etcdserverpb::AuthenticateRequest;
use crate::conn::tls::{Certificates, Pem};
use crate::conn::url::MultiHostUrl;
use crate::error::OpenError;

/// The port of clients, as etcd registered it.
const DEFAULT_PORT: u16 = 2379;
/// What all keys begin with, unless the URL says otherwise.
const DEFAULT_PREFIX: &str = "keylatch";
/// After how long without a packet the machine of a member is asked for one.
const KEEPALIVE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(super) struct Address {
    /// `HOST:PORT` of each member.
    pub(super) hosts: Vec<String>,
    /// Who asks, if the cluster is to know it.
    pub(super) credentials: Option<AuthenticateRequest>,
    /// What all keys begin with, up to a slash.
    pub(super) prefix: Vec<u8>,
    /// The certificates; `None` where connections are not encrypted.
    security: Option<Certificates>,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, OpenError> {
        let url = MultiHostUrl::parse(url, "etcds").map_err(bad)?;
        let [] = url.parameters([]).map_err(bad)?;
        Ok(Self {
            hosts: url.hosts.iter().map(|host| host.with_port(DEFAULT_PORT)).collect(),
            credentials: url.credentials.map(credentials_of).transpose()?,
            prefix: prefix_of(url.path)?,
            security: url.certificates,
        })
    }

    pub(super) fn endpoints(&self, connect_limit: Duration) -> Result<Vec<Endpoint>, OpenError> {
        let tls = self.security.as_ref().map(tls_config).transpose()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoints = self.hosts.iter().map(|host| {
            let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"));
            let endpoint = endpoint.map_err(|_| bad("a host is not one"))?;
            let endpoint = endpoint
                .connect_timeout(connect_limit)
                .tcp_keepalive(Some(KEEPALIVE))
                .tcp_keepalive_interval(Some(KEEPALIVE / 2));
            match &tls {
                Some(tls) => endpoint.tls_config(tls.clone()).map_err(|_| {
                    bad("`cacert`, `cert` and `key` have no certificates and no key that fit")
                }),
                None => Ok(endpoint),
            }
        });
        endpoints.collect()
    }
}

fn tls_config(certificates: &Certificates) -> Result<ClientTlsConfig, OpenError> {
    let Pem { roots, identity } = certificates.pem().map_err(bad)?;
    let mut config = match roots {
        Some(roots) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(roots)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((cert, key)) = identity {
        config = config.identity(Identity::from_pem(cert, key));
    }
    Ok(match &certificates.server_name {
        Some(name) => config.domain_name(name),
        None => config,
    })
}

fn credentials_of(text: &str) -> Result<AuthenticateRequest, OpenError> {
    let (name, password) = text.split_once(':').ok_or_else(|| bad("the user has no password"))?;
    Ok(AuthenticateRequest { name: decoded(name)?, password: decoded(password)? })
}

fn decoded(text: &str) -> Result<String, OpenError> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| bad("it is not in UTF-8"))
}

fn prefix_of(path: &str) -> Result<Vec<u8>, OpenError> {
    let path = path.trim_matches('/');
    let path = if path.is_empty() { DEFAULT_PREFIX } else { path };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    if path.len() > 128 || !path.chars().all(is_plain) {
        return Err(bad("the prefix of the keys is up to 128 of A-Z a-z 0-9 . _ - /"));
    }
    Ok(format!("{path}/").into_bytes())
}

fn bad(why: impl Into<String>) -> OpenError {
    OpenError::BadUrl("an etcd", why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Address {
        Address::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn path_is_what_keys_begin_with() {
        for (url, prefix) in [
            ("etcd://a", "keylatch/"),
            ("etcd://a/", "keylatch/"),
            ("etcd://u:p@a/team.1/locks/?", "team.1/locks/"),
        ] {
            assert_eq!(parsed(url).prefix, prefix.as_bytes(), "{url}");
        }
    }

    #[test]
    fn credentials_are_decoded_and_not_shown() {
        let url = parsed("etcds://us%65r:s3cr%40t@a");
        let credentials = url.credentials.clone().unwrap();
        assert_eq!((&*credentials.name, &*credentials.password), ("user", "s3cr@t"));
        assert!(!format!("{url:?}").contains("s3cr"), "{url:?}");
    }
}
