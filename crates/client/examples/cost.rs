//! Measures what the client costs: a lock and its release, beside the same two requests by hyper.
//!
//! The two come in turn, 3000 times; it prints both times in seconds, a line for each turn.
//! `clients/cost.py` runs it.

#![expect(clippy::print_stdout, reason = "the script reads what this program prints")]

use std::env;
use std::time::Instant;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request};
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use keylatch_client::{AcquireOptions, BoxError, Client};

type Plain = Http<HttpConnector, Full<Bytes>>;

async fn ask(http: &Plain, method: Method, at: u32, body: &'static str) -> Result<(), BoxError> {
    let url = format!("{}/v1/locks/a", env::var("KEYLATCH_URL")?);
    let request = Request::builder()
        .method(method)
        .uri(url)
        .header("lock-token", format!("a-token-of-some-length-{at}"))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from_static(body.as_bytes())))?;
    let response = http.request(request).await?;
    if !response.status().is_success() {
        return Err(format!("it reads {}", response.status()).into());
    }
    let body = response.into_body().collect().await?.to_bytes();
    if !body.is_empty() {
        serde_json::from_slice::<serde_json::Value>(&body)?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let http: Plain = Http::builder(TokioExecutor::new()).build(connector);
    let (client, options) = (Client::from_env()?, AcquireOptions::default());
    for at in 0..3000 {
        let begun = Instant::now();
        ask(&http, Method::POST, at, r#"{"ttl_ms":30000,"owner":"me"}"#).await?;
        ask(&http, Method::DELETE, at, "").await?;
        let middle = Instant::now();
        client.lock("a", &options).await?.close().await?;
        println!("{} {}", (middle - begun).as_secs_f64(), middle.elapsed().as_secs_f64());
    }
    Ok(())
}
