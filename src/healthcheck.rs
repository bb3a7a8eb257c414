//! `keylatch healthcheck`: asks a service on this machine whether it is alive, for an image that
//! has no curl.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};

use crate::error::Error;

const LIMIT: Duration = Duration::from_secs(3);

/// Whether the service that listens on `listen` answers `/livez` with 200 within 3 s.
///
/// # Errors
///
/// It does not, and why.
pub async fn check(listen: &str) -> Result<(), Error> {
    let asked = tokio::time::timeout(LIMIT, ask(listen)).await;
    match asked {
        Ok(Ok(status)) if status.is_success() => Ok(()),
        Ok(Ok(status)) => Err(Error::Unhealthy(format!("{listen} answered {status}"))),
        Ok(Err(error)) => Err(Error::Unhealthy(format!("{listen}: {error}"))),
        Err(_) => Err(Error::Unhealthy(format!("{listen} gave no answer within {LIMIT:?}"))),
    }
}

async fn ask(listen: &str) -> Result<hyper::StatusCode, Box<dyn std::error::Error + Send + Sync>> {
    let address = lookup_host(listen).await?.next().ok_or("no such address")?;
    let address = reachable(address);
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    // The address and not the name in `listen`, which a service on loopback need not go by.
    let host = address.to_string();
    let request =
        Request::get("/livez").header(hyper::header::HOST, host).body(Empty::<Bytes>::new())?;
    // The connection ends when the sender is gone, if not before.
    let asking = async move { sender.send_request(request).await.map(|answer| answer.status()) };
    let (status, _) = tokio::join!(asking, connection);
    Ok(status?)
}

/// Where a service of this machine that listens on `address` is reached: on loopback, if it listens on every
/// address.
pub fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}
