//! The certificates of encrypted connections to Redis:
//! `?cacert=PATH&cert=PATH&key=PATH&servername=NAME` of a URL with TLS.
//!
//! The parameters have the names of `redis-cli`'s flags and of those of [etcd](crate::etcd). They
//! hold for every server behind the URL: nodes, masters, sentinels. The driver ignores parameters
//! that it does not know, so they are taken out of a URL here. An error says nothing of the URL's
//! text. Tested below, and with real servers in `tests/stores/redis_certificates.rs`.

use bb8_redis::redis::{ClientTlsConfig, TlsCertificates};
use rustls::pki_types::ServerName;

use super::failure::InvalidUrl;
use crate::conn::tls::{Certificates, Pem, WORDS};

/// What an encrypted connection needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Security(Certificates);

impl Security {
    /// What the parameters of a URL say, and the other parameters.
    pub(super) fn of(is_secure: bool, query: &str) -> Result<(Self, Vec<&str>), InvalidUrl> {
        let (certificates, others) = Certificates::split(&WORDS, query).map_err(InvalidUrl)?;
        if !is_secure && !certificates.is_empty() {
            return Err(InvalidUrl("certificates are for a scheme that begins with `rediss`"));
        }
        if certificates
            .server_name
            .as_deref()
            .is_some_and(|name| ServerName::try_from(name).is_err())
        {
            return Err(InvalidUrl("its `servername` is no name of a server"));
        }
        Ok((Self(certificates), others))
    }

    /// Takes the parameters out of the URL of one server.
    pub(super) fn split(url: &str) -> Result<(String, Self), InvalidUrl> {
        let Some((before, query)) = url.split_once('?') else {
            return Ok((url.to_owned(), Self::default()));
        };
        let (query, fragment) = match query.split_once('#') {
            Some((query, fragment)) => (query, format!("#{fragment}")),
            None => (query, String::new()),
        };
        let (security, others) = Self::of(url.starts_with("rediss"), query)?;
        let query =
            if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
        Ok((format!("{before}{query}{fragment}"), security))
    }

    /// The name that the servers' certificates are for; `None` for the host that is connected to.
    pub(super) fn server_name(&self) -> Option<String> {
        self.0.server_name.clone()
    }

    /// What the files hold; `None` where there are none to read.
    pub(super) fn certificates(&self) -> Result<Option<TlsCertificates>, String> {
        if self.0.roots.is_none() && self.0.identity.is_none() {
            return Ok(None);
        }
        let Pem { roots, identity } = self.0.pem()?;
        let client_tls =
            identity.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        Ok(Some(TlsCertificates { client_tls, root_cert: roots }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_taken_out_of_the_url() {
        let (url, security) =
            Security::split("rediss://u:p@a/3?cacert=/a%20b.pem&protocol=3&key=k&cert=c#insecure")
                .unwrap();
        assert_eq!(url, "rediss://u:p@a/3?protocol=3#insecure");
        assert_eq!(security.0.roots, Some("/a b.pem".into()));
        assert_eq!(security.0.identity, Some(("c".into(), "k".into())));
        for plain in ["redis://a/3", "redis+unix:///s?db=3&user=a&pass=b"] {
            let split = Security::split(plain).unwrap();
            assert_eq!(split, (plain.to_owned(), Security::default()));
        }
    }

    #[test]
    fn certificates_need_tls_and_each_other() {
        for url in ["redis://a?cacert=a", "redis+unix:///s?cert=a&key=b", "rediss://a?cert=a"] {
            assert!(Security::split(url).is_err(), "{url}");
        }
    }

    #[test]
    fn server_name_is_a_name_or_an_address_and_needs_tls() {
        let named = |url: &str| Security::split(url).map(|(_, security)| security.0.server_name);
        for name in ["redis.example", "10.0.0.8"] {
            let url = format!("rediss://10.0.0.7?servername={name}");
            assert_eq!(named(&url).unwrap().as_deref(), Some(name));
        }
        for url in
            ["redis://a?servername=a", "rediss://a?servername=", "rediss://a?servername=a%20b"]
        {
            assert!(named(url).is_err(), "{url}");
        }
    }
}
