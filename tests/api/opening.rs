//! Goal: a service whose store takes long to open is alive meanwhile, and answers what clients ask
//! as soon as it can.
//!
//! Method: a service in the test's process over a store that opens when the test says.

use std::sync::Arc;

use keylatch::app::{App, bind};
use keylatch::config::Config;
use keylatch_core::store::Store;
use keylatch_stores::OpenError;
use keylatch_testkit::{Api, RawConnection, config, soon};
use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// A store in memory that opens once the test says so, or fails to where the test forgets it.
async fn memory_once(opened: oneshot::Receiver<()>) -> Result<Arc<dyn Store>, OpenError> {
    opened.await.map_err(|_| OpenError::NoDirectory)?;
    Ok(keylatch_stores::memory())
}

fn on_a_free_port() -> Config {
    Config { listen: "127.0.0.1:0".to_owned(), ..config("memory:") }
}

#[tokio::test]
async fn service_is_alive_while_its_store_opens_and_requests_wait_for_it() {
    let mut config = on_a_free_port();
    let bound = bind(&mut config).await.expect("it listens");
    let address = config.listener[0].address.parse().expect("an address");
    let (open, opened) = oneshot::channel();
    let closing = CancellationToken::new();
    let closed = closing.clone().cancelled_owned();
    let serving = tokio::spawn(async move {
        let app = App::open_with(config, &bound, memory_once(opened)).await?;
        app.serve_on(bound, closed).await
    });
    let api = Api::at(address);
    let head = "POST /v1/locks/early HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    let mut early = RawConnection::sending(address, head).await;
    let alive = soon("an answer of /livez", api.get("/livez")).await;
    assert_eq!(alive.status, 200, "{alive:?}");
    open.send(()).expect("it opens");
    assert_eq!(soon("the early lock", early.answer()).await.status, 201);
    assert_eq!(early.get("/v1/locks/early").await.status, 200, "the connection did not stay");
    assert_eq!(api.create("late", &json!({})).await.status, 201);
    assert_eq!(api.get("/livez").await.status, 200);
    closing.cancel();
    soon("the end", serving).await.expect("a task").expect("it ends");
}

#[tokio::test]
async fn service_whose_store_does_not_open_ends() {
    let mut config = on_a_free_port();
    let bound = bind(&mut config).await.expect("it listens");
    let (open, opened) = oneshot::channel();
    drop(open);
    let failed = App::open_with(config, &bound, memory_once(opened)).await;
    assert!(failed.is_err(), "{failed:?}");
}
