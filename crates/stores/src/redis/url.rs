//! URLs of several hosts: those of Sentinel, of a cluster and of Redlock.
//!
//! The driver's own URLs name one host. A [`MultiHostUrl`] is taken apart here, and the driver gets
//! one URL for each host, with the credentials and the scheme of the whole.
//!
//! An error says nothing of the URL's text, because the URL may hold a password. Tested below, and
//! with real servers in the tests of each topology.

use super::failure::InvalidUrl;
use super::tls::{PARAMETERS, Security};

/// `SCHEME://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/PATH][?QUERY]`.
#[derive(Debug)]
pub(super) struct MultiHostUrl<'a> {
    /// `redis`, or `rediss` for TLS.
    scheme: &'static str,
    /// With the `@` behind them, or empty.
    credentials: &'a str,
    pub(super) hosts: Vec<&'a str>,
    /// Without the first `/`.
    pub(super) path: &'a str,
    query: &'a str,
    /// Its certificates, for every host.
    pub(super) security: Security,
}

impl<'a> MultiHostUrl<'a> {
    /// The parts of a URL. Every host is there, with or without a port.
    pub(super) fn parse(url: &'a str) -> Result<Self, InvalidUrl> {
        let (scheme, rest) = url.split_once("://").ok_or(InvalidUrl("it has no `://`"))?;
        let scheme = if scheme.starts_with("rediss") { "rediss" } else { "redis" };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may have an `@` and, unescaped, a `/`: hosts have neither.
        let hosts_at = rest.rfind('@').map_or(0, |at| at + 1);
        let (credentials, rest) = rest.split_at(hosts_at);
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts: Vec<_> = hosts.split(',').map(str::trim).collect();
        if hosts.iter().any(|host| host.is_empty()) {
            return Err(InvalidUrl("a host is missing between two commas"));
        }
        let security = Security::of(scheme == "rediss", query)?;
        Ok(Self { scheme, credentials, hosts, path, query, security })
    }

    /// The URL of one host with the same credentials.
    pub(super) fn of_host(&self, host: &str, database: &str) -> String {
        format!("{}://{}{host}/{database}", self.scheme, self.credentials)
    }

    /// The URL of one host with other credentials, which are percent-encoded and have an `@` behind
    /// them, or none.
    pub(super) fn of_host_as(&self, credentials: &str, host: &str, default_port: u16) -> String {
        format!("{}://{credentials}{}", self.scheme, with_port(host, default_port))
    }

    /// The values of the parameters that may be there beside certificates, as they are written.
    pub(super) fn parameters<const N: usize>(
        &self,
        known: [&str; N],
    ) -> Result<[Option<&'a str>; N], InvalidUrl> {
        let mut values = [None; N];
        for parameter in self.query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if PARAMETERS.contains(&key) {
                continue;
            }
            let at = known.iter().position(|name| *name == key);
            let at = at.ok_or(InvalidUrl("it has a parameter that is not known here"))?;
            values[at] = Some(value);
        }
        Ok(values)
    }
}

/// `HOST:PORT`, whether `host` names its port or not.
pub(super) fn with_port(host: &str, default_port: u16) -> String {
    // The colons of an IPv6 address are within its brackets.
    let has_port = host.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
    if has_port { host.to_owned() } else { format!("{host}:{default_port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_end_at_the_last_at_sign() {
        let url = MultiHostUrl::parse("redlock://user:p@ss/word@a, b:7000/3?x=1").unwrap();
        assert_eq!((url.credentials, url.path), ("user:p@ss/word@", "3"));
        assert_eq!(url.hosts, ["a", "b:7000"]);
        assert_eq!(url.of_host("a:6379", url.path), "redis://user:p@ss/word@a:6379/3");
        assert_eq!(url.parameters(["y", "x"]).unwrap(), [None, Some("1")]);
        assert!(url.parameters(["y"]).is_err());
    }

    #[test]
    fn default_port_is_added_only_where_none_is_named() {
        let named = ["a", "a:7000", "[::1]", "[::1]:7000"].map(|host| with_port(host, 6379));
        assert_eq!(named, ["a:6379", "a:7000", "[::1]:6379", "[::1]:7000"]);
    }

    #[test]
    fn missing_host_is_refused() {
        for url in ["redlock://", "redlock://a,,b", "redlock://u:p@/0", "a,b"] {
            assert!(MultiHostUrl::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn scheme_of_the_whole_decides_on_tls() {
        for (url, scheme) in [("rediss+sentinel://a/m", "rediss"), ("redis+cluster://a", "redis")] {
            assert_eq!(MultiHostUrl::parse(url).unwrap().scheme, scheme);
        }
    }
}
