//! Where the keys of an issuer come from: a file, or a URL.
//!
//! A fetch follows no redirect, has 5 s, and takes 1 MiB at most. Plain `http` is for a server on
//! loopback, because who can change the keys can be everybody.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Limited};
use keylatch_client::https::{HttpsClient, Trust, https_client};
use tokio::time::timeout;

const TIME: Duration = Duration::from_secs(5);
const MOST: usize = 1024 * 1024;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeySource {
    File(String),
    Url(Uri),
}

impl KeySource {
    /// Reads the setting; `None` where it is neither.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if !text.contains("://") {
            return (!text.is_empty()).then(|| Self::File(text.to_owned()));
        }
        let url: Uri = text.parse().ok()?;
        let host = url.host()?.trim_matches(['[', ']']);
        let is_loopback = host == "localhost"
            || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        let is_safe = match url.scheme_str()? {
            "https" => true,
            "http" => is_loopback,
            _ => false,
        };
        let has_user = url.authority()?.as_str().contains('@');
        (is_safe && !has_user).then_some(Self::Url(url))
    }
}

#[derive(Debug)]
pub(super) struct Fetch {
    url: Uri,
    client: HttpsClient<Body>,
}

impl Fetch {
    pub(super) fn new(url: Uri) -> io::Result<Self> {
        let is_https = url.scheme_str() == Some("https");
        let trust = if is_https { Trust::System } else { Trust::None };
        Ok(Self { url, client: https_client(&trust)? })
    }

    pub(super) fn url(&self) -> String {
        self.url.to_string()
    }

    pub(super) async fn get(&self) -> Result<Bytes, String> {
        let fetched = timeout(TIME, self.fetch()).await;
        fetched.unwrap_or_else(|_| Err(format!("there was no answer within {} s", TIME.as_secs())))
    }

    async fn fetch(&self) -> Result<Bytes, String> {
        let request = Request::get(self.url.clone()).body(Body::empty());
        let request = request.map_err(|error| error.to_string())?;
        let response = self.client.request(request).await.map_err(|error| error.to_string())?;
        if response.status() != StatusCode::OK {
            return Err(format!("the answer was {}", response.status()));
        }
        let body = Limited::new(response.into_body(), MOST).collect().await;
        body.map(|body| body.to_bytes()).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_a_file_or_a_url_that_others_cannot_change() {
        for url in ["https://id.example/keys", "http://127.0.0.1:81/k", "http://[::1]/k"] {
            assert_eq!(KeySource::parse(url), Some(KeySource::Url(url.parse().unwrap())), "{url}");
        }
        let file = KeySource::File("keys/issuer.json".into());
        assert_eq!(KeySource::parse("keys/issuer.json"), Some(file));
        for wrong in ["", "http://id.example/keys", "ftp://id.example/k", "https://a:b@id/k"] {
            assert_eq!(KeySource::parse(wrong), None, "{wrong}");
        }
    }
}
