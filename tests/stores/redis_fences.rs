//! Goal: fencing tokens rise although Redis forgets them.
//!
//! Method: one real Redis, which the test flushes, and a proxy that makes the process think that
//! the clock of Redis shows less than it does.

use std::time::Duration;

use keylatch_testkit::{Proxy, RedisServer};

use crate::lock_conformance::{ask, granted};
use crate::redis_records::open;

#[tokio::test]
async fn fencing_token_is_above_all_that_a_flush_took() {
    let redis = RedisServer::start().await;
    let proxy = Proxy::start(redis.address()).await;
    proxy.delay(Duration::from_millis(100));
    let url = format!("redis://{}", proxy.address());
    let (slow, direct) = (open(&url).await, open(&redis.url()).await);
    // So the slow process reads what the clock shows at least.
    granted(slow.acquire(&ask("another", "one", 1)).await.unwrap());
    let forgotten = granted(direct.acquire(&ask("a", "one", 1)).await.unwrap());
    let () = redis.run(&["FLUSHALL"]).await;
    let later = granted(slow.acquire(&ask("a", "two", 2)).await.unwrap());
    let tokens = [forgotten, later].map(|lease| lease.fencing_token);
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}
