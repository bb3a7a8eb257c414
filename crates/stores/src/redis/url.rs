//! The URLs of several Redis servers: those of Sentinel, of a cluster and of Redlock.
//!
//! The driver's own URLs name one host. So the URL is taken apart, and the driver gets one URL for
//! each host, with the credentials and the scheme of the whole.
//!
//! An error says nothing of the URL's text, because the URL may hold a password. Tested below, and
//! with real servers in the tests of each topology.

use super::failure::InvalidUrl;
use super::tls::Security;
use crate::conn::url::{MultiHostUrl, UrlHost};

/// A URL of several servers that make one store.
#[derive(Debug)]
pub(super) struct ServersUrl<'a> {
    parts: MultiHostUrl<'a>,
    /// Its parameters beside those of certificates.
    parameters: Vec<&'a str>,
    /// Its certificates, for every host.
    pub(super) security: Security,
}

impl<'a> ServersUrl<'a> {
    /// Reads a URL, with TLS if its scheme begins with `rediss`.
    pub(super) fn parse(url: &'a str) -> Result<Self, InvalidUrl> {
        let parts = MultiHostUrl::parse(url).map_err(InvalidUrl)?;
        let is_secure = parts.scheme.starts_with("rediss");
        let (security, parameters) = Security::of(is_secure, parts.query)?;
        Ok(Self { parts, parameters, security })
    }

    /// The hosts, each with or without a port.
    pub(super) fn hosts(&self) -> &[UrlHost<'a>] {
        &self.parts.hosts
    }

    /// Without the first `/`.
    pub(super) fn path(&self) -> &'a str {
        self.parts.path
    }

    fn scheme(&self) -> &'static str {
        if self.parts.scheme.starts_with("rediss") { "rediss" } else { "redis" }
    }

    /// The URL of one host with the same credentials.
    pub(super) fn of_host(&self, host: &str, database: &str) -> String {
        let credentials = self.parts.credentials.map(|credentials| format!("{credentials}@"));
        format!("{}://{}{host}/{database}", self.scheme(), credentials.unwrap_or_default())
    }

    /// The URL of one host with other credentials, which are percent-encoded and have an `@` behind
    /// them, or none.
    pub(super) fn of_host_as(&self, credentials: &str, host: &UrlHost<'_>, port: u16) -> String {
        format!("{}://{credentials}{}", self.scheme(), host.with_port(port))
    }

    /// The values of the parameters that may be there beside certificates, as they are written.
    pub(super) fn parameters<const N: usize>(
        &self,
        known: [&str; N],
    ) -> Result<[Option<&'a str>; N], InvalidUrl> {
        let mut values = [None; N];
        for &parameter in &self.parameters {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let at = known.iter().position(|name| *name == key);
            let at = at.ok_or(InvalidUrl("it has a parameter that is not known here"))?;
            values[at] = Some(value);
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_has_the_credentials_of_the_whole() {
        let url = ServersUrl::parse("redlock://user:p@ss/word@a, b:7000/3?x=1").unwrap();
        assert_eq!(url.of_host("a:6379", url.path()), "redis://user:p@ss/word@a:6379/3");
        let sentinel = url.of_host_as(":secret@", &url.hosts()[1], 26379);
        assert_eq!(sentinel, "redis://:secret@b:7000");
        assert_eq!(url.parameters(["y", "x"]).unwrap(), [None, Some("1")]);
        assert!(url.parameters(["y"]).is_err());
    }

    #[test]
    fn scheme_of_the_whole_decides_on_tls() {
        for (url, scheme) in [("rediss+sentinel://a/m", "rediss"), ("redis+cluster://a", "redis")] {
            assert_eq!(ServersUrl::parse(url).unwrap().scheme(), scheme);
        }
    }
}
