//! Goal: where locks outlive a process of keylatch, each answered change does.
//!
//! Method: a process is killed, and another one opens the same store. Grants that were answered are
//! there, and released locks are free.

use keylatch_testkit::{Api, Process, TestStore, store_test};
use serde_json::json;

use crate::KEYLATCH;

const TOKEN: &str = "a-token-of-the-clients-own";
const OTHER: &str = "another-token-than-that";

#[store_test(restart)]
async fn answered_grants_and_releases_survive_a_kill(store: &TestStore) {
    let process = serve(store).await;
    let api = Api::at(process.address);
    let held = api.create_as("held", TOKEN, &json!({"ttl_ms": 600_000, "owner": "alice"})).await;
    assert_eq!(held.status, 201, "{held:?}");
    let released = api.create_as("released", TOKEN, &json!({"ttl_ms": 600_000})).await;
    assert_eq!(api.release("released", TOKEN).await.status, 204);
    process.ended_by("-KILL").await;

    let process = serve(store).await;
    let api = Api::at(process.address);
    api.create_as("held", OTHER, &json!({})).await.is_problem(409, "lock-held");
    let again = api.create_as("held", TOKEN, &json!({})).await;
    assert_eq!((again.status.as_u16(), again.fencing_token()), (200, held.fencing_token()));
    assert_eq!(again.json["owner"], "alice");
    let next = api.create_as("released", OTHER, &json!({})).await;
    assert_eq!(next.status, 201, "{next:?}");
    assert!(next.fencing_token() > released.fencing_token(), "{released:?}, then {next:?}");
    assert_eq!(api.release("held", TOKEN).await.status, 204);
}

async fn serve(store: &TestStore) -> Process {
    KEYLATCH.serve(&["--store", store.url()], &[]).await
}
