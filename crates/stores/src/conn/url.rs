//! URLs of several hosts: of Sentinel, Cluster, Redlock, etcd and ZooKeeper. PostgreSQL's driver
//! reads its own.
//!
//! `SCHEME://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…][/PATH][?QUERY]`. The parts are as they are
//! written: what a path is, how credentials are decoded and which parameters there are beside those
//! of certificates differs between engines.
//!
//! An error says nothing of the URL's text, because the URL may hold a password. Tested below, and
//! with real servers in the tests of each engine.

use super::tls::{Certificates, WORDS};

#[derive(Debug)]
pub(crate) struct MultiHostUrl<'a> {
    /// Without the `@` behind them.
    pub(crate) credentials: Option<&'a str>,
    /// At least one.
    pub(crate) hosts: Vec<UrlHost<'a>>,
    /// Without the `/` before it; empty where there is none.
    pub(crate) path: &'a str,
    /// What it says of certificates; `None` where its scheme has no TLS.
    pub(crate) certificates: Option<Certificates>,
    parameters: Vec<&'a str>,
}

/// A host of a URL, with or without a port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UrlHost<'a> {
    /// As it is written: an IPv6 address has brackets.
    pub(crate) text: &'a str,
    /// Its name or address, without brackets.
    #[cfg_attr(
        not(any(feature = "redis", feature = "zookeeper")),
        expect(dead_code, reason = "etcd takes hosts as they are written")
    )]
    pub(crate) name: &'a str,
    pub(crate) port: Option<u16>,
}

impl<'a> MultiHostUrl<'a> {
    /// Takes a URL apart; one whose scheme begins with `secure` has TLS.
    pub(crate) fn parse(url: &'a str, secure: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or("it has no `://`")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may have an `@` and, unescaped, a `/`: hosts have neither.
        let (credentials, rest) = match rest.rsplit_once('@') {
            Some((credentials, rest)) => (Some(credentials), rest),
            None => (None, rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts = hosts.split(',').map(UrlHost::parse).collect::<Result<_, _>>()?;
        let (certificates, parameters) = Certificates::split(&WORDS, query)?;
        let certificates = certificates.over(scheme, secure)?;
        Ok(Self { credentials, hosts, path, certificates, parameters })
    }

    /// The values of the parameters that may be there beside certificates, as they are written.
    pub(crate) fn parameters<const N: usize>(
        &self,
        known: [&str; N],
    ) -> Result<[Option<&'a str>; N], String> {
        let mut values = [None; N];
        for &parameter in &self.parameters {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let at = known.iter().position(|name| *name == key).ok_or_else(|| {
                let all = known.map(|name| format!(", `{name}`")).concat();
                format!("its parameters are `cacert`, `cert`, `key`, `servername`{all}")
            })?;
            values[at] = Some(value);
        }
        Ok(values)
    }
}

impl<'a> UrlHost<'a> {
    fn parse(text: &'a str) -> Result<Self, &'static str> {
        let text = text.trim();
        let (name, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some(parts) => parts,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        if name.is_empty() {
            return Err("a host is missing");
        }
        let is_in_a_name = |c: char| c.is_ascii_alphanumeric() || "-._:%".contains(c);
        if !name.chars().all(is_in_a_name) {
            return Err("a host is not a name or an address");
        }
        let number = |port: &str| port.strip_prefix(':')?.parse().ok().filter(|port| *port > 0);
        match (port, number(port)) {
            ("", _) => Ok(Self { text, name, port: None }),
            (_, None) => Err("a port is not a number from 1 to 65535"),
            (_, port) => Ok(Self { text, name, port }),
        }
    }

    /// `HOST:PORT`, whether the URL names the port or not.
    pub(crate) fn with_port(&self, default: u16) -> String {
        match self.port {
            Some(_) => self.text.to_owned(),
            None => format!("{}:{default}", self.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> MultiHostUrl<'_> {
        MultiHostUrl::parse(url, "etcds").unwrap()
    }

    #[test]
    fn credentials_end_at_the_last_at_sign() {
        let url = parsed("redlock://user:p@ss/word@a, b:7000/3?x=1");
        assert_eq!(url.credentials, Some("user:p@ss/word"));
        assert_eq!(url.hosts.iter().map(|host| host.text).collect::<Vec<_>>(), ["a", "b:7000"]);
        assert_eq!((url.path, url.parameters(["y", "x"])), ("3", Ok([None, Some("1")])));
        assert!(url.parameters(["y"]).is_err());
        let url = parsed("etcd://a");
        assert_eq!((url.credentials, url.path, url.parameters([])), (None, "", Ok([])));
    }

    #[test]
    fn certificates_are_for_schemes_with_tls() {
        assert_eq!(parsed("etcd://a").certificates, None);
        assert_eq!(parsed("etcds://a").certificates, Some(Certificates::default()));
        let named = parsed("etcds+x://a/b?servername=c").certificates.unwrap();
        assert_eq!(named.server_name.as_deref(), Some("c"));
        let error = MultiHostUrl::parse("etcd://a?cacert=c", "etcds").unwrap_err();
        assert!(error.contains("`etcds`"), "{error}");
    }

    #[test]
    fn default_port_is_added_only_where_none_is_named() {
        let url = parsed("etcd://a,a:7000,[::1],[::1]:7000,a_b.c-d");
        let named: Vec<_> = url.hosts.iter().map(|host| host.with_port(6379)).collect();
        assert_eq!(named, ["a:6379", "a:7000", "[::1]:6379", "[::1]:7000", "a_b.c-d:6379"]);
    }

    #[test]
    fn error_says_what_is_wrong_and_nothing_of_the_url() {
        for (url, why) in [
            ("sesame:a,b", "no `://`"),
            ("etcd://", "missing"),
            ("etcd://u:sesame@a,,b", "missing"),
            ("etcd://u:sesame@/0", "missing"),
            ("etcd://u:sesame@:2379", "missing"),
            ("etcd://u:sesame@[]:2379", "missing"),
            ("etcd://u:sesame@a:sesame", "port"),
            ("etcd://u:sesame@a:", "port"),
            ("etcd://u:sesame@a:0", "port"),
            ("etcd://u:sesame@a:65536", "port"),
            ("etcd://u:sesame@::1:2379", "missing"),
            ("etcd://u:sesame@[::1]sesame", "port"),
            ("etcd://u:sesame@ses ame", "name"),
        ] {
            let error = MultiHostUrl::parse(url, "etcds").expect_err(url);
            assert!(error.contains(why) && !error.contains("sesame"), "{url}: {error}");
        }
    }
}
