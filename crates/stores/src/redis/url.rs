//! The URLs of Redis: of one server, and of several, which are those of Sentinel, of a cluster and
//! of Redlock.
//!
//! The driver's own URLs name one host. So the URL of several is taken apart, and the driver gets
//! one URL for each host, with the credentials and the scheme of the whole. It ignores parameters
//! that it does not know, so those of certificates are taken out of a URL of one server.
//!
//! An error says nothing of the URL's text, because the URL may hold a password. Tested below, and
//! with real servers in the tests of each topology and in `tests/stores/redis_certificates.rs`.

use crate::conn::tls::{Certificates, WORDS};
use crate::conn::url::MultiHostUrl;
use crate::error::OpenError;

/// What the schemes with TLS begin with.
const SECURE: &str = "rediss";

/// Takes the URL of several servers apart.
pub(super) fn parse(url: &str) -> Result<MultiHostUrl<'_>, String> {
    MultiHostUrl::parse(url, SECURE)
}

impl MultiHostUrl<'_> {
    /// The URL of one host with the same credentials.
    pub(in crate::redis) fn of_host(&self, host: &str, database: &str) -> String {
        let credentials = self.credentials.map(|credentials| format!("{credentials}@"));
        self.of_host_as(&credentials.unwrap_or_default(), &format!("{host}/{database}"))
    }

    /// The URL of one host with other credentials, which are percent-encoded and have an `@` behind
    /// them, or none.
    pub(in crate::redis) fn of_host_as(&self, credentials: &str, host: &str) -> String {
        let scheme = if self.certificates.is_some() { SECURE } else { "redis" };
        format!("{scheme}://{credentials}{host}")
    }
}

/// Takes the certificates out of the URL of one server.
pub(super) fn without_certificates(url: &str) -> Result<(String, Certificates), String> {
    let Some((before, query)) = url.split_once('?') else {
        return Ok((url.to_owned(), Certificates::default()));
    };
    let (query, fragment) = match query.split_once('#') {
        Some((query, fragment)) => (query, format!("#{fragment}")),
        None => (query, String::new()),
    };
    let (certificates, others) = Certificates::split(&WORDS, query)?;
    let certificates = certificates.over(before, SECURE)?.unwrap_or_default();
    let query = if others.is_empty() { String::new() } else { format!("?{}", others.join("&")) };
    Ok((format!("{before}{query}{fragment}"), certificates))
}

pub(super) fn bad(why: impl Into<String>) -> OpenError {
    OpenError::BadUrl("a Redis", why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_has_the_credentials_of_the_whole_and_its_tls() {
        let url = parse("redlock://user:p@ss/word@a, b:7000/3").unwrap();
        assert_eq!(url.of_host("a:6379", url.path), "redis://user:p@ss/word@a:6379/3");
        assert_eq!(url.of_host_as(":secret@", "b:7000"), "redis://:secret@b:7000");
        let secure = parse("rediss+sentinel://a/m").unwrap();
        assert_eq!(secure.of_host("a", ""), "rediss://a/");
    }

    #[test]
    fn certificates_are_taken_out_of_the_url() {
        let url = "rediss://u:p@a/3?cacert=/a%20b.pem&protocol=3&key=k&cert=c#insecure";
        let (url, certificates) = without_certificates(url).unwrap();
        assert_eq!(url, "rediss://u:p@a/3?protocol=3#insecure");
        assert_eq!(certificates.roots, Some("/a b.pem".into()));
        for plain in ["redis://a/3", "redis+unix:///s?db=3&user=a&pass=b"] {
            let split = without_certificates(plain).unwrap();
            assert_eq!(split, (plain.to_owned(), Certificates::default()));
        }
    }
}
