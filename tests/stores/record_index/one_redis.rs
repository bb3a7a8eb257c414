//! Goal: Redis keeps an index of the records that are not done, and reads a list of them by it.
//!
//! Method: the commands of a server are counted, and its index beside what a list gives.

use keylatch_core::idempotency::ResolveCommand;
use keylatch_testkit::RedisServer;

use super::*;
use crate::redis_records::on_redis;

/// How often the server ran a command since its counts were set back.
async fn calls(redis: &RedisServer, command: &str) -> u32 {
    let counts: String = redis.run(&["INFO", "commandstats"]).await;
    let line =
        counts.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |rest| {
        rest.split(',').next().and_then(|count| count.parse().ok()).expect("a count")
    })
}

/// How many entries the indexes of all buckets have.
async fn indexed(redis: &RedisServer) -> usize {
    let indexes: Vec<String> = redis.run(&["KEYS", "*:unfinished"]).await;
    let mut count = 0;
    for index in indexes {
        count += redis.run::<usize>(&["ZCARD", &index]).await;
    }
    count
}

#[tokio::test]
async fn redis_list_of_unknown_reads_no_record_that_is_done() {
    let (redis, store) = on_redis().await;
    fill(&*store).await;
    assert_eq!(indexed(&redis).await, UNKNOWN as usize, "the index is not that of the unknown");
    redis.run::<()>(&["CONFIG", "RESETSTAT"]).await;
    assert_eq!(listed(&*store, PhaseName::Unknown).await.len(), UNKNOWN as usize);
    // Each look at a record is one such call, and each at an index of the other kind.
    assert_eq!(calls(&redis, "get").await, UNKNOWN);
    assert_eq!(calls(&redis, "zrangebyscore").await, 256);
    assert_eq!(calls(&redis, "scan").await, 0);
    for number in DONE..DONE + UNKNOWN / 2 {
        let end = Some(StoredResponse::Mark(200)).filter(|_| number % 2 == 0);
        let resolve =
            ResolveCommand { key: order(number).key, fencing_token: None, end: end.into() };
        store.resolve(&resolve).await.unwrap();
    }
    assert_eq!(indexed(&redis).await, UNKNOWN as usize / 2, "an entry outlived the unknown");
    redis.advance(Duration::from_secs(31 * 24 * 3600));
    assert_eq!(indexed(&redis).await, 0, "an index outlived its records");
}

#[tokio::test]
async fn redis_index_loses_what_expired() {
    let (redis, store) = on_redis().await;
    run_orders(&*store, 0..6, &RunEnd::Unknown(UnknownReason::Failed)).await;
    let records: Vec<String> = redis.run(&["KEYS", "*:record:*"]).await;
    redis.run::<()>(&["DEL", &records[0]]).await;
    assert_eq!(listed(&*store, PhaseName::Unknown).await.len(), 5);
    assert_eq!(indexed(&redis).await, 5, "an entry outlived the unknown");
    // A begin in its bucket takes out what has expired; six days later than the others.
    redis.advance(Duration::from_secs(6 * 24 * 3600));
    let mut later = order(0);
    later.key = RecordKey::from_bytes([7; 32]);
    let index = "keylatch:{07}:unfinished";
    redis.run::<()>(&["ZADD", index, "1000", "expired"]).await;
    store.begin(&later).await.unwrap();
    assert_eq!(redis.run::<usize>(&["ZCARD", index]).await, 1);
}
