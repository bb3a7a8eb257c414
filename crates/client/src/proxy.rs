//! Proxies between the client and the service.
//!
//! A request for an `http` URL goes to the proxy with its whole URL, one for `https` through a
//! tunnel (`CONNECT`), so that the proxy sees neither token nor key. Which proxy that is, is known
//! when the client is made. Tested in `tests/api/rust_client_proxy.rs`.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::{env, io};

use hyper::Uri;
use hyper::header::PROXY_AUTHORIZATION;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::ServiceExt as _;

use crate::Error;
use crate::transport::{Exchange, exchange};

/// The proxy for a service, at the URL that the program gives, or as the environment says if it has
/// a say.
pub(crate) fn of(
    service: &Uri,
    url: Option<&str>,
    has_env: bool,
) -> Result<Option<Intercept>, Error> {
    let proxy = match url {
        Some(url) => {
            let all = Matcher::builder().all(url).build();
            Some(all.intercept(service).ok_or(Error::Proxy)?)
        }
        None => has_env.then(from_env).and_then(|matcher| matcher.intercept(service)),
    };
    match proxy.as_ref().and_then(|proxy| proxy.uri().scheme_str()) {
        None | Some("http") => Ok(proxy),
        Some(_) => Err(Error::Proxy),
    }
}

/// What `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` say, be they in small letters. None leads to
/// this machine.
fn from_env() -> Matcher {
    let value = |name: &str| {
        let value = env::var(name).or_else(|_| env::var(name.to_lowercase()));
        value.unwrap_or_default()
    };
    let none = format!("{},localhost,127.0.0.0/8,::1", value("NO_PROXY"));
    Matcher::builder().http(value("HTTP_PROXY")).https(value("HTTPS_PROXY")).no(none).build()
}

/// Makes a tunnel through the proxy.
pub(crate) fn tunnel(proxy: &Intercept, connector: HttpConnector) -> Tunnel<HttpConnector> {
    let tunnel = Tunnel::new(proxy.uri().clone(), connector);
    match proxy.basic_auth() {
        Some(auth) => tunnel.with_auth(auth.clone()),
        None => tunnel,
    }
}

/// What sends requests to the proxy, which forwards them.
pub(crate) fn forwarding(proxy: &Intercept, connector: HttpConnector) -> Exchange {
    let (uri, auth) = (proxy.uri().clone(), proxy.basic_auth().cloned());
    let send = exchange(connector.map_request(move |_: Uri| uri.clone()).map_response(Proxied));
    std::sync::Arc::new(move |mut request| {
        if let Some(auth) = &auth {
            request.headers_mut().insert(PROXY_AUTHORIZATION, auth.clone());
        }
        send(request)
    })
}

/// A connection to a proxy, by which hyper sends whole URLs.
struct Proxied(TokioIo<TcpStream>);

impl Proxied {
    fn inner(self: Pin<&mut Self>) -> Pin<&mut TokioIo<TcpStream>> {
        Pin::new(&mut self.get_mut().0)
    }
}

impl Connection for Proxied {
    fn connected(&self) -> Connected {
        self.0.connected().proxy(true)
    }
}

impl Read for Proxied {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.inner().poll_read(context, buffer)
    }
}

impl Write for Proxied {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.inner().poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_shutdown(context)
    }
}
